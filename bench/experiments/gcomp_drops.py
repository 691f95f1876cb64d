"""Measure what GComp's two drops of the learning rate are worth with each of the demo's three models.

    python -m bench.experiments.gcomp_drops [--quick] [--resume] [--out DIR]

trains the models of ``bench.record`` as ``gcodec demo --drops`` does: for two thirds as long again, at a tenth and then
at a hundredth of the learning rate. It writes ``experiment-gcomp-drops.csv``: the size of the gradients at the steps
that are recorded, as float32 and cast to the half types, all of them, and all but the embeddings', whose rows are zero
for tokens that a batch does not have. ``--resume`` takes the dumps of an earlier run. Nothing here is a time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from bench import record
from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.experiments.gcomp import rate_of
from bench.markdown import markdown, source
from gcodec.benchmark.csv_tables import read_table, write_table
from gcodec.benchmark.inputs import gradients
from gcodec.benchmark.settings import (
    LOSSLESS,
    NEAR_LOSSLESS,
    literal_gcomp_setting,
    lossless_setting,
    near_lossless_setting,
)
from gcodec.demo import train
from gcodec.recorder import Dump, read_dump

FILE = "experiment-gcomp-drops.csv"
COLUMNS = ("model", "step", "rate", "dtype", "gradients", "values", "zeros_percent", "method", "percent")
FP32 = "float32"
DTYPES = (FP32, "bfloat16", "float16")
ALL, DENSE = "all", "without embeddings"
EMBEDDING = "embedding"  #: part of the names of parameters that are rows for tokens
PLANS = {name: train.with_drops(plan) for name, plan in {**train.PLANS, "lstm": record.PLANS["lstm"]}.items()}
QUICK_PLANS = {name: train.with_drops(plan) for name, plan in record.QUICK_PLANS.items()}
FIRST_DROP = {name: plan.drops[0] for name, plan in PLANS.items()}


def rows_of(model: str, dump: Dump) -> Iterator[list[object]]:
    """Yield the size of a dump's gradients by type and method, in percent of their own. All are whole frames,
    verified."""
    dense = [name for name in dump.names if EMBEDDING not in name]
    for dtype, (what, names) in product(DTYPES, ((ALL, list(dump.names)), (DENSE, dense))):
        if what == DENSE and (dtype != FP32 or len(names) == len(dump.names)):
            continue
        data = gradients(dump, model, dtype, names)
        literal = [literal_gcomp_setting(data)] if dtype == FP32 else []
        zeros = 100 * float((data.bits << 1 == 0).mean())  # of either sign
        for setting in (lossless_setting(data), *literal, near_lossless_setting(data)):
            task = setting.task(reuse=False)
            encoded = task.encode()
            task.check(task.decode(encoded))
            yield [
                model,
                dump.step,
                f"{rate_of(dump):g}",
                dtype,
                what,
                data.bits.size,
                f"{zeros:.2f}",
                setting.mode,
                f"{100 * len(encoded) / data.nbytes:.2f}",
            ]


def table(results: Path) -> list[str]:
    """Return the sizes in float32 by model, step and method: where the rate falls, and at the end."""
    comments, rows = read_table(results / FILE)
    wide = [row for row in rows if row["dtype"] == FP32 and int(row["step"]) >= FIRST_DROP.get(row["model"], 0)]
    methods = list(dict.fromkeys(row["method"] for row in wide))
    keys = ("model", "step", "rate", "gradients", "zeros_percent")
    lines = []
    for key in dict.fromkeys(tuple(row[name] for name in keys) for row in wide):
        own = {row["method"]: row["percent"] for row in wide if tuple(row[name] for name in keys) == key}
        lines.append([*key, *(own[method] for method in methods)])
    columns = ["model", ">step", ">rate", "gradients", ">zeros, %", *(f">{method}" for method in methods)]
    larger, compared = beside_lossless(rows)
    return [
        *markdown(columns, lines),
        "",
        f"In percent of float32. Near-lossless is larger than lossless in {larger} of {compared} gradients, those "
        f"cast to bfloat16 and float16 among them. From {source(comments)}",
    ]


def beside_lossless(rows: Sequence[Mapping[str, str]]) -> tuple[int, int]:
    """Return in how many gradients near-lossless is larger than lossless, and of how many."""
    sizes: dict[tuple[str, ...], dict[str, float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "step", "dtype", "gradients"))
        sizes.setdefault(key, {})[row["method"]] = float(row["percent"])
    return sum(own[NEAR_LOSSLESS] > own[LOSSLESS] for own in sizes.values()), len(sizes)


PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {"gcomp-drops": (table, FILE)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiments.gcomp_drops", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a few steps, to try it")
    parser.add_argument("--resume", action="store_true", help="take the dumps of an earlier run")
    parser.add_argument("--out", type=Path, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    out, plans = options.out or (CACHE / "quick" if options.quick else RESULTS), QUICK_PLANS if options.quick else PLANS
    folder = CACHE / ("gcomp-drops-quick" if options.quick else "gcomp-drops")
    rows: list[list[object]] = []
    for model, plan in plans.items():
        paths = [folder / model / f"step-{step:06d}.safetensors" for step in plan.recorded]
        if not (options.resume and all(path.exists() for path in paths)):
            train.train(model, folder, plan)
        for path in paths:
            rows += rows_of(model, read_dump(path))
        print(*rows[-1], flush=True)
        write_table(out / FILE, COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
