"""The pictures of GraVAC's experiments, from their CSV files: the paper's Figures 1 to 11; each can be read in gray.

All are of the first seed. ``bench.pictures`` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from bench.experiments.gravac_methods import DENSE, UNFED
from bench.experiments.problems import PROBLEMS
from bench.experiments.traffic import LINK, SLOW, Link, Traffic
from bench.plots import DASHES, HATCHES, SHADES, Pictures, _describe, _figure, _legend, _log_axis, _save
from gcodec.benchmark.csv_tables import read_table
from gcodec.demo.figures.plots import COLORS, MARKERS

FILES = {name: f"experiment-gravac-{name}.csv" for name in ("runs", "curves", "factors", "early", "costs", "levels")}
WORKERS = (1, 2, 4, 8, 16, 32)
WITHIN = 0.02  #: of the dense quality, as a share: what counts as reached
GRAVAC = ("GraVAC 0.7, DGC", "GraVAC 0.9, DGC")
Row = dict[str, str]


def rows_of(results: Path, name: str) -> list[Row]:
    """Return a file's rows of the first seed."""
    _, rows = read_table(results / FILES[name])
    return [row for row in rows if row.get("seed", "0") == "0"]


def of(rows: Iterable[Row], problem: str, method: str | None = None) -> list[Row]:
    """Those of a problem and a method."""
    return [row for row in rows if row["problem"] == problem and method in (None, row.get("method"))]


def problems_of(rows: Iterable[Row]) -> list[str]:
    """Return the names in order of first appearance."""
    return list(dict.fromkeys(row["problem"] for row in rows))


def lines(axes: Axes, rows: Sequence[Row], methods: Sequence[str], value: str, x: str = "step") -> None:
    """Draw a line for each method that has rows."""
    for number, method in enumerate(methods):
        selected = [row for row in rows if row["method"] == method]
        if selected:
            axes.plot(
                [float(row[x]) for row in selected],
                [float(row[value]) for row in selected],
                DASHES[number % 4],
                color="black" if method == DENSE else COLORS[number],
                label=method,
                linewidth=1.4,
            )


def motives(results: Path, path: Path) -> None:
    """Figures 1 to 3: scaling, early gradients, the best factor, and what factors save."""
    runs, curves, early, costs = (rows_of(results, name) for name in ("runs", "curves", "early", "costs"))
    names = problems_of(early)
    figure, panels = _figure(2, 3)
    (scaling, sensitive, best), (throughput, traffic, last) = panels
    for number, name in enumerate(names):
        style = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 4, "label": name}
        values = int(of(runs, name, DENSE)[0]["values"])
        for link, dash in ((LINK, "-"), (SLOW, ":")):
            scaling.plot(
                WORKERS,
                [efficiency(values, PROBLEMS[name].seconds, workers, link) for workers in WORKERS],
                dash,
                **{**style, "label": name if link is LINK else None},
            )
        selected = of(early, name)
        first = sum(float(row["raw"]) for row in selected[:3]) / 3
        sensitive.plot(
            [int(row["step"]) for row in selected],
            [float(row["raw"]) / first for row in selected],
            color=COLORS[number],
            linewidth=1,
        )
        mine = of(costs, name)
        for axes, value in ((throughput, "steps_per_second_30m"), (traffic, "link_seconds_30m")):
            base = float(mine[0][value])
            shares = [float(row[value]) / base for row in mine]
            axes.plot(
                [int(row["factor"]) for row in mine],
                [1 / share if axes is traffic else share for share in shares],
                **style,
            )
    _log_axis(scaling, WORKERS)
    _describe(scaling, "Scaling of dense training (model; dotted: 30 Mb/s)", "workers", "T(N) / N T(1)")
    sensitive.set_yscale("log")
    _describe(sensitive, "Squared gradient norm, first quarter", "step", "of the first three steps'")
    for axes, what in ((throughput, "throughput"), (traffic, "communication")):
        _log_axis(axes, (10, 50, 100, 500, 1000))
        _describe(axes, f"DGC: {what} (model, 30 Mb/s)", "compression factor", "times that of 10x")
    factors_reached(best, curves, names[0])
    factors_reached(last, curves, names[1] if len(names) > 1 else names[0])
    _legend(figure, scaling, 4)
    _save(figure, path)


