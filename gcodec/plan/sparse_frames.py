"""Plan sparse frames: what differs from a base or from zero, in which classes, and the codes of the changes."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import NamedTuple

import numpy as np

from ..base_hash import hash_of
from ..dtypes import DType
from ..format.change_codebook import ChangeCodebook
from ..format.codebook import limited_lengths
from ..format.shipped_changes import (
    EXPONENT_AT,
    FIRST_EXPONENT,
    N_CLASSES,
    N_SHARES,
    N_SHIFTS,
    change_shapes,
    changes_from,
    is_shipped,
    shifted_thresholds,
    shortest_record,
)
from ..kernels.block.sparse_encode import count_numbers, count_tops
from ..kernels.block.sparse_types import Counts, Differences, SparseSizes
from ..kernels.core.specialized import Specialized
from ..threads import n_threads, run_batches
from .codebooks import code_bits
from .cuts import as_rows_and_columns, cheapest_ranges
from .finding import MAX_SHARE_OF_BASE, MAX_SHARE_OF_ZERO, Finding, FoundBlocks
from .request import EncodeRequest
from .sampling import EMPTY_BITS

_SMALL_LOG2 = 20  #: of arrays with a base that are one block
_MIN_VALUES = 256  #: fewer are not worth a codebook
_MAX_CLASSES = 8
_CLASS_BITS = 600  #: what a class costs: its code lengths, and numbers of changes in sub-streams, about
#: What a codebook costs with one class, and by which share its codes miss the entropy of positions, about.
_CODEBOOK_BITS, _LOSS = 2000, 0.02
_MAX_TRIED = 1 << 20  #: values up to which all choices of classes are tried
#: Bits of positions from which classes are fitted to more values than that, and nothing else is tried: the codebook is
#: a percent of them at most, and another choice is another pass over the array.
_MIN_FITTED_BITS = 200_000
_SAMPLE_PIECES, _PIECE = 64, 4096
#: Values that are looked at to see whether a closer look is worth it, and how far off what they say may be.
_QUICK_SAMPLE, _QUICK_ERROR = 1024, 0.03

_count_numbers, _count_tops = Specialized(count_numbers), Specialized(count_tops)


#: Of most arrays: a block's header and place in the index take a percent of a small block.
_SIZES = SparseSizes(18, 16)


def sparse_sizes(n: int, with_base: bool) -> SparseSizes:
    """Return the sizes of sparse blocks for an array of ``n`` values.

    A small array is one block, as headers of several would be a large part of it, and so would numbers of changes of
    many sub-streams. Without a base, an inner block limits the size.
    """
    if not with_base or n > 1 << _SMALL_LOG2:
        return _SIZES
    log2 = max((n - 1).bit_length(), _MIN_BLOCK_LOG2)
    return SparseSizes(log2, min(log2, _SMALL_STREAM_LOG2))


_MIN_BLOCK_LOG2, _SMALL_STREAM_LOG2 = 10, 18


class SparsePlan(NamedTuple):
    """The decisions by which the sparse blocks of a frame are coded.

    Attributes:
        codebook: The codes of the changes.
        is_sparse: bool[n_blocks], which blocks are to be sparse.
        found: What differs in those, in their order.
        bits: What the changes take, without values of inner blocks and headers of blocks.
        levels: uint8[n], the levels of the values of inner blocks; empty where there is one level.
        base_hash: Hash of the base; 0 without one.
        sizes: Sizes of blocks and sub-streams.
    """

    codebook: ChangeCodebook
    is_sparse: np.ndarray
    found: list[FoundBlocks]
    bits: int
    levels: np.ndarray
    base_hash: int
    sizes: SparseSizes


def plan_sparse(request: EncodeRequest) -> SparsePlan | None:
    """Find what differs from the base, or from zero where there is none, if it is little.

    Args:
        request: The array and how to encode it.

    Returns:
        The plan; None if too much differs.
    """
    values, base = request.values.bits, request.base
    n = len(values)
    if n < _MIN_VALUES or not may_be_sparse(values, base):
        return None
    if base is None:
        if has_rows_of_zeros(values, request.shapes or (request.values.shape,)):
            return None
        if n >= MIN_ESTIMATED and not request.bit_layout.lossy and saves_little(values, request.values.dtype):
            return None
    choices: list[tuple[int, ...]] = [()]
    if base is not None:
        begins = np.array([part.start for part in sample_slices(n)])
        choices = choose_thresholds(count_by_top(values, base, begins), n, 8 * values.itemsize)
    plans: list[SparsePlan] = []
    sizes = sparse_sizes(n, base is not None)
    for thresholds in choices:
        finding = Finding(values, base, thresholds, sizes)
        run_batches(finding.find, finding.n_blocks, n_threads(request.threads, n), batch=4)
        found = finding.found()
        if found is None:
            return None
        codebook, bits = _fitted(finding, found, thresholds, values.dtype)
        base_hash = finding.hashing.value() if finding.hashing else 0
        levels = request.levels[values != 0] if len(request.levels) else request.levels
        is_sparse = np.ones(finding.n_blocks, np.bool_)
        plans.append(SparsePlan(codebook, is_sparse, found, bits, levels, base_hash, sizes))
        if is_settled(codebook, n):
            break
    return min(plans, key=lambda plan: bits_with_record(plan.codebook, plan.bits))


def differs_here_and_there(values: np.ndarray, base: np.ndarray, block: int) -> bool:
    """Return True if a quick look finds blocks in which little differs, and others in which much does; arguments as for
    :func:`sparse_block_bits`."""
    n_whole = len(values) // block
    some, part = slice(None, None, max(n_whole // _QUICK_BLOCKS, 1)), slice(block // 2, block // 2 + _BLOCK_PIECE)
    new, old = (array[: n_whole * block].reshape(n_whole, block)[some, part] for array in (values, base))
    is_full = np.count_nonzero(new != old, axis=1) > MAX_SHARE_OF_BASE * _BLOCK_PIECE
    last = slice(n_whole * block, None)  # of a block that ends early, all is looked at
    if n_whole * block < len(values):
        n_last = len(values) - n_whole * block
        is_full = np.append(is_full, np.count_nonzero(values[last] != base[last]) > MAX_SHARE_OF_BASE * n_last)
    return bool(is_full.any() and not is_full.all())


def sparse_block_bits(values: np.ndarray, base: np.ndarray, block: int) -> np.ndarray:
    """Estimate from a sample what each block of an array takes as a sparse one.

    Args:
        values: uintW[n].
        base: uintW[n], the predictions.
        block: Values per block.

    Returns:
        float64[n_blocks], bits; infinite where too much differs.
    """
    n_blocks = -(-len(values) // block)
    changed, step_bits, members = np.zeros((3, n_blocks))
    for first in range(0, block, block // _BLOCK_PIECES):
        places = first + np.arange(0, n_blocks) * block
        places = places[places + _BLOCK_PIECE <= len(values)]
        index = places[:, None] + np.arange(_BLOCK_PIECE)
        new, old = values[index], base[index]
        differ = new != old
        # The distance of the bits is a step's size but where the sign changes: few do, and those are large anyway.
        sizes = np.log2(np.maximum(new, old) - np.minimum(new, old), where=differ, out=np.zeros(new.shape))
        changed[: len(places)] += np.count_nonzero(differ, axis=1)
        step_bits[: len(places)] += np.where(sizes > 0, _LARGE_STEP_BITS + sizes, differ * _SMALL_STEP_BITS).sum(axis=1)
        members[: len(places)] += _BLOCK_PIECE
    share = (changed + 0.5) / (members + 1)
    positions = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
    sizes_of = np.minimum(len(values) - np.arange(n_blocks) * block, block)
    bits = sizes_of * (positions + step_bits / np.maximum(members, 1)) + _BLOCK_BITS
    return np.where((members > 0) & (share <= MAX_SHARE_OF_BASE), bits, np.inf)


_QUICK_BLOCKS = 1024  #: blocks that are looked at to see whether a closer look is worth it
_BLOCK_PIECES, _BLOCK_PIECE = 8, 64  #: of a block, of which so many values each are looked at
#: What a step of one and a larger one take besides its size, and what a sparse block takes besides its changes, about.
_SMALL_STEP_BITS, _LARGE_STEP_BITS, _BLOCK_BITS = 1.5, 4.0, 350


def plan_sparse_blocks(request: EncodeRequest, wanted: np.ndarray, sizes: SparseSizes) -> SparsePlan:
    """Find what differs from the base in some blocks of an array.

    Args:
        request: The array, its base, and how to encode it.
        wanted: bool[n_blocks], the blocks that are to be sparse.
        sizes: Sizes of blocks and sub-streams.

    Returns:
        The plan.
    """
    values, base = request.values.bits, request.base
    assert base is not None
    numbers = np.flatnonzero(wanted)
    n_wanted = min(len(numbers) << sizes.block_log2, len(values))
    sampled = numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), _SAMPLE_PIECES)).astype(np.int64)]
    counts = count_by_top(values, base, sampled << sizes.block_log2)
    threads = n_threads(request.threads, len(values))
    plans, base_hash = [], hash_of(base, threads)
    for thresholds in choose_thresholds(counts, n_wanted, 8 * values.itemsize):
        finding = Finding(values, base, thresholds, sizes, wanted)
        run_batches(finding.find, finding.n_blocks, threads, batch=32)
        found = finding.found()
        assert found is not None
        codebook, bits = _fitted(finding, found, thresholds, values.dtype)
        plans.append(SparsePlan(codebook, wanted, found, bits, request.levels[:0], base_hash, sizes))
        if is_settled(codebook, n_wanted):
            break
    return min(plans, key=lambda plan: bits_with_record(plan.codebook, plan.bits))


def is_settled(codebook: ChangeCodebook, n: int) -> bool:
    """Return True if no other classes need be tried: of an array of ``n`` values that is not small, where codes that
    come with gcodec were promised to be the best, and are."""
    return n > _MAX_TRIED and is_shipped(codebook)


def bits_with_record(codebook: ChangeCodebook, n_bits: int) -> int:
    """Return the bits of changes and of the record of their codebook."""
    return n_bits + 8 * len(shortest_record(codebook))


def _fitted(
    finding: Finding, found: list[FoundBlocks], thresholds: tuple[int, ...], kind: np.dtype
) -> tuple[ChangeCodebook, int]:
    """Return the codes of what was found, and the bits that it takes with them."""
    return fit_change_codebook(finding.counts(), [blocks.differences for blocks in found], thresholds, kind)


def fit_change_codebook(
    counts: Counts, found: Sequence[Differences], thresholds: tuple[int, ...], kind: np.dtype
) -> tuple[ChangeCodebook, int]:
    """Return the codes for what differs, and the bits that it takes with them.

    Args:
        counts: How often each symbol occurs; numbers of changes are counted here.
        found: What differs; only its numbers of changes are looked at.
        thresholds: Where classes begin, but the first.
        kind: uintW, the type of the steps.
    """
    n_kinds = 3 if len(counts.steps) else 1
    is_empty = np.logical_not(counts.classes.any(axis=1))
    count_all(kind, found, is_empty, counts.counts)
    n_gaps = max(_n_used(counts.classes.sum(axis=0).reshape(-1, n_kinds).sum(axis=1)), 1)
    classes = counts.classes[: len(thresholds) + 1, : n_kinds * n_gaps]
    codebook = ChangeCodebook(
        8 * kind.itemsize,
        thresholds,
        lengths_for(counts.counts),
        lengths_for(counts.steps) if len(counts.steps) else b"",
        tuple(lengths_for(row) for row in classes),
    )
    return _or_shipped(codebook, counts, found)


def count_all(kind: np.dtype, found: Sequence[Differences], is_empty: np.ndarray, counts: np.ndarray) -> None:
    """Count the numbers of changes that the sub-streams of all blocks begin with, as ``count_numbers`` does of some."""
    for differences in found:
        _count_numbers(kind, differences, is_empty, counts)


def _or_shipped(codebook: ChangeCodebook, counts: Counts, found: Sequence[Differences]) -> tuple[ChangeCodebook, int]:
    """Return a codebook, or one of the same classes that comes with gcodec where naming it saves more than its codes
    cost; and the bits that changes take. Arguments as for :func:`fit_change_codebook`."""
    candidates, numbers = [(codebook, bits_of(codebook, counts))], None
    for _, shipped in changes_from(codebook.thresholds) if codebook.bits == 16 else ():
        if codebook.n_gaps > shipped.n_gaps:
            continue
        if numbers is None:  # all of its classes have codes, so that their numbers are written even if they are 0
            numbers = np.zeros_like(counts.counts)
            count_all(np.dtype(np.uint16), found, shipped.is_empty, numbers)
        candidates.append((shipped, bits_of(shipped, counts._replace(counts=numbers))))
    return min(candidates, key=lambda candidate: bits_with_record(*candidate))


def may_be_sparse(values: np.ndarray, base: np.ndarray | None) -> bool:
    """Return False if some values show that too many differ from their base, or from zero without one: uintW[n]."""
    step = quick_step(len(values))
    return is_sparse_sample(values[::step], None if base is None else base[::step])


def quick_step(n: int) -> int:
    """Return how far apart the values of ``n`` lie that are looked at first."""
    return max(n // _QUICK_SAMPLE, 1) | 1


def is_sparse_sample(some: np.ndarray, earlier: np.ndarray | None) -> bool:
    """Return False if too many of some values differ from their base, or from zero without one."""
    n_different = int(np.count_nonzero(some if earlier is None else some != earlier))
    limit = MAX_SHARE_OF_ZERO if earlier is None else MAX_SHARE_OF_BASE
    return n_different <= (limit + _QUICK_ERROR) * len(some)


def has_rows_of_zeros(values: np.ndarray, shapes: Sequence[Sequence[int]]) -> bool:
    """Return True if zeros fill sub-streams, so that coded blocks leave them out for less than sparse blocks take.

    A sparse block has a code of a bit at least for each value that is not zero. Coded blocks have a few bits for each
    sub-stream that is empty, and in others the entropy of which values are zero.

    Args:
        values: uintW[n].
        shapes: Shapes of the tensors in it: sub-streams may be as long as their rows, or parts of them.
    """
    row = shapes[0][-1] if len(shapes) == 1 and len(shapes[0]) else 0
    length = next((size for size in _STREAMS if row % size == 0), _STREAMS[0])
    n_streams = len(values) // length
    if n_streams < _MIN_STREAMS:
        return False
    streams = values[: n_streams * length].reshape(n_streams, length)[:: max(n_streams // _LOOKED_AT, 1) | 1]
    counts = np.count_nonzero(streams, axis=1)
    n_values, n_full = int(counts.sum()), int(np.count_nonzero(counts))
    share = n_values / max(n_full * length, 1)
    bits = float(EMPTY_BITS * (len(streams) - n_full) + _MORE_BITS * len(streams))
    if 0 < share < 1:
        bits -= n_full * length * (share * log2(share) + (1 - share) * log2(1 - share))
    return n_values > _CLEARLY * bits


def saves_little(values: np.ndarray, dtype: DType) -> bool:
    """Return True if places of zeros take nearly the bit a value that coded blocks have for them, as far as pieces of
    an array show.

    Coded blocks take a bit at least to tell a zero, and to tell another value, whose head then takes what it takes in
    an inner block.

    Args:
        values: uintW[n].
    """
    some = values[:: quick_step(len(values))]
    if np.count_nonzero(some) < _MIN_LITTLE * len(some):
        return False
    starts = np.linspace(0, len(values) - _LITTLE_PIECE, _LITTLE_PIECES).astype(np.int64)
    pieces = values[starts[:, None] + np.arange(_LITTLE_PIECE)].reshape(-1)
    places = np.flatnonzero(pieces)
    gaps = np.diff(places, prepend=-1) - 1
    tops = np.frexp(np.maximum(gaps, 1))[1] - 1
    categories = 2 * tops + (gaps >> np.maximum(tops - 1, 0) & 1)
    position_bits = code_bits(np.bincount(categories)) + float(np.maximum((categories >> 1) - 1, 0).sum())
    others = pieces[places]
    heads = (others >> others.dtype.type(dtype.head_shift)).astype(np.int64) & dtype.head_mask
    head_bits = code_bits(np.unique(heads, return_counts=True)[1])
    coded_bits = len(pieces) + head_bits + dtype.tail_bits * len(others)
    little = _LITTLE_OF_WIDE if dtype.wide is not None and dtype.tail_bits <= _SHORT_TAIL else _LITTLE
    return len(pieces) - position_bits < little * coded_bits


#: Values from which on pieces of an array are looked at, how many pieces, and values of each; and the share of values
#: other than zero above which they are: below, sparse blocks save more than what is little.
MIN_ESTIMATED, _LITTLE_PIECES, _LITTLE_PIECE, _MIN_LITTLE = 1 << 16, 32, 256, 0.33
#: Shares of the bits that are little; of types of short tails, wide heads, which inner blocks lack, save as much again.
_LITTLE, _LITTLE_OF_WIDE, _SHORT_TAIL = 0.0045, 0.008, 8
_STREAMS = (256, 128, 64)  #: values of the sub-streams that coded blocks may have
_MIN_STREAMS, _LOOKED_AT = 64, 512  #: sub-streams that have to be there to tell, and that are looked at
_MORE_BITS = (
    1  #: what coded blocks, which are smaller, take for headers more than sparse ones, for each sub-stream, about
)
_CLEARLY = 8  #: by how many times as much sparse blocks have to take


def sample_slices(n: int) -> list[slice]:
    """Return the parts of ``n`` values that are counted to choose thresholds; all but the last have 4096 values."""
    step = max(n // _SAMPLE_PIECES, _PIECE)
    return [slice(first, min(first + _PIECE, n)) for first in range(0, n, step)]


def begins_of_pieces(n: int) -> np.ndarray:
    """Return where the parts begin, int64[n_parts], in ``n`` values that are all to be counted."""
    return np.arange(0, n, _PIECE)


def count_by_top(values: np.ndarray, base: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Count members of the classes that :func:`choose_thresholds` may make, in parts of an array.

    Args:
        values: uintW[n].
        base: uintW[n].
        begins: int64[n_parts], where parts of 4096 values begin.

    Returns:
        int64[2, n_tops]: by the highest bits of the base's magnitude, all values, and those that differ.
    """
    n_top, shift = _tops_of(8 * values.itemsize)
    counts = np.zeros((2, 2, 1 << n_top), np.int64)
    types = values.dtype, values.flags.aligned, base.flags.aligned
    _count_tops(types, values, base, begins, _PIECE, shift, counts)
    return counts.sum(axis=1)


