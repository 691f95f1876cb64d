"""The law of the search for repetitions: it counts what its definition counts, wherever the words begin."""

from __future__ import annotations

import numpy as np
import pytest

from gcodec.kernels.sample.repeated_words import MAX_PICKED, share_repeated

RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal(40_000).astype(np.float32)


def defined_share(data: np.ndarray, step: int) -> float:
    """Return the share by its definition: pairs picked by their hash, in runs of 64, that have been picked before."""
    limit = min((1 << 42) // max(data.size // step, 1), (1 << 32) - 1)
    picked: list[int] = []
    for phase in range(0, 4, step):
        words = np.frombuffer(data[phase : phase + (data.size - phase) // 4 * 4].tobytes(), np.uint32).astype(np.uint64)
        first, following = words[: (len(words) - 1) // 64 * 64], words[1 : (len(words) - 1) // 64 * 64 + 1]
        hashes = (first * np.uint64(0x9E3779B1) + following * np.uint64(0x243F6A89)) % np.uint64(1 << 32)
        pairs = first << np.uint64(32) | following
        picked += pairs[(hashes < limit) & (pairs != 0)].tolist()
    picked = picked[:MAX_PICKED]
    return (len(picked) - len(set(picked))) / max(len(picked), 1)


@pytest.mark.parametrize("step", [1, 2, 4])
@pytest.mark.parametrize(
    "values",
    [
        WEIGHTS,
        np.concatenate([WEIGHTS, WEIGHTS[:7777]]),
        np.tile(WEIGHTS[:64], 100),
        np.zeros(5000, np.float32),
        np.ones(5000, np.float32),
        WEIGHTS * (RNG.random(40_000) < 0.05),
        WEIGHTS.astype(np.float16),
        *(WEIGHTS[:n] for n in (0, 1, 2, 63, 64, 65, 66, 129)),
    ],
    ids=lambda values: f"{values.dtype} {values.size}",
)
def test_the_share_is_that_of_its_definition_at_any_address(values, step):
    data = values.view(np.uint8)
    for offset in range(4):
        moved = np.empty(data.size + 4, np.uint8)[offset : offset + data.size]
        moved[:] = data
        assert share_repeated(moved, step) == defined_share(data, step)
