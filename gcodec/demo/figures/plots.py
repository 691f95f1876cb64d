"""Pictures of the GComp paper's Figures 2, 3, 9, 12 and 14, written as PNG files without a display.

    python -m gcodec.demo.figures.plots DUMPS PICTURES

draws the first two from the ``observations.json`` files that training left in the folders under ``DUMPS``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidArgument, missing_package
from .observations import EXPONENT_BIAS, OBSERVATIONS_FILE, RATIO_EDGES, VALUE_BINS, Observation, read_observations

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator
except ImportError as error:
    raise missing_package("matplotlib") from error

Row = Mapping[str, Any]
Runs = Mapping[str, Sequence[Observation]]
Curve = tuple[np.ndarray, np.ndarray]

SUMMARY = "Draws how gradients are distributed over a recorded training."
STAGES = 5
SPREAD = 30
DPI = 130
PANEL = (5.6, 4.2)
STAGE_COLORS = ("#b0cfe6", "#7fb2d9", "#4a8fc7", "#1f64a8", "#08306b")
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5f6368", "#000000")
MARKERS = "os^Dv<>P"
LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 1.6, "columnspacing": 1.4}
LEGEND_CHARACTERS = 72
NAMES = {"cnn": "CNN", "transformer": "Transformer"}


def plot_observations(dumps: Path, pictures: Path) -> list[Path]:
    """Draws Figures 2 and 3 of every training recorded under ``dumps``; returns the PNG files.

    Raises:
        InvalidArgument: No training was recorded there.
    """
    files = sorted(dumps.glob(f"*/{OBSERVATIONS_FILE}"))
    runs = {file.parent.name: read_observations(file) for file in files}
    written = [pictures / "gradients.png", pictures / "ratios_and_zeros.png"]
    plot_gradients(runs, written[0])
    plot_ratios_and_zeros(runs, written[1])
    return written


def plot_gradients(runs: Runs, path: Path) -> None:
    """Figure 2: how gradient values and their exponents are distributed at a few steps of training.

    Args:
        runs: Model name to its observations in the order of steps.
        path: The PNG file.

    Raises:
        InvalidArgument: No observations.
    """
    _require(runs.values())
    figure, panels = _panels(len(runs), 2)
    for row, (model, observations) in zip(panels, runs.items(), strict=True):
        _stages(row[0], observations, _value_curve)
        _describe(row[0], f"{_name(model)}: gradient values", "gradient", "share of non-zeros per bin")
        row[0].ticklabel_format(axis="x", scilimits=(-2, 2), useMathText=True)
        _stages(row[1], observations, _exponent_curve)
        row[1].xaxis.set_major_locator(MaxNLocator(integer=True))
        _describe(row[1], f"{_name(model)}: gradient exponents", "power of two", "share of non-zeros")
    _save(figure, path)


def plot_ratios_and_zeros(runs: Runs, path: Path) -> None:
    """Figure 3: |gradient| / |parameter| at a few steps, and the share of zero gradients over training."""
    _require(runs.values())
    figure, panels = _panels(1, len(runs) + 1)
    for axes, (model, observations) in zip(panels[0], runs.items(), strict=False):
        _stages(axes, observations, _ratio_curve)
        title = f"{_name(model)}: size relative to parameter"
        _describe(axes, title, "|gradient| / |parameter|", "share of values per bin")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda power, _: f"$10^{{{power:.0f}}}$"))
    axes = panels[0][-1]
    for (model, observations), color in zip(runs.items(), COLORS, strict=False):
        steps, zeros = zip(*((o.step, o.zeros / o.count) for o in observations), strict=True)
        axes.plot(steps, zeros, color=color, label=_name(model))
    axes.set_ylim(bottom=0)
    _describe(axes, "Share of gradients that are exactly zero", "training step", "share of values")
    _save(figure, path)


def plot_ratio(rows: Iterable[Row], path: Path) -> None:
    """Figure 9: compression ratio over training. Rows have ``model``, ``step``, ``codec`` and ``ratio``."""
    _plot_series(rows, path, "codec", "ratio", "compression ratio", "compression ratio (before / after)")


def plot_exponent_coding(rows: Iterable[Row], path: Path) -> None:
    """Figure 12: bits per exponent over training.

    Rows have ``model``, ``step``, ``strategy`` and ``bits_per_value``.
    """
    _plot_series(rows, path, "strategy", "bits_per_value", "coding of exponents", "bits per exponent")


def plot_mantissa_coding(rows: Iterable[Row], path: Path) -> None:
    """Figure 14: bits per mantissa over training. Rows as for :func:`plot_exponent_coding`."""
    _plot_series(rows, path, "strategy", "bits_per_value", "coding of mantissas", "bits per mantissa")


def _plot_series(rows: Iterable[Row], path: Path, series: str, value: str, title: str, label: str) -> None:
    """Draw a panel per model, and a line per distinct ``row[series]``; steps on a logarithmic axis."""
    rows = list(rows)
    _require([rows])
    models, names = _distinct(rows, "model"), _distinct(rows, series)
    figure, panels = _panels(1, len(models))
    for axes, model in zip(panels[0], models, strict=True):
        for index, name in enumerate(names):
            points = sorted((r["step"], r[value]) for r in rows if r["model"] == model and r[series] == name)
            style = {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}
            axes.plot(*zip(*points, strict=True) if points else ((), ()), label=name, **style)
        _step_axis(axes, sorted({r["step"] for r in rows if r["model"] == model}))
        axes.set_ylim(0, 1.08 * max(r[value] for r in rows))
        _describe(axes, f"{_name(model)}: {title}", "training step", label, percent=False, legend=False)
    _shared_legend(figure, panels[0][0], len(models))
    _save(figure, path)


def _stages(axes: Axes, observations: Sequence[Observation], curve: Callable[[Observation], Curve]) -> None:
    """Draw a curve for each of a few steps, the later the darker, on the range that holds all but 0.2 % of any."""
    picked = _spread(observations)
    edges = []
    for observation, color in zip(picked, STAGE_COLORS[-len(picked) :], strict=True):
        x, share = curve(observation)
        axes.plot(x, share, color=color, label=f"step {observation.step}")
        inside = np.flatnonzero((np.cumsum(share) > 1e-3) & (np.cumsum(share[::-1])[::-1] > 1e-3))
        edges += [x[inside[0]], x[inside[-1]]] if inside.size else []
    if edges and min(edges) < max(edges):
        axes.set_xlim(min(edges), max(edges))
    axes.set_ylim(bottom=0)


def _spread(observations: Sequence[Observation]) -> list[Observation]:
    """Return the first observation, and a few more up to the last, evenly spaced on a logarithmic scale of steps."""
    last = observations[-1].step
    targets = np.geomspace(last / SPREAD, last, STAGES - 1)
    nearest = {min(observations, key=lambda o: abs(np.log(o.step / target))).step for target in targets}
    return [o for o in observations if o.step in nearest or o is observations[0]]


def _value_curve(observation: Observation) -> Curve:
    edges = np.linspace(-observation.value_limit, observation.value_limit, VALUE_BINS + 1)
    share = np.array(observation.values) / max(1, observation.count - observation.zeros)
    return (edges[1:] + edges[:-1]) / 2, share


def _exponent_curve(observation: Observation) -> Curve:
    counts = np.array(observation.exponents)
    counts[0] -= observation.zeros
    return np.arange(counts.size) - EXPONENT_BIAS, counts / max(1, counts.sum())


def _ratio_curve(observation: Observation) -> Curve:
    counts = np.array(observation.ratios)
    return (RATIO_EDGES[1:] + RATIO_EDGES[:-1]) / 2, counts / max(1, counts.sum())


def _panels(rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure((PANEL[0] * columns, PANEL[1] * rows), DPI, layout=layout)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _describe(axes: Axes, title: str, x: str, y: str, *, percent: bool = True, legend: bool = True) -> None:
    """Draw title, labels, grid, and the panel's own legend below it, where it hides nothing."""
    axes.set_title(title, fontsize=12, fontweight="bold", loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    if legend:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=STAGES, **LEGEND)


