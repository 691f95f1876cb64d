"""Encode short arrays with few calls: of a thousand values, Python's calls between the kernels take three times as
long as the kernels.

A short array is one block whose plan has two things to choose: how long sub-streams are, and whether they have
references of their own. All else follows from its type, shape and options, and is made once (:class:`ShortForm`). The
choices are those of :mod:`gcodec.plan`, and the kernels are its kernels, called in the same order; whatever else an
array may need is left to it. tests/codec/test_short_arrays.py holds that both make the same frames.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.columns import for_kernels
from ..format.modes import BitLayout
from ..format.prelude import start_of
from ..kernels.block.encode import CodedEncoding
from ..kernels.core.bundles import Choices, Scratch
from ..memory import acquire, release
from ..options import EncoderOptions
from ..plan.codebooks import FittedCodebooks, fit_form
from ..plan.other_heads import MIN_OTHER_HEADS
from ..plan.prediction import MIN_ROW_VALUES
from ..plan.request import EncodeRequest
from ..plan.sampling import Candidate, Sample, SampleForm, cheapest, sample_form, sampling_form, stream_lengths
from .coded_blocks import CodedForm, coded_form, encode_coded_blocks, with_runs
from .sizes import block_log2
from .writer import FrameForm, frame_form, seal_start

#: Values of arrays above which rows or other heads than the usual one may be tried.
_MAX_SHORT = min(MIN_OTHER_HEADS, MIN_ROW_VALUES) - 1
_MIN_BYTES = 257  #: of values, below which they may be stored as they are
_NO_COLUMNS = for_kernels(())


class _Way(NamedTuple):
    """A length of sub-streams, and what it takes to encode an array so.

    Attributes:
        stream_log2: log2 of the values per sub-stream.
        sampling: Counts the array's heads.
        frame: What the frame is beside its values.
        coded: Codes the block.
    """

    stream_log2: int
    sampling: SampleForm
    frame: FrameForm
    coded: CodedForm


class _Memory(NamedTuple):
    """Memory to encode an array of a type in.

    Attributes:
        samples: What is counted, by the number of the way.
        scratch: Scratch of the coding kernel, likewise.
        choice: int64[1], the codebook of the block.
        sizes: uint32[1], its bytes.
        out: uint8, the frame.
    """

    samples: list[Sample]
    scratch: list[Scratch]
    choice: np.ndarray
    sizes: np.ndarray
    out: np.ndarray


class ShortForm:
    """Holds what encoding a short array takes that depends on no value: one object for each combination.

    Args:
        dtype: The value type.
        shape: The array's shape.
        container: As in the prelude.
        layout: Which bits of a value are kept: all.
        options: How codebooks are made.
    """

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], container: int, layout: BitLayout, options: EncoderOptions
    ) -> None:
        n_values, log2 = prod(shape), block_log2(dtype)
        sampling = sampling_form(n_values, 1, 1 << log2, dtype.tail_bits - layout.most_kept)
        self._ways = [
            _Way(
                length,
                sample_form(dtype, 1, 1 << log2, 1 << length, sampling.some, None, sampling.unused_bits),
                frame_form(dtype, layout, container, shape, log2, length),
                coded_form(dtype, layout, True, 1 << log2, 1 << length),
            )
            for length in stream_lengths(dtype, (), n_values)
        ]
        self._dtype, self._references = dtype, options.references
        self._fit = fit_form(dtype, layout, options)
        n_bytes = max(way.frame.limit + way.frame.trial for way in self._ways)
        self._out_bytes = 1 << n_bytes.bit_length()  # a few sizes for all shapes
        self._key = "short array", dtype, len(self._ways), self._out_bytes

    def _new_memory(self) -> _Memory:
        """Return memory for one array."""
        return _Memory(
            [way.sampling.new_sample() for way in self._ways],
            [way.coded.new_scratch() for way in self._ways],
            np.empty(1, np.int64),
            np.empty(1, np.uint32),
            np.empty(self._out_bytes, np.uint8),
        )

    def encode(self, values: np.ndarray) -> bytes | None:
        """Return the frame of uintW[n_values], of which nothing is worth a closer look; None if it may be smaller in
        other blocks than coded ones."""
        memory: _Memory = acquire(self._key, self._new_memory)
        candidates = []
        for way, sample in zip(self._ways, memory.samples, strict=True):
            bits, relative = way.sampling.weigh(values, None, (), sample)
            references = self._references and relative < bits
            bits = relative if references else bits
            candidates.append(Candidate(self._dtype, way.stream_log2, (), sample, references, bits))
        best = cheapest(candidates)
        counts = best.sample.counts_of(best.references)
        books = self._fit.fit(counts, 1, True, not best.references, memory.choice)
        frame = None
        if isinstance(books, FittedCodebooks):
            frame = self._write(values, best, candidates.index(best) if len(candidates) > 1 else 0, books, memory)
            books.close()
        release(self._key, memory)
        return frame

    def _write(
        self, values: np.ndarray, best: Candidate, number: int, books: FittedCodebooks, memory: _Memory
    ) -> bytes | None:
        """Return the frame of one way, by its number; None if its block is stored raw, and the codebook of no use."""
        _, _, form, coded = self._ways[number]
        start, out, code = start_of(form.start, 1, books.records), memory.out, encode_coded_blocks[coded.types]
        coding = CodedEncoding(
            values,
            None,
            form.geometry,
            coded.float_bits,
            coded.rounding,
            Choices(memory.choice, best.sample.bases, best.references),
            _NO_COLUMNS,
            with_runs(books.tables, 1),
            coded.planes,
            memory.sizes,
        )
        end = code(coding, None, 0, 1, memory.scratch[number], out, start.prelude_bytes)
        if end > form.limit:
            return None
        seal_start(start, memory.sizes, end, out)
        return out[:end].tobytes()


_form_of = lru_cache(1024)(ShortForm)


def encode_short(request: EncodeRequest) -> bytes | None:
    """Encode a short array as one frame.

    Args:
        request: The array, of which nothing is worth a closer look, and how to encode it.

    Returns:
        The frame; None if the array is not short, or may be smaller otherwise than as one coded block.
    """
    (bits, dtype, shape, container), layout, _, options, _, _, fixed, _, base, standalone, one_base = request
    n_bytes = bits.nbytes
    if not (
        _MIN_BYTES <= n_bytes <= _MAX_SHORT * bits.itemsize
        and layout.is_plain
        and base is None
        and fixed is None
        and one_base is None
        and standalone
        and not options.smallest
    ):
        return None
    return _form_of(dtype, shape, container, layout, options).encode(bits)
