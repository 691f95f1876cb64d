"""Find the scale and the offset of each segment of an array: weights whose least value was stored beside the scale, as
llama.cpp's Q4_1, Q5_1, Q2_K, Q4_K and Q5_K have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from math import log
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.codebook import MAX_SYMBOLS
from ..kernels.core.specialized import Specialized
from ..kernels.index.guesses import N_FACTORS
from ..kernels.index.matches import N_MATCHES, NO_MATCH
from ..kernels.index.scale_and_offset import MAX_LOOKED_AT, MAX_NEAR, N_KNOWN, PairSearch, find_pairs, match_sums
from ..memory import acquire, release
from .codebooks import code_bits
from .profile import spread_places
from .segments import Indexing, count_found, each_search, indexing_of, sample_of, short_bits

#: A share of values with which nothing is gained, and longer segments have no offsets either; of the first segments.
_MAX_UNMATCHED, _MAX_FIRST_UNMATCHED = 0.25, 0.65
_SAMPLE = 1 << 12  #: values of a sample, at most, if these are some segments
_FEW, _MIN_FEW = 1 << 11, 8  #: values of a sample that tells how many bits scales have; and segments of it at least
#: Lengths that fail after one that has scales and offsets: parts have some each, and the whole has none. One alone may
#: fail because of a few values that are no sums.
_N_FAILED = 2
_N_TRIED_FIRST = 4  #: segments of a sample after which the rest may be known to be in vain
#: Mantissa bits that scales and offsets may have: those of float32, of bfloat16, of float16, and of products of float16
#: and 6 bits, which llama.cpp's types of blocks of 256 have; values of 16 bits may be met with others, too.
_ALL_BITS, _SOME_BITS = 23, (7, 10, 12, 14, 16)
_INTEGERS = np.arange(float(N_FACTORS))
_ALL_WORK = 1 << 60  #: so much that a search tries no more than what is known

_find_pairs, _match_sums = Specialized(find_pairs), Specialized(match_sums)


class Learnt(NamedTuple):
    """Holds what a search has learnt of segments, as :class:`scale_and_offset.PairSearch` does.

    Attributes:
        known: int64[N_KNOWN], the grids that most of them have.
        n_met: int32[N_FACTORS], how many have which grid.
        n_near: int64[2], in how many values near zero told the grid.
    """

    known: np.ndarray
    n_met: np.ndarray
    n_near: np.ndarray


class WayOfSums(NamedTuple):
    """A way to index an array by integers, scales and offsets.

    Attributes:
        bits: How many bits a value takes, about.
        segment: Number of values of a segment.
        n_bits: Mantissa bits of scales and offsets.
        learnt: What the sample has taught of its segments.
    """

    bits: float
    segment: int
    n_bits: int
    learnt: Learnt


def way_of_sums(values: np.ndarray, dtype: DType, lengths: Sequence[int], max_bits: float) -> WayOfSums | None:
    """Return how to index an array by integers, with a scale and an offset for each of its segments, as far as a sample
    promises; None if it is no such array, or takes too many bits as one.

    Args:
        values: uintW[n].
        lengths: Lengths of segments to try, rising.
        max_bits: How many bits a value may take.
    """
    best, n_failed = None, 0
    for segment in lengths:
        starts, places = _sample_of(len(values), segment)
        # Most arrays have no scales in the first segments.
        first = starts[:_N_TRIED_FIRST]
        found = _found(values[first[:, None] + places], dtype, _ALL_BITS, None)
        is_found = found.counts[NO_MATCH] <= _MAX_FIRST_UNMATCHED * len(first) * len(places)
        if is_found and len(starts) > _N_TRIED_FIRST:
            found = _found(values[starts[:, None] + places], dtype, _ALL_BITS, None)
            is_found = found.counts[NO_MATCH] <= _MAX_UNMATCHED * len(starts) * len(places)
        n_failed = 0 if is_found else n_failed + 1
        if is_found:
            way = WayOfSums(_bits(found, segment, values.itemsize * 8), segment, _ALL_BITS, found.learnt)
            best = way if best is None or way.bits < best.bits else best
        elif best is not None and n_failed == _N_FAILED:
            break
    if best is None:
        return None
    best = _with_few_bits(values, dtype, best)
    return best if best.bits < max_bits else None


def _with_few_bits(values: np.ndarray, dtype: DType, way: WayOfSums) -> WayOfSums:
    """Return a way with scales and offsets of as few bits as are best for a part of its sample.

    There, all are held against the grids that are known alone, which finds less than a search that goes on: so what a
    way saves is how many bits fewer it takes than the same with all bits, found likewise.
    """
    starts, places = _sample_of(len(values), way.segment)
    few = starts[: max(_FEW // len(places), _MIN_FEW)]
    part, value_bits = values[few[:, None] + places], values.itemsize * 8
    most = part.size * (_MAX_UNMATCHED if len(few) > _N_TRIED_FIRST else _MAX_FIRST_UNMATCHED)
    bits, n_unmatched = dict[int, float](), list[int]()
    for n_bits in (way.n_bits, *_SOME_BITS):
        found = _found(part, dtype, n_bits, way.learnt.known)
        n_unmatched.append(int(found.counts[NO_MATCH]))
        if n_unmatched[-1] <= most:
            bits[n_bits] = _bits(found, way.segment, value_bits)
        if len(n_unmatched) > 1 and n_unmatched[-1] <= n_unmatched[0]:
            break  # more bits save nothing
    if way.n_bits not in bits:
        return way
    best = min(bits, key=lambda n_bits: bits[n_bits])
    return way._replace(bits=way.bits - bits[way.n_bits] + bits[best], n_bits=best)


def _sample_of(n_values: int, segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the segments of a sample begin, and which of their values are looked at: int64[n] each. All are, as
    long as a search looks at all: the ends of a grid are the least and the largest."""
    starts, _ = sample_of(n_values, segment)
    places = np.arange(segment) if segment <= MAX_LOOKED_AT else spread_places(segment, MAX_LOOKED_AT).astype(np.int64)
    return starts[: max(_SAMPLE // len(places), _N_TRIED_FIRST)], places


class _Found(NamedTuple):
    """Holds what is found in some segments.

    Attributes:
        counts: int64[N_MATCHES], how often each integer is met, and values that are no sums.
        pairs: uint32[2, n_segments], scales and offsets.
        learnt: What the search has learnt of them.
    """

    counts: np.ndarray
    pairs: np.ndarray
    learnt: Learnt


def _found(segments: np.ndarray, dtype: DType, n_bits: int, known: np.ndarray | None) -> _Found:
    """Return what is found in some segments.

    Args:
        segments: uintW[n_segments, n_places], their values, or some of each.
        n_bits: Mantissa bits of scales and offsets.
        known: The only grids that are tried, if given; as in :class:`scale_and_offset.PairSearch`.
    """
    n_segments, length = segments.shape
    part, types = segments.reshape(-1), (segments.dtype, True)
    pairs, matches = np.empty((2, n_segments), np.uint32), np.empty(len(part), np.uint16)
    counts = np.zeros(N_MATCHES, np.int64)
    with _searching() as search:
        if known is not None:
            search.known[:] = known
            search.work[0] = _ALL_WORK
        _find_pairs(types, part, length, 0, n_bits, dtype.code, search, pairs[0], pairs[1])
        learnt = Learnt(*(getattr(search, name).copy() for name in Learnt._fields))
    _match_sums(types, part, length, 0, pairs[0], pairs[1], dtype.code, matches)
    count_found(None, matches, counts)
    return _Found(counts, pairs, learnt)


def _bits(found: _Found, segment: int, value_bits: int) -> float:
    """Return how many bits a value takes, about, given those of one that is no sum."""
    n_seen = int(found.counts.sum())
    of_pairs = sum(short_bits(floats) for floats in found.pairs) / found.pairs.shape[1]
    return _bits_of_values(found.counts.tobytes(), value_bits) / n_seen + of_pairs / segment


@lru_cache(16)
def _bits_of_values(counts: bytes, value_bits: int) -> float:
    """Return how many bits values take that have these integers, int64[N_MATCHES]: one search after another finds the
    same ones."""
    found = np.frombuffer(counts, np.int64)
    kinds = np.sort(found[NO_MATCH + 1 :])[::-1]
    # The entropy of a small sample is too low, because rare symbols are missing from it (Miller 1955).
    unseen = int(np.count_nonzero(kinds)) / (2 * log(2))
    n_absent = int(found.sum()) - int(kinds[:MAX_SYMBOLS].sum())
    return code_bits(np.append(kinds[:MAX_SYMBOLS], n_absent)) + value_bits * n_absent + unseen


def among_sums(values: np.ndarray, dtype: DType, way: WayOfSums, threads: int) -> Indexing | None:
    """Return an array as indices into integers, with a scale and an offset for each of its segments, as a way has them;
    None if no value is such a sum.

    Args:
        values: uintW[n].
        threads: Number of threads.
    """
    segment, types = way.segment, (values.dtype, values.flags.aligned)
    scales, offsets = np.empty((2, -(-len(values) // segment)), np.uint32)

    def find(some: slice, part: np.ndarray) -> None:
        # Each call begins with what the sample has taught: a grid that its first segments seem to have by chance would
        # be held against all others first.
        with _searching() as search:
            for name, learnt in way.learnt._asdict().items():
                getattr(search, name)[:] = learnt
            _find_pairs(types, part, segment, 0, way.n_bits, dtype.code, search, scales[some], offsets[some])

    def match(where: slice, matches: np.ndarray) -> None:
        some, skipped = slice(where.start // segment, -(-where.stop // segment)), where.start % segment
        part = values[where]
        _match_sums(types, part, segment, skipped, scales[some], offsets[some], dtype.code, matches)

    each_search(values, segment, find, threads)
    return indexing_of(values, match, scales, offsets, segment, _INTEGERS, threads)


def _new_search() -> PairSearch:
    """Make the memory of a search, to which nothing is known."""
    return PairSearch(
        bits=np.empty(MAX_LOOKED_AT, np.uint32),
        exact=np.empty(MAX_LOOKED_AT),
        below=np.empty(MAX_LOOKED_AT),
        above=np.empty(MAX_LOOKED_AT),
        numbers=np.empty(MAX_LOOKED_AT),
        least=np.empty(MAX_LOOKED_AT),
        most=np.empty(MAX_LOOKED_AT),
        known=np.zeros(N_KNOWN, np.int64),
        n_met=np.zeros(N_FACTORS, np.int32),
        near=np.empty(3 * MAX_NEAR),
        n_near=np.zeros(2, np.int64),
        work=np.zeros(2, np.int64),
    )


@contextmanager
def _searching() -> Iterator[PairSearch]:
    """Lend the memory of a search, to which nothing is known."""
    search = acquire(PairSearch, _new_search)
    search.known[:] = 0
    search.n_met[:] = 0
    search.n_near[:] = 0
    search.work[:] = 0
    yield search
    release(PairSearch, search)
