"""The target that kernels are compiled for, and intrinsics: steps written in LLVM's terms that kernels can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic

from .cpu_levels import AVX2, AVX512, BMI2, SSSE3
from .numba_private import named_cpu
from .unaligned import pointer

_INDEX = ir.IntType(64)


def _has(*features: str) -> bool:
    """Return whether the CPU that kernels are compiled for has these features: the host, or NUMBA_CPU_FEATURES."""
    named = named_cpu().features
    if named is not None:
        return all(f"+{feature}" in named.split(",") for feature in features)
    host = get_host_cpu_features()
    return all(host.get(feature, False) for feature in features)


HAS_AVX512 = _has(*AVX512)
HAS_AVX2 = _has(*AVX2) or named_cpu().name in ("x86-64-v3", "x86-64-v4")
HAS_SSSE3 = _has(*SSSE3) or named_cpu().name in ("x86-64-v2", "x86-64-v3", "x86-64-v4")
HAS_BMI2 = _has(*BMI2)
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