def efficiency(values: int, seconds: float, workers: int, link: Link) -> float:
    """Return the scaling efficiency of dense training, by the model."""
    ring = Traffic(2 * (workers - 1), 2 * (workers - 1) / workers * 4 * values)
    return seconds / (seconds + ring.seconds(link))


def factors_reached(axes: Axes, curves: Sequence[Row], name: str) -> None:
    """Figure 2: how many times sooner than at 10x the dense quality is reached, by factor; 0: never."""
    dense = of(curves, name, DENSE)
    target = float(dense[-1]["quality"]) * (1 - WITHIN if PROBLEMS[name].higher else 1 + WITHIN)
    factors, width = [item for item in ("10x", "100x", "1000x") if of(curves, name, f"DGC {item}")], 0.27
    for number, factor in enumerate(factors):
        kinds = ("Top-k", "DGC", "RedSync", "Random-k")
        sooner = []
        for kind in kinds:
            base, mine = (
                reached(of(curves, name, f"{kind} {item}"), target, PROBLEMS[name].higher) for item in ("10x", factor)
            )
            sooner.append(0.0 if mine is None else mine if base is None else base / mine)
        axes.bar(
            [at + (number - 1) * width for at in range(len(kinds))],
            sooner,
            width,
            label=factor,
            color=SHADES[3 * number],
            hatch=HATCHES[3 * number + 1],
            edgecolor="black",
            linewidth=0.6,
        )
    axes.set_xticks(range(4), kinds, fontsize=8)
    axes.legend(fontsize=7, frameon=False)
    _describe(axes, f"{name}: sooner within 2 % of dense (30 Mb/s)", "", "times 10x; 0: never")


def reached(curve: Sequence[Row], target: float, higher: bool) -> float | None:
    """Return the modeled seconds to a quality."""
    for row in curve:
        if (float(row["quality"]) >= target) == higher or float(row["quality"]) == target:
            return float(row["seconds_30m"])
    return None


def gradients(results: Path, path: Path) -> None:
    """Figures 4 to 6: norms before and after compression, quality and gain, at 10x and 1000x of DGC."""
    curves = rows_of(results, "curves")
    names = [name for name in problems_of(curves) if of(curves, name, "DGC 1000x")]
    methods = ("DGC 10x", "DGC 1000x")
    figure, panels = _figure(len(names), 4)
    for row, name in zip(panels, names, strict=True):
        for axes, method in zip(row, methods, strict=False):
            selected = of(curves, name, method)
            for value, dash, label in (("fed", "-", "before"), ("sent", "--", "after"), ("raw", ":", "gradient")):
                axes.plot(
                    [int(item["step"]) for item in selected],
                    [float(item[value]) for item in selected],
                    dash,
                    color="black",
                    label=label,
                )
            axes.set_yscale("log")
            axes.legend(fontsize=7, frameon=False)
            _describe(axes, f"{name}, {method}", "step", "squared norm")
        lines(row[2], of(curves, name), (DENSE, *methods), "quality")
        _describe(row[2], f"{name}: quality", "step", PROBLEMS[name].unit)
        for number, method in enumerate(methods):
            selected = of(curves, name, method)
            row[3].plot(
                [int(item["step"]) for item in selected],
                [float(item["sent"]) / float(item["fed"]) for item in selected],
                DASHES[number + 1],
                color=COLORS[number + 1],
                label=method,
            )
        row[3].set_ylim(0, 1)
        _describe(row[3], f"{name}: compression gain", "step", "kept of squared norm")
    _legend(figure, panels[0][2], 3)
    _save(figure, path)


def training(results: Path, path: Path) -> None:
    """Figures 7 to 9: GraVAC by epsilon beside dense."""
    curves, factors = rows_of(results, "curves"), rows_of(results, "factors")
    names = [name for name in problems_of(curves) if of(curves, name, GRAVAC[0])]
    figure, panels = _figure(len(names), 3)
    for row, name in zip(panels, names, strict=True):
        by_factor(row, curves, factors, name, (DENSE, *GRAVAC))
    _legend(figure, panels[0][0], 3)
    _save(figure, path)


