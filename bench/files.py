"""Files that people hold, compressed to a file and restored from it, by gcodec and its peers, on both cores.

    python -m bench.files [--quick] [--folder DIR] [--out DIR]

writes ``bench/results/files.csv``. Three .safetensors files are made first, once, and kept in ``.cache/bench/files``: a
language model of GPT-2's make, 109 million parameters, is trained for a few steps here with torch alone; the files are
its bfloat16 weights, its float32 masters, and AdamW's moments of half of its layers. Weights that were trained for so
short a time are closer to random numbers than those of a finished model.

A turn reads a file, writes a compressed one, and restores it into a third. The first turn of each method is compared
byte for byte and not timed; then the methods take turns. What is written is removed at once: no method waits for the
disk, and what is read lies in the system's cache. The two commands include the start of a process.
"""

from __future__ import annotations

import argparse
import filecmp
import gc
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, BinaryIO

import numpy as np

import gcodec
from bench.codec import RESULTS
from bench.data import ROOT
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.peers import installed_version
from gcodec.benchmark.timing import RoundTripError

FOLDER = ROOT / ".cache" / "bench" / "files"
#: Width, layers and steps of the model, and of that of a quick run.
BENCH_SIZES = {False: (1024, 8, 60), True: (64, 1, 2)}
THREADS = 2
ROUNDS, BUDGET = 5, 15.0  #: turns at most, and the seconds after which a method sits out the rest
MIB = 1 << 20
#: The files, and the type of their values.
FILES = {"weights": "bfloat16", "masters": "float32", "moments": "float32"}
WORDS: dict[str, np.dtype[Any]] = {"bfloat16": np.dtype("<u2"), "float32": np.dtype("<f4")}
MOMENTS = ("exp_avg", "exp_avg_sq")
Transform = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Method:
    """A way of compressing a file.

    Attributes:
        name: In the table.
        compress: Reads the first path, writes the second.
        restore: Does the reverse.
    """

    name: str
    compress: Transform
    restore: Transform


@dataclass(frozen=True)
class PieceCodec:
    """A codec of arrays in memory, as files are given to it: the header as it is, then the values in pieces.

    Attributes:
        encode: Bytes of a piece to encoded bytes.
        decode: The inverse.
        piece_bytes: Size of a piece.
        threads: Pieces that are worked on at a time; 1 for a codec that has threads of its own.
        has_header: False if the file has no header as .safetensors files have, and is pieces from its first byte on.
    """

    encode: Callable[[bytes], bytes]
    decode: Callable[[bytes], bytes]
    piece_bytes: int = 16 * MIB
    threads: int = THREADS
    has_header: bool = True

    def compress(self, source: Path, target: Path) -> None:
        """Write the lengths and bytes of the header and of all encoded pieces."""
        with source.open("rb") as file, target.open("wb") as output, ThreadPoolExecutor(self.threads) as pool:
            start = file.read(8) if self.has_header else b""
            _write_piece(output, start + file.read(int.from_bytes(start, "little")))
            for batch in _batches(iter(lambda: file.read(self.piece_bytes), b""), self.threads):
                for encoded in pool.map(self.encode, batch):
                    _write_piece(output, encoded)

    def restore(self, source: Path, target: Path) -> None:
        """Write the file that :meth:`compress` was given."""
        with source.open("rb") as file, target.open("wb") as output, ThreadPoolExecutor(self.threads) as pool:
            output.write(_read_piece(file))
            for batch in _batches(iter(lambda: _read_piece(file), b""), self.threads):
                for piece in pool.map(self.decode, batch):
                    output.write(piece)


def _batches(pieces: Iterator[bytes], threads: int) -> Iterator[list[bytes]]:
    """Yield pieces in groups of a few for each thread, so that a whole file never is in memory."""
    while batch := list(islice(pieces, 4 * threads)):
        yield batch


def _write_piece(output: BinaryIO, encoded: bytes) -> None:
    output.write(len(encoded).to_bytes(8, "little"))
    output.write(encoded)


def _read_piece(file: BinaryIO) -> bytes:
    return file.read(int.from_bytes(file.read(8), "little"))


# The methods


def _command(*words: str) -> Transform:
    """Return what runs a command; ``{0}`` and ``{1}`` stand for the paths."""
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package's modules are compiled

    def run(source: Path, target: Path) -> None:
        command = [word.format(source, target) for word in words]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, env=environment)

    return run


