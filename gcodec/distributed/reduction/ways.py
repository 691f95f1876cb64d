"""The ways of reducing a bucket that keep a mode's promise, and what trials of them have measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

#: Ways: with codebooks that ranks share; the same, but rows are not predicted; with a codebook in every frame; by
#: Gloo's own all-reduce; by that of values cast to 16 bits, as torch's compression hooks do.
CODED, UNPREDICTED, OWN_CODEBOOKS, DENSE, CAST = range(5)
WAY_NAMES = (
    "compressed",
    "compressed without prediction",
    "compressed with a codebook in every frame",
    "uncompressed",
    "cast to 16 bits",
)
CODING = frozenset((CODED, UNPREDICTED, OWN_CODEBOOKS))  #: ways that go through the codec
_CLEAR = 0.8  #: share of the rounds that a way must win to be clearly faster: 7 of 8, 10 of 12, 13 of 16
_FEW_ROUNDS, _FAR = 8, 1.2  #: in fewer rounds than that, chance may win all of them, unless the medians lie far apart


class WayTimes:
    """Seconds of whole steps by way, in rounds in which every way took its turn: means over the ranks.

    Steps of one round lie close together, so that a machine or a link that others use is about as fast for all of them.

    Args:
        ways: The ways that take turns.
    """

    def __init__(self, ways: Sequence[int]) -> None:
        self._rounds: list[dict[int, float]] = []
        self.ways = tuple(ways)

    def add_round(self, seconds: dict[int, float]) -> None:
        """Add the steps of a round, by way. A way that is clearly slower than others may be missing."""
        self._rounds.append(seconds)

    def seconds_of(self, way: int) -> float:
        """Return the median seconds of a way's steps."""
        return median(each[way] for each in self._rounds if way in each)

    @property
    def best(self) -> int:
        """The way with the least median."""
        return min(self.ways, key=self.seconds_of)

    @property
    def contenders(self) -> tuple[int, ...]:
        """The best way, and those that are not clearly slower."""
        best = self.best
        return tuple(way for way in self.ways if way == best or not self._clear(best, way))

    def _clear(self, fast: int, slow: int) -> bool:
        """Return True if one way was faster than another in most of the rounds that have both, if these are enough."""
        pairs = [(each[fast], each[slow]) for each in self._rounds if fast in each and slow in each]
        if len(pairs) < _FEW_ROUNDS and self.seconds_of(slow) < _FAR * self.seconds_of(fast):
            return False
        return sum(a < b for a, b in pairs) >= _CLEAR * len(pairs)
