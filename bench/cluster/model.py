"""All-reduces on links and clusters that are not at hand: the alpha-beta model, with measured costs of the codec.

    python -m bench.cluster.model [--results DIR]

reads ``cluster-allreduce.csv`` and writes ``cluster-model.csv``. Nothing in it is a measurement of a network; docs/
benchmarks.md gives the formulas. The cost of the codec is that of one core per worker, as measured with two workers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path

from bench.cluster.allreduce import FILE as MEASURED
from bench.cluster.methods import FP32, LOSSLESS, NEAR, SMALL
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, read_table, write_named

FILE = "cluster-model.csv"
GBPS = (1, 2, 5, 10, 25, 40, 100, 200, 400)
WORKERS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FROM_RATE, FROM_WORKERS = "1gbit", "2"  #: the rows that costs are taken from: one core for each worker
RING, TREE, HALF = "fp32, ring", "fp32, tree", "bf16, ring"
PIECES = 12  #: of a worker's share: what is coded before the first byte can leave


@dataclass(frozen=True)
class Costs:
    """The speed and ratio of a codec on a buffer. ``encode``, ``decode``: bytes of values per second on one worker;
    ``ratio``."""

    encode: float
    decode: float
    ratio: float

    def codec_seconds(self, n_bytes: float, workers: int) -> float:
        """Return the seconds of the codec. Every value is encoded once by each rank, in all; (2N - 2) / N of them are
        decoded."""
        return n_bytes / self.encode + 2 * (workers - 1) / workers * n_bytes / self.decode


def ring(n_bytes: float, workers: int, alpha: float, beta: float) -> float:
    """Return 2 (N - 1) a + 2 (N - 1) / N · S b: seconds, where a message takes ``alpha`` and each byte ``beta``."""
    return 2 * (workers - 1) * alpha + 2 * (workers - 1) / workers * n_bytes * beta


def tree(n_bytes: float, workers: int, alpha: float, beta: float) -> float:
    """Return 2 a log2 N + 2 S b log2 N."""
    return 2 * log2(workers) * (alpha + n_bytes * beta)


def compressed(n_bytes: float, workers: int, alpha: float, beta: float, costs: Costs) -> tuple[float, float]:
    """Seconds where codec and wire overlap as far as pieces let them, and where they take turns."""
    wire = ring(n_bytes / costs.ratio, workers, alpha, beta)
    codec = costs.codec_seconds(n_bytes, workers)
    return max(wire, codec) + min(wire, codec) / PIECES, wire + codec


def break_even(workers: int, costs: Costs) -> float:
    """Bits per second of the link below which compressing wins over a dense ring even without overlap:
    2 (N - 1) / N (1 - 1 / r) / B > 1 / E + 2 (N - 1) / (N D), in bytes."""
    saved = 2 * (workers - 1) / workers * (1 - 1 / costs.ratio)
    return 8 * saved / costs.codec_seconds(1.0, workers)


def costs_of(row: Mapping[str, str]) -> Costs:
    """Read the costs from a row of ``cluster-allreduce.csv``."""
    n_bytes, workers = 4 * int(row["values"]), int(row["workers"])
    decoded = 2 * (workers - 1) / workers * n_bytes
    encode = float(row["encode_seconds"]) + float(row["sum_seconds"])
    return Costs(n_bytes / encode, decoded / float(row["decode_seconds"]), float(row["ratio"]))


def rows_of(model: str, rows: Sequence[Mapping[str, str]]) -> Iterator[NamedRow]:
    """Yield every link and number of workers, from one model's rows of two workers at 1 Gb/s."""
    measured = {row["method"]: row for row in rows}
    n_bytes = 4.0 * int(measured[FP32]["values"])
    alpha = float(measured[SMALL]["seconds"]) / 2
    costs = {
        name: costs_of(measured[name]) for name in (LOSSLESS, NEAR, "zstd-1", "shuffle+zstd-1") if name in measured
    }
    for workers in WORKERS:
        for gbps in GBPS:
            place = {"model": model, "workers": workers, "gbps": gbps}
            link = n_bytes, workers, alpha, 8 / (gbps * 1e9)
            dense = ring(*link)
            plain = {RING: dense, TREE: tree(*link), HALF: ring(n_bytes / 2, *link[1:])}
            for name, seconds in plain.items():
                yield place | {
                    "method": name,
                    "seconds": f"{seconds:.6f}",
                    "serial_seconds": "",
                    "speedup": f"{dense / seconds:.4f}",
                    "break_even_gbps": "",
                }
            for name, cost in costs.items():
                seconds, serial = compressed(*link, cost)
                yield place | {
                    "method": name,
                    "seconds": f"{seconds:.6f}",
                    "serial_seconds": f"{serial:.6f}",
                    "speedup": f"{dense / seconds:.4f}",
                    "break_even_gbps": f"{break_even(workers, cost) / 1e9:.4f}",
                }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.model", description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the CSV files (bench/results)")
    options = parser.parse_args(arguments)
    if not (options.results / MEASURED).exists():
        print(f"skipped: {options.results / MEASURED} is not there")
        return 0
    _, rows = read_table(options.results / MEASURED)
    usable = [row for row in rows if (row["rate"], row["workers"]) == (FROM_RATE, FROM_WORKERS)]
    results: list[NamedRow] = []
    for model in dict.fromkeys(row["model"] for row in usable):
        results += rows_of(model, [row for row in usable if row["model"] == model])
    write_named(options.results / FILE, results)
    print(f"{FILE}: {len(results)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
