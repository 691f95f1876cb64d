"""Find the few values that an array is made of, or the few factors of the scales of its segments, such as weights that
were quantized: what frames of indexed blocks are planned from (docs/format.md section 10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import gcd, inf, log, log2, prod
from typing import NamedTuple

import numpy as np

from ..dtypes import DType
from ..format.codebook import MAX_SYMBOLS
from ..format.dictionary import INDEX_TYPE, MAX_ENTRIES
from ..format.modes import lossless
from ..kernels.core.specialized import Specialized
from ..kernels.index.distinct_values import (
    MARKS_LOG2,
    MAX_DISTINCT,
    N_SHORT,
    SLOTS_LOG2,
    WINDOW,
    add_distinct,
    count_short,
    find_indices,
    look_up_short,
    repeats_values,
)
from ..kernels.index.guesses import MAX_KNOWN, N_FACTORS, N_SMALL
from ..kernels.index.lane_steps import N_BOUNDS, N_ROWS, SEGMENTS
from ..kernels.index.matches import (
    N_MATCHES,
    NO_MATCH,
    SegmentSample,
    match_products,
    try_segments,
)
from ..kernels.index.segment_scales import (
    INTEGERS,
    MAX_LARGEST,
    MAX_LOOKED_AT,
    MAX_SHORT,
    N_BOUNDED,
    ONE,
    SEARCHED,
    SIGNIFICANDS,
    TRUST,
    Factors,
    ScaleSearch,
    find_scales,
)
from ..memory import acquire, release
from ..threads import n_threads
from .codebooks import code_bits
from .offsets import among_sums, way_of_sums
from .profile import spread_sample
from .request import EncodeRequest, of_one_codebook
from .segments import (
    N_SEGMENTS,
    NO_SCALES,
    PART,
    Indexing,
    count_found,
    each_search,
    indexing_of,
    n_worth,
    number_found,
    part_by_part,
    sample_of,
    scale_bits,
    spread_starts,
)

INDEXED_LOG2 = 16  #: of indexed blocks: in smaller ones, headers would be a larger part
MIN_INDEXED = 1 << 14  #: values that an array must have at least to be worth the search
_SAMPLE, _MIN_COVERED = 1 << 12, 0.9  #: values of a sample, and the share of it that a dictionary must have
_SEGMENT_LENGTHS = 16, 32, 64, 128, 256  #: of groups that share a scale, beside rows and the whole array
_MIN_SEGMENT = _SEGMENT_LENGTHS[0]
_MIN_PRODUCTS = 8  #: values other than 0 that a segment must have, on average
_SEGMENTS_APART = 64  #: one of so many is looked at again before all are
_RARELY_UNMATCHED = 0.002  #: a share of values that are no products with which no more segments are looked at
_SURE_BITS = 120  #: that a segment's values tell beforehand if they are multiples of one scale: so many are no chance
_N_TOLD, _TOLD_BITS = 8, 32  #: segments whose different values are counted, and bits that those must tell of a scale
#: Shares of the bits that a value may take, and takes in the next way, with which one is taken without a closer look.
_CLEAR, _CLEARLY_BEST = 0.9, 0.93
_MAX_CHECKED, _MAX_WAYS = 2, 2  #: ways of which more segments, and all products, are looked for
_MAX_UNMATCHED = 0.25  #: a share of them with which nothing is gained, and longer segments have no scales either
_SIGNS_SAMPLE = 1 << 12  #: values by which scales of either sign are compared with others
_FEW_BITS = 3  #: of a value, with which no scales are looked for
#: Different values of a segment, as shares of its values and of all factors, that may be integers with an offset.
_FEW_OF_PLACES, _FEW_OF_KINDS = 0.5, 0.25
_MAX_ABSENT = 0.1  #: a share of values without factors with which no offsets are looked for
#: The share of the bits that other factors than integers, scales where values are few, and another length may take if
#: they are to be better than by chance of a sample; and that which factors may take with scales of either sign, if
#: those are worth their time: nearly as many where the largest number of a group has either sign.
_CLEARLY_FEWER, _FEWER_SIGNED = 0.97, 0.98
#: The share of the bits without scales, which are estimated too high, that those with scales may promise to take: of
#: more, the search for all scales takes many times as long as encoding without it, for little or nothing.
_WORTH = 0.9
#: Scales that are far enough from what processors may take for zero, and their inverses, too.
_MIN_SCALE, _SCALES_END = 2.0**-125, 2.0**125
_MAX_POWER = 6  #: of two: factors are larger by so much than those which are tried for the largest value of a segment

_repeats_values, _add_distinct = Specialized(repeats_values), Specialized(add_distinct)
_find_indices = Specialized(find_indices)
_count_short, _look_up_short = Specialized(count_short), Specialized(look_up_short)
_find_scales, _match_products = Specialized(find_scales), Specialized(match_products)
_try_segments = Specialized(try_segments)
_BASE = 1 << INDEX_TYPE.head_bits - 1  #: of indices, from which the first and the last are as far away


def index_request(request: EncodeRequest, indices: np.ndarray) -> EncodeRequest:
    """Return the request to encode the indices of an array that may be indexed: uint8[n_values]."""
    values, options = request.values._replace(bits=indices, dtype=INDEX_TYPE), of_one_codebook(request.options)
    return request._replace(values=values, bit_layout=lossless(INDEX_TYPE), options=options, one_base=_BASE)


def may_be_indexed(request: EncodeRequest) -> bool:
    """Return False where no dictionary is looked for, whatever the values are."""
    values, dtype, _, _ = request.values
    if len(values) < MIN_INDEXED or not request.options.indexed or not dtype.tail_bits:
        return False
    is_exact = not request.bit_layout.lossy or request.options.exact_if_smaller
    return is_exact and request.base is None and request.fixed is None and request.standalone


def find_indexing(request: EncodeRequest) -> Indexing | None:
    """Find a dictionary for an array, if its values are few, or few multiples of some scales.

    Args:
        request: The array and how to encode it losslessly; :func:`may_be_indexed` is True for it.

    Returns:
        The array as indices; None if no dictionary has nearly all of its values.
    """
    values, dtype, shape, _ = request.values
    if not repeats(values):  # most arrays
        return None
    threads = n_threads(request.threads, len(values))
    sample = spread_sample(values, _SAMPLE)
    entries, counts = np.unique(sample, return_counts=True)
    if len(entries) == 1:
        return None  # other kinds of blocks are as small
    found = []
    covered, usual_bits = _covered(counts), _usual_bits(entries, counts, dtype)
    if covered >= _MIN_COVERED and code_bits(counts) / len(sample) + (1 - covered) * dtype.bits < usual_bits:
        found.append(_among(values, entries, counts, threads))
    max_bits = found[0].bits(dtype.bits) / len(values) if found else inf
    if dtype.predictable and max_bits > _FEW_BITS:
        n_zero = int(counts[entries << entries.dtype.type(1) == 0].sum())  # of either sign
        lengths = _segment_lengths(request.shapes or (shape,), len(values), 1 - n_zero / len(sample))
        most = min(_CLEARLY_FEWER * max_bits, _WORTH * usual_bits)
        found += _by_segments(values, dtype, lengths, most, bool(found) and not found[0].n_absent, threads)
    if len(found) < 2:
        return found[0] if found else None
    return min(found, key=lambda indexing: indexing.bits(dtype.bits))


def _by_segments(
    values: np.ndarray, dtype: DType, lengths: Sequence[int], max_bits: float, has_few: bool, threads: int
) -> list[Indexing]:
    """Return an array as indices into factors of the scales of its segments, or into integers where those have offsets,
    in the ways that promise the fewest bits: an empty list if it is no such array, or takes too many bits as one.

    Args:
        values: uintW[n].
        lengths: Lengths of segments to try, rising.
        max_bits: How many bits a value may take.
        has_few: Whether all values are few different ones, which are no groups of scales and offsets.
        threads: Number of threads.
    """
    ways, sums = _ways_by_scales(values, dtype, lengths, max_bits), None
    if not has_few and not any(_is_without_offsets(values, dtype, way) for way in ways):
        sums = way_of_sums(values, dtype, lengths, max_bits)
    if sums is not None and (not ways or sums.bits < _CLEARLY_FEWER * ways[0].bits):
        ways = []
    found = _among_products(values, dtype, ways, threads)
    is_open = not any(indexing.n_absent <= _MAX_ABSENT * len(values) for indexing in found)
    with_offsets = among_sums(values, dtype, sums, threads) if sums is not None and is_open else None
    return found if with_offsets is None else [*found, with_offsets]


def repeats(values: np.ndarray) -> bool:
    """Return True if neighboring values repeat each other, as ``repeats_values`` looks for it."""
    kind = "windows", values.dtype
    marks, seen = acquire(kind, lambda: (np.empty(1 << MARKS_LOG2, np.uint16), np.empty(WINDOW, values.dtype)))
    result = _repeats_values((values.dtype, values.flags.aligned), values, marks, seen)
    release(kind, (marks, seen))
    return bool(result)


def _covered(counts: np.ndarray) -> float:
    """Estimate the share of an array that a dictionary has if its entries are the most frequent values of a sample.

    Values that are met once in the sample do not count: they are about as large a part of it as values that it misses
    are of the array (Good and Turing).

    Args:
        counts: How often each value of the sample is met in it.
    """
    repeated = counts[counts > 1]
    return float(np.sort(repeated)[-MAX_ENTRIES + 1 :].sum() / counts.sum())


def _usual_bits(entries: np.ndarray, counts: np.ndarray, dtype: DType) -> float:
    """Estimate the bits that a value takes without a dictionary: a code of its head, of a bit at least, and a tail
    without the low bits that are zero in all values, which numbers that were rounded to fewer bits have.

    Args:
        entries: uintW[m], the different values of a sample.
        counts: How often each is met in it.
    """
    lowest = int(np.bitwise_or.reduce(entries)) | 1 << dtype.tail_bits - 1
    heads = (entries >> entries.dtype.type(dtype.head_shift)).astype(np.int64) & dtype.head_mask
    shares = np.bincount(heads, counts) / counts.sum()
    shares = shares[shares > 0]
    head_bits = float((shares * np.maximum(-np.log2(shares), 1)).sum())
    return head_bits + dtype.tail_bits - ((lowest & -lowest).bit_length() - 1)


def _among(values: np.ndarray, entries: np.ndarray, counts: np.ndarray, threads: int) -> Indexing:
    """Return an array as indices into its different values if a dictionary holds them all, else into those that are
    frequent: of types of 32 bits and more, in a sample.

    Args:
        values: uintW[n].
        entries: uintW[m], the different values of the sample.
        counts: How often each is met in it.
        threads: Number of threads.
    """
    if values.itemsize == 2:
        return _among_short(values, threads)
    slots, found = np.zeros(1 << SLOTS_LOG2, np.uint16), np.empty(MAX_DISTINCT, values.dtype)
    types = values.dtype, values.flags.aligned
    n_entries = _add_distinct(types, values, slots, found, 0)
    if n_entries >= 0:
        entries = np.sort(found[:n_entries])
    else:  # the last index is for all others
        entries = np.sort(entries[np.argsort(-counts, kind="stable")[: MAX_ENTRIES - 1]])
    slots[:] = 0
    _add_distinct((entries.dtype, True), entries, slots, found, 0)
    indices, absent = np.empty(len(values), np.uint8), np.uint8(min(len(entries), MAX_ENTRIES - 1))
    of_parts: list[np.ndarray] = []

    def find(part: slice) -> None:
        of_part = np.zeros(MAX_ENTRIES, np.int64)
        _find_indices(types, values[part], slots, found, absent, indices[part], of_part)
        of_parts.append(of_part)

    part_by_part(find, len(values), threads)
    of_indices = np.sum(of_parts, axis=0)
    if n_entries >= 0:
        return Indexing(False, entries, indices, 0, NO_SCALES, NO_SCALES, 0, of_indices)
    kept, of_kept = _without_rare(of_indices[: len(entries)], len(values), values.itemsize * 8)
    if len(kept) < len(entries):
        index_of = np.full(MAX_ENTRIES, len(kept), np.uint8)
        index_of[kept] = np.arange(len(kept))
        number_found(np.uint8, indices, index_of, indices)
    return Indexing(False, entries[kept], indices, int(of_kept[-1]), NO_SCALES, NO_SCALES, 0, of_kept)


def _among_short(values: np.ndarray, threads: int) -> Indexing:
    """Return an array of 16 bits a value as :func:`_among` does."""
    types, counts = values.flags.aligned, np.zeros(N_SHORT, np.uint32)
    _count_short(types, values, counts)
    kept = np.flatnonzero(counts)
    of_kept = np.append(counts[kept].astype(np.int64), 0)
    if len(kept) > MAX_ENTRIES:
        kept, of_kept = _without_rare(counts, len(values), 16)
    index_of = np.full(N_SHORT, min(len(kept), MAX_ENTRIES - 1), np.uint8)
    index_of[kept] = np.arange(len(kept))
    indices = np.empty(len(values), np.uint8)
    part_by_part(lambda part: _look_up_short(types, values[part], index_of, indices[part]), len(values), threads)
    return Indexing(False, kept.astype(np.uint16), indices, int(of_kept[-1]), NO_SCALES, NO_SCALES, 0, of_kept)


def _without_rare(counts: np.ndarray, n: int, value_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which entries are not met so rarely that their values are shorter as exceptions.

    Args:
        counts: How often each entry is met.

    Returns:
        (int64[n_kept], rising; int64[n_kept + 1], how often each of these is met, and all other values).
    """
    ranked = np.argsort(-counts.astype(np.int64), kind="stable")[: MAX_ENTRIES - 1]
    ranked = ranked[: max(int(np.count_nonzero(counts[ranked])), 1)]
    kept = np.sort(ranked[: n_worth(counts[ranked], n, value_bits, value_bits)])
    of_kept = counts[kept].astype(np.int64)
    return kept, np.append(of_kept, n - of_kept.sum())


