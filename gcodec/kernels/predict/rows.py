"""Rows of a block: their scales, predictions and residuals (docs/format.md section 8); and samples of an array's
residuals, counted before deciding to predict it.

A block is a stretch of a matrix in row-major order, so it begins and ends somewhere in a row:

    template       |<----------- n_columns ----------->|
    first row                 |column ................ |    scales[0]
    next           |...................................|    scales[1]
    last           |...........|                            scales[2]
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..block.header import is_constant
from ..core.bundles import Residuals
from ..core.jit import kernel
from ..core.scalar import U32
from ..core.unaligned import fetch_values, float_from_bits, subarray, subarray_if_any
from ..entropy.encode_streams import STREAM_PAD
from ..sample.code_costs import entropy_fixed
from ..sample.count import PIECE, n_pieces, place_of_piece
from .residuals import BFLOAT16, as_float, digits, predict, residuals
from .scales import dot, nearby_scale, scale_of, sum_products

QUICK_COLUMNS, QUICK_ROWS = 128, 16  #: columns and rows of a tensor that are sampled before any others
#: Bits, in 1/256, beyond what is promising, times rows: after so many rows or more no other is sampled.
HOPELESS, HOPELESS_ROWS = 768, 2
FETCHED_ROWS = 4  #: of the next tensor
START, N_COLUMNS, N_ROWS = range(3)  #: columns of a table of tensors


class QuickSample(NamedTuple):
    """The quick sample of a tensor: how it is taken, and working memory for it.

    Attributes:
        dtype_code: The values' type.
        stream_len: Values per sub-stream.
        digit_bits: uint8[256], bits that a symbol's digits take.
        template: float32[QUICK_COLUMNS], scratch.
        counts: uint32[256], scratch.
        scratch: Working memory for residuals.
    """

    dtype_code: int
    stream_len: int
    digit_bits: np.ndarray
    template: np.ndarray
    counts: np.ndarray
    scratch: Residuals


class ExpectedBits(NamedTuple):
    """Holds what blocks take if they are not predicted.

    Attributes:
        bits: float64[n_blocks].
        block: Values per block.
        slack: Bits per value that predicting may promise to take more.
    """

    bits: np.ndarray
    block: int
    slack: float


class ResidualSample(NamedTuple):
    """The residuals of an array that are counted.

    Attributes:
        dtype_code: The values' type.
        begin: The first block.
        origin: Where in the array a row begins.
        share: One piece in so many is counted.
    """

    dtype_code: int
    begin: int
    origin: int
    share: int


@kernel
def predict_block(scratch, template, column, n, dtype_code):
    """Predict a block of ``n`` values by the scales of its rows (``scratch.scales``), into ``scratch.predictions``.
    ``column``: that of its first value. Returns the number of rows."""
    done, row = 0, 0
    while done < n:
        count = min(len(template) - column, n - done)
        scale, predictions = float_from_bits(scratch.scales[row]), subarray(scratch.predictions, done, count)
        predict(scale, template, column, count, dtype_code, predictions)
        done += count
        row += 1
        column = 0
    return row


@kernel
def fit_block(values, n, template, column, dtype_code, scratch):
    """Find the scales of a block's rows, into ``scratch.scales``."""
    done, row, squared_from, squared, squares = 0, 0, -1, -1, np.float32(0)
    while done < n:
        count = min(len(template) - column, n - done)
        # Only the first row of a block and its last may be cut off by the block's ends (see above): each has a scale,
        # too.
        part, columns = subarray(values, done, count), subarray(template, column, count)
        if column != squared_from or count != squared:  # whole rows have the same squares
            squared_from, squared, squares = column, count, dot(columns, columns, count, scratch.sums)
        scale = scale_of(sum_products(part, columns, count, dtype_code, scratch.sums), squares)
        if dtype_code == BFLOAT16:  # other types have so many bits that few values are met exactly
            scale = nearby_scale(part, columns, count, scale, scratch.sums)
        scratch.scales[row] = scale
        done += count
        row += 1
        column = 0


