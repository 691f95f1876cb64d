"""Rows of a table in which several methods take turns at one array: sizes beside a bound, speeds beside a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gcodec.benchmark.timing import CodecTask, interleave

#: What :func:`method_rows` yields for each method.
METHOD_COLUMNS = (
    "method",
    "bytes",
    "percent",
    "of_bound",
    "encode_seconds",
    "decode_seconds",
    "encode_of_copy",
    "decode_of_copy",
)

APART = "gcodec, parts apart"  #: each part of an array as a frame of its own


def method_rows(tasks: Mapping[str, CodecTask], raw_bytes: int, bound: float, rounds: int) -> Iterator[list[object]]:
    """Yield a row for each method, after all have been checked to give the array back.

    Args:
        tasks: The methods by name; "copy" is one of them.
        raw_bytes: Bytes of the array.
        bound: Bytes that sizes are compared with.
        rounds: How often the methods take turns.
    """
    sizes = {name: task.verify() for name, task in tasks.items()}  # and whatever there is to compile is compiled
    timings, errors = interleave(tasks, rounds, budget=20)
    for error in errors.values():
        raise error
    copied = timings["copy"]
    for name, timing in timings.items():
        size = sizes[name]
        yield [
            name,
            size,
            f"{100 * size / raw_bytes:.3f}",
            f"{size / bound:.3f}",
            f"{timing.encode:.5f}",
            f"{timing.decode:.5f}",
            f"{copied.encode / timing.encode:.3f}",
            f"{copied.decode / timing.decode:.3f}",
        ]
