"""QSGD's arithmetic, from values to packed levels and back, in runs that stay in cache; float32 on the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..kernels.core.jit import kernel
from .bit_packing import pack_into, packed_size, packed_view, unpack_from
from .draws import draw32

_RUN = 4096  #: values that are coded before they are packed: a multiple of 8
_U8, _U32, _F32 = np.uint8, np.uint32, np.float32
_UNIT = np.float32(2.0**-24)
_NEAREST = np.float32(0.5 - 2.0**-25)  #: what is not below it is rounded up


class Draws(NamedTuple):
    """The choice between the two levels nearest to a value: by a random number, or the nearer one.

    Attributes:
        bits: Bits of a code, the sign included.
        key: Low half of the key of the random numbers, uint32.
        other: High half, uint32.
        offset: Added to the number, float32: 0, or the border of what is rounded up to the nearest.
        unit: What the number, 24 bits, is multiplied by, float32: 2**-24, or 0 to round to the nearest.
    """

    bits: int
    key: np.uint32
    other: np.uint32
    offset: np.float32
    unit: np.float32


def norms_of(values: np.ndarray, bucket: int, by_max: bool) -> np.ndarray:
    """Return the max magnitude or the L2 norm of each bucket.

    Args:
        values: float32[n].
        bucket: Values in a bucket; the last one may have fewer.
        by_max: Take the max; otherwise the L2 norm.

    Returns:
        float32[ceil(n / bucket)]. It is finite where all values of the bucket are: where the L2 norm is beyond
        float32's range, the max stands in for it, which no value exceeds, so that expectations stay the values.
    """
    norms = np.empty(-(-len(values) // bucket), np.float32)
    if by_max:
        _greatest(values.view(np.uint32), bucket, norms.view(np.uint32))
        return norms
    _lengths(values, bucket, norms)
    for number in np.flatnonzero(np.isinf(norms)):
        norms[number] = np.abs(values[number * bucket : (number + 1) * bucket]).max()
    return norms


def quantize(values: np.ndarray, norms: np.ndarray, bucket: int, bits: int, key: int | None) -> np.ndarray:
    """Return the packed codes of values, uint8.

    Args:
        values: float32[n].
        norms: float32, the norm of each bucket by :func:`norms_of`.
        bits: Bits of a code, 2 ... 8, the sign included.
        key: 64 bits that decide between the two nearest levels; None for the nearer one.
    """
    packed = np.empty(packed_size(len(values), bits), np.uint8)
    halves = _U32((key or 0) & 0xFFFFFFFF), _U32((key or 0) >> 32)
    offset, unit = (_NEAREST, _F32(0)) if key is None else (_F32(0), _UNIT)
    _quantize(values, norms, bucket, Draws(bits, *halves, offset, unit), np.empty(_RUN, np.uint8), packed)
    return packed


def dequantize(packed: Any, norms: np.ndarray, bucket: int, bits: int, n_values: int) -> np.ndarray:
    """Return the values that codes stand for, float32[n]. Raises Corruption for a wrong number of bytes."""
    values = np.empty(n_values, np.float32)
    _dequantize(packed_view(packed, n_values, bits), norms, bucket, bits, np.empty(_RUN, np.uint8), values)
    return values


@kernel
def _greatest(bits: Any, bucket: Any, norms: Any) -> None:
    """Find the bits of each bucket's max magnitude. Magnitudes are in the order of their bits, NaN last."""
    for number in range(len(norms)):
        max_bits = _U32(0)
        for i in range(number * bucket, min((number + 1) * bucket, len(bits))):
            max_bits = max(max_bits, _U32(bits[i] & _U32(0x7FFFFFFF)))
        norms[number] = max_bits


@kernel
def _lengths(values: Any, bucket: Any, norms: Any) -> None:
    for number in range(len(norms)):
        total = 0.0
        for i in range(number * bucket, min((number + 1) * bucket, len(values))):
            total += np.float64(values[i]) * np.float64(values[i])
        norms[number] = _F32(np.sqrt(total))


@kernel
def _quantize(values: Any, norms: Any, bucket: Any, draws: Any, codes: Any, packed: Any) -> None:
    """Fill ``packed`` run by run: the codes of a run, bucket after bucket, and then their bits.

    values   | run of 4096         | run ...
    buckets  |  b0  |  b1  |  b2  |  b3 ...       a bucket may lie across runs
    codes    sign << (bits - 1) | level, a byte each
    packed   the codes' bits, back to back, from byte begin / 8 * bits on
    """
    n, bits = len(values), draws.bits
    for begin in range(0, n, _RUN):
        end = min(begin + _RUN, n)
        at = begin
        while at < end:
            number = at // bucket
            stop = min(end, (number + 1) * bucket)
            _code(values[at:stop], norms[number], _U32(at), draws, codes[at - begin : stop - begin])
            at = stop
        first = begin // 8 * bits
        pack_into(codes[: end - begin], bits, packed[first : first + ((end - begin) * bits + 7) // 8])


@kernel
def _code(values: Any, norm: Any, place: Any, draws: Any, codes: Any) -> None:
    """Code some values of a bucket, the first of which is the tensor's ``place``-th.

    The level is the one below, or the one above where a number drawn from [0, 1) is less than the value's distance
    from the one below. Where the norm is zero, infinite or NaN it says it all, and codes are zero.
    """
    if not 0 < norm < np.inf:
        codes[:] = _U8(0)
        return
    levels, top = _F32((1 << (draws.bits - 1)) - 1), _U32(draws.bits - 1)
    for i in range(len(values)):
        level = _F32(_F32(abs(values[i]) / norm) * levels)
        lower = np.floor(level)
        number = _U32(draw32(_U32(place + _U32(i)), draws.key, draws.other) >> _U32(8))
        drawn = _F32(_F32(number) * draws.unit) + draws.offset
        up = _U32(_F32(drawn) < _F32(level - lower))
        sign = _U32(values[i] < 0)
        codes[i] = _U8(_U32(_U32(_U32(lower) + up) | _U32(sign << top)))


@kernel
def _dequantize(packed: Any, norms: Any, bucket: Any, bits: Any, codes: Any, values: Any) -> None:
    n, width = len(values), bits
    levels, mask = _F32((1 << (bits - 1)) - 1), _U8((1 << (bits - 1)) - 1)
    for begin in range(0, n, _RUN):
        end = min(begin + _RUN, n)
        first = begin // 8 * width
        unpack_from(packed[first : first + ((end - begin) * width + 7) // 8], width, codes[: end - begin])
        at = begin
        while at < end:
            number = at // bucket
            stop = min(end, (number + 1) * bucket)
            norm = norms[number]
            for i in range(at, stop):
                code = codes[i - begin]
                size = _F32(_F32(_F32(_U8(code & mask)) / levels) * norm)
                values[i] = -size if code > mask else size
            at = stop
