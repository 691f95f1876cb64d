"""Rows of a table in which several methods take turns at one array: sizes beside a bound, speeds beside a copy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gcodec.benchmark.csv_tables import NamedRow
from gcodec.benchmark.timing import CodecTask, interleave

APART = "gcodec, parts apart"  #: each part of an array as a frame of its own


def method_rows(tasks: Mapping[str, CodecTask], raw_bytes: int, bound: float, rounds: int) -> Iterator[NamedRow]:
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
        yield {
            "method": name,
            "bytes": size,
            "percent": f"{100 * size / raw_bytes:.3f}",
            "of_bound": f"{size / bound:.3f}",
            "encode_seconds": f"{timing.encode:.5f}",
            "decode_seconds": f"{timing.decode:.5f}",
            "encode_of_copy": f"{copied.encode / timing.encode:.3f}",
            "decode_of_copy": f"{copied.decode / timing.decode:.3f}",
        }
