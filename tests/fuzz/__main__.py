"""Fuzz everything that reads bytes from strangers (``make fuzz``).

    python -m tests.fuzz [TARGET ...] [--executions 1000000] [--seconds S] [--seed 0] [--guided 10] [--found DIR]

prints the executions of each target, how they ended, and what was found, and writes the case of every finding into
``tests/fuzz/found/TARGET``, where tests/fuzz/test_fuzz.py replays it from then on. Where atheris is installed, each
target is then fuzzed for ten seconds more, guided by coverage (:mod:`tests.fuzz.guided`). Exit status 1 if anything was
found.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import util
from pathlib import Path

from tests.fuzz.runner import BATCH, Tally, fuzz
from tests.fuzz.targets import TARGETS, at_hand, load
from tests.support import reliability

FOUND = Path(__file__).parent / "found"
ROW = "fuzzing: "  #: how the names of its rows in docs/reliability.md begin
ROUNDS = 10  #: so often all targets take turns


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="*", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--executions", type=int, default=1_000_000, help="calls in all (default: 1,000,000)")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--seed", type=int, default=0, help="another seed makes other cases (default: 0)")
    parser.add_argument("--guided", type=int, default=10, help="seconds of each target under atheris (default: 10)")
    parser.add_argument("--found", type=Path, default=FOUND, help="where cases go that find something")
    options = parser.parse_args(arguments)
    names = options.target or at_hand()
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]!r}")
    tallies = run(names, options.executions, options.seed, options.seconds)
    for name, tally in tallies.items():
        show(name, tally)
        save(name, tally, options.found)
    if options.guided and util.find_spec("atheris"):
        for name, tally in tallies.items():
            guide(name, options.guided, options.found, tally)
    for name, tally in tallies.items():
        if tally.n_cases:
            result = "; ".join(tally.counts) or TARGETS[name].held
            reliability.record(f"{ROW}{TARGETS[name].what}", tally.n_cases, tally.counts.total(), result)
    if not options.target:
        reliability.keep_only(ROW, {f"{ROW}{TARGETS[name].what}" for name in names})
    n_cases = sum(tally.n_cases for tally in tallies.values())
    n_found = sum(tally.counts.total() for tally in tallies.values())
    print(f"{n_cases:,} executions, {n_found} findings")
    return 1 if n_found else 0


def run(names: Sequence[str], n_executions: int, seed: int, seconds: float | None = None) -> dict[str, Tally]:
    """Fuzz targets in turns, each by its share of the executions, until these or the seconds are used up.

    Args:
        names: Names of the targets.
        n_executions: Executions in all.
        seed: Seed of the cases.
        seconds: Time after which no other turn begins; None for no limit.
    """
    weights = sum(TARGETS[name].weight for name in names)
    tallies, begin = {name: Tally() for name in names}, time.monotonic()
    for turn in range(ROUNDS):
        for name, tally in tallies.items():
            share = n_executions * TARGETS[name].weight / weights
            start, stop = (round(share * number / ROUNDS / BATCH) * BATCH for number in (turn, turn + 1))
            if seconds is None or time.monotonic() < begin + seconds:
                fuzz(name, load(name), seed, start, stop, tally)
    return tallies


def show(name: str, tally: Tally) -> None:
    """Print what became of a target's cases."""
    ended = ", ".join(f"{count:,} {outcome}" for outcome, count in tally.outcomes.most_common())
    rate = tally.n_cases / tally.cpu_seconds if tally.cpu_seconds else 0
    print(f"{name}: {tally.n_cases:,} executions, {rate:,.0f} per second, slowest {tally.slowest:.2f} s: {ended}")
    for what, count in tally.counts.most_common():
        print(f"    {count} times {what}")


def guide(name: str, seconds: int, folder: Path, tally: Tally) -> None:
    """Fuzz a target guided by coverage, in a process of its own, and add what it did to the tally."""
    command = [sys.executable, "-m", "tests.fuzz.guided", name, "--seconds", f"{seconds}", "--found", f"{folder}"]
    with tempfile.TemporaryDirectory(prefix="gcodec-fuzz-") as corpus:  # libFuzzer ends a process without cleaning
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, errors="replace", env=os.environ | {"TMPDIR": corpus}
        )
    n_cases = int((re.findall(r"number_of_executed_units: (\d+)", done.stderr) or ["0"])[-1])
    print(f"{name}, guided by coverage: {n_cases:,} executions, status {done.returncode}")
    tally.n_cases += n_cases
    if done.returncode:
        print(done.stderr[-3000:])
        tally.counts["found by atheris"] += 1


def save(name: str, tally: Tally, folder: Path) -> None:
    """Write the case of each finding into a file."""
    for finding in tally.findings.values():
        path = folder / name / f"{hashlib.sha256(finding.case).hexdigest()[:12]}.case"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(finding.case)
        print(f"    {finding.what}: {path}")


if __name__ == "__main__":
    sys.exit(main())
