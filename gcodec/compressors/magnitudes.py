"""The magnitudes of a tensor, for searches for a threshold.

A large float32 tensor on the CPU is read once, into a histogram that answers nearly every question; others are read
again for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..kernels.core.jit import kernel
from .selection import count_above, magnitude_bits, magnitudes_of, threshold_bits

_SHIFT = 15  #: magnitudes of a bin agree in exponent and 8 mantissa bits
_BINS = 1 << 31 - _SHIFT
_LARGE = 1 << 18  #: values from which a histogram is worth its bins


class Magnitudes:
    """Magnitudes of a flat tensor that is not empty; each question reads the tensor.

    Attributes:
        mean: Their mean, at most ``max``.
        max: Their max, infinity where there is NaN.
    """

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        mean, self.max = self._mean_and_max()
        self.mean = min(mean, self.max)  # rounding may take the mean of equal values above them

    def _mean_and_max(self) -> tuple[float, float]:
        magnitudes = magnitudes_of(self.flat)
        return float(magnitudes.mean(dtype=torch.float64)), float(magnitudes.max())

    def reached(self, threshold: float, k: int) -> bool:
        """Tell whether k values or more are of magnitude ``threshold``, which is not negative, or more."""
        return count_above(self.flat, threshold) >= k

    def max_above(self, threshold: float) -> int:
        """Return an upper bound of the number of values that reach the threshold; 0 if none is known."""
        return 0


class BinnedMagnitudes(Magnitudes):
    """Magnitudes with a histogram; the tensor is read again only where a question is decided within a bin."""

    def __init__(self, flat: torch.Tensor, bits: np.ndarray) -> None:
        self._bits = bits
        super().__init__(flat)

    def _mean_and_max(self) -> tuple[float, float]:
        counts, sums = np.zeros(_BINS, np.int64), np.zeros(4)
        max_bits = _histogram(self._bits, self._bits.view(np.float32), counts, sums)
        self._above = np.append(counts[::-1].cumsum()[::-1], 0)  # by bin: values in it or in a greater one
        maximum = float(np.uint32(max_bits).view(np.float32))
        return float(sums.sum() / len(self._bits)), maximum if maximum < np.inf else np.inf

    def reached(self, threshold: float, k: int) -> bool:
        at = int(threshold_bits(threshold)) >> _SHIFT
        if self._above[at + 1] >= k or self._above[at] < k:
            return bool(self._above[at] >= k)
        return super().reached(threshold, k)

    def max_above(self, threshold: float) -> int:
        return int(self._above[int(threshold_bits(threshold)) >> _SHIFT])


def magnitudes_in(flat: torch.Tensor) -> Magnitudes:
    """Return the magnitudes of a flat tensor that is not empty."""
    bits = magnitude_bits(flat) if flat.numel() >= _LARGE else None
    return Magnitudes(flat) if bits is None else BinnedMagnitudes(flat, bits)


@kernel
def _histogram(bits: Any, values: Any, counts: Any, sums: Any) -> Any:
    """Count magnitudes by bin, add them up in four sums, and return the bits of their max.

    Four values are added at a time, for the latency of one addition is that of four.
    """
    max_bits, n = np.uint32(0), len(bits)
    whole = n - n % 4
    a = b = c = d = np.float64(0)
    for i in range(0, whole, 4):
        a += abs(np.float64(values[i]))
        b += abs(np.float64(values[i + 1]))
        c += abs(np.float64(values[i + 2]))
        d += abs(np.float64(values[i + 3]))
    for i in range(whole, n):
        a += abs(np.float64(values[i]))
    for value in bits:
        size = np.uint32(value & np.uint32(0x7FFFFFFF))
        counts[size >> np.uint32(_SHIFT)] += 1
        max_bits = max(max_bits, size)
    sums[0], sums[1], sums[2], sums[3] = a, b, c, d
    return max_bits
