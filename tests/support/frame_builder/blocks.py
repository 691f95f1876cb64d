"""Random blocks (docs/format.md, sections 6 to 8), each with its values."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.support.frame_builder.parts import (
    Coded,
    Columns,
    Inline,
    LevelRow,
    Predicted,
    Residual,
    kept_bits,
    pack,
    plain_block,
    to_bits,
    to_bytes,
)
from tests.support.reference import ESCAPE, ZERO, BlockKind, DType


def random_factor(rng: Random, nature: int) -> int:
    """Bits of a float32 that is part of a product: anything; special or near the ends of a type; about 1."""
    match nature:
        case 0:
            return rng.getrandbits(32)
        case 1:
            sign = rng.getrandbits(1) << 31
            return sign | rng.choice(
                [
                    0,
                    1,
                    0x7FFFFF,
                    0x800000,
                    0x7F7FFFFF,
                    0x7F800000,
                    0x7F800001,
                    0x7FC00000,
                    rng.getrandbits(23),
                    rng.randint(0x1F, 0x21) << 23 | rng.getrandbits(23),
                    rng.randint(0x65, 0x72) << 23 | rng.getrandbits(23),
                    rng.randint(0x8D, 0x8F) << 23 | rng.getrandbits(23),
                ]
            )
        case _:
            return rng.getrandbits(1) << 31 | rng.randint(0x78, 0x81) << 23 | rng.getrandbits(23)


def random_lengths(rng: Random, n: int) -> list[int]:
    """Lengths of a complete code over some of n symbols (§5)."""
    coded = rng.choice([2, n, rng.randint(2, n)])
    deep = rng.random() < 0.5
    leaves = [1, 1]
    while len(leaves) < coded:
        splittable = [leaf for leaf in leaves if leaf < 12]
        leaf = max(splittable) if deep and rng.random() < 0.8 else rng.choice(splittable)
        leaves.remove(leaf)
        leaves += [leaf + 1, leaf + 1]
    lengths = leaves + [0] * (n - coded)
    rng.shuffle(lengths)
    return lengths


@dataclass(frozen=True)
class BlockWriter:
    """Draws blocks (§6) of a frame; each comes with its values. A template of no columns stands for the base."""

    rng: Random
    kind: DType
    stream_log2: int
    planes: tuple[int, ...]
    levels: tuple[LevelRow, ...]
    codebooks: list[Inline]
    spare: Random | None
    residuals: Sequence[Residual] = ()
    templates: Sequence[Sequence[int]] = ()
    base: Sequence[int] = ()
    columns: Sequence[Columns] = ()

    def block(self, name: BlockKind, n_values: int, start: int = 0) -> tuple[bytes, list[int]]:
        """A block of a kind, from value `start` of the array on."""
        W = self.kind.W
        match name:
            case "constant":
                value = self.rng.choice([0, 1 << W - 1, self.rng.getrandbits(W)])
                return plain_block(0, n_values, pack([value], W)), [value] * n_values
            case "raw":
                values = [self.rng.getrandbits(W) for _ in range(n_values)]
                return plain_block(1, n_values, pack(values, W)), values
            case "coded":
                return self.coded(n_values, start)
            case "predicted":
                return self.predicted(n_values, start)
            case "sparse":
                raise ValueError("sparse blocks are drawn by SparseWriter")
            case "indexed":
                raise ValueError("indexed blocks are drawn by IndexedWriter")

    def coded(self, n_values: int, start: int = 0) -> tuple[bytes, list[int]]:
        """A coded block (§7)."""
        rng, H = self.rng, self.kind.H
        c = rng.randrange(len(self.codebooks))
        codebook = self.codebooks[c]
        codes = codebook.codes()
        base = rng.choice([0, (1 << H) - 1, rng.getrandbits(H)])
        run_symbol = rng.choice([ZERO, rng.randint(0, len(codebook.lengths) - 2)])
        reference_width = rng.choice([0, H, rng.randint(0, H)])
        symbols = list(codes)
        match rng.randrange(4):
            case 0:
                weights = [1.0 for _ in symbols]
            case 1:
                weights = [2.0 ** -len(codes[symbol]) for symbol in symbols]
            case _:  # one symbol everywhere, often the escape
                most = ESCAPE if ESCAPE in codes and rng.random() < 0.6 else rng.choice(symbols)
                weights = [50.0 if symbol == most else 1 / len(symbols) for symbol in symbols]
        share_of_runs = rng.choice([0, 0.2, 1])
        flags = int(bool(self.columns) and rng.random() < 0.7)
        in_reach = [entry for entry in self.columns if flags and entry.first < start + n_values and start < entry.end]

        values: list[int] = []
        streams, references = [], []
        items: list[list[int]] = [[] for _ in self.planes]
        for done in range(0, n_values, 1 << self.stream_log2):
            count = min(1 << self.stream_log2, n_values - done)
            references.append(rng.getrandbits(reference_width))
            run = rng.random() < share_of_runs
            chosen = [run_symbol] * count if run else rng.choices(symbols, weights, k=count)
            text = []
            for symbol in chosen:
                level, head = 0, rng.getrandbits(H)
                if symbol not in (ZERO, ESCAPE):
                    level, relative = codebook.meaning(symbol)
                    column = sum(entry.reference(start + len(values)) for entry in in_reach)
                    head = (base + references[-1] + column + relative) % (1 << H)
                if not run:
                    text.append(codes[symbol] + (to_bits(head, H) if symbol == ESCAPE else ""))
                values.append(0 if symbol == ZERO else self.value(head, level, items))
            streams.append(to_bytes("".join(text), self.spare))

        min_stream_bytes, length_width = self.lengths(streams)
        planes = [pack(chunks, width, self.spare) for chunks, width in zip(items, self.planes, strict=True)]
        parts = Coded(
            c,
            base,
            n_values,
            b"".join(planes),
            tuple(streams),
            tuple(references),
            min_stream_bytes,
            length_width,
            reference_width,
            run_symbol,
            flags,
        )
        return parts.block(spare=self.spare), values

    def lengths(self, streams: Sequence[bytes]) -> tuple[int, int]:
        """min_stream_bytes and length_width that will do (§7)."""
        shortest = min(len(stream) for stream in streams)
        min_stream_bytes = self.rng.choice([0, shortest, self.rng.randint(0, shortest)])
        needed = max(len(stream) - min_stream_bytes for stream in streams).bit_length()
        return min_stream_bytes, self.rng.choice([needed, 16, self.rng.randint(needed, 16)])

    def predicted(self, n_values: int, start: int) -> tuple[bytes, list[int]]:
        """A predicted block (§8)."""
        rng, W = self.rng, self.kind.W
        c, t = rng.randrange(len(self.residuals)), rng.randrange(len(self.templates))
        codes, template = self.residuals[c].codes(), self.templates[t]
        column = rng.choice([0, len(template) - 1, rng.randrange(len(template))]) if template else 0
        nature = rng.randrange(3)
        n_rows = (column + n_values - 1) // len(template) + 1 if template else 0
        scales = [random_factor(rng, nature) & 0xFFFFFF00 for _ in range(n_rows)]
        run_symbol = rng.choice([ZERO, rng.randint(0, 15 * W // 4)])
        symbols = list(codes)
        few = rng.random() < 0.5  # digits, as the code would have it
        weights = [2.0 ** -len(codes[symbol]) if few else 1.0 for symbol in symbols]
        share_of_runs = rng.choice([0, 0.2, 1])

        values: list[int] = []
        streams = []
        items: list[list[int]] = [[] for _ in range(W // 8)]
        for done in range(0, n_values, 1 << self.stream_log2):
            count = min(1 << self.stream_log2, n_values - done)
            run = rng.random() < share_of_runs
            chosen = [run_symbol] * count if run else rng.choices(symbols, weights, k=count)
            for symbol in chosen:
                if template:
                    row, place = divmod(column + len(values), len(template))
                    guess = predict(self.kind, scales[row], template[place])
                else:
                    guess = self.base[start + len(values)]
                values.append(stepped(guess, self.residual(symbol, items), W))
            streams.append(b"" if run else to_bytes("".join(codes[symbol] for symbol in chosen), self.spare))
        min_stream_bytes, length_width = self.lengths(streams)
        planes = [pack(digits, 8, self.spare) for digits in items[:-1]] + [pack(items[-1], 4, self.spare)]
        parts = Predicted(
            c,
            t,
            n_values,
            b"".join(planes),
            tuple(streams),
            pack([s >> 8 for s in scales], 24),
            min_stream_bytes,
            length_width,
            run_symbol,
            column,
        )
        return parts.block(spare=self.spare), values

    def residual(self, symbol: int, items: list[list[int]]) -> int:
        """A residual that a symbol stands for, its digits but the first drawn at random; `items` gains them (§8)."""
        if symbol == ZERO:
            return 0
        left, first = divmod(symbol - 1, 15)
        residual = first + 1
        digits = [self.rng.choice([self.rng.randrange(16), 15]) for _ in range(left)]
        for digit in digits:
            residual = 16 * residual + digit
        if left % 2:
            items[-1].append(digits.pop())
        for p, place in enumerate(range(len(digits) - 2, -2, -2)):
            items[p].append(16 * digits[place] + digits[place + 1])
        return residual

    def value(self, head: int, level: int, items: list[list[int]]) -> int:
        """A value of this head and level, its kept bits drawn at random; `items` gains their chunks (§4)."""
        kind, (drop, mask) = self.kind, self.levels[level]
        if kind.T == 0:
            return head
        left = kept_bits(kind, drop)
        kept = self.rng.choice([self.rng.getrandbits(left), (1 << left) - 1])
        tail = kept << kind.T - left
        for p, width in enumerate(self.planes):
            if mask >> p & 1:
                left -= width
                items[p].append(kept >> left & (1 << width) - 1)
        if kind.sign_in_head:
            return (head & 1) << kind.W - 1 | head >> 1 << kind.T | tail
        sign = tail >> kind.T - 1
        return sign << kind.W - 1 | head << kind.T - 1 | tail - (sign << kind.T - 1)


def predict(kind: DType, scale: int, factor: int) -> int:
    """The prediction p (§8) from the bits of a scale and of a template's value, without float32 arithmetic."""
    if 0 in (scale >> 23 & 255, factor >> 23 & 255):
        return 0
    a, b = struct.unpack("<2f", struct.pack("<2I", scale, factor))
    product = a * b  # exact in float64
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", product))
    except OverflowError:
        return 0
    sign, size = bits & 1 << 31, bits & (1 << 31) - 1
    if not 2 << 23 <= size < 255 << 23:
        return 0
    match kind.name:
        case "float32":
            return bits
        case "bfloat16":
            return (sign | size + (1 << 15)) >> 16
    (near,) = struct.unpack("<f", struct.pack("<I", size))
    if near >= 65536:
        return sign >> 16
    exponent = max(math.frexp(near)[1] - 1, -14)  # of the last place: 10 less
    steps = math.floor(math.ldexp(near, 10 - exponent) + 0.5)
    return sign >> 16 | (exponent + 14 << 10) + steps  # 1024 steps of a normal value carry into it


def stepped(value: int, residual: int, W: int) -> int:
    """The value that lies as far from another, in the order of real numbers, as a residual says (§8)."""
    half = 1 << W - 1
    place = value if value < half else -1 - (value - half)  # -0 comes right before 0
    place += -(residual // 2) - 1 if residual % 2 else residual // 2
    place = (place + half) % (1 << W) - half
    return place if place >= 0 else half + (-1 - place)
