"""Codebooks of changes that come with gcodec (docs/format.md, section 13): a small difference names one instead of
carrying its own.

The share of weights that an optimizer's step moves to another bfloat16 halves from one power of two to the next, as
the last place doubles. So there are few shapes, and a codebook of each for every exponent at which its classes may
begin. The records were fitted by ``python -m tools.fit_changes``, those of ids below 52 by an earlier state of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from ..dtypes import BY_NAME
from ..kernels.entropy.changes import category_bits, first_of
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
    52: (
        "0308240200348034003580350036803600379698999969665554554433436485999999999999c9cc22334455667789aacbcccccccc99cc"
        "33513578a689aac9abbbcbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc33"
        "5135789689aab9bbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc2242"
        "5466778788a9baabcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc223573"
        "5559a5667ab7889bc9aacccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc333cc344"
        "5cc5445cc5557cc7779cc899bccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc444cc4445c"
        "c5445cc4445cc5556cc6668cc89abccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc555cc5555cc5"
        "445cc5445cc4445cc5556cc6668cc899bccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc666cc6667cc656"
        "6cc6555cc5445cc5445cc5445cc5557cc7779cc9aabccbcccccccccccccccccccccccccccccccccccccccccccccccc00"
    ),
    70: (
        "0308240200348034003580350036803600379999997889996443434454445475989999998888c8cc22334455667789aabccccccccc99cc"
        "335135889679aac9bbcccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc33"
        "5135789689aab9bbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc3351"
        "446687878899a9aacacbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc223473"
        "5568a6667bc788acc9aacccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc233bc344"
        "5cc5556cc5668cc7889cc9aacccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc334cc4445c"
        "c5445cc5446cc5667cc788accaabcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc455cc5555cc5"
        "444cc4445cc5445cc5567cc788acc9abcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc666cc6666cc655"
        "5cc5445cc5444cc4445cc5557cc6779cc9abcccccccccccccccccccccccccccccccccccccccccccccccccccccccccc00"
    ),
    88: (
        "0308240200348034003580350036803600379888896755444344444364768798999999999999c9cc22334455667789aacbcccccccc99cc"
        "335135789689aab9bbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc22"
        "435455667566789788aab9bbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc2337"
        "834459a5556ab6667cc788accaabcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc334cc4"
        "445cc5445cc5455cc5567cc788accaabcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc445cc555"
        "5cc5445cc5445cc5445cc5557cc677acc9abcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc555cc5666c"
        "c6555cc5445cc5445cc5445cc5557cc6779cc9abcccccccccccccccccccccccccccccccccccccccccccccccccccccccccc666cc6667cc6"
        "666cc6555cc5445cc5445cc5445cc5556cc6779cc9aabccbcccccccccccccccccccccccccccccccccccccccccccccccc888cc8888cc877"
        "7cc7667cc7666cc6555cc5445cc5445cc5445cc5556cc6778cc889accaabcccccccccccccccccccccccccccccccccc00"
    ),
    106: (
        "0308240200348034003580350036803600377779778654444443435455769899999999999988c8cc22334455667789aacbcccccccc99cc"
        "44614677745777856888867889a77aaac9abcccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc44"
        "615566756766756777866888977999b8bbbccbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc3352"
        "5555666666666666767767767777979999a9aabbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc225375"
        "6668966668866678976678877788b8889bc9aabbcbcccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc2248b455"
        "6cc6666cc6666bc6667cc7667bc7778cc8889cc999bccbbbcccccccccccccccccccccccccccccccccccccccccccccccccccc334cc4445c"
        "c5555cc5556cc6666cc6667cc6667cc7778cc8889cc9aabccbcccccccccccccccccccccccccccccccccccccccccccccccc445cc4555cc5"
        "445cc5555cc5556cc6556cc6667cc6667cc7778cc8889cc99abccbcccccccccccccccccccccccccccccccccccccccccc666cc6666cc666"
        "6cc6555cc5445cc5445cc5556cc6667cc7667cc7667cc7777cc7778cc889acc9abcccccccccccccccccccccccccccc00"
    ),
}
N_SHIFTS = 18  #: codebooks of a shape
FIRST_EXPONENT = 104  #: at which the second class of a shape's first codebook begins
N_SHAPES, N_CLASSES = len(CHANGE_RECORDS), 8
N_SHARES = 72  #: shares of changes at which codebooks are compared, a quarter of an octave apart
EXPONENT_AT = 7  #: lowest bit of bfloat16's exponent


class ChangeShape(NamedTuple):
    """The codebooks of one shape.

    Attributes:
        first_id: Id of the first codebook.
        gap_bits: float64[N_CLASSES, N_SHARES], what saying which values of a class change takes for each that does,
            where one in 2**(k / 4) changes.
    """

    first_id: int
    gap_bits: np.ndarray


@cache
def change_shapes() -> tuple[ChangeShape, ...]:
    """Return the shapes."""
    return tuple(ChangeShape(first, _gap_bits(_first_codebook(first))) for first in CHANGE_RECORDS)


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


def _gap_bits(codebook: ChangeCodebook) -> np.ndarray:
    """Return :attr:`ChangeShape.gap_bits`, for changes that come independently of each other."""
    kept = 1 - 2.0 ** (-np.arange(N_SHARES) / 4 - 1e-9)
    starts = np.array([first_of(category) for category in range(codebook.n_gaps + 1)])
    shares = kept[:, None] ** starts[:-1] - kept[:, None] ** starts[1:]  # of gaps by category
    shares[:, -1] = kept ** starts[-2]  # longer ones are cut in two
    extra = np.array([category_bits(category) for category in range(codebook.n_gaps)])
    rows = [np.frombuffer(row, np.uint8).reshape(-1, codebook.n_kinds) for row in codebook.classes]
    return np.stack([shares @ (extra - np.log2((2.0 ** -row.astype(float)).sum(axis=1))) for row in rows])
