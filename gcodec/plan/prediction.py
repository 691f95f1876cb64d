"""Whether rows of an array are close to multiples of one row, and what predicting them from it saves
(docs/format.md section 8)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ..dtypes import DType
from ..format.codebook import Codebook, limited_lengths, residual_codebook
from ..format.prelude import TEMPLATE_COLUMNS
from ..format.tables import digit_tables
from ..kernels.core.bundles import Geometry, Residuals
from ..kernels.predict import medians
from ..kernels.predict import rows as kernels
from ..kernels.predict.residuals import PARTIAL_SUMS
from ..memory import residual_scratch_for

_LEAST_ROWS = 32  #: fewer do not pay for their template
_LEAST_COLUMNS = 32
_LEAST_VALUES = 1 << 13
MAX_TEMPLATES = 96  #: in a frame
_TABLE_BITS = 600  #: what a residual codebook costs in the frame, about
_MARGIN = 0.002  #: least share of its size that prediction must take off a tensor
#: Of tensors up to so many values, one in so many is looked at before deciding.
_SHARES, _LEAST_SHARE = ((1, 1 << 16), (4, 1 << 18), (8, 1 << 20)), 16
_LOOK_STREAM = 256  #: values per sub-stream while looking, which does not change what is seen
_SLACK_BITS = 0.8  #: per value: how much worse a row predicts than the median of many
#: Rows that a template is the median of: one in so many, and limits. More than a few, because rounding has moved each
#: value of each, in bfloat16 by as much as the residuals are large.
_MEDIAN_SHARE, _LEAST_MEDIAN, _MOST_MEDIAN, _MEDIAN_VALUES = 8, 32, 256, 1 << 17
_NO_TEMPLATE = np.zeros(0, np.float32)  #: stands for a base
_SCALE_BITS, _STREAM_BITS = 24, 8.5  #: what a row's scale and a sub-stream's length and spare bits take


@dataclass(frozen=True)
class Rows:
    """A tensor with rows worth a look: values ``start ... stop`` of the array, ``n_columns`` each, of which ``group``
    belong together: the kernel of a convolution."""

    start: int
    stop: int
    n_columns: int
    group: int = 1


@dataclass(frozen=True)
class Prediction:
    """How some blocks of an array are predicted.

    ``templates``: float32[n_columns] each, of no columns where a base is meant; ``origins``: where in the array a row
    begins that each is for;
    ``codebooks`` of the residuals, one per template; ``choice``: int64[n_blocks], the template's number, -1 where the
    block is not predicted; ``bits``: what all blocks take, predicted or not, and templates and codebooks, about.
    """

    templates: tuple[np.ndarray, ...]
    origins: tuple[int, ...]
    codebooks: tuple[Codebook, ...]
    choice: np.ndarray
    bits: float

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Blocks ``begin ... end`` in runs of one choice: (first, stop, choice)."""
        wanted = self.choice[begin:end]
        edges = [0, *(np.flatnonzero(np.diff(wanted)) + 1).tolist(), len(wanted)]
        for first, stop in pairwise(edges):
            yield begin + first, begin + stop, int(wanted[first])

    def renewed(self, values: np.ndarray, dtype: DType, rows: Sequence[Rows]) -> Prediction:
        """The same for another array of the same tensors, with templates of its own. ``values``: uintW[n]; ``rows``:
        tensors in it; there must be no base."""
        tensors = {one.start: one for one in rows}
        templates = tuple(template_of(values, dtype, tensors[origin]) for origin in self.origins)
        return replace(self, templates=templates)


def rows_of(shapes: Sequence[Sequence[int]]) -> tuple[Rows, ...]:
    """The tensors, of these shapes and end to end, that have rows worth a look."""
    return _rows_of(tuple(map(tuple, shapes)))


