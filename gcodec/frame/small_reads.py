"""Decode small frames with few calls: a frame of a few thousand values takes several times as long to read codebook by
codebook and table by table as its values take to decode.

One kernel reads the prelude and makes the tables (``kernels/block/whole_read.py``), the usual one decodes the blocks.
Whatever is not as usual, and whatever is wrong, is left to :mod:`gcodec.frame.decode`, which says what it is.
"""

from __future__ import annotations

import math
import struct
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from ..dtypes import BY_CODE, DType
from ..format.columns import for_kernels
from ..format.limits import MAX_DIMENSIONS
from ..format.modes import lossless
from ..format.prelude import CONTAINERS, HEADER, HEADER_BYTES, MAGIC, VERSION, bare_start, start_of
from ..format.tables import empty_books, tables_of_planes
from ..kernels.block.decode import CodedDecoding
from ..kernels.block.header import OK
from ..kernels.block.whole_read import KnownBooks, ReadForm, ReadMemory, read_whole
from ..kernels.core.bundles import FloatBits, FrameBlocks, Geometry, Planes
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.prefix_code import ESCAPE, MAX_LENGTH, TABLE_SIZE
from ..kernels.planes.layout_types import Layout
from ..memory import acquire, release, scratch_for
from ..plan.codebooks import shipped_for
from .coded_blocks import decode_coded_blocks, form_of
from .decode import margin
from .sizes import block_log2

#: Beyond so many values, threads may decode them, and the calls' share of the time is small.
MAX_SMALL_VALUES = (1 << 18) - 1
_MAX_BLOCKS, _MAX_BOOKS, _MAX_RECORD_BYTES = 16, 8, 144
_STREAM_LOG2 = (8, 9)  #: as this encoder writes them
#: Symbols of an entry of the decoding table, by values of a codebook up to which they are worth making no more.
_SYMBOLS_OF_ENTRY = ((12 << 10, 1), (64 << 10, 3))
_NO_COLUMNS = for_kernels(())
_read_whole = Specialized(read_whole)


class _Form(NamedTuple):
    """Holds what depends on a frame's type and shape alone.

    Attributes:
        dtype: The value type, perhaps with a wide head.
        layout: Layout of its planes.
        float_bits: The type as the kernels take it.
        planes: Its planes.
        geometry: Sizes of the array and its parts.
        n_blocks: Number of its blocks.
        read: What the kernel takes of all this.
        scratch_key: What the pool knows the scratch by.
        n_margin: Bytes past a block that may be read.
    """

    dtype: DType
    layout: type[Layout]
    float_bits: FloatBits
    planes: Planes
    geometry: Geometry
    n_blocks: int
    read: ReadForm
    scratch_key: tuple[object, ...]
    n_margin: int


class SmallFrame(NamedTuple):
    """A small frame whose header is as usual; all else about it is checked when it is decoded.

    Attributes:
        data: uint8[n], the frame.
        dtype: The value type.
        shape: The array's shape.
        container: As in the prelude.
        n_values: Number of values.
        n_books: Number of codebooks.
        stream_log2: log2 of the values per sub-stream.
    """

    data: np.ndarray
    dtype: DType
    shape: tuple[int, ...]
    container: int
    n_values: int
    n_books: int
    stream_log2: int

    def decode(self, out: np.ndarray) -> bool:
        """Decode the frame to ``out``, uintW[n_values]; return False, with ``out`` perhaps partly written, if anything
        is not as usual, or damaged."""
        form = _form_of(self.dtype, self.container, self.shape, self.stream_log2)
        key = "small frame to read", self.dtype, self.n_books
        memory = acquire(key, lambda: _new_memory(self.n_books))
        n_of_book = self.n_values // max(self.n_books, 1)
        most = next((most for up_to, most in _SYMBOLS_OF_ENTRY if n_of_book < up_to), 6)
        first = _read_whole(None, self.data, form.n_blocks, most, form.read, _known(self.dtype), memory)
        done = first > 0 and self._decode_blocks(form, memory, out)
        release(key, memory)
        return done

    def _decode_blocks(self, form: _Form, memory: ReadMemory, out: np.ndarray) -> bool:
        """Decode the blocks; return False if one is of another kind, or damaged."""
        data, sizes, offsets, end = self.data, memory.sizes, memory.offsets, form.n_blocks
        coding = CodedDecoding(form.geometry, form.float_bits, _NO_COLUMNS, memory.books, form.planes)
        scratch = acquire(
            form.scratch_key,
            lambda: scratch_for(form.dtype, form.geometry.block, form.geometry.stream_len, form.layout, decode=True),
        )
        types = form.dtype, form.layout, out.flags.aligned
        # Blocks near the end of the data are decoded from a padded copy, so that wide loads stay inside.
        middle, safe = end, len(data) - form.n_margin
        while middle > 0 and offsets.item(middle - 1) + sizes.item(middle - 1) > safe:
            middle -= 1
        status, reached = OK, middle
        if middle:
            status, reached = decode_coded_blocks(
                types, FrameBlocks(data, offsets, sizes), 0, middle, coding, scratch, out, 0
            )
        if status == OK and reached == middle:  # the last block is in any case near the end
            start = offsets.item(middle)
            padded = np.zeros(len(data) - start + form.n_margin, np.uint8)
            padded[: len(data) - start] = data[start:]
            blocks = FrameBlocks(padded, offsets - start, sizes)
            status, reached = decode_coded_blocks(types, blocks, middle, end, coding, scratch, out, 0)
        release(form.scratch_key, scratch)
        return bool(status == OK and reached == end)


