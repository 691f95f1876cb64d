"""Run all benchmarks one after another, each in a process of its own, then the pictures and the pages.

    python -m bench [--quick] [--data DIR] [--out DIR]

takes about an hour on two cores. It records dumps if there are none (``.cache/bench/dumps``) and writes
``bench/results``, ``docs/images`` and the tables in docs/benchmarks. ``--quick`` is for trying it out, in under two
minutes: on few steps of training, with one round of everything, and all that it writes goes to ``.cache/bench/quick``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from bench.codec import RESULTS
from bench.data import ROOT

CACHE = ROOT / ".cache" / "bench"
#: What runs, whether it reads dumps, and the minutes that it takes on two cores.
PARTS = (
    ("codec", True, 8),
    ("sizes", True, 6),
    ("stages", True, 1),
    ("entropy", True, 4),
    ("speed", True, 6),
    ("scaling", True, 2),
    ("memory", False, 2),
    ("corruption", True, 8),
    ("prediction", True, 1),
    ("compressors", False, 3),
    ("controllers", False, 3),
    ("checkpoints", False, 5),
    ("weight_sync", False, 5),
    ("differences", False, 5),
    ("integrations", False, 1),
    ("sparse_values", False, 1),
    ("startup", False, 10),
    ("compiling", False, 6),
    ("small_tensors", False, 1),
    ("other_arrays", False, 2),
    ("lane", False, 1),
    ("files", False, 6),
    ("file_kinds", False, 3),
    ("gpu_host", False, 1),
)
CORRUPTION_TRIALS = "20"  #: of a quick run, and truncations


def commands(quick: bool, data: Path, out: Path) -> list[list[str]]:
    """Return the arguments of ``python -m`` for each part."""
    small = ["--quick"] if quick else []
    results = [["bench.record", str(data), "--missing", *small]]
    for name, reads, _ in PARTS:
        more = {
            "corruption": ["--trials", CORRUPTION_TRIALS, "--truncations", CORRUPTION_TRIALS] if quick else [],
            "prediction": [],
        }.get(name, small)
        results.append([f"bench.{name}", *(["--data", str(data)] if reads else []), "--out", str(out), *more])
    pictures = ["--results", str(out), *(["--out", str(out)] if quick else [])]
    return [*results, ["bench.pictures", *pictures], *([] if quick or out != RESULTS else [["bench.report"]])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a part failed. The others are run all the same."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try everything, measure little")
    parser.add_argument("--data", type=Path, help="folder of dumps; recorded first if it is not there")
    parser.add_argument("--out", type=Path, help="where the CSV files go (default: bench/results)")
    options = parser.parse_args(arguments)
    data = options.data or CACHE / ("quick-dumps" if options.quick else "dumps")
    out = options.out or (CACHE / "quick" if options.quick else RESULTS)
    return run_each(commands(options.quick, data.absolute(), out.absolute()), run)


def run_each(parts: Sequence[Sequence[str]], run_part: Callable[[Sequence[str]], int]) -> int:
    """Run parts one after another and say what they took; return 1 if one failed."""
    failed, begin = [], perf_counter()
    for command in parts:
        print(f"== python -m {' '.join(command)}", flush=True)
        start = perf_counter()
        if run_part(command):
            failed.append(command[0])
        print(f"== {command[0]}: {perf_counter() - start:.0f} s\n", flush=True)
    print(f"{(perf_counter() - begin) / 60:.1f} minutes" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


def run(command: Sequence[str]) -> int:
    """Run ``python -m`` in a process of its own."""
    return subprocess.run([sys.executable, "-m", *command], check=False, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
