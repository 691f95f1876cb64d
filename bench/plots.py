"""The pictures of README.md and docs/benchmarks.md, from the CSV files of ``bench/results``; each can be read in gray.

``bench.pictures`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Bbox

from bench import sections
from bench.front_page import totals
from bench.sections import BATCH, STEP, Contest, contests, stages_in_order
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import OURS
from gcodec.demo.figures.plots import COLORS, LEGEND, MARKERS

DPI = 90
PANEL = (4.6, 3.6)
FRONT = {"Weights, bfloat16": "parameters bf16", "Gradients, float32": "gradients fp32"}  #: the README's picture
OUR_COLOR = "#c8102e"
DASHES = ("-", "--", ":", "-.")
HATCHES = ("", "///", "...", "", "xxx", "", "\\\\\\", "++", "oo", "")
SHADES = ("#ffffff", "#ffffff", "#e3e9f2", "#c3d3e6", "#b0c4de", "#7d9fc7", "#7d9fc7", "#d8d8d8", "#9a9a9a", "#1b2a49")


def front(results: Path, path: Path) -> None:
    """Ratio against the speed of compressing, one core each, every codec with its name: the README's picture."""
    _, rows = read_table(results / "codec.csv")
    figure, panels = _figure(1, 2, wide=0.97)
    for axes, (title, data) in zip(panels[0], FRONT.items(), strict=True):
        points = {
            codec: (speed, ratio)
            for codec, (ratio, speed, _) in totals(rows, data).items()
            if codec == OURS or not codec.startswith(OURS)
        }
        for codec, point in points.items():
            ours = codec == OURS
            axes.plot(
                *point,
                **(
                    {"marker": "*", "color": OUR_COLOR, "markersize": 17}
                    if ours
                    else {"marker": "o", "color": "#7a7f87", "markersize": 5}
                ),
            )
        _log_axis(axes, (0.01, 0.03, 0.1, 0.3, 1, 3, 10))
        lowest = min(speed for speed, _ in points.values())
        axes.set_xlim(lowest / 2.2, 14)
        axes.set_ylim(0.95, 1.12 * max(ratio for _, ratio in points.values()))
        _describe(axes, title, "speed of compressing on one core, GB/s", "original size / compressed size")
        _name_points(axes, points)
    _save(figure, path, 2 * DPI)  # it is shown at half its size, also where a screen has more pixels


def _name_points(axes: Axes, points: dict[str, tuple[float, float]]) -> None:
    """Write each codec's name beside its point, where it hides no other name and no point."""
    cast(Figure, axes.figure).draw_without_rendering()  # the layout, which places in pixels need
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in axes.transData.transform(list(points.values()))]
    inside = axes.get_window_extent()
    for codec, point in sorted(points.items(), key=lambda item: item[0] != OURS):
        ours = codec == OURS
        style = {"fontsize": 11, "fontweight": "bold", "color": OUR_COLOR} if ours else {"fontsize": 8}
        near = 10 if ours else 5
        for y, (x, align) in product((0, 7, -7, 12, -12, 18, -18), ((near, "left"), (-near, "right"), (0, "center"))):
            if (not y and not x) or (ours and x > 0):
                continue
            label = axes.annotate(codec, point, (x, y), textcoords="offset points", ha=align, va="center", **style)
            box = label.get_window_extent()
            if inside.contains(*box.min) and inside.contains(*box.max) and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            label.remove()


def pareto(results: Path, path: Path) -> None:
    """Size against speed of encoding and of decoding: float32 gradients of all models together, lossless."""
    _, rows = read_table(results / "codec.csv")
    figure, panels = _figure(1, 2)
    for axes, place, direction in zip(panels[0], (1, 2), ("encode", "decode"), strict=True):
        for number, (codec, total) in enumerate(totals(rows, "gradients fp32").items()):
            ours = codec.startswith(OURS)
            axes.plot(
                total[place],
                100 / total[0],
                MARKERS[number % len(MARKERS)],
                color="black" if ours else COLORS[number % 6],
                markersize=9 if ours else 6,
                fillstyle="full" if ours else "none",
                linestyle="none",
                label=codec,
            )
        _log_axis(axes, (0.05, 0.1, 0.2, 0.5, 1, 2, 5))
        _describe(axes, f"{direction.capitalize()} (right and down: better)", f"{direction}, GB/s", "% of the original")
    _legend(figure, panels[0][0], 5)
    _save(figure, path)


