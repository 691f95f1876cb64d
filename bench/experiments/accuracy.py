"""Trains every setting of docs/training/which-mode.md beside float32: held-out quality, bytes, steps on links.

    python -m bench.experiments.accuracy [--quick] [--seeds N] [--steps N] [--minutes N] [--processes N] [--resume]

writes ``bench/results/experiment-accuracy.csv``: trainings on two simulated ranks. All methods of a problem and seed
start from the same parameters and see the same batches; the rates of learning are those of the dense training.
``wire_of_fp32``: bytes through a rank's end of the link, of the dense training's. ``CONTROL`` is a dense training whose
parameters were moved by one ulp at the start: how far apart two equally good trainings are. Modes of
``CompressedAllreduce`` are made of frames for each tensor, where DDP's hook has one for a bucket: the same rounding, a
few bytes more.

The table of steps has them as shares of float32's. It takes what was measured on links of limited rate from
``cluster-accuracies.csv``, and models the rest from ``cluster-step-costs.csv``: processor time, and the time of the
bytes on the link, one after the other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import torch

from bench.__main__ import CACHE
from bench.cluster import accuracies, step_costs, training
from bench.codec import RESULTS
from bench.experiments.pool import PROCESSES, Job, fill, kept
from bench.experiments.problems import PROBLEMS, Problem
from bench.experiments.traffic import Link, Traffic
from bench.experiments.trial import Planned, run
from bench.markdown import markdown, source, trained_on
from gcodec.averaging.averager import NAMED_PLANS, CompressionPlan
from gcodec.averaging.feedback import MomentumCorrection
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.timing import processor
from gcodec.compressors import Cast, Dense, Frames, PowerSGD, TopK

FILE = "experiment-accuracy.csv"
COLUMNS = ("problem", "method", "seed", "steps", "quality", "unit", "loss", "wire_bytes", "wire_of_fp32", "processor")
NAMES = ("transformer", "lstm", "vgg")
SEEDS, STEPS, MINUTES, QUICK_STEPS = 3, 100, 20, 3
RANKS, MORE = 2, 2  #: as on the bed; and so many times the batch, which with four ranks is the problems' own
DENSE, CONTROL, CORRECTED = "fp32", "fp32, one ulp off", "TopK(0.01), MomentumCorrection"
GBPS = {"100 Mb/s": 0.1, "300 Mb/s": 0.3, "1 Gb/s": 1.0, "10 Gb/s": 10.0}
#: Rates as ``bench.cluster.accuracies`` writes them.
MEASURED_RATES = {"100mbit": 0.1, "300mbit": 0.3, "1gbit": 1.0}


def near_lossless(optimizer: torch.optim.Optimizer) -> CompressionPlan:
    """Return the plan of near-lossless mode for an optimizer."""
    return CompressionPlan(Frames(optimizer=optimizer), None)


@dataclass(frozen=True)
class Setting:
    """A row of the tables: ``plan`` in simulation; ``label`` for users; the names by which ``bench.cluster`` knows it:
    of its ``costs``, of steps that were ``measured``, and of what its bypass does ``otherwise``."""

    plan: CompressionPlan | Planned
    label: str
    costs: str
    measured: str = ""
    otherwise: str = ""


SETTINGS: dict[str, Setting] = {
    DENSE: Setting(CompressionPlan(Dense(), None), "no hook: float32", training.FP32, training.FP32),
    CONTROL: Setting(CompressionPlan(Dense(), None), "the same, from parameters one ulp off", ""),
    "bf16 hook": Setting(
        CompressionPlan(Cast("bfloat16"), None, min_values=0, vectors=True),
        "torch's `bf16_compress_hook`",
        training.BF16,
        training.BF16,
    ),
    "exact": Setting(CompressionPlan(Frames(), None), '`mode="exact"`', training.LOSSLESS, otherwise=training.FP32),
    "optimizer": Setting(near_lossless, "`optimizer=o`", training.NEAR, training.BYPASS, training.FP32),
    "bf16": Setting(
        CompressionPlan(Frames(7), None), '`mode="bf16"`', training.FIXED_BF16, training.BYPASS_BF16, training.BF16
    ),
    "fp8": Setting(NAMED_PLANS["fp8"], '`"fp8"`', training.EIGHT_BITS),
    "int8": Setting(NAMED_PLANS["int8"], '`"int8"`', training.EIGHT_BIT_INTEGERS),
    "int4": Setting(NAMED_PLANS["int4"], '`"int4"`', training.FOUR_BIT_INTEGERS),
    "PowerSGD(4)": Setting(CompressionPlan(PowerSGD(4)), "`PowerSGD(4)`", "PowerSGD 4"),
    "TopK(0.01)": Setting(CompressionPlan(TopK(0.01)), "`TopK(0.01)`", "Top-k 1 %"),
    CORRECTED: Setting(
        CompressionPlan(TopK(0.01), MomentumCorrection(0.9)), "`TopK(0.01)` with `MomentumCorrection(0.9)`", ""
    ),
}


def problem_of(name: str, method: str) -> Problem:
    """Return a problem as a method has it: with momentum correction, momentum and clipping are the plan's."""
    problem = PROBLEMS[name]
    problem = replace(problem, batch=MORE * problem.batch)
    if method == CORRECTED:
        return replace(problem, momentum=0.0, clip=None)
    if method == CONTROL:
        return replace(problem, model=partial(_perturbed, problem.model))
    return problem


