"""The demo: train, record, compress in every mode, verify, and show it in one table and a few pictures."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..benchmark.csv_tables import write_rows, write_sizes, write_table
from ..benchmark.inputs import PARAMETERS, STATE, Input, gradients, tensors
from ..benchmark.measure import MEGA, OURS, MeasurementPlan, Result, Size, compete
from ..benchmark.peers import PEERS, available
from ..benchmark.report import distance, summarize
from ..benchmark.settings import LOSSLESS, NEAR_LOSSLESS, near_lossless_setting
from ..benchmark.sources import find_dumps
from ..benchmark.timing import machine
from ..benchmark.update import LIMIT, update_ulps
from ..errors import printable
from ..recorder import Dump, read_dump
from .figures.plots import plot_exponent_coding, plot_mantissa_coding, plot_observations, plot_ratio
from .figures.strategies import exponent_rows, mantissa_rows
from .train import TrainingPlan, plans_for, train_all

DTYPES = {"float32": "fp32", "bfloat16": "bf16"}  #: with their short names
CHECKPOINT = "checkpoint fp32"  #: parameters and optimizer state of both models' last dumps
WIDTH = 110  #: columns of the table where there is no terminal to ask
TITLE = (
    "What each codec makes of the gradients of all recorded steps. GB/s: 1e9 bytes of uncompressed data per "
    "second, on one core unless the row says more"
)
DRAWN = (OURS, "zlib-6", "zstd-1", "shuffle+zstd-3", "ZipNN", "OpenZL LZ")  #: as many as colors tell apart
Dumps = Mapping[str, Sequence[Dump]]  #: by model, in the order of steps
Gradients = Mapping[str, Sequence[Input]]  #: float32, as recorded, by model in the order of steps


@dataclass(frozen=True)
class Section:
    """A part of the table.

    Attributes:
        title: Title of the part.
        parts: Inputs that are added up.
    """

    title: str
    parts: tuple[Input, ...]


@dataclass(frozen=True)
class Findings:
    """The results that the demo reports.

    Attributes:
        result: Sizes and speeds.
        ulps: For each model, how many parameters end how many ulps from the exact update.
        level_speeds: For each model, GB/s at which levels were chosen.
        missing: Packages of peers that are not installed.
    """

    result: Result
    ulps: dict[str, Counter[int]]
    level_speeds: dict[str, float]
    missing: list[str]


def run_demo(
    out: Path, *, quick: bool = False, drops: bool = False, recorded: Path | None = None, show: bool = True
) -> int:
    """Run the whole demo.

    Args:
        out: Where dumps, pictures and tables go.
        quick: A few training steps and one round of timing, to see that everything works.
        drops: Train on while the learning rate falls to a tenth twice.
        recorded: A folder of dumps to measure, instead of training.
        show: Progress bars.

    Returns:
        0, or 1 if a round trip of gcodec failed.
    """
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    dumps = _recorded(recorded) if recorded else _train(out / "dumps", plans_for(quick, drops), show, console)
    exact = {model: [gradients(dump, model) for dump in series] for model, series in dumps.items()}
    findings = _measure(dumps, exact, quick, show, console)
    pictures = _draw(exact, recorded or out / "dumps", findings.result, out)
    _write(findings, out)
    console.print(summarize(findings.result.rows, TITLE))
    lines = [*lines_of(findings)]
    lines.append(f"Pictures: {', '.join(path.name for path in pictures)}; tables: *.csv; all in {out}/")
    lines += [f"ROUND TRIP FAILED: {failure}" for failure in findings.result.failures]
    for line in lines:
        console.print(printable(line), markup=False)
    return 1 if findings.result.failures else 0


def _train(folder: Path, plans: dict[str, TrainingPlan], show: bool, console: Console) -> Dumps:
    console.print("Training two small models on this machine's CPU, recording gradients, parameters and state ...")
    outcomes = train_all(folder, plans, show=show)
    return {outcome.model: [read_dump(path) for path in outcome.dumps] for outcome in outcomes}


def _recorded(folder: Path) -> Dumps:
    dumps: dict[str, list[Dump]] = {}
    for model, dump in find_dumps(folder):
        dumps.setdefault(model, []).append(dump)
    return dumps


def sections_of(dumps: Dumps, recorded: Gradients) -> Iterator[Section]:
    """Yield each model's gradients in each type, then what a checkpoint of all models holds."""
    for model, series in dumps.items():
        for dtype in DTYPES:
            cast = dtype != "float32"
            parts = tuple(gradients(dump, model, dtype) for dump in series) if cast else tuple(recorded[model])
            yield Section(f"{model} {DTYPES[dtype]}", parts)
    last = [(model, series[-1]) for model, series in dumps.items()]
    parts = tuple(tensors(dump, model, group) for model, dump in last for group in (PARAMETERS, STATE))
    yield Section(CHECKPOINT, parts)


