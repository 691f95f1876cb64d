"""The second decoder of indexed blocks with offsets (docs/format.md section 10), on frames made by hand and by the
builder."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from tests.format.test_reference_indexed import TWO_CODES, as_bits, block, extension, float32, frame
from tests.format.test_reference_sparse import little
from tests.support.frame_builder import Built, Draft, Entries, Indexed, build_frame
from tests.support.frame_builder.indexed import added
from tests.support.reference import DTYPES, decode, sums

WITH_FACTORS = [code for code, kind in DTYPES.items() if kind.predicted]


@pytest.mark.parametrize("dtype", WITH_FACTORS)
def test_offsets_are_added_to_products(dtype: int) -> None:
    """The block is the one of the figure in section 10, with n_entries = 8, segment = 3 and skipped = 1."""
    kind = DTYPES[dtype]
    record = bytes([4, 3, 8, 0]) + TWO_CODES + float32(-3.0, 0, 0, 5.5, 0, 0, 0, 0.75)
    inner = block(1, 0, 5, bytes([3, 0, 7, 255, 3]))
    # Scales of 0.5 and 1.5: items 0 and 3, of 2**22 above 3F000000.
    scales = struct.pack("<IBBBB", 0x3F000000, 22, 2, 0, 0), bytes([0b1100])
    # Offsets of -2.0 and 1.0: magnitudes 1 and 0 times 2**23 above 3F800000, with the sign as the lowest bit.
    offsets = struct.pack("<IBBBB", 0x3F800000, 23, 2, 2, 0), bytes([0b0011])
    pairs = scales[0] + offsets[0] + scales[1] + offsets[1]
    body = extension(inner, 1, 3, 1) + inner + pairs + little(0x1234, kind.W // 8)
    decoded = decode(frame(dtype, 5, record, block(5, 0, 5, body)))
    wanted = [as_bits(kind.name, x) for x in (5.5 * 0.5 - 2, -3.0 * 0.5 - 2, 0.75 * 1.5 + 1, 0, 5.5 * 1.5 + 1)]
    wanted[3] = 0x1234
    assert decoded.bits.tolist() == wanted


def test_sums_are_those_of_numpy_where_nothing_is_small() -> None:
    rng = np.random.default_rng(1)
    q, offsets = rng.integers(0, 2**32, (2, 200_000), dtype=np.uint32)
    near = (q & 0x807FFFFF | (offsets >> 23 & 255) << 23).astype(np.uint32)  # of the same exponent as the offset
    for some in q, near, near ^ np.uint32(1 << 31):
        finite = (some >> 23 & 255 > 1) & (some >> 23 & 255 < 255) & (offsets >> 23 & 255 < 255)
        a, b = some[finite], offsets[finite]
        with np.errstate(all="ignore"):
            wanted = (a.view(np.float32) + b.view(np.float32)).view(np.uint32).astype(np.int64)
        normal = b >> 23 & 255 > 0
        found = sums(a.astype(np.int64), b.astype(np.uint64))
        tiny = wanted >> 23 & 255 <= 1
        assert np.array_equal(found[normal & ~tiny], wanted[normal & ~tiny])
        assert np.array_equal(found[normal & tiny], (wanted & 2**31)[normal & tiny])
        assert np.array_equal(found[~normal], a[~normal].astype(np.int64))


@pytest.mark.parametrize(
    ("q", "offset", "total"),
    [
        (0x80000000, 0x80000000, 0x80000000),  # -0 - 0
        (0x80000000, 0x00000000, 0x00000000),
        (0x3F800000, 0xBF800000, 0x00000000),  # 1 - 1
        (0x80000000, 0x807FFFFF, 0x80000000),  # an offset that is denormal counts as -0
        (0x3F800000, 0x007FFFFF, 0x3F800000),
        (0x01000000, 0x80FFFFFF, 0x00000000),  # what is left is denormal
        (0x81400000, 0x01000000, 0x80000000),
        (0x7F7FFFFF, 0x7F7FFFFF, 0x7F800000),
        (0x7F800000, 0xFF7FFFFF, 0x7F800000),
        (0x3F800000, 0x33800000, 0x3F800000),  # a tie, to the even one
        (0x3F800001, 0x33800000, 0x3F800002),
    ],
)
def test_sums_are_those_worked_out_by_hand(q: int, offset: int, total: int) -> None:
    assert sums(np.array([q]), np.array([offset], np.uint64)).tolist() == [total]
    assert added(q, offset) == total


@functools.cache
def corpus() -> tuple[Built, ...]:
    """Build frames of indexed blocks, many of them with offsets."""
    return tuple(
        build_frame(
            Random(f"offsets {seed}"),
            dtype=WITH_FACTORS[seed % 3],
            n_values=[1, 65, 127, 1100, 2060, 3072][seed % 6],
            block_log2=[10, 10, 11][seed % 3],
            kinds=["indexed"],
            spare_bits=seed % 7 == 0,
            with_offsets=True,
        )
        for seed in range(300)
    )


def corners(built: Built) -> Iterator[str]:
    """Yield what is special about the blocks with offsets of a frame."""
    draft = Draft.of(built.frame, built.codebooks)
    for b, data in enumerate(draft.blocks):
        indexed = Indexed.of(data, draft.kind.W)
        entries = Entries.of(draft.records[indexed.codebook], draft.kind.W)
        if entries.form == 3:
            yield f"{draft.kind.name}, inner kind {indexed.inner[0]}"
            for which, at in ("scales", 0), ("offsets", 8):
                yield f"{which}, sign {indexed.pairs[at + 6]}"
                yield f"{which}, width {indexed.pairs[at + 5]}"
                yield f"{which}, shift {indexed.pairs[at + 4]}"
            yield "a scale for each value" if indexed.segment == 1 else "longer segments"
            yield "one scale" if indexed.n_segments == 1 else "scales"
            yield "segment across blocks" if 0 < indexed.skipped == (b << draft.block_log2) % indexed.segment else "not"
            yield "exceptions" if indexed.exceptions else "no exceptions"


def test_built_frames_reach_every_corner_of_offsets() -> None:
    seen = {corner for built in corpus() for corner in corners(built)}
    expected = {f"{DTYPES[code].name}, inner kind {kind}" for code in WITH_FACTORS for kind in range(3)}
    for which in "scales", "offsets":
        expected |= {f"{which}, sign {sign}" for sign in range(3)}
        expected |= {f"{which}, width {width}" for width in (0, 1, 8, 14, 32)}
        expected |= {f"{which}, shift {shift}" for shift in (0, 13, 16, 23)}
    expected |= {"a scale for each value", "one scale", "segment across blocks", "exceptions", "no exceptions"}
    assert sorted(expected - seen) == []


def test_built_frames_with_offsets_decode_to_their_values() -> None:
    """The builder adds fractions, which are exact."""
    for built in corpus():
        decoded = decode(built.frame, built.codebooks, base=built.base)
        assert np.array_equal(decoded.bits, built.bits)