def plan_of(name: str, method: str) -> CompressionPlan | Planned:
    """Return the plan of a method: momentum correction clips as the problem does."""
    plan = SETTINGS[method].plan
    if method == CORRECTED and isinstance(plan, CompressionPlan):
        return replace(plan, feedback=MomentumCorrection(PROBLEMS[name].momentum, clip=PROBLEMS[name].clip))
    return plan


def _perturbed(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    model = make()
    training.perturb(model, 1)
    return model


def trained(job: Job, steps: int) -> list[object]:
    """Train, and say what came of it."""
    name, method, seed = job
    problem = problem_of(name, method)
    trial = run(problem, plan_of(name, method), seed, steps, ranks=RANKS)
    sent = sum(traffic.wire_bytes for traffic in trial.traffic)
    dense = steps * 2 * (RANKS - 1) / RANKS * 4 * sum(param.numel() for param in problem.model().parameters())
    return [
        *job,
        steps,
        f"{trial.quality:.4f}",
        problem.unit,
        f"{fmean(trial.losses[-max(steps // 10, 1) :]):.4f}",
        f"{sent / steps:.0f}",
        f"{sent / dense:.4f}",
        processor(),
    ]


def qualities(results: Path) -> list[str]:
    """Return the table of quality less that of the dense training of the same seed, and of bytes."""
    comments, rows = read_table(results / FILE)
    names = list(dict.fromkeys(row["problem"] for row in rows))
    known = {(row["problem"], row["method"], row["seed"]): row for row in rows}
    lines = []
    for method, setting in SETTINGS.items():
        cells, shares = [], list[float]()
        for name in names:
            own = [row for row in rows if (row["problem"], row["method"]) == (name, method)]
            own = [row for row in own if (name, DENSE, row["seed"]) in known]
            cells.append(_difference(own, [known[name, DENSE, row["seed"]] for row in own]))
            shares += [fmean(float(row["wire_of_fp32"]) for row in own)] if own else []
        if shares:
            lines.append([setting.label, " / ".join(f"{share:.2g}" for share in shares), *cells])
    seeds = len({row["seed"] for row in rows})
    columns = [
        "setting",
        f">bytes of float32's: {', '.join(names)}",
        *(f">{name}, {PROBLEMS[name].unit}" for name in names),
    ]
    return [
        *markdown(columns, lines),
        "",
        f"Mean over {seeds} seeds ± standard deviation, of differences from the first row's training of the same "
        f"seed, in {rows[0]['steps']} steps. {trained_on(comments, rows)}",
    ]


def _difference(own: Sequence[dict[str, str]], dense: Sequence[dict[str, str]]) -> str:
    """Mean and spread of the differences; of the dense training itself, its quality."""
    if not own:
        return ""
    digits = 1 if PROBLEMS[own[0]["problem"]].higher else 3
    if own[0]["method"] == DENSE:
        return f"{fmean(float(row['quality']) for row in own):.{digits}f}"
    less = [float(a["quality"]) - float(b["quality"]) for a, b in zip(own, dense, strict=True)]
    spread = f" ± {stdev(less):.{digits}f}" if len(less) > 1 else ""
    return f"{fmean(less):+.{digits}f}{spread}"


Parts = tuple[float, float]  #: of a step: the processor's seconds, bytes on the wire


def modeled(parts: Parts, gbps: float) -> float:
    """Return the seconds of a step in which nothing overlaps, on a link without latency."""
    return parts[0] + Traffic(0, parts[1]).seconds(Link(1e9 * gbps, 0.0))


def share(parts: dict[str, Parts], setting: Setting, gbps: float) -> float:
    """Return a setting's modeled step as a share of float32's; its bypass takes the faster way."""
    ways = [parts[name] for name in (setting.costs, setting.otherwise) if name]
    return min(modeled(way, gbps) for way in ways) / modeled(parts[training.FP32], gbps)


def steps(results: Path) -> list[str]:
    """Return the table of bytes, and of steps as shares of float32's, by link; what was modeled has a ≈."""
    comments, costs = read_table(results / step_costs.FILE)
    measured_comments, measured = read_table(results / accuracies.FILE)
    bed = costs[0]["model"], costs[0]["workers"]
    parts = {
        row["method"]: (float(row["processor_seconds"]), float(row["nic_bytes"]))
        for row in costs
        if (row["model"], row["workers"]) == bed
    }
    known = {
        (row["method"], MEASURED_RATES[row["rate"]]): row
        for row in measured
        if (row["model"], row["workers"]) == bed and row["rate"] in MEASURED_RATES
    }
    dense = [
        f"{1e3 * float(known[training.FP32, gbps]['step_seconds']):.0f} ms"
        if (training.FP32, gbps) in known
        else f"≈ {1e3 * modeled(parts[training.FP32], gbps):.0f} ms"
        for gbps in GBPS.values()
    ]
    lines, errors = list[list[str]](), list[float]()
    for method, setting in SETTINGS.items():
        if setting.costs not in parts:
            continue
        cells = []
        for gbps in GBPS.values():
            ours = share(parts, setting, gbps)
            row = known.get((setting.measured, gbps))
            errors += [ours / float(row["of_fp32"]) - 1] if row and method != DENSE else []
            cells.append(f"{float(row['of_fp32']):.2f}" if row else f"≈ {ours:.2f}")
        sent = parts[setting.costs][1]
        lines.append(
            [
                setting.label,
                f"{sent / 1e6:.2f}",
                f"{sent / parts[training.FP32][1]:.2f}",
                *(dense if method == DENSE else cells),
            ]
        )
    columns = ["setting", ">MB sent", ">of float32's", *(f">step, {link}" for link in GBPS)]
    return [
        *markdown(columns, lines),
        "",
        "Shares without ≈ were measured on links of that rate, as medians over pairs of neighboring turns: "
        f"{source(measured_comments)} Those with ≈ are modeled: the processor's time, and that of the bytes on the "
        f"link. Where both are known, the model is off by {100 * min(errors):+.0f} to {100 * max(errors):+.0f} %. "
        f"Processor time and bytes: {source(comments)}",
    ]


PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "which-steps": (steps, step_costs.FILE),
    "which-quality": (qualities, FILE),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.accuracy", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of every training ({SEEDS})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of every training ({STEPS})")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"after which no training begins ({MINUTES})")
    parser.add_argument("--processes", type=int, default=PROCESSES, help=f"of one thread each ({PROCESSES})")
    parser.add_argument("--quick", action="store_true", help=f"one problem, 1 seed, {QUICK_STEPS} steps")
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--out", type=Path, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    path = (options.out or (CACHE / "quick" if options.quick else RESULTS)) / FILE
    names, seeds, n_steps = (NAMES[-1:], 1, QUICK_STEPS) if options.quick else (NAMES, options.seeds, options.steps)
    every = [(name, method, seed) for seed in range(seeds) for name in names for method in SETTINGS]
    rows = kept(path, every, n_steps) if options.resume else {}
    fill(path, COLUMNS, every, rows, partial(trained, steps=n_steps), options.minutes, options.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
