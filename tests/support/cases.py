"""The cases that every law meets: arrays of every type, shape and nature, and the modes to encode them in.

An array is held as the integers that its values' bits make (``Case.bits``), so that NaN payloads and types that numpy
lacks are nothing special. Each is drawn from a seed of its own name: adding one changes none of the others.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from random import Random
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from gcodec import FINE_LADDER, LITERAL_GCOMP, PAPER_LADDER, EncoderOptions, Ladder
from gcodec.truncation.reference import round_to_levels
from tests.support.paths import CORPUS
from tests.support.reference import BY_NAME, DType

Bits: TypeAlias = npt.NDArray[np.unsignedinteger]
Array: TypeAlias = npt.NDArray[Any]

KINDS = BY_NAME     #: those of the usual head, codes 1 to 6
#: What numpy has no type for: arrays of it are given to gcodec as unsigned integers and their type's name.
BITS_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
STREAM = 1 << 8     #: values per sub-stream, as this encoder writes them


def block_of(kind: DType) -> int:
    """Return the values per block, as this encoder writes them."""
    return 1 << (15 if kind.W == 8 else 14)


# ------------------------------------------------------------------------------------------------- Bit patterns


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
    magnitude = np.clip(((half & 0x7FFF) >> 7).astype(np.int64) - (8 << 3), 0, 0x7E)     # its bias is 7, a half's 15
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
    with np.errstate(invalid="ignore"):     # a signaling NaN
        return floats.astype(np.float64)


def noise(kind: DType, rng: np.random.Generator, n: int) -> Bits:
    """Draw bits that are 0 or 1 alike."""
    return rng.integers(0, 1 << kind.W, n, kind.container.type, endpoint=False) if kind.W < 64 else rng.integers(
        0, (1 << 64) - 1, n, np.uint64, endpoint=True)


def specials(kind: DType) -> Bits:
    """Return every corner of a type, with both signs."""
    one, inf, sign, quiet = 1 << kind.M, infinity(kind), 1 << kind.W - 1, 1 << kind.M - 1
    sizes = [0, 1, 2, one >> 1, one - 1, one, one + 1, 2 * one, inf >> 1, inf - 1, inf, inf + 1, inf + 2, inf | quiet,
             inf | quiet | 1, inf | quiet - 1, sign - 1]
    return np.array([size | s for s in (0, sign) for size in sizes if size < sign], kind.container)


# -------------------------------------------------------------------------------------------------------- Cases

Maker: TypeAlias = Callable[[DType, np.random.Generator], Bits]
MAKERS: dict[str, Maker] = {}


def case(name: str) -> Callable[[Maker], Maker]:
    """Add a maker to the arrays that every law meets, for every type."""
    def register(maker: Maker) -> Maker:
        assert name not in MAKERS, name
        MAKERS[name] = maker
        return maker

    return register


@dataclass(frozen=True)
class Case:
    """An array of the table: ``dtype`` and ``name`` say which."""

    dtype: str
    name: str

    def __str__(self) -> str:
        return f"{self.dtype}, {self.name}"

    @property
    def kind(self) -> DType:
        """The value type, as the page describes it."""
        return KINDS[self.dtype]

    @cached_property
    def bits(self) -> Bits:
        """The values' bits, in the array's shape; read-only."""
        bits = MAKERS[self.name](self.kind, np.random.default_rng(zlib.crc32(str(self).encode())))
        assert bits.dtype == self.kind.container
        bits.setflags(write=False)
        return bits

    def array(self) -> Array:
        """A writable numpy array to encode: of floats where numpy has the type, else of their bits."""
        bits = self.bits.copy()
        return bits if self.dtype in BITS_ONLY else bits.view(self.dtype)

    @property
    def options(self) -> dict[str, Any]:
        """The keywords that ``encode`` needs besides the array."""
        return {"dtype": self.dtype} if self.dtype in BITS_ONLY else {}


def pieces(*parts: Bits) -> Bits:
    """Join arrays end to end."""
    return np.concatenate([part.reshape(-1) for part in parts])


def gaussian(kind: DType, rng: np.random.Generator, n: int, zeros: float = 0.0, scale: float = 0.01) -> Bits:
    """Draw values like a gradient's: normal, a share of them zero."""
    values = rng.standard_normal(n) * scale * (rng.random(n) >= zeros)
    return from_floats(kind, values + 0.0)


