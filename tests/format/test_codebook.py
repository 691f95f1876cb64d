"""The laws of codebooks: optimal limited lengths, canonical codes, records, and what a histogram is made into."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gcodec.dtypes import BY_NAME
from gcodec.errors import Corruption, InvalidArgument
from gcodec.format import shipped
from gcodec.format.change_codebook import read_changes
from gcodec.format.codebook import MAX_SYMBOLS, Codebook, huffman_lengths, limited_lengths, read_inline
from gcodec.format.shipped_changes import N_SHAPES, N_SHIFTS, changes_from, shifted_thresholds, shortest_record
from gcodec.plan.codebooks import bin_costs, from_histogram, window_of
from gcodec.stream import CodebookCycle
from tests.support import laws, reference
from tests.support.bit_patterns import KINDS
from tests.support.frame_builder import Inline, random_codebook

ESCAPE = reference.ESCAPE
COUNTS = st.lists(
    st.one_of(st.integers(0, 5), st.integers(0, 10**6), st.sampled_from([0, 1, 2**20, 2**40])), min_size=2, max_size=80
).map(lambda counts: np.array(counts, np.int64))


def cost(counts, lengths) -> int:
    """Return the bits that a code takes in all."""
    return sum(int(c) * int(n) for c, n in zip(counts, lengths, strict=True))


def kraft(lengths) -> Fraction:
    """Return the Kraft sum: 1 for a complete code."""
    return sum((Fraction(1, 1 << int(n)) for n in lengths if n), Fraction(0))


# Lengths


@cache
def complete(n: int, limit: int) -> tuple[tuple[int, ...], ...]:
    """Return all multisets of n code lengths up to ``limit`` that make a complete code."""

    def extend(chosen: tuple[int, ...], left: int, room: Fraction):
        if left == 0:
            if room == 0:
                yield chosen
            return
        for length in range(chosen[-1] if chosen else 1, limit + 1):
            share = Fraction(1, 1 << length)
            if share <= room <= left * share:
                yield from extend((*chosen, length), left - 1, room - share)

    return tuple(extend((), n, Fraction(1)))


@given(st.lists(st.integers(1, 300), min_size=2, max_size=9), st.integers(1, 6))
def test_limited_code_lengths_are_the_best_of_all(counts, limit):
    assume(len(counts) <= 1 << limit)
    heaviest_first = sorted(counts, reverse=True)
    best = min(cost(heaviest_first, lengths) for lengths in complete(len(counts), limit))
    assert cost(counts, limited_lengths(np.array(counts), limit)) == best


@given(COUNTS, st.integers(1, 12))
def test_lengths_make_a_complete_code_within_the_limit(counts, limit):
    used = np.count_nonzero(counts)
    if not 2 <= used <= 1 << limit:
        laws.check_refused(InvalidArgument, lambda: limited_lengths(counts, limit))
        return
    lengths = limited_lengths(counts, limit)
    assert lengths.dtype == np.uint8
    assert np.array_equal(lengths > 0, counts > 0)
    assert lengths.max() <= limit
    assert kraft(lengths) == 1
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    assert (np.diff(lengths[order].astype(int)) <= 0).all()  # rarer means longer; among equals the lower symbol
    assert np.array_equal(limited_lengths(counts.astype(np.uint32) if counts.max() < 2**32 else counts, limit), lengths)


@given(COUNTS)
def test_code_lengths_under_a_loose_limit_cost_as_much_as_huffmans(counts):
    assume(np.count_nonzero(counts) >= 2)
    native = huffman_lengths(counts)
    assert kraft(native) == 1
    limited = limited_lengths(counts, 12)
    if native.max() <= 12:
        assert cost(counts, limited) == cost(counts, native)
    else:
        assert cost(counts, limited) >= cost(counts, native)


@given(COUNTS, st.randoms(use_true_random=False))
def test_the_order_of_symbols_does_not_change_the_lengths(counts, random):
    assume(np.count_nonzero(counts) >= 2)
    shuffled = counts.copy()
    random.shuffle(shuffled)
    a, b = limited_lengths(counts), limited_lengths(shuffled)
    assert sorted(a.tolist()) == sorted(b.tolist())


def test_ties_between_symbols_are_broken_as_pinned():
    """Workers that see the same counts must build the same code."""
    assert limited_lengths(np.array([1, 1, 1])).tolist() == [2, 2, 1]
    assert limited_lengths(np.array([5, 5, 5, 5, 5])).tolist() == [3, 3, 2, 2, 2]
    assert limited_lengths(np.array([1, 1, 2, 3, 5, 8, 13])).tolist() == [6, 6, 5, 4, 3, 2, 1]
    assert limited_lengths(np.array([1, 1, 2, 3, 5, 8, 13]), 4).tolist() == [4, 4, 3, 3, 3, 2, 2]
    assert limited_lengths(np.array([0, 3, 0, 0, 9])).tolist() == [0, 1, 0, 0, 1]


def test_the_cost_of_a_code_is_near_the_entropy():
    rng = np.random.default_rng(1)
    for _ in range(50):
        counts = (rng.pareto(1.0, 100) * 50).astype(np.int64)
        share = counts[counts > 0] / counts.sum()
        entropy = float(-(share * np.log2(share)).sum())
        mean = cost(counts, limited_lengths(counts)) / counts.sum()
        assert entropy <= mean + 1e-9
        assert mean <= entropy + float(share.max()) + 0.09  # Gallager's bound on Huffman's redundancy
        assert mean <= entropy + 1


# Codes and records


def codebooks() -> st.SearchStrategy[tuple[Codebook, bytes]]:
    """Return a strategy of codebooks of any value type and number of levels, each with its record by the page."""

    def build(seed: int, dtype: str, n_levels: int) -> tuple[Codebook, bytes]:
        kind = KINDS[dtype]
        inline = random_codebook(Random(seed), kind, n_levels)
        lengths = np.zeros(256, np.uint8)
        lengths[inline.numbers] = inline.lengths
        return Codebook(kind.H, inline.ranges, lengths.tobytes()), inline.record()

    return st.builds(build, st.integers(0, 2**32 - 1), st.sampled_from(sorted(KINDS)), st.integers(1, 16))


@given(codebooks(), st.binary(max_size=9))
def test_records_of_codebooks_are_read_as_they_were_written(pair, around):
    codebook, record = pair
    assert codebook.record == record
    assert len(record) % 4 == 0
    read, end = read_inline(around + record + around, len(around), len(codebook.ranges), codebook.head_bits)
    assert read == codebook
    assert end == len(around) + len(record)
    assert read.n_symbols == sum(count for _, count in codebook.ranges) <= MAX_SYMBOLS
    laws.check_refused(Corruption, lambda: read_inline(record, 0, len(codebook.ranges) + 1, codebook.head_bits))
    for size in {0, 1, 3, 4, len(record) - 1, len(record) // 2}:
        cut = record[:size]
        laws.check_refused(Corruption, partial(read_inline, cut, 0, len(codebook.ranges), codebook.head_bits))


@given(codebooks())
def test_codes_are_canonical_complete_and_free_of_prefixes(pair):
    codebook, record = pair
    written = {}
    for symbol, length in enumerate(codebook.lengths):
        if length:
            written[symbol] = f"{int(codebook.codes[symbol]):0{length}b}"[::-1]  # first bit lowest
            assert len(written[symbol]) == length
    assert written == Inline.of(record).codes()
    windows = sorted(written.values())
    assert not any(b.startswith(a) for a, b in pairwise(windows))
    assert kraft(codebook.lengths) == 1
    assert codebook.has_escape == (ESCAPE in written)


@given(codebooks())
def test_symbols_mean_what_the_page_says(pair):
    codebook, record = pair
    kind = next(kind for kind in KINDS.values() if codebook.head_bits == kind.H)
    meant = reference.read_inline(record, kind, len(codebook.ranges)).symbols
    levels, heads = codebook.meanings
    for symbol, (level, head) in meant.items():
        assert (levels[symbol], heads[symbol]) == (level, head)


@given(codebooks(), st.integers(0, 2**32 - 1))
def test_references_to_codebooks_name_id_and_hash(pair, number):
    codebook, record = pair
    assert codebook.hash == reference.checksum(record, codebook.head_bits)
    named = codebook.reference(number)
    assert named == b"\x01\0\0\0" + number.to_bytes(4, "little") + codebook.hash.to_bytes(8, "little")


@pytest.mark.parametrize("lengths", [{}, {0: 1}, {0: 1, 1: 2}, {0: 1, 1: 1, 2: 12}, {0: 2, 1: 2, 255: 2}])
def test_codes_that_are_not_complete_are_refused(lengths):
    row = bytes(lengths.get(symbol, 0) for symbol in range(256))
    codebook = Codebook(8, ((0, 3),), row)
    with pytest.raises(Corruption):
        _ = codebook.codes
    with pytest.raises(Corruption):
        read_inline(codebook.record, 0, 1, 8)


# From histograms


def histograms() -> st.SearchStrategy[tuple[np.ndarray, int, int, int]]:
    """Return a strategy of what a sample may count, with head_bits, number of levels and the window's center."""

    def build(seed: int, head_bits: int, n_levels: int, shape: str) -> tuple[np.ndarray, int, int, int]:
        rng = np.random.default_rng(seed)
        window, center = window_of(n_levels)
        counts = np.zeros(2 + n_levels * window, np.uint32)
        bins = counts[2:].reshape(n_levels, window)
        for row in bins:
            match shape:
                case "bell":
                    at = rng.normal(center - 5, rng.uniform(0.1, 8), rng.integers(0, 2000))
                    inside = at[(at >= 0) & (at < window)].astype(np.int64)
                    row += np.bincount(inside, minlength=window).astype(np.uint32)
                case "few":
                    row[rng.integers(0, window, rng.integers(0, 4))] = rng.integers(1, 10**5)
                case "all":
                    row[:] = rng.integers(0, 3, window)
        counts[0], counts[1] = rng.choice([0, 1, 5000], 2)
        return counts, head_bits, n_levels, center

    return st.builds(
        build,
        st.integers(0, 2**32 - 1),
        st.sampled_from([8, 11]),
        st.sampled_from([1, 1, 4, 8, 16]),
        st.sampled_from(["bell", "few", "all"]),
    )


