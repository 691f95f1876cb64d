"""Draws the pictures of README.md and docs/ whose tables have changed since they were drawn.

    python -m bench.pictures [--all] [--check] [--results DIR] [--out DIR]

writes ``docs/images/*.png`` from the CSV files of ``bench/results``. Each picture keeps a digest of the rows that it
was drawn from, and is stale if and only if a row has changed. A picture whose tables are not all there is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import plots
from bench.cluster import pictures as cluster
from bench.codec import RESULTS
from bench.data import ROOT
from bench.experiments import gcomp_pictures, gradzip_pictures, gravac_pictures
from bench.experiments.lgreco import pictures as lgreco
from bench.experiments.minilm import pictures as minilm
from bench.plots import Pictures

IMAGES = ROOT / "docs" / "images"
PICTURES: Pictures = {
    **plots.PICTURES,
    **cluster.PICTURES,
    **gcomp_pictures.PICTURES,
    **gravac_pictures.PICTURES,
    **gradzip_pictures.PICTURES,
    **lgreco.PICTURES,
    **minilm.PICTURES,
}
KEYWORD = b"Tables"  #: of the PNG text chunk that names the tables, each with its digest
HEADER_BYTES = 8 + 25  #: of a PNG file: its signature and its first chunk


def digest(table: Path) -> str:
    """Return a digest of a CSV file's rows. Machine and command, in lines of comment, are left out."""
    rows = [line for line in table.read_text("utf-8").splitlines() if not line.startswith("#")]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def digests(results: Path, files: Sequence[str]) -> dict[str, str]:
    """Return the digest of each file in a folder."""
    return {file: digest(results / file) for file in files}


def drawn_from(picture: Path) -> dict[str, str]:
    """Return the tables that a picture was drawn from, with the digests they had; empty if it does not say."""
    for kind, data in _chunks(picture.read_bytes()):
        keyword, _, text = data.partition(b"\0")
        if kind == b"tEXt" and keyword == KEYWORD:
            words = text.decode("latin-1").split()
            return dict(zip(words[::2], words[1::2], strict=True))
    return {}


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and data of each chunk of a PNG file."""
    at = 8
    while at < len(png):
        (n_bytes,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + n_bytes]
        at += 12 + n_bytes


def mark(picture: Path, tables: dict[str, str]) -> None:
    """Write into a PNG file which tables it was drawn from."""
    png = picture.read_bytes()
    text = "\n".join(f"{file} {value}" for file, value in tables.items())
    body = b"tEXt" + KEYWORD + b"\0" + text.encode("latin-1")
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    picture.write_bytes(png[:HEADER_BYTES] + chunk + png[HEADER_BYTES:])


def possible(results: Path, pictures: Pictures = PICTURES) -> list[str]:
    """Return the pictures whose tables are all there."""
    return [name for name, (_, files) in pictures.items() if all((results / file).exists() for file in files)]


def stale(results: Path, images: Path, pictures: Pictures = PICTURES) -> list[str]:
    """Return those of the possible pictures that are missing, or were drawn from other rows."""
    return [
        name
        for name in possible(results, pictures)
        if not (images / f"{name}.png").exists()
        or drawn_from(images / f"{name}.png") != digests(results, pictures[name][1])
    ]


def draw(name: str, results: Path, images: Path, pictures: Pictures = PICTURES) -> Path:
    """Draw a picture and return its file. It sees the tables that it names and no others, so that none is missed."""
    function, files = pictures[name]
    path = images / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        for file in files:
            shutil.copyfile(results / file, Path(folder, file))
        drawn = Path(folder, path.name)
        function(Path(folder), drawn)
        mark(drawn, digests(Path(folder), files))
        shutil.move(drawn, path)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; with ``--check`` 1 if a picture is stale."""
    parser = argparse.ArgumentParser(prog="python -m bench.pictures", description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of CSV files (default: bench/results)")
    parser.add_argument("--out", type=Path, default=IMAGES, help="where the pictures go (default: docs/images)")
    parser.add_argument("--all", action="store_true", help="draw those that are not stale, too")
    parser.add_argument("--check", action="store_true", help="draw nothing, and list those that are stale")
    options = parser.parse_args(arguments)
    if options.check:
        names = stale(options.results, options.out)
        print("\n".join(f"{name}.png: out of date" for name in names) or "all pictures are as their tables are")
        return 1 if names else 0
    for name in possible(options.results) if options.all else stale(options.results, options.out):
        print(draw(name, options.results, options.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
