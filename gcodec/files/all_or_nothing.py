"""The end of a block that writes something: what was written appears as a whole, or not at all; and the names that
files have until then."""

from __future__ import annotations

import os
import re
import secrets
from abc import ABC, abstractmethod
from types import TracebackType

#: The name beside the final one has at most so many bytes of that; file systems allow 255 in all.
MAX_NAME_BYTES = 200
_PARTIAL, _REPLACED = (re.compile(rf"\.(.+)\.[0-9a-f]{{8}}\.{end}", re.DOTALL) for end in ("partial", "replaced"))


class AllOrNothing(ABC):
    """A context manager that commits when its block ends well, and in any case removes what is left over."""

    @abstractmethod
    def commit(self) -> None:
        """Let what was written appear."""

    @abstractmethod
    def abort(self) -> None:
        """Remove what was written and has not been committed; it may be called again."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            try:
                self.abort()
            except BaseException:  # such as that of a second Ctrl-C
                self.abort()
                raise


def partial_name(name: str) -> str:
    """Return a new name for a file that is being written, and is to have the name ``name`` once it is complete."""
    return f".{cut_name(name)}.{secrets.token_hex(4)}.partial"


def final_name(name: str) -> str | None:
    """Return the name that a file of a :func:`partial_name` was to have; None for other names."""
    match = _PARTIAL.fullmatch(name)
    return None if match is None else match[1]


def replaced_name(name: str) -> str:
    """Return a new name for a file that another takes the place of, and that comes back where that fails."""
    return f".{cut_name(name)}.{secrets.token_hex(4)}.replaced"


def name_before(name: str) -> str | None:
    """Return the name that a file of a :func:`replaced_name` had; None for other names."""
    match = _REPLACED.fullmatch(name)
    return None if match is None else match[1]


def cut_name(name: str, n_bytes: int = MAX_NAME_BYTES) -> str:
    """Return the start of a file name, of so many bytes at most, cut between characters."""
    return os.fsencode(name)[:n_bytes].decode("utf-8", "ignore")