@given(histograms(), st.booleans(), st.integers(2, 12), st.sampled_from([None, 4, 11]))
def test_a_histograms_codebook_codes_all_that_was_counted(drawn, exact, max_length, escape_threshold):
    histogram, head_bits, n_levels, center = drawn
    before = histogram.copy()
    codebook = from_histogram(
        histogram, head_bits, n_levels, center, exact=exact, max_length=max_length, escape_threshold=escape_threshold
    )
    assert np.array_equal(histogram, before)
    assert max(codebook.lengths) <= max_length
    assert kraft(codebook.lengths) == 1
    assert len(codebook.ranges) == n_levels
    assert codebook.n_symbols <= MAX_SYMBOLS
    assert read_inline(codebook.record, 0, n_levels, head_bits)[0] == codebook
    costs = bin_costs([codebook])[0].astype(np.int64)
    assert (costs[histogram > 0] <= 12 + head_bits).all()
    if not exact:
        assert codebook.has_escape
        assert costs.max() <= 12 + head_bits
    again = from_histogram(
        histogram.astype(np.int64),
        head_bits,
        n_levels,
        center,
        exact=exact,
        max_length=max_length,
        escape_threshold=escape_threshold,
    )
    assert again == codebook


@given(histograms())
def test_costs_of_bins_are_the_lengths_of_their_symbols(drawn):
    histogram, head_bits, n_levels, center = drawn
    codebook = from_histogram(histogram, head_bits, n_levels, center)
    window = window_of(n_levels)[0]
    costs = bin_costs([codebook])[0].astype(np.int64)
    escape = codebook.lengths[ESCAPE] + head_bits
    half = 1 << (head_bits - 1)
    wanted = np.full(len(costs), escape)
    wanted[0] = codebook.lengths[0] or escape
    for symbol in range(1, 1 + codebook.n_symbols):
        level, head = codebook.meanings[:, symbol]
        place = (head + half) % (2 * half) - half + center
        if 0 <= place < window and codebook.lengths[symbol]:
            wanted[2 + level * window + place] = codebook.lengths[symbol]
    assert np.array_equal(costs, wanted)