def by_factor(
    row: Sequence[Axes], curves: Sequence[Row], factors: Sequence[Row], name: str, methods: Sequence[str]
) -> None:
    """Plot quality over steps; steps sent by factor; compression throughput by factor."""
    lines(row[0], of(curves, name), methods, "quality")
    _describe(row[0], f"{name}: quality", "step", PROBLEMS[name].unit)
    known = sorted({float(item["factor"]) for method in methods for item in of(factors, name, method)})
    controlled = [method for method in methods if of(factors, name, method)]
    for number, method in enumerate(controlled):
        width = 0.8 / len(controlled)
        places = {factor: at + (number - (len(controlled) - 1) / 2) * width for at, factor in enumerate(known)}
        selected = of(factors, name, method)
        total = sum(int(item["steps"]) for item in selected)
        shares = {item["factor"]: 100 * int(item["steps"]) / total for item in selected}
        speeds = {item["factor"]: float(item["samples_per_second_times_gain"] or 0) for item in selected}
        bars(row[1], places, selected, shares, number, width)
        bars(row[2], places, selected, speeds, number, width)
    for axes, title, y in (
        (row[1], "steps by factor", "% of steps"),
        (row[2], "throughput (model, 30 Mb/s)", "samples / s × gain"),
    ):
        axes.set_xticks(range(len(known)), [f"{factor:g}x" for factor in known], fontsize=7)
        _describe(axes, f"{name}: {title}", "compression factor", y)


def bars(
    axes: Axes,
    places: Mapping[float, float],
    rows: Sequence[Row],
    heights: Mapping[str, float],
    number: int,
    width: float,
) -> None:
    """One method's, at each factor's place."""
    axes.bar(
        [places[float(row["factor"])] for row in rows],
        [heights[row["factor"]] for row in rows],
        width,
        color=COLORS[number + 1],
        hatch=HATCHES[number + 1],
        edgecolor="black",
        linewidth=0.6,
    )


def geometric(results: Path, path: Path) -> None:
    """Figure 10: RedSync with the geometric policy."""
    curves, factors = rows_of(results, "curves"), rows_of(results, "factors")
    method = "GraVAC 0.7, RedSync, geometric"
    names = [name for name in problems_of(curves) if of(curves, name, method)]
    figure, panels = _figure(len(names), 3)
    for row, name in zip(panels, names, strict=True):
        by_factor(row, curves, factors, name, (DENSE, method))
    _legend(figure, panels[0][0], 2)
    _save(figure, path)


def random_k(results: Path, path: Path) -> None:
    """Figure 11: Random-k with GraVAC, with Accordion, and at 10x."""
    curves, factors = rows_of(results, "curves"), rows_of(results, "factors")
    first, second = (f"GraVAC 0.7, Random-k, {item}" for item in ("raw, plain", "fed, squared"))
    methods = (DENSE, first, second, "Accordion, Random-k 1.5x/1000x", "Random-k 10x", UNFED)
    names = [name for name in problems_of(curves) if of(curves, name, first)]
    figure, panels = _figure(len(names), 3)
    for row, name in zip(panels, names, strict=True):
        by_factor(row, curves, factors, name, (DENSE, first))
        row[0].clear()
        lines(row[0], of(curves, name), methods, "quality")
        _describe(row[0], f"{name}: quality", "step", PROBLEMS[name].unit)
    _legend(figure, panels[0][0], 3)
    _save(figure, path)


PICTURES: Pictures = {
    "experiment-gravac-motives": (motives, tuple(FILES[name] for name in ("runs", "curves", "early", "costs"))),
    "experiment-gravac-gradients": (gradients, (FILES["curves"],)),
    "experiment-gravac-training": (training, (FILES["curves"], FILES["factors"])),
    "experiment-gravac-geometric": (geometric, (FILES["curves"], FILES["factors"])),
    "experiment-gravac-random-k": (random_k, (FILES["curves"], FILES["factors"])),
}
