"""Names that nothing else has: ``a``, ``a#2``, ``a#3``."""

from __future__ import annotations

from collections.abc import Container


class UniqueNames:
    """Gives each of several things a name of its own, in time that grows with their number alone.

    Args:
        reserved: Names that are never given.
    """

    def __init__(self, *reserved: Container[str]) -> None:
        self._reserved = reserved
        self._given: set[str] = set()
        self._last: dict[str, int] = {}  # the last number tried: no lower one is ever free again

    def new(self, wanted: str) -> str:
        """Return the wanted name if it is free, and otherwise with the lowest number from 2 that makes it so."""
        name, number = wanted, self._last.get(wanted, 1)
        if number > 1:
            number += 1
            name = f"{wanted}#{number}"
        while name in self._given or any(name in names for names in self._reserved):
            number += 1
            name = f"{wanted}#{number}"
        self._last[wanted] = number
        self._given.add(name)
        return name
