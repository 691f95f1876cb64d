"""Float arithmetic in which every operation rounds once, to the nearest, on CPUs and on CUDA devices alike.

Compilers for CUDA fuse a product and a sum that follow each other, and round once where the source says twice; numba
has no switch for that. Written with these functions, a formula has the same bits everywhere: for a CPU they are the
plain operations, which LLVM fuses only where it is allowed to, for a device those that are never fused. Both arguments
have one type, float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .jit import kernel
from .scalar import U32
from .unaligned import bits_of_float, float_from_bits

WIDE, BFLOAT16, HALF = range(3)  #: kinds of floats: float32, bfloat16, float16
_MIN_NORMAL_HALF = np.float32(2.0**-14)  #: the smallest float16 that is not denormal
_LETTERS = {types.float32: "f", types.float64: "d"}


def _for_device(builder: Any) -> bool:
    return str(builder.module.triple).startswith("nvptx")


def _called(builder: Any, name: str, args: Any) -> Any:
    kind = ir.FunctionType(args[0].type, [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def _operation(name: str, plain: Callable[[Any, Any, Any], Any]) -> Any:
    """Make an operation of two numbers.

    Args:
        name: NVVM's name of it.
        plain: Emits the CPU's: ``plain(builder, a, b)``.
    """

    def typer(typingctx: Any, a: Any, b: Any) -> Any:
        if a not in _LETTERS or a != b:
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if _for_device(builder):
                return _called(builder, f"llvm.nvvm.{name}.rn.{_LETTERS[a]}", args)
            return plain(builder, *args)

        return a(a, a), generate

    return intrinsic(typer)


plus = _operation("add", lambda builder, a, b: builder.fadd(a, b))
times = _operation("mul", lambda builder, a, b: builder.fmul(a, b))
over = _operation("div", lambda builder, a, b: builder.fdiv(a, b))


@intrinsic
def minus(typingctx: Any, a: Any, b: Any) -> Any:
    """Return a - b; on a device a + -b, which is the same: NVVM has no subtraction that is never fused."""
    if a not in _LETTERS or a != b:
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _for_device(builder):
            negated = builder.fsub(ir.Constant(args[1].type, -0.0), args[1])  # NVVM's LLVM has no fneg
            return _called(builder, f"llvm.nvvm.add.rn.{_LETTERS[a]}", [args[0], negated])
        return builder.fsub(*args)

    return a(a, a), generate


@intrinsic
def root(typingctx: Any, a: Any) -> Any:
    """Return the square root."""
    if a not in _LETTERS:
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name = f"llvm.nvvm.sqrt.rn.{_LETTERS[a]}" if _for_device(builder) else f"llvm.sqrt.f{a.bitwidth}"
        return _called(builder, name, args)

    return a(a), generate


@kernel
def from_bfloat16(bits):
    """Return the float32 equal to a bfloat16, given its bits, a uint32.

        bfloat16   s eeeeeeee mmmmmmm
        float32    s eeeeeeee mmmmmmm0000000000000000
    """
    return float_from_bits(U32(bits << U32(16)))


@kernel
def from_half(bits):
    """Return the float32 equal to a finite float16, given its bits, a uint32.

        float16    s    eeeee mmmmmmmmmm
        float32    s (e + 112) mmmmmmmmmm0000000000000      e > 0
        denormal   s (0 + 113) mmmmmmmmmm0000000000000      less the 1 above the mantissa that this has too much, 2**-14

    Both are computed and one is chosen, so that loops become vectors. No float32 on the way is denormal, which a
    processor might take for zero.
    """
    magnitude = U32(U32(bits & U32(0x7FFF)) << U32(13))
    normal = float_from_bits(U32(magnitude + U32(0x38000000)))
    denormal = minus(float_from_bits(U32(magnitude + U32(0x38800000))), _MIN_NORMAL_HALF)
    size = normal if magnitude >= U32(0x800000) else denormal
    return float_from_bits(U32(bits_of_float(size) | U32(U32(bits & U32(0x8000)) << U32(16))))


@kernel
def widened(bits, kind):
    """Return a float as the float32 of equal value.

        float16    s    11111 mmmmmmmmmm     an infinity or a NaN; all others by :func:`from_half`
        float32    s 11111111 mmmmmmmmmm0000000000000

    Args:
        bits: The float's bits, uint32.
        kind: ``WIDE``, ``BFLOAT16`` or ``HALF``, uint32.
    """
    if kind == U32(WIDE):
        return float_from_bits(bits)
    if kind == U32(BFLOAT16):
        return from_bfloat16(bits)
    if U32(bits & U32(0x7C00)) == U32(0x7C00):
        sign = U32(U32(bits & U32(0x8000)) << U32(16))
        return float_from_bits(U32(sign | U32(U32(bits << U32(13)) | U32(0x7F800000))))
    return from_half(bits)
