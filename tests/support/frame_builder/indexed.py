"""Dictionaries and indexed blocks (docs/format.md, sections 5 and 10): their parts, and random ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.support.frame_builder.blocks import BlockWriter, random_factor
from tests.support.frame_builder.parts import BLOCK_HEADER, Inline, pack, padded, plain_block, sealed_block
from tests.support.reference import BYTES, DType

INDEXED_EXTENSION = struct.Struct("<IIII")


@dataclass(frozen=True)
class Entries:
    """The parts of a record of a dictionary (§5): `values` are of W bits, or with form 1 bits of float32."""

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
    """The parts of an indexed block (§6, §10) of values of W bits."""

    W: int
    codebook: int
    n_values: int
    inner: bytes
    scale_bytes: int
    scales: bytes
    exceptions: tuple[int, ...]
    segment: int
    skipped: int

    @classmethod
    def of(cls, block: bytes, W: int) -> Indexed:
        _, codebook, scale_bytes, n_values, _ = BLOCK_HEADER.unpack_from(block)
        inner_bytes, n_exceptions, segment, skipped = INDEXED_EXTENSION.unpack_from(block, 16)
        scales_at = 32 + inner_bytes
        at = scales_at + (-(-(skipped + n_values) // segment) * scale_bytes if segment else 0)
        exceptions = tuple(
            int.from_bytes(block[at + i * W // 8 : at + (i + 1) * W // 8], "little") for i in range(n_exceptions)
        )
        return cls(
            W, codebook, n_values, block[32:scales_at], scale_bytes, block[scales_at:at], exceptions, segment, skipped
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
        return padded(start + extension + self.inner + self.scales + exceptions, 8, fill)

    @property
    def n_segments(self) -> int:
        return -(-(self.skipped + self.n_values) // self.segment) if self.segment else 0


# What is drawn at random.


def random_entries(rng: Random, kind: DType, codebook: Inline) -> Entries:
    """A dictionary (§5) of values, or of factors where the type may have them, with a codebook for bytes."""
    n_entries = rng.choice([1, 2, 16, 255, 256, rng.randint(1, 256)])
    if kind.predicted and rng.random() < 0.7:
        nature = rng.choice([0, 1, 2, 3, 3])
        return Entries(kind.W, 1, codebook, tuple(random_finite(rng, nature) for _ in range(n_entries)))
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
        if entries.form == 1:
            scale_bytes = rng.randint(2, 4)
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
            nature, cut = rng.choice([0, 1, 2, 3, 4, 4, 4]), 32 - 8 * scale_bytes
            scales = [random_finite(rng, nature) >> cut << cut for _ in range(-(-(skipped + n_values) // segment))]
        values, exceptions = [], []
        for i, index in enumerate(indices):
            if index >= len(entries.values):
                exceptions.append(rng.choice([0, rng.getrandbits(kind.W)]))
                values.append(exceptions[-1])
            elif entries.form == 1:
                values.append(multiplied(kind, scales[(skipped + i) // segment], entries.values[index]))
            else:
                values.append(entries.values[index])
        stored = b"".join(scale.to_bytes(4, "little")[4 - scale_bytes :] for scale in scales)
        parts = Indexed(
            kind.W, self.n_before + d, n_values, inner, scale_bytes, stored, tuple(exceptions), segment, skipped
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


def multiplied(kind: DType, scale: int, factor: int) -> int:
    """The value (§10) for the bits of a scale and of a factor, without float32 arithmetic."""
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
