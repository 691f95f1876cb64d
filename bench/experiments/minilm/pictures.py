"""The GComp paper's Figures 2, 3, 9 and 14, of MiniLM's fine-tuning.

    python -m bench.experiments.minilm.pictures [--out DIR]

draws the first two from the dumps of ``bench.experiments.minilm``; ``bench.pictures`` draws the others from tables.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.__main__ import CACHE
from bench.experiments.gcomp_pictures import IMAGES, draw_observations, rows_of
from bench.experiments.minilm.tables import FILES
from bench.plots import Pictures
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


PICTURES: Pictures = {
    f"{START}ratio": (ratio, (FILES["sizes"],)),
    f"{START}mantissas": (mantissas, (FILES["mantissas"],)),
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
