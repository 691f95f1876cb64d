"""Masks of 64 bytes are those of a comparison of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from gcodec.kernels.core import masks

reaching: Any = masks.reaching  # numba gives it another first argument


@njit
def _reaching(numbers, start, least):
    return reaching(numbers, start, least)


@pytest.mark.parametrize("least", [0, 1, 127, 128, 200, 255])
def test_a_mask_marks_what_reaches_a_number(least):
    numbers = np.random.default_rng(least).integers(0, 256, 131).astype(np.uint8)
    numbers[5:9] = 0, 255, least, max(least - 1, 0)
    for start in (0, 3, len(numbers) - 64):
        wanted = sum(1 << k for k in range(64) if numbers[start + k] >= least)
        assert int(_reaching(numbers, start, least)) & (1 << 64) - 1 == wanted
