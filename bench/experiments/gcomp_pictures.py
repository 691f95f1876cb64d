"""The GComp paper's Figures 2, 3, 12 and 14, of the CNN that ``bench.experiments.gcomp`` has trained.

    python -m bench.experiments.gcomp_pictures [--results DIR] [--out DIR]

reads its dumps, draws the first two pictures, and writes the rows of the last two, ``experiment-gcomp-exponents.csv``
and ``experiment-gcomp-mantissas.csv``, from which ``bench.pictures`` draws them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import move
from tempfile import TemporaryDirectory
from typing import Any

from bench.codec import RESULTS
from bench.data import ROOT
from bench.experiments.gcomp import MODEL, PLAN, dumps_folder
from bench.plots import Pictures
from gcodec.benchmark.csv_tables import read_table, write_table
from gcodec.benchmark.inputs import gradients
from gcodec.demo.figures.plots import plot_exponent_coding, plot_mantissa_coding, plot_observations
from gcodec.demo.figures.strategies import exponent_rows, mantissa_rows
from gcodec.recorder import read_dump

IMAGES = ROOT / "docs" / "images"
START = "experiment-gcomp-"
EXPONENTS, MANTISSAS = f"{START}exponents.csv", f"{START}mantissas.csv"
FROM_DUMPS = ("gradients", "orders")  #: pictures that no table is behind


def draw_observations(folder: Path, images: Path, start: str) -> list[Path]:
    """Draw what a training under a folder was observed to have, and return the pictures, whose names begin so."""
    with TemporaryDirectory() as scratch:
        return [
            Path(move(drawn, images / f"{start}{name}.png"))
            for drawn, name in zip(plot_observations(folder, Path(scratch)), FROM_DUMPS, strict=True)
        ]


def draw(folder: Path, results: Path, images: Path) -> list[Path]:
    """Draw the pictures of a folder of dumps, write the tables of the others, and return all files."""
    files = draw_observations(folder, images, START)
    data = [gradients(read_dump(path), MODEL) for path in sorted((folder / MODEL).glob("*.safetensors"))]
    for name, rows in ((EXPONENTS, exponent_rows(data)), (MANTISSAS, mantissa_rows(data))):
        write_table(results / name, list(rows[0]), [list(row.values()) for row in rows])
        files.append(results / name)
    return files


def rows_of(table: Path) -> list[dict[str, Any]]:
    """Return the rows of a table with their numbers as such."""
    _, rows = read_table(table)
    return [{**row, "step": int(row["step"]), "bits_per_value": float(row["bits_per_value"])} for row in rows]


def exponents(results: Path, path: Path) -> None:
    """Draw bits per exponent over training."""
    plot_exponent_coding(rows_of(results / EXPONENTS), path)


def mantissas(results: Path, path: Path) -> None:
    """Draw bits per mantissa over training."""
    plot_mantissa_coding(rows_of(results / MANTISSAS), path)


PICTURES: Pictures = {
    f"{START}exponents": (exponents, (EXPONENTS,)),
    f"{START}mantissas": (mantissas, (MANTISSAS,)),
}


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