class _Way(NamedTuple):
    """A way to index an array by factors of the scales of its segments.

    Attributes:
        bits: How many bits a value takes, about; infinite if too many values of a sample are no products.
        unmatched: The share of these in the sample.
        n_kinds: How many different factors, with their signs, the sample has.
        factor_bits: log2 of the factors, on average: so many bits fewer than its type has a value tells of a scale.
        segment: Number of values of a segment.
        factors: The factors.
    """

    bits: float
    unmatched: float
    n_kinds: int
    factor_bits: float
    segment: int
    factors: Factors


def _ways_by_scales(values: np.ndarray, dtype: DType, lengths: Sequence[int], max_bits: float) -> list[_Way]:
    """Return the one or two ways to index an array by factors of the scales of its segments that promise the fewest
    bits, the best first: an empty list if it is no such array, or takes too many bits as one.

    Args:
        values: uintW[n].
        lengths: Lengths of segments to try, rising.
        max_bits: How many bits a value may take.
    """
    ways = sorted(_ways(values, dtype, lengths, max_bits), key=_rank)[:_MAX_CHECKED]
    if ways and _is_clear(values, dtype, ways, max_bits):
        return ways[:1]
    if any(way.unmatched >= _RARELY_UNMATCHED or way.n_kinds > MAX_SYMBOLS for way in ways):
        ways = [again for way in ways if (again := _checked(values, way)).bits < max_bits]
    return sorted(ways, key=_rank)[:_MAX_WAYS]