def training(results: Path, path: Path) -> None:
    """Lossless gradients over training, beside the best of all levels of the peers, by model."""
    outcomes = [contest for contest in contests(results) if contest.group == "gradients"]
    models = list(dict.fromkeys(contest.model for contest in outcomes))
    figure, panels = _figure(1, len(models))
    for axes, model in zip(panels[0], models, strict=True):
        for number, dtype in enumerate(dict.fromkeys(contest.dtype for contest in outcomes)):
            selected = [contest for contest in outcomes if (contest.model, contest.dtype) == (model, dtype)]
            for label, size in ((f"gcodec {dtype}", _ours), (f"best peer {dtype}", _best)):
                mine = size is _ours
                axes.plot(
                    [contest.step for contest in selected],
                    [size(contest) for contest in selected],
                    DASHES[not mine],
                    marker=MARKERS[number],
                    color=COLORS[number],
                    label=label,
                    fillstyle="full" if mine else "none",
                )
        _log_axis(axes, [contest.step for contest in selected])
        _describe(axes, f"{model}: lossless gradients", "training step", "% of the original")
    _legend(figure, panels[0][0], 6)
    _save(figure, path)


def _ours(contest: Contest) -> float:
    return 100 * contest.ours / contest.original


def _best(contest: Contest) -> float:
    return 100 * contest.best / contest.original


