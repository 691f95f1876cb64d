"""Who sums which values of a buffer, and in what pieces they travel."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Values in a piece, where there are several. What a message costs beside its values, some tenths of a millisecond of
#: processor time, is then a small part of what coding them takes.
MIN_PIECE, MAX_PIECE = 1 << 20, 1 << 21
_BLOCK, _ALIGNED = 1 << 14, 1 << 10  #: values; pieces are multiples of the first if they are longer, or else the second
_IN_FLIGHT = 12  #: pieces of a rank's share that keep codec and network busy at the same time

Range = tuple[int, int]  #: the position of the first value in a buffer, and that behind the last


def piece_length(n_values: int, size: int) -> int:
    """Return the number of values in a piece.

    It is a twelfth of a rank's share, but not so few that a frame's overhead shows. All pieces but the last one of a
    buffer have this length.

    Args:
        n_values: Values of the buffer.
        size: The number of ranks.
    """
    share = -(-n_values // size)
    n_pieces = min(max(share // MIN_PIECE, 1), _IN_FLIGHT)
    length = min(-(-share // n_pieces), MAX_PIECE)
    unit = _BLOCK if length > _BLOCK else _ALIGNED
    return max(-(-length // unit) * unit, unit)


def shares(n_values: int, size: int) -> list[list[Range]]:
    """Return the pieces that each rank sums, by rank; some have none where there are few values.

    They take turns, so that parts of a buffer that compress well or badly fall to all of them alike. Where pieces are
    not pipelined, every rank has one part instead: ``compressors.contract.parts_of``.

    Args:
        n_values: Values of the buffer.
        size: The number of ranks.
    """
    pieces = pieces_of(0, n_values, piece_length(n_values, size))
    return [pieces[rank::size] for rank in range(size)]


def equal_shares(n_values: int, size: int) -> list[list[Range]]:
    """Return the pieces of each rank's part where parts lie one after another, by rank; they are equal if the number of
    values is a multiple of the ranks."""
    from ...compressors.contract import parts_of  # which imports torch, and kernels are compiled where there is none

    length = piece_length(n_values, size)
    return [pieces_of(part.start, part.stop, length) for part in parts_of(n_values, size)]


def pieces_of(begin: int, end: int, length: int) -> list[Range]:
    """Divide a range of values into pieces.

    Args:
        begin: The first value.
        end: The position behind the last value.
        length: Values of a piece; the last one may be shorter.
    """
    return [(at, min(at + length, end)) for at in range(begin, end, length)]


def shapes_within(shapes: Sequence[Sequence[int]], begin: int, end: int) -> list[tuple[int, ...]]:
    """Return the shapes of what a range of a buffer holds: rows of tensors, and the parts of rows at both ends.

    ::

        buffer   | tensor of 4 rows            | next tensor
        range              [ ................................. ]
        shapes          (head,) (2, columns)      ...

    Args:
        shapes: The shapes of the tensors, which lie in the buffer end to end.
        begin: The first value of the range.
        end: The position behind its last value.
    """
    within: list[tuple[int, ...]] = []
    at = 0
    for shape in shapes:
        n_values = math.prod(shape)
        first, stop = max(begin, at) - at, min(end, at + n_values) - at
        at += n_values
        if first < stop:
            columns = shape[-1] if len(shape) > 1 else n_values
            head = min(-first % columns, stop - first)
            rows, tail = divmod(stop - first - head, columns)
            within += [(head,)] * (head > 0) + [(rows, columns)] * (rows > 0) + [(tail,)] * (tail > 0)
    return within
