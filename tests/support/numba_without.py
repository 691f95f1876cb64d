"""numba as another version of it may be, without some of its private parts.

``python -m tests.support.numba_without "_nrt populate_array" PROGRAM`` runs a program with numba in which these words
have other names, everywhere in its source, so that numba itself works and nobody else finds them.
"""

from __future__ import annotations

import re
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any


class _Renaming(SourceFileLoader):
    """Compiles a module from its source with the words renamed; bytecode on disk is neither read nor written."""

    words: re.Pattern[str]

    def get_code(self, fullname: str) -> Any:
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(self.words.sub(r"\1_ELSEWHERE", source), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds those modules of numba that have one of the words in them."""

    def __init__(self, names: list[str]) -> None:
        self._words = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith("numba."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if not self._words.search(Path(spec.origin).read_text(encoding="utf-8")):
            return None
        spec.loader = _Renaming(fullname, spec.origin)
        spec.loader.words = self._words
        return spec


def hide(names: list[str]) -> None:
    """Rename words in all of numba's modules that are imported from now on."""
    if "numba" in sys.modules:
        raise RuntimeError("numba has been imported already")
    if names:
        sys.meta_path.insert(0, _Finder(names))


if __name__ == "__main__":
    hide(sys.argv[1].split())
    exec(compile(sys.argv[2], "<program>", "exec"), {"__name__": "__main__"})
