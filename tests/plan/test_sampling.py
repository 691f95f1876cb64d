"""The laws of samples: counts against plain ones, and choices of codebooks against all there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.dtypes import BY_CODE, BY_NAME, DType
from gcodec.kernels.entropy import codebook_fit
from gcodec.kernels.heads.means import reference_head
from gcodec.kernels.heads.sign_in_head import turn_in_place
from gcodec.kernels.sample import code_costs
from gcodec.kernels.sample.count import PIECE
from gcodec.plan.codebooks import window_of
from gcodec.plan.sampling import SampleMemory, SamplePlanner, SampleSource, sampling_form, take_sample

TYPES = tuple(BY_CODE.values())
BLOCK = 1 << 12


def random_bits(dtype: DType, n: int, seed: int) -> np.ndarray:
    """Draw heads near each other, for some seeds near 0 or in the middle, for some with a few far away; zeros single
    and in runs: uintW[n]."""
    rng = np.random.default_rng(seed)
    middle = (dtype.head_mask // 3, 2, dtype.head_mask // 2 + 1)[seed % 3]
    heads = np.abs(rng.normal(middle, 1 + seed % 7, n).astype(np.int64)) & dtype.head_mask
    if seed % 2:
        heads[rng.random(n) < 0.01] = dtype.head_mask
    bits = heads.astype(np.uint64) << np.uint64(dtype.head_shift)
    bits |= rng.integers(0, 1 << dtype.head_shift, n).astype(np.uint64)
    bits[rng.random(n) < 0.02] = 0
    for begin in rng.integers(0, n, 1 + n // 5000):
        bits[begin : begin + 700] = 0
    return bits.astype(dtype.uint)


def plain_counts(bits: np.ndarray, levels: np.ndarray | None, origin: int, dtype: DType, n_levels: int) -> np.ndarray:
    """Return the histogram of heads relative to ``origin`` as kernels.sample describes it: int64[n_bins]."""
    window, center = window_of(n_levels)
    half = (dtype.head_mask + 1) >> 1
    heads = (bits.astype(np.uint64) >> np.uint64(dtype.head_shift)).astype(np.int64) & dtype.head_mask
    places = (heads - origin + half & dtype.head_mask) - half + center
    bins = np.where((places < 0) | (places >= window), 1, 2 + places + (0 if levels is None else window * levels))
    return np.bincount(np.where(bits == 0, 0, bins), minlength=2 + n_levels * window)


def plain_sample(
    bits: np.ndarray, levels: np.ndarray | None, dtype: DType, n_levels: int, stream: int, step: int, every: int
) -> tuple[list[int], list[np.ndarray], list[np.ndarray]]:
    """Return means, and histograms relative to blocks and to sub-streams, of the pieces that are sampled."""
    piece = max(stream, PIECE)
    bases, by_block, by_stream = [], [], []
    for block in range(0, -(-len(bits) // BLOCK), step):
        first, end = block * BLOCK, min((block + 1) * BLOCK, len(bits))
        turns = range(-(-(end - first) // (every * piece)))
        places = [first + (turn * every + (block + 3 * turn) % every) * piece for turn in turns]
        places = [first if place == places[0] >= end else place for place in places]
        starts = [start for place in places for start in range(place, min(place + piece, end), stream)]
        streams = [slice(start, min(start + stream, end)) for start in starts]
        head = dtype.head_shift, dtype.head_mask, dtype.fine_bits
        means = [reference_head(bits[one], *head) for one in streams]
        number = sum(int(count) for _, count in means)
        base = sum(int(mean) * int(count) for mean, count in means) // number if number else -1
        base = base >> dtype.fine_bits << dtype.fine_bits if number else -1
        sums = np.zeros((2, 2 + n_levels * window_of(n_levels)[0]), np.int64)
        for one, (mean, count) in zip(streams, means, strict=True):
            own = None if levels is None else levels[one].astype(np.int64)
            if not count:
                sums[:, 0] += 1  # of a run of zeros one is counted
                continue
            sums[0] += plain_counts(bits[one], own, base, dtype, n_levels)
            sums[1] += plain_counts(bits[one], own, int(mean), dtype, n_levels)
        bases.append(base)
        by_block.append(sums[0])
        by_stream.append(sums[1])
    return bases, by_block, by_stream


@pytest.mark.parametrize("dtype", TYPES, ids=lambda one: f"{one.name}-{one.code}")
@given(
    st.sampled_from([64, 128, 256, 512, 1024]),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.integers(1, 3 * BLOCK),
    st.integers(0, 99),
)
def test_a_sample_counts_the_symbols_of_the_pieces_it_takes(dtype, stream, step, every, several, n, seed):
    n_levels = 8 if several else 1
    bits = random_bits(dtype, n, seed)
    turned = bits.copy()  # which heads are counted of where the sign is among their bits
    if dtype.fine_bits:
        turn_in_place(turned, dtype.head_shift)
    levels = np.random.default_rng(seed).integers(0, n_levels, n).astype(np.uint8) if several else None
    wanted = plain_sample(bits, levels, dtype, n_levels, stream, step, every)
    source = SampleSource(turned, np.zeros(0, np.uint8) if levels is None else levels, n_levels, BLOCK)
    for references in (None, False, True):
        sample = take_sample(source, dtype, stream, (), step, every, references)
        assert sample.bases.tolist() == wanted[0]
        assert references is True or np.array_equal(sample.by_block, wanted[1])
        assert references is False or np.array_equal(sample.by_stream, wanted[2])


@given(st.integers(1 << 12, 5 * BLOCK), st.integers(0, 99), st.sampled_from([0, 0.3, 1.0]))
def test_both_heads_of_float32_counted_together_are_those_counted_one_by_one(n, seed, share):
    dtype, rng = BY_NAME["float32"], np.random.default_rng(seed)
    assert dtype.wide is not None
    usual = rng.standard_normal(n).astype(np.float32).view(np.uint32)
    bits = np.where(rng.random(n) < share, random_bits(dtype, n, seed), usual)
    form = sampling_form(n, 32, 1, BLOCK)
    both, one_by_one = [SamplePlanner(bits, None, 1, True, None, form, SampleMemory(form)) for _ in range(2)]
    together = both.with_both_heads(dtype, dtype.wide, 8)
    for found, kind in zip(together, (dtype, dtype.wide), strict=True):
        alone = one_by_one.candidate(kind, 8, ())
        assert (found.dtype, found.references, found.bits) == (kind, alone.references, alone.bits)
        for one, other in zip(found.sample.counts, alone.sample.counts, strict=True):
            assert np.array_equal(one, other)


def histograms(seed: int, n_rows: int, n_bins: int) -> np.ndarray:
    """Draw rows of a few kinds, many bins of which no row has any: uint32[n_rows, n_bins]."""
    rng = np.random.default_rng(seed)
    kinds = rng.gamma(0.3, 40.0, (1 + seed % 4, n_bins)) * (rng.random(n_bins) < 0.3)
    return rng.poisson(kinds[rng.integers(0, len(kinds), n_rows)]).astype(np.uint32)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([258, 514]), st.integers(1, 9))
def test_every_block_is_given_its_cheapest_codebook(seed, n_rows, n_bins, n_codebooks):
    counts = histograms(seed, n_rows, n_bins)
    costs = np.random.default_rng(seed).integers(1, 30, (n_codebooks, n_bins)).astype(np.uint32)
    spent = counts.astype(np.int64) @ costs.astype(np.int64).T
    choice = np.empty(n_rows, np.int64)
    code_costs.choose_codebooks(counts, costs, choice)
    assert np.array_equal(choice, spent.argmin(axis=1))
    totals = np.zeros(n_codebooks, np.uint64)
    codebook_fit.spent(counts, costs, totals)
    assert np.array_equal(totals, spent.sum(axis=0).astype(np.uint64))
    used = np.empty(n_rows, np.int64)
    n_used = code_costs.rows_in_use(counts, used)
    assert np.array_equal(used[:n_used], np.flatnonzero(counts[:, 2:].any(axis=1)))
    assert code_costs.has_others(counts) == counts[:, 1:].any()


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from([258, 514]),
    st.integers(2, 8),
    st.sampled_from([0, 1 << 12, 1 << 40]),
)
def test_groups_of_blocks_hold_every_block_once(seed, n_rows, n_bins, most, table_cost):
    counts = histograms(seed, n_rows, n_bins)
    found = np.zeros((most, n_bins), np.uint32)
    groups = found[: code_costs.cluster(counts, np.uint64(table_cost), found)]
    assert 1 <= len(groups) <= min(most, n_rows)
    assert np.array_equal(groups.sum(axis=0), counts.sum(axis=0))
    assert len(groups) == 1 or table_cost < 1 << 40


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("n_log2", [16, 17, 19, 22])
def test_values_of_two_kinds_in_turns_take_as_much_as_apart(dtype, n_log2):
    """However long the turns are: where the sample of a block met one kind only, the other would have no codes. (Apart,
    the kind that has one sign takes less with the sign in the head.)"""
    rng, half = np.random.default_rng(n_log2), 1 << n_log2 - 1
    kinds = [(scale * rng.standard_normal(half) ** power).astype(np.float32) for scale, power in ((1e-4, 1), (3e-9, 2))]
    if dtype == "bfloat16":
        kinds = [(values.view(np.uint32) >> 16).astype(np.uint16) for values in kinds]
    apart = len(gcodec.encode(np.concatenate(kinds), dtype=dtype, options=gcodec.EncoderOptions(wide_heads=False)))
    for turn in (512, 1024, 1536, 2048, 2560, 3072, 4096, 4608, 5120, 5632, 8192):
        n_turns = half // turn
        in_turns = np.stack([values[: n_turns * turn].reshape(n_turns, turn) for values in kinds], axis=1).reshape(-1)
        share = in_turns.nbytes / (2 * kinds[0].nbytes)
        assert len(gcodec.encode(in_turns, dtype=dtype)) < 1.06 * share * apart