@case("empty")
def _empty(kind: DType, rng: np.random.Generator) -> Bits:
    return np.zeros(0, kind.container)


@case("empty of three dimensions")
def _empty_3d(kind: DType, rng: np.random.Generator) -> Bits:
    return np.zeros((3, 0, 2), kind.container)


@case("0-d")
def _scalar(kind: DType, rng: np.random.Generator) -> Bits:
    return gaussian(kind, rng, 1, scale=1.0).reshape(())


@case("one value")
def _one(kind: DType, rng: np.random.Generator) -> Bits:
    return noise(kind, rng, 1)


@case("two values")
def _two(kind: DType, rng: np.random.Generator) -> Bits:
    return np.array([0, 1 << kind.W - 1], kind.container)


@case("three dimensions")
def _three_dimensions(kind: DType, rng: np.random.Generator) -> Bits:
    return gaussian(kind, rng, 7 * 11 * 13).reshape(7, 11, 13)


@case("many dimensions")
def _many_dimensions(kind: DType, rng: np.random.Generator) -> Bits:
    return gaussian(kind, rng, 64).reshape((1, 2) * 6 + (1,) * 4)


@case("every corner of the type")
def _specials(kind: DType, rng: np.random.Generator) -> Bits:
    return specials(kind)


@case("corners among gaussian values")
def _specials_among(kind: DType, rng: np.random.Generator) -> Bits:
    bits = pieces(gaussian(kind, rng, 1500, zeros=0.2), np.repeat(specials(kind), 2))
    return rng.permutation(bits)


@case("all zero")
def _zeros(kind: DType, rng: np.random.Generator) -> Bits:
    return np.zeros(block_of(kind) + 1, kind.container)


@case("all minus zero")
def _minus_zeros(kind: DType, rng: np.random.Generator) -> Bits:
    return np.full(300, 1 << kind.W - 1, kind.container)


@case("zero and minus zero")
def _both_zeros(kind: DType, rng: np.random.Generator) -> Bits:
    return rng.choice([0, 1 << kind.W - 1], 700).astype(kind.container)


@case("one constant")
def _constant(kind: DType, rng: np.random.Generator) -> Bits:
    return np.repeat(gaussian(kind, rng, 1, scale=1.0), 2 * block_of(kind))


@case("a constant NaN")
def _constant_nan(kind: DType, rng: np.random.Generator) -> Bits:
    return np.full(77, infinity(kind) + 1, kind.container)


@case("all but one zero")
def _all_but_one_zero(kind: DType, rng: np.random.Generator) -> Bits:
    bits = np.zeros(block_of(kind) + 300, kind.container)
    bits[block_of(kind) - 1] = from_floats(kind, np.array([1.5]))[0]
    return bits


@case("the last value differs")
def _last_differs(kind: DType, rng: np.random.Generator) -> Bits:
    bits = np.full(1000, infinity(kind) >> 1, kind.container)
    bits[-1] += 1
    return bits


@case("one zero among many")
def _one_zero(kind: DType, rng: np.random.Generator) -> Bits:
    bits = gaussian(kind, rng, 2 * block_of(kind), scale=4.0)
    bits[bits == 0] += 1
    bits[777] = 0
    return bits


@case("rows of zeros")
def _sparse_rows(kind: DType, rng: np.random.Generator) -> Bits:
    rows = gaussian(kind, rng, 60 * 96).reshape(60, 96)
    rows[rng.random(60) < 0.8] = 0
    return rows


@case("blocks of zeros")
def _zero_blocks(kind: DType, rng: np.random.Generator) -> Bits:
    zeros = np.zeros(block_of(kind), kind.container)
    return pieces(zeros, gaussian(kind, rng, 700), zeros[700:], zeros)


@case("noise")
def _noise(kind: DType, rng: np.random.Generator) -> Bits:
    return noise(kind, rng, 900)


