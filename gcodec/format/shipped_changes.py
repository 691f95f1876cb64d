"""Codebooks of changes that come with gcodec (docs/format.md, section 12): a small difference names one instead of
carrying its own.

The share of weights that an optimizer's step moves to another bfloat16 halves from one power of two to the next, as
the last place doubles. So there are few shapes, and a codebook of each for every exponent at which its classes may
begin. The records were fitted by ``python -m tools.fit_changes``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from ..dtypes import BY_NAME
from .change_codebook import ChangeCodebook, read_changes

#: By the id of a shape's first codebook: its record. That of the k-th codebook after it has all thresholds raised by
#: k * 2**7, an exponent of bfloat16.
CHANGE_RECORDS: dict[int, str] = {
    16: (
    "03081e0200348034003580350036803600373164656665657676768798999999999999999999c9cc22334455667798aabccccccccc99cc"
    "335135889679aab8abbccaaccccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc22524466868788a9aaab"
    "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc2244635557855678a7889bb9aacccccccccccccc"
    "cccccccccccccccccccccccccccccccccccccccccccccccccc333893445aa5445ab5557bc7779cc9aabccbbccccccccccccccccccccccc"
    "cccccccccccccccccccccccccccccc444cc4445cc5444cc4445cc5557cc6779cc99abccbbbcccccccccccccccccccccccccccccccccccc"
    "cccccccccc555cc5555cc5445cc5444cc4445cc5557cc6779cc89acccccccccccccccccccccccccccccccccccccccccccccc566cc6666c"
    "c6555cc5445cc5445cc4445cc5556cc6678cc8aacccccccccccccccccccccccccccccccccccccccc778cc8888cc7777cc7666cc6555cc5"
    "445cc5445cc5445cc5556cc6667cc7779cc999bccbbbcccccccccccccccc00"
    ),
    34: (
    "03081e0200348034003580350036803600373433334375879988887898999999999999999999c9cc2233445566779999cbcccccccc99cc"
    "4461467777776668866667b66778c77788c888cc9cccccccccccccccccccccccccccccccccccccccccccccccbc335135999699bcc8cccc"
    "ccccaacccc99c7ccccc9cccccccccccccccccccccccccccccccccccccccccccccccccc335135779689aababbccccccccccccaacccccccc"
    "cccccccccccccccccccccccccccccccccccccccccccccccccc2243535566867799b999cccccccccccccccccccccccccccccccccccccccc"
    "cccccccccccccccccccccccccccccc224893445aa5557ac7779cc9aacccbcccccccccccccccccccccccccccccccccccccccccccccccccc"
    "cccccccccc334cc4444cc4445cc4556cc6668cc889bccacccccccccccccccccccccccccccccccccccccccccccccccccccccc444cc4555c"
    "c5444cc4445cc4556cc6668cc799cccccccccccccccccccccccccccccccccccccccccccccccccccc666cc6666cc6555cc5445cc5444cc4"
    "445cc5557cc6778cc8aacccccccccccccccccccccccccccccccccccccccc00"
    ),
}
N_SHIFTS = 18  #: codebooks of a shape
FIRST_EXPONENT = 104  #: at which the second class of a shape's first codebook begins
N_SHAPES, N_CLASSES = len(CHANGE_RECORDS), 8
EXPONENT_AT = 7  #: lowest bit of bfloat16's exponent


class ChangeShape(NamedTuple):
    """The codebooks of one shape.

    Attributes:
        first_id: Id of the first codebook.
        shares: float64[N_CLASSES], the share of a class's values that changes, about, by its codes.
    """

    first_id: int
    shares: np.ndarray


@cache
def change_shapes() -> tuple[ChangeShape, ...]:
    """Return the shapes."""
    return tuple(ChangeShape(first, _shares(_first_codebook(first))) for first in CHANGE_RECORDS)


def find_changes(codebook_id: int, digest: int) -> ChangeCodebook | None:
    """Return the codebook of changes with this id and hash, or None."""
    codebook = _codebook(codebook_id)
    return codebook if codebook is not None and codebook.hash == digest else None


def changes_from(thresholds: tuple[int, ...]) -> list[tuple[int, ChangeCodebook]]:
    """Return id and codebook of all whose classes begin at these thresholds."""
    shift = (thresholds[0] >> EXPONENT_AT) - FIRST_EXPONENT if thresholds else -1
    if not 0 <= shift < N_SHIFTS or thresholds != shifted_thresholds(shift):
        return []
    numbered = [(first + shift, _codebook(first + shift)) for first in CHANGE_RECORDS]
    return [(number, codebook) for number, codebook in numbered if codebook is not None]


def shortest_record(codebook: ChangeCodebook) -> bytes:
    """Return the record that stands for a codebook in a frame: its id if it comes with gcodec, else all of it."""
    for number, shipped in changes_from(codebook.thresholds) if codebook.bits == 16 else ():
        if shipped == codebook:
            return shipped.reference(number)
    return codebook.record


def is_shipped(codebook: ChangeCodebook) -> bool:
    """Return True if a codebook comes with gcodec."""
    return len(shortest_record(codebook)) < len(codebook.record)


def shifted_thresholds(shift: int) -> tuple[int, ...]:
    """Return where the classes of the codebooks begin, but the first, that stand ``shift`` behind a shape's first."""
    return tuple(FIRST_EXPONENT + shift + j << EXPONENT_AT for j in range(N_CLASSES - 1))


@cache
def _codebook(codebook_id: int) -> ChangeCodebook | None:
    """Return the codebook with an id, or None."""
    for first in CHANGE_RECORDS:
        if 0 <= codebook_id - first < N_SHIFTS:
            return replace(_first_codebook(first), thresholds=shifted_thresholds(codebook_id - first))
    return None


@cache
def _first_codebook(first: int) -> ChangeCodebook:
    return read_changes(bytes.fromhex(CHANGE_RECORDS[first]), 0, BY_NAME["bfloat16"])[0]


def _shares(codebook: ChangeCodebook) -> np.ndarray:
    """Return the share of each class's values that changes: that of gaps of 0."""
    lengths = [np.frombuffer(row, np.uint8)[: codebook.n_kinds] for row in codebook.classes]
    return np.array([float(np.sum(2.0**-row.astype(float))) for row in lengths])