def _tops_of(bits: int) -> tuple[int, int]:
    """Return the number of highest bits of a magnitude by which values are counted, and of those below."""
    n_top = 11 if bits == 64 else min(bits - 1, 8)
    return n_top, bits - 1 - n_top


def choose_thresholds(counts: np.ndarray, n: int, bits: int) -> list[tuple[int, ...]]:
    """Return where classes of the base's magnitude may begin, such that positions of what differs take the fewest bits.

    The first choice are classes of shipped codebooks, where these promise to take less than a fitted one with its
    record; they are not looked at where an array has many changes. If :func:`is_settled` does not say so after it, the
    last is to be tried as well.

    Args:
        counts: As :func:`count_by_top` returns it, of the values and the base or parts of them.
        n: Number of values.
        bits: Bits of a value.
    """
    _, shift = _tops_of(bits)
    members, changed = counts.astype(np.float64)
    used = np.flatnonzero(members)
    scale = n / members.sum()
    cuts, n_bits = _partition(np.cumsum(members[used]), np.cumsum(changed[used]), scale)
    fitted = tuple(int(used[cut]) << shift for cut in cuts)
    is_large = n > _MAX_TRIED and n_bits > _MIN_FITTED_BITS
    if (bits, shift) == (16, EXPONENT_AT) and not is_large:
        shipped, shipped_bits = _shipped_thresholds(members, changed, scale)
        if shipped_bits < (1 + _LOSS) * n_bits + _CODEBOOK_BITS:
            return [shipped, fitted]
    return [fitted]