@kernel
def copy_base(base, start, n, predictions):
    """Predict values by those of another array at the same places; without such an array, leave all as it is.

    ``base``: uintW[n_values], or None.
    """
    if base is None:
        return
    part = subarray(base, start, n)
    for i in range(n):
        predictions[i] = part[i]


@kernel
def residuals_of_block(values, base, stream_len, template, column, dtype_code, scratch):
    """Find a block's symbols and what its planes are cut from, into ``scratch.symbols`` and ``scratch.words``.

    Args:
        values: uintW[n], the block.
        base: uintW[n], what a template of no columns stands for; or None.
        stream_len: Values per sub-stream.
        template: float32[n_columns].
        column: That of the block's first value.
        scratch: A :class:`bundles.Residuals`.

    Returns:
        The number of rows; 0 where the base predicts.
    """
    n, n_rows = len(values), 0
    if len(template):
        fit_block(values, n, template, column, dtype_code, scratch)
        n_rows = predict_block(scratch, template, column, n, dtype_code)
    else:
        copy_base(base, 0, n, scratch.predictions)
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - s * stream_len)
        words = subarray(scratch.words, s * stream_len, count)
        residuals(values, s * stream_len, count, subarray(scratch.predictions, s * stream_len, count), words)
        digits(words, count, scratch.symbols, place)
        for i in range(count, (count + 63) & ~63):  # encoding reads whole groups
            scratch.symbols[place + i] = 0
    return n_rows


@kernel
def count_residual_symbols(symbols, n, stream_len, counts):
    """Add the symbols of a block of ``n`` values, as :func:`residuals_of_block` leaves them, to ``counts``:
    uint32[256]."""
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        for i in range(min(stream_len, n - s * stream_len)):
            counts[symbols[place + i]] += U32(1)


@kernel
def residual_bits(counts, digit_bits):
    """Return the bits, in 1/256, that counted symbols take with a code of their own, and their digits."""
    bits = np.int64(entropy_fixed(counts))
    for symbol in range(len(counts)):
        bits += np.int64(counts[symbol]) * np.int64(digit_bits[symbol]) * 256
    return bits