def _measure(dumps: Dumps, recorded: Gradients, quick: bool, show: bool, console: Console) -> Findings:
    peers, missing = available(PEERS)
    plan = MeasurementPlan(peers, at_least=MEGA if quick else 32 * MEGA, rounds=1 if quick else 5, budget=1.5)
    result, speeds, ulps = Result(), {}, {}
    console.print("Compressing everything with everything, verifying every round trip ...")
    steps = sum(len(DTYPES) * plan.steps(len(series)) + 1 for series in dumps.values()) + plan.steps(2 * len(dumps))
    with _bar(show, steps, console) as advance:
        for section in sections_of(dumps, recorded):
            section_result = compete(section.title, section.parts, replace(plan, advance=advance))
            result.extend(section_result)
            if section_result.level_speed and section.parts[0].dtype == "float32":
                speeds[section.parts[0].model] = section_result.level_speed
        for model, series in dumps.items():
            pairs = zip(series, recorded[model], strict=True)
            ulps[model] = sum((_ulps(dump, data) for dump, data in pairs), Counter[int]())
            advance(f"{model}: the optimizer's step")
    return Findings(result, ulps, speeds, missing)


def _ulps(dump: Dump, data: Input) -> Counter[int]:
    """Count distances in ulps between the exact and the near-lossless update of one recorded step."""
    flat = near_lossless_setting(data).result.view(np.float32)
    shapes = [(name, dump.grad(name).shape) for name in dump.names]
    ends = np.cumsum([int(np.prod(shape)) for _, shape in shapes])
    parts = np.split(flat, ends[:-1])
    return update_ulps(dump, {name: part.reshape(shape) for (name, shape), part in zip(shapes, parts, strict=True)})


def _draw(recorded: Gradients, folder: Path, result: Result, out: Path) -> list[Path]:
    """Draw the pictures, and write the rows behind those that are not drawn from ``observations.json``."""
    pictures = plot_observations(folder, out) if any(folder.glob("*/observations.json")) else []
    series = recorded.values()
    ratios = [
        {
            "model": size.model,
            "step": size.step,
            "ratio": size.ratio,
            "codec": f"{OURS}, {size.mode}" if size.codec == OURS else size.codec,
        }
        for size in result.sizes
        if size.dtype == "float32" and size.group == "gradients" and size.codec in DRAWN
    ]
    for name, plot, rows in (
        ("ratio", plot_ratio, ratios),
        ("exponent_coding", plot_exponent_coding, [row for parts in series for row in exponent_rows(parts)]),
        ("mantissa_coding", plot_mantissa_coding, [row for parts in series for row in mantissa_rows(parts)]),
    ):
        plot(rows, out / f"{name}.png")
        write_table(out / f"{name}.csv", list(rows[0]), [list(row.values()) for row in rows])
        pictures.append(out / f"{name}.png")
    return pictures


