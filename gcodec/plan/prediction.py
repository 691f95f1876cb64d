"""Find rows of an array that are close to multiples of one row, and weigh what predicting them from it saves
(docs/format.md section 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.codebook import Codebook, residual_codebook
from ..format.prelude import TEMPLATE_COLUMNS
from ..format.tables import digit_tables
from ..kernels.core.bundles import Geometry, Residuals
from ..kernels.core.specialized import Specialized
from ..kernels.predict import medians
from ..kernels.predict import rows as kernels
from ..kernels.predict.scale_steps import N_SUMS
from ..kernels.predict.trials import fit_residuals
from ..memory import acquire, release, residual_scratch_for

_MIN_ROWS = 32  #: fewer do not pay for their template
MIN_COLUMNS = 32  #: likewise
MIN_ROW_VALUES = 1 << 13  #: of a tensor whose rows are compared
MAX_TEMPLATES = 96  #: in a frame
_TABLE_BITS = 600  #: what a residual codebook costs in the frame, about
_MARGIN = 0.002  #: smallest share of its size that prediction must take off a tensor
#: One value in so many (first) is sampled of tensors of up to so many (second); of larger ones, one in _MAX_EVERY.
_EVERY_BY_SIZE, _MAX_EVERY = ((1, 1 << 15), (4, 1 << 16), (8, 1 << 20)), 16
_SAMPLE_STREAM = 256  #: values per sub-stream in samples, which does not change what is counted
_SLACK_BITS = 0.8  #: per value: how much worse a row predicts than the median of many
_SIGN_BITS = 1.0  #: likewise what coded blocks with the sign in the head take off, and what the median gains on them
#: Rows that a template is the median of: one in so many, and limits. More than a few, because rounding has moved each
#: value of each, in bfloat16 by as much as the residuals are large.
_MEDIAN_SHARE, _MIN_MEDIAN, _MAX_MEDIAN, _MEDIAN_VALUES = 8, 32, 256, 1 << 17
_NO_TEMPLATE = np.zeros(0, np.float32)  #: stands for a base
_SCALE_BITS, _STREAM_BITS = 24, 8.5  #: what a row's scale and a sub-stream's length and spare bits take

_find_promising, _median_row = Specialized(kernels.find_promising), Specialized(medians.median_row)
_count_sample, _fit_residuals = Specialized(kernels.count_residual_sample), Specialized(fit_residuals)


@dataclass(frozen=True)
class Rows:
    """A tensor whose rows may be alike.

    Attributes:
        start: First value in the array.
        stop: End in the array.
        n_columns: Values per row.
        group: Columns that belong together: the kernel of a convolution.
    """

    start: int
    stop: int
    n_columns: int
    group: int = 1


class RowTensors(tuple[Rows, ...]):
    """The tensors in an array whose rows may be alike, perhaps none."""

    @cached_property
    def table(self) -> np.ndarray:
        """Return each tensor's first value, columns and rows, as the kernel takes them: int64[n, 3]."""
        table = [(rows.start, rows.n_columns, (rows.stop - rows.start) // rows.n_columns) for rows in self]
        return np.array(table, np.int64).reshape(-1, 3)


@dataclass(frozen=True)
class Prediction:
    """Some blocks of an array, and what each of them is predicted from.

    Attributes:
        templates: float32[n_columns] each; of no columns where the base is meant.
        origins: For each template, where in the array a row begins that it predicts.
        codebooks: For each template, the codebook of its residuals.
        choice: int64[n_blocks], the template's number, -1 where the block is not predicted.
        bits: What all blocks take, predicted or not, and templates and codebooks, about.
    """

    templates: tuple[np.ndarray, ...]
    origins: tuple[int, ...]
    codebooks: tuple[Codebook, ...]
    choice: np.ndarray
    bits: float

    def renewed(self, values: np.ndarray, dtype: DType, rows: Sequence[Rows]) -> Prediction:
        """Return this prediction for another array of the same tensors, with templates of its own.

        Args:
            values: uintW[n_values], the other array.
            rows: Tensors in it. There must be no base.
        """
        tensors = {tensor.start: tensor for tensor in rows}
        templates = tuple(template_of(values, dtype, tensors[origin]) for origin in self.origins)
        return replace(self, templates=templates)


def rows_of(shapes: Sequence[Sequence[int]]) -> RowTensors:
    """Return the tensors of these shapes, end to end in an array, that are large enough to compare their rows."""
    return _rows_of(tuple(map(tuple, shapes)))


@lru_cache(64)
def _rows_of(shapes: tuple[tuple[int, ...], ...]) -> RowTensors:
    tensors, start = [], 0
    for shape in shapes:
        stop = start + math.prod(shape)
        n_columns = shape[-1] if len(shape) > 1 and shape[-1] >= MIN_COLUMNS else math.prod(shape[1:])
        good = len(shape) > 1 and n_columns >= MIN_COLUMNS and n_columns in TEMPLATE_COLUMNS
        if good and stop - start >= max(MIN_ROW_VALUES, _MIN_ROWS * n_columns):
            group = math.prod(shape[2:]) if n_columns == math.prod(shape[1:]) else 1
            tensors.append(Rows(start, stop, n_columns, group))
        start = stop
    return RowTensors(tensors)


class _Trial(NamedTuple):
    """Blocks that were predicted for a trial.

    Attributes:
        begin: First block.
        end: End of the blocks.
        origin: Where in the array a row begins.
        template: float32[n_columns]; of no columns, the base is meant.
        counts: uint32[end - begin, 256], residuals of a sample of each block's values.
        every: One value in so many was sampled.
    """

    begin: int
    end: int
    origin: int
    template: np.ndarray
    counts: np.ndarray
    every: int


class Predictor:
    """Finds blocks of an array that are smaller when predicted.

    Trials are made once, and weighed against each way to code the array otherwise.

    Args:
        values: uintW[n_values], the array.
        rows: Tensors in it.
        base: uintW[n_values], an earlier array of this kind, or None.
        block: Values per block.
    """

    def __init__(self, values: np.ndarray, dtype: DType, rows: RowTensors, base: np.ndarray | None, block: int) -> None:
        self._values, self._dtype, self._block = values, dtype, block
        self._rows, self._base = rows, base
        self._trials: list[_Trial] | None = None

    def weigh(self, plain_bits: np.ndarray, stream_len: int, signed: bool = False) -> Prediction | None:
        """Choose the blocks that are smaller when predicted.

        Args:
            plain_bits: float64[n_blocks], what each block is expected to take as a coded one.
            stream_len: Values per sub-stream.
            signed: True if coded blocks have the sign in the head.

        Returns:
            The prediction, or None where none pays.
        """
        if self._trials is None:
            self._trials = self._try_all(plain_bits, _SLACK_BITS + _SIGN_BITS * signed)
        if not self._trials:  # mostly
            return None
        choice, bits, template_bits = np.full(len(plain_bits), -1, np.int64), plain_bits.copy(), 0.0
        digit_bits = digit_tables(self._dtype.bits // 4)[2]
        chosen: list[tuple[np.ndarray, int, Codebook]] = []
        for trial in self._trials:
            n_columns, before = len(trial.template), bits[trial.begin : trial.end]
            n_rows = 1 + self._block / n_columns if n_columns else 0
            overhead = n_rows * _SCALE_BITS + self._block / stream_len * _STREAM_BITS
            lengths, after = np.empty(1 + 15 * (self._dtype.bits // 4), np.uint8), np.empty(len(before))
            saved = _fit_residuals[None](trial.counts, trial.every, digit_bits, before, float(overhead), lengths, after)
            cost = 32 * n_columns + _TABLE_BITS
            if len(chosen) < MAX_TEMPLATES and saved > cost + _MARGIN * float(before.sum()):
                better = after < before
                choice[trial.begin : trial.end][better] = len(chosen)
                before[better] = after[better]
                template_bits += cost
                chosen.append((trial.template, trial.origin, residual_codebook(lengths)))
        templates, origins, codebooks = zip(*chosen, strict=True) if chosen else ((), (), ())
        return Prediction(templates, origins, codebooks, choice, template_bits + float(bits.sum())) if chosen else None

    def may_predict(self, plain_bits: np.ndarray) -> bool:
        """Return False if a quick sample shows that no tensor takes fewer bits when predicted than ``plain_bits`` has:
        float64[n_blocks]."""
        sample = acquire(self._key, self._new_sample)
        promising = self._promising(plain_bits, _SLACK_BITS + _SIGN_BITS, sample)
        release(self._key, sample)
        return bool(promising)

    @property
    def _key(self) -> tuple[str, DType, int]:
        """Return what a sample's memory is kept by."""
        return "residual sample", self._dtype, self._block

    def _new_sample(self) -> kernels.QuickSample:
        """Return memory for a quick sample."""
        dtype = self._dtype
        return kernels.QuickSample(
            dtype.narrow.code,
            _SAMPLE_STREAM,
            digit_tables(dtype.bits // 4)[2],
            np.empty(kernels.QUICK_COLUMNS, np.float32),
            np.zeros(256, np.uint32),
            residual_scratch_for(dtype, self._block, _SAMPLE_STREAM),
        )

    def _try_all(self, plain_bits: np.ndarray, slack: float) -> list[_Trial]:
        """Return a trial of each template worth weighing, and one of the base."""
        sample, trials = acquire(self._key, self._new_sample), []
        for tensor in self._promising(plain_bits, slack, sample):
            begin, end = tensor.start // self._block, -(-tensor.stop // self._block)
            template = template_of(self._values, self._dtype, tensor)
            trials.append(self._try(begin, end, tensor.start, template, None, sample.scratch))
        if self._base is not None:
            trials.append(self._try(0, len(plain_bits), 0, _NO_TEMPLATE, self._base, sample.scratch))
        release(self._key, sample)
        return trials

    def _promising(self, plain_bits: np.ndarray, slack: float, sample: kernels.QuickSample) -> list[Rows]:
        """Return the tensors that a quick sample does not rule out, which may take ``slack`` bits a value more than
        ``plain_bits`` has."""
        rows, found = self._rows, np.empty(len(self._rows), np.bool_)
        expected = kernels.ExpectedBits(plain_bits, self._block, slack)
        if not _find_promising[self._dtype.bits](self._values, rows.table, expected, sample, found):
            return []
        return [tensor for tensor, good in zip(rows, found.tolist(), strict=True) if good]

    def _try(
        self, begin: int, end: int, origin: int, template: np.ndarray, source: np.ndarray | None, scratch: Residuals
    ) -> _Trial:
        """Count a sample of the residuals of blocks ``begin ... end``."""
        n_values = (end - begin) * self._block
        every = next((every for every, max_values in _EVERY_BY_SIZE if n_values <= max_values), _MAX_EVERY)
        counts = np.zeros((end - begin, 256), np.uint32)
        geometry = Geometry(len(self._values), self._block, _SAMPLE_STREAM)
        sample = kernels.ResidualSample(self._dtype.narrow.code, begin, origin, every)
        types = self._dtype.bits, None if source is None else source.flags.aligned
        _count_sample[types](self._values, source, geometry, sample, template, scratch, counts)
        return _Trial(begin, end, origin, template, counts, every)


def template_of(values: np.ndarray, dtype: DType, tensor: Rows) -> np.ndarray:
    """Return the row that the others of a tensor are predicted from: the median of some, float32[n_columns].

    Args:
        values: uintW[n_values], the array.
    """
    n_columns, n_rows = tensor.n_columns, (tensor.stop - tensor.start) // tensor.n_columns
    max_sampled = max(min(_MAX_MEDIAN, _MEDIAN_VALUES // n_columns), _MIN_MEDIAN)
    n_sampled = min(max(n_rows // _MEDIAN_SHARE, _MIN_MEDIAN), max_sampled, n_rows)
    room, flat = 1 << (n_sampled - 1).bit_length(), values[tensor.start : tensor.stop]
    template = np.empty(n_columns, np.float32)
    scratch = medians.MedianScratch(
        np.empty((n_sampled, n_columns), np.float32),
        np.empty(n_sampled, np.float32),
        np.empty((room, medians.TILE), np.float32),
        np.empty(N_SUMS, np.float32),
    )
    _median_row[dtype.bits](flat, dtype.narrow.code, n_sampled, n_rows // n_sampled, template, scratch)
    return template
