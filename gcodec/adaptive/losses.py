"""Compute what settings lose of a tensor, as squared L2 norms, and find settings by their compression factor."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..compressors import QSGD, Compressor, Dense, Frames
from ..compressors.contract import Memory, wide
from ..errors import InvalidArgument
from ..kernels.core.jit import kernel
from ..tensors import kernel_view

_SLACK = 1 + 1e-9
_SHIFT = 15  #: magnitudes of a bin of the histogram agree in exponent and 8 mantissa bits: to 0.4 %
_BINS = 1 << 31 - _SHIFT
#: Value of the mantissa's last bit by exponent field; the last one, of infinity and NaN, is NaN.
_ULPS = np.append(2.0 ** (np.maximum(np.arange(255), 1) - 150.0), np.nan)


def square(tensor: torch.Tensor) -> float:
    """Return the squared L2 norm, added up in float64; infinity where it is beyond that type's range."""
    norm = float(torch.linalg.vector_norm(tensor, dtype=torch.float64))
    return norm * norm  # a power would raise OverflowError


def loss(setting: Compressor, tensor: torch.Tensor, memory: Memory | None = None) -> float:
    """Return the squared L2 norm of what a setting loses of a tensor on a single rank.

    Args:
        memory: What its factors start from; it is not changed.
    """
    if isinstance(setting, Frames) and setting.optimizer is None:
        if setting.bits is None:
            return 0.0
        if tensor.dtype == torch.float32:
            return float(cut(flat_values(tensor), [setting.bits])[0])
        return square(tensor - rounded_to_bits(tensor, setting.bits))
    outcome = setting.decompressed(tensor, memory=copy.copy(memory))
    return square(tensor - outcome.contribution)


