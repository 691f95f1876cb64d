"""The compressors that gcodec is measured beside, one entry each: lossless, one thread, used as their own manuals say.

A peer that is not installed, or does not take a type, is left out. What is known to trip each up stands at its entry.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import zstandard

from ..kernels.core.jit import kernel
from .inputs import Input
from .timing import CodecTask

_PIECE = 1 << 12  #: values that are shuffled at a time, so that they stay in cache


@dataclass(frozen=True)
class Peer:
    """A compressor and level.

    Attributes:
        name: As tables show it.
        package: What to ``pip install``; empty if it is always there.
        bind: The task on an input, or None if the type is not supported; imports the package.
    """

    name: str
    package: str
    bind: Callable[[Input], CodecTask | None]

    @property
    def installed(self) -> bool:
        """True if the compressor's package is installed."""
        return not self.package or installed_version(self.package) is not None


def installed_version(package: str) -> str | None:
    """Return the version of an installed package, None if it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def available(peers: Iterable[Peer]) -> tuple[list[Peer], list[str]]:
    """Return the installed peers, and the packages of the others."""
    peers = list(peers)
    missing = dict.fromkeys(peer.package for peer in peers if not peer.installed)
    return [peer for peer in peers if peer.installed], list(missing)


def _raw(data: Input) -> np.ndarray:
    return data.bits.view(np.uint8)


def zlib_at(level: int) -> Callable[[Input], CodecTask]:
    """Return the task-maker of zlib."""

    def bind(data: Input) -> CodecTask:
        raw = _raw(data)
        decode = partial(zlib.decompress, bufsize=raw.size)
        return CodecTask(lambda: zlib.compress(raw.data, level), decode, data.bits)

    return bind


def zstd_at(level: int, checksum: bool = False) -> Callable[[Input], CodecTask]:
    """Return the task-maker of Zstandard, without a checksum unless asked for one: the default of the Python package,
    not of the command line."""

    def bind(data: Input) -> CodecTask:
        raw = _raw(data)
        encoder = zstandard.ZstdCompressor(level=level, write_checksum=checksum)
        return CodecTask(lambda: encoder.compress(raw.data), zstandard.ZstdDecompressor().decompress, data.bits)

    return bind


@kernel
def shuffle_bytes(words: Any, planes: Any) -> None:
    """Copy byte k of every value to plane k. ``words``: uintW[n]; ``planes``: uint8[W / 8, n]."""
    for start in range(0, words.size, _PIECE):
        stop = min(start + _PIECE, words.size)
        for k in range(planes.shape[0]):
            for i in range(start, stop):
                planes[k, i] = words[i] >> (8 * k) & 255


@kernel
def unshuffle_bytes(planes: Any, words: Any) -> None:
    """Invert :func:`shuffle_bytes`: plane k holds byte k of every value."""
    for start in range(0, words.size, _PIECE):
        stop = min(start + _PIECE, words.size)
        words[start:stop] = 0
        for k in range(planes.shape[0]):
            for i in range(start, stop):
                words[i] |= words.dtype.type(planes[k, i]) << (8 * k)


def shuffled_zstd(level: int) -> Callable[[Input], CodecTask]:
    """Return the task-maker of Zstandard behind a byte shuffle. The shuffle is compiled and writes into memory that
    exists: what a user who cared would do."""

    def bind(data: Input) -> CodecTask:
        planes = np.zeros((data.bits.itemsize, data.bits.size), np.uint8)
        back = np.zeros_like(data.bits)
        encoder, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()

        def encode() -> bytes:
            shuffle_bytes(data.bits, planes)
            return encoder.compress(planes.data)

        def decode(encoded: bytes) -> np.ndarray:
            unshuffle_bytes(np.frombuffer(decoder.decompress(encoded), np.uint8).reshape(planes.shape), back)
            return back

        return CodecTask(encode, decode, data.bits)

    return bind


def lz4_frame(level: int) -> Callable[[Input], CodecTask]:
    """Return the task-maker of LZ4's frame format, which other tools read. Its block checksums are off by default. From
    level 3 on: lz4hc."""

    def bind(data: Input) -> CodecTask:
        import lz4.frame

        raw = _raw(data)
        return CodecTask(lambda: lz4.frame.compress(raw, level), lz4.frame.decompress, data.bits)

    return bind


def blosc2_at(level: int, codec: str = "ZSTD", filters: Sequence[str] = ("SHUFFLE",)) -> Callable[[Input], CodecTask]:
    """Return the task-maker of Blosc2, with its byte shuffle, its default, unless told otherwise. No checksum."""

    def bind(data: Input) -> CodecTask:
        import blosc2

        raw, back = _raw(data), np.zeros(data.nbytes, np.uint8)
        options = {
            "codec": blosc2.Codec[codec],
            "clevel": level,
            "filters": [blosc2.Filter[name] for name in filters],
            "filters_meta": [data.bits.itemsize if name == "BYTEDELTA" else 0 for name in filters],
            "nthreads": 1,
            "typesize": data.bits.itemsize,
        }

        def decode(encoded: bytes) -> np.ndarray:
            blosc2.decompress2(encoded, dst=back, nthreads=1)
            return back

        return CodecTask(lambda: blosc2.compress2(raw, **options), decode, data.bits)

    return bind


def pcodec_at(level: int) -> Callable[[Input], CodecTask | None]:
    """Return the task-maker of pcodec, without a payload checksum. It takes bfloat16 as 16-bit integers."""

    def bind(data: Input) -> CodecTask | None:
        from pcodec import ChunkConfig, standalone

        if data.bits.itemsize == 1:
            return None
        values, back, config = data.values, np.zeros_like(data.values), ChunkConfig(compression_level=level)

        def decode(encoded: bytes) -> np.ndarray:
            standalone.simple_decompress_into(encoded, back)
            return back

        return CodecTask(lambda: standalone.simple_compress(values, config), decode, data.bits)

    return bind


def zipnn_bytes(data: Input) -> CodecTask | None:
    """Overwrites what it compresses, so it gets a copy each time, made outside of the measured time.

    Bad data aborts the process: bench/corruption.py uses another one.
    """
    import zipnn

    if data.dtype not in ("float32", "bfloat16", "float16"):
        return None
    codec = zipnn.ZipNN(input_format="byte", bytearray_dtype=data.dtype, threads=1)
    raw, copies = _raw(data), [bytearray()]

    def prepare() -> None:
        copies[0] = bytearray(raw)

    return CodecTask(lambda: codec.compress(copies[0]), codec.decompress, data.bits, prepare)


def openzl_float(mantissa: str, exponent: str, level: int | None = None) -> Callable[[Input], CodecTask | None]:
    """Takes arrays of unsigned integers only, and forgets graph and format version after every call.

    Both of its checksums are on by default. ``level``: None for its default.
    """

    def bind(data: Input) -> CodecTask | None:
        import openzl.ext as zl

        nodes = {
            "float32": zl.nodes.Float32Deconstruct,
            "bfloat16": zl.nodes.BFloat16Deconstruct,
            "float16": zl.nodes.Float16Deconstruct,
        }
        if data.dtype not in nodes:
            return None
        compressor = zl.Compressor()
        compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        if level is not None:
            compressor.set_parameter(zl.CParam.CompressionLevel, level)
        graphs = getattr(zl.graphs, mantissa)(), getattr(zl.graphs, exponent)()
        compressor.select_starting_graph(nodes[data.dtype]()(compressor, *graphs))
        context, decoder = zl.CCtx(), zl.DCtx()

        def encode() -> bytes:
            context.ref_compressor(compressor)
            context.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
            return bytes(context.compress([zl.Input(zl.Type.Numeric, data.bits)]))

        def decode(encoded: bytes) -> np.ndarray:
            return np.asarray(decoder.decompress(encoded)[0].content.as_nparray())

        return CodecTask(encode, decode, data.bits)

    return bind


#: In the order of the tables.
PEERS = (
    Peer("zlib-6", "", zlib_at(6)),
    Peer("zstd-1", "", zstd_at(1)),
    Peer("zstd-3", "", zstd_at(3)),
    Peer("shuffle+zstd-1", "", shuffled_zstd(1)),
    Peer("shuffle+zstd-3", "", shuffled_zstd(3)),
    Peer("lz4", "lz4", lz4_frame(0)),
    Peer("Blosc2 zstd-1", "blosc2", blosc2_at(1)),
    Peer("pcodec-8", "pcodec", pcodec_at(8)),
    Peer("ZipNN", "zipnn", zipnn_bytes),
    Peer("OpenZL entropy", "openzl", openzl_float("Compress", "Entropy")),
    Peer("OpenZL LZ", "openzl", openzl_float("Compress", "Compress")),
)
#: Only where corruption is measured.
CHECKED = (Peer("zstd-1, checksum", "", zstd_at(1, checksum=True)),)
