"""Measure files of quantized weights, as llama.cpp has them: sizes and speeds beside zstd.

    python -m bench.quantized FILE ... [--out DIR]

writes ``bench/results/quantized.csv``, in some minutes. A .gguf file is measured as it is; the matrices of a
.safetensors file are quantized to each type that the package gguf can make, and each makes a .gguf file. All methods
have one thread, and restore each file byte for byte before they are timed; then they take turns.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import zstandard

import gcodec
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.errors import GcodecError

FILE = "quantized.csv"
TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
OURS, ROUNDS = "gcodec", 3
Compress = Callable[[Path], bytes]  #: returns what a file is compressed to
Restore = Callable[[bytes], bytes]  #: returns the file


def quantized_files(path: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the type and the place of a .gguf file, or of each that is made of the matrices of a .safetensors file."""
    import gguf
    from safetensors.torch import load_file

    if path.suffix == ".gguf":
        kinds = Counter[str]()
        for tensor in gguf.GGUFReader(path).tensors:
            kinds[tensor.tensor_type.name] += int(tensor.n_bytes)
        yield kinds.most_common(1)[0][0], path
        return
    matrices = {name: values.float().numpy() for name, values in load_file(path).items()
                if values.ndim == 2 and values.shape[1] % 32 == 0 and values.is_floating_point()}  # fmt: skip
    for name in TYPES:
        kind, made = gguf.GGMLQuantizationType[name], folder / f"{path.stem}-{name}.gguf"
        writer = gguf.GGUFWriter(made, "bert")
        for tensor, values in matrices.items():
            writer.add_tensor(tensor, gguf.quants.quantize(values, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        yield name, made


def methods(folder: Path) -> dict[str, tuple[Compress, Restore]]:
    """Return the methods, by name."""
    archive, back = folder / "x.gc", folder / "back.gguf"

    def compress(path: Path) -> bytes:
        gcodec.compress_file(path, archive, force=True, threads=1)
        return archive.read_bytes()

    def restore(stored: bytes) -> bytes:
        gcodec.decompress_file(archive, back, force=True, threads=1)
        return back.read_bytes()

    def zstd(level: int) -> tuple[Compress, Restore]:
        return (
            lambda path: zstandard.ZstdCompressor(level).compress(path.read_bytes()),
            lambda stored: zstandard.ZstdDecompressor().decompress(stored),
        )

    return {OURS: (compress, restore), "zstd -3": zstd(3), "zstd -19": zstd(19)}


def measure(path: Path, folder: Path) -> Iterator[tuple[str, int, float, float]]:
    """Yield each method, the bytes that it makes of a file, and its best seconds of compressing and restoring."""
    whole, seconds = path.read_bytes(), dict[str, list[tuple[float, float]]]()
    sizes = dict[str, int]()
    for number in range(ROUNDS + 1):
        for name, (compress, restore) in methods(folder).items():
            if number > 1 and name == "zstd -19":  # it takes as long as all others
                continue
            begin = perf_counter()
            stored = compress(path)
            middle = perf_counter()
            back = restore(stored)
            end = perf_counter()
            if not number and back != whole:
                raise GcodecError(f"{name} does not restore {path}")
            if number:
                seconds.setdefault(name, []).append((middle - begin, end - middle))
            sizes[name] = len(stored)
    for name, taken in seconds.items():
        yield name, sizes[name], min(first for first, _ in taken), min(second for _, second in taken)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.quantized", description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help=".gguf or .safetensors files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    rows: list[NamedRow] = []
    with tempfile.TemporaryDirectory() as folder:
        for file in options.files:
            for kind, path in quantized_files(file, Path(folder)):
                n_bytes = path.stat().st_size
                for name, size, compress, restore in measure(path, Path(folder)):
                    rows.append(
                        {
                            "file": file.name,
                            "type": kind,
                            "bytes": n_bytes,
                            "method": name,
                            "percent": f"{100 * size / n_bytes:.2f}",
                            "compress_mb_per_s": f"{n_bytes / compress / 1e6:.0f}",
                            "restore_mb_per_s": f"{n_bytes / restore / 1e6:.0f}",
                        }
                    )
                    print(*rows[-1].values(), flush=True)
    write_named(options.out / FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
