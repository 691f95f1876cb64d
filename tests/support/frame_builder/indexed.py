"""Dictionaries and indexed blocks (docs/format.md, sections 5 and 10): their parts, and random ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from tests.support.frame_builder.blocks import BlockWriter, random_factor
from tests.support.frame_builder.parts import BLOCK_HEADER, Inline, pack, padded, plain_block, sealed_block
from tests.support.reference import BYTES, DType, packed_bytes

INDEXED_EXTENSION = struct.Struct("<IIII")


@dataclass(frozen=True)
class Entries:
    """The parts of a record of a dictionary (§5): `values` are of W bits, or with form 1 or 3 bits of float32."""

    W: int
    form: int
    codebook: Inline
    values: tuple[int, ...]

    @classmethod
    def of(cls, record: bytes, W: int) -> Entries:
        _, form, n_entries = struct.unpack_from("<BBH", record)
        codebook = Inline.of(record[4:])
        at, size = 4 + len(codebook.record()), 4 if form else W // 8
        values = [int.from_bytes(record[at + i * size : at + i * size + size], "little") for i in range(n_entries)]
        return cls(W, form, codebook, tuple(values))

    def record(
        self,
        *,
        form: int | None = None,
        n_entries: int | None = None,
        codebook: bytes | None = None,
        fill: int = 0,
        spare: Random | None = None,
    ) -> bytes:
        start = struct.pack(
            "<BBH", 4, self.form if form is None else form, len(self.values) if n_entries is None else n_entries
        )
        inline = self.codebook.record(spare=spare) if codebook is None else codebook
        return padded(start + inline + pack(self.values, 32 if self.form else self.W), 4, fill)


@dataclass(frozen=True)
class Indexed:
    """The parts of an indexed block (§6, §10) of values of W bits; with form 3, `pairs` is what scales and offsets
    take."""

    W: int
    codebook: int
    n_values: int
    inner: bytes
    scale_bytes: int
    scales: bytes
    exceptions: tuple[int, ...]
    segment: int
    skipped: int
    pairs: bytes = b""

    @classmethod
    def of(cls, block: bytes, W: int) -> Indexed:
        _, codebook, scale_bytes, n_values, _ = BLOCK_HEADER.unpack_from(block)
        inner_bytes, n_exceptions, segment, skipped = INDEXED_EXTENSION.unpack_from(block, 16)
        scales_at = 32 + inner_bytes
        n_segments = -(-(skipped + n_values) // segment) if segment else 0
        first = pairs_end = scales_at
        if n_segments and not scale_bytes:
            widths = block[scales_at + 5], block[scales_at + 13]
            pairs_end += 16 + sum(packed_bytes(n_segments, width) for width in widths)
        at = pairs_end + n_segments * scale_bytes
        exceptions = tuple(
            int.from_bytes(block[at + i * W // 8 : at + (i + 1) * W // 8], "little") for i in range(n_exceptions)
        )
        return cls(
            W,
            codebook,
            n_values,
            block[32:scales_at],
            scale_bytes,
            block[pairs_end:at],
            exceptions,
            segment,
            skipped,
            block[first:pairs_end],
        )

    def block(
        self, *, inner_bytes: int | None = None, n_exceptions: int | None = None, surplus: bytes = b"", fill: int = 0
    ) -> bytes:
        """The block; its checksum is left open. `surplus` comes after the exceptions."""
        extension = INDEXED_EXTENSION.pack(
            len(self.inner) if inner_bytes is None else inner_bytes,
            len(self.exceptions) if n_exceptions is None else n_exceptions,
            self.segment,
            self.skipped,
        )
        start = BLOCK_HEADER.pack(5, self.codebook, self.scale_bytes, self.n_values, 0)
        exceptions = pack(self.exceptions, self.W) + surplus
        return padded(start + extension + self.inner + self.pairs + self.scales + exceptions, 8, fill)

    @property
    def n_segments(self) -> int:
        return -(-(self.skipped + self.n_values) // self.segment) if self.segment else 0


# What is drawn at random.


def random_entries(rng: Random, kind: DType, codebook: Inline, with_offsets: bool = False) -> Entries:
    """A dictionary (§5) of values, or of factors where the type may have them, with a codebook for bytes."""
    n_entries = rng.choice([1, 2, 16, 255, 256, rng.randint(1, 256)])
    if kind.predicted and rng.random() < 0.7:
        nature = rng.choice([0, 1, 2, 3, 3])
        return Entries(
            kind.W,
            rng.choice([1, 1, 3]) if with_offsets else 1,
            codebook,
            tuple(random_finite(rng, nature) for _ in range(n_entries)),
        )
    special = [0, 1 << kind.W - 1, (1 << kind.W) - 1, (1 << kind.W - 1) - (1 << kind.M)]
    values = tuple(rng.choice([*special, *(rng.getrandbits(kind.W) for _ in range(12))]) for _ in range(n_entries))
    return Entries(kind.W, 0, codebook, values)


def random_finite(rng: Random, nature: int) -> int:
    """Bits of a finite float32: as for templates; with nature 3 a small integer; with nature 4 few mantissa bits and
    any exponent of float16. The products of these two are often halfway between two values of fewer bits."""
    if nature == 3:
        (bits,) = struct.unpack("<I", struct.pack("<f", float(rng.randint(-17, 17))))
        return int(bits)
    if nature == 4:
        n_bits = rng.choice([6, 7, 10])
        return rng.getrandbits(1) << 31 | rng.randint(0x64, 0x8E) << 23 | rng.getrandbits(n_bits) << 23 - n_bits
    while True:
        bits = random_factor(rng, nature)
        if bits >> 23 & 255 != 255:
            return bits


@dataclass(frozen=True)
class IndexedWriter:
    """Draws indexed blocks (§10) of a frame; `writer` knows the frame.

    `dictionaries` are those of the frame, the first of which is number `n_before` among the codebooks.
    """

    writer: BlockWriter
    block_log2: int
    dictionaries: Sequence[Entries]
    n_before: int

    def block(self, n_values: int, start: int) -> tuple[bytes, list[int]]:
        """An indexed block from value `start` of the array on, and its values."""
        rng, kind = self.writer.rng, self.writer.kind
        d = rng.randrange(len(self.dictionaries))
        entries = self.dictionaries[d]
        inner, indices = self.inner(entries, n_values)
        inner = sealed_block(inner, start >> self.block_log2)
        segment = skipped = scale_bytes = 0
        scales: list[int] = []
        offsets: list[int] = []
        if entries.form:
            scale_bytes = rng.randint(2, 4) if entries.form == 1 else 0
            segment = rng.choice(
                [
                    1,
                    2,
                    64,
                    n_values,
                    1 << self.block_log2,
                    3 << self.block_log2,
                    2**32 - 1,
                    rng.randint(1, 2 * n_values),
                ]
            )
            skipped = rng.choice([0, segment - 1, start % segment, rng.randrange(segment)])
            n_segments, nature = -(-(skipped + n_values) // segment), rng.choice([0, 1, 2, 3, 4, 4, 4])
        pairs = b""
        if entries.form == 1:
            cut = 32 - 8 * scale_bytes
            scales = [random_finite(rng, nature) >> cut << cut for _ in range(n_segments)]
        elif entries.form == 3:
            of_scales, scales = short_floats(rng, n_segments, nature, self.writer.spare)
            of_offsets, offsets = short_floats(rng, n_segments, rng.choice([nature, nature, 2, 4]), self.writer.spare)
            pairs = of_scales[:8] + of_offsets[:8] + of_scales[8:] + of_offsets[8:]
        values, exceptions = [], []
        for i, index in enumerate(indices):
            if index >= len(entries.values):
                exceptions.append(rng.choice([0, rng.getrandbits(kind.W)]))
                values.append(exceptions[-1])
            elif entries.form:
                s = (skipped + i) // segment
                values.append(multiplied(kind, scales[s], entries.values[index], offsets[s] if offsets else None))
            else:
                values.append(entries.values[index])
        stored = b"".join(scale.to_bytes(4, "little")[4 - scale_bytes :] for scale in scales)
        parts = Indexed(
            kind.W,
            self.n_before + d,
            n_values,
            inner,
            scale_bytes,
            stored if scale_bytes else b"",
            tuple(exceptions),
            segment,
            skipped,
            pairs,
        )
        return parts.block(), values

    def inner(self, entries: Entries, n_values: int) -> tuple[bytes, list[int]]:
        """An inner block, its checksum left open, and the indices in it: of entries, of exceptions, or of both."""
        rng, n_entries = self.writer.rng, len(entries.values)
        below = [range(n_entries), range(n_entries, 256), range(256)][rng.choice([0, 0, 1, 2])] or range(256)
        match rng.choice([0, 1, 2, 2]):
            case 0:
                index = rng.choice(below)
                return plain_block(0, n_values, bytes([index])), [index] * n_values
            case 1:
                indices = rng.choices(below, k=n_values)
                return plain_block(1, n_values, bytes(indices)), indices
            case _:
                of_bytes = BlockWriter(
                    rng, BYTES, self.writer.stream_log2, (), ((0, 0),), [entries.codebook], self.writer.spare
                )
                return of_bytes.coded(n_values)


def short_floats(rng: Random, n: int, nature: int, spare: Random | None) -> tuple[bytes, list[int]]:
    """Random floats of few bits (§10): the 8 bytes of their fields with the items, and their bits."""
    sign, shift, width = rng.randrange(3), rng.choice([0, 13, 16, 23, rng.randrange(24)]), rng.choice([0, 1, 8, 14, 32])
    lowest = min(random_finite(rng, nature) & 0x7FFFFFFF for _ in range(3))
    room = min((0x7F7FFFFF - lowest >> shift) + 1 << (sign == 2), 1 << width)
    items = [rng.randrange(room) for _ in range(n)]
    bits = []
    for item in items:
        negative, above = (item & 1, item >> 1) if sign == 2 else (sign, item)
        bits.append(negative << 31 | lowest + (above << shift))
    return struct.pack("<IBBBB", lowest, shift, width, sign, 0) + pack(items, width, spare), bits


def multiplied(kind: DType, scale: int, factor: int, offset: int | None = None) -> int:
    """The value (§10) for the bits of a scale, of a factor, and of an offset, without float32 arithmetic."""
    a, b = struct.unpack("<2f", struct.pack("<2I", scale, factor))
    if 0 in (scale >> 23 & 255, factor >> 23 & 255):
        a, b = a * 0, b * 0  # which leaves the signs
    sign = (scale ^ factor) & 1 << 31
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", a * b))  # the product is exact in float64
    except OverflowError:
        bits = sign | 255 << 23
    if bits >> 23 & 255 <= 1:
        bits = sign
    if offset is not None:
        bits = added(bits, offset)
        sign = bits & 1 << 31
    if kind.name == "float32":
        return int(bits)
    if kind.name == "bfloat16":
        half, lower = 1 << 15, bits & 0xFFFF
        return (bits >> 16) + (lower > half or (lower == half and bits >> 16 & 1))
    try:
        (rounded,) = struct.unpack("<H", struct.pack("<e", *struct.unpack("<f", struct.pack("<I", bits))))
    except OverflowError:
        rounded = sign >> 16 | 0x7C00
    return int(rounded)


def added(one: int, other: int) -> int:
    """The bits of the sum (§10) of two float32, the second of which counts as 0 if it is denormal: in fractions, which
    are exact, rounded once."""
    other = other if other >> 23 & 255 else other & 1 << 31
    if one >> 23 & 255 == 255:
        return one
    if not (one | other) << 1 & 0xFFFFFFFF:
        return one & other  # -0 only of two of them
    a, b = (Fraction(*as_ratio(bits)) for bits in (one, other))
    total = a + b
    if not total:
        return 0
    sign, size = (1 << 31 if total < 0 else 0), abs(total)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    significand = round(size / Fraction(2) ** (exponent - 23))  # ties to even
    bits = (exponent + 126 << 23) + significand
    if bits >= 0x7F800000:
        return sign | 0x7F800000
    return sign | (bits if bits >= 0x01000000 else 0)


def as_ratio(bits: int) -> tuple[int, int]:
    """A finite float32 as a ratio of integers, from its bits."""
    (number,) = struct.unpack("<f", struct.pack("<I", bits))
    numerator, denominator = number.as_integer_ratio()
    return int(numerator), int(denominator)
