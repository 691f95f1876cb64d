"""Encode an array in whichever way makes it smallest: find the ways that are worth a try, plan each, encode what the
plans leave open, and take the smallest frame."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..format.modes import BitLayout
from ..format.prelude import HEADER_BYTES
from ..kernels.block.header import BLOCK_HEADER
from ..kernels.sample.look import MAY_BE_SPARSE
from ..options import EncoderOptions
from ..plan.indexing import may_be_indexed
from ..plan.plan import FramePlan, least_bits, make_indexed_plan, make_sparse_plan, mixed_block_bits
from ..plan.profile import profile_of
from ..plan.request import EncodeRequest
from ..plan.sparse_frames import MIN_ESTIMATED
from ..plan.unused_bits import drop_unused_bits
from ..tensors import Values
from .encode import check_levels_exist, copied_to_caller, encode_values, exactly, is_stored, plan_for
from .short_arrays import encode_short
from .sizes import block_log2

_CONSTANT_BYTES = BLOCK_HEADER + 8  #: of a constant block, the smallest there is
_LOOKED_AT = 64  #: values of a block that are equal if it is constant
_MAX_TRIED = 1 << 20  #: values up to which whole frames of blocks of several kinds are made and compared
#: The share of the bits of one plan below which another is taken by its estimate; between them, both frames are made.
_CLEARLY = 0.9
_LEVEL_SAMPLE = 64  #: blocks whose levels are counted
#: Values from which on, and a share of values other than zero from which on, no coded blocks are tried beside sparse
#: ones without a base; and the share of their bits, which are estimated too low by a percent, that these may take.
_MIN_SPARSE_ALONE, _MIN_SPARSE_SHARE, _SPARSE_ALONE = MIN_ESTIMATED, 1 / 16, 1.01
#: So many bits dropped of a value, on average, save more than wide heads do; and by this share of its size a frame that
#: keeps all bits may be larger, because estimates are no better.
_MAX_DROPPED_BITS, _TIE = 3.0, 0.025
_MIN_SURE_VALUES, _MAX_SURE_BITS, _SURE_SAMPLE = 1 << 14, 0.5, 1024


class Way(NamedTuple):
    """A way to encode an array.

    Attributes:
        request: The array and how to encode it.
        plan: The plan of its frame.
        is_only: True if no other way is tried.
        least_bytes: What the ways that follow take at least.
    """

    request: EncodeRequest
    plan: FramePlan
    is_only: bool = True
    least_bytes: int = 0


def encode_array(request: EncodeRequest, out: Any = None) -> bytes | memoryview:
    """Encode an array as one frame, in whichever way makes it smallest; the first of equals. Arguments and errors as of
    :func:`encode.encode_values`.

    Ways are chosen by what samples promise, which is not always kept. Where size is all that counts, the frame that is
    made without trying more is made as well, and the smaller of both is taken.
    """
    if request.options.smallest and request.standalone:
        usual = request._replace(options=_usual(request.options))
        return copied_to_caller(min(_encode_array(usual), _encode_array(request), key=len), out)
    return _encode_array(request, out)


@lru_cache(16)
def _usual(options: EncoderOptions) -> EncoderOptions:
    """Return options that differ only in that no more ways than usual are tried."""
    return replace(options, smallest=False)


def _encode_array(request: EncodeRequest, out: Any = None) -> bytes | memoryview:
    """Do what :func:`encode_array` does, once."""
    short, profile, columns = encode_short(request, out)
    if short is not None:
        return short
    if columns is not None:
        request = request._replace(columns=columns)
    if profile is None:
        profile = profile_of(request.values) if len(request.values.bits) else 0
    smallest: bytes | memoryview | None = None
    ways = _ways(request, profile)
    for asked, plan, is_only, least_bytes in ways:
        frame = encode_values(asked, plan, out if is_only else None)
        plan.close()
        if is_only:
            ways.close()  # here, for an interrupt while the generator is collected would be lost
            return frame
        if smallest is None or len(frame) < len(smallest):
            smallest = frame
        if len(smallest) <= least_bytes:
            break
    ways.close()
    assert smallest is not None
    return copied_to_caller(smallest, out)


def _ways(request: EncodeRequest, profile: int) -> Generator[Way, None, None]:
    """Yield the ways that may make an array smallest, given what it is like (``profile_of``)."""
    values, exact = request.values, exactly(request) if request.bit_layout.lossy else request
    indexed = make_indexed_plan(exact) if may_be_indexed(request) else None
    if indexed is None:
        yield from _unindexed_ways(request, profile)
        return
    # Modes that may drop bits, and sparse frames, have no estimate here, and constant blocks, which are soon encoded,
    # take less than estimates say.
    constant = _share_constant(values)
    if request.bit_layout.lossy or profile & MAY_BE_SPARSE or constant >= 0.5:
        yield Way(exact, indexed, is_only=False)
        yield from _several(_unindexed_ways(request, profile))
        return
    short = drop_unused_bits(request, profile)
    if indexed.bits < (1 - constant) * least_bits(short, 1 << block_log2(values.dtype)):
        yield Way(exact, indexed)
        return
    ways = [Way(exact, indexed), Way(short, plan_for(short, weigh=True, profile=profile))]
    ways.sort(key=lambda way: way.plan.bits)
    least, most = (way.plan.bits for way in ways)
    is_clear = least < _CLEARLY * most or len(values.bits) > _MAX_TRIED
    yield from ways[:1] if is_clear else _several(ways)


def _several(ways: Iterable[Way]) -> Iterator[Way]:
    """Yield ways of which the smallest frame is taken."""
    for way in ways:
        yield way._replace(is_only=False)


def _share_constant(values: Values) -> float:
    """Return the share of an array's whole blocks that are constant, or nearly, as far as some of their values show."""
    bits, log2 = values.bits, block_log2(values.dtype)
    n_blocks = len(bits) >> log2
    some = bits[: n_blocks << log2].reshape(n_blocks, -1)[:, :: (1 << log2) // _LOOKED_AT]
    return int(np.count_nonzero((some == some[:, :1]).all(1))) / max(n_blocks, 1)


def _unindexed_ways(request: EncodeRequest, profile: int) -> Iterator[Way]:
    """Yield the ways without indexed blocks; arguments as of :func:`_ways`."""
    values, has_base = request.values, request.base is not None and len(request.values.bits) > 0
    mixed = mixed_block_bits(request, 1 << block_log2(values.dtype)) if has_base else None
    if mixed is not None:
        yield from _mixed_ways(request, mixed)
        return
    short = drop_unused_bits(request, profile)
    asked = request if has_base else short  # with a base, blocks have no planes
    may_be_sparse = has_base or (profile & MAY_BE_SPARSE and not _is_smallest_without(request, profile))
    sparse = make_sparse_plan(asked) if may_be_sparse and request.options.sparse else None
    if sparse is None or sparse.sparse is None:
        yield from _coded_ways(short, profile)
        return
    if has_base and _is_smallest(values.bits, sparse.sparse.bits):
        yield Way(request, sparse)
        return
    coded = None
    if sparse.bits and not request.bit_layout.lossy and _may_be_sparse_alone(values, sparse):
        coded = plan_for(short, weigh=True, profile=profile)
        if sparse.bits < _SPARSE_ALONE * coded.bits:
            coded.close()
            yield Way(asked, sparse)
            return
    ways = [Way(asked, sparse, is_only=False)]
    if request.bit_layout.lossy and request.options.exact_if_smaller:
        exact = drop_unused_bits(exactly(request), profile)
        exact_sparse = make_sparse_plan(exact)
        if exact_sparse is not None:
            ways.append(Way(exact, exact_sparse, is_only=False))
    yield from ways[:-1]
    yield ways[-1]._replace(least_bytes=_least_coded_bytes(short))
    yield from _several(_coded_ways(short, profile) if coded is None else (Way(short, coded),))


def _may_be_sparse_alone(values: Values, sparse: FramePlan) -> bool:
    """Return True if estimates may tell that sparse blocks without a base, as planned, are the smallest: of a large
    array without constant blocks, which take less than estimates say."""
    assert sparse.sparse is not None
    n = len(values.bits)
    n_changes = sum(len(found.differences.gaps) for found in sparse.sparse.found)
    return n >= _MIN_SPARSE_ALONE and n_changes >= _MIN_SPARSE_SHARE * n and not _share_constant(values)


def _mixed_ways(request: EncodeRequest, sparse_bits: np.ndarray) -> Iterator[Way]:
    """Yield the ways to encode an array some of whose blocks had better be sparse, which take ``sparse_bits``:
    float64[n_blocks]."""
    mixed = Way(request, plan_for(request, sparse_bits=sparse_bits))
    # headers of blocks are a large part of few changes
    sparse = make_sparse_plan(request) if len(request.values.bits) <= _MAX_TRIED else None
    yield from (mixed,) if sparse is None else _several([mixed, Way(request, sparse)])


def _is_smallest_without(request: EncodeRequest, profile: int) -> bool:
    """Return True for values without a base that sparse blocks cannot make smaller: those that are stored as they are,
    and zeros that are one or two constant blocks."""
    bits = request.values.bits
    if request.standalone and is_stored(request.values, request.bit_layout, profile):
        return True
    n_constants = 2 << block_log2(request.values.dtype)
    return 0 < len(bits) <= n_constants and not bits[0] and not bits.any()


def _least_coded_bytes(request: EncodeRequest) -> int:
    """Return the bytes of a frame without sparse blocks that no values go below: all blocks are constant then."""
    n_blocks = -(-len(request.values.bits) >> block_log2(request.values.dtype))
    return HEADER_BYTES + n_blocks * (4 + _CONSTANT_BYTES)


def _coded_ways(request: EncodeRequest, profile: int) -> Iterator[Way]:
    """Yield the ways without sparse blocks, of which some may be predicted; arguments as of :func:`_ways`.

    A mode that may drop bits keeps all of them where dropping some saves nothing: predicted blocks and wide heads are
    for whole values only, and levels take bits themselves. Both ways are tried where estimates cannot tell: with
    mantissa bits in the head there are so many symbols that a sample misses some and promises up to a fifth too little.
    """
    layout, plan = request.bit_layout, plan_for(request, profile=profile)
    if not (layout.lossy and request.options.exact_if_smaller):
        yield Way(request, plan)
        return
    exact = drop_unused_bits(exactly(request), profile)
    is_open = plan.prediction is not None or any(exact.bit_layout.drops)
    if is_open or (plan.codebooks and _dropped_bits(plan, layout) < _MAX_DROPPED_BITS):
        plan = plan if plan.bits else plan_for(request, weigh=True)
        exact_plan = plan_for(exact, weigh=True)
        if _total_bits(exact, exact_plan) <= (1 + _TIE) * _total_bits(request, plan):
            check_levels_exist(request)
            ways = [Way(exact, exact_plan), Way(request, plan)]
            yield from _several(ways) if exact_plan.dtype.fine_bits > 1 else ways[:1]
            return
    yield Way(request, plan)


def _total_bits(request: EncodeRequest, plan: FramePlan) -> float:
    """Return the bits that a frame takes, about."""
    layout = request.bit_layout
    return min(plan.bits, 8.0 * request.values.bits.nbytes) + 8 * (len(layout.widths) + 2 * len(layout.levels))


def _dropped_bits(plan: FramePlan, layout: BitLayout) -> float:
    """Return how many bits the values of some blocks lose, on average, of values other than 0."""
    if len(layout.levels) == 1:
        return plan.dtype.tail_bits - layout.kept[0]
    some = plan.counts[:: max(len(plan.counts) // _LEVEL_SAMPLE, 1)].sum(axis=0, dtype=np.int64)
    by_level = some[2:].reshape(len(layout.levels), -1).sum(axis=1)
    by_level[0] += some[1]
    dropped = plan.dtype.tail_bits - np.array(layout.kept)
    return float(by_level @ dropped / max(by_level.sum(), 1))


def _is_smallest(bits: np.ndarray, n_bits: int) -> bool:
    """Return True if blocks of other kinds cannot be smaller than sparse ones with a base, which take ``n_bits``."""
    return is_surely_smallest(bits[:: sure_step(len(bits))], len(bits), n_bits)


def sure_step(n: int) -> int:
    """Return how far apart the values of ``n`` lie that :func:`is_surely_smallest` looks at."""
    return max(n // _SURE_SAMPLE, 1) | 1


def is_surely_smallest(some: np.ndarray, n: int, n_bits: int) -> bool:
    """Return True if blocks of other kinds cannot be smaller than sparse ones with a base: their values take a bit each
    where they are not equal.

    Args:
        some: Some of the values, uintW[m].
    """
    is_varied = 2 * int(np.count_nonzero(some != some[0])) > len(some)
    return is_varied and n >= _MIN_SURE_VALUES and n_bits < _MAX_SURE_BITS * n
