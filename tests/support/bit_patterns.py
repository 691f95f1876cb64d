"""Values of every type as the integers that their bits make: corners, noise, and values that are drawn at random.

NaN payloads and types that numpy lacks are nothing special that way.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support.reference import BY_NAME, DType

Bits: TypeAlias = npt.NDArray[np.unsignedinteger]
Array: TypeAlias = npt.NDArray[Any]

KINDS = BY_NAME  #: those of the usual head
#: What numpy has no type for: arrays of it are given to gcodec as unsigned integers and their type's name.
BITS_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
STREAM = 1 << 8  #: values per sub-stream, as this encoder writes them


def block_of(kind: DType) -> int:
    """Return the values per block, as this encoder writes them."""
    return 1 << (15 if kind.W == 8 else 14)


def infinity(kind: DType) -> int:
    """Return the bits of a full exponent field over an empty mantissa: +inf, but for float8_e4m3fn, which has none."""
    return (1 << kind.W - 1) - (1 << kind.M)


def from_floats(kind: DType, values: Array) -> Bits:
    """Return the nearest, or nearly nearest, values of a type."""
    with np.errstate(over="ignore", under="ignore"):
        if kind.name not in BITS_ONLY:
            return values.astype(kind.name).view(kind.container)
        if kind.name == "bfloat16":
            wide = values.astype(np.float32).view(np.uint32)
            return ((wide + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)
        half = values.astype(np.float16).view(np.uint16)
    if kind.name == "float8_e5m2":
        return (half >> 8).astype(np.uint8)
    assert kind.name == "float8_e4m3fn", f"how do floats become {kind.name}?"
    magnitude = np.clip(((half & 0x7FFF) >> 7).astype(np.int64) - (8 << 3), 0, 0x7E)  # its bias is 7, a half's 15
    return (magnitude | (half >> 8 & 0x80)).astype(np.uint8)


def to_floats(kind: DType, bits: Bits) -> Array:
    """Return values as float64, exactly."""
    match kind.name:
        case "bfloat16":
            floats: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
        case "float8_e5m2":
            floats = (bits.astype(np.uint16) << np.uint16(8)).view(np.float16)
        case "float8_e4m3fn":
            size = bits.astype(np.int64) & 0x7F
            fraction = np.where(size >= 8, 8 + (size & 7), size & 7)
            floats = np.ldexp(fraction.astype(np.float64), np.maximum(size >> 3, 1) - 10) * np.where(bits >> 7, -1, 1)
            floats[size == 0x7F] = np.nan
        case name:
            floats = bits.view(name)
    with np.errstate(invalid="ignore"):  # a signaling NaN
        return floats.astype(np.float64)


def noise(kind: DType, rng: np.random.Generator, n: int) -> Bits:
    """Draw bits that are 0 or 1 alike."""
    return (
        rng.integers(0, 1 << kind.W, n, kind.container.type, endpoint=False)
        if kind.W < 64
        else rng.integers(0, (1 << 64) - 1, n, np.uint64, endpoint=True)
    )


def specials(kind: DType) -> Bits:
    """Return every corner of a type, with both signs."""
    one, inf, sign, quiet = 1 << kind.M, infinity(kind), 1 << kind.W - 1, 1 << kind.M - 1
    sizes = [
        0,
        1,
        2,
        one >> 1,
        one - 1,
        one,
        one + 1,
        2 * one,
        inf >> 1,
        inf - 1,
        inf,
        inf + 1,
        inf + 2,
        inf | quiet,
        inf | quiet | 1,
        inf | quiet - 1,
        sign - 1,
    ]
    return np.array([size | s for s in (0, sign) for size in sizes if size < sign], kind.container)


def pieces(*parts: Bits) -> Bits:
    """Join arrays end to end."""
    return np.concatenate([part.reshape(-1) for part in parts])


def gaussian(kind: DType, rng: np.random.Generator, n: int, zeros: float = 0.0, scale: float = 0.01) -> Bits:
    """Draw values like a gradient's: normal, a share of them zero."""
    values = rng.standard_normal(n) * scale * (rng.random(n) >= zeros)
    return from_floats(kind, values + 0.0)


def multiples(
    kind: DType, rng: np.random.Generator, shape: tuple[int, ...], noise: float = 0.0, exponent: int = 0
) -> Bits:
    """Draw rows, of the last dimension: scales of 16 bits and both signs times one row, rounded to float32 and then to
    the type; each value changed by ``noise`` of itself. ``exponent``: of the products, about."""
    row = np.ldexp(rng.standard_normal(shape[-1]), exponent // 2).astype(np.float32)
    shifts = rng.integers(-20, -14, (*shape[:-1], 1)) + exponent - exponent // 2
    scales = np.ldexp(rng.integers(1 << 15, 1 << 16, shifts.shape) * rng.choice([-1.0, 1.0], shifts.shape), shifts)
    scales = scales.astype(np.float32)
    assert not (scales.view(np.uint32) & 0xFF).any()
    with np.errstate(over="ignore", under="ignore"):
        return from_floats(kind, scales * row * (1 + noise * rng.standard_normal(shape)).astype(np.float32))


def scaled(
    kind: DType, rng: np.random.Generator, shape: tuple[int, ...], reach: int = 3, channels: bool = False
) -> Bits:
    """Draw values like the gradient of a matrix: normal values, times a scale by row and one by column, which are
    powers of two up to ``reach`` either way; in the middle of the range. ``channels``: a convolution's, which all that
    lies behind the second dimension shares; else columns are those of the last dimension."""
    width = math.prod(shape[1:]) if channels else shape[-1]
    by_column = np.repeat(
        np.exp2(rng.integers(-reach, reach, shape[1] if channels else width, endpoint=True)),
        width // shape[1] if channels else 1,
    )
    by_row = np.exp2(rng.integers(-reach, reach, (math.prod(shape) // width, 1), endpoint=True))
    middle = 2.0 ** (5 if kind.W - 1 - kind.M == 5 else 0)
    return from_floats(kind, (rng.standard_normal((len(by_row), width)) * by_row * by_column * middle).reshape(shape))


def typed(dtype: str, bits: Bits) -> Array:
    """Return a writable copy, of floats where numpy has the type."""
    return bits.copy() if dtype in BITS_ONLY else bits.copy().view(dtype)