def rounded_to_bits(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """Round the values of a tensor to ``bits`` mantissa bits, to nearest, ties to even.

    That is what :class:`Frames` sends, but for denormals and a second rounding of the average.
    """
    mantissa, exponent = torch.frexp(tensor.to(wide(tensor.dtype)))
    unit = 2.0 ** (bits + 1)  # frexp's mantissa is in [0.5, 1): the leading bit is one of these
    return torch.ldexp(torch.round(mantissa * unit) / unit, exponent).to(tensor.dtype)


def at_factor(
    compressor: Compressor, factor: float, shape: Sequence[int], dense: Compressor | None = None
) -> Compressor:
    """Return the setting of a compressor that sends 1 / ``factor`` of a tensor's floats.

    A density is exactly that; a whole-numbered knob gets its greatest value that sends no more, or its lowest one.

    Args:
        compressor: A compressor with a knob.
        factor: The compression factor.
        dense: Setting for a factor of 1 or less; None for :class:`Dense`.

    Raises:
        InvalidArgument: The compressor has no knob.
    """
    if factor <= 1:
        return Dense() if dense is None else dense
    if compressor.knob == "density":
        return compressor.at(1 / factor)
    limit, best = math.prod(shape) / factor * _SLACK, None
    for value in whole_values(compressor, shape):
        setting = compressor.at(value)
        if best is None or setting.floats(shape) <= limit:
            best = setting
        else:
            break
    if best is None:
        raise InvalidArgument(f"{compressor!r} has no setting for a tensor of shape {tuple(shape)}, at any factor")
    return best


def whole_values(compressor: Compressor, shape: Sequence[int], low: int = 1, high: int = 64) -> list[int]:
    """Return the values that a whole-numbered knob can have, from ``low`` to ``high`` (a rank: to the matrix's own)."""
    if compressor.knob == "rank":
        rows = shape[0] if shape else 1
        high = max(min(rows, math.prod(shape[1:])), 1)
    values = []
    for value in range(max(low, 1), high + 1):
        try:
            compressor.at(value)
        except InvalidArgument:
            continue
        values.append(value)
    return values


# Errors of many settings of one family, from a single pass over a tensor; float32 on the CPU.


def flat_values(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's values as the kernels take them, float32[n]."""
    return kernel_view(tensor.detach().cpu().float().contiguous().reshape(-1).numpy())


def left_out(values: np.ndarray, kept: Sequence[int]) -> np.ndarray:
    """Return the sum of squares of all but the k values of max magnitude, for each k.

    Values of the bin in which a k ends count as equal, so the sum may be too great, by 0.8 % of that bin's share.

    Args:
        values: float32[n].
        kept: The numbers k.

    Returns:
        float64[len(kept)]; NaN where a value is not finite.
    """
    counts, squares = np.zeros(_BINS, np.int64), np.zeros(_BINS)
    _histogram(values.view(np.uint32), values, counts, squares)
    if not np.isfinite(squares).all():
        return np.full(len(kept), np.nan)
    counts_below, squares_below = (np.concatenate([[0], bins.cumsum()]) for bins in (counts, squares))
    n_left_out = len(values) - np.asarray(kept)
    at = np.minimum(np.searchsorted(counts_below, n_left_out, side="right") - 1, _BINS - 1)
    mean = squares[at] / np.maximum(counts[at], 1)
    sums: np.ndarray = squares_below[at] + (n_left_out - counts_below[at]) * mean
    return sums


def quantized(values: np.ndarray, settings: Sequence[QSGD]) -> np.ndarray:
    """Return the expected errors of settings that differ in bits only, float64[n_settings]; NaN where a value is not
    finite."""
    if not np.isfinite(values).all():
        return np.full(len(settings), np.nan)
    errors, first = np.zeros(len(settings)), settings[0]
    levels = np.array([setting.levels for setting in settings], np.float64)
    _quantize(values, np.int64(first.bucket), first.norm == "max", first.stochastic, levels, errors)
    return errors


def cut(values: np.ndarray, bits: Sequence[int]) -> np.ndarray:
    """Return the error of rounding to each number of mantissa bits, float64[len(bits)]."""
    drops = np.array([23 - min(n_bits, 23) for n_bits in bits], np.uint32)
    errors = np.zeros(len(drops))
    _round(values.view(np.uint32), _ULPS, drops, errors)
    return errors


@kernel
def _histogram(bits: Any, values: Any, counts: Any, squares: Any) -> None:
    for i in range(len(bits)):
        at = (bits[i] & np.uint32(0x7FFFFFFF)) >> np.uint32(_SHIFT)
        counts[at] += 1
        squares[at] += np.float64(values[i]) * np.float64(values[i])


@kernel
def _quantize(values: Any, bucket: Any, by_max: Any, stochastic: Any, levels: Any, errors: Any) -> None:
    """Add up the expected squared errors of QSGD, for each number of levels.

    A value between two levels, a share f of the distance above the lower one, loses f (1 - f) of the squared distance
    in expectation; rounded to the nearest level, min(f, 1 - f)^2 of it.
    """
    n = len(values)
    for begin in range(0, n, bucket):
        end = min(begin + bucket, n)
        norm = np.float64(0)
        for i in range(begin, end):
            size = abs(np.float64(values[i]))
            norm = max(norm, size) if by_max else norm + size * size
        norm = norm if by_max else np.sqrt(norm)
        if norm == 0:
            continue
        for j in range(len(levels)):
            scale, total = levels[j] / norm, np.float64(0)
            for i in range(begin, end):
                place = abs(np.float64(values[i])) * scale
                share = place - np.floor(place)
                rest = 1 - share
                total += share * rest if stochastic else min(share, rest) * min(share, rest)
            errors[j] += total / (scale * scale)


@kernel
def _round(bits: Any, ulps: Any, drops: Any, errors: Any) -> None:
    """Add up the squared errors of rounding, for each number of dropped bits, in runs that stay in cache.

    A mantissa whose dropped bits are r is r or 2**drop - r units from the next multiples, of which the nearer counts.
    """
    n = len(bits)
    for begin in range(0, n, 1024):
        end = min(begin + 1024, n)
        for j in range(len(drops)):
            unit, total = np.uint32(np.uint32(1) << drops[j]), np.float64(0)
            for i in range(begin, end):
                rest = np.uint32(bits[i] & np.uint32(unit - np.uint32(1)))
                ulp = ulps[(bits[i] >> np.uint32(23)) & np.uint32(0xFF)]
                lost = np.float64(min(rest, np.uint32(unit - rest))) * ulp
                total += lost * lost
            errors[j] += total
