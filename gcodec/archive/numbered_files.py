"""Files of a folder whose names differ by a number, as those of a series do, and the removal of what nothing needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..files.all_or_nothing import final_name, name_before
from .folders import Folder

_DIGITS = re.compile(r"[0-9]+")  #: and no others that int() takes


class NumberedFiles(NamedTuple):
    """The names of one kind of file: ``step-00000012.gc`` is ``NumberedFiles("step-", 8, ".gc").name(12)``.

    Attributes:
        prefix: What stands before the number.
        n_digits: Decimal digits of the number, with zeros ahead of a smaller one; a larger one has more digits.
        suffix: What stands behind the number.
        limit: Numbers are below it.
    """

    prefix: str
    n_digits: int
    suffix: str
    limit: int = 10**18

    def name(self, number: int) -> str:
        """Return the name of a file."""
        return f"{self.prefix}{number:0{self.n_digits}d}{self.suffix}"

    def number(self, name: str) -> int | None:
        """Return the number of a file; None for a name that is not of this kind, or not as :meth:`name` writes it."""
        digits = name.removeprefix(self.prefix).removesuffix(self.suffix)
        number = int(digits) if _DIGITS.fullmatch(digits) else None
        return number if number is not None and number < self.limit and self.name(number) == name else None

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of those names that are of this kind, in ascending order."""
        return sorted(number for number in map(self.number, names) if number is not None)


def remove_unneeded(
    folder: Folder, is_ours: Callable[[str], bool], is_needed: Callable[[str], bool], tell: Callable[[str], None]
) -> None:
    """Removes a writer's files that nothing needs, and what writers that were killed have left of any; no other files.

    Where a writer was killed that had moved an earlier file away, as in stores that move no file over another, both are
    left as they are: only whoever looks at them can tell which is whole.

    Args:
        folder: The folder, to which nobody else writes meanwhile.
        is_ours: Returns True for the names that the writer gives to files.
        is_needed: Returns True for those of them that stay.
        tell: Called with which file cannot be removed, and why: it does no harm but takes room; and with what to do
            about an earlier file.
    """
    names = folder.names()
    moved = {final: name for name in names if (final := name_before(name)) and is_ours(final)}
    for final, name in moved.items():
        tell(
            f"{folder.place(final)}: what was there before is at {folder.place(name)}, where a writer that was killed "
            "has left it: move it back if the file is missing or damaged, else remove it"
        )
    for name in names:
        final = final_name(name)
        if final in moved or name in moved.values():
            continue
        if (is_ours(name) and not is_needed(name)) if final is None else is_ours(final):
            try:
                folder.remove(name)
            except OSError as error:
                tell(f"cannot remove {folder.place(name)}, which nothing needs: {error.strerror or error}")
