"""The way from the weights that a subscriber holds to a later version: differences, or an anchor and differences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from ..errors import BrokenChain, Corruption
from .version_message import Message, VersionInfo


class StoredMessage(NamedTuple):
    """A message that is stored somewhere.

    Attributes:
        n_bytes: its size.
        hash: XXH3, 64 bits, of it: 16 hexadecimal digits.
    """

    n_bytes: int
    hash: str


class StoredVersion(NamedTuple):
    """A version that is stored somewhere, as a difference, an anchor or both.

    Attributes:
        number: number of the version.
        state: hash of the weights, 16 hexadecimal digits.
        base: hash of the weights that the difference applies to; None without a difference.
        difference: the difference, if there is one.
        anchor: the anchor, if there is one.
        metadata: the publisher's own key-value pairs.
    """

    number: int
    state: str
    base: str | None
    difference: StoredMessage | None
    anchor: StoredMessage | None
    metadata: dict[str, str]


class VersionSource(Protocol):
    """A place where versions are stored, such as a folder."""

    def versions(self) -> Sequence[StoredVersion]:
        """Return the versions that are there, in ascending order."""
        ...

    def message(self, number: int, *, anchor: bool) -> Message:
        """Return the difference or the anchor of a version. Raises FileNotFoundError if it has been removed."""
        ...


class Step(NamedTuple):
    """A message on the way to a version.

    Attributes:
        number: number of its version.
        is_anchor: the anchor of that version, not the difference.
    """

    number: int
    is_anchor: bool


def check_found(info: VersionInfo, version: StoredVersion, step: Step, where: str) -> None:
    """Compare a message with what its source says of it.

    Args:
        info: the facts that the message states.
        version: the version of the step, as the source names it.
        step: the step that the message is stored for.
        where: place of the message, for the error.

    Raises:
        Corruption: it is another message, though perhaps an intact one.
    """
    wanted = VersionInfo(version.number, version.state, None if step.is_anchor else version.base)
    if (info.number, info.state, info.base) != (wanted.number, wanted.state, wanted.base):
        raise Corruption(f"{where}: is {_described(info)}, but is stored as {_described(wanted)}")


def _described(info: VersionInfo) -> str:
    base = "" if info.base is None else f" to apply to {info.base}"
    return f"{info} with the weights {info.state}{base}"


def way_to(number: int, versions: Sequence[StoredVersion], state: str, *, without: Collection[Step] = ()) -> list[Step]:
    """Return the messages to apply, one after the other, to get from some weights to a version; the fewest bytes.

    Args:
        number: number of the version.
        versions: what there is, in ascending order.
        state: hash of the weights that are held; empty if there are none.
        without: messages that cannot be used.

    Raises:
        BrokenChain: there is no way: an anchor is needed.
    """
    ways: list[tuple[int, list[Step]]] = []
    later, n_bytes = list[Step](), 0
    needed: str | None = None  # hash of the weights that the steps so far lead on from; None: nothing does
    for version in reversed([version for version in versions if version.number <= number]):
        needed = version.state if needed is None else needed
        if version.state != needed or needed == state:
            break
        anchor, difference = Step(version.number, True), Step(version.number, False)
        if version.anchor is not None and anchor not in without:
            ways.append((n_bytes + version.anchor.n_bytes, [anchor, *later]))
        if version.difference is None or difference in without:
            needed = None
            break
        later, n_bytes, needed = [difference, *later], n_bytes + version.difference.n_bytes, version.base
    if state and needed == state:
        ways.append((n_bytes, later))
    if not ways:
        raise BrokenChain(f"nothing leads to version {number} from what is held: an anchor is needed")
    return min(ways, key=lambda way: way[0])[1]