@case("a block and more of noise")
def _block_of_noise(kind: DType, rng: np.random.Generator) -> Bits:
    return noise(kind, rng, block_of(kind) + 100)


@case("gaussian")
def _gaussian(kind: DType, rng: np.random.Generator) -> Bits:
    return gaussian(kind, rng, 3000)


@case("gaussian, three in ten zero")
def _gaussian_zeros(kind: DType, rng: np.random.Generator) -> Bits:
    return gaussian(kind, rng, 3000, zeros=0.3)


@case("uniform")
def _uniform(kind: DType, rng: np.random.Generator) -> Bits:
    return from_floats(kind, rng.uniform(-1, 1, 1200))


@case("sorted")
def _sorted(kind: DType, rng: np.random.Generator) -> Bits:
    return from_floats(kind, np.sort(rng.standard_normal(2500)))


@case("counting up")
def _counting(kind: DType, rng: np.random.Generator) -> Bits:
    return from_floats(kind, np.arange(1300.0))


@case("every head")
def _every_head(kind: DType, rng: np.random.Generator) -> Bits:
    heads = rng.permutation(np.arange(1 << kind.H, dtype=np.uint64))
    if kind.T == 0:
        return heads.astype(kind.container)
    tails = noise(kind, rng, len(heads)) & kind.container.type((1 << kind.W - 1) | (1 << kind.T - 1) - 1)
    shifted: Bits = (heads << np.uint64(kind.T - 1)).astype(kind.container)
    return np.bitwise_or(tails, shifted)


@case("few far from the rest")
def _outliers(kind: DType, rng: np.random.Generator) -> Bits:
    bits = gaussian(kind, rng, block_of(kind) + 1)
    far = rng.random(len(bits)) < 0.004
    return np.where(far, noise(kind, rng, len(bits)), bits).astype(kind.container)


@case("scale by row")
def _row_scales(kind: DType, rng: np.random.Generator) -> Bits:
    reach = {5: 10, 4: 5}.get(kind.W - 1 - kind.M, 70)
    rows = rng.standard_normal((24, STREAM)) * np.exp2(rng.integers(-reach, reach, (24, 1)))
    return from_floats(kind, rows)


@case("scale by block")
def _block_scales(kind: DType, rng: np.random.Generator) -> Bits:
    return pieces(gaussian(kind, rng, block_of(kind), scale=1e-3), gaussian(kind, rng, 1200, scale=8.0))


@case("spread by block")
def _block_spreads(kind: DType, rng: np.random.Generator) -> Bits:
    reach = {5: 8, 4: 4}.get(kind.W - 1 - kind.M, 25)
    wide = rng.standard_normal(block_of(kind)) * np.exp2(rng.uniform(-reach, reach, block_of(kind)))
    return pieces(gaussian(kind, rng, block_of(kind), zeros=0.4), from_floats(kind, wide), gaussian(kind, rng, 50))


@case("denormal")
def _denormals(kind: DType, rng: np.random.Generator) -> Bits:
    small = noise(kind, rng, 600) & kind.container.type((1 << kind.W - 1) | (1 << kind.M) - 1)
    return pieces(small, gaussian(kind, rng, 200))


@case("runs of equal sub-streams")
def _runs(kind: DType, rng: np.random.Generator) -> Bits:
    rows = from_floats(kind, rng.uniform(1, 1.999, (12, STREAM)))
    rows[2:5], rows[7] = 0, from_floats(kind, rng.standard_normal(STREAM))
    rows[9, 3] = infinity(kind)
    return rows.reshape(-1)[:-5]


def _of_length(blocks: int, values: int) -> Maker:
    return lambda kind, rng: gaussian(kind, rng, blocks * block_of(kind) + values, zeros=0.1)


MAKERS |= {
    "255 values": _of_length(0, STREAM - 1),
    "256 values": _of_length(0, STREAM),
    "257 values": _of_length(0, STREAM + 1),
    "a block less one": _of_length(1, -1),
    "a block": _of_length(1, 0),
    "a block and one": _of_length(1, 1),
    "three blocks and a bit": _of_length(3, 300),
}