@lru_cache(64)
def _rows_of(shapes: tuple[tuple[int, ...], ...]) -> tuple[Rows, ...]:
    found, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        n_columns = shape[-1] if len(shape) > 1 and shape[-1] >= _LEAST_COLUMNS else math.prod(shape[1:])
        good = len(shape) > 1 and n_columns >= _LEAST_COLUMNS and n_columns in TEMPLATE_COLUMNS
        if good and stop - start >= max(_LEAST_VALUES, _LEAST_ROWS * n_columns):
            group = math.prod(shape[2:]) if n_columns == math.prod(shape[1:]) else 1
            found.append(Rows(start, stop, n_columns, group))
        start = stop
    return tuple(found)


@dataclass(frozen=True)
class _Candidate:
    """Blocks ``begin ... end`` as predicted from a template, or of no columns, from the base: ``counts``: uint32[n,
    256], residuals of one in ``share`` of each block's values; ``origin``: where in the array a row begins."""

    begin: int
    end: int
    origin: int
    template: np.ndarray
    counts: np.ndarray
    share: int


class Predictor:
    """What may be predicted in an array. Looked at once, weighed against each way of coding it otherwise.

    ``values``: uintW[n]; ``rows``: tensors in it; ``base``: an earlier array of this kind, or None.
    """

    def __init__(
        self, values: np.ndarray, dtype: DType, rows: Sequence[Rows], base: np.ndarray | None, block: int
    ) -> None:
        self._values, self._dtype, self._block = values, dtype, block
        self._rows, self._base = rows, base
        self._candidates: list[_Candidate] | None = None

    def weigh(self, plain_bits: np.ndarray, stream: int) -> Prediction | None:
        """The blocks that are smaller when predicted; None where that does not pay. ``plain_bits``: float64[n_blocks],
        what each block is expected to take as a coded one; ``stream``: values per sub-stream."""
        if self._candidates is None:
            self._candidates = list(self._find(plain_bits))
        choice, bits, whole = np.full(len(plain_bits), -1, np.int64), plain_bits.copy(), 0.0
        found: list[tuple[np.ndarray, int, Codebook]] = []
        for one in self._candidates:
            n_columns, before = len(one.template), bits[one.begin : one.end]
            n_rows = 1 + self._block / n_columns if n_columns else 0
            overhead = n_rows * _SCALE_BITS + self._block / stream * _STREAM_BITS
            codebook, after = _fit(one.counts * one.share, self._dtype, before, overhead)
            better = one.counts.any(axis=1) & (after < before)
            saved, cost = float((before - after)[better].sum()), 32 * n_columns + _TABLE_BITS
            if len(found) < MAX_TEMPLATES and saved > cost + _MARGIN * float(before.sum()):
                choice[one.begin : one.end][better] = len(found)
                before[better] = after[better]
                whole += cost
                found.append((one.template, one.origin, codebook))
        templates, origins, codebooks = zip(*found, strict=True) if found else ((), (), ())
        return Prediction(templates, origins, codebooks, choice, whole + float(bits.sum())) if found else None

    def _find(self, plain_bits: np.ndarray) -> Iterator[_Candidate]:
        """Templates worth weighing, and the base."""
        scratch = residual_scratch_for(self._dtype, self._block, _LOOK_STREAM)
        for tensor in self._promising(plain_bits, scratch):
            begin, end = tensor.start // self._block, -(-tensor.stop // self._block)
            template = template_of(self._values, self._dtype, tensor)
            yield self._look(begin, end, tensor.start, template, None, scratch)
        if self._base is not None:
            yield self._look(0, len(plain_bits), 0, _NO_TEMPLATE, self._base, scratch)

    def _promising(self, plain_bits: np.ndarray, scratch: Residuals) -> list[Rows]:
        """The tensors that a first look does not rule out."""
        if not self._rows:
            return []
        tensors = np.array(
            [(one.start, one.n_columns, (one.stop - one.start) // one.n_columns) for one in self._rows], np.int64
        )
        before = np.concatenate([[0.0], np.cumsum(plain_bits)])
        begin = tensors[:, 0] // self._block
        end = -(-(tensors[:, 0] + tensors[:, 1] * tensors[:, 2]) // self._block)
        n_values = np.minimum(end * self._block, len(self._values)) - begin * self._block
        limits = (256 * ((before[end] - before[begin]) / n_values + _SLACK_BITS)).astype(np.int64)
        promising, counts = np.zeros(len(tensors), np.bool_), np.zeros(256, np.uint32)
        seed, digit_bits = np.empty(kernels.QUICK_COLUMNS, np.float32), digit_tables(self._dtype.bits // 4)[2]
        sample = kernels.QuickSample(self._dtype.narrow.code, _LOOK_STREAM, digit_bits, seed, counts, scratch)
        kernels.find_promising(self._values, tensors, limits, sample, promising)
        return [tensor for tensor, good in zip(self._rows, promising, strict=True) if good]

    def _look(
        self, begin: int, end: int, origin: int, template: np.ndarray, source: np.ndarray | None, scratch: Residuals
    ) -> _Candidate:
        n_values = (end - begin) * self._block
        share = next((share for share, most in _SHARES if n_values <= most), _LEAST_SHARE)
        counts = np.zeros((end - begin, 256), np.uint32)
        geometry = Geometry(len(self._values), self._block, _LOOK_STREAM)
        sample = kernels.ResidualSample(self._dtype.narrow.code, begin, origin, share)
        kernels.count_residual_sample(self._values, source, geometry, sample, template, scratch, counts)
        return _Candidate(begin, end, origin, template, counts, share)


def template_of(values: np.ndarray, dtype: DType, tensor: Rows) -> np.ndarray:
    """The row that the others of a tensor are predicted from: float32[n_columns]. ``values``: uintW[n]."""
    n_columns, n_rows = tensor.n_columns, (tensor.stop - tensor.start) // tensor.n_columns
    most = max(min(_MOST_MEDIAN, _MEDIAN_VALUES // n_columns), _LEAST_MEDIAN)
    seen = min(max(n_rows // _MEDIAN_SHARE, _LEAST_MEDIAN), most, n_rows)
    room = 1 << (seen - 1).bit_length()
    template, rows = np.empty(n_columns, np.float32), np.empty((2, room, n_columns), np.float32)
    some, sums = values[tensor.start : tensor.stop], np.empty(PARTIAL_SUMS, np.float32)
    medians.median_row(some, dtype.narrow.code, seen, n_rows // seen, template, rows[0], rows[1], sums)
    return template


def _fit(counts: np.ndarray, dtype: DType, plain_bits: np.ndarray, overhead: float) -> tuple[Codebook, np.ndarray]:
    """A codebook for the blocks that gain by being predicted, and what each block takes then: float64[n_blocks].

    ``counts``: residuals of each block; ``overhead``: bits that a block takes besides.
    """
    codebook = _codebook(counts.sum(axis=0), dtype)
    for last in (False, True):  # the codebook depends on the blocks, and the blocks on the codebook
        lengths = np.frombuffer(codebook.lengths, np.uint8).astype(np.float64)
        bits = _bits(counts, lengths, dtype) + overhead
        if not last and (bits < plain_bits).any():
            codebook = _codebook(counts[bits < plain_bits].sum(axis=0), dtype)
    return codebook, bits


def _bits(counts: np.ndarray, lengths: np.ndarray, dtype: DType) -> np.ndarray:
    """What counted residuals take, given code lengths (zeros: digits alone), per row of ``counts``."""
    digits = digit_tables(dtype.bits // 4)[2].astype(np.float64)
    return counts @ (lengths + digits)


def _codebook(counts: np.ndarray, dtype: DType) -> Codebook:
    """A code for all symbols, the ones not seen included."""
    n_symbols = 1 + 15 * (dtype.bits // 4)
    return residual_codebook(limited_lengths(counts[:n_symbols].astype(np.uint64) * 16 + 1))