def test_a_seen_distribution_is_coded_near_its_entropy():
    window, center = window_of(1)
    for spread in (1.5, 2.0, 4.0, 10.0):  # narrower ones suffer from whole bits
        at = np.arange(window) - center + 4
        counts = np.zeros(2 + window, np.uint32)
        counts[2:] = 1e6 * np.exp(-((at / spread) ** 2))
        counts[0] = 2e5
        used = counts[counts > 0].astype(np.float64)
        entropy = float((used * np.log2(used.sum() / used)).sum())
        for exact, margin in ((True, 1.035), (False, 1.04)):
            codebook = from_histogram(counts, 8, 1, center, exact=exact)
            spent = int((counts.astype(np.int64) * bin_costs([codebook])[0]).sum())
            assert entropy <= spent + 1
            assert spent <= entropy * margin


@pytest.mark.parametrize("escape_threshold", range(3, 12))
def test_the_escape_threshold_is_that_of_native_codes(escape_threshold):
    """GComp leaves to the escape what Huffman's own code gives more bits than n_theta, and nothing else: of counts that
    double from symbol to symbol, each code is a bit longer than the next, so as many symbols stay as n_theta says."""
    window, center = window_of(1)
    counts = np.zeros(2 + window, np.uint32)
    counts[2 + center - 20 : 2 + center] = [2**n for n in range(20)]
    codebook = from_histogram(counts, 8, 1, center, exact=True, escape_threshold=escape_threshold)
    costs = bin_costs([codebook])[0][2 + center - 20 : 2 + center]
    escaped = costs == codebook.lengths[ESCAPE] + 8
    native = huffman_lengths(counts[2 + center - 20 : 2 + center])
    assert (~escaped).sum() == escape_threshold
    assert (native[~escaped] <= escape_threshold).all()
    assert (native[escaped] > escape_threshold).all()
    assert math.isclose(sum(2.0**-n for n in codebook.lengths if n), 1)


