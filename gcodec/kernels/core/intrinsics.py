"""The target that kernels are compiled for, and intrinsics: steps written in LLVM's terms that kernels can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .cpu_levels import AVX2, AVX512, BMI2, SSSE3
from .numba_private import has_features
from .unaligned import pointer

_INDEX = ir.IntType(64)


HAS_AVX512 = has_features(*AVX512)
HAS_AVX2 = has_features(*AVX2)
HAS_SSSE3 = has_features(*SSSE3)
HAS_BMI2 = has_features(*BMI2)
#: Several planes by classes of symbols (:mod:`classes_shuffles`).
BY_CLASSES = HAS_SSSE3 and not HAS_AVX512


def intrinsic_step(
    result: Any, n_args: int, generate: Callable[[Any, list[Any], Callable[[int, int], Any]], Any]
) -> Any:
    """Make an intrinsic over (array, index) pairs and integers.

    Args:
        result: numba's type of the result.
        n_args: Number of arguments.
        generate: Emits the step: ``generate(builder, args, at)`` returns its result, or None of a void one. ``at(i,
            bits)`` is the address in array ``args[i]`` of element ``args[i + 1]``, elements having this many bits.
    """

    def body(typingctx: Any, *args: Any) -> Any:
        kinds = [a if isinstance(a, types.Array) else types.intp for a in args]

        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            def at(i: int, bits: int) -> Any:
                # In bytes, and of this step's elements: an array of bytes may hold words that a step takes as such.
                offset = builder.mul(values[i + 1], ir.Constant(_INDEX, bits // 8))
                return pointer(context, builder, signature.args[i], values[i], offset)

            value = generate(builder, values, at)
            return context.get_dummy_value() if value is None else value

        return result(*kinds), codegen

    parameters = ", ".join(f"a{i}" for i in range(n_args))
    scope: dict[str, Any] = {"body": body}
    exec(
        f"def typer(typingctx, {parameters}): return body(typingctx, {parameters})", scope
    )  # intrinsics need named arguments
    return intrinsic(scope["typer"])
