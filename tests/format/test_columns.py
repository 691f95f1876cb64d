"""The laws of the codec over arrays that have a use for column references and wide heads, and what these save."""

from __future__ import annotations

import heapq
import tracemalloc
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcodec
from gcodec import EncoderOptions
from tests.support import laws
from tests.support.bit_patterns import KINDS, Array, Bits, from_floats, gaussian, infinity, scaled, specials, typed
from tests.support.cases import MULTIPLES, recorded
from tests.support.encode_modes import levels_at_random, modes, promised
from tests.support.frame_builder import Coded, Columns, Draft, build_frame

WITH_TAIL = [name for name, kind in KINDS.items() if kind.T]
WIDE = {"float32": 8, "bfloat16": 7}  # codes of the types that have a wide head (docs/format.md, section 2)
USUAL = {"float32": 1, "bfloat16": 2}
NONE = EncoderOptions(columns=False)

every_type = pytest.mark.parametrize("dtype", WITH_TAIL)
wide_types = pytest.mark.parametrize("dtype", WIDE)
every_mode = pytest.mark.parametrize(
    ("dtype", "mode"),
    [
        (dtype, mode)
        for dtype in WITH_TAIL
        for mode in modes(dtype)
        if mode.name
        in (
            "lossless",
            "lossless with short codes",
            "half the mantissa",
            "1 mantissa bit",
            "fine ladder",
            "paper's ladder",
            "uneven ladder",
            "GComp",
        )
    ],
    ids=str,
)


def parts(frame: bytes) -> Draft:
    """Return the parts of a frame of the encoder's."""
    return Draft.of(frame, laws.SHIPPED)


def columns_of(frame: bytes) -> list[Columns]:
    """Return the column references of a frame."""
    return [Columns.of(record) for record in parts(frame).columns]


def flags_of(frame: bytes) -> list[int]:
    """Return the flags of the coded blocks of a frame."""
    draft = parts(frame)
    return [Coded.of(block, draft.stream_log2).flags for block in draft.blocks if block[0] == 2]


def encoded(dtype: str, bits: Bits, **options: Any) -> bytes:
    """Return a frame of the encoder."""
    frame: bytes = gcodec.encode(typed(dtype, bits), dtype=dtype, **options)
    return frame


def check(dtype: str, bits: Bits, **options: Any) -> bytes:
    """Check all laws of one array, whatever the encoder makes of it; return the frame."""
    x = typed(dtype, bits)
    options["dtype"] = dtype
    frame = laws.check_round_trip(x, promised(KINDS[dtype], bits, options), **options)
    laws.check_agreement(frame)
    laws.check_threads(x, frame, **options)
    laws.check_random_access(frame, Random(bits.size))
    laws.check_no_expansion(bits.shape, dtype, frame)
    info = gcodec.inspect(frame)
    assert (info.dtype, info.shape, info.frame_bytes) == (dtype, bits.shape, len(frame))
    return frame


def spoilt(dtype: str, bits: Bits, rng: np.random.Generator, share: float) -> Bits:
    """Return a copy in which a share of the values is special: infinities, NaNs, zeros of both signs, denormals."""
    special, bits = specials(KINDS[dtype]), bits.copy()
    where = rng.random(bits.shape) < share
    bits[where] = rng.choice(special, int(where.sum()))
    return bits


# The laws


@every_mode
def test_rows_and_columns_of_scales_obey_the_laws_in_every_mode(dtype, mode):
    kind, rng = KINDS[dtype], np.random.default_rng(1)
    bits = scaled(kind, rng, (280, 90))
    options = dict(mode.options)
    if "ladder" in options:
        options["levels"] = levels_at_random(bits, len(options["ladder"].drops))
    frame = check(dtype, bits, **options)
    allowed = options.get("options", EncoderOptions()).columns
    if dtype == "float16" and "levels" in options:
        return  # heads of float16 and levels are more than a codebook's symbols
    assert len(columns_of(frame)) == allowed
    if allowed:
        assert flags_of(frame) == [1, 1]
        (one,) = columns_of(frame)
        assert (one.n_columns, one.first, one.end) == (90, 0, bits.size)


