"""Trainings on the bed, all methods in lockstep: losses, seconds and bytes, step by step.

    python -m bench.cluster.runs [--model cnn] [--quick] [--out DIR]

starts ``bench.cluster.training`` with torchrun in the namespaces and writes ``cluster-training.csv`` (loss over steps
and over time at 1 Gb/s), ``cluster-deviations.csv`` (how far losses are from the dense run's, against the controls) and
``cluster-steps.csv`` (seconds and bytes of a step at every rate).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from bench.cluster.bed import RATES, UNSHAPED, Bed, clean_up_when_told_to_end, obstacle
from bench.cluster.rows import names_of, quartiles
from bench.cluster.team import run_all
from bench.cluster.training import BF16, CONTROL, FIXED_BF16, FP16, FP32, LOSSLESS, NEAR
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, write_named

TRAINING, DEVIATIONS, STEPS = "cluster-training.csv", "cluster-deviations.csv", "cluster-steps.csv"
WORKERS = 2  #: one core each
RATE = "1gbit"  #: of the run whose time is shown
METHODS = (FP32, FP16, BF16, LOSSLESS, NEAR)  #: whose losses are drawn
TIMED = (*METHODS, FIXED_BF16)  #: whose steps are timed
ALL = (*TIMED, f"{CONTROL} 1", f"{CONTROL} 2")
BLOCK = 10  #: steps that a row of ``cluster-training.csv`` stands for
SETTLED = 100  #: steps after which bytes are counted, as in the paper; half of a shorter run
IGNORED = 5  #: steps before times count: buckets are rebuilt, codebooks made
STEPS_TIMED = 40
BINS = 41
TIME_LIMIT = 3600.0
Result = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The length of a training: with the first of ``seeds`` at ``RATE``, with the others unshaped."""

    steps: int
    seeds: tuple[int, ...]


PLANS = {"cnn": Plan(300, (1, 2, 3, 4, 5, 6)), "transformer": Plan(200, (1, 2)), "lstm": Plan(160, (1,))}
QUICK_PLANS = {"cnn": Plan(20, (1,)), "transformer": Plan(10, (1,))}


def train(
    model: str,
    rate: str,
    steps: int,
    seed: int,
    methods: Sequence[str],
    quick: bool = False,
    more: Sequence[str] = (),
    workers: int = WORKERS,
) -> Result:
    """One training on a bed of its own; ``more``: arguments for ``bench.cluster.training``."""
    with tempfile.TemporaryDirectory() as folder, Bed(workers, rate) as bed:
        out = Path(folder) / "result.json"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            "{size}",
            "--nproc-per-node",
            "1",
            "--node-rank",
            "{rank}",
            "--master-addr",
            "{master}",
            "--master-port",
            "{port}",
            "-m",
            "bench.cluster.training",
            "--model",
            model,
            "--steps",
            str(steps),
            "--seed",
            str(seed),
            "--out",
            str(out),
            *(["--quick"] if quick else []),
            *more,
        ]
        for method in methods:
            command += ["--method", method]
        run_all(bed, command, TIME_LIMIT)
        result: Result = json.loads(out.read_text())
    return result | {"rate": rate}


def training_rows(result: Result) -> Iterator[NamedRow]:
    """Rows of ``cluster-training.csv``: means over blocks of steps."""
    for method, run in result["runs"].items():
        elapsed = 0.0
        for begin in range(0, len(run["losses"]), BLOCK):
            part = slice(begin, begin + BLOCK)
            elapsed += sum(run["seconds"][part])
            yield {
                **names_of(result, "seed"),
                "method": method,
                "step": begin + len(run["losses"][part]),
                "loss": f"{fmean(run['losses'][part]):.5f}",
                "elapsed_seconds": f"{elapsed:.3f}",
                "step_seconds": f"{median(run['seconds'][part]):.5f}",
                "nic_bytes": f"{fmean(run['sent'][part]):.0f}",
                "bits_per_symbol": _known_mean(run["bits"][part]),
                "entropy_per_symbol": _known_mean(run["entropies"][part]),
            }


def _known_mean(numbers: Sequence[float]) -> str:
    """Return the mean of those that are known: before the first codebooks there are none."""
    known = [number for number in numbers if number == number]
    return f"{fmean(known):.4f}" if known else ""