def _shipped_thresholds(members: np.ndarray, changed: np.ndarray, scale: float) -> tuple[tuple[int, ...], float]:
    """Return where classes begin in the shipped codebooks that suit the values best, and the bits that positions take.

    Args:
        members: float64[256], values by exponent of the base.
        changed: float64[256], of them changed.
        scale: Values of the array for each that was counted.
    """
    gap_bits = np.stack([shape.gap_bits for shape in change_shapes()])
    # By shift and class: what lies between the exponents at which the class and the next one begin.
    edges = FIRST_EXPONENT + np.arange(N_SHIFTS)[:, None] + np.arange(N_CLASSES - 1)
    edges = np.pad(edges, ((0, 0), (1, 1)), constant_values=((0, 0), (0, len(members))))
    in_class, hits = (np.diff(np.concatenate([[0], np.cumsum(part)])[edges]) for part in (members, changed))
    with np.errstate(divide="ignore", invalid="ignore"):
        octaves = np.log2(in_class / hits)
    places = np.clip(np.nan_to_num(4 * octaves), 0, N_SHARES - 1).astype(int)
    n_bits = (gap_bits[:, np.arange(N_CLASSES), places] * hits).sum(axis=2).min(axis=0)
    return shifted_thresholds(int(n_bits.argmin())), scale * float(n_bits.min())