def zstd(*levels: int) -> Iterator[Method]:
    """Yield zstd's command at each level, if it is installed."""
    if not shutil.which("zstd"):
        print("the command zstd is not installed: left out")
        return
    for level in levels:
        there = _command("zstd", "-q", f"-{level}", f"-T{THREADS}", "{0}", "-o", "{1}")
        yield Method(f"zstd -{level} -T{THREADS}, command", there, _command("zstd", "-q", "-d", "{0}", "-o", "{1}"))


def _zipnn(dtype: str) -> PieceCodec:
    import zipnn

    encoder = zipnn.ZipNN(input_format="byte", bytearray_dtype=dtype, threads=THREADS)
    return PieceCodec(lambda piece: encoder.compress(bytearray(piece)), encoder.decompress, 64 * MIB, threads=1)


def _blosc2(dtype: str) -> PieceCodec:
    import blosc2

    options = {
        "codec": blosc2.Codec.ZSTD,
        "clevel": 1,
        "filters": [blosc2.Filter.SHUFFLE],
        "filters_meta": [0],
        "nthreads": THREADS,
        "typesize": WORDS[dtype].itemsize,
    }
    return PieceCodec(
        lambda piece: blosc2.compress2(np.frombuffer(piece, np.uint8), **options),
        lambda encoded: blosc2.decompress2(encoded, nthreads=THREADS),
        64 * MIB,
        threads=1,
    )


def _pcodec(dtype: str) -> PieceCodec:
    from pcodec import ChunkConfig, standalone

    config = ChunkConfig()
    return PieceCodec(
        lambda piece: standalone.simple_compress(np.frombuffer(piece, WORDS[dtype]), config),
        lambda encoded: standalone.simple_decompress(encoded).tobytes(),
    )


def _openzl(dtype: str) -> PieceCodec:
    import openzl.ext as zl

    nodes = {"float32": zl.nodes.Float32Deconstruct, "bfloat16": zl.nodes.BFloat16Deconstruct}
    words = np.dtype(f"<u{WORDS[dtype].itemsize}")

    def encode(piece: bytes) -> bytes:
        compressor, context = zl.Compressor(), zl.CCtx()  # of each call: neither is for two threads
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        compressor.select_starting_graph(nodes[dtype]()(compressor, zl.graphs.Compress(), zl.graphs.Entropy()))
        context.ref_compressor(compressor)
        context.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        return bytes(context.compress([zl.Input(zl.Type.Numeric, np.frombuffer(piece, words))]))

    return PieceCodec(encode, lambda encoded: zl.DCtx().decompress(encoded)[0].content.as_nparray().tobytes())


#: Peers that are libraries: name, package, and what makes the codec for a type.
LIBRARIES: tuple[tuple[str, str, Callable[[str], PieceCodec]], ...] = (
    ("ZipNN", "zipnn", _zipnn),
    ("Blosc2 zstd-1", "blosc2", _blosc2),
    ("pcodec", "pcodec", _pcodec),
    ("OpenZL entropy", "openzl", _openzl),
)


def compress_in_process(source: Path, target: Path) -> None:
    gcodec.compress_file(source, target, threads=THREADS)


def compress_smallest(source: Path, target: Path) -> None:
    gcodec.compress_file(source, target, threads=THREADS, smallest=True)


def restore_in_process(source: Path, target: Path) -> None:
    gcodec.decompress_file(source, target, threads=THREADS)


def methods(dtype: str) -> Iterator[Method]:
    """Yield the methods that are installed; a line says which ones are not."""
    verb = (sys.executable, "-m", "gcodec")
    options = ("-q", "{0}", "-o", "{1}", "--threads", str(THREADS))
    yield Method("gcodec, command", _command(*verb, "compress", *options), _command(*verb, "decompress", *options))
    yield Method("gcodec, in Python", compress_in_process, restore_in_process)
    yield Method("gcodec, smallest, in Python", compress_smallest, restore_in_process)
    yield from zstd(1, 3)
    for name, package, make in LIBRARIES:
        if installed_version(package) is None:
            print(f"{package} is not installed: left out")
            continue
        codec = make(dtype)
        yield Method(name, codec.compress, codec.restore)


# The files


