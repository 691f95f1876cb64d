"""The whole distributed part, one benchmark after another, then pictures and tables.

    python -m bench.cluster [--quick] [--data DIR] [--out DIR]

needs root, ``ip`` and ``tc``, and is skipped without them. It records dumps if there are none, and writes
``bench/results/cluster-*.csv`` and ``docs/images/cluster-*.png``; most of the time goes into the trainings. ``--quick``
tries everything on small models and few rounds; what it writes goes to ``.cache/bench/cluster-quick``.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from bench.__main__ import CACHE, run_each
from bench.cluster.bed import obstacle
from bench.codec import RESULTS
from bench.data import ROOT

#: What runs, and whether it reads dumps.
PARTS = (
    ("allreduce", True),
    ("runs", False),
    ("bypass", False),
    ("bits", False),
    ("compressed", False),
    ("controllers", False),
    ("layerwise", False),
    ("scaling", False),
    ("accuracies", False),
    ("step_costs", False),
    ("drops", False),
    ("minilm_steps", False),
    ("fsdp", False),
)


def commands(quick: bool, data: Path, out: Path) -> list[list[str]]:
    """Return the arguments of ``python -m`` for each part."""
    small = ["--quick"] if quick else []
    results = [["bench.record", str(data), "--missing", *small]]
    for name, reads in PARTS:
        results.append([f"bench.cluster.{name}", *(["--data", str(data)] if reads else []), "--out", str(out), *small])
    return [
        *results,
        ["bench.cluster.model", "--results", str(out)],
        ["bench.pictures", "--results", str(out), *(["--out", str(out)] if quick else [])],
        ["bench.cluster.tables", "--results", str(out)],
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a part failed. The others are run all the same."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="try everything, measure little")
    parser.add_argument("--data", type=Path, help="folder of dumps; recorded first if it is not there")
    parser.add_argument("--out", type=Path, help="where the CSV files go (default: bench/results)")
    options = parser.parse_args(arguments)
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    data = options.data or CACHE / ("quick-dumps" if options.quick else "dumps")
    out = options.out or (CACHE / "cluster-quick" if options.quick else RESULTS)
    return run_each(commands(options.quick, data.absolute(), out.absolute()), run)


def run(command: Sequence[str]) -> int:
    """Run ``python -m`` in a process of its own, which is told when this one is to end, so that it removes its bed."""
    child = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT)

    def pass_on(number: int, _: FrameType | None) -> None:
        child.send_signal(signal.SIGINT)
        child.wait()
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.wait()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
