"""A dictionary whose items are read when they are first used: what ``gcodec.load(path, lazy=True)`` returns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, ValuesView
from typing import Any

from .file_state import FilePlace

_MISSING: Any = object()


class Unread:
    """Stands for a value until it is read. Copies of a dictionary share it, so that each gets the same object.

    Args:
        node: What stands for the value in a file.
        read: Returns the value of this object, and makes it once, whichever threads ask.
    """

    value: Any

    def __init__(self, node: Any, read: Callable[[Unread], Any]) -> None:
        self.node, self.read = node, read

    @property
    def is_read(self) -> bool:
        """True once there is a value."""
        return "value" in vars(self)

    def keep(self, value: Any) -> None:
        """Take the value, unless there is one: the handler of a signal may have read it while this one was read."""
        vars(self).setdefault("value", value)
        self.node = None

    def __repr__(self) -> str:
        return repr(self.value) if self.is_read else "<not read>"


class _Items(ItemsView[Any, Any]):
    """The items of a dictionary, which can be gone through from the last to the first, too."""

    _mapping: dict[Any, Any]

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return ((key, self._mapping[key]) for key in reversed(self._mapping))


class _Values(ValuesView[Any]):
    """The values of a dictionary, which can be gone through from the last to the first, too."""

    _mapping: dict[Any, Any]

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[key] for key in reversed(self._mapping))


class LazyDict(dict[Any, Any]):
    """A dictionary whose items are read from a file when they are first used, and are kept from then on.

    It is a ``dict`` in all else. Whatever gives out values reads them: ``[]``, ``get``, ``pop``, ``items`` and
    ``values`` as they come to them, comparing, ``dict(...)``, ``**``, pickling. Keys, ``len``, ``in``, ``repr`` and
    :meth:`copy` read nothing.

    Args:
        items: Keys and values, some of which are :class:`Unread`.
        places: Where the file is, and those that it needs.
    """

    __slots__ = ("__dict__", "__weakref__", "places")  # an attribute of its own is no item of vars(), which are copied

    def __init__(self, items: Iterable[tuple[Any, Any]] = (), places: Iterable[FilePlace] = ()) -> None:
        super().__init__(items)
        self.places = tuple(places)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, Unread):
            return found
        value = found.read(found)
        if super().get(key) is found:
            self[key] = value
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or ``default`` if there is none."""
        return self[key] if key in self else default  # noqa: SIM401 - this is it

    def items(self) -> Any:
        """Return the items, each of which is read when its turn comes."""
        return _Items(self)

    def values(self) -> Any:
        """Return the values, each of which is read when its turn comes."""
        return _Values(self)

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Return the value of a key and take it out, so that its memory is free once the caller lets go of it."""
        if default is not _MISSING and key not in self:
            return default
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        """Return the last item, and take it out. Raises KeyError if there is none."""
        for key in reversed(self):
            return key, self.pop(key)
        raise KeyError("popitem(): dictionary is empty")

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; where there is none, ``default``, which is put there."""
        if key not in self:
            self[key] = default
        return self[key]

    def copy(self) -> LazyDict:
        """Return a dictionary of the same values, which are read once for both."""
        twin = LazyDict(((key, super(LazyDict, self).__getitem__(key)) for key in self), self.places)
        vars(twin).update(vars(self))
        return twin

    __copy__ = copy

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator of the keys. That this is no method of ``dict`` has ``dict(x)`` ask for each value."""
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        return dict(self) == (dict(other) if isinstance(other, LazyDict) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other  # that of dict compares what has not been read

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return dict(self) | dict(other) if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return dict(other) | dict(self) if isinstance(other, dict) else NotImplemented

    def __repr__(self) -> str:
        found = ((key, super(LazyDict, self).__getitem__(key)) for key in self)
        return "{" + ", ".join(f"{key!r}: {value!r}" for key, value in found) + "}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The dictionary that a pickle can name and torch.load(weights_only=True) takes.
        return OrderedDict, (), vars(self) or None, None, iter(self.items())


def places_of_files(value: object) -> tuple[FilePlace, ...]:
    """Return the places of the files that the lazy dictionaries in containers are read from; nothing is read."""
    found, seen, left = dict[FilePlace, None](), set[int](), [value]
    while left:
        value = left.pop()
        if not isinstance(value, dict | list | tuple) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, LazyDict):
            found |= dict.fromkeys(value.places)
        left += dict.values(value) if isinstance(value, dict) else value
    return tuple(found)