def _among_products(values: np.ndarray, dtype: DType, ways: Sequence[_Way], threads: int) -> list[Indexing]:
    """Return an array as indices into factors of the scales of its segments, in the first of some ways, and in the next
    one if that is better after all."""
    found: list[Indexing] = []
    for way in ways:
        # More segments may have no scale than those of a sample, and then another length is better after all.
        if not found or _CLEARLY_FEWER * found[0].bits(dtype.bits) > way.bits * len(values):
            indexing = _products(values, way.segment, way.factors, threads)
            found += [indexing] if indexing is not None else []
    return found


def _is_clear(values: np.ndarray, dtype: DType, ways: Sequence[_Way], max_bits: float) -> bool:
    """Return True if a closer look at some ways, the best first, would hardly choose another one, or none."""
    if ways[0].bits >= _CLEAR * max_bits or any(ways[0].bits >= _CLEARLY_BEST * _rank(way) for way in ways[1:]):
        return False
    return _is_told(values, dtype, ways[0])


def _is_told(values: np.ndarray, dtype: DType, way: _Way) -> bool:
    """Return True if a segment's values tell that they are integers times a scale: if that is no chance. Values that
    are there once more tell nothing more."""
    n_distinct, n_places = _n_distinct(values, way)
    n_telling = n_distinct - way.unmatched * n_places  # the others are hardly ever repeated
    value_bits = dtype.mantissa_bits + 1 - way.factor_bits
    return way.factors.form == INTEGERS and n_telling * value_bits >= _TOLD_BITS