def make_files(folder: Path, width: int, layers: int, n_steps: int) -> None:
    """Train a model for a while and write the three files, if they are not there."""
    if all((folder / f"{name}.safetensors").exists() for name in FILES):
        return
    import torch
    from safetensors.torch import save_file

    from bench.checkpoints import Training

    print(f"training a model for {n_steps} steps", flush=True)
    training = Training(width, layers)
    training.take_steps(n_steps, 3e-4)
    masters = {name: tensor.contiguous() for name, tensor in training.model.state_dict().items()}
    named = dict(training.model.named_parameters())
    half = list(named)[: len(named) // 2]
    moments = {f"{name}.{moment}": training.optimizer.state[named[name]][moment] for name in half for moment in MOMENTS}
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in masters.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in (("weights", weights), ("masters", masters), ("moments", moments)):
        partial = folder / f"{name}.part"  # so that what is cut off does not count as written
        save_file(tensors, partial)
        partial.rename(folder / f"{name}.safetensors")


# The measurement


@dataclass
class Turns:
    """The turns of a method on a file.

    Attributes:
        stored_bytes: Size of the compressed file.
        compress: Seconds of each turn, by the clock and of the processor.
        restore: The same for the way back.
    """

    stored_bytes: int = 0
    compress: list[tuple[float, float]] = field(default_factory=list)
    restore: list[tuple[float, float]] = field(default_factory=list)

    @property
    def spent(self) -> float:
        """Seconds of all turns."""
        return sum(seconds for seconds, _ in (*self.compress, *self.restore))


def _timed(transform: Transform, source: Path, target: Path) -> tuple[float, float]:
    """Return the seconds of a call, by the clock and of the processor, processes that it started included."""
    before, start = _cpu_seconds(), perf_counter()
    transform(source, target)
    return perf_counter() - start, _cpu_seconds() - before


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def take_turn(method: Method, source: Path, folder: Path, turns: Turns, timed: bool) -> None:
    """Compress and restore a file once; verify the result if it is not timed, else note the seconds.

    Raises:
        RoundTripError: The restored file differs.
    """
    compressed, restored = folder / "compressed", folder / "restored"
    gc.collect()
    try:
        there = _timed(method.compress, source, compressed)
        back = _timed(method.restore, compressed, restored)
        if timed:
            turns.compress.append(there)
            turns.restore.append(back)
            return
        turns.stored_bytes = compressed.stat().st_size
        if not filecmp.cmp(source, restored, shallow=False):
            raise RoundTripError(f"{method.name}: {source.name} was not restored as it was")
    finally:
        for path in (compressed, restored):
            with suppress(FileNotFoundError):
                path.unlink()


def rows_of(
    source: Path, dtype: str, n_rounds: int, make_methods: Callable[[], Iterator[Method]]
) -> Iterator[NamedRow]:
    """Yield the row of each method on a file."""
    results = {method: Turns() for method in make_methods()}
    with TemporaryDirectory(dir=source.parent) as name:
        for number in range(n_rounds + 1):
            for method, turns in results.items():
                if turns.spent < BUDGET:
                    take_turn(method, source, Path(name), turns, timed=number > 0)
    before = source.stat().st_size
    for method, turns in results.items():
        ways = {"compress": turns.compress, "restore": turns.restore}
        yield {
            "file": source.stem,
            "type": dtype,
            "file_bytes": before,
            "method": method.name,
            "stored_bytes": turns.stored_bytes,
            "percent": f"{100 * turns.stored_bytes / before:.2f}",
            **{f"{name}_seconds": f"{median(turn[0] for turn in way):.3f}" for name, way in ways.items()},
            **{f"{name}_cpu_seconds": f"{median(turn[1] for turn in way):.3f}" for name, way in ways.items()},
            "rounds": len(turns.compress),
        }


def with_files(arguments: Sequence[str] | None, program: str, description: str) -> argparse.Namespace:
    """Return the options of a benchmark of these files, ``folder`` being where they are: they are made if need be.

    Args:
        arguments: Of the command line.
        program: Name of the benchmark's module.
        description: What it does.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("--quick", action="store_true", help="a tiny model, one turn")
    parser.add_argument("--folder", type=Path, help="where the files are made and kept (default: .cache/bench/files)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    options.folder = options.folder or (FOLDER.with_name("quick-files") if options.quick else FOLDER)
    make_files(options.folder, *BENCH_SIZES[options.quick])
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = with_files(arguments, "bench.files", __doc__.splitlines()[0])
    rows: list[NamedRow] = []
    for name, dtype in FILES.items():
        rounds = 1 if options.quick else ROUNDS
        for row in rows_of(options.folder / f"{name}.safetensors", dtype, rounds, partial(methods, dtype)):
            rows.append(row)
            print(*row.values(), flush=True)
            write_named(options.out / "files.csv", rows)  # what is there when a run is cut off is kept
    return 0


if __name__ == "__main__":
    sys.exit(main())
