"""GComp's experiments: where near-lossless encoding saves 67 % of a gradient, and what n_theta costs.

    python -m bench.experiments.gcomp [--quick] [--resume] [--out DIR]

trains the demo's CNN in ``PLAN``, whose learning rate falls to a tenth at two steps as the paper's does, and writes

* ``experiment-gcomp-sizes.csv``: the size of the gradients at some steps, by method and learning rate;
* ``experiment-gcomp-values.csv``: how far gradients are below parameters, what levels allow, and how many are zero;
* ``experiment-gcomp-updates.csv``: the optimizer's update from rounded gradients beside that from exact ones;
* ``experiment-gcomp-n-theta.csv``: bits per exponent by the length up to which codes are kept.

``--resume`` takes the dumps of an earlier run. Nothing here is a time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.markdown import markdown, source
from gcodec.benchmark.bounds import head_symbols, paper_layout
from gcodec.benchmark.csv_tables import read_table, write_table
from gcodec.benchmark.inputs import LADDERS, Input, cast, gradients
from gcodec.benchmark.settings import (
    NEAR_LOSSLESS,
    Setting,
    fixed_bits_setting,
    literal_gcomp_setting,
    lossless_setting,
    near_lossless_setting,
)
from gcodec.benchmark.update import step as updated
from gcodec.demo.figures.strategies import native_table, optimized_table
from gcodec.demo.train import TrainingPlan, train
from gcodec.recorder import Dump, read_dump
from gcodec.truncation.optimizers import levels_for, view_from_dump
from gcodec.truncation.reference import ulp_histogram

MODEL, DTYPE = "cnn", "float32"
PLAN = TrainingPlan(1000, (1, 300, 600, 620, 800, 820, 1000), 1000, batch=64, drops=(600, 800))
QUICK_PLAN = TrainingPlan(6, (1, 3, 6), 6, batch=16, drops=(2, 4))
WORKERS = 4  #: by whose number the paper's gradients may have been divided before they were looked at
SCALES = (0.5, 0.25)  #: of the rule; 0.5 has the paper's bound, a whole ulp of N, with rounding to nearest
N_THETAS = (4, 5, 6, 7, 8, 9, 10, 11, 12)
RAW = 8  #: bits of an exponent behind an escape
FILES = {name: f"experiment-gcomp-{name}.csv" for name in ("sizes", "values", "updates", "n-theta")}
COLUMNS = {
    "sizes": ("model", "step", "rate", "method", "percent"),
    "values": (
        "model",
        "step",
        "rate",
        "zeros_percent",
        "orders_q05",
        "orders_median",
        "orders_q95",
        "log2_delta_q05",
        "log2_delta_median",
        "log2_delta_q95",
    ),
    "updates": ("model", "step", "rate", "method", "relative_error", "percent_same", "percent_1_ulp", "percent_more"),
    "n-theta": ("model", "step", "n_theta", "native_bits", "paper_bits", "escape_bits"),
}
LAYOUT, DIVIDED = "GComp's layout", f"GComp's layout, gradient / {WORKERS}"
QUARTERS = (5, 50, 95)


def dumps_folder(plan: TrainingPlan) -> Path:
    """Return the folder of a training's dumps."""
    return CACHE / ("gcomp" if plan == PLAN else "gcomp-quick")


def levels_at(dump: Dump, ladder: str, scale: float) -> np.ndarray:
    """Return all gradients' levels by the optimizer's rule, the gradient counting ``scale`` times."""
    parts = [
        levels_for(
            view_from_dump(dump.optimizer, dump.hyper(name), dump.state(name)),
            dump.param(name),
            dump.grad(name),
            ladder=LADDERS[ladder][DTYPE],
            scale=scale,
        )
        for name in dump.names
    ]
    return np.concatenate([np.asarray(part).reshape(-1) for part in parts])


def rate_of(dump: Dump) -> float:
    """Return the learning rate that the dump's step was taken with."""
    return float(dump.hyper(dump.names[0])["lr"])