def _may_have_offsets(values: np.ndarray, way: _Way) -> bool:
    """Return True if segments have few different values each, but all together many factors: those of a few integers
    and an offset are such, if a scale that is a part of the integers' is found by chance."""
    n_distinct, n_places = _n_distinct(values, way)
    return n_distinct < _FEW_OF_PLACES * n_places and n_distinct < _FEW_OF_KINDS * way.n_kinds


def _is_without_offsets(values: np.ndarray, dtype: DType, way: _Way) -> bool:
    """Return True if a way by scales leaves nothing to look for that has offsets."""
    return way.unmatched <= _MAX_ABSENT and _is_told(values, dtype, way) and not _may_have_offsets(values, way)


def _n_distinct(values: np.ndarray, way: _Way) -> tuple[float, int]:
    """Return how many different values the first segments of a sample have, on average, and how many values."""
    starts, places = sample_of(len(values), way.segment)
    some = np.sort(values[starts[:_N_TOLD, None] + places], axis=1)
    return 1 + float(np.count_nonzero(some[:, 1:] != some[:, :-1], axis=1).mean()), len(places)


def _rank(way: _Way) -> float:
    """Return the bits by which ways are compared: other factors than integers have to promise clearly fewer."""
    return way.bits if way.factors.form == INTEGERS else way.bits / _CLEARLY_FEWER