@every_type
@pytest.mark.parametrize("shape", [(64, 32, 3, 3), (256, 48, 2), (33, 1000), (300, 20, 40), (40, 513)], ids=str)
def test_column_references_obey_the_laws_for_tensors_of_all_shapes(dtype, shape):
    """Rows of convolutions are all but the first dimension, and columns of one channel may share a reference."""
    channels = shape[-1] < 32
    bits = scaled(KINDS[dtype], np.random.default_rng(2), shape, channels=channels)
    (one,) = columns_of(check(dtype, bits))
    assert one.n_columns == (int(np.prod(shape[1:])) if channels else shape[-1])
    assert one.group in ((1, one.n_columns // shape[1]) if channels else (1,))


def test_columns_of_a_channel_share_a_reference():
    bits = scaled(KINDS["float16"], np.random.default_rng(2), (96, 64, 3, 3), channels=True)
    (one,) = columns_of(check("float16", bits))
    assert (one.n_columns, one.group) == (576, 9)


@every_type
@pytest.mark.parametrize("share", [0.0002, 0.02, 0.5])
def test_special_values_among_columns_obey_the_laws(dtype, share):
    rng = np.random.default_rng(3)
    bits = spoilt(dtype, scaled(KINDS[dtype], rng, (300, 96)), rng, share)
    check(dtype, bits)
    check(dtype, bits, mantissa_bits=KINDS[dtype].M // 2)
    levels = levels_at_random(bits, len(gcodec.FINE_LADDER[dtype].drops))
    check(dtype, bits, levels=levels)


@every_type
def test_rows_and_columns_of_zeros_obey_the_laws(dtype):
    rng = np.random.default_rng(4)
    bits = scaled(KINDS[dtype], rng, (400, 96))
    bits[rng.random(400) < 0.3] = 0
    bits[:, rng.random(96) < 0.3] = 0
    bits[100:180] = 0
    assert len(columns_of(check(dtype, bits, options=EncoderOptions(sparse=False)))) == 1


@every_type
@pytest.mark.parametrize("end", ["smallest", "largest"])
def test_columns_at_the_ends_of_the_range_obey_the_laws(dtype, end):
    """Heads without their column's reference pass the ends of the range there, and zeros and infinities are near."""
    kind, rng = KINDS[dtype], np.random.default_rng(5)
    bits = scaled(kind, rng, (300, 96))
    one = kind.container.type(1 << kind.M)
    size = bits & ~kind.container.type(1 << kind.W - 1)
    away = size.min() if end == "smallest" else infinity(kind) - size.max() - 1
    steps = away // one * one
    moved = bits + steps if end == "largest" else bits - steps + rng.integers(0, 3, bits.shape, kind.container.type)
    check(dtype, moved.astype(kind.container))


@every_type
def test_a_bucket_of_tensors_with_columns_obeys_the_laws(dtype):
    """Tensors lie end to end; each has columns of its own or none, and begins and ends within blocks."""
    kind, rng = KINDS[dtype], np.random.default_rng(6)
    tensors = [
        gaussian(kind, rng, 77),
        scaled(kind, rng, (260, 64)),
        scaled(kind, rng, (128, 40, 3, 3), channels=True),
        gaussian(kind, rng, 9000).reshape(100, 90),
        np.zeros((0, 5), kind.container),
        scaled(kind, rng, (64, 1000)),
        gaussian(kind, rng, 1),
    ]
    flat, shapes = np.concatenate([bits.reshape(-1) for bits in tensors]), [bits.shape for bits in tensors]
    frame = check(dtype, flat, shapes=shapes)
    starts = np.cumsum([0, *(bits.size for bits in tensors)])
    spans = [(one.first, one.end, one.n_columns) for one in columns_of(frame)]
    assert spans == [(starts[1], starts[2], 64), (starts[2], starts[3], 360), (starts[5], starts[6], 1000)]
    assert len(frame) < len(encoded(dtype, flat))
    check(dtype, flat, shapes=shapes, mantissa_bits=3)
    assert columns_of(encoded(dtype, flat)) == []


def floats(dtype: str, n_rows: int, n_columns: int, by_row: float, by_column: float, seed: int) -> Bits:
    """Return normal values whose scales by row and by column are log-normal: standard deviations in powers of two."""
    rng = np.random.default_rng(seed)
    scales = np.exp2(by_row * rng.standard_normal((n_rows, 1)) + by_column * rng.standard_normal(n_columns))
    return from_floats(KINDS[dtype], rng.standard_normal((n_rows, n_columns)) * scales)


@given(
    st.sampled_from(WITH_TAIL),
    st.integers(9, 400),
    st.integers(2, 400),
    st.sampled_from([0.0, 0.3, 1.0, 6.0]),
    st.sampled_from([0.0, 0.3, 1.0, 2.0, 9.0]),
    st.sampled_from([0.0, 0.0, 0.001, 0.1]),
    st.sampled_from([None, None, "fixed", "levels"]),
    st.integers(0, 1 << 16),
)
@settings(max_examples=60)
def test_arrays_of_any_scales_by_row_and_column_are_decoded(
    dtype, n_rows, n_columns, by_row, by_column, share, mode, seed
):
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    bits = spoilt(dtype, floats(dtype, n_rows, n_columns, by_row, by_column, seed), rng, share)
    options: dict[str, Any] = {"dtype": dtype}
    if mode == "fixed":
        options["mantissa_bits"] = 1 + seed % kind.M
    if mode == "levels":
        options["levels"] = levels_at_random(bits, len(gcodec.FINE_LADDER[dtype].drops))
    frame = laws.check_round_trip(typed(dtype, bits), promised(kind, bits, options), **options)
    laws.check_agreement(frame)


@pytest.mark.parametrize("part", range(4))
def test_frames_with_columns_that_no_encoder_writes_are_decoded(part):
    """The frames have gaps between records, groups, references far from any head, and blocks of both flags."""
    for seed in range(part, 80, 4):
        built = build_frame(
            Random(f"columns {seed}"),
            dtype=[1, 2, 3, 4, 7, 8][seed % 6],
            block_log2=10,
            n_values=[200, 1100, 3000][seed % 3],
            spare_bits=seed % 2 == 0,
            with_columns=True,
        )
        decoded = laws.decode_known(built.frame, built.codebooks, base=built.base)
        laws.assert_same_bits(decoded.reshape(-1), built.bits)
        laws.check_agreement(built.frame, built.codebooks, built.base)


def test_frames_that_claim_many_columns_allocate_nothing():
    """By docs/format.md, section 11, records may claim 2^24 columns each, of no bits or a few bits for thousands."""
    built = build_frame(
        Random(1),
        dtype=1,
        n_values=3000,
        block_log2=10,
        kinds=["coded"],
        n_codebooks=1,
        with_columns=False,
        with_base=False,
        levels=([24], [(0, 1)]),
    )
    draft = replace(parts(built.frame), templates=(), residuals=())
    few = tuple(i % 2 for i in range(273))
    for group, width, numbers in ((1, 0, ()), (61455, 1, few)):
        records = tuple(
            Columns((1 << 24) - 1, 10 * i, 10 * i + 10, group, 0, width, numbers).record() for i in range(255)
        )
        frame = replace(draft, columns=records).seal()
        tracemalloc.start()
        try:
            laws.assert_same_bits(gcodec.decode(frame).reshape(-1), built.bits)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 32 << 20, most


# What they save


def entropy(numbers: Array) -> float:
    """Return the bits per value of an order-0 code."""
    _, counts = np.unique(numbers, return_counts=True)
    return float((counts * np.log2(counts.sum() / counts)).sum() / counts.sum())


def prefix_bits(numbers: Array) -> float:
    """Return the bits per value of the best prefix code, which are the sums that Huffman's algorithm makes."""
    _, counts = np.unique(numbers, return_counts=True)
    heap, total = sorted(counts.tolist()), 0
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return float(total / numbers.size)


def heads_of(dtype: str, bits: Bits) -> Array:
    """Return the usual heads of values by section 2."""
    kind = KINDS[dtype]
    found: Array = (bits >> kind.container.type(kind.T - 1)).astype(np.int64) & (1 << kind.H) - 1
    return found


@every_type
@pytest.mark.parametrize("mantissa_bits", [None, 3])
def test_column_references_save_what_columns_have_in_common(dtype, mantissa_bits):
    """Where a row's scale is known, a code of heads takes their entropy without it at least, and where the column's is
    known, too, a prefix code takes what Huffman's does of what is left. Four fifths of the difference must be saved,
    less what the record takes; one is left for codebooks of blocks, which also tell rows from rows."""
    kind, rng = KINDS[dtype], np.random.default_rng(7)
    bits = scaled(kind, rng, (400, 256))
    heads = heads_of(dtype, bits).astype(np.float64)
    by_row = heads - np.round(heads.mean(axis=1, keepdims=True))
    by_both = by_row - np.round(by_row.mean(axis=0))
    options: dict[str, Any] = {} if mantissa_bits is None else {"mantissa_bits": mantissa_bits}
    with_them = encoded(dtype, bits, **options)
    without = encoded(dtype, bits, options=EncoderOptions(columns=False, wide_heads=False), **options)
    record = sum(map(len, parts(with_them).columns))
    saved = (entropy(by_row) - prefix_bits(by_both)) * bits.size / 8
    assert saved > 1000
    assert len(without) - len(with_them) >= 0.8 * saved - record


def sizes(dtype: str, bits: Bits, **options: Any) -> tuple[int, int]:
    """Return the bytes with column references and without."""
    return len(encoded(dtype, bits, **options)), len(encoded(dtype, bits, options=NONE, **options))


@every_type
def test_column_references_never_cost_much(dtype):
    """Column references that turn out to be of no use cost at most 0.5 %."""
    kind, worst = KINDS[dtype], 0.0
    for which in MULTIPLES:
        if which.dtype == dtype:
            found, without = sizes(dtype, which.bits)
            worst = max(worst, found / without)
    for by_row in 0.0, 0.3, 2.0:
        for by_column in 0.0, 0.1, 0.3, 0.6:
            for shape in (300, 40), (40, 300), (100, 150):
                bits = floats(dtype, *shape, by_row, by_column, shape[0])
                found, without = sizes(dtype, bits)
                worst = max(worst, found / without)
                found, without = sizes(dtype, bits, mantissa_bits=3)
                worst = max(worst, found / without)
    assert worst <= 1.005, f"{worst}, {kind.name}"


@pytest.mark.parametrize("name", sorted(recorded()))
def test_column_references_of_recorded_gradients_never_cost_much(name):
    grad = recorded()[name]
    for dtype in ("float32", "bfloat16"):
        found, without = sizes(dtype, from_floats(KINDS[dtype], grad.astype(np.float64)))
        assert found <= 1.005 * without, dtype


# Wide heads


@wide_types
def test_wide_heads_save_what_the_first_mantissa_bit_tells(dtype):
    """Of values that are uniform up to three quarters of a power of two, a third has that power's exponent, and no more
    than one first mantissa bit: a third of a bit is saved, and of that 0.9 is asked for."""
    n = 1 << 17
    bits = from_floats(KINDS[dtype], np.random.default_rng(8).uniform(-0.75, 0.75, n))
    frame = check(dtype, bits)
    without = check(dtype, bits, options=EncoderOptions(wide_heads=False))
    assert (frame[5], without[5]) == (WIDE[dtype], USUAL[dtype])
    assert len(frame) <= len(without) - 0.9 * n / 3 / 8
    assert gcodec.inspect(frame).planes == {"float32": (16, 7), "bfloat16": (7,)}[dtype]


@wide_types
@pytest.mark.parametrize("n", [4096, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 50_003])
def test_arrays_with_wide_heads_obey_the_laws(dtype, n):
    kind, rng = KINDS[dtype], np.random.default_rng(n)
    bits = from_floats(kind, rng.uniform(-0.75, 0.75, n))
    assert check(dtype, bits)[5] == WIDE[dtype]
    check(dtype, spoilt(dtype, bits, rng, 0.003))
    bits[rng.random(n) < 0.3] = 0
    bits[500:1300] = 0
    assert check(dtype, bits)[5] == WIDE[dtype]


def test_wide_heads_and_column_references_combine():
    """Of values whose columns say their exponents and first mantissa bits the tail is left, and a code of one bit; and
    2 % of all. (Of float32 the encoder considers no wide head where there are column references.)"""
    rng = np.random.default_rng(9)
    bits = from_floats(
        KINDS["bfloat16"],
        rng.uniform(0.5, 0.74, (300, 128)) * rng.choice([-1, 1], (300, 128)) * np.exp2(rng.integers(-3, 4, 128)),
    )
    frame = check("bfloat16", bits)
    assert frame[5] == WIDE["bfloat16"] and flags_of(frame) == [1] * len(parts(frame).blocks)
    assert len(frame) <= (7 + 1) * bits.size / 8 + 0.02 * 2 * bits.size


@wide_types
@pytest.mark.parametrize("options", [{"mantissa_bits": 3}, {"levels": True}], ids=str)
def test_rounded_values_have_the_usual_head(dtype, options):
    bits = from_floats(KINDS[dtype], np.random.default_rng(10).uniform(-0.75, 0.75, 9000))
    if "levels" in options:
        options = {"levels": levels_at_random(bits, len(gcodec.FINE_LADDER[dtype].drops))}
    assert check(dtype, bits, **options)[5] == USUAL[dtype]
