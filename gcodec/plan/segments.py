"""Arrays as indices, and what the searches for scales, with offsets and without, have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..format.codebook import MAX_SYMBOLS, Codebook
from ..format.dictionary import INDEX_TYPE, MAX_ENTRIES, Dictionary
from ..kernels.core.specialized import Specialized
from ..kernels.index.guesses import N_FACTORS
from ..kernels.index.matches import N_MATCHES, N_TRIED_FIRST, NO_MATCH, count_matches, number_matches
from ..memory import acquire, release
from ..threads import run_batches
from .codebooks import code_bits
from .profile import spread_places

PART = 1 << 16  #: values that a thread looks up at a time
N_SEGMENTS, _SEGMENT_SAMPLE = 40, 128  #: segments that are sampled, and values of each; more where segments are fewer
_MIN_SEGMENTS, _SAMPLED_APART = 8, 16  #: of a small array, which has so many times the values of its sample
#: Values from which on factors are counted of some: of one run of so many values in so many.
_COUNT_SOME, _COUNTED_APART, _COUNTED_AT_ONCE = 1 << 18, 4, 1 << 14
_FACTOR_BITS = 32  #: of a factor as an entry of the dictionary
_LENGTH_BITS = 4  #: of the length of an entry's code, beside the entry in the dictionary
NO_SCALES = np.zeros(0, np.uint32)

count_found, number_found = Specialized(count_matches), Specialized(number_matches)


class IndexedPlan(NamedTuple):
    """The decisions by which the indexed blocks of a frame are coded.

    Attributes:
        dictionary: What indices stand for, and their codes.
        indices: uint8[n_values].
        scales: uint32[n_segments], bits of the scales of segments as float32; empty if there are none.
        offsets: uint32[n_segments], bits of the offsets of segments as float32; empty if there are none.
        segment: Number of values of a segment; 0 if there are none.
    """

    dictionary: Dictionary
    indices: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    segment: int


class Indexing(NamedTuple):
    """An array as indices into the entries of a dictionary, whose codes are not made yet.

    Attributes:
        has_factors: True if the entries are factors, to be multiplied by scales.
        entries: Values as uintW[n], which rise as integers; or factors as uint32[n], bits of float32, which rise as
            numbers.
        indices: uint8[n_values]; one that is beyond the entries stands for a value that they lack.
        n_absent: Number of values that the entries lack; of factors in a large array, about.
        scales: uint32[n_segments], bits of the scales of segments as float32; empty if there are none.
        offsets: uint32[n_segments], likewise of the offsets.
        segment: Number of values of a segment; 0 if there are none.
        counts: How often each index is met, likewise.
    """

    has_factors: bool
    entries: np.ndarray
    indices: np.ndarray
    n_absent: int
    scales: np.ndarray
    offsets: np.ndarray
    segment: int
    counts: np.ndarray

    def extra_bits(self, value_bits: int) -> float:
        """Return about how many bits the frame takes beside its indices, given those of a value."""
        of_entries = (self.entries.itemsize * 8 + _LENGTH_BITS) * len(self.entries)
        if len(self.offsets):
            of_scales = float(sum(short_bits(floats) for floats in (self.scales, self.offsets)))
        else:
            of_scales = scale_bits(int(np.bitwise_or.reduce(self.scales))) * len(self.scales)
        return of_scales + of_entries + value_bits * self.n_absent

    def bits(self, value_bits: int) -> float:
        """Return about how many bits the frame takes, given those of a value."""
        return code_bits(self.counts) + self.extra_bits(value_bits)

    def with_codes(self, codebook: Codebook) -> IndexedPlan:
        """Return the plan of indexed blocks whose indices have these codes."""
        size = self.entries.itemsize
        entries, has_offsets = self.entries.astype(f"<u{size}").tobytes(), len(self.offsets) > 0
        dictionary = Dictionary(self.has_factors, entries, size, codebook, has_offsets)
        return IndexedPlan(dictionary, self.indices, self.scales, self.offsets, self.segment)


def part_by_part(work: Callable[[slice], object], n_values: int, threads: int) -> None:
    """Call ``work`` with one part of an array after another, so that what it makes beside them is small."""

    def run(begin: int, end: int) -> None:
        for first in range(begin * PART, min(end * PART, n_values), PART):
            work(slice(first, min(first + PART, n_values)))

    run_batches(run, -(-n_values // PART), threads, batch=4)


def each_search(values: np.ndarray, segment: int, find: Callable[[slice, np.ndarray], object], threads: int) -> None:
    """Call ``find`` with the numbers and values of the segments of one part after another. The parts do not depend on
    the number of threads: within one, a search begins with what the last one found."""
    at_once, n_segments = max(PART // segment, 1), -(-len(values) // segment)

    def run(begin: int, end: int) -> None:
        for first in range(begin * at_once, min(end * at_once, n_segments), at_once):
            find(slice(first, first + at_once), values[first * segment : (first + at_once) * segment])

    run_batches(run, -(-n_segments // at_once), threads, batch=1)


def n_worth(counts: np.ndarray, n: int, entry_bits: int, value_bits: int) -> int:
    """Return how many entries of a dictionary are worth their bits, the most frequent first: at least one.

    Args:
        counts: How often each is met, falling; none is 0.
        n: Number of values.
        value_bits: Bits of a value that has no entry.
    """

    def bits(n_kept: int) -> float:
        n_absent = n - int(counts[:n_kept].sum())
        # The first index has a code of its own beside all symbols; one more than fits is an escape, and its byte.
        of_absent = value_bits + (INDEX_TYPE.bits if n_kept > MAX_SYMBOLS else 0)
        of_entries = (entry_bits + _LENGTH_BITS) * n_kept
        return code_bits(np.append(counts[:n_kept], n_absent)) + of_entries + of_absent * n_absent

    best = min(len(counts), min(len(counts), MAX_SYMBOLS), key=bits)
    least = bits(best)
    while best > 1 and (fewer := bits(best - -(-best // 4))) <= least:
        best, least = best - -(-best // 4), fewer
    # Beside one value that is frequent, the code of those without an entry is a bit shorter if there is no other entry.
    return 1 if 2 * counts[0] > n and bits(1) < least else best


@lru_cache(256)
def sample_of(n_values: int, segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the segments of a sample begin, and which of their values are looked at: int64[n] each."""
    n_segments = n_values // segment  # a shorter one at the end is like them
    n_sampled = min(N_SEGMENTS * _SEGMENT_SAMPLE, max(n_values // _SAMPLED_APART, _MIN_SEGMENTS * _SEGMENT_SAMPLE))
    n_some = min(n_sampled // _SEGMENT_SAMPLE, n_segments)
    places = spread_places(segment, n_sampled // n_some)
    return spread_starts(n_segments, n_some, segment), places.astype(np.int64)


def spread_starts(n_segments: int, n_some: int, segment: int) -> np.ndarray:
    """Return where some segments begin, the first few of which are from all over: int64[n_some].

    Most arrays that are none of products have no scales in the first ones.
    """
    starts, apart = np.arange(n_some) * n_segments // n_some * segment, max(n_some // N_TRIED_FIRST, 1)
    return np.concatenate([starts[k::apart] for k in range(apart)])


def scale_bits(union: int) -> int:
    """Return how many bits each scale takes in a frame, given the bits that any of them has."""
    return 16 if union & 0xFFFF == 0 else 24 if union & 0xFF == 0 else 32


def short_bits(floats: np.ndarray) -> int:
    """Return about how many bits floats take as those of few bits, given theirs: uint32[n]."""
    magnitudes = floats & np.uint32(0x7FFFFFFF)
    least = magnitudes.min()
    union = int(np.bitwise_or.reduce(magnitudes - least))
    return len(floats) * (1 + union.bit_length() - ((union & -union).bit_length() - 1 if union else 0))


def indexing_of(
    values: np.ndarray,
    match: Callable[[slice, np.ndarray], None],
    scales: np.ndarray,
    offsets: np.ndarray,
    segment: int,
    factors: np.ndarray,
    threads: int,
) -> Indexing | None:
    """Return an array as indices into factors of the scales of its segments; None if no value has one.

    Args:
        values: uintW[n].
        match: Finds the factors of the values in a part of the array, as ``match_products`` writes them: uint16[].
        scales: uint32[n_segments], bits of the scales.
        offsets: uint32[n_segments], bits of the offsets; empty if there are none.
        segment: Number of values of a segment.
        factors: float64[N_FACTORS], the factors.
        threads: Number of threads.
    """
    n, indices = len(values), np.empty(len(values), np.uint8)
    if n < _COUNT_SOME:
        matches, counts = np.empty(n, np.uint16), np.zeros(N_MATCHES, np.int64)
        part_by_part(lambda part: match(part, matches[part]), n, threads)
        count_found(None, matches, counts)
    else:
        n, counts = _counts_of_some(match, n, threads)
    counts[NO_MATCH] = 0
    used = np.argsort(-counts, kind="stable")[: min(int(np.count_nonzero(counts)), MAX_ENTRIES - 1)]
    if not len(used):
        return None
    used = used[: n_worth(counts[used], n, _FACTOR_BITS, values.itemsize * 8)]
    factor_signs = np.where(used > N_FACTORS, -1.0, 1.0)
    entries = (factor_signs * factors[(used - 1) % N_FACTORS]).astype(np.float32)
    order = np.lexsort((factor_signs, entries))
    index_of = np.full(N_MATCHES, len(used), np.uint8)
    index_of[used[order]] = np.arange(len(used))

    def number(part: slice) -> None:
        if len(values) < _COUNT_SOME:
            number_found(np.uint16, matches[part], index_of, indices[part])
            return
        # Found again, while they are in the cache: memory for those of a large array is slower than that.
        of_part = acquire("matches", lambda: np.empty(PART, np.uint16))
        match(part, of_part[: part.stop - part.start])
        number_found(np.uint16, of_part[: part.stop - part.start], index_of, indices[part])
        release("matches", of_part)

    part_by_part(number, len(values), threads)
    n_absent = n - int(counts[used].sum())
    of_indices = np.append(counts[used[order]], n_absent)
    return Indexing(True, entries[order].view(np.uint32), indices, n_absent, scales, offsets, segment, of_indices)


def _counts_of_some(match: Callable[[slice, np.ndarray], None], n: int, threads: int) -> tuple[int, np.ndarray]:
    """Count the factors in some of ``n`` values from all over; return how many values the counts stand for, and as many
    times larger counts: int64[N_MATCHES]. ``match`` is as for :func:`indexing_of`."""
    of_runs: list[tuple[int, np.ndarray]] = []

    def count(begin: int, end: int) -> None:
        counts, matches, n_counted = np.zeros(N_MATCHES, np.int64), np.empty(_COUNTED_AT_ONCE, np.uint16), 0
        for first in range(begin * _COUNTED_AT_ONCE * _COUNTED_APART, n, _COUNTED_AT_ONCE * _COUNTED_APART)[
            : end - begin
        ]:
            stop = min(first + _COUNTED_AT_ONCE, n)
            match(slice(first, stop), matches[: stop - first])
            count_found(None, matches[: stop - first], counts)
            n_counted += stop - first
        of_runs.append((n_counted, counts))

    run_batches(count, -(-n // (_COUNTED_AT_ONCE * _COUNTED_APART)), threads, batch=4)
    n_counted = sum(of_run[0] for of_run in of_runs)
    return _COUNTED_APART * n_counted, _COUNTED_APART * np.sum([of_run[1] for of_run in of_runs], axis=0)