@cache
def recorded() -> dict[str, Array]:
    """Return gradients from ``tests/corpus``: "transformer-step-000400/head.weight" and so on, float32."""
    from safetensors import safe_open

    gradients = {}
    for path in sorted(CORPUS.glob("*.safetensors")):
        with safe_open(path, "np") as dump:
            for key in sorted(dump.keys()):
                if key.startswith("grad/"):
                    gradients[f"{path.stem}/{key.removeprefix('grad/')}"] = dump.get_tensor(key)
    return gradients


def _of_record(name: str) -> Maker:
    def make(kind: DType, rng: np.random.Generator) -> Bits:
        grad = recorded()[name]
        rows = max(1, 4000 // max(grad[0].size, 1)) if grad.ndim > 1 else len(grad)
        scale = 1.0 if kind.W - 1 - kind.M > 5 else 2.0 ** 12       # narrow types need loss scaling
        return from_floats(kind, grad[:rows].astype(np.float64) * scale)

    return make


for _name in ("cnn-step-000020/blocks.3.conv2.weight", "cnn-step-000600/head.weight",
              "transformer-step-000020/embedding.weight", "transformer-step-000400/head.weight",
              "transformer-step-000400/norm.weight"):
    if find_spec("safetensors"):        # a machine with a GPU may lack it (`make test-gpu`)
        MAKERS[f"recorded {_name}"] = _of_record(_name)

CASES = tuple(Case(dtype, name) for dtype in KINDS for name in MAKERS)
#: Cases whose frames are short enough to spoil bit by bit.
SHORT = ("empty", "empty of three dimensions", "0-d", "one value", "two values", "every corner of the type",
         "all zero", "255 values", "runs of equal sub-streams", "denormal")


# Arrays that are worth a second thread, for the laws that ask for one: not in CASES.


@case("gaussian of 17 blocks")
def _large_gaussian(kind: DType, rng: np.random.Generator) -> Bits:
    return gaussian(kind, rng, 17 * block_of(kind) + 77, zeros=0.2)


@case("mixture of 17 blocks")
def _large_mixture(kind: DType, rng: np.random.Generator) -> Bits:
    """Raw, constant and coded blocks of several scales, in no order."""
    n = block_of(kind)
    makers = [lambda: noise(kind, rng, n), lambda: np.zeros(n, kind.container), lambda: gaussian(kind, rng, n),
              lambda: gaussian(kind, rng, n, zeros=0.7, scale=1e-3), lambda: gaussian(kind, rng, n, scale=4.0)]
    return pieces(*(makers[i]() for i in rng.integers(0, len(makers), 17)), gaussian(kind, rng, 9))


LARGE = tuple(Case(dtype, name) for dtype in KINDS for name in MAKERS if name.endswith("17 blocks"))


# Arrays of rows that are nearly multiples of one row, for types that have predicted blocks: not in CASES.


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


@case("multiples: 33 columns")
def _multiples(kind: DType, rng: np.random.Generator) -> Bits:
    return multiples(kind, rng, (300, 33))


@case("multiples: 128 columns, three dimensions")
def _multiples_3d(kind: DType, rng: np.random.Generator) -> Bits:
    return multiples(kind, rng, (5, 33, 128))


@case("multiples: 300 columns, nearly")
def _near_multiples(kind: DType, rng: np.random.Generator) -> Bits:
    return multiples(kind, rng, (120, 300), noise=2.0 ** -(kind.M - 1))


@case("multiples: 20000 columns, nearly")
def _wide_multiples(kind: DType, rng: np.random.Generator) -> Bits:
    return multiples(kind, rng, (33, 20_000), noise=2.0 ** -(kind.M - 1))


@case("multiples: zero rows and corners among them")
def _multiples_and_corners(kind: DType, rng: np.random.Generator) -> Bits:
    bits = multiples(kind, rng, (300, 128))
    bits[rng.random(300) < 0.3] = 0
    odd = rng.random(bits.shape) < 0.002
    bits[odd] = rng.choice(specials(kind), odd.sum())
    return bits


@case("multiples: denormal products")
def _tiny_multiples(kind: DType, rng: np.random.Generator) -> Bits:
    smallest = to_floats(kind, np.array([1 << kind.M], kind.container))[0]
    return multiples(kind, rng, (200, 128), exponent=math.frexp(smallest)[1])


@case("multiples: at the end of the range")
def _huge_multiples(kind: DType, rng: np.random.Generator) -> Bits:
    largest = to_floats(kind, np.array([infinity(kind) - 1], kind.container))[0]
    return multiples(kind, rng, (200, 128), exponent=math.frexp(largest)[1] - 1)


@case("multiples: all rows equal")
def _equal_rows(kind: DType, rng: np.random.Generator) -> Bits:
    return np.repeat(multiples(kind, rng, (1, 500)), 70, axis=0)


@case("multiples: blocks of noise among them")
def _multiples_and_noise(kind: DType, rng: np.random.Generator) -> Bits:
    """Predicted, raw, constant and coded blocks in turn."""
    n, columns = block_of(kind), 64
    rows = multiples(kind, rng, (9 * n // columns, columns)).reshape(-1)
    rows[n : 2 * n], rows[3 * n : 4 * n] = noise(kind, rng, n), 0
    rows[6 * n : 7 * n] = gaussian(kind, rng, n)
    return rows[: -columns].reshape(-1, columns)


def scaled(
    kind: DType, rng: np.random.Generator, shape: tuple[int, ...], reach: int = 3, channels: bool = False
) -> Bits:
    """Draw values like the gradient of a matrix: normal values, times a scale by row and one by column, which are
    powers of two up to ``reach`` either way; in the middle of the range. ``channels``: a convolution's, which all that
    lies behind the second dimension shares; else columns are those of the last dimension."""
    width = math.prod(shape[1:]) if channels else shape[-1]
    by_column = np.repeat(np.exp2(rng.integers(-reach, reach, shape[1] if channels else width, endpoint=True)),
                          width // shape[1] if channels else 1)
    by_row = np.exp2(rng.integers(-reach, reach, (math.prod(shape) // width, 1), endpoint=True))
    middle = 2.0 ** (5 if kind.W - 1 - kind.M == 5 else 0)
    return from_floats(kind, (rng.standard_normal((len(by_row), width)) * by_row * by_column * middle).reshape(shape))


MULTIPLES = tuple(Case(dtype, name) for dtype, kind in KINDS.items() if kind.predicted for name in MAKERS
                  if name.startswith("multiples"))


# Pairs of an array and its base, such as a checkpoint and the one before it: not in CASES.

PairMaker: TypeAlias = Callable[[DType, np.random.Generator], tuple[Bits, Bits]]
PAIR_MAKERS: dict[str, PairMaker] = {}


def pair(name: str) -> Callable[[PairMaker], PairMaker]:
    """Add a maker to the pairs that every law of bases meets, for every type that has predicted blocks."""
    def register(maker: PairMaker) -> PairMaker:
        assert name not in PAIR_MAKERS, name
        PAIR_MAKERS[name] = maker
        return maker

    return register


@dataclass(frozen=True)
class Pair:
    """An array and its base: ``dtype`` and ``name`` say which."""

    dtype: str
    name: str

    def __str__(self) -> str:
        return f"{self.dtype}, {self.name}"

    @property
    def kind(self) -> DType:
        """The value type, as the page describes it."""
        return KINDS[self.dtype]

    @cached_property
    def both(self) -> tuple[Bits, Bits]:
        """Bits of the array and of its base; read-only, and not the same memory."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        bits, base = (np.array(values) for values in PAIR_MAKERS[self.name](self.kind, rng))    # 0-d, too
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


def typed(dtype: str, bits: Bits) -> Array:
    """Return a writable copy, of floats where numpy has the type."""
    return bits.copy() if dtype in BITS_ONLY else bits.copy().view(dtype)


def stepped(kind: DType, base: Bits, steps: Array) -> Bits:
    """Return values so many steps from others, in the order of real numbers, around its ends: docs/format.md section 8.
    """
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
    return (pieces(bits, np.repeat(special, len(special)))[places],
            pieces(base, np.tile(special, len(special)))[places])


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


# -------------------------------------------------------------------------------------------------------- Modes


@dataclass(frozen=True)
class Mode:
    """A way to encode. ``options`` go to ``encode``; with a ladder every value gets a level, at random."""

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        return self.name

    def arguments(self, which: Case) -> dict[str, Any]:
        """Return all keywords of ``encode`` for a case."""
        options = which.options | self.options
        if "ladder" in options:
            options["levels"] = levels_at_random(which.bits, len(options["ladder"].drops))
        return options


def levels_at_random(bits: Bits, n_levels: int) -> npt.NDArray[np.uint8]:
    """Draw levels in runs and one by one, infinities and NaNs included; of the shape of ``bits``."""
    rng = np.random.default_rng(bits.size + n_levels)
    single = rng.integers(0, n_levels, bits.size, np.uint8)
    runs = np.repeat(rng.integers(0, n_levels, bits.size // 50 + 1, np.uint8), 50)[: bits.size]
    return np.where(rng.random(bits.size) < 0.3, single, runs).astype(np.uint8).reshape(bits.shape)


LOSSLESS = Mode("lossless", {})


@cache
def modes(dtype: str) -> tuple[Mode, ...]:
    """Return all modes of a type."""
    kind = KINDS[dtype]
    codings = [LOSSLESS, Mode("lossless with GComp's code", {"options": LITERAL_GCOMP}),
               Mode("lossless with short codes",
                    {"options": EncoderOptions(max_length=4, max_codebooks=2, references=False)})]
    if kind.T == 0:
        return tuple(codings)
    half, M = kind.M // 2, kind.M
    ladders = {"fine ladder": FINE_LADDER[dtype], "paper's ladder": PAPER_LADDER[dtype],
               "uneven ladder": Ladder((1, M // 3 + 1, M - 1, M)), "ladder of one level": Ladder((half,)),
               "longest ladder": Ladder(tuple(range(max(0, M - 14), M + 1)))}
    lossy = [Mode("1 mantissa bit", {"mantissa_bits": 1}),
             Mode("half the mantissa", {"mantissa_bits": half}),
             Mode("half the mantissa, truncated", {"mantissa_bits": half, "rounding": "truncate"}),
             Mode("all mantissa bits but one", {"mantissa_bits": M - 1}),
             Mode("all mantissa bits", {"mantissa_bits": M}),
             *(Mode(name, {"ladder": ladder}) for name, ladder in ladders.items()),
             Mode("fine ladder, truncated", {"ladder": FINE_LADDER[dtype], "rounding": "truncate"}),
             Mode("GComp", {"ladder": PAPER_LADDER[dtype], "rounding": "truncate", "options": LITERAL_GCOMP})]
    return (*codings, *lossy)


def promised(kind: DType, bits: Bits, options: dict[str, Any]) -> Bits:
    """Return what decoding must return for values encoded with these keywords
    (``gcodec.truncation.reference.round_to_levels``)."""
    coding = options.get("options") or EncoderOptions()
    rounding: Any = options.get("rounding") or coding.rounding
    if options.get("mantissa_bits") is not None:
        ladder, levels, prune = Ladder((kind.M - options["mantissa_bits"],)), np.zeros(bits.shape, np.uint8), False
        if ladder.drops == (0,):
            return bits
    elif options.get("levels") is not None:
        usual = PAPER_LADDER if coding.ladder == "paper" else FINE_LADDER
        ladder, levels, prune = options.get("ladder") or usual[kind.name], options["levels"], True
    else:
        return bits
    finite = (bits & kind.container.type((1 << kind.W - 1) - 1)) < infinity(kind)
    values = bits if kind.name in BITS_ONLY else bits.view(kind.name)
    return round_to_levels(values, np.where(finite, levels, 0), ladder, rounding, prune).view(kind.container)


every_case = pytest.mark.parametrize("which", CASES, ids=str)
every_case_and_mode = pytest.mark.parametrize(
    ("which", "mode"), [(which, mode) for which in CASES for mode in modes(which.dtype)], ids=str)
