"""The pictures of the distributed part, from the CSV files; each can be read in gray.

``bench.pictures`` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from bench.cluster import allreduce, bits, compressed, methods, model, runs
from bench.cluster.bed import RATES
from bench.plots import DASHES, HATCHES, SHADES, Pictures, _describe, _figure, _legend, _log_axis, _save
from gcodec.benchmark.csv_tables import read_table
from gcodec.demo.figures.plots import COLORS, MARKERS

BARS = (
    methods.FP32,
    methods.FP16,
    methods.BF16,
    methods.LOSSLESS,
    methods.NEAR,
    methods.BF16_MODE,
    "zlib-1",
    "zstd-1",
    "shuffle+zstd-1",
)
CUT = 2.5  #: where bars of normalized time end
MODELED = (model.RING, model.TREE, model.HALF, methods.LOSSLESS, methods.NEAR)
MODELED_WORKERS = ("4", "64", "1024")
Row = dict[str, str]


def normalized(results: Path, path: Path) -> None:
    """Plot the all-reduce time by method, relative to Gloo's fp32 (GComp's Figure 10)."""
    _, rows = read_table(results / allreduce.FILE)
    beds = unique((row["model"], row["workers"]) for row in rows)
    figure, panels = _figure(len(beds), 1, wide=2.2)
    for (axes,), (name, workers) in zip(panels, beds, strict=True):
        selected = {
            (row["rate"], row["method"]): row for row in rows if (row["model"], row["workers"]) == (name, workers)
        }
        rates = [rate for rate in RATES if (rate, methods.FP32) in selected]
        width = 0.9 / len(BARS)
        for number, method in enumerate(BARS):
            places = [at + (number - len(BARS) / 2 + 0.5) * width for at in range(len(rates))]
            rows_of = [selected.get((rate, method)) for rate in rates]  # what was not measured leaves a gap
            heights = [float(row["normalized"]) if row else 0.0 for row in rows_of]
            axes.bar(
                places,
                [min(height, CUT) for height in heights],
                width,
                label=method,
                color=SHADES[number],
                hatch=HATCHES[number],
                edgecolor="black",
                linewidth=0.6,
            )
            for place, height in zip(places, heights, strict=True):
                if height > CUT:
                    axes.text(place, CUT, f"{height:.1f}", ha="center", va="bottom", fontsize=6)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(rates)), rates)
        _describe(axes, f"25 MB of gradients, {name}, {workers} workers", "link", "time / Gloo fp32")
    _legend(figure, panels[0][0], 5)
    _save(figure, path)


def training(results: Path, path: Path) -> None:
    """Loss over steps and over time at 1 Gb/s (GComp's Figure 20); bits per symbol with the hook's codebooks."""
    _, rows = read_table(results / runs.TRAINING)
    models = unique(row["model"] for row in rows)
    figure, panels = _figure(3, len(models))
    for (*pair, last), name in zip(panels.T, models, strict=True):
        _symbols(last, [row for row in rows if row["model"] == name and row["bits_per_symbol"]], name)
        for axes, value, what in zip(pair, ("step", "elapsed_seconds"), ("step", "seconds"), strict=True):
            for number, method in enumerate(runs.METHODS):
                selected = [row for row in rows if (row["model"], row["method"]) == (name, method)]
                axes.plot(
                    [float(row[value]) for row in selected],
                    [float(row["loss"]) for row in selected],
                    DASHES[number % 4],
                    color=COLORS[number],
                    label=method,
                    linewidth=1.4,
                )
            _describe(axes, f"{name}, {selected[0]['workers']} workers at {selected[0]['rate']}", what, "loss, nats")
    _legend(figure, panels[0][0], 5)
    _save(figure, path)


def _symbols(axes: Axes, rows: Sequence[Row], name: str) -> None:
    for number, method in enumerate(runs.METHODS):
        selected = [row for row in rows if row["method"] == method]
        steps = [int(row["step"]) for row in selected]
        axes.plot(steps, [float(row["bits_per_symbol"]) for row in selected], color=COLORS[number], linewidth=1.4)
        axes.plot(steps, [float(row["entropy_per_symbol"]) for row in selected], ":", color="black", linewidth=1)
    _describe(axes, f"{name}: shared codebooks (dotted: entropy)", "step", "bits per head")


def deviations(results: Path, path: Path) -> None:
    """Plot how far losses are from the dense run's at the same step (GComp's Figure 18)."""
    _, rows = read_table(results / runs.DEVIATIONS)
    models = unique(row["model"] for row in rows)
    figure, panels = _figure(1, len(models))
    for axes, name in zip(panels[0], models, strict=True):
        for number, method in enumerate(unique(row["method"] for row in rows if row["model"] == name)):
            selected = [row for row in rows if (row["model"], row["method"]) == (name, method)]
            total = sum(int(row["count"]) for row in selected)
            middles = [(float(row["low"]) + float(row["high"])) / 2 for row in selected]
            axes.step(
                middles,
                [100 * int(row["count"]) / total for row in selected],
                DASHES[number % 4],
                where="mid",
                color="black" if method.startswith("control") else COLORS[number],
                label=method,
                linewidth=1.2,
            )
        _describe(axes, f"{name}: loss less that of fp32", "nats", "% of steps")
    _legend(figure, panels[0][0], 6)
    _save(figure, path)


def exponents(results: Path, path: Path) -> None:
    """Bits per exponent over training, by code and table (GComp's Figures 9 and 12)."""
    _, rows = read_table(results / bits.FILE)
    models = unique(row["model"] for row in rows)
    figure, panels = _figure(len(bits.CODES), len(models))
    for line, code in zip(panels, bits.CODES, strict=True):
        for axes, name in zip(line, models, strict=True):
            selected = [row for row in rows if (row["model"], row["code"]) == (name, code)]
            for number, source in enumerate((bits.FRESH, bits.BEFORE, bits.STALE, bits.REFRESHED)):
                points = [
                    (int(row["step"]), float(row["bits_per_exponent"])) for row in selected if row["table"] == source
                ]
                axes.plot(*zip(*points, strict=True), DASHES[number], color=COLORS[number], label=f"table {source}")
            fresh = [row for row in selected if row["table"] == bits.FRESH]
            axes.plot(
                [int(row["step"]) for row in fresh],
                [float(row["entropy_bits"]) for row in fresh],
                color="black",
                linewidth=0.8,
                label="entropy",
            )
            _describe(axes, f"{name}, {code}", "step", "bits per exponent")
    _legend(figure, panels[0][0], 5)
    _save(figure, path)


def modeled(results: Path, path: Path) -> None:
    """Times faster than a dense ring, by link and number of workers, from the model."""
    _, rows = read_table(results / model.FILE)
    models = unique(row["model"] for row in rows)
    figure, panels = _figure(len(models), len(MODELED_WORKERS))
    for line, name in zip(panels, models, strict=True):
        for axes, workers in zip(line, MODELED_WORKERS, strict=True):
            for number, method in enumerate(MODELED):
                selected = [
                    row for row in rows if (row["model"], row["workers"], row["method"]) == (name, workers, method)
                ]
                axes.plot(
                    [float(row["gbps"]) for row in selected],
                    [float(row["speedup"]) for row in selected],
                    DASHES[number % 4],
                    marker=MARKERS[number],
                    color=COLORS[number],
                    label=method,
                    markersize=4,
                )
            axes.axhline(1, color="black", linewidth=0.8)
            _log_axis(axes, model.GBPS)
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            _describe(axes, f"{name}, {workers} workers (model)", "link, Gb/s", "times faster than fp32 ring")
    _legend(figure, panels[0][0], 5)
    _save(figure, path)


def compressors(results: Path, path: Path) -> None:
    """Plot what a step takes with each compressor: computing, and the rest (GradZip's Figure 3 (a))."""
    _, rows = read_table(results / compressed.FILE)
    beds = unique((row["model"], row["rate"]) for row in rows)
    figure, panels = _figure(1, len(beds))
    for axes, (name, rate) in zip(panels[0], beds, strict=True):
        selected = [row for row in rows if (row["model"], row["rate"]) == (name, rate)][::-1]
        names = [row["method"] for row in selected]
        computing = [1e3 * float(row["compute_seconds"]) for row in selected]
        rest = [max(1e3 * float(row["communication_seconds"]), 0.0) for row in selected]
        axes.barh(names, computing, label="computing", color="0.8", edgecolor="black", linewidth=0.6)
        axes.barh(
            names, rest, left=computing, label="compressing and waiting", color="0.45", edgecolor="black", linewidth=0.6
        )
        _describe(axes, f"{name}, {rate}", "step, ms", "")
    _legend(figure, panels[0][0], 2)
    _save(figure, path)


def unique(items: Iterable[Any]) -> list[Any]:
    """Return each value once, in order."""
    return list(dict.fromkeys(items))


PICTURES: Pictures = {
    "cluster-allreduce": (normalized, (allreduce.FILE,)),
    "cluster-training": (training, (runs.TRAINING,)),
    "cluster-deviations": (deviations, (runs.DEVIATIONS,)),
    "cluster-bits": (exponents, (bits.FILE,)),
    "cluster-compressors": (compressors, (compressed.FILE,)),
    "cluster-model": (modeled, (model.FILE,)),
}
