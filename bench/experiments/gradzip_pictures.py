"""The picture of GradZip's experiments, from CSV files: the paper's Figure 3; it can be read in gray.

``bench.pictures`` draws it. What steps take, and so what throughput is, was measured by
``bench.cluster.compressed`` on a shaped link; accuracy is from ``bench.experiments.gradzip``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes

from bench.cluster import compressed
from bench.cluster.pictures import unique
from bench.experiments import gradzip
from bench.plots import DASHES, Pictures, _describe, _figure, _legend, _log_axis, _save
from gcodec.benchmark.csv_tables import read_table
from gcodec.demo.figures.plots import COLORS, MARKERS

RATE = "1gbit"  #: of the breakdown
RATIOS = (1, 2, 5, 10, 20, 50)
Row = dict[str, str]


def figure_3(results: Path, path: Path) -> None:
    """Plot (a) a step's computing and the rest, (b) throughput by ratio, (c, d) accuracy by ratio."""
    _, steps = read_table(results / compressed.FILE)
    _, trained = read_table(results / gradzip.FILE)
    figure, panels = _figure(1, 3)
    breakdown(panels[0][0], [row for row in steps if row["rate"] == RATE])
    throughput(panels[0][1], steps)
    accuracy(panels[0][2], trained)
    _legend(figure, panels[0][1], 5)
    _save(figure, path)


def breakdown(axes: Axes, rows: Sequence[Row]) -> None:
    """Milliseconds of a step by method, the one listed first on top."""
    rows = rows[::-1]
    names, computing = [row["method"] for row in rows], [1e3 * float(row["compute_seconds"]) for row in rows]
    rest = [max(1e3 * float(row["communication_seconds"]), 0.0) for row in rows]
    axes.barh(names, computing, label="computing", color="0.85", edgecolor="black", linewidth=0.6)
    axes.barh(names, rest, left=computing, label="compressing, waiting", color="0.45", edgecolor="black", linewidth=0.6)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlim(right=1.5 * max(a + b for a, b in zip(computing, rest, strict=True)))
    axes.legend(fontsize=7, frameon=False)
    _describe(axes, f"(a) a step at {RATE}", "ms", "")


def throughput(axes: Axes, rows: Sequence[Row]) -> None:
    """Steps per second by ratio of bytes: a marker for each family, filled on the first link; a line where a family has
    more than one ratio."""
    families = unique(family_of(row["method"]) for row in rows)
    for place, rate in enumerate(unique(row["rate"] for row in rows)):
        for number, family in enumerate(families):
            points = sorted(
                (float(row["byte_ratio"]), 1 / float(row["step_seconds"]))
                for row in rows
                if (family_of(row["method"]), row["rate"]) == (family, rate)
            )
            axes.plot(
                *zip(*points, strict=True),
                DASHES[place],
                marker=MARKERS[number % len(MARKERS)],
                color=COLORS[number % len(COLORS)],
                fillstyle="none" if place else "full",
                label=None if place else family,
            )
    _log_axis(axes, RATIOS)
    axes.set_ylim(bottom=0)
    _describe(axes, "(b) throughput (hollow: 100 Mb/s)", "bytes before / after", "steps per second")


def accuracy(axes: Axes, rows: Sequence[Row]) -> None:
    """Means over seeds by ratio of floats, a line for each family and variant."""
    kinds = unique((family_of(row["method"]), row["variant"]) for row in rows)
    for number, kind in enumerate(kinds):
        selected = [row for row in rows if (family_of(row["method"]), row["variant"]) == kind]
        methods = unique(row["method"] for row in selected)
        own = [[row for row in selected if row["method"] == method] for method in methods]
        points = sorted(
            (fmean(float(row["float_ratio"]) for row in one), 100 * fmean(float(row["accuracy"]) for row in one))
            for one in own
        )
        axes.plot(
            *zip(*points, strict=True),
            DASHES[number % 4],
            marker=MARKERS[number % len(MARKERS)],
            color=COLORS[number % len(COLORS)],
            markersize=5,
            label=", ".join(kind),
        )
    _log_axis(axes, RATIOS)
    low, high = axes.get_ylim()
    axes.set_ylim(2 * low - high, high)  # room for the legend
    axes.legend(fontsize=6, frameon=False, loc="lower left")
    _describe(axes, "(c, d) held-out accuracy", "floats before / after", "%")


def family_of(method: str) -> str:
    """Return a method's name without its ratio and type."""
    return method.split("-")[0] if method.split("-")[-1] in ("FP32", "FP16", "40") else method


PICTURES: Pictures = {"experiment-gradzip": (figure_3, (compressed.FILE, gradzip.FILE))}
