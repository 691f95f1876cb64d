"""Parts of an object by names and patterns: what is left of a structure if only they are wanted."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import InvalidArgument, did_you_mean
from .own_classes import ClassEntry
from .structure import DICTIONARIES, MAX_DEPTH, NAMESPACES, TENSORS, ParsedStructure, tag_of_node
from .structure_places import children_of

#: An error looks among so many paths for one that was meant.
MAX_MEANT = 10_000
#: Stands for a node of which nothing is wanted.
_NOTHING = object()


class _Patterns:
    """The names and patterns of a caller. Each means the paths equal to it; if there are none, those that it matches.

    A caller may list as many names as there are paths, so that names are looked up, and only patterns are tried on
    each path.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._n_equal = dict.fromkeys(texts, 0)  # paths that are the very text
        signed = [text for text in self._n_equal if any(sign in text for sign in "*?[")]
        self._fits = {text: re.compile(fnmatch.translate(text)).match for text in signed}
        self._n_fits = dict.fromkeys(signed, 0)  # paths that the pattern matches

    def note(self, path: str) -> None:
        """Count a path."""
        if path in self._n_equal:
            self._n_equal[path] += 1
        for text, fits in self._fits.items():
            self._n_fits[text] += fits(path) is not None

    def meaningless(self) -> Iterator[str]:
        """Yield the texts that mean no path, once all have been counted."""
        return (text for text, n_equal in self._n_equal.items() if not n_equal and not self._n_fits.get(text, 0))

    def mean(self, path: str) -> bool:
        """Return True for a path that is meant, once all have been counted."""
        if path in self._n_equal:
            return True
        return any(fits(path) is not None for text, fits in self._fits.items() if not self._n_equal[text])


def named_parts(parsed: ParsedStructure, names: Iterable[str] | str, where: str) -> Any:
    """Return the node of a structure without what is not named.

    Dictionaries and namespaces have the named items alone, lists and tuples null in place of the others. Any other
    container is there whole if something in it is named.

    Args:
        names: A name or pattern as in a shell, or several.
        where: Name of the file in errors.

    Raises:
        InvalidArgument: A name means nothing, or is none.
        ValueError, TypeError, LookupError: The structure is malformed.
    """
    patterns = patterns_of(names, where)
    meant: list[str] = []
    for path in _paths_in(parsed):
        patterns.note(path)
        if len(meant) < MAX_MEANT:
            meant.append(path)
    for text in patterns.meaningless():
        raise InvalidArgument(f"{where}: nothing {no_such(text)}{did_you_mean(text, meant)}")
    found = _named_in(_path_of_all(parsed.state), parsed.state, patterns, parsed.classes)
    assert found is not _NOTHING  # some path is meant
    return found


def listed_names(names: Iterable[str] | str | None) -> Iterable[str] | str | None:
    """Return a caller's names as they can be gone through more than once; what goes wrong where they are made is no
    fault of a file, so that none is read before."""
    if names is None or isinstance(names, str):
        return names
    try:
        several = iter(names)
    except TypeError:  # which whoever reads the file refuses
        return names
    return list(several)


def patterns_of(names: Iterable[str] | str, where: str) -> _Patterns:
    """Return a caller's names as patterns. Raises InvalidArgument for what is none; ``where``: for errors."""
    wanted: list[Any]
    try:
        wanted = [names] if isinstance(names, str) else list(names)
    except TypeError:
        wanted = [names]
    if not wanted or not all(isinstance(name, str) for name in wanted):
        raise InvalidArgument(f"{where}: names must be a name or several, not {names!r:.80}")
    return _Patterns(wanted)


def no_such(name: str) -> str:
    """Return what is said of tensors that are not there: not called by a name, or not matched by a pattern."""
    return f"matches {name!r}" if any(sign in name for sign in "*?[") else f"is called {name!r}"


def _path_of_all(node: Any) -> str:
    """Return the path of the whole state: that of a tensor by itself is its name."""
    return "tensor" if isinstance(node, dict) and tag_of_node(node)[0] in TENSORS else ""


def _paths_in(parsed: ParsedStructure) -> Iterator[str]:
    """Yield the paths of all nodes but the container that is the whole state."""
    first = _path_of_all(parsed.state)
    if first:
        yield first
    yield from _paths_below(parsed.state, "", parsed.classes)


def _paths_below(node: Any, path: str, classes: list[ClassEntry]) -> Iterator[str]:
    levels = [_children(node, path, classes)]
    while levels:
        found = next(levels[-1], None)
        if found is None:
            levels.pop()
            continue
        if len(levels) > 2 * MAX_DEPTH:
            raise ValueError(f"containers are nested more than {2 * MAX_DEPTH} deep")
        yield found[0]
        if isinstance(found[1], list | dict):
            levels.append(_children(found[1], found[0], classes))


def _children(node: Any, path: str, classes: list[ClassEntry]) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and tag_of_node(node)[0] in TENSORS:
        return iter(())
    return children_of(node, path, classes)


def _named_in(path: str, node: Any, patterns: _Patterns, classes: list[ClassEntry]) -> Any:
    """Return what is left of a node, or ``_NOTHING``."""
    if path and patterns.mean(path):
        return node
    if isinstance(node, list):
        return _list_of_named(path, node, patterns, classes)
    if not isinstance(node, dict):
        return _NOTHING
    tag, content = tag_of_node(node)
    if tag == "tuple":
        found = _list_of_named(path, node, patterns, classes)
        return found if found is _NOTHING else {tag: found}
    if tag in DICTIONARIES or tag in NAMESPACES or tag in ("state_dict", "defaultdict"):
        items = content if tag in DICTIONARIES or tag in NAMESPACES else content[tag == "defaultdict"]
        kept: list[Any] = []
        for number, (place, child) in enumerate(_children(node, path, classes)):
            found = _named_in(place, child, patterns, classes) if 2 * number < len(items) else _NOTHING  # its metadata
            if found is not _NOTHING:
                kept += [items[2 * number], found]
        if not kept:
            return _NOTHING
        if tag == "state_dict":
            return {tag: [kept, content[1]]}
        return {tag: [content[0], kept] if tag == "defaultdict" else kept}
    # To the end, for an interrupt while a generator is collected would be lost.
    n_meant = sum(patterns.mean(each) for each in _paths_below(node, path, classes))
    return node if n_meant else _NOTHING


def _list_of_named(path: str, node: Any, patterns: _Patterns, classes: list[ClassEntry]) -> Any:
    """Return the named items of a list or tuple, with None in place of the others."""
    children = _children(node, path, classes)
    found = [_named_in(place, child, patterns, classes) for place, child in children]
    if all(item is _NOTHING for item in found):
        return _NOTHING
    return [None if item is _NOTHING else item for item in found]
