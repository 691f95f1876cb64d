"""Widen arrays of floats of 16 bits, as the kernels of rules take only float32 and float64."""

from __future__ import annotations

from ..core.floats import from_bfloat16, from_half
from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import bits_of_float, float_from_bits

_INFINITE = 0x7C00  #: the bits of an infinite float16, which are those of NaN, too


@kernel
def widen_bfloat16(bits, out):
    """Write the float32 equal to each bfloat16.

    Args:
        bits: uint16[n].
        out: float32[n], result.
    """
    for i in range(len(bits)):
        out[i] = from_bfloat16(U32(bits[i]))


@kernel
def widen_half(bits, out):
    """Write the float32 equal to each float16, infinities and NaN included.

    Args:
        bits: uint16[n].
        out: float32[n], result.
    """
    for i in range(len(bits)):
        half = U32(bits[i])
        special = U32(0x7F800000) if half & U32(_INFINITE) == U32(_INFINITE) else U32(0)
        out[i] = float_from_bits(U32(bits_of_float(from_half(half)) | special))