def step_rows(result: Result) -> Iterator[NamedRow]:
    """Rows of ``cluster-steps.csv``: medians of seconds, means of bytes once the training has settled."""
    bytes_of = {method: settled(run["sent"]) for method, run in result["runs"].items()}
    seconds_of = {method: run["seconds"][IGNORED:] for method, run in result["runs"].items()}
    dense, half = bytes_of.get(FP32), bytes_of.get(BF16)
    for method, run in result["runs"].items():
        if method.startswith(CONTROL):
            continue
        seconds, sent, steps = seconds_of[method], bytes_of[method], len(run["losses"])
        stats = run["stats"]
        yield {
            **names_of(result),
            "method": method,
            "steps": steps,
            **quartiles(seconds),
            "of_fp32": _share(median(seconds), median(seconds_of[FP32]) if FP32 in seconds_of else None),
            "nic_bytes": f"{sent:.0f}",
            "bytes_of_fp32": _share(sent, dense),
            "bytes_of_bf16": _share(sent, half),
            **{
                name: _each(stats, name, steps)
                for name in ("sent_bytes", "refresh_bytes", "encode_seconds", "decode_seconds", "wait_seconds")
            },
            "bits_per_symbol": f"{stats['bits_per_symbol']:.4f}" if stats else "",
        }


def settled(numbers: Sequence[float]) -> float:
    """Return the mean after the first ``SETTLED`` steps, or of the second half of a short run."""
    return fmean(numbers[min(SETTLED, len(numbers) // 2) :])


def _share(value: float, whole: float | None) -> str:
    return f"{value / whole:.4f}" if whole else ""


def _each(stats: Mapping[str, Any], name: str, steps: int) -> str:
    return f"{stats[name] / steps:.6g}" if stats else ""


def deviations_of(results: Sequence[Result]) -> dict[str, np.ndarray]:
    """Return, by method, the loss of every step less that of the dense run of the same seed. All are of one model."""
    methods = [method for method in results[0]["runs"] if method != FP32]
    return {
        method: np.concatenate(
            [np.subtract(result["runs"][method]["losses"], result["runs"][FP32]["losses"]) for result in results]
        )
        for method in methods
    }


def deviation_rows(results: Sequence[Result]) -> Iterator[NamedRow]:
    """Rows of ``cluster-deviations.csv``: a histogram for each method, in the same bins; the last are open."""
    outcome = deviations_of(results)
    controls = np.concatenate([values for method, values in outcome.items() if method.startswith(CONTROL)])
    limit = float(np.quantile(np.abs(controls), 0.99)) or 1e-9
    edges = np.linspace(-limit, limit, BINS + 1)
    steps = len(results[0]["runs"][FP32]["losses"])
    for method, values in outcome.items():
        counts, _ = np.histogram(np.clip(values, -limit, limit), edges)
        final = fmean(fmean(result["runs"][method]["losses"][-2 * BLOCK :]) for result in results)
        low, high = np.quantile(values, (0.05, 0.95))
        rms, mean = np.sqrt(np.mean(values**2)), values.mean()
        facts = {"rms": rms, "q05": low, "q95": high, "mean": mean, "final_loss": final}
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
            yield {
                "model": results[0]["model"],
                "method": method,
                "seeds": len(results),
                "steps": steps,
                "low": f"{low:.6g}",
                "high": f"{high:.6g}",
                "count": int(count),
                **{name: f"{fact:.6g}" for name, fact in facts.items()},
            }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.runs", description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=sorted(PLANS), help="of these only")
    parser.add_argument("--steps", type=int, help="instead of each model's own number")
    parser.add_argument("--seeds", type=int, help="so many at most")
    parser.add_argument("--no-rates", action="store_true", help="leave out the steps at every rate")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV files go (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="a few steps of small models")
    options = parser.parse_args(arguments)
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    tables: dict[str, list[NamedRow]] = {TRAINING: [], DEVIATIONS: [], STEPS: []}
    plans = QUICK_PLANS if options.quick else PLANS
    for model in options.model or plans:
        plan = plans.get(model, QUICK_PLANS["cnn"])
        results = []
        for number, seed in enumerate(plan.seeds[: options.seeds]):
            rate = RATE if number == 0 else UNSHAPED
            results.append(train(model, rate, options.steps or plan.steps, seed, ALL, options.quick))
            print(f"{model}, seed {seed}, {rate}: done", flush=True)
        tables[TRAINING] += training_rows(results[0])
        tables[DEVIATIONS] += deviation_rows(results)
        tables[STEPS] += step_rows(results[0])
        for rate in () if options.no_rates or options.quick else [rate for rate in RATES if rate != RATE]:
            tables[STEPS] += step_rows(train(model, rate, STEPS_TIMED, plan.seeds[0], TIMED))
            print(f"{model}, {rate}: done", flush=True)
        for name, rows in tables.items():
            write_named(options.out / name, rows)  # after each model: what is there is kept
    return 0


if __name__ == "__main__":
    sys.exit(main())
