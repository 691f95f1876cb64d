"""The laws of low bits that are zero: a lossless frame does not store them, and loses nothing."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.plan import unused_bits
from gcodec.plan.profile import spread_sample
from gcodec.plan.zero_levels import ZeroLevels
from tests.support import laws
from tests.support.bit_patterns import BITS_ONLY, KINDS, Bits, from_floats, gaussian, infinity

N = 40_000
#: Type, and how many low bits are zero where values were of a shorter type.
SHORT = [
    ("float32", 16),
    ("float32", 13),
    ("float32", 1),
    ("float32", 23),
    ("float64", 29),
    ("float64", 42),
    ("bfloat16", 4),
    ("float16", 7),
    ("float16", 2),
]


def values_of_fewer_bits(dtype: str, drop: int, n: int = N) -> Bits:
    """Return values of which ``drop`` low bits are zero: all exponents, -0, denormals, infinities, and NaNs if bits are
    left for them."""
    kind, rng = KINDS[dtype], np.random.default_rng(drop)
    scales = rng.integers(0, 1 << kind.W - 1 - kind.M, n, np.uint64)
    near = np.uint64((1 << kind.W - 2 - kind.M) - 3) + rng.integers(0, 4, n, np.uint64)
    exponents = np.where(rng.random(n) < 0.01, scales, near)
    bits = exponents << np.uint64(kind.M) | rng.integers(0, 1 << kind.M, n, np.uint64)
    bits |= rng.integers(0, 2, n, np.uint64) << np.uint64(kind.W - 1)
    bits[::97], bits[1::197] = 0, 1 << kind.W - 1
    return (bits >> np.uint64(drop) << np.uint64(drop)).astype(kind.container)


def encoded(dtype: str, bits: Bits, **options: Any) -> bytes:
    """Return the frame, of which it was checked that it decodes to the same bits if it is lossless."""
    frame = gcodec.encode(bits if dtype in BITS_ONLY else bits.view(dtype), dtype=dtype, **options)
    if "mantissa_bits" not in options:
        decoded = gcodec.decode(frame, base=options.get("base"), like="numpy")
        assert decoded.view(bits.dtype).tobytes() == bits.tobytes()
    return frame


@pytest.mark.parametrize("n", [4096, 4130, 16_384, 408 * 41, 65_535, 3 * 5 * 7 * 11 * 13 * 17])
def test_no_place_is_in_a_sample_twice(n):
    for size in (64, 256, 4096):
        assert len(set(spread_sample(np.arange(n), size).tolist())) == size


@pytest.mark.parametrize(("dtype", "drop"), SHORT)
def test_values_of_a_shorter_type_take_no_more_than_if_their_bits_were_named(dtype, drop):
    bits = values_of_fewer_bits(dtype, drop)
    frame = encoded(dtype, bits, options=gcodec.EncoderOptions(indexed=False))
    info = gcodec.inspect(frame)
    assert info.mode == "lossless"
    assert info.levels[0] == drop
    assert len(encoded(dtype, bits)) <= len(frame)
    named = encoded(dtype, bits, mantissa_bits=max(KINDS[dtype].M - drop, 1))
    assert len(frame) <= 1.02 * len(named)


@pytest.mark.parametrize(("dtype", "drop"), SHORT)
@pytest.mark.parametrize("place", [0, 1, N // 2, N - 1])
def test_a_single_value_with_more_bits_keeps_them(dtype, drop, place):
    bits = values_of_fewer_bits(dtype, drop)
    bits[place] = infinity(KINDS[dtype]) | 1  # a NaN whose payload is its lowest bit
    encoded(dtype, bits)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mixture_of_long_and_short_values_takes_what_its_parts_take(dtype):
    drop = {"float32": 16, "float64": 29}[dtype]
    short, full = values_of_fewer_bits(dtype, drop), values_of_fewer_bits(dtype, 0)
    bits = np.concatenate([short, full[: N // 4], short])
    parts = 2 * len(encoded(dtype, short)) + len(encoded(dtype, full[: N // 4]))
    frame = encoded(dtype, bits)
    assert gcodec.inspect(frame).levels[:2] == (0, drop)
    assert len(frame) <= 1.05 * parts  # blocks at the seams hold both


def test_infinities_and_nan_of_float64_have_no_levels_of_their_own():
    """They are escaped, which is of level 0, so a level for their zeros would save nothing, and cost symbols."""
    bits = values_of_fewer_bits("float64", 0)
    bits[::9], bits[4::9] = infinity(KINDS["float64"]) | 1 << 51, infinity(KINDS["float64"])
    assert gcodec.inspect(encoded("float64", bits)).levels == (0,)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_minus_zero_of_float64_leaves_others_what_they_take(share):
    """Where a mask is multiplied by, half of what it takes away is -0, which is escaped, and the rest a zero symbol."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal(N)
    usual, is_kept = len(encoded("float64", values.view(np.uint64))), rng.random(N) >= share
    frame = encoded("float64", (values * is_kept).view(np.uint64))
    assert gcodec.inspect(frame).levels == (0,)
    assert len(frame) <= (1 - share) * usual + share / 2 * N * 64 / 8 + 3 * N / 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("seed", range(3))
