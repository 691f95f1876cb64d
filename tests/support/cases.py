"""The cases that every law meets: arrays of every type, shape and nature.

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
from typing import Any, TypeAlias

import numpy as np

from tests.support.bit_patterns import (
    BITS_ONLY,
    KINDS,
    STREAM,
    Array,
    Bits,
    block_of,
    from_floats,
    gaussian,
    infinity,
    multiples,
    noise,
    pieces,
    specials,
    to_floats,
)
from tests.support.paths import CORPUS
from tests.support.reference import DType

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
class TableEntry:
    """What ``dtype`` and ``name`` say, and tests are named by."""

    dtype: str
    name: str

    def __str__(self) -> str:
        return f"{self.dtype}, {self.name}"

    @property
    def kind(self) -> DType:
        """The value type, as the page describes it."""
        return KINDS[self.dtype]


class Case(TableEntry):
    """An array of the table: ``dtype`` and ``name`` say which."""

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
        scale = 1.0 if kind.W - 1 - kind.M > 5 else 2.0**12  # narrow types need loss scaling
        return from_floats(kind, grad[:rows].astype(np.float64) * scale)

    return make


for _name in (
    "cnn-step-000020/blocks.3.conv2.weight",
    "cnn-step-000600/head.weight",
    "transformer-step-000020/embedding.weight",
    "transformer-step-000400/head.weight",
    "transformer-step-000400/norm.weight",
):
    if find_spec("safetensors"):  # a machine with a GPU may lack it (`make test-gpu`)
        MAKERS[f"recorded {_name}"] = _of_record(_name)

CASES = tuple(Case(dtype, name) for dtype in KINDS for name in MAKERS)
#: Cases whose frames are short enough to spoil bit by bit.
SHORT = (
    "empty",
    "empty of three dimensions",
    "0-d",
    "one value",
    "two values",
    "every corner of the type",
    "all zero",
    "255 values",
    "runs of equal sub-streams",
    "denormal",
)


# Arrays that are worth a second thread, for the laws that ask for one: not in CASES.


@case("gaussian of 17 blocks")
def _large_gaussian(kind: DType, rng: np.random.Generator) -> Bits:
    return gaussian(kind, rng, 17 * block_of(kind) + 77, zeros=0.2)


@case("mixture of 17 blocks")
def _large_mixture(kind: DType, rng: np.random.Generator) -> Bits:
    """Raw, constant and coded blocks of several scales, in no order."""
    n = block_of(kind)
    makers = [
        lambda: noise(kind, rng, n),
        lambda: np.zeros(n, kind.container),
        lambda: gaussian(kind, rng, n),
        lambda: gaussian(kind, rng, n, zeros=0.7, scale=1e-3),
        lambda: gaussian(kind, rng, n, scale=4.0),
    ]
    return pieces(*(makers[i]() for i in rng.integers(0, len(makers), 17)), gaussian(kind, rng, 9))


LARGE = tuple(Case(dtype, name) for dtype in KINDS for name in MAKERS if name.endswith("17 blocks"))


# Arrays of rows that are nearly multiples of one row, for types that have predicted blocks: not in CASES.


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
    return rows[:-columns].reshape(-1, columns)


MULTIPLES = tuple(
    Case(dtype, name)
    for dtype, kind in KINDS.items()
    if kind.predicted
    for name in MAKERS
    if name.startswith("multiples")
)
