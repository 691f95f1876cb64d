"""The pairs that every law of bases meets: an array and its base, such as a checkpoint and the one before it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cached_property
from random import Random
from typing import TypeAlias

import numpy as np

from tests.support.bit_patterns import (
    KINDS,
    Array,
    Bits,
    block_of,
    from_floats,
    gaussian,
    multiples,
    noise,
    pieces,
    specials,
    typed,
)
from tests.support.cases import Case, TableEntry
from tests.support.reference import DType

PairMaker: TypeAlias = Callable[[DType, np.random.Generator], tuple[Bits, Bits]]
PAIR_MAKERS: dict[str, PairMaker] = {}


def pair(name: str) -> Callable[[PairMaker], PairMaker]:
    """Add a maker to the pairs that every law of bases meets, for every type that has predicted blocks."""

    def register(maker: PairMaker) -> PairMaker:
        assert name not in PAIR_MAKERS, name
        PAIR_MAKERS[name] = maker
        return maker

    return register


class Pair(TableEntry):
    """An array and its base: ``dtype`` and ``name`` say which."""

    @cached_property
    def both(self) -> tuple[Bits, Bits]:
        """Bits of the array and of its base; read-only, and not the same memory."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        bits, base = (np.array(values) for values in PAIR_MAKERS[self.name](self.kind, rng))  # 0-d, too
        for values in (bits, base):
            assert values.dtype == self.kind.container and values.size == base.size
            values.setflags(write=False)
        return bits, base

    @property
    def bits(self) -> Bits:
        """The array's values, in its shape."""
        return self.both[0]

    @property
    def base(self) -> Bits:
        """The base's values."""
        return self.both[1]

    def array(self) -> Array:
        """Return the array to encode."""
        return typed(self.dtype, self.bits)

    def earlier(self) -> Array:
        """Return the base to encode it against."""
        return typed(self.dtype, self.base)


def rng_of(which: Case | Pair) -> Random:
    """Return a generator that draws the same numbers for a case in every run."""
    return Random(zlib.crc32(str(which).encode()))


def stepped(kind: DType, base: Bits, steps: Array) -> Bits:
    """Return values so many steps from others, in the order of numbers, around its ends: docs/format.md section 8."""
    half, whole = np.uint64(1 << kind.W - 1), np.uint64((1 << kind.W) - 1)
    wide = base.astype(np.uint64)
    place = np.where(wide < half, wide, ~(wide - half)) + np.asarray(steps).astype(np.uint64) & whole
    return np.where(place < half, place, ~place + half & whole).astype(kind.container)


def trained(kind: DType, rng: np.random.Generator, shape: tuple[int, ...], step: float) -> tuple[Bits, Bits]:
    """Draw values like those of parameters, and what they were before each changed by about ``step`` of itself."""
    values = rng.standard_normal(shape) * 0.05
    return from_floats(kind, values * (1 + step * rng.standard_normal(shape))), from_floats(kind, values)


def _trained(step: float, *shape: int) -> PairMaker:
    return lambda kind, rng: trained(kind, rng, shape, step)


PAIR_MAKERS |= {
    "near its base": _trained(2.0**-8, 1500),
    "nearer, an odd number of values": _trained(2.0**-14, 1501),
    "near, three dimensions": _trained(2.0**-9, 5, 33, 128),
    "a block less one": _trained(2.0**-9, (1 << 14) - 1),
    "a block": _trained(2.0**-9, 1 << 14),
    "a block and one": _trained(2.0**-9, (1 << 14) + 1),
    "three blocks and a bit": _trained(2.0**-7, 3 * (1 << 14) + 301),
    "one value": _trained(2.0**-9, 1),
    "three values": _trained(2.0**-9, 3),
    "0-d": _trained(2.0**-9),
    "empty": _trained(2.0**-9, 0),
    "empty of three dimensions": _trained(2.0**-9, 3, 0, 2),
    "some signs changed": _trained(0.5, 3000),
}


@pair("equal")
def _equal(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    bits = gaussian(kind, rng, 40_000, zeros=0.1)
    return bits, bits


@pair("equal but for one value")
def _equal_but_one(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    base = gaussian(kind, rng, 1999)
    bits = base.copy()
    bits[1023] ^= 1
    return bits, base


@pair("equal noise")
def _equal_noise(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    bits = noise(kind, rng, 40_001)
    return bits, bits


@pair("a few values changed")
def _few_changed(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    base = gaussian(kind, rng, 1800)
    return np.where(rng.random(1800) < 0.01, noise(kind, rng, 1800), base).astype(kind.container), base


@pair("another order of dimensions")
def _other_shape(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Values meet by their place in row-major order, whatever the shapes."""
    bits, base = trained(kind, rng, (30, 51), 2.0**-9)
    return bits, base.reshape(3, 17, 30)


@pair("far from its base")
def _far(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    return gaussian(kind, rng, 1700), gaussian(kind, rng, 1700, scale=3.0)


@pair("noise and noise")
def _noises(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    return noise(kind, rng, 900), noise(kind, rng, 900)


@pair("noise, and a base of zeros")
def _zero_base(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    return gaussian(kind, rng, 900), np.zeros(900, kind.container)


@pair("zeros, and a base of noise")
def _zeros_now(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    return np.zeros(900, kind.container), noise(kind, rng, 900)


@pair("all zeros")
def _all_zeros(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    zeros = np.zeros(20_000, kind.container)
    return zeros, zeros


@pair("corners against corners")
def _corners(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Every pair of NaNs, infinities, zeros of both signs and all others, among values that gain by the base."""
    special = specials(kind)
    bits, base = trained(kind, rng, (1500,), 2.0**-9)
    places = rng.permutation(1500 + len(special) ** 2)
    return (
        pieces(bits, np.repeat(special, len(special)))[places],
        pieces(base, np.tile(special, len(special)))[places],
    )


@pair("a step from every corner")
def _around_corners(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Steps of 0 ... 15 and of each number of digits, also from -0 to 0 and around the ends of the order."""
    special = specials(kind)
    sizes = [*range(16), *(1 << i for i in range(4, kind.W)), *((1 << i) - 1 for i in range(5, kind.W))]
    steps = np.array([*sizes, *(-size for size in sizes)], np.int64)
    base = np.tile(np.repeat(special, len(steps)), 2)
    return stepped(kind, base, np.tile(steps, 2 * len(special))), base


@pair("blocks of every kind")
def _every_kind(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """Near, constant, noise, far, equal, and near again."""
    n = block_of(kind)
    bits, base = trained(kind, rng, (6 * n - 77,), 2.0**-9)
    bits[n : 2 * n], bits[2 * n : 3 * n] = bits[n], noise(kind, rng, n)
    bits[3 * n : 4 * n], bits[4 * n : 5 * n] = gaussian(kind, rng, n, scale=1e-4), base[4 * n : 5 * n]
    return bits, base


@pair("near, and rows that are multiples")
def _base_and_template(kind: DType, rng: np.random.Generator) -> tuple[Bits, Bits]:
    """The first half is better off with the base, the second with a template."""
    bits = multiples(kind, rng, (600, 128))
    base = gaussian(kind, rng, bits.size).reshape(bits.shape)
    base[:300] = bits[:300]
    return bits, base


PAIRS = tuple(Pair(dtype, name) for dtype, kind in KINDS.items() if kind.predicted for name in PAIR_MAKERS)
