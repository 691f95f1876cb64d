"""The parts of a frame (docs/format.md), as they are written and read back."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from random import Random
from typing import TypeAlias

from tests.support.reference import (
    DTYPES,
    ESCAPE,
    ZERO,
    ChangeCodebook,
    Dictionary,
    DType,
    Known,
    checksum,
    packed_bytes,
    read_prelude,
    round_up,
)

# --------------------------------------------------------------------------------- Packed arrays and paddings


def to_bytes(bits: str, spare: Random | None = None) -> bytes:
    """Bits from position 0 on as bytes; spare bits, which readers ignore (§1), are zero or from `spare`."""
    size = -(-len(bits) // 8)
    value = int(bits[::-1], 2) if bits else 0
    if spare is not None:
        value |= spare.getrandbits(8 * size - len(bits)) << len(bits)
    return value.to_bytes(size, "little")


def to_bits(item: int, width: int) -> str:
    """An item of a packed array, least significant bit first (§1)."""
    return f"{item:0{width}b}"[::-1] if width else ""


def pack(items: Iterable[int], width: int, spare: Random | None = None) -> bytes:
    """A packed array (§1)."""
    if width == 0:
        return b""
    return to_bytes("".join([f"{item:0{width}b}" for item in items][::-1])[::-1], spare)


def unpacked(data: bytes, at: int, n_items: int, width: int) -> list[int]:
    """The items of a packed array (§1) that begins at a byte of `data`."""
    bits = int.from_bytes(data[at : at + packed_bytes(n_items, width)], "little")
    return [bits >> s * width & (1 << width) - 1 for s in range(n_items)]


def padded(data: bytes, multiple: int, fill: int = 0) -> bytes:
    return data + bytes([fill]) * (round_up(len(data), multiple) - len(data))


# --------------------------------------------------------------------------------------- The parts of a frame

HEADER = struct.Struct("<IBBBBBBBBBBBBQQQQ")
BLOCK_HEADER = struct.Struct("<BBHIQ")
EXTENSION = struct.Struct("<IIHBBBB2s")
PREDICTED_EXTENSION = struct.Struct("<IIHBBI")
COLUMNS = struct.Struct("<IQQHBB")
LevelRow: TypeAlias = tuple[int, int]  # drop, plane mask


def sealed_block(block: bytes, b: int) -> bytes:
    """Block b with the checksum that belongs to it (§6)."""
    if len(block) < 16 or len(block) % 4:
        return block
    total = checksum(block, (b + 1) * 0x9E3779B97F4A7C15, own_words=(2, 3))
    return block[:8] + total.to_bytes(8, "little") + block[16:]


@dataclass(frozen=True)
class Draft:
    """The parts of a frame (§4)."""

    dtype: int
    mode: int
    container: int
    block_log2: int
    stream_log2: int
    n_values: int
    shape: tuple[int, ...]
    planes: tuple[int, ...]
    levels: tuple[LevelRow, ...]
    records: tuple[bytes, ...]
    blocks: tuple[bytes, ...]
    residuals: tuple[bytes, ...] = ()  # records of residual codebooks
    templates: tuple[bytes, ...] = ()  # n_columns and values, or 0 and the hash of the base
    columns: tuple[bytes, ...] = ()  # records of column references, which follow the templates
    n_changes: int = 0  # of the codebooks, those of changes, which are the last of `records`
    n_dictionaries: int = 0  # but for the dictionaries

    @classmethod
    def of(cls, frame: bytes, known: Known) -> Draft:
        """The parts of a valid frame."""
        p = read_prelude(frame, known)
        levels = tuple((level.drop, level.mask) for level in p.levels)
        records = tuple(codebook.record for codebook in p.codebooks)
        blocks = tuple(frame[where] for where in p.blocks)
        residuals = tuple(codebook.record for codebook in p.residuals)
        templates = tuple(
            base_template(template)
            if isinstance(template, int)
            else struct.pack("<I", len(template)) + template.tobytes()
            for template in p.templates
        )
        columns = tuple(entry.record for entry in p.columns)
        return cls(
            frame[5],
            p.mode,
            p.container,
            p.block_log2,
            p.stream_log2,
            p.n_values,
            p.shape,
            p.planes,
            levels,
            records,
            blocks,
            residuals,
            templates,
            columns,
            sum(isinstance(codebook, ChangeCodebook) for codebook in p.codebooks),
            sum(isinstance(codebook, Dictionary) for codebook in p.codebooks),
        )

    @property
    def kind(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def n_coded(self) -> int:
        """How many of the codebooks are for coded blocks; they are the first of `records`."""
        return len(self.records) - self.n_changes - self.n_dictionaries

    @property
    def all_inline(self) -> bool:
        """Whether the records of all codebooks that know levels are inline."""
        return all(record[0] == 0 for record in self.records[: self.n_coded])

    @property
    def any_coded(self) -> bool:
        return any(block[0] == 2 for block in self.blocks)

    @property
    def bases(self) -> list[int]:
        """Positions of the templates that stand for the base."""
        return [t for t in range(len(self.templates)) if self.n_columns(t) == 0]

    def n_columns(self, t: int) -> int:
        """Columns of a template, 0 if it stands for the base."""
        (n_columns,) = struct.unpack_from("<I", self.templates[t])
        return int(n_columns)

    def predicted(self, block: bytes) -> Predicted:
        """The parts of one of its predicted blocks."""
        return Predicted.of(block, self.stream_log2, self.n_columns(block[2] | block[3] << 8))

    def seal(
        self,
        *,
        index: Sequence[int] | None = None,
        fill: tuple[int, int] = (0, 0),
        surplus: int = 0,
        seal_blocks: bool = True,
        **header: int,
    ) -> bytes:
        """The frame, all that follows from its parts filled in.

        What is named in `header` is taken from there instead. `index` replaces the index, `fill` the bytes
        of the two paddings; the prelude ends in `surplus` bytes of zeros.
        """
        blocks = [sealed_block(block, b) if seal_blocks else block for b, block in enumerate(self.blocks)]
        body = struct.pack(f"<{len(self.shape)}Q", *self.shape) + bytes(self.planes)
        body += b"".join(bytes(level) for level in self.levels) + b"".join(self.records)
        body += b"".join(self.residuals) + b"".join(self.templates) + b"".join(self.columns)
        body = padded(body, 8, fill[0])
        sizes = [len(block) for block in blocks] if index is None else index
        body = padded(body + struct.pack(f"<{len(sizes)}I", *sizes), 8, fill[1]) + bytes(surplus)
        prelude_bytes = 48 + len(body)
        fields = {
            "magic": int.from_bytes(b"\x89GCF", "little"),
            "version": 1,
            "dtype": self.dtype,
            "mode": self.mode,
            "container": self.container,
            "ndim": len(self.shape),
            "block_log2": self.block_log2,
            "stream_log2": self.stream_log2,
            "n_codebooks": len(self.records),
            "n_levels": len(self.levels),
            "n_planes": len(self.planes),
            "n_residuals": len(self.residuals),
            "n_templates": len(self.templates) + len(self.columns),
            "frame_bytes": prelude_bytes + sum(len(block) for block in blocks),
            "n_values": self.n_values,
            "prelude_bytes": prelude_bytes,
            "checksum": 0,
        }
        unknown = header.keys() - fields.keys()
        if unknown:
            raise TypeError(f"no such fields: {unknown}")
        fields.update(header)
        frame = HEADER.pack(*fields.values()) + body + b"".join(blocks)
        covered = fields["prelude_bytes"] if 48 <= fields["prelude_bytes"] <= len(frame) else prelude_bytes
        total = checksum(frame[: covered // 4 * 4], 0, own_words=(10, 11))
        return frame[:40] + total.to_bytes(8, "little") + frame[48:]


@dataclass(frozen=True)
class Inline:
    """The parts of an inline record (§5); lengths stand as they do there, zero and escape first."""

    ranges: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, record: bytes) -> Inline:
        ranges = tuple(struct.iter_unpack("<HH", record[4 : 4 + 4 * record[1]]))
        nibbles = [nibble for byte in record[4 + 4 * record[1] :] for nibble in (byte & 15, byte >> 4)]
        return cls(ranges, tuple(nibbles[: 2 + sum(count for _, count in ranges)]))

    def record(self, reserved: int = 0, fill: int = 0, spare: Random | None = None) -> bytes:
        start = struct.pack("<BBH", 0, len(self.ranges), reserved)
        ranges = b"".join(struct.pack("<HH", *row) for row in self.ranges)
        return padded(start + ranges + pack(self.lengths, 4, spare), 4, fill)

    @property
    def numbers(self) -> list[int]:
        """Numbers of the symbols in the order of the lengths."""
        return [ZERO, ESCAPE, *range(1, len(self.lengths) - 1)]

    def meaning(self, symbol: int) -> tuple[int, int]:
        """Level and relative head of a symbol but zero and escape; the head is not yet reduced mod 2^H."""
        before = 1
        for level, (first, count) in enumerate(self.ranges):
            if symbol < before + count:
                return level, first + symbol - before
            before += count
        raise ValueError(symbol)

    def codes(self) -> dict[int, str]:
        """Codes by symbol, first bit first (§5)."""
        return canonical_codes(dict(zip(self.numbers, self.lengths, strict=True)))


def canonical_codes(length_of: dict[int, int]) -> dict[int, str]:
    """Canonical codes by symbol, first bit first (§5): from the number of codes of each length."""
    lengths = list(length_of.values())
    next_code = [0] * 14
    for length in range(1, 13):
        next_code[length + 1] = (next_code[length] + lengths.count(length)) << 1
    codes = {}
    for symbol in sorted(length_of):
        length = length_of[symbol]
        if length:
            codes[symbol] = f"{next_code[length]:0{length}b}"
            next_code[length] += 1
    return codes


@dataclass(frozen=True)
class Residual:
    """The parts of a residual codebook's record (§5)."""

    lengths: tuple[int, ...]

    @classmethod
    def of(cls, record: bytes) -> Residual:
        nibbles = [nibble for byte in record[4:] for nibble in (byte & 15, byte >> 4)]
        return cls(tuple(nibbles[: 1 + 15 * record[1]]))

    def record(self, digits: int | None = None, reserved: int = 0, fill: int = 0, spare: Random | None = None) -> bytes:
        digits = len(self.lengths) // 15 if digits is None else digits
        return padded(struct.pack("<BBH", 2, digits, reserved) + pack(self.lengths, 4, spare), 4, fill)

    def codes(self) -> dict[int, str]:
        """Codes by symbol, first bit first (§5)."""
        return canonical_codes(dict(enumerate(self.lengths)))


