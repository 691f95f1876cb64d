"""Mantissa bits by gain against throughput (``gravac_bits``) beside bits that stay, on two simulated ranks.

    python -m bench.experiments.gravac_bits [--quick] [--seeds N] [--minutes N] [--processes N] [--resume] [--out DIR]

writes ``bench/results/experiment-gravac-bits.csv``: held-out quality, and what frames came to. All methods of a problem
and seed start from the same parameters and see the same batches. Controllers decide by the modeled time of traffic on
the links of ``traffic``: no number here is from a clock, and all of them repeat. Trainings for which the minutes do not
suffice are left out, and named: the last problem's first. ``--resume`` keeps the trainings that are there.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.experiments.gravac_methods import DENSE, FEEDBACK, Method, window
from bench.experiments.lgreco.sections import in_common
from bench.experiments.pool import Job, fill, kept
from bench.experiments.problems import PROBLEMS
from bench.experiments.traffic import LINK, SLOW, Link
from bench.experiments.trial import run
from bench.markdown import records, trained_on
from gcodec.adaptive import Controller, GraVAC, gravac_bits
from gcodec.averaging.feedback import Feedback
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.timing import processor
from gcodec.compressors import Dense, Frames

FILE = "experiment-gravac-bits.csv"
COLUMNS = (
    "problem",
    "method",
    "seed",
    "steps",
    "quality",
    "unit",
    "loss",
    "byte_ratio",
    "mean_bits",
    "steps_by_bits",
    "gain_by_bits",
    "processor",
)
LOSSLESS = 23  #: mantissa bits of float32
NAMES = ("lstm", "cnn")
SEEDS, MINUTES, QUICK_STEPS = 3, 10, 4
RANKS = 2  #: what a step takes to encode and decode grows with their square


def fixed(bits: int, feedback: Feedback | None = FEEDBACK) -> Method:
    """Return the method that has the same bits in every step."""
    return Method(Frames(bits), feedback=feedback)


def chosen(epsilon: float, link: Link = SLOW) -> Method:
    """Bits by ``gravac_bits``, as many windows in a run as GraVAC's experiments have."""

    def controller(steps: int) -> Controller:
        return gravac_bits(epsilon=epsilon, window=window(steps))

    return Method(Frames(16), controller, link=link)


METHODS: dict[str, Method] = {
    DENSE: Method(Dense(), feedback=None),
    **{f"{bits} bits": fixed(bits) for bits in (5, 2)},
    "1 bit": fixed(1),
    "1 bit, no feedback": fixed(1, None),
    **{f"gravac_bits {epsilon}": chosen(epsilon) for epsilon in (0.9999, 0.99, 0.9)},
    "gravac_bits 0.9, 1 Gb/s": chosen(0.9, LINK),
}


def trained(job: Job, quick: bool) -> list[object]:
    """Train, and say what came of it. ``steps_by_bits``: in order of bits; 23 are lossless, or dense."""
    problem, method = PROBLEMS[job[0]], METHODS[job[1]]
    steps = QUICK_STEPS if quick else problem.steps
    controller = method.controller(steps) if method.controller else None
    trial = run(problem, method.plan, job[2], steps, ranks=RANKS, controller=controller, link=method.link)
    counts, gains = Counter({getattr(method.compressor, "bits", LOSSLESS): steps}), {}
    if isinstance(trial.controller, GraVAC):
        counts = Counter(map(bits_of, trial.controller.log))
        gains = {bits_of(factor): gain for factor, gain in trial.controller.gains.items()}
    mean = sum(bits * count for bits, count in counts.items()) / steps
    loss = fmean(trial.losses[-max(steps // 10, 1) :])
    return [
        *job,
        steps,
        f"{trial.quality:.4f}",
        problem.unit,
        f"{loss:.4f}",
        f"{trial.sent.ratio:.3f}",
        f"{mean:.2f}",
        listed({bits: str(count) for bits, count in counts.items()}),
        listed({bits: f"{gain:.5f}" for bits, gain in gains.items()}),
        processor(),
    ]


def bits_of(factor: float) -> int:
    """Return the mantissa bits that a nominal factor of ``gravac_bits`` stands for."""
    return LOSSLESS if factor == 1 else round(32 / factor) - 9


def listed(values: dict[int, str]) -> str:
    """Values by bits, falling, in a cell."""
    return " ".join(f"{bits}:{values[bits]}" for bits in sorted(values, reverse=True))


def table(results: Path) -> list[str]:
    """Means over the seeds that all methods have, and the difference from the dense training of the same seed."""
    comments, rows = read_table(results / FILE)
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        known = in_common([row for row in rows if row["problem"] == name])
        dense = {row["seed"]: float(row["quality"]) for row in known if row["method"] == DENSE}
        digits = 1 if PROBLEMS[name].higher else 4
        for method in METHODS:
            selected = [row for row in known if row["method"] == method]
            if selected:
                less = [float(row["quality"]) - dense[row["seed"]] for row in selected]
                quality, ratio, bits = (
                    fmean(float(row[key]) for row in selected) for key in ("quality", "byte_ratio", "mean_bits")
                )
                spread = f" ± {stdev(less):.{digits}f}" if len(less) > 1 else ""
                lines.append(
                    {
                        "problem": name,
                        "method": method,
                        ">seeds": str(len(selected)),
                        ">quality": f"{quality:.{digits}f} {PROBLEMS[name].unit}",
                        ">minus dense": f"{fmean(less):+.{digits}f}{spread}",
                        ">bytes": f"{ratio:.2f}×",
                        ">mean bits": f"{bits:.1f}",
                        "steps by bits, seed 0": selected[0]["steps_by_bits"].replace(" ", ", "),
                    }
                )
    return [*records(lines), "", trained_on(comments, rows)]


PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {"gravac-bits": (table, FILE)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiments.gravac_bits", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of every training ({SEEDS})")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"after which no training begins ({MINUTES})")
    parser.add_argument("--processes", type=int, default=2, help="of one thread each (2)")
    parser.add_argument("--quick", action="store_true", help=f"one problem, 1 seed, {QUICK_STEPS} steps")
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--out", type=Path, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    path = (options.out or (CACHE / "quick" if options.quick else RESULTS)) / FILE
    names, seeds = (NAMES[:1], 1) if options.quick else (NAMES, options.seeds)
    every = [(name, method, seed) for name in names for seed in range(seeds) for method in METHODS]
    rows = kept(path, every) if options.resume else {}
    fill(path, COLUMNS, every, rows, partial(trained, quick=options.quick), options.minutes, options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
