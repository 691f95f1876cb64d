"""Measure many small tensors, as biases, norms and LoRA factors are, beside one array of the same bytes.

    python -m bench.small_tensors [--quick] [--out DIR]

writes ``bench/results/small_tensors.csv``, in half a minute on two cores: 500 tensors of 1 to 16 Ki float32 values
through ``gcodec.encode`` and ``gcodec.decode``, one by one, and through ``save_file`` and ``load_file``, also as the
difference from tensors of which 1 % of the values are others. In each round both sides take turns. Seconds are CPU time
of all threads, the smallest of the rounds. (DDP's hook gets tensors in buckets, each an array.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

import gcodec
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, write_named

SAVE, LOAD, ENCODE, DECODE = "save_file", "load_file", "encode, one by one", "decode, one by one"
SAVE_CHANGES, LOAD_CHANGES = "save_file, 1 % changed", "load_file, 1 % changed"
ROUNDS, N_TENSORS = 9, 500
Tensors = Mapping[str, np.ndarray]


def tensors_of(count: int) -> tuple[Tensors, Tensors]:
    """Return so many small tensors, and one that holds all of their values."""
    random = np.random.default_rng(0)
    sizes = random.integers(1 << 10, (1 << 14) + 1, count)
    many = {f"layers.{n}": np.float32(1e-3) * random.standard_normal(size, np.float32) for n, size in enumerate(sizes)}
    return many, {"all": np.concatenate(list(many.values()))}


def changed(tensors: Tensors) -> Tensors:
    """Return tensors of which 1 % of the values are others."""
    random = np.random.default_rng(1)
    return {
        name: np.where(random.random(values.shape) < 0.01, values * np.float32(1.001), values)
        for name, values in tensors.items()
    }


def fastest(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the least CPU seconds of each call, where all take turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for number, call in enumerate(calls):
            begin = process_time()
            call()
            best[number] = min(best[number], process_time() - begin)
    return best


def measure(count: int, rounds: int, folder: Path) -> list[NamedRow]:
    """Return the table.

    Args:
        count: Number of small tensors.
        rounds: How often both sides take turns.
        folder: A scratch folder.
    """
    sides = tensors_of(count)
    paths, bases = (folder / "many.gc", folder / "one.gc"), (folder / "many-base.gc", folder / "one-base.gc")
    later = [changed(side) for side in sides]
    for side, path in zip(sides, bases, strict=True):
        gcodec.save_file(side, path)

    def encoded(tensors: Tensors) -> int:
        return sum(len(gcodec.encode(values, threads=1)) for values in tensors.values())

    frames = [[gcodec.encode(values, threads=1) for values in side.values()] for side in sides]

    def decode(frames: Sequence[bytes]) -> None:
        for frame in frames:
            gcodec.decode(frame, threads=1)

    calls: dict[str, list[Callable[[], object]]] = {
        ENCODE: [lambda: encoded(sides[0]), lambda: encoded(sides[1])],
        DECODE: [lambda: decode(frames[0]), lambda: decode(frames[1])],
        SAVE: [lambda: gcodec.save_file(sides[0], paths[0]), lambda: gcodec.save_file(sides[1], paths[1])],
        LOAD: [lambda: gcodec.load_file(paths[0]), lambda: gcodec.load_file(paths[1])],
        SAVE_CHANGES: [
            partial(gcodec.save_file, side, path, base=base)
            for side, path, base in zip(later, paths, bases, strict=True)
        ],
        LOAD_CHANGES: [partial(gcodec.load_file, path, base=base) for path, base in zip(paths, bases, strict=True)],
    }
    n_bytes, table = sides[1]["all"].nbytes, []
    for name, both in calls.items():
        for call in both:  # loads kernels
            call()
        many, one = fastest(both, rounds)
        of_frames = name in (ENCODE, DECODE)
        sizes = [encoded(side) for side in sides] if of_frames else [path.stat().st_size for path in paths]
        row: NamedRow = {
            "through": name,
            "tensors": count,
            "bytes": n_bytes,
            "many_bytes": sizes[0],
            "one_bytes": sizes[1],
            "many_cpu_seconds": f"{many:.5f}",
            "one_cpu_seconds": f"{one:.5f}",
            "times": f"{many / one:.2f}",
        }
        table.append(row)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.small_tensors", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="20 tensors, one round")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        table = measure(20 if options.quick else N_TENSORS, 1 if options.quick else ROUNDS, Path(folder))
    for row in table:
        print(*row.values())
    write_named(options.out / "small_tensors.csv", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
