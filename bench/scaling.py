"""Measure speed against size, and microseconds per call: what is fixed about a call, and whether the rate holds.

    python -m bench.scaling [--data DIR] [--quick] [--largest MIB] [--out DIR]

writes ``bench/results/scaling.csv``: float32 gradients, lossless, of 4 KiB to 1 GiB, on one and two threads, into
memory that exists and into new arrays, which the larger sizes repeat; beside them the copy of the same bytes, and two
calls at the same time, each on half of the values and one thread: what two threads could reach on this machine. And
``bench/results/calls.csv``: microseconds of a call on one value and on 1024. All of one size take turns; medians.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import gcodec
from bench.codec import RESULTS
from bench.data import default_folder, named_inputs, read_series
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.inputs import GRADIENTS, Input
from gcodec.benchmark.measure import COPY, MEGA
from gcodec.benchmark.settings import lossless_setting
from gcodec.benchmark.timing import GIGA, CodecTask, copy_task, interleave

SIZES = tuple(4096 << 2 * step for step in range(10))  #: bytes: 4 KiB to 1 GiB
CALLS = (1, 1024)  #: values
A_TURN = 8 * MEGA  #: bytes in one turn at least: small sizes are coded several times
MODEL = "transformer"
EXISTING, NEW, SIDE_BY_SIDE = "existing", "new", "gcodec, two calls"
_pool = ThreadPoolExecutor(2)


def source(folder: Path) -> np.ndarray:
    """Return the gradients of all recorded steps of a model, end to end, as bits."""
    series = read_series(folder)
    model = MODEL if MODEL in series else next(iter(series))
    ((_, parts),) = named_inputs({model: series[model]}, (GRADIENTS,), ("float32",), with_levels=False)
    return np.concatenate([part.bits for part in parts])


def of_size(bits: np.ndarray, n_bytes: int) -> Input:
    """Return so many bytes of an array: from the middle, or repeated."""
    count = n_bytes // bits.itemsize
    start = max(0, (bits.size - count) // 2)
    return Input("", "float32", np.resize(bits[start:], count))


def side_by_side(data: Input) -> CodecTask:
    """Return the task that codes each half of the values by a call of its own, at the same time."""
    middle, result = data.bits.size // 2, np.zeros_like(data.values)
    halves, results = (data.bits[:middle], data.bits[middle:]), (result[:middle], result[middle:])
    rooms = [np.zeros(gcodec.max_encoded_size(half.size, data.dtype), np.uint8) for half in halves]

    def encode() -> list[Any]:
        return list(
            _pool.map(lambda half, room: gcodec.encode(half, dtype=data.dtype, threads=1, out=room), halves, rooms)
        )

    def decode(encoded: list[Any]) -> np.ndarray:
        list(_pool.map(lambda selected, own: gcodec.decode(selected, threads=1, out=own), encoded, results))
        return result

    return CodecTask(encode, decode, data.bits)


def tasks_of(data: Input) -> dict[tuple[str, int, str], CodecTask]:
    """Return tasks by codec, threads and kind of memory. More threads only where gcodec would use them."""
    ours = lossless_setting(data)
    results = {(COPY, 1, EXISTING): copy_task(data.bits)}
    for threads in (1, 2):
        for memory in (EXISTING, NEW):
            results["gcodec", threads, memory] = ours.task(threads, reuse=memory == EXISTING)
    results[SIDE_BY_SIDE, 2, EXISTING] = side_by_side(data)
    return results


def rates(bits: np.ndarray, sizes: Sequence[int], rounds: int) -> Iterator[NamedRow]:
    """Rows of ``scaling.csv``."""
    for size in sizes:
        data = of_size(bits, size)
        tasks = {" ".join(map(str, key)): (key, task) for key, task in tasks_of(data).items()}
        calls = max(1, min(1000, A_TURN // size))
        few = 3 if size > 64 * MEGA else rounds
        for _, task in tasks.values():
            task.encode()  # touches the memory, compiles
        timings, errors = interleave({name: task for name, (_, task) in tasks.items()}, min(few, rounds), 60.0, calls)
        for error in errors.values():
            raise error
        stored = len(lossless_setting(data).task().encode())
        for name, timing in timings.items():
            (codec, threads, memory), _ = tasks[name]
            yield {
                "bytes": size,
                "codec": codec,
                "threads": threads,
                "memory": memory,
                "compressed_bytes": size if codec == COPY else stored,
                "encode_GBps": f"{size / timing.encode / GIGA:.3f}",
                "decode_GBps": f"{size / timing.decode / GIGA:.3f}",
            }


def calls_of(bits: np.ndarray, rounds: int) -> Iterator[NamedRow]:
    """Rows of ``calls.csv``."""
    for count in CALLS:
        data = of_size(bits, count * bits.itemsize)
        tasks = {memory: lossless_setting(data).task(1, reuse=memory == EXISTING) for memory in (EXISTING, NEW)}
        timings, errors = interleave(tasks, rounds, 60.0, 200)
        for error in errors.values():
            raise error
        for memory, timing in timings.items():
            yield {
                "values": count,
                "memory": memory,
                "encode_us": f"{1e6 * timing.encode:.2f}",
                "decode_us": f"{1e6 * timing.decode:.2f}",
            }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: what bench.record wrote)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV files go (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="up to 4 MiB, 1 round")
    parser.add_argument("--largest", type=int, default=1024, help="MiB; takes five times as much memory (1024)")
    options = parser.parse_args(arguments)
    bits, rounds = source(options.data or default_folder()), 1 if options.quick else 9
    largest = 4 if options.quick else options.largest
    rows = []
    for row in rates(bits, [size for size in SIZES if size <= largest * MEGA], rounds):
        print(*row.values(), flush=True)
        rows.append(row)
    write_named(options.out / "scaling.csv", rows)
    calls = list(calls_of(bits, rounds))
    write_named(options.out / "calls.csv", calls)
    for row in calls:
        print(*row.values())
    return 0


if __name__ == "__main__":
    sys.exit(main())
