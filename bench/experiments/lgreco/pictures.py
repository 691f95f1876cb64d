"""The pictures of L-GreCo's experiments, from the CSV files; each can be read in gray.

``bench.pictures`` draws them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from matplotlib.axes import Axes

from bench.cluster.pictures import unique
from bench.experiments.lgreco import tables
from bench.experiments.lgreco.methods import DENSE, LGRECO, QUANTIZED, RANKS, REFERENCES, SPARSE, UNIFORM
from bench.experiments.lgreco.sections import in_common
from bench.plots import DASHES, HATCHES, SHADES, Pictures, _describe, _figure, _legend, _log_axis, _save
from gcodec.benchmark.csv_tables import read_table
from gcodec.demo.figures.plots import COLORS, MARKERS

TEXT, IMAGES = "transformer", "vgg"
RIVALS = (UNIFORM, LGRECO, "Accordion", "k-means", "L-GreCo + Accordion", "L-GreCo, priorities")
LINKS = ("0.1", "1.0")  #: Gb/s
TICKS = {SPARSE: (2, 5, 10, 20, 50, 100), QUANTIZED: (4, 6, 8, 10, 12, 16)}  #: of ratios
Row = dict[str, str]


def rows_of(results: Path, file: str, **wanted: str) -> list[Row]:
    """Rows of a file whose columns are as wanted."""
    _, rows = read_table(results / file)
    return [row for row in rows if all(row[key] == value for key, value in wanted.items())]


def profile(results: Path, path: Path) -> None:
    """The rank of every layer at the end, over its size (Figure 1)."""
    problems = unique(row["problem"] for row in rows_of(results, tables.TENSORS, part="pairs", family=RANKS))
    figure, panels = _figure(1, len(problems), wide=1.3)
    for axes, problem in zip(panels[0], problems, strict=True):
        rows = rows_of(results, tables.TENSORS, problem=problem, family=RANKS, method=LGRECO, part="pairs")
        rows = [row for row in rows if row["last_setting"]][::-1]
        places = range(len(rows))
        sizes = axes.twinx()
        sizes.bar(places, [int(row["values"]) / 1000 for row in rows], color="#d8d8d8", edgecolor="gray", zorder=0)
        sizes.set_ylabel("thousand values (bars)", fontsize=9)
        axes.set_zorder(sizes.get_zorder() + 1)
        axes.patch.set_visible(False)
        axes.plot(places, [float(row["last_setting"]) for row in rows], marker="o", color=COLORS[0], label=LGRECO)
        axes.axhline(REFERENCES[problem][RANKS].value, color="red", linestyle="--", label=UNIFORM)
        axes.set_xticks(
            places, [row["tensor"].removesuffix(".weight") for row in rows], rotation=60, ha="right", fontsize=6
        )
        axes.set_ylim(bottom=0)
        _describe(axes, f"{problem}: ranks in the end", "layer, in the order of transmission", "rank")
    _legend(figure, panels[0][0], 2)
    _save(figure, path)


def tradeoff(results: Path, path: Path) -> None:
    """Plot quality less that of dense, against ratio, for densities and bits (Figure 2): every seed's, and their
    means."""
    rows = rows_of(results, tables.TRAININGS, problem=TEXT)
    swept = {family: swept_rows([row for row in rows if row["family"] == family]) for family in (SPARSE, QUANTIZED)}
    swept = {family: selected for family, selected in swept.items() if selected}
    dense = {row["seed"]: float(row["quality"]) for row in rows if row["method"] == DENSE}
    figure, panels = _figure(1, max(len(swept), 1), wide=1.3)
    for axes, (family, selected) in zip(panels[0], swept.items(), strict=False):
        for number, kind in enumerate((UNIFORM, LGRECO)):
            curve(axes, [row for row in selected if row["method"].split(", ")[0] == kind], dense, number, kind)
        axes.axhline(0, color="black", linewidth=0.8, linestyle=":", label=DENSE)
        _log_axis(axes, TICKS[family])
        _describe(
            axes,
            f"Transformer, {family} (right and down: better)",
            "bytes before / after",
            "nats per token, less dense",
        )
    _legend(figure, panels[0][0], 5)
    _save(figure, path)


def curve(axes: Axes, rows: Sequence[Row], dense: Mapping[str, float], number: int, label: str) -> None:
    """Draw a line through the means of each method, and what they are means of."""
    points: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        point = float(row["byte_ratio"]), float(row["quality"]) - dense[row["seed"]]
        points.setdefault(row["method"], []).append(point)
    means = sorted((mean(x for x, _ in own), mean(y for _, y in own)) for own in points.values())
    axes.plot(*zip(*means, strict=True), DASHES[number], marker=MARKERS[number], color=COLORS[number], label=label)
    every = [point for own in points.values() for point in own]
    axes.plot(
        *zip(*every, strict=True),
        MARKERS[number],
        color=COLORS[number],
        markersize=4,
        fillstyle="none",
        label=f"{label}, one seed",
    )


def swept_rows(rows: Sequence[Row]) -> list[Row]:
    """Those of the trade-off curves, of the seeds that all their points have; none if there is no curve."""
    selected = [row for row in rows if row["part"] in ("pairs", "sweep", "bit sweep")]
    if all(row["part"] == "pairs" for row in selected):
        return []
    return in_common(selected)


def throughput(results: Path, path: Path) -> None:
    """Plot modeled throughput by workers and link, as a share of ideal scaling (Figures 3 to 6)."""
    rows = [
        row
        for row in rows_of(results, tables.THROUGHPUT)
        if row["gbps"] in LINKS and row["method"] in (DENSE, UNIFORM, LGRECO)
    ]
    problems = unique(row["problem"] for row in rows)
    figure, panels = _figure(len(problems), len(LINKS))
    for line, problem in zip(panels, problems, strict=True):
        for axes, gbps in zip(line, LINKS, strict=True):
            selected = [row for row in rows if (row["problem"], row["gbps"]) == (problem, gbps)]
            for number, (family, method) in enumerate(unique((row["family"], row["method"]) for row in selected)):
                points = [
                    (int(row["workers"]), float(row["of_ideal"]))
                    for row in selected
                    if (row["family"], row["method"]) == (family, method)
                ]
                axes.plot(
                    *zip(*points, strict=True),
                    DASHES[2 * (method == UNIFORM)],
                    marker=MARKERS[number],
                    color=COLORS[(number + 1) // 2],
                    label=f"{family} {method}".strip(),
                    fillstyle="none" if method == UNIFORM else "full",
                )
            _log_axis(axes, sorted({int(row["workers"]) for row in selected}))
            axes.set_ylim(0, 1.05)
            _describe(axes, f"{problem}, {float(gbps):g} Gb/s (a model)", "workers", "share of ideal throughput")
    _legend(figure, panels[0][0], 4)
    _save(figure, path)


def rivals(results: Path, path: Path) -> None:
    """Plot ratio over training, and floats by bucket, of what adapts ranks (Figures 7 and 8)."""
    periods = rows_of(results, tables.PERIODS, problem=TEXT, family=RANKS, seed="0")
    tensors = rows_of(results, tables.TENSORS, problem=TEXT, family=RANKS)
    figure, panels = _figure(1, 2, wide=1.4)
    left, right = panels[0]
    names = [name for name in RIVALS if any(row["method"] == name for row in periods)]
    buckets = sorted({row["bucket"] for row in tensors})
    for number, name in enumerate(names):
        ratios(left, [row for row in periods if row["method"] == name], number, name)
        own = [row for row in tensors if row["method"] == name]
        sent = [sum(float(row["floats_per_step"]) for row in own if row["bucket"] == bucket) for bucket in buckets]
        places = [at + (number - len(names) / 2 + 0.5) * 0.9 / len(names) for at in range(len(buckets))]
        right.bar(
            places,
            sent,
            0.9 / len(names),
            color=SHADES[number],
            hatch=HATCHES[number],
            edgecolor="black",
            linewidth=0.6,
            label=name,
        )
    right.set_xticks(range(len(buckets)), buckets)
    _describe(left, "Transformer, PowerSGD", "step", "bytes before / after")
    _describe(right, "Floats per step", "bucket, in the order of transmission", "floats")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=8, frameon=False)
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=2, fontsize=8, frameon=False)
    _save(figure, path)


def ratios(axes: Axes, rows: Iterable[Row], number: int, label: str) -> None:
    """Draw a line: the mean ratio of each period, over steps."""
    results: dict[int, list[float]] = {}
    for row in rows:
        results.setdefault(int(row["step"]), []).append(float(row["byte_ratio"]))
    axes.plot(
        list(results),
        [mean(values) for values in results.values()],
        DASHES[number % 4],
        marker=MARKERS[number],
        color=COLORS[number % len(COLORS)],
        label=label,
    )


def training(results: Path, path: Path) -> None:
    """Plot ratio over training of every family, over the uniform setting's (Figure 9)."""
    rows = rows_of(results, tables.PERIODS, part="pairs")
    problems = unique(row["problem"] for row in rows)
    figure, panels = _figure(1, len(problems))
    for axes, problem in zip(panels[0], problems, strict=True):
        selected = [row for row in rows if row["problem"] == problem]
        for number, family in enumerate(unique(row["family"] for row in selected if row["family"])):
            both = [
                {
                    (row["seed"], row["step"]): float(row["byte_ratio"])
                    for row in selected
                    if (row["family"], row["method"]) == (family, method)
                }
                for method in (LGRECO, UNIFORM)
            ]
            over = [
                {"step": step, "byte_ratio": str(ratio / both[1][seed, step])}
                for (seed, step), ratio in both[0].items()
            ]
            ratios(axes, over, number, family)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_ylim(bottom=0.9)
        _describe(axes, f"{problem}: L-GreCo over uniform", "step", "times the uniform ratio")
    _legend(figure, panels[0][0], 3)
    _save(figure, path)


