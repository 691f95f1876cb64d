"""The law of what a search for scales may cost: little where it finds little, and two looks at all values at most; and
of all that it does, so many steps for each value, over a grid of quantized weights."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.kernels.index.segment_scales import ScaleSearch
from gcodec.plan import indexing
from tests.support.bit_patterns import KINDS, from_floats, typed

N = 1 << 16
WITHOUT = gcodec.EncoderOptions(indexed=False)


def numbers_of(kind: str, group: int, rng: np.random.Generator) -> np.ndarray:
    """Return the integers of quantized weights: float64[N].

    Args:
        kind: ``"int8"`` and ``"int4"`` of normal weights by the largest of a group, ``"uint8"`` of a group's least and
            largest, or ``"upper"``, which are nearly all positive.
        group: Weights that share a scale.
        rng: Draws them.
    """
    weights = rng.standard_normal((N // group, group))
    largest = np.abs(weights).max(1, keepdims=True)
    if kind == "int8":
        return np.rint(weights / largest * 127)
    if kind == "int4":
        return np.clip(np.rint(weights / largest * 7.5), -8, 7)
    if kind == "upper":
        return rng.integers(-3, 128, weights.shape).astype(np.float64)
    least, step = weights.min(1, keepdims=True), np.ptp(weights, axis=1, keepdims=True) / 255
    zero = np.rint(-least / step)
    return np.clip(np.rint(weights / step) + zero, 0, 255) - zero


def dequantized(kind: str, group: int, share: float) -> np.ndarray:
    """Return weights that are integers times the scale of their group, some of them replaced by others: float32[N]."""
    rng = np.random.default_rng(0)
    scales = 0.02 / 127 * np.exp(rng.standard_normal((N // group, 1)) / 2) * (16 if kind == "int4" else 1)
    values = (numbers_of(kind, group, rng) * scales.astype(np.float32)).reshape(-1)
    return np.where(rng.random(N) < share, 0.05 * rng.standard_normal(N), values).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256, 1024])
def test_a_search_that_finds_little_has_looked_at_little(dtype, group, monkeypatch):
    looked_at = Counter[str]()
    products, tried = indexing._products, indexing._tried

    def count_pass(*args: Any) -> Any:
        looked_at["passes"] += 1
        return products(*args)

    def count_sample(values: Any, segment: Any, factors: Any, starts: Any, places: Any, *args: Any) -> Any:
        looked_at["sampled"] += len(starts) * len(places)
        return tried(values, segment, factors, starts, places, *args)

    monkeypatch.setattr(indexing, "_products", count_pass)
    monkeypatch.setattr(indexing, "_tried", count_sample)
    for share, kind in product((0, 0.003, 0.01, 0.03), ("int8", "uint8", "upper", "int4")):
        values = typed(dtype, from_floats(KINDS[dtype], dequantized(kind, group, share))).reshape(-1, 1024)
        looked_at.clear()
        found = len(gcodec.encode(values, dtype=dtype, threads=1))
        n_passes, n_sampled = looked_at["passes"], looked_at["sampled"]
        usual = len(gcodec.encode(values, dtype=dtype, threads=1, options=WITHOUT))
        assert n_passes <= 2 and n_sampled <= 2 * N, (share, kind)  # far fewer of a large array
        assert n_passes <= 1 or found < 0.99 * usual, (share, kind)
        assert found <= usual, (share, kind)


#: How many values are held against a scale or its bounds for each value of the array: of 16 segments at once, which
#: takes a third of the time or less; 32 of one segment at a time; and by guesses about the largest value, which take
#: several times as long.
MOST_STEPS = {"at once": 10, "small": 9, "largest": 1}
GRID = [*product((32, 64, 128, 256), (0, 0.003, 0.01, 0.03, 0.06, 0.1), ("int8", "uint8", "upper", "int4"))]


def steps_of(search: ScaleSearch) -> dict[str, np.int64]:
    """Return how many steps a search has taken."""
    return {"at once": search.small_work[1], "small": search.small_work[0], "largest": search.work[0]}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_search_takes_few_steps_for_each_value_on_288_inputs(dtype, monkeypatch):
    """Samples and all tries included, whether it finds scales or not."""
    steps = Counter[str]()

    def counted(kernel: Any) -> Any:
        def call(*args: Any) -> Any:
            search = next(argument for argument in args if isinstance(argument, ScaleSearch))
            before = {name: int(work) for name, work in steps_of(search).items()}
            result = kernel(*args)
            steps.update({name: int(work) - before[name] for name, work in steps_of(search).items()})
            return result

        return call

    for name in ("_find_scales", "_try_segments"):
        monkeypatch.setattr(indexing, name, counted(getattr(indexing, name)))
    for group, share, kind in GRID:
        values = typed(dtype, from_floats(KINDS[dtype], dequantized(kind, group, share))).reshape(-1, 1024)
        steps.clear()
        gcodec.encode(values, dtype=dtype, threads=1)
        assert all(steps[name] <= most * N for name, most in MOST_STEPS.items()), (group, share, kind, steps)