def test_the_zeros_of_infinities_and_nan_are_left_out(dtype, seed):
    """A third of the values is -inf, as behind a causal mask, or the usual NaN: they take their symbol and a few bits,
    and others what they take alone, and a symbol of which the first bit says which they are."""
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    bits = values_of_fewer_bits(dtype, 0)
    usual = len(encoded(dtype, bits))
    for special in (infinity(kind) | 1 << kind.W - 1, infinity(kind) | 1 << kind.M - 1):
        masked = bits.copy()
        masked[rng.random(len(bits)) < 1 / 3] = special
        frame = encoded(dtype, masked)
        assert gcodec.inspect(frame).levels[0] == 0 and len(gcodec.inspect(frame).levels) == 2
        assert len(frame) < 2 / 3 * usual + (4 / 3 + 2 / 3) * len(bits) / 8
        encoded(dtype, np.full_like(bits, special))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shape", [(256, 256), (5, 128, 128), (2, 3, 300, 300), (1024, 1024), (40, 64, 64)], ids=str)
def test_scores_under_a_causal_mask_take_little_more_than_half(dtype, shape):
    """However long the rows are: -inf, on one side of the diagonal, takes a few bits, and says nothing of the scores in
    its row or column."""
    kind, rng = KINDS[dtype], np.random.default_rng(shape[-1])
    bits = from_floats(kind, rng.standard_normal(shape))
    usual = len(encoded(dtype, bits))
    minus_infinity, later = infinity(kind) | 1 << kind.W - 1, np.triu(np.ones(shape[-2:], np.bool_), 1)
    masked = np.where(later, kind.container.type(minus_infinity), bits)
    assert len(encoded(dtype, masked)) < usual / 2 + 2.2 * bits.size / 8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_nan_of_any_payload_among_infinities_come_back(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(4)
    bits = values_of_fewer_bits(dtype, 0)
    infinite, nan = rng.random(len(bits)) < 1 / 3, rng.random(len(bits)) < 0.1
    bits[infinite] = infinity(kind)
    bits[nan] |= infinity(kind)  # their sign and mantissa bits stay
    encoded(dtype, bits)


def test_integers_keep_the_bits_that_they_have():
    rng = np.random.default_rng(0)
    counts = np.exp2(rng.uniform(0, 16, N)).astype(np.int64).astype(np.float32)
    frame = encoded("float32", counts.view(np.uint32))
    assert len(gcodec.inspect(frame).levels) > 1
    # A sign, one of 16 exponents, of which the one of 2 ** k has values of k further bits, and 1.1 for steps of levels.
    assert len(frame) <= (1 + 4 + 7.5 + 1.1) / 32 * counts.nbytes


def bits_of_a_grid(values: np.ndarray) -> float:
    """Return what integers take: the entropy of their exponents, their signs, and the bits below the highest."""
    exponents = np.frexp(values[values != 0])[1] - 1
    zeros = np.full(np.count_nonzero(values == 0), -1)
    shares = np.unique(np.append(exponents, zeros), return_counts=True)[1] / values.size
    return float(values.size * -(shares @ np.log2(shares)) + (exponents + 1).sum())


@pytest.mark.parametrize(
    ("dtype", "spread"),
    [("float32", 1000), ("float32", 3e4), ("float64", 1000), ("float64", 2e6), ("bfloat16", 40), ("float16", 300)],
)
@pytest.mark.parametrize("step", [1.0, 2.0**-15])
def test_multiples_of_a_number_take_no_bits_that_their_size_rules_out(dtype, spread, step):
    kind, rng = KINDS[dtype], np.random.default_rng(int(spread))
    whole = np.rint(rng.standard_normal(N) * spread)
    if dtype == "bfloat16":  # of larger ones, those are represented that are multiples of a power of two
        whole = whole[np.abs(whole) < 256]
    options = gcodec.EncoderOptions(indexed=False)
    frame = encoded(dtype, from_floats(kind, whole * step), options=options)
    assert len(frame) <= 1.04 * bits_of_a_grid(whole) / 8 + 600
    laws.check_agreement(encoded(dtype, from_floats(kind, whole[:5000] * step), options=options))


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_off_the_grid_cost_their_own_bits(dtype, share):
    kind, rng = KINDS[dtype], np.random.default_rng(3)
    whole = np.rint(rng.standard_normal(N) * 1000)
    others = rng.random(N) < share
    mixed = np.where(others, rng.standard_normal(N) * 1000, whole)
    frame = encoded(dtype, from_floats(kind, mixed))
    symbol = -(share * np.log2(share) + (1 - share) * np.log2(1 - share))  # says which values are others
    assert len(frame) <= 1.06 * (bits_of_a_grid(whole) + N * (symbol + share * kind.W)) / 8 + 800


@pytest.mark.parametrize(("dtype", "n"), [("float64", 20_000), ("float32", (1 << 18) + 1)])
@pytest.mark.parametrize("seed", range(6))
def test_a_tenth_of_short_values_is_found_whatever_the_seed(dtype, n, seed):
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    bits, is_short = gaussian(kind, rng, n), rng.random(n) < 0.1
    usual = len(encoded(dtype, bits))
    frame = encoded(dtype, np.where(is_short, from_floats(kind, np.ones(1)), bits))
    assert len(frame) <= 0.9 * usual + (0.47 + 0.1 * 8) * n / 8  # which are short, and their symbols


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("n", [4096, 100_000])
def test_levels_are_no_more_than_there_are_codes_for(dtype, n, monkeypatch):
    """Where values have any exponents and any number of zeros, codes for two levels are all that a codebook has."""
    kind, rng = KINDS[dtype], np.random.default_rng(2)
    shifts = rng.integers(0, kind.M + 1, n).astype(kind.container)
    bits = rng.integers(0, 1 << kind.W, n, kind.container) >> shifts << shifts
    frame, sizes = encoded(dtype, bits), []
    for drop in range(1, kind.M):
        levels = ZeroLevels((0, drop), (1 << 16,))
        monkeypatch.setattr(unused_bits, "_levels_for", lambda *_, levels=levels: levels)
        sizes.append(len(encoded(dtype, bits)))
    assert len(frame) <= 1.01 * min(sizes)


def test_values_of_any_exponent_take_little_memory_to_plan():
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 1 << 63, 4096, np.uint64)
    bits[rng.random(4096) < 0.5] &= np.uint64((1 << 64) - (1 << 48))
    encoded("float64", bits)
    tracemalloc.start()
    encoded("float64", bits)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 23


