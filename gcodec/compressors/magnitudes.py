"""Magnitudes of a tensor, for searches for a threshold.

Large float32 tensors on the CPU are read once, for a histogram that answers nearly everything; others whenever there
is a question.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..kernels.core.jit import kernel
from .selection import count_above, magnitude_bits, magnitudes_of, threshold_bits

_SHIFT = 15  #: sizes of a bin agree in exponent and 8 mantissa bits
_BINS = 1 << 31 - _SHIFT
_LARGE = 1 << 18  #: values from which a histogram is worth its bins


class Magnitudes:
    """Magnitudes of a flat tensor that is not empty, counted whenever there is a question.

    Attributes:
        mean: Their mean.
        most: Their max, infinity where there is NaN.
    """

    def __init__(self, flat: torch.Tensor) -> None:
        self.flat = flat
        self.mean, self.most = self._mean_and_most()

    def _mean_and_most(self) -> tuple[float, float]:
        sizes = magnitudes_of(self.flat)
        return float(sizes.mean()), float(sizes.max())

    def reached(self, threshold: float, k: int) -> bool:
        """Tell whether k values or more are of magnitude ``threshold``, which is not negative, or more."""
        return count_above(self.flat, threshold) >= k

    def most_above(self, threshold: float) -> int:
        """A number that no more values than this reach it; 0: not known without counting."""
        return 0


class BinnedMagnitudes(Magnitudes):
    """With a histogram. Values are counted only where a question is decided within a bin."""

    def __init__(self, flat: torch.Tensor, bits: np.ndarray) -> None:
        self._bits = bits
        super().__init__(flat)

    def _mean_and_most(self) -> tuple[float, float]:
        counts, sums = np.zeros(_BINS, np.int64), np.zeros(4)
        most = _histogram(self._bits, self._bits.view(np.float32), counts, sums)
        self._above = np.append(counts[::-1].cumsum()[::-1], 0)  # by bin: values in it or in a greater one
        most = float(np.uint32(most).view(np.float32))
        return float(sums.sum() / len(self._bits)), most if most < np.inf else np.inf

    def reached(self, threshold: float, k: int) -> bool:
        at = int(threshold_bits(threshold)) >> _SHIFT
        if self._above[at + 1] >= k or self._above[at] < k:
            return bool(self._above[at] >= k)
        return super().reached(threshold, k)

    def most_above(self, threshold: float) -> int:
        return int(self._above[int(threshold_bits(threshold)) >> _SHIFT])


def magnitudes_in(flat: torch.Tensor) -> Magnitudes:
    """The sizes of a flat tensor that is not empty."""
    bits = magnitude_bits(flat) if flat.numel() >= _LARGE else None
    return Magnitudes(flat) if bits is None else BinnedMagnitudes(flat, bits)


@kernel
def _histogram(bits: Any, values: Any, counts: Any, sums: Any) -> Any:
    """Counts by bin, sums of sizes that add up to that of all, and the greatest size's bits. Four values at a time, for
    an addition takes as long as four of them."""
    most, n = np.uint32(0), len(bits)
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
        most = max(most, size)
    sums[0], sums[1], sums[2], sums[3] = a, b, c, d
    return most