def _shared_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Draw one legend for panels with the same series, below them all, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(len(label) for label in labels) + 4
    fitting = max(1, LEGEND_CHARACTERS * columns // longest)
    figure.legend(handles, labels, loc="outside lower center", ncols=min(fitting, len(labels)), **LEGEND)


def _name(model: str) -> str:
    return NAMES.get(model, model)


def _step_axis(axes: Axes, steps: Sequence[int]) -> None:
    """Make a logarithmic axis with a tick at each recorded step."""
    axes.set_xscale("log")
    axes.set_xticks(steps, [str(step) for step in steps])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def _distinct(rows: Iterable[Row], key: str) -> list[str]:
    return list(dict.fromkeys(str(row[key]) for row in rows))


def _require(series: Iterable[Sequence[Any]]) -> None:
    series = list(series)
    if not series or not all(len(entries) for entries in series):
        raise InvalidArgument("nothing to plot: no rows")


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def draw_command(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m gcodec.demo.figures.plots", description=SUMMARY)
    parser.add_argument("dumps", type=Path, help="the folder given to gcodec.demo.train")
    parser.add_argument("pictures", type=Path, help="where the PNG files go")
    options = parser.parse_args(arguments)
    for path in plot_observations(options.dumps, options.pictures):
        print(path)


if __name__ == "__main__":
    draw_command()