def low_rank(results: Path, path: Path) -> None:
    """Plot how far errors by power iteration are from those by singular values (appendix C)."""
    rows = rows_of(results, tables.LOW_RANK)
    figure, panels = _figure(1, 1, wide=1.3)
    axes = panels[0][0]
    for number, problem in enumerate(unique(row["problem"] for row in rows)):
        selected = [row for row in rows if row["problem"] == problem]
        steps = [int(row["power_steps"]) for row in selected]
        for dash, what in zip(DASHES, ("worst", "mean"), strict=False):
            axes.plot(
                steps,
                [max(float(row[f"{what}_excess_percent"] or 0), 1e-5) for row in selected],
                dash,
                marker=MARKERS[number],
                color=COLORS[number],
                label=f"{problem}, {what}",
            )
    axes.set_yscale("log")
    _log_axis(axes, steps)
    _describe(axes, "Error of power iteration over the least", "steps of power iteration", "%")
    _legend(figure, axes, 2)
    _save(figure, path)


PICTURES: Pictures = {
    "lgreco-profile": (profile, (tables.TENSORS,)),
    "lgreco-tradeoff": (tradeoff, (tables.TRAININGS,)),
    "lgreco-throughput": (throughput, (tables.THROUGHPUT,)),
    "lgreco-rivals": (rivals, (tables.PERIODS, tables.TENSORS)),
    "lgreco-training": (training, (tables.PERIODS,)),
    "lgreco-lowrank": (low_rank, (tables.LOW_RANK,)),
}
