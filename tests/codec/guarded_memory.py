"""Arrays against a page that may not be touched, and a process that encodes and decodes in nothing else.

``python -m tests.codec.guarded_memory after few`` reads frames, valid and spoilt. Any access outside of an array that
gcodec allocates, of the data or of the output ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

import gcodec
from tests.codec.spoilt_frames import altered, frames_of_the_encoder, frames_with_a_base, indexed_frame, small_frames
from tests.support import laws
from tests.support.base_pairs import PAIRS
from tests.support.bit_patterns import BITS_ONLY, Bits
from tests.support.cases import CASES, MULTIPLES
from tests.support.encode_modes import modes
from tests.support.frame_builder import Built, Draft, build_frame, mutations
from tests.support.reference import DTYPES

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Guarded:
    """A stand-in for numpy in a module of gcodec, whose ``empty`` and ``zeros`` put every array against a forbidden
    page."""

    def __init__(self, side: str) -> None:
        self.side = side

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float, **more: Any) -> np.ndarray:
        """Return an array as numpy does, but filled with bytes that stand out."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        memory = guarded_bytes(count * kind.itemsize, self.side, kind.alignment)
        memory[:] = 0xA5
        return memory.view(kind).reshape(shape)

    def zeros(self, shape: Any, dtype: Any = float, **more: Any) -> np.ndarray:
        """Return zeros as numpy does."""
        array = self.empty(shape, dtype)
        array[...] = 0
        return array


def guarded_bytes(size: int, side: str, alignment: int = 1) -> np.ndarray:
    """Return uint8[size] right before or after a page that may not be touched; freed with the array."""
    assert _libc is not None
    room = max(-(-size // PAGE), 1) * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    whole = np.frombuffer(memory, np.uint8)
    forbidden = whole.ctypes.data + (room if side == "after" else 0)
    if _libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    start = (room - size) // alignment * alignment if side == "after" else PAGE
    return whole[start : start + size]


def guarded_array(bits: Bits, side: str) -> np.ndarray:
    """Return the values, flat, in guarded memory."""
    copy = guarded_bytes(bits.nbytes, side, bits.itemsize).view(bits.dtype)
    copy[:] = bits.reshape(-1)
    return copy


def guarded_copy(data: bytes, side: str) -> np.ndarray:
    """Return the bytes in guarded memory."""
    copy = guarded_bytes(len(data), side)
    copy[:] = np.frombuffer(data, np.uint8)
    return copy


def frames_to_read(many: bool) -> Iterator[Built]:
    """Yield valid and spoilt frames alike, with the codebooks that they name and the base that they need."""
    for seed, built in enumerate(small_frames()):
        rng = Random(f"guarded {seed}")
        yield built
        draft = Draft.of(built.frame, built.codebooks)
        for _ in range(200 if many else 12):
            if draft.blocks:
                yield built._replace(frame=altered(draft, rng))
        for mutation in list(mutations(built.frame, rng, built.codebooks))[:: 1 if many else 5]:
            yield built._replace(frame=mutation.frame)
    written = [Built(frame, np.zeros(0, np.uint8), {}) for frame in frames_of_the_encoder()]
    for seed, built in enumerate((*written, *frames_with_a_base())):
        rng = Random(f"guarded frame {seed}")
        yield built
        for _ in range(100 if many else 4):
            yield built._replace(frame=altered(Draft.of(built.frame, laws.SHIPPED), rng))
    for seed in range(300 if many else 40):
        n_values = Random(seed).choice([1000, 5000])
        yield build_frame(Random(f"guarded valid {seed}"), n_values=n_values, spare_bits=True)


def indexed_frames(many: bool) -> Iterator[Built]:
    """Yield valid frames with indexed blocks, of every type that has them: groups of values are looked up at once, and
    segments, blocks and the array end within groups."""
    for dtype in (code for code, kind in DTYPES.items() if kind.T):
        for number in range(60 if many else 12):
            yield indexed_frame(f"guarded in place {dtype} {number}", dtype, number)


def decode_in_guarded(built: Built, side: str) -> None:
    """Decode a frame to an array of the caller's that lies in guarded memory, and some of its values to another."""
    name = DTYPES[built.frame[5]].name
    out = guarded_array(np.full_like(built.bits, 7), side)
    base = None if built.base is None else guarded_array(built.base, side)
    data = guarded_copy(built.frame, side)
    laws.decode_known(data, built.codebooks, out if name in BITS_ONLY else out.view(name), base)
    laws.assert_same_bits(out, built.bits.reshape(-1))
    if not built.codebooks:
        start, stop = out.size // 3, out.size - out.size // 5
        laws.assert_same_bits(gcodec.decode_range(data, start, stop, base=base), out[start:stop])


def read_guarded(side: str, many: bool) -> None:
    """The process: whatever is read, nothing outside of the arrays is touched and only a GcodecError raised."""
    from gcodec import codec, tensors
    from gcodec import memory as scratch
    from gcodec.format import change_codebook, codebook, columns, dictionary, tables
    from gcodec.frame import (
        coded_blocks,
        decode,
        encode,
        indexed_blocks,
        predicted_blocks,
        small_reads,
        sparse_blocks,
        writer,
    )
    from gcodec.plan import codebooks as fitting
    from gcodec.plan import columns as column_fit
    from gcodec.plan import finding, indexing, plan, prediction, profile, sampling
    from gcodec.plan import sparse_frames as sparse_plan

    guarded: Any = Guarded(side)
    for module in (
        writer,
        change_codebook,
        coded_blocks,
        codebook,
        codec,
        column_fit,
        columns,
        decode,
        dictionary,
        encode,
        finding,
        fitting,
        indexed_blocks,
        indexing,
        plan,
        predicted_blocks,
        prediction,
        scratch,
        profile,
        sampling,
        small_reads,
        sparse_blocks,
        sparse_plan,
        tables,
        tensors,
    ):
        if hasattr(module, "np"):
            setattr(module, "np", guarded)  # noqa: B010 - to mypy a module has no such attribute
    n_frames = n_refused = 0
    for built in frames_to_read(many):
        base = None if built.base is None else guarded_array(built.base, side)
        found = laws.outcome(guarded_copy(built.frame, side), built.codebooks, base)
        n_frames += 1
        n_refused += isinstance(found, str)
    for built in indexed_frames(many):
        decode_in_guarded(built, side)
        n_frames += 1
    for which in (*CASES, *MULTIPLES):
        if which.bits.size < 4000 or which.name in ("noise", "a block and one") or which in MULTIPLES:
            for mode in modes(which.dtype) if many else modes(which.dtype)[:1] + modes(which.dtype)[-2:-1]:
                arguments = mode.arguments(which)
                if "levels" in arguments:
                    arguments["levels"] = guarded_copy(arguments["levels"].tobytes(), side)
                decoded = gcodec.decode(
                    gcodec.encode(guarded_array(which.bits, side), **arguments | {"dtype": which.dtype})
                )
                if not mode.options:
                    laws.assert_same_bits(decoded, which.bits.reshape(-1))
                n_frames += 1
    for pair in PAIRS:
        x, base = guarded_array(pair.bits, side), guarded_array(pair.base, side)
        frame = gcodec.encode(x, base=base, dtype=pair.dtype)
        laws.assert_same_bits(gcodec.decode(frame, base=base), pair.bits.reshape(-1))
        n_frames += 1
    print(f"{n_frames} frames, {n_refused} refused")


if __name__ == "__main__":
    read_guarded(sys.argv[1], sys.argv[2] == "many")