@pytest.mark.parametrize("max_length", [-1, 0, 1, 13, 100])
def test_length_limits_outside_of_the_format_are_refused(max_length):
    with pytest.raises(InvalidArgument):
        from_histogram(np.ones(258, np.uint32), 8, 1, 128, max_length=max_length)


# The life of a codebook


def counted(rng, n_levels=1, spread=3.0):
    """Return a histogram as an encoding might count it."""
    window, center = window_of(n_levels)
    at = np.clip(rng.normal(center - 4, spread, 4000), 0, window - 1).astype(np.int64)
    bins = [np.bincount(at, minlength=window) for _ in range(n_levels)]
    return np.concatenate([[100, 0], *bins]).astype(np.uint64)


@pytest.mark.parametrize("n_levels", [1, 8])
def test_a_version_of_a_codebook_takes_effect_at_its_step(n_levels):
    rng, cycle = np.random.default_rng(1), CodebookCycle(8, n_levels, interval=5)
    assert cycle.due
    assert cycle.advance(0) is None
    cycle.count(counted(rng, n_levels))
    first = cycle.schedule(cycle.take(), 2)
    assert not cycle.due  # one is coming
    assert cycle.advance(1) is None
    assert cycle.advance(2) == first
    assert (first.number, first.step) == (1, 2)
    cycle.count(counted(rng, n_levels))
    assert cycle.excess < 0.1
    assert not cycle.due
    assert cycle.advance(6) == first
    assert not cycle.due
    assert cycle.advance(7) == first
    assert cycle.due  # five steps old
    second, third = cycle.schedule(counted(rng, n_levels), 9), cycle.schedule(counted(rng, n_levels, 9.0), 10)
    assert cycle.advance(8) == first
    assert cycle.advance(9) == second
    assert cycle.advance(20) == third
    assert [first.number, second.number, third.number] == [1, 2, 3]


