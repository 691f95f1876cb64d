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
from ..format.columns import for_kernels
from ..format.modes import BitLayout, lossless
from ..format.prelude import N_RECORDS_AT, start_of
from ..kernels.block.encode import CodedEncoding
from ..kernels.core.bundles import Books, Choices, SampleScratch, Scratch
from ..kernels.entropy.codebook_fit import FitMemory
from ..kernels.sample.code_costs import has_others
from ..memory import acquire, release
from ..options import EncoderOptions
from ..plan.codebooks import FitForm, fit_form
from ..plan.columns import fit_columns
from ..plan.indexing import MIN_INDEXED, repeats
from ..plan.other_heads import telling_bits
from ..plan.plan import PlanForm, expect_bits, plan_form, shapes_that_matter
from ..plan.prediction import Predictor
from ..plan.profile import look_at, look_step, rules_of
from ..plan.request import EncodeRequest
from ..plan.sampling import (
    REFERENCE_BITS,
    STREAM_BITS,
    Sample,
    SampleForm,
    SamplingForm,
    has_few_heads,
    price_of,
    sample_form,
    weigh_both_heads,
    weigh_sample,
)
from ..threads import MIN_SHARED
from .coded_blocks import CodedForm, coded_form, encode_coded_blocks, with_runs
from .encode import copied_to_caller
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
        sampling: What comparing ways depends on.
        container: As in the prelude, like the shape.
        shape: The array's shape.

    Attributes:
        dtype: The same, like the next.
        stream_log2: The same.
        kept: The tail bits that are kept, at the one level that there is.
        sampling: Counts the array's heads.
        fit: Makes its codebooks.
        form: What the frame is beside its values.
        start: The bytes that it begins with, if it has one codebook.
        coded: Codes the blocks.
    """

    __slots__ = "coded", "dtype", "fit", "form", "kept", "sampling", "start", "stream_log2"

    def __init__(
        self,
        dtype: DType,
        layout: BitLayout,
        options: EncoderOptions,
        stream_log2: int,
        sampling: SamplingForm,
        container: int,
        shape: tuple[int, ...],
    ) -> None:
        log2, stream_len = block_log2(dtype), 1 << stream_log2
        self.dtype, self.stream_log2, self.kept = dtype, stream_log2, layout.kept
        self.sampling: SampleForm = sample_form(
            dtype, 1, 1 << log2, stream_len, sampling.some, None, sampling.unused_bits
        )
        self.fit: FitForm = fit_form(dtype, layout, options)
        self.form: FrameForm = frame_form(dtype, layout, container, shape, log2, stream_log2)
        start = bytearray(self.form.start)
        start[N_RECORDS_AT] = 1
        self.start = bytes(start)
        self.coded: CodedForm = coded_form(dtype, layout, True, 1 << log2, stream_len)


class _Memory(NamedTuple):
    """Memory to encode an array of a type in.

    Attributes:
        samples: What is counted, by the number of the way, like the next two.
        scratch: Scratch of counting.
        coding: Scratch of coding.
        books: The codebooks.
        choices: Of each way, the choices of blocks whose sub-streams have no references of their own, or have some.
        choice: int64[n_blocks], the codebook of each block.
        sizes: uint32[n_blocks], the bytes of each.
        expected: float64[n_blocks], the bits of each, about.
        out: uint8, the frame.
        view: The same.
    """

    samples: list[Sample]
    scratch: list[SampleScratch]
    coding: list[Scratch]
    books: FitMemory
    choices: list[tuple[Choices, Choices]]
    choice: np.ndarray
    sizes: np.ndarray
    expected: np.ndarray
    out: np.ndarray
    view: memoryview


class ShortForm:
    """Holds what encoding a short array takes that depends on no value: one object for each combination.

    Args:
        dtype: The value type.
        shape: The array's shape.
        container: As in the prelude.
        layout: Which bits of a value are kept: all.
        options: How codebooks are made.
        plan: What planning depends on.
    """

    __slots__ = (
        "_counts_both",
        "_dtype",
        "_every",
        "_gain",
        "_key",
        "_look",
        "_may_be_predicted",
        "_may_refer",
        "_may_repeat",
        "_may_tell",
        "_n_blocks",
        "_n_usual",
        "_out_bytes",
        "_rows",
        "_tables",
        "_ways",
    )

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        container: int,
        layout: BitLayout,
        options: EncoderOptions,
        plan: PlanForm,
    ) -> None:
        n_values = plan.n_values
        self._look = (dtype.bits, True), look_step(n_values), rules_of(dtype, 0)
        self._dtype, self._may_refer, self._rows, self._tables = dtype, plan.references, plan.rows, plan.tables
        self._may_repeat = options.indexed and dtype.tail_bits > 0 and n_values >= MIN_INDEXED
        self._ways = [_Way(dtype, layout, options, length, plan.sampling, container, shape) for length in plan.lengths]
        wide, asks = dtype.wide, plan.asks_for_other_heads
        self._n_usual, self._every = len(self._ways), plan.sampling.every
        if asks and wide is not None:
            every_bit = lossless(wide, layout.mode)
            self._ways += [
                _Way(wide, every_bit, options, length, plan.sampling, container, shape) for length in plan.lengths
            ]
        self._gain = 0.0 if wide is None else wide.min_saving
        self._counts_both = len(self._ways) == 2 and self._n_usual == 1 and dtype.bits == 32
        self._may_tell = asks and dtype.signed is not None
        self._may_be_predicted = plan.may_be_predicted and bool(plan.rows)
        n_bytes = max(way.form.limit + way.form.trial for way in self._ways)
        self._n_blocks = self._ways[0].form.n_blocks
        self._out_bytes = 1 << n_bytes.bit_length()  # a few sizes for all shapes
        lengths = tuple([(way.dtype, way.stream_log2, way.fit.key) for way in self._ways])
        self._key = _key_of(lengths, self._n_blocks, self._out_bytes)

    def _new_memory(self) -> _Memory:
        """Return memory for one array."""
        ways, n_blocks, out = self._ways, self._n_blocks, np.empty(self._out_bytes, np.uint8)
        samples, choice = [way.sampling.new_sample() for way in ways], np.empty(n_blocks, np.int64)
        return _Memory(
            samples,
            [way.sampling.scratch() for way in ways],
            [way.coded.new_scratch() for way in ways],
            ways[0].fit.new_memory(),
            [(Choices(choice, sample.bases, False), Choices(choice, sample.bases, True)) for sample in samples],
            choice,
            np.empty(n_blocks, np.uint32),
            np.empty(n_blocks),
            out,
            out.data,
        )

    def encode(self, values: np.ndarray, out: Any) -> tuple[bytes | memoryview | None, int]:
        """Return the frame of uintW[n_values], in ``out`` unless that is None, and what the array is like
        (``profile_of``). The frame is None where something is worth a closer look, or where the array may be smaller in
        other blocks than coded ones."""
        kind, step, rules = self._look
        profile: int = look_at[kind](values, step, rules)
        if profile or (self._may_repeat and repeats(values)):
            return None, profile
        if self._may_tell and telling_bits(values, self._dtype):
            return None, 0
        if self._tables is not None and fit_columns(values, self._tables, self._dtype):
            return None, 0
        memory: _Memory = acquire(self._key, self._new_memory)
        end = self._encode(values, memory)
        frame = None
        if end:
            frame = memory.view[:end].tobytes() if out is None else copied_to_caller(memory.view[:end], out)
        release(self._key, memory)
        return frame, 0

    def _encode(self, values: np.ndarray, memory: _Memory) -> int:
        """Write the frame of an array that neither repeats values nor may have column references or the sign in its
        heads to the memory; return its bytes, 0 where :meth:`encode` has no frame."""
        number, references, bits, others_bits = self._choose(values, memory)
        way, sample, (made, tables) = self._ways[number], memory.samples[number], memory.books
        counts, exact = sample.by_stream if references else sample.by_block, self._every == 1
        if not (exact or (has_others(counts) and not has_few_heads(counts))):  # all values would be counted
            return 0
        n_books, _ = way.fit.make(counts, self._every, exact, exact and not references, memory.books, memory.choice)
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
        if self._may_be_predicted:
            record_bits = 8.0 * (len(start) - len(way.start))
            if self._is_predicted(values, memory, number, references, n_books, (bits, others_bits, record_bits)):
                return 0
        books: Books = with_runs(tables, n_books)
        form, coded, out = way.form, way.coded, memory.out
        coding = _tuple(
            CodedEncoding,
            (
                values,
                None,
                form.geometry,
                coded.float_bits,
                coded.rounding,
                memory.choices[number][references],
                _NO_COLUMNS,
                books,
                coded.planes,
                memory.sizes,
            ),
        )
        code = encode_coded_blocks[coded.types]
        end = code(coding, None, 0, self._n_blocks, memory.coding[number], out, prelude_bytes)
        if end > form.limit:  # the blocks are stored raw, and the codebook is of no use
            return 0
        seal[None](out, np.frombuffer(start, np.uint8), index_at, prelude_bytes, end, memory.sizes)
        return int(end)

    def _choose(self, values: np.ndarray, memory: _Memory) -> tuple[int, bool, float, float]:
        """Return the number of the way that takes the fewest bits, whether its sub-streams have references of their
        own, the bits that it takes, and what another head would take."""
        ways, samples, scratch, may_refer = self._ways, memory.samples, memory.scratch, self._may_refer
        if self._counts_both:
            usual, wide = ways[0].sampling, ways[1].sampling
            (plain, relative), (wide_plain, wide_relative) = weigh_both_heads[None](
                values, usual.spec, usual.weights, wide.spec, wide.weights, scratch[0], samples[0].counts,
                samples[1].counts,
            )  # fmt: skip
            best, bits, references = 0, plain, False
            if may_refer and relative < plain:
                bits, references = relative, True
        else:
            best, bits, references, least = 0, 0.0, False, (float("inf"), 0)
            for number in range(self._n_usual):
                plain, relative = self._weigh(values, number, memory)
                with_references = may_refer and relative < plain
                plain = relative if with_references else plain
                price = price_of(plain, ways[number].stream_log2)
                if price < least:
                    best, bits, references, least = number, plain, with_references, price
            if len(ways) > self._n_usual:
                wide_plain, wide_relative = self._weigh(values, best + self._n_usual, memory)
        if len(ways) == self._n_usual:
            return best, references, bits, float("inf")
        wide_references = may_refer and wide_relative < wide_plain
        wide_bits = wide_relative if wide_references else wide_plain
        if (1 + self._gain) * wide_bits < bits:
            return best + self._n_usual, wide_references, wide_bits, bits
        return best, references, bits, (1 + self._gain) * wide_bits

    def _weigh(self, values: np.ndarray, number: int, memory: _Memory) -> tuple[float, float]:
        """Count the heads of one way, and return the bits that it takes as ``SampleForm.weigh`` does."""
        form = self._ways[number].sampling
        bits: tuple[float, float] = weigh_sample[form.types](
            values,
            None,
            form.spec,
            form.weights,
            _NO_COLUMNS,
            memory.scratch[number],
            form.n_rows,
            memory.samples[number].counts,
        )
        return bits

    def _is_predicted(
        self,
        values: np.ndarray,
        memory: _Memory,
        number: int,
        references: bool,
        n_books: int,
        weighed: tuple[float, float, float],
    ) -> bool:
        """Return True if rows may be predicted, or if another head may be smaller after all, as ``plan._best_plan``
        asks where rows are looked at.

        Args:
            values: The array.
            memory: What was counted, and the codebooks.
            number: The number of the way.
            references: True if sub-streams have references of their own.
            n_books: Number of the codebooks.
            weighed: Bits of this way, of another head, and of the codebooks' records.
        """
        way, sample, made = self._ways[number], memory.samples[number], memory.books.made
        counts = sample.by_stream if references else sample.by_block
        (tail_bits,), stream_len = way.kept, 1 << way.stream_log2
        coded_bits = expect_bits[None](
            counts,
            made.costs[:n_books],
            memory.choice,
            tail_bits,
            self._every,
            (STREAM_BITS + REFERENCE_BITS * references) / stream_len,
            memory.expected,
        )
        predictor = Predictor(values, self._dtype, self._rows, None, 1 << block_log2(self._dtype))
        if predictor.weigh(memory.expected, stream_len, way.dtype.fine_bits > 0) is not None:
            return True
        bits, others_bits, record_bits = weighed
        return others_bits / max(bits, 1) * coded_bits < coded_bits + record_bits


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


def encode_short(request: EncodeRequest, out: Any) -> tuple[bytes | memoryview | None, int | None]:
    """Encode a short array as one frame.

    Args:
        request: The array, and how to encode it.
        out: Writable buffer for the frame, or None.

    Returns:
        The frame; None if the array is not short, or may be smaller otherwise than as coded blocks. And what the array
        is like (``profile_of``); None if that was not looked at.
    """
    (bits, dtype, shape, container), layout, _, options, _, _, fixed, _, base, standalone, one_base = request
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
        return None, None
    tensors = shapes_that_matter(request)
    return _form_of(dtype, shape, container, layout, options, tensors, n_values).encode(bits, out)