def near_lossless(dump: Dump, data: Input, scales: Sequence[float] = SCALES) -> list[tuple[str, Setting]]:
    """Return near-lossless encoding at our bound, and at laxer ones."""
    results = [(NEAR_LOSSLESS, near_lossless_setting(data))]
    for scale in scales:
        changed = replace(data, levels={**data.levels, "fine": levels_at(dump, "fine", scale)})
        results.append((f"{NEAR_LOSSLESS}, scale={scale:g}", near_lossless_setting(changed)))
    return results


def size_rows(dump: Dump, data: Input, scales: Sequence[float] = SCALES) -> Iterator[list[object]]:
    """Yield the size of a dump's gradients by every method, in percent of float32. GComp's layout is ideal: no header,
    no table, no padding (``bounds.paper_layout``); all others are whole frames, verified."""
    facts, ladder = [data.model, dump.step, f"{rate_of(dump):g}"], LADDERS["paper"][DTYPE]
    for name, scale in ((LAYOUT, 1.0), (DIVIDED, 1 / WORKERS)):
        bound = paper_layout(data.bits, data.type, levels_at(dump, "paper", scale), ladder)
        yield [*facts, name, f"{100 * bound.bytes / data.nbytes:.2f}"]
    literal, fixed = literal_gcomp_setting(data), fixed_bits_setting(data)
    for name, setting in [
        ("lossless", lossless_setting(data)),
        (literal.mode, literal),
        *near_lossless(dump, data, scales),
        (fixed.mode, fixed),
    ]:
        task = setting.task(reuse=False)
        encoded = task.encode()
        task.check(task.decode(encoded))
        yield [*facts, name, f"{100 * len(encoded) / data.nbytes:.2f}"]


def value_row(dump: Dump, data: Input) -> list[object]:
    """Return how many orders of magnitude gradients are below their parameters (Figures 2 and 3), and the logarithm of
    delta, the largest relative error that the rule allows, as far as the ladder of single bits shows it."""
    gradient, param = (
        np.concatenate([np.asarray(one(name), np.float64).reshape(-1) for name in dump.names])
        for one in (dump.grad, dump.param)
    )
    both = (gradient != 0) & (param != 0)
    orders = np.percentile(np.log10(np.abs(param[both] / gradient[both])), QUARTERS)
    deltas = np.percentile(np.log2(np.abs(param[both]) / (rate_of(dump) * np.abs(gradient[both]))), QUARTERS)
    return [
        data.model,
        dump.step,
        f"{rate_of(dump):g}",
        f"{100 * float(np.mean(gradient == 0)):.2f}",
        *(f"{number:.2f}" for number in (*orders, *deltas)),
    ]


def update_rows(dump: Dump, data: Input, scales: Sequence[float] = SCALES) -> Iterator[list[object]]:
    """Yield how far one step with rounded gradients is from the step with exact ones: the norm of the difference over
    that of the update, and ulps of parameters. A loss tells none of this apart from the noise of batches."""
    ends = np.cumsum([np.asarray(dump.grad(name)).size for name in dump.names])[:-1]
    half = np.concatenate([np.asarray(dump.grad(name), np.float32).reshape(-1) for name in dump.names])
    wide = cast(half, "bfloat16").astype(np.uint32) << np.uint32(16)
    with np.errstate(over="ignore"):
        rounded = {"fp16": half.astype(np.float16).astype(np.float32), "bf16": wide.view(np.float32)}
    rounded |= {name: setting.result.view(np.float32) for name, setting in near_lossless(dump, data, scales)}
    literal = literal_gcomp_setting(data)
    rounded[literal.mode] = literal.result.view(np.float32)
    for method, values in rounded.items():
        ulps, lost, whole = np.zeros(4), 0.0, 0.0
        for name, part in zip(dump.names, np.split(values, ends), strict=True):
            before = np.asarray(dump.param(name), np.float64)
            exact, near = (
                updated(dump, name, one) for one in (dump.grad(name), part.reshape(np.shape(dump.grad(name))))
            )
            counts = ulp_histogram(exact, near, 2)
            ulps += [counts.get(n, 0) for n in range(4)]
            lost += float(((near.astype(np.float64) - exact) ** 2).sum())
            whole += float(((exact - before) ** 2).sum())
        shares = 100 * ulps / ulps.sum()
        yield [
            data.model,
            dump.step,
            f"{rate_of(dump):g}",
            method,
            f"{(lost / whole) ** 0.5:.3e}",
            f"{shares[0]:.3f}",
            f"{shares[1]:.3f}",
            f"{shares[2:].sum():.5f}",
        ]


