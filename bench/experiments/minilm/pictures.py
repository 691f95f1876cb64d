"""The GComp paper's Figures 2, 3, 9, 14 and 15, of MiniLM's fine-tuning.

    python -m bench.experiments.minilm.pictures [--out DIR]

draws the first two from the dumps of ``bench.experiments.minilm``; ``bench.pictures`` draws the others from tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.__main__ import CACHE
from bench.cluster import minilm_steps
from bench.cluster.training import FP32
from bench.experiments.gcomp_pictures import IMAGES, draw_observations, rows_of
from bench.experiments.minilm.tables import FILES
from bench.plots import HATCHES, SHADES, Pictures, _describe, _figure, _legend, _save
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.settings import LITERAL, LOSSLESS, NEAR_LOSSLESS
from gcodec.demo.figures.plots import plot_mantissa_coding, plot_ratio

START = "experiment-minilm-"
DRAWN = (LOSSLESS, LITERAL, NEAR_LOSSLESS, "7 mantissa bits")


def draw(folder: Path, images: Path) -> list[Path]:
    """Draw the pictures of a folder of dumps, and return them."""
    return draw_observations(folder, images, START)


def ratio(results: Path, path: Path) -> None:
    """Draw the ratio of compression over training, of all gradients and of those without embeddings."""
    _, rows = read_table(results / FILES["sizes"])
    plot_ratio(
        [
            {
                "model": row["gradients"],
                "step": int(row["step"]),
                "codec": row["method"],
                "ratio": 100 / float(row["percent"]),
            }
            for row in rows
            if row["method"] in DRAWN
        ],
        path,
    )


def mantissas(results: Path, path: Path) -> None:
    """Draw bits per mantissa over training."""
    plot_mantissa_coding(rows_of(results / FILES["mantissas"]), path)


def steps(results: Path, path: Path) -> None:
    """Draw the time of a step by link and method, beside fp32's; the lines are quartiles."""
    _, rows = read_table(results / minilm_steps.FILE)
    figure, panels = _figure(1, 1, wide=2.2)
    axes, rates = panels[0][0], list(dict.fromkeys(row["rate"] for row in rows))
    width = 0.9 / len(minilm_steps.METHODS)
    for number, method in enumerate(minilm_steps.METHODS):
        own = {row["rate"]: row for row in rows if row["method"] == method}
        low, middle, high = (
            [float(own[rate][key]) for rate in rates] for key in ("step_seconds_q1", "step_seconds", "step_seconds_q3")
        )
        dense = [float(row["step_seconds"]) for row in rows if row["method"] == FP32]
        axes.bar(
            [at + (number - len(minilm_steps.METHODS) / 2 + 0.5) * width for at in range(len(rates))],
            [value / of for value, of in zip(middle, dense, strict=True)],
            width,
            yerr=[
                [max(value - limit, 0.0) / of for value, limit, of in zip(middle, low, dense, strict=True)],
                [max(limit - value, 0.0) / of for value, limit, of in zip(middle, high, dense, strict=True)],
            ],
            label=method,
            color=SHADES[number],
            hatch=HATCHES[number],
            edgecolor="black",
            linewidth=0.6,
            error_kw={"linewidth": 0.8},
        )
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rates)), rates)
    _describe(axes, f"MiniLM, {rows[0]['workers']} workers", "link", "step / fp32's")
    _legend(figure, axes, 5)
    _save(figure, path)


PICTURES: Pictures = {
    f"{START}ratio": (ratio, (FILES["sizes"],)),
    f"{START}mantissas": (mantissas, (FILES["mantissas"],)),
    f"{START}steps": (steps, (minilm_steps.FILE,)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiments.minilm.pictures", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=IMAGES, help="where the pictures go (default: docs/images)")
    options = parser.parse_args(arguments)
    print(*draw(CACHE / "minilm", options.out), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
