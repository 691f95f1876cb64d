"""Bits per exponent over training, by code and by what its table was made from: the GComp paper's Figures 9 and 12.

    python -m bench.cluster.bits [--quick] [--out DIR]

trains the demo's models in one process and writes ``cluster-bits.csv``. Codes: Huffman's own, and GComp's, which sends
what is rare behind an escape. Tables come from the step itself, from the step before, from the first step for good
(stale), or from all steps since the last refresh, ``INTERVAL`` steps apart (refreshed). One table for all of a model's
gradients; bits are those of the codes alone, without tables.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.codec import RESULTS
from gcodec.benchmark.bounds import head_symbols
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.demo import train
from gcodec.demo.figures.strategies import HuffmanTable, native_table, optimized_table
from gcodec.dtypes import BY_NAME

FILE = "cluster-bits.csv"
INTERVAL = 50
SYMBOLS = 257  #: zero, then every exponent
RAW = 8  #: bits of an exponent behind an escape
CODES = {"native Huffman": native_table, "optimized (GComp)": optimized_table}
FRESH, BEFORE, STALE, REFRESHED = "of the step itself", "of the step before", "of the first step", "refreshed"
FLOAT32 = BY_NAME["float32"]


@dataclass
class Watcher:
    """Counts a model's exponents at every step, and codes them with tables of all sources."""

    model: str
    every: int
    rows: list[NamedRow] = field(default_factory=list)
    sources: dict[str, np.ndarray] = field(default_factory=dict)
    since: np.ndarray = field(default_factory=lambda: np.zeros(SYMBOLS, np.int64))

    def __call__(self, step: int, task: train.TrainingTask) -> None:
        """Observe a step; :func:`gcodec.demo.train.train` calls this before the optimizer's step."""
        grads = [parameter.grad for parameter in task.model.parameters() if parameter.grad is not None]
        self.count(step, exponent_counts([grad.numpy() for grad in grads]))

    def count(self, step: int, counts: np.ndarray) -> None:
        """Record a step, whose exponents have been counted."""
        self.sources[FRESH] = counts
        self.sources.setdefault(STALE, counts)
        self.sources.setdefault(REFRESHED, counts)
        if step == 1 or step % self.every == 0:
            self.rows += self._rows(step, counts)
        self.sources[BEFORE] = counts
        self.since += counts
        if step % INTERVAL == 0:
            self.sources[REFRESHED], self.since = self.since, np.zeros_like(self.since)

    def _rows(self, step: int, counts: np.ndarray) -> Iterator[NamedRow]:
        total = int(counts.sum())
        shares = counts[counts > 0] / total
        entropy = float(-(shares * np.log2(shares)).sum())
        for code, make in CODES.items():
            for source in (FRESH, BEFORE, STALE, REFRESHED):
                if source in self.sources:
                    table: HuffmanTable = make(self.sources[source], RAW)
                    yield {
                        "model": self.model,
                        "step": step,
                        "code": code,
                        "table": source,
                        "bits_per_exponent": f"{table.bits(counts) / total:.4f}",
                        "entropy_bits": f"{entropy:.4f}",
                    }


def exponent_counts(gradients: Sequence[np.ndarray]) -> np.ndarray:
    """Count the values of each exponent; first those that are zero: int64[SYMBOLS]."""
    counts = np.zeros(SYMBOLS, np.int64)
    for gradient in gradients:
        bits = np.ascontiguousarray(gradient, np.float32).reshape(-1).view(np.uint32)
        counts += np.bincount(head_symbols(bits, FLOAT32), minlength=SYMBOLS)[:SYMBOLS]
    return counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.bits", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="a few steps of small models")
    options = parser.parse_args(arguments)
    rows: list[NamedRow] = []
    for model, plan in (train.QUICK_PLANS if options.quick else train.PLANS).items():
        watcher = Watcher(model, 1 if options.quick else 5)
        with tempfile.TemporaryDirectory() as folder:
            train.train(model, Path(folder), replace(plan, recorded=(plan.steps,)), watch=watcher)
        rows += watcher.rows
        print(f"{model}: {len(watcher.rows)} rows", flush=True)
    write_named(options.out / FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