def small_frame(data: object) -> SmallFrame | None:
    """Return the small frame that bytes begin with; None if that is not what they are, or if they are no bytes."""
    try:
        buffer = np.frombuffer(data, np.uint8)  # type: ignore[call-overload]
    except (TypeError, ValueError, BufferError):
        return None
    if len(buffer) < HEADER_BYTES:
        return None
    (
        magic,
        version,
        code,
        _,
        container,
        n_dimensions,
        _,
        stream_log2,
        n_books,
        _,
        _,
        n_residuals,
        n_templates,
        n_bytes,
        n_values,
        _,
        _,
    ) = HEADER.unpack_from(buffer)
    dtype = BY_CODE.get(code)
    if (
        magic != MAGIC
        or version != VERSION
        or dtype is None
        or container >= len(CONTAINERS)
        or n_dimensions > MAX_DIMENSIONS
        or stream_log2 not in _STREAM_LOG2
        or n_books > _MAX_BOOKS
        or n_residuals
        or n_templates
        or not 0 < n_values <= MAX_SMALL_VALUES
        or not HEADER_BYTES + 8 * n_dimensions <= n_bytes <= len(buffer)
    ):
        return None
    shape = struct.unpack_from(_SHAPES[n_dimensions], buffer, HEADER_BYTES)
    if math.prod(shape) != n_values:
        return None
    return SmallFrame(buffer[:n_bytes], dtype, shape, container, n_values, n_books, stream_log2)


_SHAPES = [f"<{n}Q" for n in range(MAX_DIMENSIONS + 1)]


@lru_cache(512)
def _form_of(dtype: DType, container: int, shape: tuple[int, ...], stream_log2: int) -> _Form:
    """Return what depends on a frame's type and shape; ``container`` and ``stream_log2`` as in the prelude."""
    layout, log2, n_values = lossless(dtype), block_log2(dtype), math.prod(shape)
    kind, float_bits, masks = form_of(dtype, layout.widths, layout.levels)
    marks, shifts, planes = tables_of_planes(layout.widths, masks, dtype.tail_bits)
    bare = bare_start(dtype, layout.mode, container, shape, log2, stream_log2, layout.widths, layout.levels)
    geometry = Geometry(n_values, 1 << log2, 1 << stream_log2)
    start = np.frombuffer(start_of(bare, -(-n_values >> log2), ()).start, np.uint8)
    read = ReadForm(dtype.head_bits, marks, shifts, start)
    return _Form(
        dtype,
        kind,
        float_bits,
        planes,
        geometry,
        -(-n_values >> log2),
        read,
        (dtype, 1 << log2, 1 << stream_log2, kind, "decode"),
        margin(1 << stream_log2, dtype.head_bits),
    )


@cache
def _known(dtype: DType) -> KnownBooks:
    """Return the codebooks that come with gcodec and are made for a value type."""
    found = shipped_for(dtype, 1).tables
    return KnownBooks(found.ranges, found.lengths, found.records.reshape(-1, 16))


def _new_memory(n_books: int) -> ReadMemory:
    return ReadMemory(
        empty_books(n_books, decode=True),
        np.zeros(_MAX_RECORD_BYTES * _MAX_BOOKS, np.uint8),
        np.array([-1, 0]),
        np.zeros((1, 2), np.int64),
        np.zeros(256, np.uint8),
        np.zeros(MAX_LENGTH + 1, np.uint32),
        np.zeros(ESCAPE + 1, np.uint32),
        np.zeros((2, TABLE_SIZE), np.uint8),
        np.zeros(_MAX_BLOCKS, np.int64),
        np.zeros(_MAX_BLOCKS, np.int64),
    )
