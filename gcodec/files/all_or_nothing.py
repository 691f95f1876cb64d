"""The end of a block that writes something: what was written appears as a whole, or not at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType


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
