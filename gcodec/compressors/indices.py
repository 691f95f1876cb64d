"""A code for ascending indices: gaps in Golomb-Rice codes.

Indices of large gradient values lie about evenly, so the gaps between them are about geometrically distributed, which
is what Rice codes are for: at density d they take hardly more than the entropy, H(d) / d bits each (8.1 at 1 %, where
plain numbers take 32). With parameter 0 they are a bitmap. Parameters are chosen anew every ``BLOCK`` indices, for
layers whose large values come in clusters.

    byte 0  number of indices, u32
         4  one parameter per block of 256 indices, u8 each, 0 ... 40; then zeros up to a multiple of 4 bytes
         .  bit stream, in words of 32 bits, least significant first; the last word is filled up with zeros

A gap g, the number of indices left out before one, is g >> parameter zeros, a one, and the low ``parameter`` bits of g.
Where all indices below n are there, nothing follows the number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import Corruption, InsufficientData
from ..kernels.core.jit import kernel
from ..tensors import kernel_view

BLOCK = 256  #: indices
MAX_PARAMETER = 40


def encode_indices(indices: np.ndarray, n_values: int) -> bytes:
    """Encode ascending indices.

    Args:
        indices: int64[k], strictly ascending and below ``n_values``, as selection makes them (not checked).
        n_values: Number of values that they are indices into.
    """
    k = len(indices)
    count = k.to_bytes(4, "little")
    if k in (0, n_values):
        return count
    n_blocks = -(-k // BLOCK)
    parameters = np.zeros(n_blocks + 3 & ~3, np.uint8)
    indices = kernel_view(np.ascontiguousarray(indices, np.int64))
    n_bits = int(_plan(indices, parameters))
    words = np.zeros(-(-n_bits // 32), np.uint32)
    _write(indices, parameters, words)
    return count + parameters.tobytes() + words.tobytes()


def decode_indices(data: Any, n_values: int) -> tuple[np.ndarray, int]:
    """Decode the indices at the start of ``data``.

    Args:
        data: Bytes-like; more may follow the indices.
        n_values: Number of values that they are indices into.

    Returns:
        The indices, int64[k], and how many bytes they take.

    Raises:
        InsufficientData: The data end before the indices do.
        Corruption: An index is not below ``n_values``, or the code is one that no encoder writes.
    """
    view = memoryview(data)
    if len(view) < 4:
        raise InsufficientData(f"indices begin with 4 bytes, their number, but there are {len(view)}")
    k = int.from_bytes(view[:4], "little")
    if k > n_values:
        raise Corruption(f"there must be at most {n_values} indices into as many values, not {k}")
    if k in (0, n_values):
        return np.arange(k, dtype=np.int64), 4
    n_blocks = -(-k // BLOCK)
    begin = 4 + (n_blocks + 3 & ~3)
    if len(view) < begin:
        raise InsufficientData(f"{k} indices begin with {begin} bytes of parameters, but there are {len(view)} bytes")
    parameters = np.frombuffer(view[4:begin], np.uint8)
    if parameters[:n_blocks].max() > MAX_PARAMETER or parameters[n_blocks:].any():
        raise Corruption(f"a Rice parameter of the indices is above {MAX_PARAMETER}, or the padding is not zero")
    words = np.frombuffer(view[begin : begin + (len(view) - begin & ~3)], np.uint32)
    indices = np.empty(k, np.int64)
    used = int(_read(kernel_view(words), kernel_view(parameters), n_values, indices))
    if used < 0:
        raise _FAULTS[used]()
    return indices, begin + 4 * used


def bits_per_index(density: float) -> float:
    """Estimate the bits that an index takes: the entropy of a gap, and what Rice codes lose, at most 3 %."""
    if density >= 1:
        return 0.0
    omitted = 1 - density
    return -(density * np.log2(density) + omitted * np.log2(omitted)) / density * 1.02 + 8 / BLOCK


def _ends_early() -> Exception:
    return InsufficientData("the bit stream of the indices ends before the last index")


def _out_of_range() -> Exception:
    return Corruption("an index is not below the number of values, or bits after the last index are not zero")


_FAULTS = {-1: _ends_early, -2: _out_of_range}


@kernel
def _plan(indices: Any, parameters: Any) -> Any:
    """Choose every block's parameter, and return the bits of all codes.

    The best parameter is near the logarithm of the mean gap, so three of them are tried.
    """
    total, before = 0, -1
    for begin in range(0, len(indices), BLOCK):
        end = min(begin + BLOCK, len(indices))
        count = end - begin
        mean = (indices[end - 1] - before - count) // count
        guess = 0
        while guess < MAX_PARAMETER - 1 and mean >> guess > 1:
            guess += 1
        best, cost = 0, -1
        for parameter in range(max(guess - 1, 0), guess + 2):
            bits, last = count * (parameter + 1), before
            for i in range(begin, end):
                bits += (indices[i] - last - 1) >> parameter
                last = indices[i]
            if cost < 0 or bits < cost:
                best, cost = parameter, bits
        parameters[begin // BLOCK] = best
        total += cost
        before = indices[end - 1]
    return total


@kernel
def _write(indices: Any, parameters: Any, words: Any) -> None:
    """Write all codes into words that are zero: of gap 5 with parameter 1, for example, 0 0 1 1 (first bit left)."""
    at, before = 0, -1
    for i in range(len(indices)):
        parameter = np.int64(parameters[i // BLOCK])
        gap = indices[i] - before - 1
        before = indices[i]
        at += gap >> parameter
        words[at >> 5] |= np.uint32(1) << np.uint32(at & 31)
        at += 1
        low = gap & ((1 << parameter) - 1)
        n_left = parameter
        while n_left > 0:
            shift = at & 31
            words[at >> 5] |= np.uint32((low << shift) & 0xFFFFFFFF)
            n_bits = min(32 - shift, n_left)
            low >>= n_bits
            at += n_bits
            n_left -= n_bits


@kernel
def _read(words: Any, parameters: Any, n_values: Any, indices: Any) -> Any:
    """Fill the indices, and return the words read; -1 where these end too soon, -2 for what no encoder writes."""
    at: Any = 0
    before: Any = -1
    end = 32 * len(words)
    for i in range(len(indices)):
        parameter = np.int64(parameters[i // BLOCK])
        high = 0
        while True:
            if at >= end:
                return -1
            rest = np.int64(words[at >> 5]) >> (at & 31)
            if rest:
                while rest & 1 == 0:
                    rest >>= 1
                    high += 1
                    at += 1
                break
            step = 32 - (at & 31)
            high += step
            at += step
        at += 1
        if high > n_values >> parameter:
            return -2
        low, done = np.int64(0), np.int64(0)
        if at + parameter > end:
            return -1
        while done < parameter:
            shift = at & 31
            n_bits = min(32 - shift, parameter - done)
            low |= ((np.int64(words[at >> 5]) >> shift) & ((1 << n_bits) - 1)) << done
            at += n_bits
            done += n_bits
        before += (high << parameter) + low + 1
        if before >= n_values:
            return -2
        indices[i] = before
    if at & 31 and np.int64(words[at >> 5]) >> (at & 31):
        return -2
    return (at + 31) >> 5
