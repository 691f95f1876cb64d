"""Sums of ranks' values, in the order they are handed in, and their mean."""

from __future__ import annotations

import numpy as np
import torch

from ...dtypes import DTYPES, DType

_NARROW = {t.name: getattr(torch, t.name) for t in DTYPES if t.sums_in_float32}
_CHUNK = 1 << 15  #: values that stay in a core's caches from the sum to the division


class RankSum:
    """Sums terms of one type in the order in which they are added.

    float32 and float64 are added in their own precision, bfloat16 and float16 in float32: a term is never rounded, the
    sum once, at the end. A mean is the sum divided by the number of ranks, before it is rounded.

    ``compressors.contract.sum_by_rank`` makes the same sums of tensors that are all there. The two stay apart, for
    speed: here terms come one by one, as they are decoded, the first one is never copied, and the last one is added,
    divided, rounded and written chunk by chunk, in one pass through memory where that takes three.

    Args:
        dtype: Type of the terms, each given as bits, uintW[n].
        max_values: Values of the longest term.
    """

    def __init__(self, dtype: DType, max_values: int) -> None:
        self.dtype = dtype
        self._memory = np.empty(max_values, "float32" if dtype.name in _NARROW else dtype.name)
        self._total: np.ndarray | None = None

    def add(self, bits: np.ndarray) -> None:
        """Add the next term, but not the last one. The first must stay as it is until the next call is over.

        Args:
            bits: The term, uintW[n].
        """
        term = self._floats(bits)
        if self._total is None:
            self._total = term
            return
        with np.errstate(all="ignore"):
            self._total = np.add(self._total, term, out=self._memory[: len(term)])

    def finish(self, bits: np.ndarray, divisor: int, out: np.ndarray) -> None:
        """Add the last term, and write the sum divided by ``divisor`` to ``out``. Another sum may follow.

        Args:
            bits: The last term, uintW[n].
            divisor: 1 for a sum, the number of ranks for a mean.
            out: uintW[n]; may be the memory of the first term or of the last.
        """
        term, narrow = self._floats(bits), _NARROW.get(self.dtype.name)
        result = out.view(self.dtype.name) if narrow is None else self._memory[: len(term)]
        with np.errstate(all="ignore"):
            for begin in range(0, len(term), _CHUNK):
                chunk = slice(begin, begin + _CHUNK)
                self._finish(None if self._total is None else self._total[chunk], term[chunk], divisor, result[chunk])
        self._total = None
        if narrow is not None:
            torch.from_numpy(out.view(np.int16)).view(narrow).copy_(torch.from_numpy(result))

    @staticmethod
    def _finish(total: np.ndarray | None, term: np.ndarray, divisor: int, result: np.ndarray) -> None:
        if total is None:  # not added to zero, which would lose the sign of -0
            result[:] = term
        else:
            np.add(total, term, out=result)
        if divisor & divisor - 1:
            np.divide(result, result.dtype.type(divisor), out=result)
        elif divisor != 1:  # by a power of two: the product has the same bits, and is faster
            np.multiply(result, result.dtype.type(1 / divisor), out=result)

    def _floats(self, bits: np.ndarray) -> np.ndarray:
        narrow = _NARROW.get(self.dtype.name)
        if narrow is None:
            return bits.view(self.dtype.name)
        wide: np.ndarray = torch.from_numpy(bits.view(np.int16)).view(narrow).float().numpy()
        return wide