def stages(results: Path, path: Path) -> None:
    """Where the time goes: a bar for each direction and kind of data, the floor marked."""
    _, rows = read_table(results / "stages.csv")
    names = stages_in_order(rows)
    directions = list(dict.fromkeys(row["direction"] for row in rows))
    figure, panels = _figure(1, len(directions), wide=1.4)
    for axes, direction in zip(panels[0], directions, strict=True):
        selected = [row for row in rows if row["direction"] == direction]
        bars = list(dict.fromkeys(f"{row['data']}\n{row['mode']}" for row in selected))
        times = {
            (f"{row['data']}\n{row['mode']}", row["stage"]): max(0.0, float(row["ns_per_value"])) for row in selected
        }
        left = [0.0] * len(bars)
        for number, name in enumerate(names):
            widths = [times.get((bar, name), 0.0) for bar in bars]
            axes.barh(
                bars,
                widths,
                left=left,
                label=name,
                color=SHADES[number % len(SHADES)],
                edgecolor="black",
                linewidth=0.6,
                hatch=HATCHES[number % len(HATCHES)],
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        floors = [times[bar, "floor"] for bar in bars]
        axes.plot(floors, bars, "|", color="red", markersize=16, markeredgewidth=2.5, label="floor: a copy")
        axes.invert_yaxis()
        _describe(axes, direction.capitalize(), "ns per value", "")
        axes.tick_params(axis="y", labelsize=7)
    # Some modes have no rounding, and the directions have stages of the same name: all bars have all stages.
    _legend(figure, panels[0][0], 6)
    _save(figure, path)


def scaling(results: Path, path: Path) -> None:
    """Rates against size."""
    _, rows = read_table(results / "scaling.csv")
    figure, panels = _figure(1, 2)
    kinds = dict.fromkeys((row["codec"], row["threads"], row["memory"]) for row in rows if row["codec"] == OURS)
    for axes, direction in zip(panels[0], ("encode", "decode"), strict=True):
        for number, (codec, threads, memory) in enumerate(kinds):
            points = [
                (int(row["bytes"]), float(row[f"{direction}_GBps"]))
                for row in rows
                if (row["codec"], row["threads"], row["memory"]) == (codec, threads, memory)
            ]
            axes.plot(
                *zip(*points, strict=True),
                DASHES[number % 4],
                marker=MARKERS[number],
                color=COLORS[number],
                label=f"{threads} thread{'s' * (threads != '1')}, {memory} memory",
            )
        axes.set_xscale("log", base=2)
        sizes = sorted({int(row["bytes"]) for row in rows})[::2]
        axes.set_xticks(
            sizes, [f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB" for size in sizes], fontsize=7
        )
        axes.set_ylim(bottom=0)
        _describe(axes, f"{direction.capitalize()}, float32 gradients", "size of the array", "GB/s")
    _legend(figure, panels[0][0], 4)
    _save(figure, path)


def prediction(results: Path, path: Path) -> None:
    """Plot vocabulary layers over training, and by batch size."""
    _, rows = read_table(results / "prediction.csv")
    places = list(dict.fromkeys((row["model"], row["layer"]) for row in rows))
    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    figure, panels = _figure(2, len(places))
    for varied, fixed, value, line in (("step", "batch", BATCH, panels[0]), ("batch", "step", STEP, panels[1])):
        for axes, (model, layer) in zip(line, places, strict=True):
            for number, codec in enumerate(codecs):
                points = [
                    (int(row[varied]), 100 * int(row["compressed_bytes"]) / int(row["original_bytes"]))
                    for row in rows
                    if (row["model"], row["layer"], row["codec"]) == (model, layer, codec) and row[fixed] == value
                ]
                ours = codec.startswith(OURS)
                axes.plot(
                    *(zip(*points, strict=True) if points else ((), ())),
                    DASHES[number % 4],
                    marker=MARKERS[number],
                    color="black" if ours else COLORS[number],
                    label=codec,
                    fillstyle="full" if ours else "none",
                )
            _log_axis(axes, sorted({int(row[varied]) for row in rows}))
            axes.set_ylim(bottom=0)
            what = "training step" if varied == "step" else "sequences in the batch"
            _describe(axes, f"{model} {layer}, {fixed} {value}", what, "% of the original")
    _legend(figure, panels[0][0], len(codecs))
    _save(figure, path)


def weight_sync(results: Path, path: Path) -> None:
    """What changes at each learning rate, what it takes as a difference, and a model of a version's time over links."""
    _, rows = read_table(results / "weight-sync.csv")
    *trained, large = rows
    figure, panels = _figure(1, 3)
    changes, sizes, links = panels[0]
    for number, dtype in enumerate(dict.fromkeys(row["type"] for row in trained)):
        mine = [row for row in trained if row["type"] == dtype]
        rates = [float(row["learning_rate"]) for row in mine]
        for axes, column in ((changes, "changed_percent"), (sizes, "percent")):
            axes.plot(
                rates,
                [float(row[column]) for row in mine],
                DASHES[number],
                marker=MARKERS[number],
                color=COLORS[number],
                label=dtype,
            )
            _log_axis(axes, rates)
    _describe(changes, "Weights that a step changes", "learning rate", "% of the weights")
    _describe(sizes, "The difference (down: better)", "learning rate", "% of the weights' bytes")
    speeds = [0.1, 0.3, 1, 3, 10, 30, 100]
    for number, (label, whole) in enumerate((("whole", True), ("difference", False))):
        seconds = [sections.seconds_over_link(large, speed, whole=whole) for speed in speeds]
        links.plot(speeds, seconds, DASHES[number], marker=MARKERS[number], color=COLORS[number], label=label)
    for axes in panels[0]:
        axes.set_yscale("log")
        axes.set_yticks((0.01, 0.1, 1, 10, 100), ("0.01", "0.1", "1", "10", "100"), fontsize=8)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(0.005, 200)
    _log_axis(links, (0.1, 1, 10, 100))
    _describe(links, f"{int(large['raw_bytes']) / 1e9:.1f} GB of bfloat16, a model", "link, Gb/s", "seconds")
    for axes in (sizes, links):
        axes.legend(**LEGEND)
    _save(figure, path)


def _figure(rows: int, columns: int, wide: float = 1.0) -> tuple[Figure, Any]:
    size = PANEL[0] * columns * wide, PANEL[1] * rows + 0.4
    figure = Figure(size, DPI, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _describe(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, fontweight="bold", loc="left")
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _log_axis(axes: Axes, ticks: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    axes.xaxis.set_minor_locator(NullLocator())


def _legend(figure: Figure, axes: Axes, columns: int) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, **LEGEND)


def _save(figure: Figure, path: Path, dpi: int = DPI) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, format="png", metadata={"Software": None})


#: Picture to what draws it, and the files in bench/results that this reads.
Pictures = dict[str, tuple[Callable[[Path, Path], None], tuple[str, ...]]]
PICTURES: Pictures = {
    "front": (front, ("codec.csv",)),
    "pareto": (pareto, ("codec.csv",)),
    "training": (training, ("levels.csv",)),
    "stages": (stages, ("stages.csv",)),
    "scaling": (scaling, ("scaling.csv",)),
    "prediction": (prediction, ("prediction.csv",)),
    "weight-sync": (weight_sync, ("weight-sync.csv",)),
}