def n_theta_rows(data: Input) -> Iterator[list[object]]:
    """Yield bits per exponent of one table for the dump: Huffman's own code; the paper's (Table 1), which keeps codes
    of up to n_theta bits as they are and has a special code of n_theta bits for all others; ours, which makes the code
    anew with the escape as one of its symbols."""
    counts = np.bincount(head_symbols(data.bits, data.type))
    native = native_table(counts, RAW)
    for n_theta in N_THETAS:
        lengths = np.where(native.lengths > n_theta, n_theta + RAW, native.lengths)
        bits = (
            native.bits(counts),
            float((counts * lengths[: len(counts)]).sum()),
            optimized_table(counts, RAW, n_theta).bits(counts),
        )
        yield [data.model, data.step, n_theta, *(f"{one / counts.sum():.5f}" for one in bits)]


def sizes_table(results: Path) -> list[str]:
    """Return the sizes by step and method."""
    comments, rows = read_table(results / FILES["sizes"])
    _, values = read_table(results / FILES["values"])
    methods = list(dict.fromkeys(row["method"] for row in rows))
    table = []
    for value in values:
        own = {row["method"]: row["percent"] for row in rows if row["step"] == value["step"]}
        table.append(
            [
                value["step"],
                value["rate"],
                value["orders_median"],
                value["log2_delta_median"],
                value["zeros_percent"],
                *(own[method] for method in methods),
            ]
        )
    columns = [
        ">step",
        ">rate",
        ">orders below parameters",
        ">log2 δ, median",
        ">zeros, %",
        *(f">{method}" for method in methods),
    ]
    return [*markdown(columns, table), "", f"From {source(comments)}"]


def _listed(name: str, columns: Sequence[str]) -> Callable[[Path], list[str]]:
    """Return the table that lists all rows of a file but for the model."""

    def table(results: Path) -> list[str]:
        comments, rows = read_table(results / FILES[name])
        lines = [[row[key] for key in COLUMNS[name][1:]] for row in rows]
        return [*markdown(columns, lines), "", f"From {source(comments)}"]

    return table


UPDATE_HEADINGS = (
    ">step",
    ">rate",
    "gradient",
    ">relative error of the update",
    ">parameters the same, %",
    ">1 ulp, %",
    ">more, %",
)
PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "gcomp-sizes": (sizes_table, FILES["sizes"]),
    "gcomp-updates": (
        _listed("updates", UPDATE_HEADINGS),
        FILES["updates"],
    ),
    "gcomp-n-theta": (_listed("n-theta", (">step", ">n_theta", ">Huffman", ">the paper's", ">ours")), FILES["n-theta"]),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.gcomp", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few steps, to try it")
    parser.add_argument("--resume", action="store_true", help="take the dumps of an earlier run")
    parser.add_argument("--out", type=Path, help="where the CSV files go (default: bench/results)")
    options = parser.parse_args(arguments)
    out, plan = options.out or (CACHE / "quick" if options.quick else RESULTS), QUICK_PLAN if options.quick else PLAN
    folder = dumps_folder(plan)
    paths = [folder / MODEL / f"step-{step:06d}.safetensors" for step in plan.recorded]
    if not (options.resume and all(path.exists() for path in paths)):
        train(MODEL, folder, plan)
    tables: dict[str, list[list[object]]] = {name: [] for name in FILES}
    for path in paths:
        dump = read_dump(path)
        data = gradients(dump, MODEL)
        tables["sizes"] += size_rows(dump, data)
        tables["values"].append(value_row(dump, data))
        tables["updates"] += update_rows(dump, data)
        tables["n-theta"] += n_theta_rows(data)
        print(*tables["values"][-1], flush=True)
    for name, rows in tables.items():
        write_table(out / FILES[name], COLUMNS[name], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
