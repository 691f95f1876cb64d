"""Distributions of values: their exponents, and the mantissa bits that they use."""

from __future__ import annotations

import numpy as np

from ..dtypes import BY_NAME, DType
from ..files.source import Bytes


class Distribution:
    """Counts over values of one type.

    Args:
        dtype: Name of the type.

    Attributes:
        dtype: The type.
        exponents: Values with each exponent field, int64[2**exponent_bits].
        used_bits: Values whose lowest mantissa bit that is set is the k-th from the top, int64[mantissa_bits + 1];
            those without any at 0.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype: DType = BY_NAME[dtype]
        self.exponents = np.zeros(1 << self.dtype.exponent_bits, np.int64)
        self.used_bits = np.zeros(self.dtype.mantissa_bits + 1, np.int64)

    def add(self, data: Bytes) -> np.ndarray:
        """Count the values in ``data``, a uint8 array; returns their exponent counts alone."""
        bits = data[: data.size - data.size % self.dtype.itemsize].view(self.dtype.uint)
        mantissas = self.dtype.mantissa_bits
        fields = (bits >> self.dtype.uint.type(mantissas)).astype(np.int64) & (self.exponents.size - 1)
        counts = np.bincount(fields, minlength=self.exponents.size)
        self.exponents += counts
        tails = bits.astype(np.int64) & ((1 << mantissas) - 1)
        lowest = tails & -tails  # a power of two, exact as float64
        places = np.frexp(lowest.astype(np.float64))[1]  # 0 for no bit, else 1 for the lowest
        used = np.where(places, mantissas + 1 - places, 0)
        self.used_bits += np.bincount(used, minlength=self.used_bits.size)
        return counts

    @property
    def n_values(self) -> int:
        """The number of values."""
        return int(self.exponents.sum())

    def exponent_shares(self) -> dict[int, float]:
        """Return the percentage of values at each power of two; without zeros, denormals, infinities and NaN."""
        bias = (1 << (self.dtype.exponent_bits - 1)) - 1
        normal = {
            int(e) - bias: 100 * int(self.exponents[e]) / max(self.n_values, 1)
            for e in np.flatnonzero(self.exponents)
            if e and not self._is_special(int(e))
        }
        return {e: normal.get(e, 0.0) for e in range(min(normal), max(normal) + 1)} if normal else {}

    def remark(self) -> str:
        """Return which values :meth:`exponent_shares` leaves out, and the entropy of all."""
        total = max(self.n_values, 1)
        zeros = f"{100 * int(self.exponents[0]) / total:.3g} % zeros and denormals"
        special = int(self.exponents[-1]) if self._is_special(self.exponents.size - 1) else 0
        others = f", {special} infinities and NaN" if special else ""
        return f"Entropy {entropy(self.exponents):.2f} bits per exponent; {zeros}{others} not drawn."

    def used_shares(self) -> dict[int, float]:
        """Return the percentage of values that use so many mantissa bits."""
        total = max(self.n_values, 1)
        return {k: 100 * int(count) / total for k, count in enumerate(self.used_bits)}

    def _is_special(self, field: int) -> bool:
        return field == self.exponents.size - 1 and self.dtype.name != "float8_e4m3fn"


def entropy(counts: np.ndarray) -> float:
    """Return the entropy of counts, in bits."""
    total = counts.sum()
    if not total:
        return 0.0
    shares = counts[counts > 0] / total
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def around_the_bulk(counts: np.ndarray, columns: int = 28) -> list[int]:
    """Return that many neighboring counts, with the median in the middle."""
    if not counts.any():
        return []
    middle = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
    first = max(0, min(middle - columns // 2, counts.size - columns))
    return [int(count) for count in counts[first : first + columns]]