def _ways(values: np.ndarray, dtype: DType, lengths: Sequence[int], max_bits: float) -> list[_Way]:
    """Return the ways that promise fewer bits of a value than ``max_bits``, given lengths of segments, rising."""
    ways: list[_Way] = []
    for factors in factor_sets(dtype):
        best = min(ways, key=lambda way: way.bits, default=None)
        if best is not None and _is_sure(best, factors, dtype):
            continue
        if best is not None:
            # With other factors, values that are no products of these ones are some more of them, or else the length of
            # segments is of no help.
            way = _sampled(values, best.segment, factors)
            if not way.bits < best.bits:
                continue
        for segment in lengths:
            way = _sampled(values, segment, factors)
            if way.bits < max_bits:
                ways.append(way)
            # If parts have no scale, the whole has none; but values that are no products are more of a short part.
            if way.unmatched > _MAX_UNMATCHED and len(factors.largest) > 1:
                break
    return ways


def _is_sure(way: _Way, factors: Factors, dtype: DType) -> bool:
    """Return True if a way leaves nothing to gain by other factors: if so many values of a segment are no multiples of
    one scale by chance, and the others take hardly any bits, or it is levels that are tried, which no multiples are."""
    value_bits = dtype.mantissa_bits + 1 - log2(way.factors.last)  # by which a value is none of the multiples
    if way.segment * (1 - way.unmatched) * value_bits < _SURE_BITS:
        return False
    return factors.form == SEARCHED or way.unmatched * dtype.bits < (1 - _CLEARLY_FEWER) * way.bits


def _segment_lengths(shapes: Sequence[Sequence[int]], n: int, share: float) -> list[int]:
    """Return how many values may share a scale, rising: a part of a row, a row, what has the same first index or first
    few, as the weights of one channel of a convolution have, or all ``n``. A scale for very few that are not 0 saves
    nothing, and is not among them.

    Args:
        shapes: Those of the tensors that the array holds end to end.
        share: Share of these that are not 0.
    """
    n_inner = min((len(shape) for shape in shapes), default=0) - 1  #: dimensions that the parts of all tensors may have
    spans = [gcd(*(prod(shape[-k:]) for shape in shapes)) for k in range(1, n_inner + 1)]
    lengths = {length for length in _SEGMENT_LENGTHS for span in spans or [n] if span % length == 0}
    enough = [length for length in {*lengths, *spans, n} if length * share >= _MIN_PRODUCTS]
    return sorted(length for length in enough if _MIN_SEGMENT <= length <= n)


def _sampled(values: np.ndarray, segment: int, factors: Factors) -> _Way:
    """Return a way to index an array, as far as a sample of its segments promises."""
    return _tried(values, segment, factors, *sample_of(len(values), segment))