@pytest.mark.parametrize("n", [4096, 40_000])
def test_heads_that_lie_near_each_other_in_every_part_have_codes_for_levels(n):
    """However far the scale comes along the array."""
    whole = np.rint(np.random.default_rng(3).standard_normal(n) * 1000)
    bits = from_floats(KINDS["float16"], whole * np.exp2(np.floor(np.linspace(-10, 2, n))))
    assert len(gcodec.inspect(encoded("float16", bits)).levels) > 1


@pytest.mark.parametrize("moved", [1e-5, 1e-4, 1e-3])
def test_differences_of_weights_leave_out_what_weights_have_no_bits_for(moved):
    """A difference is a multiple of the smallest step of the larger weight."""
    rng = np.random.default_rng(1)
    before = (rng.standard_normal(N) * 0.02).astype(np.float32)
    after = before + (moved * rng.standard_normal(N)).astype(np.float32)
    frame = encoded("float32", (before - after).view(np.uint32))
    zeros = np.log2(0.02 / moved)  # that a difference has at least, about
    assert len(frame) <= (28.5 - zeros) / 32 * before.nbytes


@pytest.mark.parametrize("drop", [16, 0])
def test_bits_out_of_use_go_with_zeros_bases_and_rows(drop):
    bits = values_of_fewer_bits("float32", drop)
    sparse = np.where(np.random.default_rng(1).random(N) < 0.03, bits, np.uint32(0))
    encoded("float32", sparse)
    encoded("float32", np.zeros(N, np.uint32))
    later = bits.copy()
    later[::50] ^= np.uint32(1 << drop)
    assert gcodec.inspect(encoded("float32", later, base=bits)).kinds["sparse"] > 0
    later += np.uint32(1 << drop)
    assert len(encoded("float32", later, base=bits)) <= len(encoded("float32", later))
    encoded("float32", bits, shapes=[(100, 300), (10_000,)])


