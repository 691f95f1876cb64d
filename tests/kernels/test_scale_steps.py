"""Vector steps of predicted rows follow the scalar laws: products, scales, and the planes of residuals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from gcodec.dtypes import BY_NAME
from gcodec.format.tables import digit_tables
from gcodec.kernels.block import predicted
from gcodec.kernels.entropy.encode_streams import STREAM_PAD
from gcodec.kernels.planes.layouts import count_items
from gcodec.kernels.predict import residuals, scales
from gcodec.kernels.predict.scale_steps import N_SUMS
from gcodec.memory import residual_scratch_for
from tests.support.bit_patterns import KINDS, gaussian, specials

PREDICTABLE = [kind for kind in BY_NAME.values() if kind.predictable]


def row_of(kind, rng, n):
    """Return values of very different sizes, zeros, infinities, NaNs and denormals among them."""
    values = gaussian(KINDS[kind.name], rng, n, zeros=0.1, scale=float(rng.choice([1e-30, 1e-3, 1e3])))
    odd = rng.random(n) < 0.05
    values[odd] = rng.choice(specials(KINDS[kind.name]), odd.sum())
    return values


@njit
def product_by_law(values, template, n, dtype_code, sums):
    """Sum products one by one, a lane after the other; those behind whole groups go to the last lanes."""
    sums[:] = np.float32(0)
    for i in range(n):
        k = i % N_SUMS if i < n - n % N_SUMS else N_SUMS - n + i
        product = residuals.flushed_product(residuals.as_float(values[i], dtype_code), template[i])
        sums[k] = residuals.flush_denormal(np.float32(sums[k] + product))
    half = N_SUMS // 2
    while half:
        for k in range(half):
            sums[k] = residuals.flush_denormal(np.float32(sums[k] + sums[k + half]))
        half //= 2
    return sums[0]


@pytest.mark.parametrize("kind", PREDICTABLE, ids=lambda kind: kind.name)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_scalar_products_follow_the_scalar_law(kind, n, seed):
    rng, sums = np.random.default_rng(seed), np.empty(N_SUMS, np.float32)
    values, template = row_of(kind, rng, n), row_of(BY_NAME["float32"], rng, n).view(np.float32)
    expected = np.float32(product_by_law(values, template, n, kind.code, sums))
    found = np.float32(scales.sum_products(values, template, n, kind.code, sums))
    np.testing.assert_array_equal(found, expected)
    if kind.name == "float32":
        np.testing.assert_array_equal(np.float32(scales.dot(values.view(np.float32), template, n, sums)), expected)


def n_exact(values, template, scale):
    """Return how many bfloat16 a scale predicts exactly, of those that count."""
    predictions = np.empty(len(values), np.uint32)
    residuals.predict(np.uint32(scale).view(np.float32), template, 0, len(values), residuals.BFLOAT16, predictions)
    return int(((predictions == values) & (values & 0x7FFF >= 0x0100)).sum())


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_a_nearby_scale_predicts_most_values(n, seed):
    rng, scratch = np.random.default_rng(seed), np.empty(N_SUMS, np.float32)
    template = rng.standard_normal(n).astype(np.float32)
    products = template * np.float32(rng.uniform(-2, 2))
    values = (products.view(np.uint32) + np.uint32(0x8000) >> np.uint32(16)).astype(np.uint16)
    values[rng.random(n) < 0.1] += 1
    scale = scales.scale_of(
        scales.sum_products(values, template, n, residuals.BFLOAT16, scratch),
        scales.dot(template, template, n, scratch),
    )
    nearby = scales.nearby_scale(values, template, n, scale, scratch)
    tried = [
        int(scale),
        *(
            int(np.float32(scales._times(np.uint32(scale).view(np.float32), quarters)).view(np.uint32))
            for quarters in (-1, 1, -3, 3)
        ),
    ]
    assert all(item & 0xFF == 0 for item in tried)  # a frame holds 24 bits of a scale
    counts = [n_exact(values, template, item) for item in tried]
    assert int(nearby) == (tried[counts.index(max(counts))] if n >= 16 else tried[0])


@pytest.mark.parametrize("name", ["bfloat16", "float32"])
@given(st.integers(1, 2048), st.sampled_from([64, 256]), st.integers(0, 32), st.integers(0, 2**32 - 1))
def test_digits_of_residuals_are_parted_and_joined(name, n, stream_len, max_bits, seed):
    kind, rng = BY_NAME[name], np.random.default_rng(seed)
    width, n_planes = kind.bits, kind.itemsize
    found = rng.integers(0, 1 << min(max_bits, width), n, np.uint32)
    found[rng.random(n) < 0.5] &= 15
    tables, scratch, out = (
        digit_tables(width // 4),
        residual_scratch_for(kind, 2048, stream_len),
        np.empty(4 * 2048 + 256, np.uint8),
    )
    words = found.copy()
    symbols = scratch.symbols
    symbols[:] = 0
    for s in range(0, n, stream_len):
        part = words[s : s + stream_len]
        residuals.digits(part, len(part), symbols, s // stream_len * (stream_len + STREAM_PAD))
    scratch.words[:n] = words
    places = np.arange(n) // stream_len * (stream_len + STREAM_PAD) + np.arange(n) % stream_len
    end = predicted.split_digits(n, stream_len, n_planes, tables[0], scratch, out, 0)
    sizes = []
    for p in range(n_planes):  # plane p has a byte of each value whose mark says so, the last plane half a one
        is_last = p == n_planes - 1
        owned = tables[0][symbols[places]] >> p & 1 == 1
        items = words[owned] >> np.uint32(28 if is_last else 8 * p) & np.uint32(15 if is_last else 255)
        assert (scratch.items[p, : len(items)] & (15 if is_last else 255) == items).all()
        assert scratch.n_items[p] == len(items)
        sizes.append((len(items) * (4 if is_last else 8) + 7) // 8)
    assert end == sum(sizes)
    scratch.words[:] = 0xFFFFFFFF
    count_items(symbols, n, stream_len, n_planes, tables[0], scratch.marks, scratch.n_items, 2 * n_planes)
    predicted.merge_digits(out, 0, n, stream_len, n_planes, tables, scratch)
    assert (scratch.words[:n] == found).all()