def _write(findings: Findings, out: Path) -> None:
    write_rows(out / "results.csv", findings.result.rows)
    write_sizes(out / "sizes.csv", findings.result.sizes)
    write_table(
        out / "updates.csv",
        ("model", "ulps", "parameters"),
        [
            (model, f"{ulps}+" if ulps > LIMIT else ulps, counts[ulps])
            for model, counts in findings.ulps.items()
            for ulps in range(LIMIT + 2)
        ],
    )


def lines_of(findings: Findings) -> Iterator[str]:
    """Yield what the table does not say: how exact updates are, distances from bound and paper, smaller peers."""
    yield f"Machine: {machine()}."
    for model, counts in findings.ulps.items():
        shares = [100 * counts[ulps] / max(1, counts.total()) for ulps in range(LIMIT + 2)]
        yield (
            f"{model}: after torch's own step on near-lossless gradients {shares[0]:.2f} % of the parameters are "
            f"what exact gradients give, {shares[1]:.2f} % are 1 ulp off, {shares[2]:.4f} % 2, "
            f"{shares[LIMIT + 1]:.5f} % more."
        )
    for title, start, field, sign in (
        ("Size against the local order-0 bound", "", "overhead", 1),
        ("Size against the GComp paper's layout", NEAR_LOSSLESS, "saving", -1),
    ):
        ranges = _ranges(findings, start, field).items()
        spans = [f"{name} {distance(sign * low, 1)} to {distance(sign * high, 1)}" for name, (low, high) in ranges]
        yield f"{title}: {'; '.join(spans)}."
    speeds = ", ".join(f"{model} {speed:.2f} GB/s" for model, speed in findings.level_speeds.items())
    yield f"Choosing near-lossless levels, not in the encoding's time: {speeds}."
    if smaller := list(_smaller(findings)):
        yield f"Where a peer is smaller than lossless gcodec: {'; '.join(smaller)}."
    yield from findings.result.notes
    if findings.missing:
        yield f"Not installed, so not measured: {', '.join(findings.missing)} (pip install '.[bench]' in a checkout)."


def _ranges(findings: Findings, start: str, field: str) -> dict[str, tuple[float, float]]:
    """Return min and max percentages by model, type and mode, over the recorded steps' gradients."""
    ranges: dict[str, tuple[float, float]] = {}
    for size in findings.result.sizes:
        value = getattr(size, field)
        if value is not None and size.mode.startswith(start) and size.dtype == "float32" and size.group == "gradients":
            low, high = ranges.get(name := f"{size.model} {size.mode}", (value, value))
            ranges[name] = min(low, value), max(high, value)
    return ranges


def _smaller(findings: Findings) -> Iterator[str]:
    """Yield where the best peer beats lossless gcodec: model, kind and type, how often and by how much at most."""
    by_input: dict[Size, dict[str, Size]] = {}
    for size in findings.result.sizes:
        if size.mode == LOSSLESS:
            by_input.setdefault(replace(size, codec="", compressed_bytes=0, bound=None), {})[size.codec] = size
    losses: dict[str, list[tuple[float, str]]] = {}
    for data, by_codec in by_input.items():
        name = f"{data.model} {data.group} {DTYPES[data.dtype]}"
        best = min(by_codec.values(), key=lambda size: size.compressed_bytes)
        if OURS in by_codec and best.compressed_bytes < by_codec[OURS].compressed_bytes:
            ours, theirs = 100 / by_codec[OURS].ratio, 100 / best.ratio
            text = f"at step {data.step} {best.codec} {theirs:.1f} %, gcodec {ours:.1f} %"
            losses.setdefault(name, []).append((ours - theirs, text))
    totals = Counter(f"{data.model} {data.group} {DTYPES[data.dtype]}" for data in by_input)
    for name, entries in losses.items():
        yield f"{name}, {len(entries)} of {totals[name]} steps, most {max(entries)[1]}"


@contextmanager
def _bar(show: bool, total: int, console: Console) -> Iterator[Callable[[str], None]]:
    name = TextColumn("{task.description:<44.44}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not show, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda what: progress.update(task, advance=1, description=printable(what))