def test_a_stream_of_frames_keeps_its_codebook_when_the_bits_in_use_change():
    encoder, decoder = gcodec.Encoder(), gcodec.Decoder()
    full = np.random.default_rng(0).standard_normal(N).astype(np.float32).view(np.uint32)
    sizes = []
    for drop in (16, 0, 13, 16):
        bits = full >> np.uint32(drop) << np.uint32(drop)
        frame = encoder.encode(bits.view(np.float32))
        assert decoder.decode(frame).tobytes() == bits.tobytes()
        sizes.append(len(frame))
    assert encoder.cycle is not None
    assert encoder.cycle.current is not None
    assert encoder.cycle.current.number == 1
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 1000, 4095, 4097, 16385])
def test_frames_of_any_number_of_values_keep_to_the_maximum(n):
    for drop in (3, 16):
        bits = values_of_fewer_bits("float32", drop, max(n, 1))[:n]
        frame = encoded("float32", bits)
        assert len(frame) <= gcodec.max_encoded_size(n, "float32")
        mixed = bits | np.uint32(1) * (np.arange(n) % 5 == 0)
        assert len(encoded("float32", mixed.astype(np.uint32))) <= gcodec.max_encoded_size(n, "float32")


#: Most bits that a value which a mask has made -0 or +0 takes more than +0 alone: its sign, and codes for two symbols.
MASKED_BITS = 2.5


def masked(dtype: str, bits: Bits, mask: np.ndarray) -> tuple[Bits, Bits]:
    """Return values times a mask, which leaves -0 for those that were negative, and the same with +0 in their place."""
    sign = bits & bits.dtype.type(1 << KINDS[dtype].W - 1)
    return np.where(mask, bits, sign), np.where(mask, bits, bits.dtype.type(0))


def size_of(dtype: str, bits: Bits) -> int:
    """Return the bytes of the frame, of which it was checked that it decodes to the same bits."""
    return len(encoded(dtype, bits))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kept", [0.3, 0.5, 0.7])
def test_what_a_mask_makes_minus_zero_takes_little_more_than_zero(dtype, kept):
    rng = np.random.default_rng(4)
    bits = gaussian(KINDS[dtype], rng, 1 << 17).reshape(256, 512)
    minus, plus = masked(dtype, bits, rng.random(bits.shape) < kept)
    more = MASKED_BITS / 8 * (1 - kept) * bits.size
    assert size_of(dtype, minus) <= size_of(dtype, plus) + more


def test_a_few_values_masked_to_minus_zero_are_found_in_float32():
    rng = np.random.default_rng(4)
    bits = gaussian(KINDS["float32"], rng, 1 << 19).reshape(512, 1024)
    minus, plus = masked("float32", bits, rng.random(bits.shape) < 0.9)
    assert size_of("float32", minus) <= 1.02 * size_of("float32", plus)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masked_ends_of_sequences_take_little_more_than_zeros(dtype):
    rng = np.random.default_rng(5)
    bits = gaussian(KINDS[dtype], rng, 1 << 19).reshape(64, 128, 64)
    mask = np.broadcast_to(np.arange(128)[:, None] < rng.integers(10, 128, (64, 1, 1)), bits.shape)
    minus, plus = masked(dtype, bits, mask)
    # Some blocks hold both kinds, where the codes of both are longer than where either is alone.
    assert size_of(dtype, minus) <= size_of(dtype, plus) + (MASKED_BITS + 1.5) / 8 * np.count_nonzero(~mask)


def test_blocks_with_more_or_fewer_masked_values_share_their_codebooks():
    rng = np.random.default_rng(6)
    bits = gaussian(KINDS["float32"], rng, 1 << 19).reshape(32, 32, 16, 32)
    mask = np.broadcast_to(rng.random((32, 1, 16, 1)) < 0.3, bits.shape)
    minus, _ = masked("float32", bits, mask)
    values = minus.reshape(1024, 512)
    many = encoded("float32", values, options=gcodec.EncoderOptions(max_codebooks=64))
    assert size_of("float32", values) <= 1.01 * len(many)


@pytest.mark.parametrize("drop", [9, 15, 21, 23])
@pytest.mark.parametrize("share", [0.2, 0.3, 0.4])
@pytest.mark.parametrize("n", [1 << 14, (1 << 14) + 1])
def test_a_buffer_of_the_frame_s_size_is_enough_where_levels_turn_out_not_to_be_worth_it(n, share, drop):
    rng = np.random.default_rng(drop)
    bits = rng.integers(0, 1 << 32, n, np.uint32)
    bits[rng.random(n) < share] &= np.uint32((1 << 32) - (1 << drop))
    laws.check_encode_buffers(bits.view("float32"), encoded("float32", bits))
