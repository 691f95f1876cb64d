"""Training on more workers: GComp's Figure 16 in seconds that were measured, its Figures 1 and 17 by a model.

    python -m bench.cluster.scaling [--quick] [--modeled] [--model cnn] [--out DIR]

writes ``cluster-scaling.csv``: steps of training with 2 and 4 workers on the bed, methods in lockstep.
``compute_seconds``: the median step of a run whose hook sends nothing, with as many workers on the same cores;
``efficiency``: that over a method's step, so that what workers take from each other's cores counts for neither. And
``cluster-scaling-model.csv``, also alone (``--modeled``), from steps without a limit on the link in
``cluster-steps.csv`` and what ``bench.cluster.model`` takes from measured all-reduces: a step's buckets are known as
the backward pass goes on, codec and computation share a core, and a bucket is sent once it is known and the one before
it is through.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median

from bench.cluster.allreduce import FILE as ALL_REDUCES
from bench.cluster.bed import UNSHAPED, clean_up_when_told_to_end, obstacle
from bench.cluster.methods import SMALL
from bench.cluster.model import FROM_RATE, FROM_WORKERS, Costs, costs_of, ring
from bench.cluster.rows import names_of, quartiles
from bench.cluster.runs import IGNORED, RATE, Result, train
from bench.cluster.runs import STEPS as STEP_FILE
from bench.cluster.training import FP32, NEAR, NOTHING
from bench.codec import RESULTS
from bench.experiments.lgreco.waiting import FORWARD
from bench.markdown import markdown, records, rounded, source
from gcodec.benchmark.csv_tables import read_table, write_named

FILE, MODEL = "cluster-scaling.csv", "cluster-scaling-model.csv"
METHODS = (NOTHING, FP32, NEAR)
MODELS, WORKERS, RATES = ("cnn", "lstm"), (2, 4), (RATE, "100mbit")
STEPS, QUICK_STEPS = 25, 8
MODELED_WORKERS, GBPS = (2, 4, 8, 16, 32, 64), (0.1, 1, 10)
BUCKETS = 6  #: of equal size
Row = Mapping[str, str]


def rows_of(result: Result) -> Iterator[dict[str, object]]:
    """Yield a row for each method but the one that sends nothing."""
    seconds = {method: run["seconds"][IGNORED:] for method, run in result["runs"].items()}
    compute, dense = median(seconds[NOTHING]), median(seconds[FP32])
    for method in METHODS[1:]:
        middle = median(seconds[method])
        yield {
            **names_of(result),
            "method": method,
            "steps": len(seconds[method]),
            **quartiles(seconds[method]),
            "compute_seconds": f"{compute:.5f}",
            "efficiency": f"{compute / middle:.4f}",
            "times_faster": f"{dense / middle:.4f}",
        }


def step_seconds(
    compute: float, n_bytes: float, workers: int, alpha: float, beta: float, costs: Costs | None = None
) -> float:
    """Return the seconds of a step of so many workers, whose dense gradients are ``n_bytes``; ``costs``: of a codec."""
    codec, ratio = (costs.codec_seconds(n_bytes, workers), costs.ratio) if costs else (0.0, 1.0)
    known, end = FORWARD * compute, 0.0
    for _ in range(BUCKETS):
        known += ((1 - FORWARD) * compute + codec) / BUCKETS
        end = max(known, end) + ring(n_bytes / ratio / BUCKETS, workers, alpha, beta)
    return end


def modeled(steps: Sequence[Row], all_reduces: Sequence[Row]) -> Iterator[dict[str, object]]:
    """Yield every model, number of workers and link; models without measured all-reduces are left out.

    Computation is a step of fp32 without a limit on the link, which is a little more, and flatters all methods; the
    bytes of the gradients are those that each of two workers sent then.
    """
    for model in dict.fromkeys(row["model"] for row in steps):
        costs = {
            row["method"]: row
            for row in all_reduces
            if (row["model"], row["rate"], row["workers"]) == (model, FROM_RATE, FROM_WORKERS)
        }
        free = [row for row in steps if (row["model"], row["rate"], row["method"]) == (model, UNSHAPED, FP32)]
        if not costs or not free:
            continue
        compute, alpha = float(free[0]["step_seconds"]), float(costs[SMALL]["seconds"]) / 2
        for workers, gbps in product(MODELED_WORKERS, GBPS):
            link = compute, float(free[0]["nic_bytes"]), workers, alpha, 8 / (gbps * 1e9)
            dense = step_seconds(*link)
            for method, seconds in ((FP32, dense), (NEAR, step_seconds(*link, costs_of(costs[NEAR])))):
                yield {
                    "model": model,
                    "workers": workers,
                    "gbps": gbps,
                    "method": method,
                    "compute_seconds": f"{compute:.5f}",
                    "step_seconds": f"{seconds:.5f}",
                    "efficiency": f"{compute / seconds:.4f}",
                    "times_faster": f"{dense / seconds:.4f}",
                }


def measured_table(results: Path) -> list[str]:
    """Return the table of measured steps in docs/experiments-gcomp.md."""
    comments, rows = read_table(results / FILE)
    lines = [
        {
            "model": row["model"],
            "link": row["rate"],
            ">workers": row["workers"],
            "method": row["method"],
            ">step, ms": f"{1e3 * float(row['step_seconds']):.0f}",
            ">of the step without communication": rounded(row["efficiency"]),
            ">times as fast as fp32": rounded(row["times_faster"]),
        }
        for row in rows
    ]
    return [*records(lines), "", f"From {source(comments)}"]


def model_table(results: Path) -> list[str]:
    """Return the table of modeled steps there: how many workers' worth of steps so many workers do."""
    comments, rows = read_table(results / MODEL)
    cells = {(row["model"], row["gbps"], row["method"], row["workers"]): float(row["efficiency"]) for row in rows}
    lines = [
        [name, f"{gbps} Gb/s", method, *(f"{n * cells[name, gbps, method, str(n)]:.1f}" for n in MODELED_WORKERS)]
        for name, gbps, method in dict.fromkeys(key[:3] for key in cells)
    ]
    columns = ["model", "link", "method", *(f">{n} workers" for n in MODELED_WORKERS)]
    return [*markdown(columns, lines), "", f"Model, not measurement; from {source(comments)}"]


#: Name of a marked place to what fills it, and the file that this reads.
PLACES = {"gcomp-scaling": (measured_table, FILE), "gcomp-scaling-model": (model_table, MODEL)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.scaling", description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", choices=MODELS, help=f"of these only ({', '.join(MODELS)})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps of a small cnn at {RATES[0]}")
    parser.add_argument("--modeled", action="store_true", help="the model alone, which needs no root")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV files go (bench/results)")
    options = parser.parse_args(arguments)
    steps, all_reduces = (read_table(RESULTS / name)[1] for name in (STEP_FILE, ALL_REDUCES))
    write_named(options.out / MODEL, modeled(steps, all_reduces))
    if options.modeled:
        return 0
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    measure(options)
    return 0


def measure(options: argparse.Namespace) -> None:
    """Train, and write what was measured after each training."""
    rows: list[dict[str, object]] = []
    models, rates = (MODELS[:1], RATES[:1]) if options.quick else (options.model or MODELS, RATES)
    for model, workers, rate in product(models, WORKERS, rates):
        steps = QUICK_STEPS if options.quick else STEPS + IGNORED
        for row in rows_of(train(model, rate, steps, 1, METHODS, options.quick, workers=workers)):
            print(*row.values(), sep=", ", flush=True)
            rows.append(row)
        write_named(options.out / FILE, rows)


if __name__ == "__main__":
    sys.exit(main())