def test_a_codebook_that_no_longer_fits_is_due_for_renewal():
    rng, cycle = np.random.default_rng(2), CodebookCycle(8, 1, interval=1000, trigger=0.3)
    cycle.schedule(counted(rng), 0)
    cycle.advance(0)
    cycle.count(counted(rng))
    assert not cycle.due
    cycle.count(counted(rng, spread=20.0))
    assert cycle.excess > 0.3
    assert cycle.due


def test_equal_sums_of_counts_make_equal_versions():
    """Workers that exchange what they took agree, whatever each of them saw."""
    rng = np.random.default_rng(3)
    seen = [counted(rng, spread=spread) for spread in (1.0, 4.0, 9.0)]
    workers = [CodebookCycle(8, 1) for _ in seen]
    for worker, histogram in zip(workers, seen, strict=True):
        worker.count(histogram)
        worker.count(histogram)
    total = np.sum([worker.take() for worker in workers], axis=0)
    assert np.array_equal(total, 2 * np.sum(seen, axis=0))
    assert len({worker.schedule(total, 4).codebook for worker in workers}) == 1
    assert not any(worker.take().any() for worker in workers)


def test_the_cycle_of_codebooks_refuses_steps_that_go_back():
    cycle = CodebookCycle(8, 1)
    histogram = counted(np.random.default_rng(4))
    cycle.schedule(histogram, 5)
    cycle.advance(6)
    for call in (
        lambda: cycle.advance(5),
        lambda: cycle.schedule(histogram, 5),
        lambda: CodebookCycle(8, 1, interval=0),
        lambda: CodebookCycle(8, 1, trigger=0.0),
    ):
        laws.check_refused(InvalidArgument, call)


# Codebooks that come with gcodec


def test_shipped_codebooks_are_valid_and_can_code_anything():
    assert laws.SHIPPED.keys() == reference.shipped_codebooks().keys()
    for number, types, n_levels, head_bits, text in shipped.RECORDS:
        record = bytes.fromhex(text)
        codebook, end = read_inline(record, 0, n_levels, head_bits)
        assert 0 <= number < 256
        assert end == len(record)
        assert codebook.record == record
        assert codebook.has_escape
        assert codebook.lengths[0] > 0
        assert shipped.find(number, codebook.hash) == codebook
        assert shipped.find(number, codebook.hash ^ 1) is None
        for name in types:
            assert head_bits == KINDS[name].H
            assert (number, codebook) in shipped.fitting(name, n_levels)
    assert shipped.find(255, 0) is None
    assert shipped.fitting("float32", 13) == []


def test_shipped_codebooks_of_changes_can_code_anything_but_the_longest_gaps():
    named = {number: record for (number, _), record in laws.SHIPPED.items() if record[0] == 3}
    assert len(named) == N_SHAPES * N_SHIFTS
    for number, record in named.items():
        codebook, end = read_changes(record, 0, BY_NAME["bfloat16"])
        assert end == len(record)
        assert codebook.record == record == reference.shipped_codebooks()[number, codebook.hash]
        assert codebook == shipped.find(number, codebook.hash)
        assert shipped.find(number, codebook.hash ^ 1) is None
        assert all(map(all, (codebook.counts, codebook.steps, *codebook.classes)))
        assert shortest_record(codebook) == codebook.reference(number)
        other = replace(codebook, thresholds=tuple(threshold + 1 for threshold in codebook.thresholds))
        assert shortest_record(other) == other.record
    assert changes_from(()) == changes_from(shifted_thresholds(N_SHIFTS)) == []
