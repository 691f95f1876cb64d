"""Encode short arrays with few calls: of a thousand values, Python's calls between the kernels take three times as
long as the kernels.

An array is short if threads do not share it. If nothing in it is worth a closer look, little is left to choose: how
long sub-streams are, whether they have references of their own, and whether heads are wide. All else follows from its
type, shape and options, and is made once (:class:`ShortForm`). The choices are those of
:mod:`gcodec.plan`, and the kernels are its kernels, called in the same order; whatever else an array may need is left
to it. tests/codec/test_short_arrays.py holds that both make the same frames.

Each step of Python takes as long as coding some hundred values. So what kernels are told is put together beforehand,
and tuples are made by ``tuple.__new__`` in place of their classes, which are functions of Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.columns import ColumnReferences, for_kernels
from ..format.modes import BitLayout, lossless
from ..format.prelude import N_RECORDS_AT, start_of
from ..kernels.block.encode import CodedEncoding
from ..kernels.core.bundles import Books, Choices, Scratch
from ..kernels.entropy.codebook_fit import FitMemory
from ..memory import acquire, release
from ..options import EncoderOptions
from ..plan.codebooks import FitForm, fit_form
from ..plan.columns import fit_columns
from ..plan.indexing import MIN_INDEXED, repeats
from ..plan.other_heads import telling_bits
from ..plan.plan import (
    PlanForm,
    candidates,
    expect_bits,
    plan_form,
    promised_bits,
    shapes_that_matter,
    stream_bits_of,
    two_smallest,
)
from ..plan.prediction import Predictor
from ..plan.profile import look_at, look_step, rules_of
from ..plan.request import EncodeRequest
from ..plan.sampling import SampleMemory, SamplePlanner, has_few_heads, has_others
from ..threads import MIN_SHARED
from .coded_blocks import CodedForm, coded_form, encode_coded_blocks, with_runs
from .encode import OwnBuffer, copied_to_caller, target_of
from .sizes import block_log2
from .writer import FrameForm, frame_form, seal

_MAX_SHORT = MIN_SHARED  #: values, from which on an array is not short
_MIN_BYTES = 257  #: of values, below which they may be stored as they are
_NO_COLUMNS = for_kernels(())
_tuple: Any = tuple.__new__


class _Way:
    """A way to encode an array, and what that takes that depends on no value.

    Args:
        dtype: The value type, with the usual head or a wide one.
        layout: Which bits of a value are kept: all.
        options: How codebooks are made.
        stream_log2: log2 of the values per sub-stream.
        container: As in the prelude, like the shape.
        shape: The array's shape.

    Attributes:
        number: The same.
        kept: The tail bits that are kept, at the one level that there is.
        fit: Makes its codebooks.
        form: What the frame is beside its values.
        start: The bytes that it begins with, if it has one codebook.
        coded: Codes the blocks.
    """

    __slots__ = "coded", "fit", "form", "kept", "number", "start"

    def __init__(
        self,
        number: int,
        dtype: DType,
        layout: BitLayout,
        options: EncoderOptions,
        stream_log2: int,
        container: int,
        shape: tuple[int, ...],
    ) -> None:
        log2 = block_log2(dtype)
        self.number, self.kept = number, layout.kept
        self.fit: FitForm = fit_form(dtype, layout, options)
        self.form: FrameForm = frame_form(dtype, layout, container, shape, log2, stream_log2)
        start = bytearray(self.form.start)
        start[N_RECORDS_AT] = 1
        self.start = bytes(start)
        self.coded: CodedForm = coded_form(dtype, layout, True, 1 << log2, 1 << stream_log2)


class _Memory(NamedTuple):
    """Memory to encode an array of a type in.

    Attributes:
        samples: What is counted.
        coding: Scratch of coding, by the number of the way.
        books: The codebooks.
        choice: int64[n_blocks], the codebook of each block.
        sizes: uint32[n_blocks], the bytes of each.
        expected: float64[n_blocks], the bits of each, about.
        out: uint8, the frame.
        view: The same.
    """

    samples: SampleMemory
    coding: list[Scratch]
    books: FitMemory
    choice: np.ndarray
    sizes: np.ndarray
    expected: np.ndarray
    out: np.ndarray
    view: memoryview


class Tried(NamedTuple):
    """Says what became of the attempt to encode an array as a short one.

    Attributes:
        frame: The frame; None if the array is not short, something is worth a closer look, or other blocks than coded
            ones may be smaller.
        profile: What the array is like (``profile_of``); None if that was not looked at.
        columns: Column references that suit it, if these were looked for; else None.
    """

    frame: bytes | memoryview | None
    profile: int | None
    columns: tuple[ColumnReferences, ...] | None = None


_UNTRIED = Tried(None, None)


class ShortForm:
    """Holds what encoding a short array takes that depends on no value: one object for each combination.

    Args:
        shape: The array's shape.
        container: As in the prelude.
        layout: Which bits of a value are kept: all.
        options: How codebooks are made.
        plan: What planning depends on.
    """

    __slots__ = ("_dtype", "_key", "_look", "_may_repeat", "_n_blocks", "_out_bytes", "_plan", "_room", "_ways")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        container: int,
        layout: BitLayout,
        options: EncoderOptions,
        plan: PlanForm,
    ) -> None:
        self._look = (dtype.bits, True), look_step(plan.n_values), rules_of(dtype, 0)
        self._dtype, self._plan = dtype, plan
        self._may_repeat = options.indexed and dtype.tail_bits > 0 and plan.n_values >= MIN_INDEXED
        kinds = [(dtype, layout)]
        if plan.asks_for_other_heads and dtype.wide is not None:
            kinds.append((dtype.wide, lossless(dtype.wide, layout.mode)))
        self._ways: dict[tuple[DType, int], _Way] = {}
        for kind, kept in kinds:
            for length in plan.lengths:
                self._ways[kind, length] = _Way(len(self._ways), kind, kept, options, length, container, shape)
        ways = list(self._ways.values())
        self._n_blocks = ways[0].form.n_blocks
        self._room = max(way.form.limit + way.form.trial for way in ways)
        self._out_bytes = 1 << self._room.bit_length()  # a few sizes for all shapes
        self._key = _key_of(tuple(self._ways), ways[0].fit.key, plan.sampling.key, self._n_blocks, self._out_bytes)

    def _new_memory(self) -> _Memory:
        """Return memory for one array."""
        ways, n_blocks, out = list(self._ways.values()), self._n_blocks, np.empty(self._out_bytes, np.uint8)
        return _Memory(
            SampleMemory(self._plan.sampling),
            [way.coded.new_scratch() for way in ways],
            ways[0].fit.new_memory(),
            np.empty(n_blocks, np.int64),
            np.empty(n_blocks, np.uint32),
            np.empty(n_blocks),
            out,
            out.data,
        )

    def encode(self, values: np.ndarray, out: Any) -> Tried:
        """Try to make the frame of uintW[n_values], in ``out`` unless that is None."""
        kind, step, rules = self._look
        profile: int = look_at[kind](values, step, rules)
        if profile or (self._may_repeat and repeats(values)):
            return Tried(None, profile)
        plan = self._plan
        if plan.asks_for_other_heads and telling_bits(values, self._dtype):
            return Tried(None, 0)
        columns = () if plan.tables is None else fit_columns(values, plan.tables, self._dtype)
        if columns:
            return Tried(None, 0, columns)
        memory: _Memory = acquire(self._key, self._new_memory)
        room = memory.out
        if isinstance(out, OwnBuffer) and len(out) >= self._room:  # no copy is needed
            room = target_of(out)
        end = self._encode(values, memory, room)
        frame: bytes | memoryview | None = None
        if end and room is not memory.out:
            frame = room.data[:end]
        elif end:
            frame = memory.view[:end].tobytes() if out is None else copied_to_caller(memory.view[:end], out)
        release(self._key, memory)
        return Tried(frame, 0, columns)

    def _encode(self, values: np.ndarray, memory: _Memory, out: np.ndarray) -> int:
        """Write the frame of an array that neither repeats values nor may have column references or the sign in its
        heads to the start of ``out``; return its bytes, 0 where :meth:`encode` has no frame."""
        plan = self._plan
        planner = _tuple(SamplePlanner, (values, None, 1, plan.references, None, plan.sampling, memory.samples))
        first, others = candidates(planner, plan, self._dtype, (), plan.tables, 0)
        second, gain = None, 0.0
        if others:
            first, second, gain = two_smallest(first, others)
        dtype, stream_log2, _, sample, references, _ = first
        way, (made, tables) = self._ways[dtype, stream_log2], memory.books
        counts, every = sample.by_stream if references else sample.by_block, sample.every
        exact = every == 1
        if not (exact or (has_others(None, counts) and not has_few_heads(counts))):  # all values would be counted
            return 0
        n_books, _ = way.fit.make(counts, every, exact, exact and not references, memory.books, memory.choice)
        if not n_books:
            return 0
        if n_books == 1:
            start = way.start + made.records[0].tobytes()[: made.ends.item(0)]
            index_at = len(start) + 7 & ~7
            prelude_bytes = index_at + 4 * self._n_blocks + 7 & ~7
        else:
            records = [made.records[k].tobytes()[: made.ends.item(k)] for k in range(n_books)]
            head, index_at, prelude_bytes = start_of(way.form.start, self._n_blocks, records)
            start = bytes(head)
        if plan.may_be_predicted and plan.rows:  # as the planner asks where rows are looked at
            stream_bits, costs = stream_bits_of(stream_log2, references), made.costs[:n_books]
            coded_bits = expect_bits[None](
                counts, costs, memory.choice, way.kept[0], every, stream_bits, memory.expected
            )
            predictor = Predictor(values, self._dtype, plan.rows, None, 1 << block_log2(dtype))
            if predictor.weigh(memory.expected, 1 << stream_log2, dtype.fine_bits > 0) is not None:
                return 0
            all_bits = coded_bits + 8.0 * (len(start) - len(way.start))
            if second is not None and promised_bits(first, coded_bits, second, gain) < all_bits:
                return 0
        books: Books = with_runs(tables, n_books)
        form, coded = way.form, way.coded
        coding = _tuple(
            CodedEncoding,
            (
                values,
                None,
                form.geometry,
                coded.float_bits,
                coded.rounding,
                _tuple(Choices, (memory.choice, sample.bases, references)),
                _NO_COLUMNS,
                books,
                coded.planes,
                memory.sizes,
            ),
        )
        code = encode_coded_blocks[coded.types]
        end = code(coding, None, 0, self._n_blocks, memory.coding[way.number], out, prelude_bytes)
        if end > form.limit:  # the blocks are stored raw, and the codebook is of no use
            return 0
        seal[None](out, np.frombuffer(start, np.uint8), index_at, prelude_bytes, end, memory.sizes)
        return int(end)


@lru_cache(256)
def _key_of(*parts: object) -> tuple[object, ...]:
    """Return what memory is kept by: one object, whose parts are few, for all shapes."""
    return "short array", *parts


@lru_cache(1024)
def _form_of(
    dtype: DType,
    shape: tuple[int, ...],
    container: int,
    layout: BitLayout,
    options: EncoderOptions,
    shapes: tuple[tuple[int, ...], ...],
    n_values: int,
) -> ShortForm:
    """Return what encoding a short array takes beside its values; arguments as of :class:`ShortForm`."""
    plan = plan_form(n_values, dtype, layout, options, 1 << block_log2(dtype), None, True, shapes)
    return ShortForm(dtype, shape, container, layout, options, plan)


def encode_short(request: EncodeRequest, out: Any) -> Tried:
    """Encode a short array as one frame.

    Args:
        request: The array, and how to encode it.
        out: Writable buffer for the frame, or None.
    """
    (bits, dtype, shape, container), layout, _, options, _, _, fixed, _, base, standalone, one_base, _ = request
    n_values = len(bits)
    if not (
        n_values < _MAX_SHORT
        and bits.nbytes >= _MIN_BYTES
        and layout.is_plain
        and base is None
        and fixed is None
        and one_base is None
        and standalone
        and not options.smallest
    ):
        return _UNTRIED
    tensors = shapes_that_matter(request)
    return _form_of(dtype, shape, container, layout, options, tensors, n_values).encode(bits, out)
