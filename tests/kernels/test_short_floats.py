"""The laws of floats of few bits: they come back as they were, take no more bits than they need, and are what the
second decoder reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from gcodec.kernels.block.short_floats import (
    HEADER,
    are_finite,
    bytes_of_items,
    has_legal_fields,
    load_short_float,
    pack_short_floats,
    read_short_floats,
    shorten_floats,
    write_short_floats,
)
from tests.support.reference import Reader, read_short_fields
from tests.support.reference import read_short_floats as read_by_the_page

MARGIN = 16


@njit
def _packed(bits, first, stop, out):
    floats = shorten_floats(bits, first, stop)
    write_short_floats(out, 0, floats)
    return floats, pack_short_floats(bits, first, stop, floats, out, HEADER)


@njit
def _loaded(data, n, result):
    floats = read_short_floats(data, 0)
    for i in range(n):
        result[i] = load_short_float(data, HEADER, i, floats)
    return has_legal_fields(floats) and are_finite(data, HEADER, n, floats), bytes_of_items(floats, n)


@given(
    st.integers(1, 70),
    st.sampled_from([0, 5, 13, 16, 23]),
    st.sampled_from([(0, 0x7F800000), (0x3C000000, 0x3F000000), (0x3F800000, 0x3F800001)]),
    st.sampled_from(["positive", "negative", "either"]),
    st.integers(0, 2**32 - 1),
)
def test_floats_come_back_and_the_second_decoder_reads_them(n, zeros, between, signs, seed):
    rng, before = np.random.default_rng(seed), 3
    low, high = between
    bits = (rng.integers(low, high, n + before + 2) >> zeros << zeros).astype(np.uint32)
    chances = {"positive": 0, "negative": 1, "either": 0.5}
    bits |= (rng.random(len(bits)) < chances[signs]).astype(np.uint32) << np.uint32(31)
    out = np.full(HEADER + 5 * len(bits) + MARGIN, 0xAA, np.uint8)
    floats, end = _packed(bits, before, before + n, out)
    some, found = bits[before : before + n], np.zeros(n, np.int64)
    is_legal, n_bytes = _loaded(out, n, found)
    assert is_legal
    assert end == HEADER + n_bytes
    assert found.tolist() == some.tolist()
    body = Reader(out[:end].tobytes())
    assert read_by_the_page(body, n, read_short_fields(body)).tolist() == some.tolist()
    magnitudes = some & np.uint32(0x7FFFFFFF)
    spread, is_mixed = int(magnitudes.max() - magnitudes.min()), len(set((some >> np.uint32(31)).tolist())) == 2
    assert floats.width <= max(spread.bit_length() - (zeros if spread else 0), 0) + is_mixed


@pytest.mark.parametrize("field", [(4, 24), (4, 255), (5, 33), (5, 255), (6, 3), (6, 255), (7, 1)])
def test_fields_beyond_what_is_legal_are_told(field):
    out, (at, number) = np.zeros(64, np.uint8), field
    _packed(np.array([0x3F800000, 0x3FC00000], np.uint32), 0, 2, out)
    assert _loaded(out, 2, np.zeros(2, np.int64))[0]
    out[at] = number
    assert not _loaded(out, 2, np.zeros(2, np.int64))[0]


@pytest.mark.parametrize("least", [0x7F400000, 0x7F800000, 0x7FC00000, 0x80000000, 0xFFFFFFFF])
def test_floats_that_are_not_finite_are_told(least):
    """The items are 0 and 1, of 2**22: of the first number, the second float is infinite."""
    out = np.zeros(64, np.uint8)
    _packed(np.array([0x3F800000, 0x3FC00000], np.uint32), 0, 2, out)
    out[:4] = np.frombuffer(least.to_bytes(4, "little"), np.uint8)
    assert not _loaded(out, 2, np.zeros(2, np.int64))[0]