def _partition(members: np.ndarray, changed: np.ndarray, scale: float) -> tuple[list[int], float]:
    """Cut bins into ranges, each a class of its own, such that saying which members changed takes the fewest bits.

    Args:
        members: float64[n_bins], members of the bins up to each.
        changed: float64[n_bins], of them changed.
        scale: Members of the array for each that was counted.

    Returns:
        The bins, rising, that begin a range, without the first; and the bits.
    """
    n = len(members)
    total, hits = np.concatenate([[0], members]), np.concatenate([[0], changed])
    in_range = np.subtract(*as_rows_and_columns(total))  # [j, k]: of bins j ... k - 1
    hit = np.subtract(*as_rows_and_columns(hits))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.clip(hit / in_range, 1e-9, 1 - 1e-9)
        cost = -hit * np.log2(share) - (in_range - hit) * np.log2(1 - share)
    cost = np.where(np.greater(*as_rows_and_columns(np.arange(n + 1))), cost * scale, np.inf)
    return cheapest_ranges(cost, _MAX_CLASSES, _CLASS_BITS)


def _n_used(counts: np.ndarray) -> int:
    """Return the number of entries up to the last that is not 0."""
    used = np.flatnonzero(counts)
    return int(used[-1]) + 1 if len(used) else 0


def lengths_for(counts: np.ndarray) -> bytes:
    """Return code lengths for counts: none if nothing occurs, and two codes where one symbol does."""
    used = np.flatnonzero(counts)
    if len(used) == 0:
        return bytes(len(counts))
    if len(used) == 1:
        if len(counts) == 1:
            counts = np.append(counts, 0)
        counts = counts.copy()
        counts[1 if used[0] == 0 else 0] = 1
    return limited_lengths(counts).tobytes()


def bits_of(codebook: ChangeCodebook, counts: Counts) -> int:
    """Return the bits that counted symbols take, with those that follow them."""
    bits = codebook.symbol_bits
    n_classes, n_symbols = bits.classes.shape
    n_bits = counts.counts @ bits.counts + np.vdot(counts.classes[:n_classes, :n_symbols], bits.classes)
    return int(n_bits + counts.steps @ bits.steps) if codebook.with_base else int(n_bits)
