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
from .unaligned import float_from_bits

WIDE, BFLOAT16, HALF = range(3)  #: kinds of floats: float32, bfloat16, float16
_TINY = np.float32(2.0**-24)  #: the smallest positive float16
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
def widened(bits, kind):
    """Return a float as the float32 of equal value.

        bfloat16   s eeeeeeee mmmmmmm        s eeeeeeee mmmmmmm0000000000000000
        float16    s eeeee mmmmmmmmmm        s (e + 112) mmmmmmmmmm0000000000000    infinity and NaN: e + 224

    Args:
        bits: The float's bits, uint32.
        kind: ``WIDE``, ``BFLOAT16`` or ``HALF``, uint32.
    """
    if kind == U32(WIDE):
        return float_from_bits(bits)
    if kind == U32(BFLOAT16):
        return float_from_bits(U32(bits << U32(16)))
    sign, size = U32(U32(bits & U32(0x8000)) << U32(16)), U32(bits & U32(0x7FFF))
    if size < U32(0x400):  # denormal
        small = times(np.float32(np.int32(size)), _TINY)
        return -small if sign else small
    more = U32(255 - 31 << 23) if size >= U32(0x7C00) else U32(127 - 15 << 23)
    return float_from_bits(U32(sign | U32(U32(size << U32(13)) + more)))
