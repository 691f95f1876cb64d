"""Rows of a block: their scales, predictions and residuals (docs/format.md section 8), and a look at an array before
deciding to predict it."""

from __future__ import annotations

import numpy as np

from ..block.header import is_constant
from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import fetch_values, float_of, view
from ..entropy.encode_streams import STREAM_PAD
from ..sample.code_costs import entropy_fixed
from ..sample.count import PIECE
from .residuals import (
    BFLOAT16,
    as_float,
    digits,
    nearby_scale,
    predict,
    residuals,
    scale_of,
    sum_products,
    sum_squares,
)

QUICK_COLUMNS, QUICK_ROWS = 128, 16  #: columns and rows that a first look is at
#: Bits, in 1/256, beyond what is promising, times rows: after so many rows or more no other is looked at.
HOPELESS, HOPELESS_ROWS = 768, 2
FETCHED_ROWS = 4  #: of the next tensor


@kernel
def predict_block(scratch, template, column, n, form):
    """Predictions of a block whose first value is in ``column``, by the scales of its rows. Returns the number of
    rows."""
    done, row = 0, 0
    while done < n:
        count = min(len(template) - column, n - done)
        predict(float_of(scratch.scales[row]), template, column, count, form, view(scratch.predictions, done, count))
        done += count
        row += 1
        column = 0
    return row


@kernel
def fit_block(values, n, template, column, form, scratch):
    """The scales of a block's rows, into ``scratch.scales``."""
    done, row, first, last, squares = 0, 0, -1, -1, np.float32(0)
    while done < n:
        count = min(len(template) - column, n - done)
        some, own = view(values, done, count), view(template, column, count)
        if column != first or count != last:
            first, last, squares = column, count, sum_squares(own, count, scratch.sums)
        scale = scale_of(sum_products(some, own, count, form, scratch.sums), squares)
        if form == BFLOAT16:  # other types have so many bits that few values are met exactly
            scale = nearby_scale(some, own, count, scale)
        scratch.scales[row] = scale
        done += count
        row += 1
        column = 0


@kernel
def copy_base(base, start, n, predictions):
    """Predict values by those of another array at the same places."""
    some = view(base, start, n)
    for i in range(n):
        predictions[i] = some[i]


@kernel
def residuals_of_block(values, base, start, n, stream, template, column, form, scratch):
    """Symbols of a block and what its planes are cut from (``scratch.words``), predicted from ``base`` from value
    ``start`` on, or where that is None from ``template``. Returns the number of rows."""
    n_rows = 0
    if base is not None:
        copy_base(base, start, n, scratch.predictions)
    else:
        fit_block(values, n, template, column, form, scratch)
        n_rows = predict_block(scratch, template, column, n, form)
    for s in range((n + stream - 1) // stream):
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - s * stream)
        words = view(scratch.words, s * stream, count)
        residuals(values, s * stream, count, view(scratch.predictions, s * stream, count), words)
        digits(words, count, scratch.symbols, place)
        for i in range(count, (count + 63) & ~63):
            scratch.symbols[place + i] = 0
    return n_rows


@kernel
def count_digits(values, base, start, n, stream, template, column, form, scratch, counts):
    """Histogram (uint32[256]) of a stretch's symbols, predicted from a template."""
    residuals_of_block(values, base, start, n, stream, template, column, form, scratch)
    for s in range((n + stream - 1) // stream):
        place = s * (stream + STREAM_PAD)
        for i in range(min(stream, n - s * stream)):
            counts[scratch.symbols[place + i]] += U32(1)


@kernel
def residual_bits(counts, digit_bits):
    """What counted symbols take with a code of their own, in 1/256 bits."""
    bits = np.int64(entropy_fixed(counts))
    for symbol in range(len(counts)):
        bits += np.int64(counts[symbol]) * np.int64(digit_bits[symbol]) * 256
    return bits


@kernel
def _quick_row(n_values, n_columns, k):
    """Where the row begins that is looked at as number ``k``."""
    return (k + QUICK_ROWS // 2) % QUICK_ROWS * (n_values // n_columns // QUICK_ROWS) * n_columns


@kernel
def _count_quick_sample(values, n_columns, limit, form, stream, digit_bits, template, scratch, counts):
    """A first look: predict the first columns of a few rows, spread over an array, from those of the row in their
    middle. ``limit``: bits per value, in 1/256, beyond which it gives up; ``template``: float32[QUICK_COLUMNS],
    scratch; ``counts``: uint32[256], result. Returns the number of values counted, 0 where there are none."""
    count, seen, found = min(n_columns, QUICK_COLUMNS), 0, False
    for k in range(QUICK_ROWS):
        some = view(values, _quick_row(len(values), n_columns, k), count)
        others = 0
        for i in range(count):
            others += some[i] != 0
        if 2 * others < count:
            continue
        if not found:
            found = True
            for i in range(count):
                template[i] = as_float(some[i], form)
            continue
        count_digits(some, None, 0, count, stream, template, 0, form, scratch, counts)
        seen += count
        if k >= HOPELESS_ROWS and residual_bits(counts, digit_bits) > (limit + HOPELESS // k) * seen:
            break
    return seen


@kernel
def find_promising(values, tensors, limits, form, stream, digit_bits, template, scratch, counts, promising):
    """Whether rows of tensors are near to multiples of one: ``promising``: bool[n], result. ``tensors``: int64[n, 3],
    of each first value, columns and rows; ``limits``: int64[n], bits per value, in 1/256, that predicting must not
    exceed; ``digit_bits``: uint8[256], what a symbol's digits take; ``template``: float32[QUICK_COLUMNS], ``counts``:
    uint32[256], scratch."""
    for t in range(len(tensors)):
        n_columns = tensors[t, 1]
        counts[:] = U32(0)
        after = min(t + 1, len(tensors) - 1)
        for k in range(FETCHED_ROWS):  # rows lie too far apart for the processor to guess
            place = _quick_row(tensors[after, 1] * tensors[after, 2], tensors[after, 1], k)
            fetch_values(values, tensors[after, 0] + place, min(tensors[after, 1], QUICK_COLUMNS))
        some = view(values, tensors[t, 0], n_columns * tensors[t, 2])
        seen = _count_quick_sample(some, n_columns, limits[t], form, stream, digit_bits, template, scratch, counts)
        promising[t] = seen > 0 and residual_bits(counts, digit_bits) <= limits[t] * seen


@kernel
def count_residual_sample(values, base, geometry, form, begin, template, origin, share, scratch, counts):
    """Histograms of residuals of one in ``share`` pieces of blocks from ``begin`` on: ``counts``: uint32[n, 256],
    result. ``base``: uintW[n_values] to predict from, or None; ``origin``: where in ``values`` a row begins."""
    piece = PIECE if share > 1 else geometry.block
    for b in range(begin, begin + len(counts)):
        end = min((b + 1) * geometry.block, geometry.n_values)
        first = b * geometry.block + (b % share) * piece
        first = first if first < end else b * geometry.block
        for start in range(first, end, share * piece):
            n = min(piece, end - start)
            some = view(values, start, n)
            if not is_constant(some, n):
                column = (start - origin) % max(len(template), 1)
                count_digits(
                    some, base, start, n, geometry.stream, template, column, form, scratch, counts[b - begin]
                )