@kernel
def _quick_row(n_values, n_columns, k):
    """Return where the row begins that is sampled as number ``k``: from the middle of the tensor on, and around."""
    #     k               0      1  ...   7      8     9  ...   15
    #     at sixteenths   8      9  ...  15      0     1  ...    7        of the tensor's rows
    return (k + QUICK_ROWS // 2) % QUICK_ROWS * (n_values // n_columns // QUICK_ROWS) * n_columns


@kernel
def _count_quick_sample(values, n_columns, limit, sample):
    """Count residuals of the first columns of a few rows, predicted from those of the first of them that is not mostly
    zeros.

    Args:
        values: uintW[n], the tensor.
        n_columns: Of the tensor.
        limit: Bits per value, in 1/256, beyond which it gives up.
        sample: A :class:`QuickSample`; its ``counts`` are added to.

    Returns:
        The number of values counted, 0 where there are none.
    """
    dtype_code, stream_len, digit_bits, template, counts, scratch = sample
    count, n_counted, has_template = min(n_columns, QUICK_COLUMNS), 0, False
    for k in range(QUICK_ROWS):
        row = subarray(values, _quick_row(len(values), n_columns, k), count)
        # A row of zeros tells nothing of a template; what few values there are in a sparse one tells little.
        n_nonzero = 0
        for i in range(count):
            n_nonzero += row[i] != 0
        if 2 * n_nonzero < count:
            continue
        if not has_template:
            has_template = True
            for i in range(count):
                template[i] = as_float(row[i], dtype_code)
            continue
        residuals_of_block(row, None, stream_len, template, 0, dtype_code, scratch)
        count_residual_symbols(scratch.symbols, count, stream_len, counts)
        n_counted += count
        # The fewer rows were looked at, the more they may be worse than the rest by chance.
        if k >= HOPELESS_ROWS and residual_bits(counts, digit_bits) > (limit + HOPELESS // k) * n_counted:
            break
    return n_counted


@kernel
def _limit(expected, n_values, start, end):
    """Return the bits per value, in 1/256, that predicting values ``start ... end`` of an array must not exceed.

    Args:
        expected: An :class:`ExpectedBits`.
        start: First value of a tensor.
        end: Behind its last.
    """
    first, last, total = start // expected.block, (end + expected.block - 1) // expected.block, 0.0
    for b in range(first, last):
        total += expected.bits[b]
    # Blocks at both ends may have values of other tensors, which count for these.
    number = min(last * expected.block, n_values) - first * expected.block
    return np.int64(256 * (total / number + expected.slack))


@kernel
def find_promising(values, tensors, expected, sample, promising):
    """Find the tensors whose rows are near to multiples of one, from a quick sample of each.

    Args:
        values: uintW[n], the array.
        tensors: int64[n_tensors, 3], columns START, N_COLUMNS and N_ROWS.
        expected: An :class:`ExpectedBits`.
        sample: A :class:`QuickSample`.
        promising: bool[n_tensors], result.

    Returns:
        Whether there are any.
    """
    any_promising = False
    for t in range(len(tensors)):
        start, n_columns = tensors[t, START], tensors[t, N_COLUMNS]
        end = start + n_columns * tensors[t, N_ROWS]
        limit = _limit(expected, len(values), start, end)
        sample.counts[:] = U32(0)
        following = min(t + 1, len(tensors) - 1)
        for k in range(FETCHED_ROWS):  # rows lie too far apart for the processor to guess
            place, following_columns = tensors[following, START], tensors[following, N_COLUMNS]
            place += _quick_row(following_columns * tensors[following, N_ROWS], following_columns, k)
            fetch_values(values, place, min(following_columns, QUICK_COLUMNS))
        n_counted = _count_quick_sample(subarray(values, start, end - start), n_columns, limit, sample)
        promising[t] = n_counted > 0 and residual_bits(sample.counts, sample.digit_bits) <= limit * n_counted
        any_promising |= promising[t]
    return any_promising


@kernel
def count_residual_sample(values, base, geometry, sample, template, scratch, counts):
    """Count residuals of some pieces of each block.

    Args:
        values: uintW[n_values], the array.
        base: uintW[n_values] to predict from, or None: the template does.
        geometry: A :class:`bundles.Geometry`.
        sample: A :class:`ResidualSample`.
        template: float32[n_columns], of no columns with a base.
        scratch: A :class:`bundles.Residuals`.
        counts: uint32[n_blocks, 256], result, zeroed: histograms of symbols of blocks from ``sample.begin`` on.
    """
    begin, share = sample.begin, sample.share
    piece = PIECE if share > 1 else geometry.block
    for b in range(begin, begin + len(counts)):
        first, end = b * geometry.block, min((b + 1) * geometry.block, geometry.n_values)
        for number in range(n_pieces(first, end, share, piece)):
            start = place_of_piece(number, b, first, end, share, piece)
            n = min(piece, end - start)
            if n <= 0:
                continue
            part = subarray(values, start, n)
            if not is_constant(part, n):
                # A piece need not begin where a row does, nor end there: residuals_of_block fits each part of a row by
                # itself.
                column = (start - sample.origin) % max(len(template), 1)
                # With a base there is no template, and the column, 0 then, is not looked at.
                base_part = subarray_if_any(base, start, n)
                residuals_of_block(part, base_part, geometry.stream_len, template, column, sample.dtype_code, scratch)
                count_residual_symbols(scratch.symbols, n, geometry.stream_len, counts[b - begin])
