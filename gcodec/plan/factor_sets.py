"""The sets of factors that quantized weights are multiples of their scales by."""

from __future__ import annotations

from functools import cache

import numpy as np

from ..dtypes import DType
from ..kernels.index.guesses import N_FACTORS
from ..kernels.index.segment_scales import INTEGERS, SEARCHED, SIGNIFICANDS, Factors

#: Magnitudes of the levels of NormalFloat4, negative and positive ones, which differ.
_NORMAL_FLOAT4 = (
    0.07958029955625534, 0.09105003625154495, 0.16093020141124725, 0.18477343022823334, 0.24611230194568634,
    0.28444138169288635, 0.33791524171829224, 0.39491748809814453, 0.44070982933044434, 0.5250730514526367,
    0.5626170039176941, 0.6961928009986877, 0.7229568362236023, 1.0,
)  # fmt: skip


@cache
def factor_sets(dtype: DType) -> tuple[Factors, ...]:
    """Return the sets of factors that values of a type may have, each with either sign.

    They are integers up to 255, or up to 128 where the type has too few bits to tell larger ones apart; significands
    of 4 bits times powers of two, as fp8 has; and the levels of NormalFloat4 (Dettmers et al. 2023, QLoRA, appendix E).
    """
    significands = np.ldexp(np.tile(np.arange(8.0, 16.0), 30), np.repeat(np.arange(-23, 7), 8))
    integers = np.arange(1.0, 256.0 if dtype.mantissa_bits > 7 else 129.0)
    normal = np.array(_NORMAL_FLOAT4, np.float32).astype(np.float64)
    return (
        _factors(integers, integers, INTEGERS, dtype),
        _factors(significands, np.arange(8.0, 16.0), SIGNIFICANDS, dtype),
        _factors(normal, normal[-1:], SEARCHED, dtype),
    )


def _factors(values: np.ndarray, largest: np.ndarray, form: int, dtype: DType) -> Factors:
    """Return factors above 0, which rise, as kernels take them: with 0 before them and infinity behind them."""
    padded = np.full(N_FACTORS + 1, np.inf)
    padded[: len(values) + 1] = 0.0, *values
    middles = np.full(N_FACTORS, np.inf)
    middles[: len(values)] = (padded[: len(values)] + padded[1 : len(values) + 1]) / 2
    return Factors(padded[:-1], middles, largest, len(values), form, dtype.code)
