"""Sums of ranks' values, in the order they are handed in, and their mean."""

from __future__ import annotations

import numpy as np
import torch

from ..valuetypes import ValueType

_NARROW = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Sum:
    """Sums of at most ``most`` values of one type, each term given as bits, uintW[n].

    float32 and float64 are added in their own precision, bfloat16 and float16 in float32: a term is never rounded, the
    sum once, at the end. A mean is the sum divided by the number of ranks, before it is rounded.
    """

    def __init__(self, dtype: ValueType, most: int) -> None:
        self.dtype = dtype
        self._memory = np.empty(most, "float32" if dtype.name in _NARROW else dtype.name)
        self._total, self._terms = self._memory, 0

    def begin(self, n_values: int) -> None:
        """Another sum, of at most ``most`` values."""
        self._total, self._terms = self._memory[:n_values], 0

    def add(self, bits: np.ndarray) -> None:
        """The next term."""
        term = self._floats(bits)
        with np.errstate(all="ignore"):
            if self._terms:
                np.add(self._total, term, out=self._total)
            else:  # not added to zero, which would lose the sign of -0
                self._total[:] = term
        self._terms += 1

    def finish(self, divisor: int, out: np.ndarray) -> None:
        """The sum divided by ``divisor``, as bits, into ``out``."""
        narrow = _NARROW.get(self.dtype.name)
        mean = out.view(self.dtype.name) if narrow is None else self._total
        if divisor != 1:
            with np.errstate(all="ignore"):
                np.divide(self._total, self._total.dtype.type(divisor), out=mean)
        elif narrow is None:
            out[:] = self._total.view(out.dtype)
        if narrow is not None:
            torch.from_numpy(out.view(np.int16)).view(narrow).copy_(torch.from_numpy(self._total))

    def _floats(self, bits: np.ndarray) -> np.ndarray:
        narrow = _NARROW.get(self.dtype.name)
        if narrow is None:
            return bits.view(self.dtype.name)
        wide: np.ndarray = torch.from_numpy(bits.view(np.int16)).view(narrow).float().numpy()
        return wide
