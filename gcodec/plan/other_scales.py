"""Other scales of quantized weights, that do as well as those which were found, but have fewer different factors."""

from __future__ import annotations

import numpy as np

_CHUNK = 1 << 16  #: values that are looked at together, while they are in the cache
_MIN_SCALE, _SCALES_END = 2.0**-125, 2.0**127  #: far enough from what processors may take for zero, and from infinity
_MAX_POWER = 6  #: of two: factors are larger by so much than those which are tried for the largest value of a segment


def signs_of_largest(values: np.ndarray, segment: int) -> np.ndarray:
    """Return the sign bit for each segment whose largest magnitude is that of a positive value, and 0 for others:
    uintW[n_segments], given values that are a multiple of a short segment."""
    signs, sign_bit = np.empty(len(values) // segment, values.dtype), values.dtype.type(1 << values.itemsize * 8 - 1)
    at_once = _CHUNK // segment
    for first in range(0, len(signs), at_once):
        of_part = signs[first : first + at_once]
        part = values[first * segment : (first + len(of_part)) * segment].reshape(-1, segment)
        columns = np.ascontiguousarray(part.T)  # the first values of all segments, the second ones, ...
        largest = columns.max(0)  # that of the negative values, if there are any
        positive = columns.view(f"i{values.itemsize}").max(0)
        of_part[:] = (positive >= (largest & ~sign_bit).view(positive.dtype)) * sign_bit
    return signs


def on_one_power(scales: np.ndarray) -> np.ndarray:
    """Return scales times powers of two that bring them close to each other: uint32[n_segments], as they are given.

    Factors that are significands make up for the powers, if those are not too large.
    """
    floats = scales.view(np.float32).astype(np.float64)
    is_known = floats > 0
    if not is_known.any():
        return scales
    logs = np.log2(floats, where=is_known, out=np.zeros(len(floats)))
    away = np.clip(np.round(logs - np.median(logs[is_known])), -_MAX_POWER, _MAX_POWER)
    moved = np.ldexp(floats, -away.astype(np.int64))
    usable = is_known & (moved >= _MIN_SCALE) & (moved < _SCALES_END)
    result: np.ndarray = np.where(usable, moved, floats).astype(np.float32).view(np.uint32)
    return result
