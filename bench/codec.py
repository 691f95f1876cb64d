"""Sizes and speeds of gcodec beside its peers, on recorded gradients, parameters and optimizer state.

    python -m bench.codec [--data DIR] [--quick] [--sizes] [--out DIR]

writes to bench/results/: ``codec.csv`` (by model, kind of tensor and type: sizes and speeds), ``sizes.csv`` (every
dump: sizes, overhead over the local order-0 bound, saving against the GComp paper's layout), ``tensors.csv`` (every
larger gradient tensor by itself: sizes), ``level-speed.csv`` (how fast near-lossless levels are chosen). Definitions:
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.data import GROUPS, default_folder, named_inputs, read_series, single_tensors
from gcodec.benchmark.csv_tables import write_rows, write_sizes, write_table
from gcodec.benchmark.inputs import Input
from gcodec.benchmark.measure import MEGA, MeasurementPlan, Result, compete
from gcodec.benchmark.peers import PEERS, available, installed_version
from gcodec.benchmark.report import summarize
from gcodec.benchmark.settings import Setting, literal_gcomp_setting, settings_for
from gcodec.benchmark.timing import GIGA, machine

RESULTS = Path(__file__).parent / "results"
WIDTH = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a round trip of gcodec failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.codec", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: gcodec-demo/dumps, else tests/corpus)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV files go (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="first and last step, no float16, 1 round")
    parser.add_argument("--sizes", action="store_true", help="sizes only: exact, and the same on every machine")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    folder = options.data or default_folder()
    result, tensors, levels = measure(folder, options.quick, options.sizes, console)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.sizes:
        write_rows(options.out / "codec.csv", result.rows)
        write_table(options.out / "level-speed.csv", ("data", "GBps", "ns_per_value"), levels)
    write_sizes(options.out / "sizes.csv", result.sizes)
    write_sizes(options.out / "tensors.csv", tensors.sizes)
    console.print(summarize(result.rows))
    for line in [*describe(folder), *result.notes, *(f"ROUND TRIP FAILED: {text}" for text in result.failures)]:
        console.print(line)
    return 1 if result.failures or tensors.failures else 0


def measure(
    folder: Path, quick: bool, sizes_only: bool, console: Console
) -> tuple[Result, Result, list[tuple[str, str, str]]]:
    """Return the results for whole dumps, and for single tensors; and the rows of ``level-speed.csv``."""
    peers, missing = available(PEERS)
    plan = MeasurementPlan(
        peers,
        at_least=4 * MEGA if quick else 32 * MEGA,
        rounds=1 if quick else 7,
        budget=1.0,
        fresh=True,
        settings=settings_with_literal,
    )
    levels = []
    untimed = replace(plan, at_least=0)
    series = read_series(folder, ends_only=quick)
    dtypes = ("float32", "bfloat16") if quick else ("float32", "bfloat16", "float16")
    result, tensors = Result(notes=[f"{package} is not installed and not measured" for package in missing]), Result()
    for title, parts in named_inputs(series, GROUPS, dtypes):
        console.print(f"{title}: {len(parts)} dumps, {sum(part.nbytes for part in parts) / 1e6:.1f} MB")
        outcome = compete(title, parts, untimed if sizes_only else plan)
        result.extend(outcome)
        if speed := outcome.level_speed:
            width = parts[0].bits.itemsize
            levels.append((title, f"{speed:.3f}", f"{1e9 * width / (speed * GIGA):.3f}"))
    for part in () if quick else single_tensors(series):
        tensors.extend(compete(part.name, [part], untimed))
    return result, tensors, levels


def settings_with_literal(data: Input) -> list[Setting]:
    """Return gcodec's modes and, where there are levels, GComp to the letter."""
    return settings_for(data) + ([literal_gcomp_setting(data)] if "paper" in data.levels else [])


def describe(folder: Path) -> list[str]:
    """Return machine, versions and data."""
    packages = dict.fromkeys(["zstandard", *(peer.package for peer in PEERS if peer.package)])
    versions = [f"{package} {installed_version(package)}" for package in packages if installed_version(package)]
    return [f"Machine: {machine()}.", f"Versions: {', '.join(versions)}.", f"Data: {folder}."]


if __name__ == "__main__":
    sys.exit(main())
