"""Decode small frames with few calls: a frame of a few thousand values takes several times as long to read codebook by
codebook and table by table as its values take to decode.

One kernel reads the prelude and makes the tables (``kernels/block/whole_read.py``), the usual one decodes the blocks.
Whatever is not as usual, and whatever is wrong, is left to :mod:`gcodec.frame.decode`, which says what it is.
"""

from __future__ import annotations

import math
import struct
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import BY_CODE, DType
from ..format.columns import for_kernels
from ..format.limits import MAX_DIMENSIONS
from ..format.modes import lossless
from ..format.prelude import CONTAINERS, HEADER_BYTES, MAGIC, N_RECORDS_AT, VERSION, bare_start, start_of
from ..format.tables import empty_books, tables_of_planes
from ..kernels.block.decode import CodedDecoding
from ..kernels.block.header import OK
from ..kernels.block.whole_read import KnownBooks, ReadForm, ReadMemory, read_whole
from ..kernels.core.bundles import FrameBlocks, Geometry, Scratch
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.prefix_code import ESCAPE, MAX_LENGTH, MOST, TABLE_SIZE
from ..memory import acquire, release, scratch_for
from ..plan.codebooks import shipped_for
from .coded_blocks import decode_coded_blocks, form_of
from .decode import margin
from .sizes import block_log2, block_sizes

#: Beyond so many values, threads may decode them, and the calls' share of the time is small.
MAX_SMALL_VALUES = (1 << 18) - 1
_MAX_BLOCKS, _MAX_BOOKS, _MAX_RECORD_BYTES = 16, 8, 144
_STREAM_LOG2 = (8, 9)  #: as this encoder writes them
_MIN_MANY = 12 << 10  #: values of a codebook from which on entries of the decoding table are worth more than one symbol
_NO_COLUMNS = for_kernels(())
_MAX_START = HEADER_BYTES + 8 * MAX_DIMENSIONS  #: bytes of a header and a shape
_read_whole = Specialized(read_whole)
_tuple: Any = tuple.__new__  # of named tuples: the classes themselves are functions of Python


class _Memory(NamedTuple):
    """The memory that small frames of a kind are decoded in.

    Attributes:
        read: What the kernel reads a frame to.
        scratch: Scratch of decoding.
        tail: The blocks in the tail.
    """

    read: ReadMemory
    scratch: Scratch
    tail: FrameBlocks


@cache
def _keys(dtype: DType, stream_log2: int) -> tuple[tuple[object, ...], ...]:
    """Return what memory is kept by, by the number of codebooks."""
    return tuple([("small frame", dtype, stream_log2, n) for n in range(_MAX_BOOKS + 1)])


class _Form:
    """Holds what depends on a frame's type and shape alone: one object for each combination.

    Args:
        dtype: The value type, perhaps with a wide head.
        container: As in the prelude.
        shape: The array's shape.
        stream_log2: log2 of the values per sub-stream.

    Attributes:
        dtype: The same, like the next two.
        container: The same.
        shape: The same.
        n_values: Number of values.
        n_bytes: Their bytes.
    """

    __slots__ = (
        "_block",
        "_coding",
        "_keys",
        "_known",
        "_layout",
        "_margin",
        "_n_blocks",
        "_n_many",
        "_planes",
        "_read",
        "_stream",
        "_types",
        "container",
        "dtype",
        "n_bytes",
        "n_values",
        "shape",
    )

    def __init__(self, dtype: DType, container: int, shape: tuple[int, ...], stream_log2: int) -> None:
        layout, log2, n_values = lossless(dtype), block_log2(dtype), math.prod(shape)
        kind, float_bits, masks = form_of(dtype, layout.widths, layout.levels)
        marks, shifts, planes = tables_of_planes(layout.widths, masks, dtype.tail_bits)
        bare = bare_start(dtype, layout.mode, container, shape, log2, stream_log2, layout.widths, layout.levels)
        self.dtype, self.container, self.shape = dtype, container, shape
        self.n_values, self.n_bytes = n_values, n_values * dtype.itemsize
        self._block, self._stream, self._n_blocks = 1 << log2, 1 << stream_log2, -(-n_values >> log2)
        self._layout, self._margin = kind, margin(self._stream, dtype.head_bits)
        start = np.frombuffer(start_of(bare, self._n_blocks, ()).start, np.uint8)
        self._read = ReadForm(dtype.head_bits, marks, shifts, start, self._n_blocks, self._margin)
        self._known, self._types = _known(dtype), _types(dtype)
        self._coding = Geometry(n_values, self._block, self._stream), float_bits, _NO_COLUMNS
        self._planes, self._keys = planes, _keys(dtype, stream_log2)
        self._n_many = n_values // _MIN_MANY

    def new_memory(self, n_books: int) -> _Memory:
        """Return memory for frames of so many codebooks."""
        raw, _ = block_sizes(self.dtype, block_log2(self.dtype))
        read = ReadMemory(
            empty_books(n_books, decode=True),
            np.zeros(_MAX_RECORD_BYTES * _MAX_BOOKS, np.uint8),
            np.array([-1, 0]),
            np.zeros((1, 2), np.int64),
            np.zeros(256, np.uint8),
            np.zeros(MAX_LENGTH + 1, np.uint32),
            np.zeros(ESCAPE + 1, np.uint32),
            np.zeros(TABLE_SIZE, np.uint64),
            np.zeros(_MAX_BLOCKS, np.int64),
            np.zeros(_MAX_BLOCKS, np.int64),
            np.zeros(raw + 2 * self._margin, np.uint8),
        )
        scratch = scratch_for(self.dtype, self._block, self._stream, self._layout, decode=True)
        return _Memory(read, scratch, FrameBlocks(read.tail, read.offsets, read.sizes))

    def decode(self, data: np.ndarray, n_books: int, out: np.ndarray) -> bool:
        """Decode a frame of so many codebooks, as :meth:`SmallFrame.decode` does."""
        key = self._keys[n_books]
        memory = acquire(key, lambda: self.new_memory(n_books))
        read, scratch, tail = memory
        end, types = self._n_blocks, self._types[out.flags.aligned]
        first = _read_whole[None](data, MOST if n_books <= self._n_many else 1, self._read, self._known, read)
        done = first >= 0
        if done:
            coding = _tuple(CodedDecoding, (*self._coding, read.books, self._planes))
            code = decode_coded_blocks[types]
            if first:
                blocks = FrameBlocks(data, read.offsets, read.sizes)
                status, reached = code(blocks, 0, first, coding, scratch, out, 0)
                done = status == OK and reached == first
            if done:
                status, reached = code(tail, first, end, coding, scratch, out, 0)
                done = status == OK and reached == end
        release(key, memory)
        return done


