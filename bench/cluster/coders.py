"""Coders that take the codec's place in the same exchange: peers, a copy, and nothing at all.

Each has what :class:`gcodec.distributed.reduction.reduce.Reduction` asks of a coder.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np
import zstandard

from gcodec.benchmark.peers import shuffle_bytes, unshuffle_bytes
from gcodec.distributed.reduction import coder
from gcodec.distributed.reduction.coder import Coder
from gcodec.distributed.stats import Counters
from gcodec.dtypes import BY_NAME, DType
from gcodec.errors import Corruption

STORED, CODED = 0, 1  #: first byte of a payload


class Codec(Protocol):
    """Bytes of float32 values to fewer bytes and back."""

    def encode(self, bits: np.ndarray) -> Any:
        """Encode uint32[n] to a bytes-like object."""

    def decode(self, data: memoryview, out: np.ndarray) -> None:
        """The inverse, into uint32[n]."""


class Zlib:
    """The fastest level: others are slower and hardly smaller on floats."""

    def __init__(self, level: int = 1) -> None:
        self.level = level

    def encode(self, bits: np.ndarray) -> bytes:
        return zlib.compress(_bytes_of(bits), self.level)

    def decode(self, data: memoryview, out: np.ndarray) -> None:
        out[:] = np.frombuffer(zlib.decompress(data), out.dtype)


class Zstd:
    """A coder of the values as they are."""

    def __init__(self, level: int = 1) -> None:
        self._encoder, self._decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()

    def encode(self, bits: np.ndarray) -> bytes:
        return self._encoder.compress(_bytes_of(bits))

    def decode(self, data: memoryview, out: np.ndarray) -> None:
        out[:] = np.frombuffer(self._decoder.decompress(data), out.dtype)


class ShuffledZstd(Zstd):
    """A coder of the values' bytes, byte k of every value together."""

    def encode(self, bits: np.ndarray) -> bytes:
        planes = np.empty((bits.itemsize, len(bits)), np.uint8)
        shuffle_bytes(bits, planes)
        return self._encoder.compress(planes.data)

    def decode(self, data: memoryview, out: np.ndarray) -> None:
        planes = np.frombuffer(self._decoder.decompress(data), np.uint8).reshape(out.itemsize, len(out))
        unshuffle_bytes(planes, out)


def _bytes_of(array: np.ndarray) -> memoryview:
    view: Any = array.view(np.uint8)
    return memoryview(view)


class _Coder:
    """The common part of coders here: float32, and every bit comes back."""

    exact = True

    def __init__(self, counters: Counters) -> None:
        self.dtype: DType = BY_NAME["float32"]
        self.counters = counters

    def round(self, bits: np.ndarray, begin: int, out: np.ndarray) -> None:
        """Write what decoding would return into ``out``: nothing is rounded."""
        out[:] = bits


class PeerCoder(_Coder):
    """A codec of bytes, which stores values that it cannot make smaller."""

    def __init__(self, codec: Codec, counters: Counters) -> None:
        super().__init__(counters)
        self.codec = codec

    def encode(
        self, bits: np.ndarray, begin: int, kind: int, out: np.ndarray, rounded: np.ndarray | None = None
    ) -> int:
        """Write a payload at the start of ``out``, and return its size."""
        start = thread_time()
        data = np.frombuffer(self.codec.encode(bits), np.uint8)
        coded = len(data) < bits.nbytes
        data = data if coded else bits.view(np.uint8)
        out[0] = CODED if coded else STORED
        out[1 : 1 + len(data)] = data
        if rounded is not None:
            rounded[:] = bits
        self.counters.encode_seconds += thread_time() - start
        self.counters.encoded_bytes += bits.nbytes
        return 1 + len(data)

    def decode(self, payload: np.ndarray, out: np.ndarray) -> None:
        """Decode a payload's values into ``out``. Raises Corruption."""
        start = thread_time()
        if payload[0] == CODED:
            self.codec.decode(_bytes_of(payload[1:]), out)
        elif len(payload) == 1 + out.nbytes:
            out.view(np.uint8)[:] = payload[1:]
        else:
            raise Corruption(f"{len(payload) - 1} bytes stored instead of {out.nbytes}")
        self.counters.decode_seconds += thread_time() - start
        self.counters.decoded_bytes += out.nbytes


class Copied:
    """A coder that does nothing: the time of the exchange by itself, with all bytes."""

    def encode(self, bits: np.ndarray) -> np.ndarray:
        return bits.view(np.uint8)

    def decode(self, data: memoryview, out: np.ndarray) -> None:
        raise Corruption("nothing is coded")


class Replay(_Coder):
    """Payloads of recorded sizes that nobody makes or reads: the exchange of another coder without its work."""

    def __init__(self, sizes: dict[tuple[int, int], int], counters: Counters) -> None:
        super().__init__(counters)
        self.sizes = sizes

    def encode(
        self, bits: np.ndarray, begin: int, kind: int, out: np.ndarray, rounded: np.ndarray | None = None
    ) -> int:
        """Send whatever lies in ``out``."""
        return self.sizes[begin, kind]

    def decode(self, payload: np.ndarray, out: np.ndarray) -> None:
        """Do nothing."""


def count_processor_time() -> None:
    """Let gcodec's coders, too, count seconds of the processor: with more workers than cores, or neighbors on
    the machine, those of the clock say little. Right where the codec has one thread, which is the one that counts."""
    coder.perf_counter = thread_time  # type: ignore[attr-defined]


@contextmanager
def noting(sizes: dict[tuple[int, int], int]) -> Iterator[None]:
    """Let ``sizes``, within the context, take the size of every payload that gcodec makes: by first value and kind."""
    made = Coder.encode

    def encode(self: Coder, bits: np.ndarray, begin: int, kind: int, *others: Any) -> int:
        size = sizes[begin, kind] = made(self, bits, begin, kind, *others)
        return size

    with patch.object(Coder, "encode", encode):
        yield


CODECS: dict[str, Callable[[], Codec]] = {
    "no codec": Copied,
    "zlib-1": Zlib,
    "zstd-1": Zstd,
    "shuffle+zstd-1": ShuffledZstd,
}
