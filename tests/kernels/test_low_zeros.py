"""The law of levels by zeros: each value is of the last level whose bits are zero and which is for its magnitude."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.levels.low_zeros import levels_by_zeros
from tests.support.bit_patterns import Bits

UNSIGNED = [np.uint16, np.uint32, np.uint64]


def expected(values: Bits, masks: Bits, ends: Bits) -> Bits:
    """Return the levels, found value by value."""
    magnitudes = values & values.dtype.type((1 << 8 * values.itemsize - 1) - 1)
    levels = np.zeros(len(values), np.uint8)
    for mask, end in zip(masks, ends, strict=True):
        levels += (values & mask == 0) & (magnitudes < end)
    return levels


@pytest.mark.parametrize("kind", UNSIGNED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 4096])
@pytest.mark.parametrize("n_masks", [1, 2, 5, 15])
@pytest.mark.parametrize("skipped", [0, 1])
def test_levels_are_those_of_a_plain_loop(kind, n, n_masks, skipped):
    bits, rng = 8 * np.dtype(kind).itemsize, np.random.default_rng(n)
    drops = np.sort(rng.choice(bits - 1, min(n_masks, bits - 1), replace=False)) + 1
    masks = np.array([(1 << int(drop)) - 1 for drop in drops], kind)
    ends = np.sort(rng.integers(0, 1 << bits - 1, len(masks), np.uint64).astype(kind))[::-1].copy()
    ends[0], ends[-1] = 1 << bits - 1, ends[-1] if n % 2 else 0
    words = rng.integers(0, 1 << 64, n + skipped, np.uint64, endpoint=False).astype(kind)
    words = words >> kind(1) << rng.integers(0, bits, len(words)).astype(kind)
    words[:: max(n // 7, 1)] = [0, 1 << bits - 1][n % 2]
    memory = np.zeros(len(words) * words.itemsize + 1, np.uint8)
    unaligned = memory[1:].view(kind)
    unaligned[:] = words
    for values in (words[skipped:], unaligned[skipped:]):
        levels = np.full(n + 1, 77, np.uint8)
        levels_by_zeros(values, masks, ends, levels[:n])
        assert levels[:n].tolist() == expected(values, masks, ends).tolist()
        assert levels[n] == 77
