"""The frame's prelude, read and written field by field (docs/format.md sections 2 and 4). No kernels here.

Block headers are read and written by the kernels themselves (``kernels/block/header.py``).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..dtypes import BY_CODE, DType
from ..errors import Corruption, InsufficientData, Unsupported, WrongKind, what_it_is
from .change_codebook import CHANGES, MAX_CHANGE_CODEBOOKS, ChangeCodebook, read_changes
from .codebook import BY_ID, INLINE, RESIDUAL, Codebook, read_inline, read_residual, residual_record
from .columns import ColumnReferences, read_column_references
from .dictionary import DICTIONARY, MAX_DICTIONARIES, Dictionary, read_dictionary
from .levels import MAX_LEVELS, MAX_PLANES, Level, check_levels
from .limits import BLOCK_LOG2, MAX_DIMENSIONS, MAX_VALUES, STREAM_LOG2

#: Looks up a codebook by (id, hash); None where it is not known.
FindCodebook = Callable[[int, int], Codebook | ChangeCodebook | None]

MAGIC = b"\x89GCF"
VERSION = 1
HEADER = struct.Struct("<4sBBBBBBBBBBBBQQQQ")
HEADER_BYTES = HEADER.size  #: 48
N_RECORDS_AT, N_RESIDUALS_AT, N_TEMPLATES_AT = 11, 14, 15  #: bytes of a frame's header
FRAME_SIZE_AT, PRELUDE_BYTES_AT = 16, 32  #: bytes at which sizes lie, u64
_U64 = struct.Struct("<Q")
CHECKSUM_AT = 40
CHECKSUM_HOLE = CHECKSUM_AT // 4  #: first of the two words that hold the checksum
MODES = ("lossless", "fixed", "near-lossless")
CONTAINERS = ("numpy", "torch")
TEMPLATE_COLUMNS = range(2, 1 << 24)
_Book = Codebook | ChangeCodebook | Dictionary


class _Fields(NamedTuple):
    dtype: DType
    mode: int
    container: int
    shape: tuple[int, ...]
    block_log2: int
    stream_log2: int
    widths: tuple[int, ...]
    levels: tuple[Level, ...]
    records: tuple[bytes, ...]
    codebooks: tuple[Codebook, ...]
    residuals: tuple[Codebook, ...] = ()
    templates: tuple[np.ndarray, ...] = ()
    base_hash: int = 0
    columns: tuple[ColumnReferences, ...] = ()
    changes: tuple[ChangeCodebook, ...] = ()
    dictionaries: tuple[Dictionary, ...] = ()


_Result = TypeVar("_Result")


class _Kept(Generic[_Result]):
    """A property that is worked out once for each object: ``functools.cached_property`` without its lock, which takes
    longer in Python 3.11 than what is kept here. (Later versions have none.)"""

    def __init__(self, function: Callable[[Any], _Result]) -> None:
        self._function, self._name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, owner: Any, kind: Any = None) -> _Result:
        result = owner.__dict__[self._name] = self._function(owner)
        return result


class Prelude(_Fields):
    """Everything that a frame says before its blocks.

    Attributes:
        dtype: Type of the values.
        mode: Index into ``MODES``.
        container: Index into ``CONTAINERS``.
        shape: Shape of the array.
        block_log2: Logarithm of the number of values in a block.
        stream_log2: Logarithm of the number of values in a sub-stream.
        widths: Width of each plane's items in bits.
        levels: The levels.
        records: The codebooks' records, as they stand in the frame.
        codebooks: The codebooks of coded blocks; references by id have become the codebooks that they name.
        residuals: Codebooks of predicted blocks.
        templates: float32 rows of predicted blocks; a row without columns stands for the base.
        base_hash: Hash of the base, if a template stands for one.
        columns: Column references of coded blocks.
        changes: The codebooks of sparse blocks; their records follow those of coded blocks.
        dictionaries: The dictionaries of indexed blocks; their records are the last.
    """

    @property
    def refers_to_base(self) -> bool:
        """True if a template stands for a base: one of no columns does (docs/format.md, section 8)."""
        return not all(map(len, self.templates))

    # Worked out once what is asked for several times: such things make up the fixed cost of a call.
    @_Kept
    def n_values(self) -> int:
        """Return the number of values, which is the product of the shape."""
        return math.prod(self.shape)

    @property
    def n_blocks(self) -> int:
        """Return the number of blocks."""
        return -(-self.n_values >> self.block_log2)

    @_Kept
    def places(self) -> tuple[int, int]:
        """Return the byte positions of the index and of the first block."""
        at = HEADER_BYTES + 8 * len(self.shape) + len(self.widths) + 2 * len(self.levels)
        at += sum(map(len, self.records))
        if self.residuals or self.templates or self.columns:
            at += sum([len(residual_record(book)) for book in self.residuals])
            at += sum([4 + (row.nbytes or 8) for row in self.templates])
            at += sum([len(reference.record) for reference in self.columns])
        at = at + 7 & ~7
        return at, at + 4 * self.n_blocks + 7 & ~7

    @property
    def index_at(self) -> int:
        """Return the byte position of the index."""
        return self.places[0]

    @property
    def prelude_bytes(self) -> int:
        """Return the byte position of the first block."""
        return self.places[1]

    def start(self, frame_bytes: int) -> bytes:
        """Return the bytes before the index, in a frame of this size; the checksum is left zero."""
        bare = bare_start(*self[:8])
        start, _, _ = start_of(
            bare, self.n_blocks, self.records, self.residuals, self.templates, self.columns, self.base_hash
        )
        _U64.pack_into(start, FRAME_SIZE_AT, frame_bytes)
        _U64.pack_into(start, PRELUDE_BYTES_AT, self.prelude_bytes)
        return bytes(start)


class Start(NamedTuple):
    """Holds what a frame begins with.

    Attributes:
        start: The bytes before the index; the sizes of the frame and the prelude, and the checksum, are zero.
        index_at: Byte where the index begins.
        prelude_bytes: Byte where the first block begins.
    """

    start: bytearray
    index_at: int
    prelude_bytes: int


@lru_cache(512)
def bare_start(
    dtype: DType,
    mode: int,
    container: int,
    shape: tuple[int, ...],
    block_log2: int,
    stream_log2: int,
    widths: tuple[int, ...],
    levels: tuple[Level, ...],
) -> bytes:
    """Return the bytes before the index of a frame that has neither codebooks nor templates, and whose other sizes are
    zero; arguments as the attributes of :class:`Prelude`."""
    n_values = math.prod(shape)
    sizes = 0, n_values, 0, 0
    head = HEADER.pack(
        MAGIC,
        VERSION,
        dtype.code,
        mode,
        container,
        len(shape),
        block_log2,
        stream_log2,
        0,
        len(levels),
        len(widths),
        0,
        0,
        *sizes,
    )
    return b"".join([head, struct.pack(f"<{len(shape)}Q", *shape), bytes(widths), *[bytes(level) for level in levels]])


def start_of(
    bare: bytes,
    n_blocks: int,
    records: Sequence[bytes],
    residuals: Sequence[Codebook] = (),
    templates: Sequence[np.ndarray] = (),
    columns: Sequence[ColumnReferences] = (),
    base_hash: int = 0,
) -> Start:
    """Return what a frame begins with.

    Args:
        bare: As :func:`bare_start` returns it.
        records: As the attributes of :class:`Prelude`, like the others.
        residuals: Codebooks of predicted blocks.
        templates: Rows of predicted blocks.
    """
    parts = [bare, *records]
    has_more = residuals or templates or columns
    if has_more:
        parts += [residual_record(book) for book in residuals]
        for row in templates:
            parts += [struct.pack("<I", len(row)), row.astype("<f4", copy=False).tobytes() or _U64.pack(base_hash)]
        parts += [reference.record for reference in columns]
    start = bytearray(b"".join(parts))
    index_at = len(start) + 7 & ~7
    prelude_bytes = index_at + 4 * n_blocks + 7 & ~7
    start[N_RECORDS_AT] = len(records)
    if has_more:
        start[N_RESIDUALS_AT], start[N_TEMPLATES_AT] = len(residuals), len(templates) + len(columns)
    return Start(start, index_at, prelude_bytes)


def prelude_size(data: np.ndarray, n_bytes: int | None = None) -> tuple[int, int]:
    """Return the sizes of a frame's prelude and of the frame, if it is of this version and complete.

    Args:
        data: uint8[n], the header or more.
        n_bytes: Bytes that there are of the frame; those of ``data`` if None.

    Returns:
        (prelude_bytes, frame_bytes).

    Raises:
        InsufficientData: There are fewer bytes than the frame has.
        Corruption: The magic number or a size is wrong.
        WrongKind: It begins as another kind of file.
        Unsupported: The frame is of another version.
    """
    n_bytes = len(data) if n_bytes is None else n_bytes
    if n_bytes < HEADER_BYTES:
        raise InsufficientData(f"a frame has at least {HEADER_BYTES} bytes, but the data ends after {n_bytes}")
    fields = HEADER.unpack(data[:HEADER_BYTES].tobytes())
    if fields[0] != MAGIC:
        what = what_it_is(data[:HEADER_BYTES].tobytes())
        error = WrongKind if what else Corruption
        raise error(f"not a gcodec frame: the magic number is {fields[0]!r} instead of {MAGIC!r}{what}")
    if fields[1] != VERSION:
        raise Unsupported(f"the frame is of version {fields[1]}; this gcodec reads version {VERSION}")
    frame_bytes, prelude_bytes = fields[13], fields[15]
    if prelude_bytes < HEADER_BYTES or prelude_bytes % 8 or frame_bytes % 8 or prelude_bytes > frame_bytes:
        raise Corruption(
            f"frame header: a prelude of {prelude_bytes} and a frame of {frame_bytes} bytes; both must be multiples of "
            f"8, and the prelude at least {HEADER_BYTES} bytes and no longer than the frame"
        )
    if frame_bytes > n_bytes:
        raise InsufficientData(f"the frame has {frame_bytes} bytes, but the data ends after {n_bytes}")
    return prelude_bytes, frame_bytes


def stated_frame_bytes(data: np.ndarray) -> int:
    """Return the size that a frame's header states, unchecked.

    Args:
        data: uint8[n], the header or more.
    """
    frame_bytes: int = HEADER.unpack(data[:HEADER_BYTES].tobytes())[13]
    return frame_bytes


def read_prelude(data: bytes, find: FindCodebook) -> Prelude:
    """Read a prelude whose checksum has been verified, up to the index.

    Args:
        find: Returns the codebook with an id and a hash, None if it is unknown.

    Raises:
        Corruption: A field is outside its legal values.
        Unsupported: The prelude has a type or a kind of record that is not known, or names an unknown codebook.
    """
    n_values = int.from_bytes(data[24:32], "little")
    index_bytes = 4 * -(-n_values >> data[9]) + 7 & ~7
    # Frames of one stream differ in nothing here but their sizes.
    start = data[5:16] + data[24:32] + data[HEADER_BYTES : max(len(data) - index_bytes, HEADER_BYTES)]
    prelude = (_read_start if len(start) <= _KEPT_BYTES else _read_start.__wrapped__)(start)
    if prelude.prelude_bytes != len(data):
        raise Corruption(f"frame header: the prelude has {len(data)} bytes, but its parts take {prelude.prelude_bytes}")
    if len(prelude.codebooks) + len(prelude.changes) + len(prelude.dictionaries) != len(prelude.records):
        books = [_resolve(record, len(prelude.levels), prelude.dtype, find) for record in prelude.records]
        codebooks, changes, dictionaries = _by_kind(books)
        prelude = prelude._replace(codebooks=codebooks, changes=changes, dictionaries=dictionaries)
    return prelude


_KEPT_BYTES = 1 << 12  #: longest start of a prelude that is remembered
_START = struct.Struct("<BBBBBBBBBBBQ")


class _Start(NamedTuple):
    """The fields of ``_START``, in the order of docs/format.md."""

    code: int
    mode: int
    container: int
    ndim: int
    block_log2: int
    stream_log2: int
    n_codebooks: int
    n_levels: int
    n_planes: int
    n_residuals: int
    n_templates: int
    n_values: int


@lru_cache(64)
def _read_start(data: bytes) -> Prelude:
    """Return the prelude of what comes before the index: bytes 5 to 16, 24 to 32 and 48 to its padding.

    It has no codebooks if one of them is named by id: what an id names is not the same everywhere.
    """
    start = _Start(*_START.unpack_from(data))
    dtype = _checked_dtype(start)
    shape, at = _read_shape(data, _START.size, start)
    widths, levels, at = _read_levels(data, at, start, dtype)
    codebooks, records = [], []
    for _ in range(start.n_codebooks):
        codebook, end = _read_codebook(data, at, start.n_levels, dtype)
        codebooks.append(codebook)
        records.append(data[at:end])
        at = end
    residuals, at = _read_residuals(data, at, start.n_residuals, dtype)
    templates, base_hash, columns, at = _read_templates(data, at, start.n_templates, start.n_values, dtype)
    if any(data[at:]):
        raise Corruption("frame header: the padding before the index must be zero")
    books, changes, dictionaries = ((), (), ()) if None in codebooks else _by_kind(codebooks)
    return Prelude(
        dtype,
        start.mode,
        start.container,
        shape,
        start.block_log2,
        start.stream_log2,
        widths,
        levels,
        tuple(records),
        books,
        residuals,
        templates,
        base_hash,
        columns,
        changes,
        dictionaries,
    )


def _checked_dtype(start: _Start) -> DType:
    """Return the value type, once all fields of the header are known to be legal.

    Raises:
        Unsupported: The type is not known to this version.
        Corruption: A field is outside its legal values.
    """
    if start.code not in BY_CODE:
        raise Unsupported(f"frame header: dtype code {start.code} is not known to this version")
    dtype = BY_CODE[start.code]
    legal = (
        start.mode < len(MODES)
        and start.container < len(CONTAINERS)
        and start.ndim <= MAX_DIMENSIONS
        and start.block_log2 in BLOCK_LOG2
        and start.stream_log2 in STREAM_LOG2
        and start.stream_log2 <= start.block_log2
        and 1 <= start.n_levels <= MAX_LEVELS
        and start.n_planes <= MAX_PLANES
        and (dtype.predictable or start.n_residuals == 0)
    )
    if not legal:
        raise Corruption(
            f"frame header: a field is outside its legal values: dtype {dtype.name}, mode {start.mode}, "
            f"container {start.container}, {start.ndim} dimensions, block_log2 {start.block_log2}, "
            f"stream_log2 {start.stream_log2}, {start.n_levels} levels, {start.n_planes} planes, "
            f"{start.n_residuals} residual codebooks, {start.n_templates} templates"
        )
    return dtype


def _read_shape(data: bytes, at: int, start: _Start) -> tuple[tuple[int, ...], int]:
    """Return the shape, and where it ends; raise Corruption if it does not hold the number of values."""
    if at + 8 * start.ndim + start.n_planes + 2 * start.n_levels > len(data):
        raise Corruption("frame header: shape, planes and levels do not fit into the prelude")
    shape = struct.unpack_from(f"<{start.ndim}Q", data, at)
    if math.prod(shape) != start.n_values or math.prod(d for d in shape if d) >= MAX_VALUES:
        raise Corruption(f"frame header: shape {shape} must hold {start.n_values} values, and fewer than {MAX_VALUES}")
    return shape, at + 8 * start.ndim


def _read_levels(data: bytes, at: int, start: _Start, dtype: DType) -> tuple[tuple[int, ...], tuple[Level, ...], int]:
    """Return the widths of planes, the levels, and where they end; raise Corruption if they do not fit the type."""
    widths = tuple(data[at : at + start.n_planes])
    at += start.n_planes
    levels = tuple(Level(data[at + 2 * i], data[at + 2 * i + 1]) for i in range(start.n_levels))
    check_levels(dtype, widths, levels)
    return widths, levels, at + 2 * start.n_levels


def _read_residuals(data: bytes, at: int, count: int, dtype: DType) -> tuple[tuple[Codebook, ...], int]:
    """Return the residual codebooks, and where they end; raise Unsupported for a record of another kind."""
    residuals = []
    for _ in range(count):
        # Before its size: a record of another kind may be a shorter one.
        if data[at : at + 1] not in (b"", bytes([RESIDUAL])):
            raise Unsupported(f"residual codebook: a record of kind {data[at]} is not known to this version")
        residual, at = read_residual(data, at, dtype.bits // 4)
        residuals.append(residual)
    return tuple(residuals), at


def _by_kind(
    books: Sequence[_Book | None],
) -> tuple[tuple[Codebook, ...], tuple[ChangeCodebook, ...], tuple[Dictionary, ...]]:
    """Return the codebooks of coded blocks, of sparse ones, and of indexed ones. Raises Corruption if they are out of
    order."""
    codebooks = tuple(book for book in books if isinstance(book, Codebook))
    changes = tuple(book for book in books if isinstance(book, ChangeCodebook))
    dictionaries = tuple(book for book in books if isinstance(book, Dictionary))
    if (*codebooks, *changes, *dictionaries) != tuple(books):
        raise Corruption("codebook: those of changes must stand behind all others, and dictionaries behind those")
    if len(changes) > MAX_CHANGE_CODEBOOKS:
        raise Corruption(f"codebook: there must be at most {MAX_CHANGE_CODEBOOKS} of changes, not {len(changes)}")
    if len(dictionaries) > MAX_DICTIONARIES:
        raise Corruption(f"codebook: there must be at most {MAX_DICTIONARIES} dictionaries, not {len(dictionaries)}")
    return codebooks, changes, dictionaries


def _read_templates(
    data: bytes, at: int, n_templates: int, n_values: int, dtype: DType
) -> tuple[tuple[np.ndarray, ...], int, tuple[ColumnReferences, ...], int]:
    """Return the templates at byte ``at``, the hash of the base (0 if none stands for it), the column references behind
    them, and where they end."""
    templates: list[np.ndarray] = []
    base_hash: int | None = None
    columns: list[ColumnReferences] = []
    for _ in range(n_templates):
        if data[at + 3 : at + 4] >= b"\x80":
            if not dtype.tail_bits:
                raise Corruption(f"column references: frames of {dtype.name} must have none")
            reference, at = read_column_references(data, at, n_values, columns[-1].stop if columns else 0)
            columns.append(reference)
            continue
        if columns:
            raise Corruption("template: it must stand before column references, not after them")
        template, at = _read_template(data, at)
        if len(template) and not dtype.predictable:
            raise Corruption(f"template: those of {dtype.name} must stand for the base")
        templates.append(template)
        if not len(template):
            hashed = int.from_bytes(data[at - 8 : at], "little")
            if base_hash not in (None, hashed):
                raise Corruption(f"templates: their bases must have one hash, not {base_hash:016x} and {hashed:016x}")
            base_hash = hashed
    return tuple(templates), base_hash or 0, tuple(columns), at


def _read_codebook(data: bytes, at: int, n_levels: int, dtype: DType) -> tuple[_Book | None, int]:
    """Return the codebook at byte ``at``, None if it is named by id, and where its record ends."""
    if at + 4 > len(data):
        raise Corruption("codebook: its record does not fit into the prelude")
    if data[at] == INLINE:
        return read_inline(data, at, n_levels, dtype.head_bits)
    if data[at] == CHANGES:
        return read_changes(data, at, dtype)
    if data[at] == DICTIONARY:
        return read_dictionary(data, at, dtype)
    if data[at] != BY_ID:
        raise Unsupported(f"codebook: a record of kind {data[at]} is not known to this version")
    if at + 16 > len(data) or any(data[at + 1 : at + 4]):
        raise Corruption("codebook reference: it does not fit into the prelude, or its reserved bytes are not zero")
    return None, at + 16


def _resolve(record: bytes, n_levels: int, dtype: DType, find: FindCodebook) -> _Book:
    """Return the codebook that a record holds or names. Raises Unsupported if it is not known."""
    inline = _read_codebook(record, 0, n_levels, dtype)[0]
    if inline is not None:
        return inline
    codebook_id, digest = struct.unpack_from("<IQ", record, 4)
    codebook = find(codebook_id, digest)
    fits = codebook is not None and (
        codebook.bits == dtype.bits
        if isinstance(codebook, ChangeCodebook)
        else codebook.head_bits == dtype.head_bits and len(codebook.ranges) == n_levels
    )
    if codebook is None or not fits:
        raise Unsupported(
            f"codebook {codebook_id} with hash {digest:016x} is not known here; a frame of an Encoder is decoded by a "
            "Decoder that has decoded the frames before it"
        )
    return codebook


def _read_template(data: bytes, at: int) -> tuple[np.ndarray, int]:
    if at + 4 > len(data):
        raise Corruption("template: its record does not fit into the prelude")
    n_columns = int.from_bytes(data[at : at + 4], "little")
    end = at + 4 + (4 * n_columns or 8)
    if (n_columns and n_columns not in TEMPLATE_COLUMNS) or end > len(data):
        raise Corruption(
            f"template: {n_columns} columns; there must be 0 or {TEMPLATE_COLUMNS.start} to "
            f"{TEMPLATE_COLUMNS.stop - 1}, and the record must fit into the prelude"
        )
    return np.frombuffer(data, "<f4", n_columns, at + 4).astype(np.float32, copy=False), end
