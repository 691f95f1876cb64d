"""Frames of float32, bfloat16 and float16 with few calls: most of the time of a small frame goes to what is the same
for every frame, and to calls that each take longer to make than to run.

One kernel plans such a frame (``kernels/block/whole_plan.py``), the usual one encodes its blocks, and all that does not
depend on the values is kept from the last frame of the same shape. Whatever is not as usual is left to
:mod:`gcodec.frame.encode`; the bytes are the same.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from ..dtypes import BY_NAME, DType
from ..format.columns import for_kernels
from ..format.modes import BitLayout, lossless
from ..format.prelude import Prelude
from ..format.tables import MAX_SYMBOLS_WITH_RUNS, empty_books, run_symbols_of, stack, tables_of_planes
from ..kernels.block.block_index import seal_prelude
from ..kernels.block.encode import CodedEncoding
from ..kernels.block.whole_plan import (
    N_CODEBOOKS_AT,
    PlanForm,
    PlanMemory,
    PlanRules,
    ShippedBooks,
    plan_halves,
    plan_whole,
)
from ..kernels.core.bundles import Choices, FloatBits, Geometry, Planes, Rounding, SampleScratch, Scratch
from ..kernels.core.specialized import Specialized
from ..kernels.planes.layout_types import Layout
from ..memory import Borrowed, acquire, release, scratch_for
from ..options import DEFAULT_OPTIONS
from ..plan.codebooks import n_bins_of
from ..plan.columns import fit_columns, tables_of
from ..plan.other_heads import MIN_FINE_VALUES, MIN_SIGNED_VALUES, MIN_WIDE_VALUES
from ..plan.plan import MAX_CLUSTERED, TABLE_BITS, shipped_for
from ..plan.prediction import MIN_ROW_VALUES, rows_of
from ..plan.request import EncodeRequest
from ..plan.sampling import (
    EMPTY_BITS,
    MAX_COUNTED,
    MAX_FEW_HEADS,
    REFERENCE_BITS,
    STREAM_BITS,
    STREAM_LOG2,
    candidate_sample,
    every_of,
    sample_scratch,
    spec_of,
)
from ..plan.unused_bits import MIN_MIXED
from ..tensors import Values
from .coded_blocks import encode_coded_blocks, form_of
from .sizes import block_log2, raw_bytes
from .writer import FullError, block_sizes, write_blocks

_FLOAT32 = BY_NAME["float32"]
_HALVES = BY_NAME["bfloat16"], BY_NAME["float16"]  #: types of 16 bits whose heads have 8, as float32's have
_BLOCK_LOG2 = block_log2(_FLOAT32)  #: and that of types of 16 bits
_MAX_VALUES = 1 << 24  #: of the largest arrays that one thread plans as fast as several do step by step
MIN_THREADED = 1 << 20  #: values of a frame that several threads write sooner than one
_MAX_CONSTANTS = 1 << 18  #: equal values that are stored as constant blocks without a plan
_MANY_ZEROS = 44  #: percentage of them from which sparse blocks may be smaller
_MAX_STORED_BYTES = 32  #: of values that are stored as they are
#: Up to so many bits of values, counting zeros tells at once that coding cannot save the bits that it takes at least.
_MAX_BITS_TO_COUNT, _MIN_CODED_BITS = 2048, 200
_MAX_BLOCKS, _MAX_START_BYTES = _MAX_VALUES >> _BLOCK_LOG2, 1 << 12
_LAYOUTS = {dtype: lossless(dtype) for dtype in (_FLOAT32, *_HALVES)}
_LENGTHS = STREAM_LOG2, STREAM_LOG2 + 1  #: of sub-streams: short ones, and the long ones of types of 16 bits
_NO_COLUMNS = for_kernels(())
_USUAL_OPTIONS = DEFAULT_OPTIONS, replace(DEFAULT_OPTIONS, indexed=False)  #: indexed blocks are looked for elsewhere
_MEMORY = {bits: f"frame of {bits} bits" for bits in (16, 32)}  #: what the pool knows memory by
#: Numbers of symbols that hint at what is planned step by step, where it is found: a codebook made from a sample (which
#: has two more than were met on either side) of few heads, and one of heads as far apart as those of weights and of -0.
_MAX_FEW_SYMBOLS, _MASKED_SYMBOLS = MAX_FEW_HEADS + 4, range(100, 200)
_FRAME_BYTES, _FRAME_BYTES_AT = struct.Struct("<Q"), 16
_plan_whole, _plan_halves, _seal_prelude = Specialized(plan_whole), Specialized(plan_halves), Specialized(seal_prelude)


class FrameType(NamedTuple):
    """Holds what encoding takes of a value type, with the usual head or a wide one, and a length of sub-streams.

    Attributes:
        dtype: The type.
        layout: Layout of its planes.
        float_bits: The type as the kernels take it.
        rounding: No rounding.
        planes: Its planes.
        raw: Largest number of bytes of a block.
        trial: Largest number of bytes of a block while it is tried.
        stream_len: Values per sub-stream.
        scratch_key: What the pool knows the scratch by.
        types: What the kernel's specialization is known by.
    """

    dtype: DType
    layout: type[Layout]
    float_bits: FloatBits
    rounding: Rounding
    planes: Planes
    raw: int
    trial: int
    stream_len: int
    scratch_key: tuple[object, ...]
    types: tuple[object, ...]

    def scratch(self) -> Scratch:
        """Return scratch for one thread."""
        return scratch_for(self.dtype, 1 << _BLOCK_LOG2, self.stream_len, self.layout, decode=False, lossy=False)


@cache
def frame_types(usual: DType) -> tuple[FrameType, ...]:
    """Return a type with the usual head and with a wide one, if it has that, and short sub-streams; then the same with
    long ones, if it may have them."""
    results = []
    for length in _lengths_of(usual):
        for dtype in (usual, usual.wide or usual):
            form = lossless(dtype)
            layout, float_bits, masks = form_of(dtype, form.widths, form.levels)
            _, planes = stack((), form.widths, masks, dtype.tail_bits, False)
            raw, trial = block_sizes(dtype, _BLOCK_LOG2)
            results.append(FrameType(
                dtype, layout, float_bits, Rounding(form.drop_table, 1, True, form.prune), planes, raw, trial,
                1 << length, (dtype, 1 << _BLOCK_LOG2, 1 << length, layout, False), (dtype, layout, False, True),
            ))
    return tuple(results)


def _lengths_of(dtype: DType) -> tuple[int, ...]:
    return _LENGTHS[: 1 if dtype is _FLOAT32 else 2]


@cache
def _rules(dtype: DType, coded: bool) -> PlanRules:
    """Return the numbers by which frames are planned; ``coded`` as for :func:`plan_small`."""
    never = _MAX_VALUES + 1
    min_wide, min_saving = (never, 0.0) if dtype.wide is None else (MIN_WIDE_VALUES, dtype.wide.min_saving)
    return PlanRules(
        STREAM_BITS, EMPTY_BITS, REFERENCE_BITS, min_wide, min_saving, DEFAULT_OPTIONS.max_codebooks,
        MAX_CLUSTERED, TABLE_BITS * 256, 254, 1 + (1 << STREAM_LOG2),
        101 if coded else _MANY_ZEROS, MIN_SIGNED_VALUES, never if dtype.fine is None else MIN_FINE_VALUES,
        MIN_MIXED,
    )


@cache
def _shipped(dtype: DType) -> ShippedBooks:
    """Return the codebooks that come with gcodec."""
    found = shipped_for(dtype, 1)
    return ShippedBooks(
        found.costs,
        found.record_bits,
        np.array([book.range_array for book in found.codebooks]),
        np.array([book.length_array for book in found.codebooks]),
        np.array([np.frombuffer(record, np.uint8) for record in found.records]),
    )


class _Shape(NamedTuple):
    """Holds what depends on an array's type and shape alone.

    Attributes:
        n_blocks: Number of its blocks.
        geometries: Its sizes, for each of :func:`frame_types`, as are the others.
        forms: Its forms.
        limits: Largest number of bytes of its frame.
    """

    n_blocks: int
    geometries: tuple[Geometry, ...]
    forms: tuple[PlanForm, ...]
    limits: tuple[int, ...]


@lru_cache(512)
def _shape_of(usual: DType, shape: tuple[int, ...], container: int, n_values: int) -> _Shape:
    """Return what depends on the type and shape alone; ``container`` as in ``Values``."""
    block, n_blocks, geometries, forms, limits = 1 << _BLOCK_LOG2, -(-n_values >> _BLOCK_LOG2), [], [], []
    for kind in frame_types(usual):
        dtype, layout, stream_len = kind.dtype, lossless(kind.dtype), kind.stream_len
        every = every_of(n_values)
        first_every, first_step = candidate_sample(n_values, every)
        spec, _ = spec_of(dtype, 1, block, stream_len, every, 1, None)
        prelude = Prelude(
            dtype, layout.mode, container, shape, _BLOCK_LOG2, stream_len.bit_length() - 1, layout.widths,
            layout.levels, (), (),
        )
        start = np.frombuffer(bytearray(prelude.start(0)), np.uint8)
        marks, shifts, _ = tables_of_planes(layout.widths, layout.masks, dtype.tail_bits)
        forms.append(PlanForm(spec, first_every, first_step, dtype.head_bits, dtype.tail_bits, marks, shifts, start))
        limits.append(prelude.bare_bytes + raw_bytes(n_values, dtype, block))
        geometries.append(Geometry(n_values, block, stream_len))
    return _Shape(n_blocks, tuple(geometries), tuple(forms), tuple(limits))


class _Memory(NamedTuple):
    """Holds the memory of one frame at a time.

    Attributes:
        plan: What the kernel plans in.
        start: Its prelude, the same memory.
        choices: Its choices, where sub-streams have no references, and where they have some.
        sizes: uint32[n_blocks at most], bytes of each block.
        counts: int64[16], the number of heads of the first codebook at each level.
    """

    plan: PlanMemory
    start: bytearray
    choices: tuple[Choices, Choices]
    sizes: np.ndarray
    counts: memoryview[int]


def _new_memory(dtype: DType) -> _Memory:
    choice, bases = np.zeros(_MAX_BLOCKS, np.int64), np.zeros(_MAX_BLOCKS, np.int64)
    books = empty_books(DEFAULT_OPTIONS.max_codebooks, decode=False)
    scratches = [sample_scratch(dtype, 1 << _BLOCK_LOG2, 1 << length, n_bins_of(1)) for length in _LENGTHS]
    sample = SampleScratch(*(max(arrays, key=len) for arrays in zip(*scratches, strict=True)))
    start = bytearray(_MAX_START_BYTES)
    plan = PlanMemory(sample, _NO_COLUMNS, books, choice, bases, np.frombuffer(start, np.uint8))
    choices = Choices(choice, bases, False), Choices(choice, bases, True)
    return _Memory(plan, start, choices, np.zeros(_MAX_BLOCKS, np.uint32), memoryview(books.counts[0]))


class SmallFrameWriter:
    """Writes one frame; as :class:`gcodec.frame.writer.FrameWriter` to what finds room for it.

    Args:
        dtype: The value type, with the usual head.
        bits: uintW[n_values].
        shape: What depends on their type and shape.
        number: That of the :func:`frame_types` that the plan chose.
        memory: Memory that holds the plan.
        references: True if sub-streams have references.
        n_start: Bytes before the index.

    Attributes:
        limit: Largest number of bytes that the frame may take.
        trial: Largest number of bytes that a block takes while it is tried.
    """

    __slots__ = ("_coding", "_kind", "_memory", "_n_start", "_number", "_shape", "_usual", "limit", "trial")

    def __init__(
        self, dtype: DType, bits: np.ndarray, shape: _Shape, number: int, memory: _Memory, references: bool,
        n_start: int,
    ) -> None:
        kind, self._usual, self._number = frame_types(dtype)[number], dtype, number
        self._shape, self._kind, self._memory, self._n_start = shape, kind, memory, n_start
        self._coding = CodedEncoding(
            bits,
            None,
            shape.geometries[number],
            kind.float_bits,
            kind.rounding,
            memory.choices[references],
            _NO_COLUMNS,
            memory.plan.books,
            kind.planes,
            memory.sizes,
        )
        self.limit, self.trial = shape.limits[number], kind.trial

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each block, filled in as they are written."""
        return self._memory.sizes[: self._shape.n_blocks]

    @property
    def raw(self) -> int:
        """Largest number of bytes that a block takes."""
        return self._kind.raw

    @property
    def block(self) -> int:
        """Values of a block."""
        return 1 << _BLOCK_LOG2

    def blocks(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Write blocks back to back; see :meth:`kinds.BlockEncoder.encode`."""
        kind = self._kind
        scratch = borrowed.take(kind.scratch_key, kind.scratch)
        return encode_coded_blocks(kind.types, self._coding, None, begin, end, scratch, out, at)

    def write(self, out: np.ndarray, n_workers: int) -> int:
        """Write the frame to the start of ``out`` (uint8[n]), and return its size. Raises FullError."""
        kind, n_blocks, n_start = self._kind, self._shape.n_blocks, self._n_start
        index_at = n_start + 7 & ~7
        at = prelude_bytes = index_at + 4 * n_blocks + 7 & ~7
        if at > len(out):
            raise FullError
        if n_workers == 1 and (len(out) - at - kind.trial) // kind.raw + 1 >= n_blocks:  # there is room for all trials
            scratch = acquire(kind.scratch_key, kind.scratch)
            at = encode_coded_blocks(kind.types, self._coding, None, 0, n_blocks, scratch, out, at)
            release(kind.scratch_key, scratch)
        else:
            at = write_blocks(self, out, at, n_workers)
        memory = self._memory
        _FRAME_BYTES.pack_into(memory.start, _FRAME_BYTES_AT, at)
        _seal_prelude(None, out, memory.plan.start[:n_start], index_at, prelude_bytes, memory.sizes[:n_blocks])
        return at

    @classmethod
    def stored(
        cls, dtype: DType, bits: np.ndarray, shape: _Shape, number: int, memory: _Memory
    ) -> SmallFrameWriter:
        """Return what writes a frame without codebooks, of raw or constant blocks; arguments as for the class."""
        start, plan = shape.forms[number].start, memory.plan
        plan.start[: len(start)] = start
        plan.choice[: shape.n_blocks], plan.bases[: shape.n_blocks] = -1, 0
        return cls(dtype, bits, shape, number, memory, False, len(start))

    def without_codebooks(self) -> SmallFrameWriter:
        """Return what writes the same values, of the same type and with short sub-streams, without codebooks."""
        return SmallFrameWriter.stored(self._usual, self._coding.values, self._shape, self._number & 1, self._memory)

    def close(self) -> None:
        """Give the memory back, once the frame is written."""
        release(_MEMORY[self._usual.bits], self._memory)


def _are_constants(bits: np.ndarray, block: int) -> bool:
    """Return True if all values are the same, so that blocks of so many are constants, and nothing is smaller; not for
    zeros of several blocks, which a sparse block takes, nor for long arrays, whose frames take no longer to plan."""
    n, first = len(bits), bits[0]
    may_be = n <= (_MAX_CONSTANTS if first else block)
    return bool(may_be and first == bits[-1] and first == bits[n >> 1] and (bits == first).all())


def is_stored(values: Values, bit_layout: BitLayout) -> bool:
    """Return True if values are best stored as they are: if they are all the same, or if coding cannot save what a
    coded block and the shortest codebook take, even if it took away all bits of zeros and all heads of other values."""
    bits, dtype = values.bits, values.dtype
    if bits.nbytes <= _MAX_STORED_BYTES:
        return True
    if bit_layout.lossy:
        return False
    if _are_constants(bits, 1 << block_log2(dtype)):
        return True
    if len(bits) * dtype.bits > _MAX_BITS_TO_COUNT:
        return False
    n_nonzero = int(np.count_nonzero(bits))
    return (len(bits) - n_nonzero) * dtype.bits + n_nonzero * dtype.head_bits <= _MIN_CODED_BITS


def plan_small(request: EncodeRequest, coded: bool = False) -> SmallFrameWriter | None:
    """Plan a frame with few calls.

    Args:
        request: The array and how to encode it.
        coded: True if blocks are to be coded however many values are zero, because sparse ones are tried elsewhere.

    Returns:
        What writes the frame; None where it has to be planned step by step.
    """
    bits, dtype, dimensions, container = request.values
    n = len(bits)
    if (
        not 0 < n <= _MAX_VALUES
        or request.bit_layout is not _LAYOUTS.get(dtype)
        or (request.options is not DEFAULT_OPTIONS and request.options not in _USUAL_OPTIONS)
        or request.fixed is not None
        or request.base is not None
        or not request.standalone
        or (n >= MIN_ROW_VALUES and _may_gain_by_columns(request))
    ):
        return None
    stored = is_stored(request.values, request.bit_layout)
    shape = _shape_of(dtype, dimensions, container, n)
    memory = acquire(_MEMORY[dtype.bits], lambda: _new_memory(dtype))
    if stored:
        return SmallFrameWriter.stored(dtype, bits, shape, 0, memory)
    plan = _plan_whole if dtype is _FLOAT32 else _plan_halves
    planned = plan(None, bits, *shape.forms, _rules(dtype, coded), _shipped(dtype), memory.plan)
    n_symbols = memory.counts[0]
    if planned < 0 or (n >= MIN_MIXED and _hints_at_more(n_symbols, n, dtype)):
        release(_MEMORY[dtype.bits], memory)
        return None
    if n_symbols <= MAX_SYMBOLS_WITH_RUNS:
        n_books = memory.start[N_CODEBOOKS_AT]
        memory.plan.books.run_symbol[:n_books] = run_symbols_of(memory.plan.books, n_books)
    return SmallFrameWriter(dtype, bits, shape, planned >> 1 & 3, memory, bool(planned & 1), planned >> 3)


def _hints_at_more(n_symbols: int, n: int, dtype: DType) -> bool:
    """Return True if the number of symbols of a plan's first codebook hints at what the kernel does not look for."""
    if n_symbols in _MASKED_SYMBOLS:
        return dtype.head_bits == dtype.exponent_bits
    return n > MAX_COUNTED and n_symbols <= _MAX_FEW_SYMBOLS


def _may_gain_by_columns(request: EncodeRequest) -> bool:
    """Return True if there are rows that may be alike, or columns that differ in scale."""
    values, shapes = request.values, request.shapes or (request.values.shape,)
    tables = tables_of(shapes)
    return tables is not None and (bool(rows_of(shapes)) or bool(fit_columns(values.bits, tables, values.dtype)))
