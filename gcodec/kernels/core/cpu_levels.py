"""The kinds of CPUs that kernels distinguish, and the levels that compiled kernels are shipped for (docs/caches.md).

Kernels choose their steps by four sets of features. Code that was compiled where the choices were others must not meet
tables that were filled by this process, so a level serves only CPUs with the same choices.

    level        as of     chooses
    x86-64-v2    2009      SSSE3
    x86-64-v3    2013      SSSE3, BMI2, AVX2
    avx512       2019      SSSE3, BMI2, AVX2, AVX-512 with byte permutes
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: Masked compress and expand of bytes and words, and byte permutes over two registers.
AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512vbmi", "avx512vbmi2")
#: Byte permutes of 16 bytes and a count of bits: every x86-64 since 2009.
SSSE3 = ("ssse3", "popcnt")
#: The same on 32 bytes, and shifts of each lane by an amount of its own.
AVX2 = ("avx2",)
#: Bits deposited at the places of a mask, in one step.
BMI2 = ("bmi2",)

CHOICES = (AVX512, AVX2, SSSE3, BMI2)

_V2 = ("cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3")
_V3 = (*_V2, "avx", *AVX2, "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_AVX512 = (*_V3, *AVX512, "avx512cd", "avx512dq", "avx512bitalg", "avx512vpopcntdq")
#: What LLVM's names of CPUs stand for, of those that promise what kernels ask for.
FEATURES_BY_NAME = {"x86-64-v2": _V2, "x86-64-v3": _V3,
                    "x86-64-v4": (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")}  # fmt: skip


class CpuLevel(NamedTuple):
    """Describes what a set of shipped kernels is compiled for.

    Attributes:
        name: Name of the level.
        cpu: LLVM's name of the CPU.
        features: LLVM's names of the features that it may use.
    """

    name: str
    cpu: str
    features: tuple[str, ...]

    @property
    def flags(self) -> str:
        """Return the features as ``NUMBA_CPU_FEATURES`` takes them."""
        return ",".join((*(f"+{feature}" for feature in self.features), "-prefer-256-bit"))


LEVELS = (CpuLevel("avx512", "x86-64-v4", _AVX512), CpuLevel("x86-64-v3", "x86-64-v3", _V3),
          CpuLevel("x86-64-v2", "x86-64-v2", _V2))  # fmt: skip


def level_for(has: Callable[[str], bool]) -> CpuLevel | None:
    """Return the level for a CPU: the highest that it can run, if kernels make the same choices there.

    Args:
        has: Returns True for the names of features that the CPU has.
    """
    for level in LEVELS:
        if all(map(has, level.features)):
            choices = [(all(map(has, choice)), set(choice) <= set(level.features)) for choice in CHOICES]
            return level if all(here == there for here, there in choices) else None
    return None
