"""The whole plan of a small frame by one kernel: what :mod:`gcodec.plan` decides step by step, where an array of one
level has nothing special about it.

A small array is planned by calls that each take longer to make than to run. This kernel makes them all at once, in the
same order and with the same arithmetic, so that the bytes of the frame are the same; what it does not know it leaves to
the steps, by returning :data:`SPECIAL`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.bundles import Books, Columns, SampleScratch, SampleSpec
from ..core.jit import allocating, kernel
from ..core.unaligned import store_u64, subarray
from ..entropy.code_tables import fill_encoders
from ..entropy.codebook_fit import RECORD_BYTES, choose_symbols, fill_bin_costs, find_lengths, spent, write_records
from ..entropy.prefix_code import ESCAPE, MAX_LENGTH
from ..heads.sign_in_head import MAX_TOLD_HEADS, bits_tell
from ..sample.code_costs import choose_codebooks, cluster, compare_references, rows_in_use
from ..sample.count import SampleCounts, count_sample
from ..sample.count_both import count_both_heads

SPECIAL = -1
N_CODEBOOKS_AT, PRELUDE_BYTES_AT = 11, 32  #: places in a frame's header


class PlanRules(NamedTuple):
    """The numbers by which :mod:`gcodec.plan` decides.

    Attributes:
        stream_bits: what the length of a sub-stream costs.
        empty_bits: what a sub-stream of zeros costs.
        reference_bits: what a reference of a sub-stream costs.
        min_wide: values from which a wide head is considered.
        min_saving: least share of the size that it has to save.
        max_codebooks: max codebooks of a frame.
        max_clustered: max blocks that they are made from.
        table_cost: what a codebook costs, in 1/256 bits, if all values are counted.
        max_symbols: max symbols of a codebook besides zero and the escape.
        lengths_from: values from which both lengths of sub-streams are weighed; below, it is the short one.
        many_zeros: percentage of zeros from which an array may be sparse, which one kernel does not plan.
        min_signed: values from which a sign in the head is considered, which one kernel does not plan either.
        min_fine: likewise three mantissa bits with it.
        min_mixed: likewise levels of values with low bits that are zero.
    """

    stream_bits: float
    empty_bits: int
    reference_bits: int
    min_wide: int
    min_saving: float
    max_codebooks: int
    max_clustered: int
    table_cost: int
    max_symbols: int
    lengths_from: int
    many_zeros: int
    min_signed: int
    min_fine: int
    min_mixed: int


class PlanForm(NamedTuple):
    """A value type, with its usual head or a wide one, and a length of sub-streams, as plans take it.

    Attributes:
        spec: how the array is sampled.
        first_every: to compare forms, one piece in so many is sampled of each block,
        first_step: of one block in so many.
        head_bits: bits of the head.
        tail_bits: bits of the tail.
        marks: uint8[2], see ``code_tables.fill_tables``.
        shifts: uint8[8, 2], likewise.
        start: uint8[n], the prelude before the records of codebooks.
    """

    spec: SampleSpec
    first_every: int
    first_step: int
    head_bits: int
    tail_bits: int
    marks: np.ndarray
    shifts: np.ndarray
    start: np.ndarray


class ShippedBooks(NamedTuple):
    """Codebooks that come with gcodec.

    Attributes:
        costs: uint32[n, n_bins], bits of each bin.
        record_bits: uint64[1 + n], bits of the records, after a 0 for a codebook that is made.
        ranges: int64[n, 1, 2], (first, count) of relative heads.
        lengths: uint8[n, 256], bits of codes.
        records: uint8[n, 16], the records.
    """

    costs: np.ndarray
    record_bits: np.ndarray
    ranges: np.ndarray
    lengths: np.ndarray
    records: np.ndarray


class PlanMemory(NamedTuple):
    """The memory that a plan is made in, and its results.

    Attributes:
        sample: scratch to count a sample.
        columns: no column references.
        books: result: tables to encode with, of as many codebooks as there may be.
        choice: int64[n_blocks or more], result: the codebook of each block.
        bases: int64[n_blocks or more], result: the reference head of each block.
        start: uint8, result: the prelude before the index, but for the size of the frame.
    """

    sample: SampleScratch
    columns: Columns
    books: Books
    choice: np.ndarray
    bases: np.ndarray
    start: np.ndarray


@kernel
def _are_many_short(values, step, n_seen, low_bits, share):
    """Return whether one in ``share`` of some values of uintW[n] that are not zero has zeros for some low bits.

    The places repeat no pattern of rows and columns: they lie √2 - 1 of the array apart, around and around, as those
    that plan/unused_bits.py looks at.

    Args:
        values: uintW[n].
        step: How far apart the places lie.
        n_seen: Number of values that are looked at.
        low_bits: The bits.
        share: How many values there may be for each of them.
    """
    n, n_short, n_zero = len(values), 0, 0
    for k in range(n_seen):
        value = values[k * step % n]
        n_short += value & low_bits == 0
        n_zero += value == 0
    return share * (n_short - n_zero) > n_seen - n_zero


@kernel
def _coprime(step, n):
    """Return the first number from an odd ``step`` on, by twos, that has no divisor in common with ``n``."""
    while True:
        a, b = step, n
        while b:
            a, b = b, a % b
        if a == 1:
            return step
        step += 2


@kernel
def hints_at_more(values, rules):
    """Return whether a few values of uintW[n] hint at what one kernel does not plan: low bits that are zero in all or
    in many values, or values most of which are zero."""
    n, four, seven = len(values), np.uint32(15), np.uint32(127)
    step = n * 27146 >> 16 | 1 if n > 64 else 1
    merged, n_seen = values[0], min(n, 64)
    for k in range(n_seen):
        merged |= values[k * step % n]
    if merged & np.uint32(1) == 0:
        return True
    if n >= rules.min_mixed:
        # Of few values, more are short by chance now and then. The numbers are those of plan/unused_bits.py.
        of_four = _are_many_short(values, step, n_seen, four, 6)
        of_seven = _are_many_short(values, step, n_seen, seven, 40)
        if of_four or of_seven:
            step = _coprime(step, n)
            if of_four and _are_many_short(values, step, 1024, four, 6):
                return True
            if of_seven and _are_many_short(values, step, 1024, seven, 12):
                return True
    step = max(n // 1024, 1) | 1
    n_zero, n_seen = 0, 0
    for i in range(0, n, step):
        n_zero += values[i] == 0
        n_seen += 1
    return 100 * n_zero >= rules.many_zeros * n_seen


@allocating
def _has_telling_bits(values, form, rules):
    """Return whether the signs of uintW[n], or mantissa bits with them, may be worth a place in the head."""
    n, head_shift = len(values), form.spec.head_shift
    if n >= rules.min_signed and bits_tell(values, head_shift, 0, np.zeros(2 * MAX_TOLD_HEADS, np.uint32)):
        return True
    return n >= rules.min_fine and bits_tell(values, head_shift, 3, np.zeros(16 * MAX_TOLD_HEADS, np.uint32))


@allocating
def _new_counts(n_rows, n_bins):
    """Return histograms that count nothing."""
    by_block, by_stream = np.zeros((n_rows, n_bins), np.uint32), np.zeros((n_rows, n_bins), np.uint32)
    return SampleCounts(np.empty(n_rows, np.int64), by_block, by_stream)


@kernel
def _weigh(counts, form, rules):
    """Return whether sub-streams should have references, by a sample, and what it takes then, in bits."""
    spec = form.spec
    n_rows, plain, relative, n_heads, n_tails = compare_references(
        counts.by_block, counts.by_stream, None, form.head_bits
    )
    n_streams = n_heads // spec.stream_len
    n_empty = max(n_rows * (spec.block // form.first_every // spec.stream_len) - n_streams, 0)
    besides = rules.stream_bits * n_streams + rules.empty_bits * n_empty + form.tail_bits * n_tails
    in_blocks, in_streams = plain / 256 + besides, relative / 256 + rules.reference_bits * n_streams + besides
    return in_streams < in_blocks, min(in_streams, in_blocks)


@kernel
def _sampled(spec, every, step, by_block, by_stream):
    """Return a :class:`bundles.SampleSpec` that counts another share of an array, or other histograms."""
    return SampleSpec(
        spec.block,
        spec.stream_len,
        spec.piece,
        every,
        step,
        spec.head_shift,
        spec.head_mask,
        spec.window,
        spec.center,
        spec.infinity,
        by_block,
        by_stream,
        spec.fine_bits,
    )


@allocating
def _full_sample(values, spec, references, memory):
    """Return the counts of a sample of all blocks, of the kind that matters where sub-streams have references or none;
    arguments as of :func:`plan_whole`."""
    n_rows = (len(values) + spec.block - 1) // spec.block
    result, wanted = _new_counts(n_rows, spec.window + 2), _sampled(spec, spec.every, 1, not references, references)
    count_sample(values, None, wanted, memory.columns, memory.sample, np.int64(0), n_rows, result)
    return result


@allocating
def _first_sample(values, form, rules, memory):
    """Return the counts of a sample by which forms are compared, and what :func:`_weigh` says of them; arguments as of
    :func:`plan_halves`."""
    spec = _sampled(form.spec, form.first_every, form.first_step, True, True)
    apart = spec.block * spec.step
    n_rows = (len(values) + apart - 1) // apart
    result = _new_counts(n_rows, spec.window + 2)
    count_sample(values, None, spec, memory.columns, memory.sample, np.int64(0), n_rows, result)
    references, bits = _weigh(result, form, rules)
    return result, references, bits


@allocating
def _groups_of(counts, used, every, rules):
    """Return the histograms of groups of blocks, a codebook for each: int64[n_groups, n_bins].

    Args:
        counts: uint32[n_rows, n_bins], histograms of blocks.
        used: int64[n_used], those that count anything; of many, some that lie evenly apart have a say.
        every: one piece in so many was counted.
        rules: :class:`PlanRules`.
    """
    (n_rows, n_bins), n_used = counts.shape, len(used)
    n_some = min(n_used, rules.max_clustered)
    groups, n, some = counts, 1, counts
    if n_some < n_rows:
        some, apart = np.empty((n_some, n_bins), np.uint32), (n_used - 1) / max(n_some - 1, 1)
        for k in range(n_some):
            row = used[np.int64(k * apart) if k < n_some - 1 else n_used - 1]
            for i in range(n_bins):
                some[k, i] = counts[row, i]
        groups = some
    if n_some > 1:
        groups = np.zeros((min(rules.max_codebooks, n_some), n_bins), np.uint32)
        n = cluster(some, np.uint64(rules.table_cost * (n_some / n_rows / every)), groups)
    histograms, n_used = np.zeros((n, n_bins), np.int64), 0
    for k in range(n):
        any_count = np.uint32(0)
        for i in range(n_bins):
            histograms[n_used, i] = groups[k, i]
            any_count |= groups[k, i]
        n_used += any_count != 0 or n == 1
    return histograms[:n_used].copy()


@allocating
def _shipped_choice(counts, ranges, lengths, form, record_bytes, shipped):
    """Return the number of the shipped codebook that takes fewer bits than a made one with its record, or -1."""
    n, n_bins = shipped.costs.shape
    costs = np.empty((1, n_bins), np.uint32)
    fill_bin_costs(ranges, lengths, form.head_bits, form.spec.window, form.spec.center, costs)
    made, totals = np.zeros(1, np.uint64), np.zeros(n, np.uint64)
    spent(counts, costs, made)
    spent(counts, shipped.costs, totals)
    best, least = -1, made[0] + np.uint64(8 * record_bytes)
    for k in range(n):
        total = totals[k] + shipped.record_bits[1 + k]
        if total < least:
            best, least = k, total
    return best


@allocating
def plan_whole(values, narrow, wide, rules, shipped, memory):
    """Plan a frame of float32: sample, reference heads, codebooks, their tables and records.

    Args:
        values: uint32[n_values].
        narrow: :class:`PlanForm` of the usual head.
        wide: Of the wide one.
        rules: :class:`PlanRules`.
        shipped: :class:`ShippedBooks` for the usual head.
        memory: :class:`PlanMemory`; takes the results.

    Returns:
        :data:`SPECIAL`, or 8 times the bytes of the prelude before the index, plus 4 if sub-streams are long, 2 if the
        head is wide, and 1 if sub-streams have references.
    """
    if hints_at_more(values, rules) or _has_telling_bits(values, narrow, rules):
        return SPECIAL
    n, form, is_wide, spec = len(values), narrow, False, narrow.spec
    first, apart = _sampled(spec, form.first_every, form.first_step, True, True), spec.block * form.first_step
    n_rows = (n + apart - 1) // apart
    sample = _new_counts(n_rows, spec.window + 2)
    if n < rules.min_wide:
        count_sample(values, None, first, memory.columns, memory.sample, np.int64(0), n_rows, sample)
        references, _ = _weigh(sample, form, rules)
    else:
        wide_sample = _new_counts(n_rows, spec.window + 2)
        wide_first = _sampled(wide.spec, form.first_every, form.first_step, True, True)
        count_both_heads(values, first, wide_first, memory.sample, sample, wide_sample)
        references, bits = _weigh(sample, form, rules)
        wide_references, wide_bits = _weigh(wide_sample, wide, rules)
        if (1 + rules.min_saving) * wide_bits < bits:
            sample, references, form, is_wide = wide_sample, wide_references, wide, True
    if form.first_step > 1 or form.first_every != spec.every:
        sample = _full_sample(values, form.spec, references, memory)
    at = _finish(sample, references, form, is_wide, rules, shipped, memory)
    return at if at < 0 else 8 * at + 2 * is_wide + references


@allocating
def plan_halves(values, short, wide_short, long, wide_long, rules, shipped, memory):
    """Plan a frame of a type of 16 bits, as :func:`plan_whole` does.

    Args:
        values: uint16[n_values].
        short: :class:`PlanForm` of the usual head and the short sub-streams.
        wide_short: Of the wide head, if there is one, and the short ones.
        long: Of the usual head and the long ones.
        wide_long: Of the wide head, if there is one, and the long ones.
        rules: :class:`PlanRules`; a wide head is considered only from ``min_wide`` values on.
        shipped: As for :func:`plan_whole`, like the others and the result.
    """
    if hints_at_more(values, rules) or _has_telling_bits(values, short, rules):
        return SPECIAL
    n, form, wide, is_long, is_wide = len(values), short, wide_short, False, False
    sample, references, bits = _first_sample(values, short, rules, memory)
    if n >= rules.lengths_from:
        long_sample, long_references, long_bits = _first_sample(values, long, rules, memory)
        if long_bits < bits:
            sample, references, bits, is_long = long_sample, long_references, long_bits, True
            form, wide = long, wide_long
    if n >= rules.min_wide:
        wide_sample, wide_references, wide_bits = _first_sample(values, wide, rules, memory)
        if (1 + rules.min_saving) * wide_bits < bits:
            sample, references, form, is_wide = wide_sample, wide_references, wide, True
    if form.first_step > 1 or form.first_every != form.spec.every:
        sample = _full_sample(values, form.spec, references, memory)
    at = _finish(sample, references, form, is_wide, rules, shipped, memory)
    return at if at < 0 else 8 * at + 4 * is_long + 2 * is_wide + references


@allocating
def _finish(sample, references, form, is_wide, rules, shipped, memory):
    """Make the codebooks of a plan, their tables and records, and the start of the prelude, from a sample.

    Args:
        sample: the counts by which the form was chosen.
        references: whether sub-streams have references.
        form: the :class:`PlanForm` that was chosen.
        is_wide: whether its head is wide.
        rules: :class:`PlanRules`.
        shipped: :class:`ShippedBooks`.
        memory: :class:`PlanMemory`; takes the results.

    Returns:
        :data:`SPECIAL`, or the bytes of the prelude before the index.
    """
    n_rows = len(sample.bases)
    counts, every = sample.by_stream if references else sample.by_block, form.spec.every
    used = np.empty(n_rows, np.int64)
    n_used = rows_in_use(counts, used)
    if n_used == 0:
        return np.int64(SPECIAL)
    # Codebooks for groups of blocks.
    histograms = _groups_of(counts, used[:n_used], every, rules)
    n_books, n_bins = histograms.shape
    spans, n_weights = np.empty((n_books, 1, 2), np.int64), np.empty(n_books, np.int64)
    weights, lengths = np.zeros((n_books, rules.max_symbols + 2), np.int64), np.zeros((n_books, ESCAPE + 1), np.uint8)
    choose_symbols(histograms, form.spec.window, every == 1, spans, weights, n_weights)
    find_lengths(weights, n_weights, np.int64(MAX_LENGTH), lengths)
    ranges, ends = np.empty((n_books, 1, 2), np.int64), np.empty(n_books, np.int64)
    records = np.empty((n_books, RECORD_BYTES), np.uint8)
    write_records(spans, lengths, form.spec.center, form.spec.head_mask, ranges, records, ends)
    if n_books == 1 and every == 1 and not references and not is_wide:
        best = _shipped_choice(counts, ranges, lengths, form, ends[0], shipped)
        if best >= 0:
            ranges[0, 0, 0], ranges[0, 0, 1] = shipped.ranges[best, 0, 0], shipped.ranges[best, 0, 1]
            lengths[0] = shipped.lengths[best]
            ends[0] = shipped.records.shape[1]
            records[0, : ends[0]] = shipped.records[best]
    for b in range(n_rows):
        memory.choice[b], memory.bases[b] = 0, sample.bases[b]
    if n_books > 1:
        costs = np.empty((n_books, n_bins), np.uint32)
        fill_bin_costs(ranges, lengths, form.head_bits, form.spec.window, form.spec.center, costs)
        choose_codebooks(counts, costs, memory.choice)
    # Tables to encode with, and the start of the prelude.
    following, codes = np.empty(MAX_LENGTH + 1, np.uint32), np.empty(ESCAPE + 1, np.uint32)
    if not fill_encoders(ranges, lengths, form.head_bits, form.marks, form.shifts, following, codes, memory.books):
        return np.int64(SPECIAL)
    start, at = memory.start, len(form.start)
    for i in range(at):
        start[i] = form.start[i]
    for k in range(n_books):
        for i in range(ends[k]):
            start[at + i] = records[k, i]
        at += ends[k]
    start[N_CODEBOOKS_AT] = n_books
    index_at = at + 7 & ~7
    store_u64(subarray(start, 0, at), PRELUDE_BYTES_AT, np.uint64(index_at + 4 * n_rows + 7 & ~7))
    return np.int64(at)
