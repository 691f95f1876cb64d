"""QSGD's arithmetic: values to packed levels and back, in runs that stay in cache; float32 on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.core.jit import kernel
from .bit_packing import pack_into, packed_size, packed_view, unpack_from
from .draws import draw32

_RUN = 4096  #: values that are coded before they are packed: a multiple of 8
_U8, _U32, _F32 = np.uint8, np.uint32, np.float32
_UNIT = np.float32(2.0**-24)
_NEAREST = np.float32(0.5 - 2.0**-25)  #: what is not below it is rounded up


def norms_of(values: np.ndarray, bucket: int, by_max: bool) -> np.ndarray:
    """Of each bucket of float32[n], the greatest size or the L2 norm: float32[ceil(n / bucket)]."""
    norms = np.empty(-(-len(values) // bucket), np.float32)
    if by_max:
        _greatest(values.view(np.uint32), bucket, norms.view(np.uint32))
    else:
        _lengths(values, bucket, norms)
    return norms


def quantize(values: np.ndarray, norms: np.ndarray, bucket: int, bits: int, key: int | None) -> np.ndarray:
    """Codes of ``bits``, packed: uint8. ``key``, 64 bits, of what decides between two levels; None: the nearer one."""
    packed = np.empty(packed_size(len(values), bits), np.uint8)
    keys = _U32((key or 0) & 0xFFFFFFFF), _U32((key or 0) >> 32)
    offset, unit = (_NEAREST, _F32(0)) if key is None else (_F32(0), _UNIT)
    _quantize(values, norms, bucket, bits, *keys, offset, unit, np.empty(_RUN, np.uint8), packed)
    return packed


def dequantize(packed: Any, norms: np.ndarray, bucket: int, bits: int, n_values: int) -> np.ndarray:
    """The values that codes stand for: float32[n]. Raises Corruption for other than the right number of bytes."""
    values = np.empty(n_values, np.float32)
    _dequantize(packed_view(packed, n_values, bits), norms, bucket, bits, np.empty(_RUN, np.uint8), values)
    return values


@kernel
def _greatest(bits: Any, bucket: Any, norms: Any) -> None:
    """Bits of sizes, in whose order NaN comes last."""
    for number in range(len(norms)):
        most = _U32(0)
        for i in range(number * bucket, min((number + 1) * bucket, len(bits))):
            most = max(most, _U32(bits[i] & _U32(0x7FFFFFFF)))
        norms[number] = most


@kernel
def _lengths(values: Any, bucket: Any, norms: Any) -> None:
    for number in range(len(norms)):
        total = 0.0
        for i in range(number * bucket, min((number + 1) * bucket, len(values))):
            total += np.float64(values[i]) * np.float64(values[i])
        norms[number] = _F32(np.sqrt(total))


@kernel
def _quantize(
    values: Any, norms: Any, bucket: Any, bits: Any, key: Any, other: Any, offset: Any, unit: Any,
    codes: Any, packed: Any
) -> None:
    """Run by run: the codes, one bucket after another, and then their bits."""
    n = len(values)
    for begin in range(0, n, _RUN):
        end = min(begin + _RUN, n)
        at = begin
        while at < end:
            number = at // bucket
            stop = min(end, (number + 1) * bucket)
            own = codes[at - begin : stop - begin]
            _code(values[at:stop], norms[number], bits, _U32(at), key, other, offset, unit, own)
            at = stop
        first = begin // 8 * bits
        pack_into(codes[: end - begin], bits, packed[first : first + ((end - begin) * bits + 7) // 8])


@kernel
def _code(
    values: Any, norm: Any, bits: Any, place: Any, key: Any, other: Any, offset: Any, unit: Any, codes: Any
) -> None:
    """Of some values of a bucket: the level below, or the one above where a number drawn from [0, 1) is less than the
    way up to the value; and the sign. A norm of zero, infinity or NaN says it all."""
    if not 0 < norm < np.inf:
        codes[:] = _U8(0)
        return
    levels, top = _F32((1 << (bits - 1)) - 1), _U32(bits - 1)
    for i in range(len(values)):
        level = _F32(_F32(abs(values[i]) / norm) * levels)
        lower = np.floor(level)
        drawn = _F32(_F32(_U32(draw32(_U32(place + _U32(i)), key, other) >> _U32(8))) * unit) + offset
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
