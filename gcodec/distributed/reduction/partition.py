"""Who sums which values of a buffer, and in what pieces they travel."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LEAST, MOST = 1 << 18, 1 << 20  #: values in a piece, of which there are several
_BLOCK, _ALIGNED = 1 << 14, 1 << 10  #: values; pieces are multiples of the first if they are longer, or else the second
_IN_FLIGHT = 12  #: pieces of a rank's share that keep codec and wire busy at the same time

Range = tuple[int, int]


def piece_length(n_values: int, size: int) -> int:
    """Return the values in a piece: a twelfth of a rank's share, but not so few that a frame's overhead shows.

    Pieces have equal lengths.
    """
    share = -(-n_values // size)
    wanted = min(-(-share // min(max(share // _LEAST, 1), _IN_FLIGHT)), MOST)
    unit = _BLOCK if wanted > _BLOCK else _ALIGNED
    return max(-(-wanted // unit) * unit, unit)


def shares(n_values: int, size: int) -> list[list[Range]]:
    """Return the pieces that each of ``size`` ranks sums; some have none where there are few values.

    They take turns, so that parts of a buffer that compress well or badly fall to all of them alike. Where pieces are
    not pipelined, every rank has one part instead: ``compressors.contract.parts_of``.
    """
    pieces = pieces_of(0, n_values, piece_length(n_values, size))
    return [pieces[rank::size] for rank in range(size)]


def pieces_of(begin: int, end: int, length: int) -> list[Range]:
    """Divide the values ``begin ... end`` into pieces of ``length`` values, the last of which may be shorter."""
    return [(at, min(at + length, end)) for at in range(begin, end, length)]


def shapes_within(shapes: Sequence[Sequence[int]], begin: int, end: int) -> list[tuple[int, ...]]:
    """Return the tensors, and the rows of tensors, in a range of a buffer that holds tensors end to end."""
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
