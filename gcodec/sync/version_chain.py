"""The way from the weights that a subscriber holds to a later version: differences, or an anchor and differences.

A way is found otherwise than in ``gcodec.checkpoints.chain``, where each file has one base and is opened to name it:
here a manifest names all messages and their sizes, so that the cheapest of many ways is known before one is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from heapq import heapify, heappop
from itertools import chain
from typing import NamedTuple, Protocol

from ..errors import Corruption, check_int
from .version_message import Message, VersionInfo


class Position(NamedTuple):
    """The number and hash of the weights that a subscriber holds.

    Attributes:
        number: Number of the version, 0 if none has been applied.
        state: Hash of the weights; empty if there are none.
    """

    number: int
    state: str

    def __str__(self) -> str:
        return f"version {self.number}" if self.number else "no version"


class StoredMessage(NamedTuple):
    """A message that is stored somewhere.

    Attributes:
        n_bytes: Its size.
        hash: XXH3, 64 bits, of it: 16 hexadecimal digits.
    """

    n_bytes: int
    hash: str


class StoredVersion(NamedTuple):
    """A version that is stored somewhere, as a difference, an anchor or both.

    Attributes:
        number: Number of the version.
        state: Hash of the weights, 16 hexadecimal digits.
        base: Hash of the weights that the difference applies to; None without a difference.
        difference: The difference, if there is one.
        anchor: The anchor, if there is one.
        metadata: The publisher's own key-value pairs.
    """

    number: int
    state: str
    base: str | None
    difference: StoredMessage | None
    anchor: StoredMessage | None
    metadata: dict[str, str]

    def at(self, step: Step) -> StoredMessage | None:
        """Return the message that is stored for a step to this version."""
        return self.anchor if step.is_anchor else self.difference


class VersionSource(Protocol):
    """A place where versions are stored, such as a folder."""

    def versions(self) -> Sequence[StoredVersion]:
        """Return the versions that are there, in ascending order."""
        ...

    def message(self, number: int, *, anchor: bool, stored: StoredMessage | None = None) -> Message:
        """Return the difference or the anchor of a version; ``stored``: what :meth:`versions` has said of it.

        Raises:
            FileNotFoundError: It has been removed.
        """
        ...


class Step(NamedTuple):
    """A message on the way to a version.

    Attributes:
        number: Number of its version.
        is_anchor: The anchor of that version, not the difference.
    """

    number: int
    is_anchor: bool


def check_stop(to: int | None) -> int | None:
    """Return the number of the version to stop at, None for the newest. Raises InvalidArgument for anything else."""
    return None if to is None else check_int("to", to)


def check_found(info: VersionInfo, version: StoredVersion, step: Step, where: str) -> None:
    """Compare a message with what its source says of it.

    Args:
        info: The facts that the message states.
        version: The version of the step, as the source names it.
        step: The step that the message is stored for.
        where: Place of the message, for the error.

    Raises:
        Corruption: It is another message, though perhaps an intact one.
    """
    wanted = VersionInfo(version.number, version.state, None if step.is_anchor else version.base)
    if (info.number, info.state, info.base) != (wanted.number, wanted.state, wanted.base):
        raise Corruption(f"{where}: is {_described(info)}, but is stored as {_described(wanted)}")


def _described(info: VersionInfo) -> str:
    base = "" if info.base is None else f" to apply to {info.base}"
    return f"{info} with the weights {info.state}{base}"


class Ways:
    """The ways through stored versions to the last of them; a message that cannot be used is left out from then on.

    All calls together take little more than linear time in the number of versions, however many messages fail.

    Args:
        versions: What there is, in ascending order; at least one.
        without: Messages that cannot be used.
    """

    def __init__(self, versions: Sequence[StoredVersion], *, without: Collection[Step] = ()) -> None:
        # From the last version backwards, as far as differences lead; so are all places below.
        self._chain: list[StoredVersion] = []
        self._states: dict[str, int] = {}  # the place of each hash of weights: how many differences lead on from it
        self._bytes = [0]  # of that many differences
        self._anchors: list[tuple[int, int]] = []  # a heap: bytes of the way from an anchor, and its place
        self._lost = set[int]()  # places of anchors that cannot be used
        needed: str | None = versions[-1].state
        for version in reversed(versions):
            if version.state != needed:
                break
            place = len(self._chain)
            self._states.setdefault(needed, place)
            self._chain.append(version)
            if version.anchor is not None and Step(version.number, True) not in without:
                self._anchors.append((self._bytes[place] + version.anchor.n_bytes, place))
            if version.difference is None or Step(version.number, False) in without:
                needed = None
                break
            needed = version.base
            self._bytes.append(self._bytes[place] + version.difference.n_bytes)
        if needed is not None:
            self._states.setdefault(needed, len(self._chain))
        self._places = {version.number: place for place, version in enumerate(self._chain)}
        self._end = len(self._bytes) - 1  # the earliest place from which differences lead on
        heapify(self._anchors)

    def leave_out(self, step: Step) -> None:
        """Go around a message from now on, which is one of a way that :meth:`best` has returned."""
        place = self._places[step.number]
        if step.is_anchor:
            self._lost.add(place)
        else:
            self._end = min(self._end, place)

    def best(self, state: str) -> Iterator[Step] | None:
        """Return the messages to apply, one after the other, to get from some weights to the version: the fewest bytes.

        Args:
            state: Hash of the weights that are held; empty if there are none.

        Returns:
            The steps, none from the version's own weights; None if there is no way: an anchor is needed.
        """
        while self._anchors and (self._anchors[0][1] > self._end or self._anchors[0][1] in self._lost):
            heappop(self._anchors)
        held = self._states.get(state, self._end + 1)
        anchor = self._anchors[0] if self._anchors else None
        if held <= self._end and (anchor is None or anchor[1] >= held or self._bytes[held] < anchor[0]):
            return self._differences(held)
        if anchor is None:
            return None
        return chain([Step(self._chain[anchor[1]].number, True)], self._differences(anchor[1]))

    def _differences(self, place: int) -> Iterator[Step]:
        """Return the steps from the weights of a place on."""
        return (Step(self._chain[k].number, False) for k in range(place - 1, -1, -1))