@dataclass(frozen=True)
class Columns:
    """The parts of a record of column references (§4); `numbers` are what `least` is added to."""

    n_columns: int
    first: int
    end: int
    group: int
    least: int
    width: int
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, record: bytes) -> Columns:
        marked, first, end, group, least, width = COLUMNS.unpack_from(record)
        n_columns = marked - (1 << 31)
        bits = int.from_bytes(record[COLUMNS.size :], "little")
        numbers = tuple(bits >> width * i & (1 << width) - 1 for i in range(n_columns // group)) if width else ()
        return cls(n_columns, first, end, group, least - 256 * (least >> 7), width, numbers)

    def record(self, fill: int = 0, spare: Random | None = None) -> bytes:
        start = COLUMNS.pack(1 << 31 | self.n_columns, self.first, self.end, self.group, self.least & 255, self.width)
        return start + padded(pack(self.numbers if self.width else (), self.width, spare), 4, fill)

    def reference(self, value: int) -> int:
        """Of a value, by its number in the array."""
        if not self.first <= value < self.end:
            return 0
        return self.least + (self.numbers[(value - self.first) % self.n_columns // self.group] if self.width else 0)


def by_id(record: bytes, number: int, seed: int) -> tuple[bytes, dict[tuple[int, int], bytes]]:
    """A record of kind 1 (§5) that means another one, and what a decoder must hold to read it.

    The seed of the hash is H for an inline record, 256 + W for one of changes.
    """
    name = number, checksum(record, seed)
    return struct.pack("<B3sIQ", 1, b"", *name), {name: record}


def streams_of(block: bytes, at: int, lengths_at: int, n_streams: int, least: int, width: int) -> tuple[bytes, ...]:
    """The sub-streams from a byte of a block on, whose lengths less `least` are packed (§7)."""
    lengths = (least + more for more in unpacked(block, lengths_at, n_streams, width))
    return tuple(block[begin:end] for begin, end in pairwise(accumulate(lengths, initial=at)))


@dataclass(frozen=True)
class Coded:
    """The parts of a coded block (§6, §7)."""

    codebook: int
    base: int
    n_values: int
    planes: bytes
    streams: tuple[bytes, ...]
    references: tuple[int, ...]
    min_stream_bytes: int
    length_width: int
    reference_width: int
    run_symbol: int
    flags: int = 0

    @classmethod
    def of(cls, block: bytes, stream_log2: int) -> Coded:
        _, codebook, base, n_values, _ = BLOCK_HEADER.unpack_from(block)
        fields = EXTENSION.unpack_from(block, 16)
        symbol_bytes, plane_bytes, min_stream_bytes, length_width, reference_width, run_symbol, flags, _ = fields
        n_streams = -(-n_values // 2**stream_log2)
        at = 32 + plane_bytes
        lengths_at = at + symbol_bytes
        references_at = lengths_at + packed_bytes(n_streams, length_width)
        return cls(
            codebook,
            base,
            n_values,
            block[32:at],
            streams_of(block, at, lengths_at, n_streams, min_stream_bytes, length_width),
            tuple(unpacked(block, references_at, n_streams, reference_width)),
            min_stream_bytes,
            length_width,
            reference_width,
            run_symbol,
            flags,
        )

    def block(
        self,
        *,
        symbol_bytes: int | None = None,
        plane_bytes: int | None = None,
        surplus: bytes = b"",
        reserved: bytes = b"",
        fill: int = 0,
        spare: Random | None = None,
    ) -> bytes:
        """The block; its checksum is left open. `surplus` comes after the sub-streams."""
        streams = b"".join(self.streams) + surplus
        symbol_bytes = len(streams) if symbol_bytes is None else symbol_bytes
        plane_bytes = len(self.planes) if plane_bytes is None else plane_bytes
        extension = EXTENSION.pack(
            symbol_bytes,
            plane_bytes,
            self.min_stream_bytes,
            self.length_width,
            self.reference_width,
            self.run_symbol,
            self.flags,
            reserved,
        )
        above = [len(stream) - self.min_stream_bytes for stream in self.streams]
        lengths = pack(above, self.length_width, spare)
        references = pack(self.references, self.reference_width, spare)
        start = BLOCK_HEADER.pack(2, self.codebook, self.base, self.n_values, 0)
        return padded(start + extension + self.planes + streams + lengths + references, 8, fill)

    def restreamed(self, s: int, stream: bytes) -> Coded:
        """With another sub-stream s, the lengths being given in full."""
        streams = (*self.streams[:s], stream, *self.streams[s + 1 :])
        return replace(self, streams=streams, min_stream_bytes=0, length_width=16)


@dataclass(frozen=True)
class Predicted:
    """The parts of a predicted block (§6, §8)."""

    codebook: int
    template: int
    n_values: int
    planes: bytes
    streams: tuple[bytes, ...]
    scales: bytes
    min_stream_bytes: int
    length_width: int
    run_symbol: int
    column: int

    @classmethod
    def of(cls, block: bytes, stream_log2: int, n_columns: int) -> Predicted:
        _, codebook, template, n_values, _ = BLOCK_HEADER.unpack_from(block)
        fields = PREDICTED_EXTENSION.unpack_from(block, 16)
        symbol_bytes, plane_bytes, min_stream_bytes, length_width, run_symbol, column = fields
        n_streams = -(-n_values // 2**stream_log2)
        at = 32 + plane_bytes
        lengths_at = at + symbol_bytes
        scales_at = lengths_at + packed_bytes(n_streams, length_width)
        n_rows = (column + n_values - 1) // n_columns + 1 if n_columns else 0
        return cls(
            codebook,
            template,
            n_values,
            block[32:at],
            streams_of(block, at, lengths_at, n_streams, min_stream_bytes, length_width),
            block[scales_at : scales_at + 3 * n_rows],
            min_stream_bytes,
            length_width,
            run_symbol,
            column,
        )

    def block(
        self,
        *,
        symbol_bytes: int | None = None,
        plane_bytes: int | None = None,
        surplus: bytes = b"",
        fill: int = 0,
        spare: Random | None = None,
    ) -> bytes:
        """The block; its checksum is left open. `surplus` comes after the sub-streams."""
        streams = b"".join(self.streams) + surplus
        symbol_bytes = len(streams) if symbol_bytes is None else symbol_bytes
        plane_bytes = len(self.planes) if plane_bytes is None else plane_bytes
        extension = PREDICTED_EXTENSION.pack(
            symbol_bytes, plane_bytes, self.min_stream_bytes, self.length_width, self.run_symbol, self.column
        )
        lengths = pack([len(stream) - self.min_stream_bytes for stream in self.streams], self.length_width, spare)
        start = BLOCK_HEADER.pack(3, self.codebook, self.template, self.n_values, 0)
        return padded(start + extension + self.planes + streams + lengths + self.scales, 8, fill)

    def restreamed(self, s: int, stream: bytes) -> Predicted:
        """With another sub-stream s, the lengths being given in full."""
        streams = (*self.streams[:s], stream, *self.streams[s + 1 :])
        return replace(self, streams=streams, min_stream_bytes=0, length_width=16)


def plain_block(number: int, n_values: int, body: bytes, codebook: int = 0, base: int = 0) -> bytes:
    """A constant or raw block (§6); its checksum is left open."""
    return padded(BLOCK_HEADER.pack(number, codebook, base, n_values, 0) + body, 8)


def base_template(hashed: int) -> bytes:
    """A template that stands for the base of a hash (§4)."""
    return struct.pack("<IQ", 0, hashed)


def kept_bits(kind: DType, drop: int) -> int:
    """k of a level (§4)."""
    return kind.T - min(drop, kind.T - 1)
