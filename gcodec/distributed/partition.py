"""Who sums which values of a buffer, and in what pieces they travel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

_ALIGNED = 1 << 10  #: values; chunks begin at multiples
_LEAST, _MOST = 1 << 16, 1 << 20  #: values in a piece
_BLOCK = 1 << 14  #: values; pieces are multiples, or end with their chunk
_IN_FLIGHT = 12  #: pieces per chunk that keep codec and wire busy at the same time

Range = tuple[int, int]


def chunks(n_values: int, size: int) -> list[Range]:
    """The part that each of ``size`` ranks sums; some are empty where there are few values."""
    ends = [min(-(-n_values * rank // (size * _ALIGNED)) * _ALIGNED, n_values) for rank in range(size + 1)]
    return list(pairwise(ends))


def piece_length(n_values: int, size: int) -> int:
    """Values in a piece: a twelfth of a chunk, but not so few that a frame's overhead shows."""
    wanted = -(-n_values // (size * _IN_FLIGHT * _BLOCK)) * _BLOCK
    return min(max(wanted, _LEAST), _MOST)


def pieces(chunk: Range, length: int) -> list[Range]:
    """A chunk cut up. A rest of less than half a piece stays with the one before."""
    begin, end = chunk
    starts = list(range(begin, end, length))
    if len(starts) > 1 and end - starts[-1] < length // 2:
        starts.pop()
    return list(zip(starts, [*starts[1:], end], strict=True)) if starts else []


def shapes_within(shapes: Sequence[Sequence[int]], begin: int, end: int) -> list[tuple[int, ...]]:
    """The tensors, and the rows of tensors, that lie in a range of a buffer that holds tensors end to end."""
    found: list[tuple[int, ...]] = []
    at = 0
    for shape in shapes:
        n_values = math.prod(shape)
        first, stop = max(begin, at) - at, min(end, at + n_values) - at
        at += n_values
        if first < stop:
            columns = shape[-1] if len(shape) > 1 else n_values
            head = min(-first % columns, stop - first)
            rows, tail = divmod(stop - first - head, columns)
            found += [(head,)] * (head > 0) + [(rows, columns)] * (rows > 0) + [(tail,)] * (tail > 0)
    return found
