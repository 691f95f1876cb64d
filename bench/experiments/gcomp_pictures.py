"""The GComp paper's Figures 2, 3, 12 and 14, of the CNN that ``bench.experiments.gcomp`` has trained.

    python -m bench.experiments.gcomp_pictures [--results DIR] [--out DIR]

reads its dumps, and writes ``docs/images/experiment-gcomp-*.png`` and the rows behind the last two pictures,
``experiment-gcomp-exponents.csv`` and ``experiment-gcomp-mantissas.csv``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import move
from tempfile import TemporaryDirectory

from bench.codec import RESULTS
from bench.data import ROOT
from bench.experiments.gcomp import MODEL, PLAN, dumps_folder
from gcodec.benchmark.csv_tables import write_table
from gcodec.benchmark.inputs import gradients
from gcodec.demo.figures.plots import plot_exponent_coding, plot_mantissa_coding, plot_observations
from gcodec.demo.figures.strategies import exponent_rows, mantissa_rows
from gcodec.recorder import read_dump

IMAGES = ROOT / "docs" / "images"
START = "experiment-gcomp-"


def draw(folder: Path, results: Path, images: Path) -> list[Path]:
    """Draw all pictures from a folder of dumps, and return them."""
    with TemporaryDirectory() as scratch:
        pictures = [
            Path(move(drawn, images / f"{START}{name}.png"))
            for drawn, name in zip(plot_observations(folder, Path(scratch)), ("gradients", "orders"), strict=True)
        ]
    data = [gradients(read_dump(path), MODEL) for path in sorted((folder / MODEL).glob("*.safetensors"))]
    for name, plot, rows in (
        ("exponents", plot_exponent_coding, exponent_rows(data)),
        ("mantissas", plot_mantissa_coding, mantissa_rows(data)),
    ):
        write_table(results / f"{START}{name}.csv", list(rows[0]), [list(row.values()) for row in rows])
        pictures.append(images / f"{START}{name}.png")
        plot(rows, pictures[-1])
    return pictures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiments.gcomp_pictures", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the CSV files go (default: bench/results)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="where the pictures go (default: docs/images)")
    options = parser.parse_args(arguments)
    print(*draw(dumps_folder(PLAN), options.results, options.out), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