class SmallFrame(NamedTuple):
    """A small frame whose header is as usual; all else about it is checked when it is decoded.

    Attributes:
        data: uint8[n], the frame.
        form: What depends on its type and shape.
        n_books: Number of codebooks.
    """

    data: np.ndarray
    form: _Form
    n_books: int

    @property
    def dtype(self) -> DType:
        """The value type."""
        return self.form.dtype

    @property
    def n_values(self) -> int:
        """Number of values."""
        return self.form.n_values

    def decode(self, out: np.ndarray) -> bool:
        """Decode the frame to ``out``, uintW[n_values]; return False, with ``out`` perhaps partly written, if anything
        is not as usual, or damaged."""
        data, form, n_books = self
        return form.decode(data, n_books, out)


def small_frame(data: object) -> SmallFrame | None:
    """Return the small frame that bytes begin with; None if that is not what they are, or if they are no bytes."""
    try:
        buffer = np.frombuffer(data, np.uint8)  # type: ignore[call-overload]
    except (TypeError, ValueError, BufferError):
        return None
    if len(buffer) < HEADER_BYTES:
        return None
    head = data[:_MAX_START] if type(data) is bytes else buffer[:_MAX_START].tobytes()
    n_books = head[N_RECORDS_AT]
    #     0                11        12               16           24         32                40         48
    #     magic ... stream | n_books | levels, planes | frame size | n_values | prelude's size, | checksum | shape
    #                      |         | and others     |            |          |                 |          |
    shape_end = HEADER_BYTES + 8 * head[8]
    form = _form_at(head[:11] + head[12:16] + head[24:32] + head[HEADER_BYTES:shape_end])
    n_bytes = int.from_bytes(head[16:24], "little")
    if form is None or n_books > _MAX_BOOKS or not shape_end <= n_bytes <= len(buffer):
        return None
    return _tuple(SmallFrame, (buffer if n_bytes == len(buffer) else buffer[:n_bytes], form, n_books))


_FIXED = struct.Struct("<4s11BQ")  #: what a header says that does not depend on the values


@lru_cache(512)
def _form_at(fixed: bytes) -> _Form | None:
    """Return what depends on a frame's type and shape, by those bytes of its header; None if it is not as usual."""
    magic, version, code, _, container, n_dimensions, _, stream_log2, _, _, n_residuals, n_templates, n_values = (
        _FIXED.unpack_from(fixed)
    )
    dtype = BY_CODE.get(code)
    if (
        magic != MAGIC
        or version != VERSION
        or dtype is None
        or container >= len(CONTAINERS)
        or n_dimensions > MAX_DIMENSIONS
        or stream_log2 not in _STREAM_LOG2
        or n_residuals
        or n_templates
        or not 0 < n_values <= MAX_SMALL_VALUES
        or len(fixed) != _FIXED.size + 8 * n_dimensions
    ):
        return None
    shape = struct.unpack_from(f"<{n_dimensions}Q", fixed, _FIXED.size)
    if math.prod(shape) != n_values:
        return None
    return _form_of(dtype, container, shape, stream_log2)


_form_of = lru_cache(512)(_Form)


@cache
def _types(dtype: DType) -> tuple[tuple[object, ...], ...]:
    """Return what the kernel's specializations are known by: for arrays that are not aligned, and for others."""
    layout = lossless(dtype)
    kind, _, _ = form_of(dtype, layout.widths, layout.levels)
    return (dtype, kind, False), (dtype, kind, True)


@cache
def _known(dtype: DType) -> KnownBooks:
    """Return the codebooks that come with gcodec and are made for a value type."""
    found = shipped_for(dtype, 1).tables
    return KnownBooks(found.ranges, found.lengths, found.records.reshape(-1, 16))