def _checked(values: np.ndarray, way: _Way) -> _Way:
    """Return what a larger sample of whole segments promises of a way, if there are more of them than that."""
    n_segments = len(values) // way.segment
    n_some = max(n_segments // _SEGMENTS_APART, 2 * N_SEGMENTS)
    if n_segments < 2 * n_some or way.segment > MAX_LOOKED_AT:
        return way
    starts = spread_starts(n_segments, n_some, way.segment)
    return _tried(values, way.segment, way.factors, starts, np.arange(way.segment), MAX_SYMBOLS)


def _tried(
    values: np.ndarray,
    segment: int,
    factors: Factors,
    starts: np.ndarray,
    places: np.ndarray,
    max_kinds: int = N_MATCHES,
) -> _Way:
    """Return a way to index an array, as far as some of its segments promise.

    Args:
        values: uintW[n].
        segment: Number of values of a segment.
        starts: int64[n_segments], where the segments begin, as :func:`spread_starts` has them.
        places: int64[n_places], which of their values are looked at.
        max_kinds: Number of factors, with their signs, of which the rarest are left out, which a small sample cannot
            tell from those that are rare in the sample.
    """
    counts, n = np.zeros(N_MATCHES, np.int64), len(places)
    scratch = np.empty(n, values.dtype), np.empty(n, np.uint16), np.empty(1, np.uint32), np.zeros(1, np.uint32)
    types, most = (values.dtype, values.flags.aligned), int(_MAX_UNMATCHED * len(starts) * n)
    with _searching() as search:
        sample = SegmentSample(starts, places, *scratch)
        _try_segments(types, values, sample, most, factors, search, counts)
    n_seen = int(counts.sum())
    unmatched = float(counts[NO_MATCH] / n_seen)
    if unmatched > _MAX_UNMATCHED:
        return _Way(inf, unmatched, 0, 0.0, segment, factors)
    kinds = np.sort(counts[NO_MATCH + 1 :])[::-1]
    n_kinds = int(np.count_nonzero(kinds))
    # The entropy of a small sample is too low, because rare symbols are missing from it (Miller 1955).
    unseen = n_kinds / (2 * log(2))
    n_absent = n_seen - int(kinds[:max_kinds].sum())
    of_values = code_bits(np.append(kinds[:max_kinds], n_absent)) + values.itemsize * 8 * n_absent
    bits = (of_values + unseen) / n_seen + scale_bits(int(sample.union[0])) / segment
    of_factors = counts[NO_MATCH + 1 :].reshape(2, -1).sum(axis=0)[1 : factors.last + 1]
    factor_bits = float(of_factors @ np.log2(factors.values[1 : factors.last + 1])) / max(int(of_factors.sum()), 1)
    return _Way(float(bits), unmatched, n_kinds, factor_bits, segment, factors)


def _products(values: np.ndarray, segment: int, factors: Factors, threads: int) -> Indexing | None:
    """Return an array as indices into factors of the scales of its segments; None if no value is a product."""
    scales = _scales_of(values, segment, factors, threads)
    signs = _signs_of_scales(values, segment, scales, factors)
    unsigned = scales.copy() if signs is not None else scales

    def match(where: slice, matches: np.ndarray) -> None:
        of_segments, skipped = slice(where.start // segment, -(-where.stop // segment)), where.start % segment
        part = values[where]
        if signs is not None:
            part = part ^ np.repeat(signs[of_segments], segment)[skipped : skipped + len(part)]
        _match(part, segment, skipped, unsigned[of_segments], factors, matches)

    if signs is not None:
        scales[(signs != 0) & (scales != 0)] |= np.uint32(1 << 31)
    return indexing_of(values, match, scales, NO_SCALES, segment, factors.values, threads)


def _scales_of(values: np.ndarray, segment: int, factors: Factors, threads: int) -> np.ndarray:
    """Return bits of the scales of segments, 0 where none was found: uint32[n_segments]."""
    types, scales = (values.dtype, values.flags.aligned), np.empty(-(-len(values) // segment), np.uint32)

    def find(some: slice, part: np.ndarray) -> None:
        with _searching() as search:
            _find_scales(types, part, segment, 0, factors, search, scales[some])

    each_search(values, segment, find, threads)
    if factors.form == SIGNIFICANDS and len(scales) > 1:  # a power of two more or less in a scale fits as well
        start = values[: max(min(len(values), PART) // segment, 1) * segment]
        scales = min(scales, _on_one_power(scales), key=lambda way: _matches_entropy(start, segment, way, factors))
    return scales


def _signs_of_scales(values: np.ndarray, segment: int, scales: np.ndarray, factors: Factors) -> np.ndarray | None:
    """Return the sign bits of the scales with which the largest factor of each short segment is negative, if values
    take clearly fewer bits so: uintW[n_segments], each 0 or the sign bit of a value. Else, return None.

    Numbers from -8 to 7 with a scale of either sign, as in GGUF, are such: -8 is what the largest value has.
    """
    if segment > _SEGMENT_LENGTHS[-1]:
        return None
    start = values[: min(len(values), _SIGNS_SAMPLE) // segment * segment]
    negated = start ^ np.repeat(_signs_of_largest(start, segment), segment)
    usual, signed = (_matches_entropy(way, segment, scales, factors) for way in (start, negated))
    return _signs_of_largest(values, segment) if signed < _FEWER_SIGNED * usual else None


def _signs_of_largest(values: np.ndarray, segment: int) -> np.ndarray:
    """Return the sign bit for each segment whose largest magnitude is that of a positive value, and 0 for others:
    uintW[n_segments], given values that are a multiple of a short segment."""
    signs, sign_bit = np.empty(len(values) // segment, values.dtype), values.dtype.type(1 << values.itemsize * 8 - 1)
    at_once = PART // segment
    for first in range(0, len(signs), at_once):
        of_part = signs[first : first + at_once]
        part = values[first * segment : (first + len(of_part)) * segment].reshape(-1, segment)
        columns = np.ascontiguousarray(part.T)  # the first values of all segments, the second ones, ...
        largest = columns.max(0)  # that of the negative values, if there are any
        positive = columns.view(f"i{values.itemsize}").max(0)
        of_part[:] = (positive >= (largest & ~sign_bit).view(positive.dtype)) * sign_bit
    return signs


def _on_one_power(scales: np.ndarray) -> np.ndarray:
    """Return scales times powers of two that bring them close to each other: uint32[n_segments], as they are given.

    Factors that are significands make up for the powers, if those are not too large.
    """
    floats = scales.view(np.float32).astype(np.float64)
    is_known = floats > 0
    if not is_known.any():
        return scales
    logs = np.log2(floats, where=is_known, out=np.zeros(len(floats)))
    away = np.clip(np.round(logs - np.median(logs[is_known])), -_MAX_POWER, _MAX_POWER)
    moved = np.ldexp(floats, -away.astype(np.int64))
    usable = is_known & (moved >= _MIN_SCALE) & (moved < _SCALES_END)
    result: np.ndarray = np.where(usable, moved, floats).astype(np.float32).view(np.uint32)
    return result


def _matches_entropy(values: np.ndarray, segment: int, scales: np.ndarray, factors: Factors) -> float:
    """Return the entropy in bits, of all values together, of the factors that they have with these scales."""
    matches, counts = np.empty(len(values), np.uint16), np.zeros(N_MATCHES, np.int64)
    _match(values, segment, 0, scales[: -(-len(values) // segment)], factors, matches)
    count_found(None, matches, counts)
    return code_bits(counts)


def _new_search() -> ScaleSearch:
    """Make the memory of a search, to which nothing is known."""
    n_tried = MAX_LARGEST * N_FACTORS
    return ScaleSearch(
        bits=np.empty(MAX_LOOKED_AT, np.uint32),
        magnitudes=np.empty(MAX_LOOKED_AT, np.float32),
        numbers=np.empty(MAX_LOOKED_AT, np.uint16),
        factors=np.empty(MAX_LOOKED_AT, np.float32),
        exact=np.empty(N_BOUNDED),
        below=np.empty(N_BOUNDED),
        above=np.empty(N_BOUNDED),
        small_bits=np.empty(N_SMALL, np.uint32),
        small=np.empty(N_SMALL),
        halves=np.empty(N_SMALL),
        ratios=np.empty(N_SMALL, np.int32),
        margins=np.empty(N_SMALL, np.int32),
        most=np.empty(N_SMALL, np.int32),
        integers=np.append(np.ones(MAX_KNOWN), np.arange(1, N_FACTORS + 1)).astype(np.uint16),
        lost=np.empty(N_FACTORS, np.uint16),
        fits=np.empty(N_FACTORS, np.uint8),
        left=np.empty(n_tried, np.uint8),
        n_left=np.empty(MAX_LARGEST, np.int64),
        queue=np.empty(n_tried, np.uint16),
        largest=np.empty(MAX_LARGEST, np.uint32),
        known=np.zeros(1 + MAX_KNOWN, np.int64),
        n_met=np.zeros(N_FACTORS, np.int32),
        before=np.full(1, ONE, np.uint32),
        trust=np.full(1, TRUST, np.int64),
        work=np.zeros(2, np.int64),
        small_work=np.zeros(2, np.int64),
        rows=np.empty(SEGMENTS * MAX_SHORT, np.float32),
        columns=np.empty(SEGMENTS * MAX_SHORT, np.float32),
        lanes=np.empty(N_ROWS * SEGMENTS, np.uint32),
        bounds=np.empty(N_BOUNDS * SEGMENTS),
        ends=np.empty(4, np.int64),
        n_small=np.zeros(2, np.int64),
        of_largest=np.zeros(2, np.int64),
    )


@contextmanager
def _searching() -> Iterator[ScaleSearch]:
    """Lend the memory of a search, to which nothing is known."""
    search = acquire(ScaleSearch, _new_search)
    search.known[0] = 0
    search.n_met[:] = 0
    search.before[0] = ONE
    search.trust[0] = TRUST
    search.work[:] = 0
    search.small_work[:] = 0
    search.n_small[:] = 0
    search.of_largest[:] = 0
    yield search
    release(ScaleSearch, search)


def _match(
    values: np.ndarray, segment: int, skipped: int, scales: np.ndarray, factors: Factors, matches: np.ndarray
) -> None:
    """Find the factors of values, as :func:`match_products` does."""
    search = acquire(ScaleSearch, _new_search)  # scratch alone: what is known does not matter
    _match_products((values.dtype, values.flags.aligned), values, segment, skipped, scales, factors, search, matches)
    release(ScaleSearch, search)


#: Magnitudes of the levels of NormalFloat4, negative and positive ones, which differ.
_NORMAL_FLOAT4 = (
    0.07958029955625534, 0.09105003625154495, 0.16093020141124725, 0.18477343022823334, 0.24611230194568634,
    0.28444138169288635, 0.33791524171829224, 0.39491748809814453, 0.44070982933044434, 0.5250730514526367,
    0.5626170039176941, 0.6961928009986877, 0.7229568362236023, 1.0,
)  # fmt: skip


@cache
def factor_sets(dtype: DType) -> tuple[Factors, ...]:
    """Return the sets of factors that values of a type may have, each with either sign.

    They are integers up to 255, or up to 128 where the type has too few bits to tell larger ones apart; significands
    of 4 bits times powers of two, as fp8 has; and the levels of NormalFloat4 (Dettmers et al. 2023, QLoRA, appendix E).
    """
    significands = np.ldexp(np.tile(np.arange(8.0, 16.0), 30), np.repeat(np.arange(-23, 7), 8))
    integers = np.arange(1.0, 256.0 if dtype.mantissa_bits > 7 else 129.0)
    normal = np.array(_NORMAL_FLOAT4, np.float32).astype(np.float64)
    return (
        _factors(integers, integers, INTEGERS, dtype),
        _factors(significands, np.arange(8.0, 16.0), SIGNIFICANDS, dtype),
        _factors(normal, normal[-1:], SEARCHED, dtype),
    )


def _factors(values: np.ndarray, largest: np.ndarray, form: int, dtype: DType) -> Factors:
    """Return factors above 0, which rise, as kernels take them: with 0 before them and infinity behind them."""
    padded = np.full(N_FACTORS + 1, np.inf)
    padded[: len(values) + 1] = 0.0, *values
    middles = np.full(N_FACTORS, np.inf)
    middles[: len(values)] = (padded[: len(values)] + padded[1 : len(values) + 1]) / 2
    return Factors(padded[:-1], middles, largest, len(values), form, dtype.code)
