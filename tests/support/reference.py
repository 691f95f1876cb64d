"""A second decoder of the frame format, written from `docs/format.md` alone.

It shares no line with gcodec, so that what the two agree on is what the page says. It is laid out in the
order of the page, whose section numbers stand as § in the docstrings, and it prefers the page's wording to
speed: codes are looked up as strings of 0 and 1.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support.paths import ROOT

Bits: TypeAlias = npt.NDArray[np.unsignedinteger]  # values as integers of W bits
U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
Template: TypeAlias = U32 | int  # bits of float32 values, or the hash of the base
Known: TypeAlias = Mapping[tuple[int, int], bytes]  # inline records of codebooks by (id, hash)
Kind: TypeAlias = Literal["insufficient", "corruption", "unsupported", "limit"]


class Refused(Exception):  # noqa: N818 - the page's word
    """A frame that a decoder must refuse (§11), and the kind of refusal."""

    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(f"{kind}: {why}")
        self.kind = kind


def require(condition: bool, what: str, otherwise: Kind = "corruption") -> None:
    """Refuse the frame unless `what` holds."""
    if not condition:
        raise Refused(otherwise, f"must hold: {what}")


# --------------------------------------------------------------------------------------------- §1 Conventions


def round_up(n: int, multiple: int) -> int:
    """The next multiple; `round_up(x, 8)` is the ⌈x⌉₈ of §1."""
    return -(-n // multiple) * multiple


def packed_bytes(n: int, width: int) -> int:
    """Size of a packed array of n items of `width` bits (§1)."""
    return -(-n * width // 8)


def unpack(data: bytes, n: int, width: int) -> U64:
    """The items of a packed array (§1): least significant bit first; spare bits are ignored."""
    bits = np.zeros((n, 64), np.uint8)
    bits[:, :width] = np.unpackbits(np.frombuffer(data, np.uint8), count=n * width, bitorder="little").reshape(n, width)
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").reshape(n).astype(np.uint64)


class Reader:
    """Takes fields off the front of some bytes; all integers are unsigned and little-endian (§1)."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, n: int) -> bytes:
        require(n <= len(self.data) - self.at, "every part lies within what contains it")
        self.at += n
        return self.data[self.at - n : self.at]

    def u(self, bits: Literal[8, 16, 32, 64]) -> int:
        return int.from_bytes(self.take(bits // 8), "little")

    def items(self, n: int, width: int) -> list[int]:
        """A packed array."""
        items: list[int] = unpack(self.take(packed_bytes(n, width)), n, width).tolist()
        return items

    def reserved(self, n: int) -> None:
        """Reserved fields and padding bytes are zero (§1)."""
        require(not any(self.take(n)), "reserved fields and padding are zero")

    def pad(self, multiple: int) -> None:
        self.reserved(round_up(self.at, multiple) - self.at)


# --------------------------------------------------------------------------------------------- §2 Value types


@dataclass(frozen=True)
class DType:
    """A row of the table in §2: a value has W bits, H in the head, T in the tail; M are mantissa."""

    name: str
    W: int
    H: int
    T: int
    M: int
    sign_in_head: bool = False

    @property
    def container(self) -> np.dtype[np.unsignedinteger]:
        return np.dtype(f"<u{self.W // 8}")

    @property
    def predicted(self) -> bool:
        """Whether frames of this type may have residual codebooks and templates of columns (§4)."""
        return self.name in ("float32", "bfloat16", "float16")


DTYPES = {
    1: DType("float32", 32, 8, 24, 23),
    2: DType("bfloat16", 16, 8, 8, 7),
    3: DType("float16", 16, 8, 8, 10),
    4: DType("float64", 64, 11, 53, 52),
    5: DType("float8_e4m3fn", 8, 8, 0, 3),
    6: DType("float8_e5m2", 8, 8, 0, 2),
    7: DType("bfloat16", 16, 9, 7, 7),
    8: DType("float32", 32, 9, 23, 23),
    16: DType("bfloat16", 16, 9, 7, 7, True),
    17: DType("float32", 32, 9, 23, 23, True),
    18: DType("float16", 16, 8, 8, 10, True),
    19: DType("float64", 64, 12, 52, 52, True),
    20: DType("bfloat16", 16, 12, 4, 7, True),
    21: DType("float32", 32, 12, 20, 23, True),
}
BYTES = DTYPES[5]  # of the indices of indexed blocks (§5, §10)
# Further codes of a name are the same values with other heads.
BY_NAME: dict[str, DType] = {}
for _kind in DTYPES.values():
    BY_NAME.setdefault(_kind.name, _kind)


def join(kind: DType, head: U64, tail: U64) -> U64:
    """Values from heads and tails (§2)."""
    if kind.T == 0:
        return head
    if kind.sign_in_head:
        sign, rest = head & np.uint64(1), head >> np.uint64(1)
        return (sign << np.uint64(kind.W - 1)) | (rest << np.uint64(kind.T)) | tail
    sign, rest = tail >> np.uint64(kind.T - 1), tail & np.uint64(2 ** (kind.T - 1) - 1)
    return (sign << np.uint64(kind.W - 1)) | (head << np.uint64(kind.T - 1)) | rest


# ------------------------------------------------------------------------------------------------ §3 Checksum


def checksum(data: bytes, seed: int, own_words: Sequence[int] = ()) -> int:
    """The checksum of the 32-bit words of `data`; those that hold the checksum itself count as zero (§3)."""
    words = np.frombuffer(data, "<u4").astype(np.uint64)
    words[list(own_words)] = 0
    return (seed + int((words * multipliers(len(words))).sum())) % 2**64


@functools.lru_cache(maxsize=1000)
def multipliers(n: int) -> U64:
    """m(i) for i from 0 to n - 1 (§3)."""
    i = np.arange(n, dtype=np.uint64)
    return (i + np.uint64(1)) * np.uint64(0x9E3779B1) % np.uint64(2**32) | np.uint64(1)


# --------------------------------------------------------------------------------------------------- §4 Frame

MAGIC = b"\x89GCF"


@dataclass(frozen=True)
class Level:
    """A level (§4), `kept` being its k: the number of tail bits in the planes of its mask."""

    drop: int
    mask: int
    kept: int


@dataclass(frozen=True)
class Prelude:
    """Everything before the blocks (§4), read and checked."""

    kind: DType
    mode: int
    container: int
    block_log2: int
    stream_log2: int
    n_values: int
    shape: tuple[int, ...]
    planes: tuple[int, ...]
    levels: tuple[Level, ...]
    codebooks: tuple[AnyCodebook, ...]
    residuals: tuple[ResidualCodebook, ...]
    templates: tuple[Template, ...]
    columns: tuple[ColumnReferences, ...]
    blocks: tuple[slice, ...]

    @property
    def base_hashes(self) -> set[int]:
        """The hash of the base, if there is one; all bases of a frame have the same (§8)."""
        return {template for template in self.templates if isinstance(template, int)}

    def values_in(self, b: int) -> int:
        """How many values block b holds (§4)."""
        return min(2**self.block_log2, self.n_values - (b << self.block_log2))


def read_prelude(data: bytes, known: Known, limit: int | None = None) -> Prelude:
    """The prelude of a frame (§4), with what can be refused before its blocks are looked at (§11)."""
    # What may be looked at before the checksum is verified, in the order of §11.
    require(len(data) >= 48, "there are 48 bytes", "insufficient")
    fields = Reader(data)
    require(fields.take(4) == MAGIC, "magic")
    require(fields.u(8) == 1, "version is 1", "unsupported")
    dtype, mode, container, ndim, block_log2, stream_log2 = (fields.u(8) for _ in range(6))
    n_codebooks, n_levels, n_planes, n_residuals, n_templates = (fields.u(8) for _ in range(5))
    frame_bytes, n_values, prelude_bytes, stored = (fields.u(64) for _ in range(4))
    require(frame_bytes % 8 == 0, "frame_bytes is a multiple of 8")
    require(prelude_bytes % 8 == 0, "prelude_bytes is a multiple of 8")
    require(48 <= prelude_bytes <= frame_bytes, "header and prelude lie within the frame")
    require(len(data) >= frame_bytes, "there are frame_bytes", "insufficient")
    prelude = data[:prelude_bytes]
    require(checksum(prelude, 0, own_words=(10, 11)) == stored, "checksum of the prelude")

    require(dtype in DTYPES, "dtype is a code of section 2", "unsupported")
    kind = DTYPES[dtype]
    require(mode <= 2, "mode is 0 ... 2")
    require(container <= 1, "container is 0 or 1")
    require(ndim <= 32, "ndim is 0 ... 32")
    require(10 <= block_log2 <= 20, "block_log2 is 10 ... 20")
    require(6 <= stream_log2 <= min(12, block_log2), "stream_log2 is 6 ... 12, at most block_log2")
    require(1 <= n_levels <= 16, "n_levels is 1 ... 16")
    require(n_planes <= 8, "n_planes is 0 ... 8")
    require(kind.predicted or n_residuals == 0, "n_residuals is 0 for this type")

    rest = Reader(prelude, at=48)
    shape = tuple(rest.u(64) for _ in range(ndim))
    product = 1
    for dimension in shape:
        product *= dimension
    require(n_values == product, "n_values is the product of the shape")
    without_zeros = 1
    for dimension in shape:
        without_zeros *= dimension or 1
    require(without_zeros < 2**48, "the product of the dimensions that are not 0 is below 2^48")

    planes, levels = read_levels(rest, kind, n_planes, n_levels)
    codebooks = read_codebooks(rest, kind, n_codebooks, n_levels, known)
    residuals = tuple(read_residual(rest, kind) for _ in range(n_residuals))
    templates, columns = read_templates(rest, kind, n_templates, n_values)
    require(len({hashed for hashed in templates if isinstance(hashed, int)}) <= 1, "all bases have the same hash")
    rest.pad(8)

    n_blocks = -(-n_values // 2**block_log2)
    index = Reader(rest.take(4 * n_blocks))
    rest.pad(8)
    require(rest.at == prelude_bytes, "prelude_bytes is where the prelude ends")
    blocks = []
    start = prelude_bytes
    for _ in range(n_blocks):
        size = index.u(32)
        require(size % 8 == 0, "the size of a block is a multiple of 8")
        blocks.append(slice(start, start + size))
        start += size
    require(start == frame_bytes, "prelude_bytes and the sizes of the blocks add up to frame_bytes")
    within = limit is None or n_values * kind.W // 8 <= limit
    require(within, "the array is within the caller's limit", "limit")
    return Prelude(
        kind,
        mode,
        container,
        block_log2,
        stream_log2,
        n_values,
        shape,
        planes,
        levels,
        codebooks,
        residuals,
        templates,
        columns,
        tuple(blocks),
    )


def read_levels(rest: Reader, kind: DType, n_planes: int, n_levels: int) -> tuple[tuple[int, ...], tuple[Level, ...]]:
    """Planes and levels (§4)."""
    planes = tuple(rest.u(8) for _ in range(n_planes))
    require(all(1 <= width <= 56 for width in planes), "the width of a plane is 1 ... 56")
    levels = []
    for _ in range(n_levels):
        drop, mask = rest.u(8), rest.u(8)
        require(mask < 2**n_planes, "masks name existing planes only")
        levels.append(Level(drop, mask, sum(width for p, width in enumerate(planes) if mask >> p & 1)))
    if kind.T == 0:
        require(n_planes == 0, "a type without tail has no planes")
        require(levels == [Level(0, 0, 0)], "a type without tail has one level, which drops nothing")
    else:
        drops = [level.drop for level in levels]
        require(drops == sorted(set(drops)), "drops rise strictly with the level")
        require(drops[-1] <= kind.M, "drops are at most M")
        for level in levels:
            k = kind.T - min(level.drop, kind.T - 1)
            require(level.kept == k, "the planes of a level hold the bits that it does not drop")
    return planes, tuple(levels)


@dataclass(frozen=True)
class ColumnReferences:
    """A record of column references (§4); `numbers` are one for every `group` columns, to which `least` is added."""

    record: bytes
    n_columns: int
    first: int
    end: int
    group: int
    least: int
    numbers: U64

    def of(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The column references of values by their numbers in the array; 0 of those that are not in the record."""
        inside = (self.first <= values) & (values < self.end)
        place = np.where(inside, (values - self.first) % self.n_columns // self.group, 0)
        # Without bits there is nothing but `least`, however many columns there are said to be.
        numbers = self.numbers[place].astype(np.int64) if len(self.numbers) else 0
        return np.where(inside, self.least + numbers, 0)


def read_templates(
    rest: Reader, kind: DType, n_templates: int, n_values: int
) -> tuple[tuple[Template, ...], tuple[ColumnReferences, ...]]:
    """Templates, and the column references that come after them (§4)."""
    templates: list[Template] = []
    columns: list[ColumnReferences] = []
    for _ in range(n_templates):
        start, first_field = rest.at, rest.u(32)
        if first_field >= 2**31:
            require(kind.T > 0, "all templates of a type without tail stand for the base")
            rest.at = start
            columns.append(read_columns(rest, n_values, columns[-1].end if columns else 0))
            continue
        require(not columns, "column references come after all other templates")
        if first_field == 0:
            templates.append(rest.u(64))
        else:
            require(kind.predicted, "the type is one that may have templates of columns")
            require(2 <= first_field < 2**24, "n_columns is 0 or 2 ... 2^24 - 1")
            templates.append(np.frombuffer(rest.take(4 * first_field), "<u4"))
    return tuple(templates), tuple(columns)


def read_columns(rest: Reader, n_values: int, end_before: int) -> ColumnReferences:
    """A record of column references (§4); `end_before`: the end of the record before."""
    start = rest.at
    n_columns = rest.u(32) - 2**31
    first, end, group, least, width = rest.u(64), rest.u(64), rest.u(16), rest.u(8), rest.u(8)
    least -= 256 if least >= 128 else 0  # two's complement
    require(2 <= n_columns < 2**24, "n_columns of column references is 2 ... 2^24 - 1")
    require(end_before <= first, "first is not below the end of the record before")
    require(first < end <= n_values, "first < end <= n_values")
    require(group > 0 and n_columns % group == 0, "n_columns is a multiple of group")
    require(width <= 8, "width is 0 ... 8")
    n_numbers = n_columns // group
    packed = Reader(rest.take(round_up(packed_bytes(n_numbers, width), 4)))
    numbers = unpack(packed.take(packed_bytes(n_numbers, width)), n_numbers if width else 0, width)
    packed.pad(4)
    require(least + int(numbers.max(initial=0)) <= 127, "a column reference is at most 127")
    return ColumnReferences(rest.data[start : rest.at], n_columns, first, end, group, least, numbers)


# ------------------------------------------------------------------------------------------------ §5 Codebook

ZERO = 0
ESCAPE = 255


@dataclass(frozen=True)
class Codebook:
    """A prefix code (§5), and the record in the frame that it was read from."""

    record: bytes
    symbols: dict[int, tuple[int, int]]  # symbol: (level, relative head), without zero and escape
    codes: Codes  # the bits of a code, lowest bit position first: symbol; the shortest first


@dataclass(frozen=True)
class ChangeCodebook:
    """The prefix codes for changes (§5, §9), each as in Codebook, and the record that they were read from.

    A code is empty if no symbol has one. With `n_classes` = 0 there is one code of gaps, and no steps.
    """

    record: bytes
    n_classes: int
    thresholds: tuple[int, ...]
    counts: Codes
    steps: Codes
    classes: tuple[Codes, ...]


@dataclass(frozen=True)
class Dictionary:
    """A codebook of indices with the entries that they stand for (§5, §10), and the record that it was read from.

    Entries are values as integers of W bits, or with form 1 factors as bits of float32.
    """

    record: bytes
    form: int
    codebook: Codebook
    entries: U64


AnyCodebook: TypeAlias = Codebook | ChangeCodebook | Dictionary


def read_codebooks(rest: Reader, kind: DType, n_codebooks: int, n_levels: int, known: Known) -> tuple[AnyCodebook, ...]:
    """The codebooks of all kinds but 2, in the order that they must have (§5)."""
    codebooks = tuple(read_codebook(rest, kind, n_levels, known) for _ in range(n_codebooks))
    in_order = [Codebook, ChangeCodebook, Dictionary]
    places = [in_order.index(type(codebook)) for codebook in codebooks]
    require(places == sorted(places), "codebooks of kind 0 come first, then those of kind 3, then those of kind 4")
    require(places.count(1) <= 16, "there are at most 16 codebooks of kind 3")
    require(places.count(2) <= 16, "there are at most 16 codebooks of kind 4")
    return codebooks


def read_codebook(rest: Reader, kind: DType, n_levels: int, known: Known) -> AnyCodebook:
    """A record of kind 0, 1, 3 or 4 (§5)."""
    start = rest.at
    if rest.u(8) == 1:
        rest.reserved(3)
        name = rest.u(32), rest.u(64)
        require(name in known, "a codebook of this id and hash is held", "unsupported")
        require(meant_for(known[name], kind, n_levels, name[1]), "the codebook is for frames like this", "unsupported")
        return replace(read_record(known[name], kind, n_levels), record=rest.data[start : rest.at])
    codebook = read_record(rest.data[start:], kind, n_levels)
    rest.at = start + len(codebook.record)
    return codebook


def meant_for(record: bytes, kind: DType, n_levels: int, hashed: int) -> bool:
    """Whether a record that is named by a hash is for the frame's n_levels and H, or for its W (§5)."""
    if record[0] == 3:
        return record[3] == kind.W // 8 and checksum(record, seed=256 + kind.W) == hashed
    # The hash may be that for another H, which is the seed; byte 1 of the record is its n_levels.
    return record[0] == 0 and record[1] == n_levels and checksum(record, seed=kind.H) == hashed


def read_record(data: bytes, kind: DType, n_levels: int) -> AnyCodebook:
    """The record of kind 0, 3 or 4 (§5) that `data` begins with."""
    match data[:1]:
        case b"\0":
            return read_inline(data, kind, n_levels)
        case b"\3":
            return read_changes_record(data, kind)
        case b"\4" if kind.T > 0:
            return read_dictionary(data, kind)
        case _:
            raise Refused("unsupported", "reserved kind of codebook, or one out of its place")


def read_inline(data: bytes, kind: DType, n_levels: int) -> Codebook:
    """The inline record (§5) that `data` begins with."""
    record = Reader(data)
    require(record.u(8) == 0, "the kind of an inline record is 0")
    require(record.u(8) == n_levels, "n_levels of the codebook is that of the frame")
    record.reserved(2)
    ranges = [(record.u(16), record.u(16)) for _ in range(n_levels)]
    require(all(first < 2**kind.H for first, _ in ranges), "first is below 2^H")
    n_symbols = sum(count for _, count in ranges)
    require(n_symbols <= 254, "the counts add up to 254 at most")
    lengths = record.items(2 + n_symbols, 4)
    require(max(lengths) <= 12, "code lengths are 0 ... 12")
    record.pad(4)

    symbols: dict[int, tuple[int, int]] = {}
    for level, (first, count) in enumerate(ranges):
        for j in range(count):
            symbols[len(symbols) + 1] = level, (first + j) % 2**kind.H
    length_of = dict(zip([ZERO, ESCAPE, *symbols], lengths, strict=True))
    return Codebook(data[: record.at], symbols, canonical({s: n for s, n in length_of.items() if n > 0}))


def read_changes_record(data: bytes, kind: DType) -> ChangeCodebook:
    """The record of kind 3 (§5) that `data` begins with."""
    record = Reader(data)
    require(record.u(8) == 3, "the kind of a codebook of changes is 3")
    n_classes, n_gaps, value_bytes = record.u(8), record.u(8), record.u(8)
    require(n_classes <= 16, "n_classes is 0 ... 16")
    require(1 <= n_gaps <= 41, "n_gaps is 1 ... 41")
    require(value_bytes == kind.W // 8, "value_bytes is W / 8")
    thresholds = tuple(int.from_bytes(record.take(value_bytes), "little") for _ in range(max(n_classes - 1, 0)))
    require(list(thresholds) == sorted(set(thresholds)), "thresholds rise strictly")
    require(all(1 <= threshold < 2 ** (kind.W - 1) for threshold in thresholds), "thresholds are 1 ... 2^(W - 1) - 1")
    sizes = [41, n_gaps] if n_classes == 0 else [41, 2 * kind.W + 1] + [3 * n_gaps] * n_classes
    lengths = record.items(sum(sizes), 4)
    require(max(lengths) <= 12, "code lengths are 0 ... 12")
    record.pad(4)
    codes = []
    for size in sizes:
        length_of = {symbol: n for symbol, n in enumerate(lengths[:size]) if n > 0}
        codes.append(canonical(length_of) if length_of else Codes())
        lengths = lengths[size:]
    counts = codes.pop(0)
    steps = Codes() if n_classes == 0 else codes.pop(0)
    return ChangeCodebook(data[: record.at], n_classes, thresholds, counts, steps, tuple(codes))


def read_dictionary(data: bytes, kind: DType) -> Dictionary:
    """The record of kind 4 (§5) that `data` begins with."""
    record = Reader(data)
    require(record.u(8) == 4, "the kind of a dictionary is 4")
    form, n_entries = record.u(8), record.u(16)
    require(form in (0, 1, 3), "form is 0, 1 or 3", "unsupported")
    require(form == 0 or kind.predicted, "form is 0 for this type")
    require(1 <= n_entries <= 256, "n_entries is 1 ... 256")
    codebook = read_inline(data[record.at :], BYTES, n_levels=1)
    record.at += len(codebook.record)
    width = 32 if form else kind.W
    entries = unpack(record.take(n_entries * width // 8), n_entries, width)
    require(form == 0 or not infinite_or_nan(entries).any(), "factors are finite")
    record.pad(4)
    return Dictionary(data[: record.at], form, codebook, entries)


def infinite_or_nan(bits: U64) -> npt.NDArray[np.bool_]:
    """Which of some float32, by their bits, have an exponent field of 255."""
    return bits >> np.uint64(23) & np.uint64(255) == 255


@dataclass(frozen=True)
class ResidualCodebook:
    """A prefix code for the residuals of predicted blocks (§5), and its record."""

    record: bytes
    codes: Codes  # as in Codebook


def read_residual(rest: Reader, kind: DType) -> ResidualCodebook:
    """A record of kind 2 (§5)."""
    record = Reader(rest.data[rest.at :])
    require(record.u(8) == 2, "the kind of a residual codebook is 2", "unsupported")
    require(record.u(8) == kind.W // 4, "digits is W / 4")
    record.reserved(2)
    lengths = record.items(1 + 15 * kind.W // 4, 4)
    require(max(lengths) <= 12, "code lengths are 0 ... 12")
    record.pad(4)
    rest.at += record.at
    return ResidualCodebook(record.data[: record.at], canonical({s: n for s, n in enumerate(lengths) if n > 0}))


class Codes(dict[str, int]):
    """The symbols of a prefix code by their codes, the lowest bit position first; the shortest code comes first.

    `begins` has what the next 12 bits begin with, once that has been looked up: a symbol, and the bits of its code.
    """

    def __init__(self, symbols: Mapping[str, int] | None = None) -> None:
        super().__init__(symbols or {})
        self.begins: dict[str, tuple[int, int]] = {}


def canonical(lengths: dict[int, int]) -> Codes:
    """The canonical code for lengths by symbol (§5)."""
    return canonical_code(tuple(sorted((n, s) for s, n in lengths.items())))


@functools.lru_cache(maxsize=10_000)
def canonical_code(lengths: tuple[tuple[int, int], ...]) -> Codes:
    """The canonical code for lengths with their symbols, in order (§5)."""
    require(sum(2 ** (12 - n) for n, _ in lengths) == 2**12, "the code is complete")
    codes = Codes()
    code = previous = 0
    for length, symbol in lengths:
        code <<= length - previous
        codes[f"{code:0{length}b}"] = symbol
        code += 1
        previous = length
    return codes


# --------------------------------------------------------------------------------------------------- §6 Block

BlockKind: TypeAlias = Literal["constant", "raw", "coded", "predicted", "sparse", "indexed"]
KINDS_OF_BLOCK: tuple[BlockKind, ...] = ("constant", "raw", "coded", "predicted", "sparse", "indexed")


@dataclass(frozen=True)
class Block:
    """The header of a block (§6), and its body, of which nothing has been read."""

    kind: int
    codebook: int
    base: int
    n_values: int
    body: Reader


def read_header(b: int, data: bytes, n_values: int, otherwise: Kind = "unsupported") -> Block:
    """The header of a block that must have so many values (§6), `data` being all of it.

    `otherwise` is how a reserved kind is refused.
    """
    fields = Reader(data)
    kind, codebook, base, own_n_values, stored = (fields.u(8), fields.u(8), fields.u(16), fields.u(32), fields.u(64))
    seed = (b + 1) * 0x9E3779B97F4A7C15
    require(checksum(data, seed, own_words=(2, 3)) == stored, "checksum of the block")
    require(kind < len(KINDS_OF_BLOCK), "kind of block is 0 ... 5", otherwise)
    require(own_n_values == n_values, "n_values of the block is what it must be")
    return Block(kind, codebook, base, n_values, fields)


def read_end(block: Block) -> None:
    """What follows a block's body (§6)."""
    block.body.pad(8)
    require(block.body.at == len(block.body.data), "the size of the block is 16 and its body, rounded up to 8")


def read_block(prelude: Prelude, b: int, data: bytes, base_values: U64 | None) -> tuple[BlockKind, U64]:
    """Block b (§6): its kind and its values. `base_values` are those of the base, all of them (§8)."""
    block = read_header(b, data, prelude.values_in(b))
    start = b << prelude.block_log2
    same_places = None if base_values is None else base_values[start : start + block.n_values]
    match block.kind:
        case 3:
            require(block.codebook < len(prelude.residuals), "codebook is below n_residuals")
            # Column references have numbers behind those of the templates, and predict nothing.
            require(block.base < len(prelude.templates), "template is below n_templates")
            codebook, template = prelude.residuals[block.codebook], prelude.templates[block.base]
            values = read_predicted(prelude, codebook, template, same_places, block.n_values, block.body)
        case 4:
            values = read_sparse(prelude, block, same_places)
        case 5:
            values = read_indexed(prelude, b, block)
        case _:
            values = read_own_values(prelude, block, column_references(prelude, start, block.n_values))
    read_end(block)
    return KINDS_OF_BLOCK[block.kind], values


def column_references(prelude: Prelude, start: int, n_values: int) -> npt.NDArray[np.int64] | None:
    """The column references of the values from `start` on (§4); None if the frame has no records of them."""
    if not prelude.columns:
        return None
    references = np.zeros(n_values, np.int64)
    for columns in prelude.columns:  # no value is in two of them
        references += columns.of(np.arange(n_values) + start)
    return references


def read_own_values(prelude: Prelude, block: Block, columns: npt.NDArray[np.int64] | None) -> U64:
    """The values of a constant, raw or coded block (§6). Without `columns`, a coded one has flags = 0."""
    value_bytes, container = prelude.kind.W // 8, prelude.kind.container
    if block.kind < 2:
        require(block.codebook == block.base == 0, "a constant or raw block has neither codebook nor base")
        n_stored = 1 if block.kind == 0 else block.n_values
        stored = np.frombuffer(block.body.take(n_stored * value_bytes), container).astype(np.uint64)
        return np.repeat(stored, block.n_values) if block.kind == 0 else stored
    require(block.codebook < len(prelude.codebooks), "codebook is below n_codebooks")
    codebook = prelude.codebooks[block.codebook]
    if not isinstance(codebook, Codebook):
        raise Refused("corruption", "the codebook of a coded block is of kind 0")
    require(block.base < 2**prelude.kind.H, "base is below 2^H")
    return read_coded(prelude, codebook, block.base, block.n_values, columns, block.body)


# --------------------------------------------------------------------------------------------- §7 Coded block


def read_coded(
    prelude: Prelude,
    codebook: Codebook,
    base: int,
    n_values: int,
    columns: npt.NDArray[np.int64] | None,
    body: Reader,
) -> U64:
    """The values of a coded block from its body (§7). `columns` are the column references of its values (§4)."""
    kind = prelude.kind
    symbol_bytes, plane_bytes, min_stream_bytes = body.u(32), body.u(32), body.u(16)
    length_width, reference_width, run_symbol, flags = body.u(8), body.u(8), body.u(8), body.u(8)
    body.reserved(2)
    require(length_width <= 16, "length_width is 0 ... 16")
    require(reference_width <= kind.H, "reference_width is 0 ... H")
    require(run_symbol <= len(codebook.symbols), "run_symbol is zero or a symbol of the ranges")
    require(flags <= 1, "flags is 0 or 1")
    require(flags == 0 or columns is not None, "flags is 0 where there are no column references")

    per_stream = 2**prelude.stream_log2
    n_streams = -(-n_values // per_stream)
    planes = Reader(body.take(plane_bytes))
    streams = Reader(body.take(symbol_bytes))
    lengths = [min_stream_bytes + length for length in body.items(n_streams, length_width)]
    references = body.items(n_streams, reference_width)
    require(sum(lengths) == symbol_bytes, "symbol_bytes is the sum of the lengths of the sub-streams")

    # From symbols to heads and levels. `masks` says which planes hold an item of the value, none for zero.
    level_of = np.zeros(256, np.uint8)
    relative_head = np.zeros(256, np.int64)
    for number, (level, relative) in codebook.symbols.items():
        level_of[number], relative_head[number] = level, relative
    symbol, escaped = read_streams(streams, lengths, per_stream, n_values, run_symbol, kind.H, codebook.codes)
    reference = np.repeat(np.array(references, np.int64), per_stream)[:n_values]
    c = columns if columns is not None and flags else 0
    heads = ((base + reference + c + relative_head[symbol]) % 2**kind.H).astype(np.uint64)
    heads[symbol == ESCAPE] = escaped
    heads[symbol == ZERO] = 0
    levels = level_of[symbol]
    masks = np.array([level.mask for level in prelude.levels], np.uint8)[levels]
    masks[symbol == ZERO] = 0

    # From planes to tails.
    kept = np.zeros(n_values, np.uint64)
    for p, width in enumerate(prelude.planes):
        owners = np.flatnonzero(masks >> p & 1)
        items = unpack(planes.take(packed_bytes(len(owners), width)), len(owners), width)
        kept[owners] = kept[owners] << np.uint64(width) | items
    require(planes.at == plane_bytes, "plane_bytes is the sum of the sizes of the planes")
    tails = kept << np.array([kind.T - level.kept for level in prelude.levels], np.uint64)[levels]
    return join(kind, heads, tails)


def read_streams(
    streams: Reader,
    lengths: Sequence[int],
    per_stream: int,
    n_values: int,
    run_symbol: int,
    H: int,
    codes: Codes,
) -> tuple[npt.NDArray[np.intp], list[int]]:
    """The symbols of a block's sub-streams (§7), and the heads behind escapes."""
    symbols: list[int] = []
    escaped: list[int] = []
    for s, length in enumerate(lengths):
        count = min(per_stream, n_values - s * per_stream)
        if length == 0:
            symbols += [run_symbol] * count
        else:
            read_stream(streams.take(length), count, H, codes, symbols, escaped)
    return np.array(symbols, np.intp), escaped


class BitReader:
    """Takes codes and numbers off the front of a sub-stream (§7), lowest bit position first."""

    def __init__(self, data: bytes) -> None:
        self.bits = f"{int.from_bytes(data, 'little'):0{8 * len(data)}b}"[::-1]  # bits[i] is the bit at position i
        self.at = 0

    def symbol(self, codes: Codes) -> int:
        """The symbol whose code comes next."""
        symbol, n_bits = codes.begins.get(self.bits[self.at : self.at + 12]) or self.look_up(codes)
        self.at += n_bits
        return symbol

    def look_up(self, codes: Codes) -> tuple[int, int]:
        """The symbol whose code comes next, and the bits of its code."""
        require(len(codes) > 0, "a symbol is of a code that is not empty")
        window = self.bits[self.at : self.at + 12]
        for n_bits in range(len(next(iter(codes))), len(window) + 1):
            if window[:n_bits] in codes:
                return codes.begins.setdefault(window, (codes[window[:n_bits]], n_bits))
        raise Refused("corruption", "a code lies within its sub-stream")

    def number(self, n_bits: int) -> int:
        """The number in the next bits, lowest bit first."""
        end = self.at + n_bits
        require(end <= len(self.bits), "what follows a code lies within its sub-stream")
        self.at, start = end, self.at
        return int(self.bits[start:end][::-1] or "0", 2)

    def end(self) -> None:
        """There is nothing more but spare bits."""
        require(-(-self.at // 8) == len(self.bits) // 8, "a sub-stream ends in its last byte")


def read_stream(data: bytes, count: int, H: int, codes: Codes, symbols: list[int], escaped: list[int]) -> None:
    """Append the symbols of a sub-stream (§7) to `symbols`, and the heads behind escapes to `escaped`."""
    bits = BitReader(data)
    for _ in range(count):
        symbols.append(bits.symbol(codes))
        if symbols[-1] == ESCAPE:
            escaped.append(bits.number(H))
    bits.end()


# ----------------------------------------------------------------------------------------- §8 Predicted block


def read_predicted(
    prelude: Prelude, codebook: ResidualCodebook, template: Template, base: U64 | None, n_values: int, body: Reader
) -> U64:
    """The values of a predicted block from its body (§8). `base` holds the base's values at the same places."""
    W = prelude.kind.W
    symbol_bytes, plane_bytes, min_stream_bytes = body.u(32), body.u(32), body.u(16)
    length_width, run_symbol, column = body.u(8), body.u(8), body.u(32)
    require(length_width <= 16, "length_width is 0 ... 16")
    require(run_symbol <= 15 * W // 4, "run_symbol is 0 ... 15 W / 4")
    if isinstance(template, int):
        require(column == 0, "with a base, column is 0")
        n_rows = 0
    else:
        require(column < len(template), "column is below the template's n_columns")
        n_rows = -(-(column + n_values) // len(template))

    per_stream = 2**prelude.stream_log2
    n_streams = -(-n_values // per_stream)
    planes = Reader(body.take(plane_bytes))
    streams = Reader(body.take(symbol_bytes))
    lengths = [min_stream_bytes + length for length in body.items(n_streams, length_width)]
    scale_bytes = np.frombuffer(body.take(3 * n_rows), np.uint8).reshape(n_rows, 3).astype(np.uint32)
    require(sum(lengths) == symbol_bytes, "symbol_bytes is the sum of the lengths of the sub-streams")
    symbol, _ = read_streams(streams, lengths, per_stream, n_values, run_symbol, 0, codebook.codes)

    # Residuals: the first of k + 1 digits, floor(k / 2) bytes, and the last digit where k is odd.
    k = np.where(symbol == 0, 0, (symbol - 1) // 15)
    residual = np.where(symbol == 0, 0, symbol - 15 * k).astype(np.uint64)
    items = {}
    for p in range(W // 8):
        last = p == W // 8 - 1
        width = 4 if last else 8
        owners = np.flatnonzero(k % 2 == 1 if last else k // 2 > p)
        items[p] = owners, unpack(planes.take(packed_bytes(len(owners), width)), len(owners), width)
    require(planes.at == plane_bytes, "plane_bytes is the sum of the sizes of the planes")
    for p in (*range(W // 8 - 2, -1, -1), W // 8 - 1):
        owners, digits = items[p]
        residual[owners] = residual[owners] << np.uint64(4 if p == W // 8 - 1 else 8) | digits

    if isinstance(template, int):
        assert base is not None  # or the frame had been refused
        predicted = base
    else:
        predicted = predictions(prelude.kind, template, scale_bytes, column, n_values)

    # Values: o is its own inverse.
    half, whole = np.uint64(2 ** (W - 1)), np.uint64(2**W - 1)
    delta = np.where(residual % np.uint64(2) == 0, residual // np.uint64(2), ~(residual // np.uint64(2)) & whole)
    ordered = order(predicted, half) + delta & whole
    return order(ordered, half)


def predictions(kind: DType, template: U32, scale_bytes: U32, column: int, n_values: int) -> U64:
    """Predictions p of a block's values from a template (§8); `scale_bytes` are three a row."""
    scales = scale_bytes[:, 0] << np.uint32(8) | scale_bytes[:, 1] << np.uint32(16) | scale_bytes[:, 2] << np.uint32(24)
    place = column + np.arange(n_values)
    row, place = place // len(template), place % len(template)
    with np.errstate(all="ignore"):
        product = zero_if_denormal(scales)[row] * zero_if_denormal(template)[place]
    return prediction(kind, product.view(np.uint32).astype(np.int64)).astype(np.uint64)


def zero_if_denormal(bits: U32) -> npt.NDArray[np.float32]:
    """Factors of a product from their bits: those with an exponent field of 0 count as 0 (§8)."""
    return np.where(bits >> np.uint32(23) & np.uint32(255) == 0, np.uint32(0), bits).view(np.float32)


def prediction(kind: DType, q: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Predictions p from the bits q of products (§8)."""
    exponent = q >> 23 & 255
    match kind.name:
        case "float32":
            p = q
        case "bfloat16":
            p = (q + 2**15) // 2**16
        case _:
            m = q % 2**31
            s = np.clip(126 - m // 2**23, 1, 25)  # where it is used, it is 14 or more
            f = 2**23 + m % 2**23
            small = (f + (1 << s - 1)) // (1 << s)
            size = np.where(m >= 0x38800000, (m - 0x38000000 + 2**12) // 2**13, small)
            p = np.where(m >= 0x47800000, 0, size) + (q >> 31 << 15)
    return np.where((exponent == 0) | (exponent == 1) | (exponent == 255), 0, p)


def base_hash(base: Bits) -> int:
    """The hash of a base (§8)."""
    data = base.astype(base.dtype.newbyteorder("<")).tobytes()
    return checksum(data + bytes(-len(data) % 4), seed=base.size)


def order(v: U64, half: np.uint64) -> U64:
    """o(v), from values to integers in their order, and back: it is its own inverse (§8)."""
    most = np.uint64((3 * int(half) - 1) % 2**64)  # for W = 64, all is modulo 2^64 anyway
    return np.where(v < half, v, most - v)


# -------------------------------------------------------------------------------------------- §9 Sparse block


def read_sparse(prelude: Prelude, block: Block, base: U64 | None) -> U64:
    """The values of a sparse block from its body (§9). `base` holds the base's values at the same places."""
    require(block.codebook < len(prelude.codebooks), "codebook is below n_codebooks")
    codebook = prelude.codebooks[block.codebook]
    if not isinstance(codebook, ChangeCodebook):
        raise Refused("corruption", "the codebook of a sparse block is of kind 3")
    values = sparse_predictions(prelude, codebook, block, base)
    symbol_bytes, min_stream_bytes, length_width, stream_log2 = (
        block.body.u(32),
        block.body.u(32),
        block.body.u(8),
        block.body.u(8),
    )
    block.body.reserved(2)
    inner_bytes = block.body.u(32)
    require(length_width <= 24, "length_width is 0 ... 24")
    require(6 <= stream_log2 <= prelude.block_log2, "stream_log2 is 6 ... block_log2")
    require(inner_bytes % 8 == 0, "inner_bytes is a multiple of 8")
    require(inner_bytes == 0 or codebook.n_classes == 0, "inner_bytes is 0 unless n_classes is 0")
    inner = block.body.take(inner_bytes)
    streams = Reader(block.body.take(symbol_bytes))
    n_streams = -(-block.n_values >> stream_log2)
    lengths = [min_stream_bytes + length for length in block.body.items(n_streams, length_width)]
    require(sum(lengths) == symbol_bytes, "symbol_bytes is the sum of the lengths of the sub-streams")

    classes = classes_of(values, codebook, prelude.kind.W)
    changes: list[Change] = []
    for s, length in enumerate(lengths):
        start, end = s << stream_log2, min(s + 1 << stream_log2, len(values))
        if length > 0:
            changes += read_changes(streams.take(length), codebook, classes[start:end], start)
    places = [place for place, _ in changes]
    if codebook.n_classes == 0:
        values[places] = read_inner(prelude, inner, len(places))
    else:
        values[places] = moved(values[places], [step for _, step in changes], prelude.kind.W)
    return values


Change: TypeAlias = tuple[int, int]  # the place of a value in its block, and the step


def sparse_predictions(prelude: Prelude, codebook: ChangeCodebook, block: Block, base: U64 | None) -> U64:
    """The predictions of a sparse block's values (§9)."""
    if codebook.n_classes == 0:
        require(block.base == 65535, "base is 65535 if n_classes is 0")
        return np.zeros(block.n_values, np.uint64)
    require(block.base < len(prelude.templates), "base is a template")
    require(isinstance(prelude.templates[block.base], int), "base is a template of no columns")
    assert base is not None  # or the frame had been refused
    return base.copy()


def classes_of(predicted: U64, codebook: ChangeCodebook, W: int) -> npt.NDArray[np.intp]:
    """The class of each value (§9): how many thresholds are at most the magnitude of its prediction."""
    thresholds = np.array(codebook.thresholds, np.uint64)
    return np.searchsorted(thresholds, predicted & np.uint64(2 ** (W - 1) - 1), side="right")


def read_changes(data: bytes, codebook: ChangeCodebook, classes: npt.NDArray[np.intp], start: int) -> list[Change]:
    """The changes of a sub-stream (§9) that begins at place `start` of its block, in the order of their places.

    `classes` are those of its values.
    """
    bits = BitReader(data)
    changes: list[Change] = []
    for c, codes in enumerate(codebook.classes):
        if not codes:
            continue
        places = np.flatnonzero(classes == c)
        at = -1
        for _ in range(read_number(bits, bits.symbol(codebook.counts))):
            gap, step = read_change(bits, codebook, c)
            at += gap + 1
            require(at < len(places), "a change is for a value of its class in the sub-stream")
            changes.append((start + int(places[at]), step))
    bits.end()
    return sorted(changes)


def read_number(bits: BitReader, g: int) -> int:
    """The number (§9) of a category."""
    e = g // 2
    return g if g < 2 else (2 + g % 2) * 2 ** (e - 1) + bits.number(e - 1)


def read_change(bits: BitReader, codebook: ChangeCodebook, c: int) -> tuple[int, int]:
    """The gap and the step of a change of class c (§9); the step is 0 if the values are in an inner block."""
    symbol = bits.symbol(codebook.classes[c])
    if codebook.n_classes == 0:
        return read_number(bits, symbol), 0
    g, k = divmod(symbol, 3)
    gap = read_number(bits, g)
    return gap, (1, -1)[k] if k < 2 else read_step(bits, codebook)


def read_step(bits: BitReader, codebook: ChangeCodebook) -> int:
    """A step that has a code of its own (§9)."""
    t = bits.symbol(codebook.steps)
    if t == 0:
        return 0
    rank = -(-t // 2)
    size = 2 ** (rank - 1) + bits.number(rank - 1)
    return size if t % 2 else -size


def moved(predicted: U64, steps: Sequence[int], W: int) -> U64:
    """The values that lie so many steps from their predictions in the order of real numbers (§9)."""
    half, whole = np.uint64(2 ** (W - 1)), np.uint64(2**W - 1)
    delta = np.array([step % 2**W for step in steps], np.uint64)
    return order(order(predicted, half) + delta & whole, half)


def read_inner(prelude: Prelude, data: bytes, n_values: int) -> U64:
    """The values of the inner block of a sparse one (§9)."""
    if n_values == 0:
        require(len(data) == 0, "inner_bytes is 0 if there are no changes")
        return np.empty(0, np.uint64)
    return read_whole_inner(prelude, 0, data, n_values)


def read_whole_inner(prelude: Prelude, b: int, data: bytes, n_values: int) -> U64:
    """The values of a block inside of another one (§9, §10), with a checksum like that of block b."""
    block = read_header(b, data, n_values, otherwise="corruption")
    require(block.kind <= 2, "an inner block is constant, raw or coded")
    values = read_own_values(prelude, block, columns=None)
    read_end(block)
    return values


# ------------------------------------------------------------------------------------------ §10 Indexed block


def read_indexed(prelude: Prelude, b: int, block: Block) -> U64:
    """The values of an indexed block b from its body (§10)."""
    require(block.codebook < len(prelude.codebooks), "codebook is below n_codebooks")
    dictionary = prelude.codebooks[block.codebook]
    if not isinstance(dictionary, Dictionary):
        raise Refused("corruption", "the codebook of an indexed block is of kind 4")
    scale_bytes, body, W = block.base, block.body, prelude.kind.W
    inner_bytes, n_exceptions, segment, skipped = (body.u(32) for _ in range(4))
    require(inner_bytes % 8 == 0, "inner_bytes is a multiple of 8")
    n_segments = 0
    if dictionary.form == 0:
        require(segment == skipped == 0, "segment and skipped are 0 if the form is 0")
    else:
        require(skipped < segment, "segment is at least 1, and skipped below it")
        n_segments = -(-(skipped + block.n_values) // segment)
    of_bytes = replace(prelude, kind=BYTES, planes=(), levels=(Level(0, 0, 0),), codebooks=(dictionary.codebook,))
    indices = read_whole_inner(of_bytes, b, body.take(inner_bytes), block.n_values)
    scales = offsets = np.zeros(n_segments, np.uint64)
    if dictionary.form == 1:
        require(scale_bytes in (2, 3, 4), "scale_bytes is 2, 3 or 4")
        stored = body.take(n_segments * scale_bytes)
        scales = unpack(stored, n_segments, 8 * scale_bytes) << np.uint64(32 - 8 * scale_bytes)
        require(not infinite_or_nan(scales).any(), "scales are finite")
    else:
        require(scale_bytes == 0, "scale_bytes is 0 if the form is not 1")
    if dictionary.form == 3:
        of_scales, of_offsets = read_short_fields(body), read_short_fields(body)
        scales, offsets = (read_short_floats(body, n_segments, fields) for fields in (of_scales, of_offsets))
    exceptions = unpack(body.take(n_exceptions * W // 8), n_exceptions, W)

    exceptional = indices >= len(dictionary.entries)
    require(int(exceptional.sum()) == n_exceptions, "there are as many exceptions as indices of them")
    values = dictionary.entries[np.where(exceptional, 0, indices)]
    if dictionary.form:
        segment_of = (skipped + np.arange(block.n_values)) // segment
        q = product(scales[segment_of], values)
        q = sums(q, offsets[segment_of]) if dictionary.form == 3 else q
        values = rounded(prelude.kind, q).astype(np.uint64)
    values[exceptional] = exceptions
    return values


def product(scales: U64, factors: U64) -> npt.NDArray[np.int64]:
    """The bits q of products (§10)."""
    with np.errstate(all="ignore"):
        products = without_denormals(scales) * without_denormals(factors)
    return without_tiny(products)


def sums(q: npt.NDArray[np.int64], offsets: U64) -> npt.NDArray[np.int64]:
    """The bits of sums of products, whose bits are q, and offsets (§10)."""
    with np.errstate(all="ignore"):
        return without_tiny(q.astype(np.uint32).view(np.float32) + without_denormals(offsets))


def without_tiny(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The bits of numbers, of which those with an exponent field of 0 or 1 count as 0 with their sign (§10)."""
    q = numbers.view(np.uint32).astype(np.int64)
    return np.where(q >> 23 & 255 <= 1, q & 2**31, q)


def read_short_fields(body: Reader) -> tuple[int, int, int, int]:
    """The fields of floats of few bits (§10): least, shift, width and sign."""
    least, shift, width, sign = body.u(32), body.u(8), body.u(8), body.u(8)
    body.reserved(1)
    require(shift <= 23 and width <= 32 and sign <= 2, "a shift is 0 ... 23, a width 0 ... 32, a sign 0, 1 or 2")
    return least, shift, width, sign


def read_short_floats(body: Reader, n: int, fields: tuple[int, int, int, int]) -> U64:
    """The bits of n floats of few bits (§10)."""
    least, shift, width, sign = fields
    bits = []
    for x in body.items(n, width):
        negative, above = (sign, x) if sign < 2 else (x % 2, x // 2)
        magnitude = least + above * 2**shift
        require(magnitude < 0x7F800000, "scales and offsets are finite")
        bits.append(negative * 2**31 + magnitude)
    return np.array(bits, np.uint64)


def without_denormals(bits: U64) -> npt.NDArray[np.float32]:
    """Scales or factors from their bits: those with an exponent field of 0 count as 0 with their sign (§10)."""
    sign = bits & np.uint64(2**31)
    return np.where(bits >> np.uint64(23) & np.uint64(255) == 0, sign, bits).astype(np.uint32).view(np.float32)


def rounded(kind: DType, q: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The values nearest to float32 values by their bits q (§10)."""
    match kind.name:
        case "float32":
            return q
        case "bfloat16":
            return (q + 2**15 - 1 + q // 2**16 % 2) // 2**16
        case _:
            m = q % 2**31
            s = np.clip(126 - m // 2**23, 1, 25)  # where it is used, it is 14 or more
            f = 2**23 + m % 2**23
            small = (f + (1 << s - 1) - 1 + f // (1 << s) % 2) // (1 << s)
            normal = (m - 0x38000000 + 2**12 - 1 + m // 2**13 % 2) // 2**13
            size = np.where(m >= 0x477FF000, 0x7C00, np.where(m >= 0x38800000, normal, small))
            return size + (q >> 31 << 15)


# -------------------------------------------------------------------------------------------- The whole frame


@dataclass(frozen=True)
class Decoded:
    """An array: `bits` are its values in row-major order, as integers of W bits."""

    dtype: str
    shape: tuple[int, ...]
    mode: int
    container: int
    bits: Bits
    n_blocks: int
    kinds: list[BlockKind]


@functools.cache
def shipped_codebooks() -> dict[tuple[int, int], bytes]:
    """Section 13, read from the page itself: records by (id, hash)."""
    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    rows = re.findall(r"^(\d+) \d+ \d+ ([0-9a-f]{16}) ([0-9a-f]+)$", page, re.MULTILINE)
    found = {(int(number), int(digest, 16)): bytes.fromhex(record) for number, digest, record in rows}
    for first, count, text in re.findall(r"^(\d+) (\d+) (03[0-9a-f]+)$", page, re.MULTILINE):
        for k in range(int(count)):
            record = raised(bytes.fromhex(text), k << 7)
            found[int(first) + k, checksum(record, seed=256 + 16)] = record
    return found


def raised(record: bytes, by: int) -> bytes:
    """A record of kind 3 for W = 16 with its thresholds raised."""
    end = 4 + 2 * (record[1] - 1)
    thresholds = np.frombuffer(record[4:end], "<u2") + np.uint16(by)
    return record[:4] + thresholds.astype("<u2").tobytes() + record[end:]


def decode(
    data: bytes, codebooks: Known | None = None, *, base: Bits | None = None, limit: int | None = None
) -> Decoded:
    """The array in a frame, or `Refused` (§11).

    `codebooks` maps (id, hash) to the inline records of the codebooks that a frame may name by id (§5); `base`
    are the values, as integers of W bits, that it may be predicted from (§8). An array of more than `limit`
    bytes is refused.
    """
    prelude = read_prelude(data, {**shipped_codebooks(), **(codebooks or {})}, limit)
    if prelude.base_hashes:
        require(base is not None, "a base is given", "unsupported")
        assert base is not None
        of_this_kind = base.size == prelude.n_values and base.dtype.itemsize * 8 == prelude.kind.W
        require(of_this_kind, "the base has the frame's dtype and n_values", "unsupported")
        require(prelude.base_hashes == {base_hash(base)}, "the base is the one of this hash", "unsupported")
    base_values = None if base is None else base.reshape(-1).astype(np.uint64)
    kinds: list[BlockKind] = []
    parts = [np.empty(0, np.uint64)]
    for b, where in enumerate(prelude.blocks):
        kind, values = read_block(prelude, b, data[where], base_values)
        kinds.append(kind)
        parts.append(values)
    bits = np.concatenate(parts).astype(prelude.kind.container)
    return Decoded(prelude.kind.name, prelude.shape, prelude.mode, prelude.container, bits, len(kinds), kinds)
