"""Kernels that find what differs between a tensor and its base, and count the symbols of the changes.

    count_differences       a block of the grid for each sub-stream: how many values of each class differ
    note_all_differences    the same once more: which values, and by what step
    count_change_symbols    how often each symbol occurs, from which the host makes the codebook
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ..core.scalar import I32, I64, U32, U64, lesser
from ..entropy.changes import MAX_CATEGORIES, MAX_CLASSES, OTHER, category_of, ordered, step_symbol
from .grid import THREADS, N, block_number, gpu_function, gpu_kernel, scan
from .sparse_place import ClassMembers, group_in_tile, is_member
from .sparse_tables import GROUP

N_CLASS_SYMBOLS = 3 * MAX_CATEGORIES  #: of a class: three for each category of gaps
N_SYMBOLS = MAX_CLASSES * N_CLASS_SYMBOLS  #: of all classes
N_STEP_SYMBOLS = 65  #: of values of 32 bits
_LOW = U64(0xFFFFFFFF)


class ChangeSymbols(NamedTuple):
    """A change as it is coded.

    Attributes:
        gap: Values of its class between it and the change before, uint32.
        category: The category of the gap, int64.
        kind: What the symbol of the class says of the step, int64.
        symbol: The step's symbol, int64.
        step: The step modulo 2**64, uint64.
    """

    gap: Any
    category: Any
    kind: Any
    symbol: Any
    step: Any


@gpu_function
def symbols_of_change(found, first, i, sign):
    """Return the :class:`ChangeSymbols` of a change.

    Args:
        found: The :class:`sparse_tables.FoundChanges`.
        first: Number of the first change of its class and sub-stream, int64.
        i: Number of the change, int64.
        sign: 2**(W - 1), uint64.
    """
    gap, step = U32(found.ranks[i]), U64(found.steps[i])
    if i > first:
        gap = U32(U32(gap - U32(found.ranks[i - 1])) - U32(1))
    if step > sign:  # 2**(W - 1) itself counts as positive, whatever the type that steps are in
        step = U64(step - U64(sign << U64(1)))
    symbol, kind = I64(step_symbol(step)), I64(OTHER)
    if symbol == 1 or symbol == 2:
        kind = I64(symbol - 1)
    return ChangeSymbols(gap, I64(category_of(I64(gap))), kind, symbol, step)


@gpu_function
def values_of_sub_stream(source, g):
    """Return where a sub-stream begins, uint64, and the number of its values, int32."""
    log2 = U64(source.stream_log2)
    start = U64(U64(g) << log2)
    return start, I32(lesser(U64(source.n_values - start), U64(U64(1) << log2)))


@gpu_kernel
def count_differences(source, counts):
    """Count what differs in a sub-stream.

    Args:
        source: The :class:`sparse_tables.SparseSource`.
        counts: uint32[n_streams, 16], results, by class.
    """
    totals = cuda.shared.array(MAX_CLASSES, np.uint32)
    lane, g = I32(cuda.threadIdx.x), block_number()
    start, n = values_of_sub_stream(source, g)
    mask = U64(U64(U64(1) << U64(source.width - U32(1))) - U64(1))
    for k in range(lane, MAX_CLASSES, N):
        totals[k] = U32(0)
    cuda.syncthreads()
    for i in range(lane, n, N):
        before = source.base[start + U64(i)]
        if before != source.values[start + U64(i)]:
            magnitude, k = U64(U64(before) & mask), I32(0)
            while magnitude >= U64(source.bounds[k + 1]):  # the last bound is above all
                k = I32(k + I32(1))
            cuda.atomic.add(totals, k, U32(1))
    cuda.syncthreads()
    for k in range(lane, MAX_CLASSES, N):
        counts[g, k] = totals[k]


@gpu_function
def note_differences(group, values, members, found, rank, at):
    """Note the changes of one class in a thread's group.

    Args:
        group: The :class:`sparse_place.ValueGroup`, of the base.
        values: uintW, the new values, which lie as the base does.
        members: The :class:`sparse_place.ClassMembers`.
        found: The :class:`sparse_tables.FoundChanges`.
        rank: Members of the class before the group, uint32.
        at: Number of the group's first change, int64.
    """
    sign = U64(members.mask + U64(1))
    for i in range(group.begin, group.end):
        before, after = U64(group.values[group.at + U64(i)]), U64(values[group.at + U64(i)])
        if is_member(before, members):
            if before != after:
                step = U64(U64(ordered(after, sign)) - U64(ordered(before, sign)))
                found.ranks[at] = rank
                found.steps[at] = U64(step & U64(U64(sign << U64(1)) - U64(1)))
                at += 1
            rank = U32(rank + U32(1))


@gpu_function
def count_both(group, values, members):
    """Return how many values of a group are of a class, and 2**32 times how many of them differ: uint64."""
    count = U64(0)
    for i in range(group.begin, group.end):
        before = U64(group.values[group.at + U64(i)])
        if is_member(before, members):
            count = U64(count + U64(1))
            if before != U64(values[group.at + U64(i)]):
                count = U64(count + U64(_LOW + U64(1)))
    return count


@gpu_kernel
def note_all_differences(source, found):
    """Note what differs in a sub-stream: by class, in the order of values.

    Args:
        source: The :class:`sparse_tables.SparseSource`.
        found: The :class:`sparse_tables.FoundChanges`, of which ranks and steps are results.
    """
    cells = cuda.shared.array(THREADS, np.uint64)
    lane, g = I32(cuda.threadIdx.x), block_number()
    start, n = values_of_sub_stream(source, g)
    mask, first = U64(U64(U64(1) << U64(source.width - U32(1))) - U64(1)), found.starts[g]
    for k in range(MAX_CLASSES):
        count = np.int64(found.counts[g, k])
        if count:
            members = ClassMembers(mask, U64(source.bounds[k]), U64(source.bounds[k + 1]))
            done = U64(0)
            for tile in range(I32(0), n, I32(N * I32(GROUP))):
                group = group_in_tile(source.base, start, I32(tile), n)
                own = count_both(group, source.values, members)
                cells[lane] = own
                scan(cells)
                before = U64(U64(done + U64(cells[lane])) - own)
                done = U64(done + U64(cells[N - I32(1)]))
                if own > _LOW:
                    at = first + np.int64(U64(before >> U64(32)))
                    note_differences(group, source.values, members, found, U32(before & _LOW), at)
                cuda.syncthreads()
            first += count


@gpu_kernel
def count_change_symbols(found, sign, classes, steps):
    """Count the symbols of a sub-stream's changes.

    Args:
        found: The :class:`sparse_tables.FoundChanges`.
        sign: 2**(W - 1), uint64.
        classes: uint64[16 * 123], results: how often each symbol of each class occurs in the launch.
        steps: uint64[65], results: likewise, of steps.
    """
    own_classes = cuda.shared.array(N_SYMBOLS, np.uint32)
    own_steps = cuda.shared.array(N_STEP_SYMBOLS, np.uint32)
    lane, g = I32(cuda.threadIdx.x), block_number()
    for i in range(lane, N_SYMBOLS, N):
        own_classes[i] = U32(0)
    for i in range(lane, N_STEP_SYMBOLS, N):
        own_steps[i] = U32(0)
    cuda.syncthreads()
    first = found.starts[g]
    for k in range(MAX_CLASSES):
        count = I32(found.counts[g, k])
        for i in range(lane, count, N):
            change = symbols_of_change(found, first, first + i, sign)
            place = k * N_CLASS_SYMBOLS + 3 * change.category + change.kind
            cuda.atomic.add(own_classes, place, U32(1))
            if change.kind == OTHER:
                cuda.atomic.add(own_steps, change.symbol, U32(1))
        first += count
    cuda.syncthreads()
    for i in range(lane, N_SYMBOLS, N):
        if own_classes[i]:
            cuda.atomic.add(classes, i, U64(own_classes[i]))
    for i in range(lane, N_STEP_SYMBOLS, N):
        if own_steps[i]:
            cuda.atomic.add(steps, i, U64(own_steps[i]))
