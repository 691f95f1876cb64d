"""Names of the tensors in an archive: of those in its files, and of all that are in a saved object."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..errors import InvalidArgument, did_you_mean
from ..files.file_plan import TensorView
from .entries import FileEntry
from .named_parts import no_such
from .reader import ArchiveReader
from .state_files import places_of


class NamedTensor(NamedTuple):
    """A tensor in an archive.

    Attributes:
        entry: The file that it is in.
        view: Its name, type and place there.
        kind: ``"numpy"`` or ``"torch"``: what it comes as, if the caller does not say.
    """

    entry: FileEntry
    view: TensorView
    kind: str


class TensorNames:
    """The tensors of an archive by name: ``NAME``, and ``FILE:NAME`` too.

    Args:
        archive: An open archive; of saved objects, the structure is read.
    """

    def __init__(self, archive: ArchiveReader) -> None:
        self._archive_name, self._check_beside = archive.name, archive.check_beside
        self._alone = len(archive.files) == 1
        self._places = [NamedTensor(entry, *place) for entry in archive.files for place in places_of(archive, entry)]
        # FILE:NAME is put together where somebody asks for it: of each tensor it may take as much as a path.
        self._by_name: dict[str, list[NamedTensor]] = defaultdict(list)
        self._in_file: dict[str, dict[str, NamedTensor]] = {entry.path: {} for entry in archive.files}
        for place in self._places:
            self._by_name[place.view.name].append(place)
            self._in_file[place.entry.path][place.view.name] = place

    def __contains__(self, name: str) -> bool:
        return bool(self._called(name))

    def __len__(self) -> int:
        return len(self._places)

    def all(self) -> dict[str, NamedTensor]:
        """Return all tensors, under ``NAME`` in an archive of one file, under ``FILE:NAME`` in one of several.

        Raises:
            LimitExceeded: These names take more than the archive's limit leaves for them.
            InvalidArgument: Two of them are the same.
        """
        return self._each_once(self._named())

    def _named(self) -> list[tuple[str, NamedTensor]]:
        """Return all tensors, each with its name as :meth:`all` has it."""
        if not self._alone:
            size = sum(len(place.entry.path) + len(place.view.name) + 1 for place in self._places)
            self._check_beside(size, "a list of the names of all tensors")
        return [(place.view.name if self._alone else _full_name(place), place) for place in self._places]

    def _each_once(self, named: Iterable[tuple[str, NamedTensor]]) -> dict[str, NamedTensor]:
        """Return tensors by name. Raises InvalidArgument where two have the same, as ``a:b`` in a file ``x`` and ``b``
        in a file ``x:a`` have: none may be left out."""
        result: dict[str, NamedTensor] = {}
        for name, place in named:
            if (other := result.setdefault(name, place)) is not place:
                files = " and ".join(f"{each.view.name!r} in {each.entry.path!r}" for each in (other, place))
                raise InvalidArgument(
                    f"{self._archive_name}: two tensors would be called {name!r}, {files}: take one "
                    "of them at a time, by its name alone, or restore the files with decompress"
                )
        return result

    def matching(self, names: Iterable[str]) -> dict[str, NamedTensor]:
        """Return the tensors that are meant.

        Args:
            names: Names, which the result has as keys, or patterns with ``*``, ``?`` and ``[...]`` as in a shell, in
                place of which it has those of :meth:`all`; so it has for a ``FILE:NAME`` that leaves out folders.

        Raises:
            InvalidArgument: Nothing is called so, several files have a tensor of this very name, or two tensors would
                have the same one in the result.
        """
        try:
            wanted = list(names)
        except TypeError:
            raise InvalidArgument(f"names must be a name or several, not {names!r:.80}") from None
        return self._each_once(found for name in wanted for found in self._matching_one(name))

    def find(self, name: str) -> NamedTensor:
        """Return the tensor of a name. Raises InvalidArgument if there is none, or several files have one."""
        found = self._called(name)
        if not found:
            raise self._unknown(name)
        if len(found) > 1:
            files = ", ".join(map(_full_name, found[:3]))
            raise InvalidArgument(f"{self._archive_name}: several tensors are called {name!r}; say which: {files} ...")
        return found[0]

    def _called(self, name: str) -> list[NamedTensor]:
        """Return the tensors of a name, and the one that has it as its ``FILE:NAME``. Raises InvalidArgument for
        what is no name."""
        if not isinstance(name, str):
            raise InvalidArgument(f"{self._archive_name}: a tensor's name must be a string, not {name!r}")
        colons = [at for at, character in enumerate(name) if character == ":"]
        in_files = (self._in_file.get(name[:at], {}).get(name[at + 1 :]) for at in colons)
        return [*self._by_name.get(name, ()), *(place for place in in_files if place is not None)]

    def _matching_one(self, name: str) -> Iterator[tuple[str, NamedTensor]]:
        if name in self:
            yield name, self.find(name)
            return
        known = self._named()
        numbers = matches(name, [(place.entry.path, place.view.name) for _, place in known])
        if not numbers:
            raise self._unknown(name)
        yield from (known[number] for number in numbers)

    def _unknown(self, name: str) -> InvalidArgument:
        meant = did_you_mean(name, self._by_name)
        return InvalidArgument(f"{self._archive_name}: no tensor {no_such(name)}{meant}")


def matches(pattern: str, places: Sequence[tuple[str, str]]) -> list[int]:
    """Return the numbers of the tensors whose names fit a pattern; if none does, of those that fit it as ``FILE:NAME``.

    So ``model.*`` means tensors, even in a ``model.safetensors``. FILE may leave out folders at the front of a path.
    What is the very ``FILE:NAME`` of a tensor, but for such folders, means that one, whichever signs are in it.

    Args:
        pattern: With ``*``, ``?`` and ``[...]`` as in a shell.
        places: For each tensor the path of its file and its name.
    """
    if very := [number for number, (path, name) in enumerate(places) if is_behind_folders(pattern, path, name)]:
        return very
    fits = re.compile(fnmatch.translate(pattern)).match
    by_name = [number for number, (_, name) in enumerate(places) if fits(name)]
    return by_name or [
        number
        for number, (path, name) in enumerate(places)
        if any(fits(f"{path[at:]}:{name}") for at in (0, *(m.end() for m in re.finditer("/", path))))
    ]


def is_behind_folders(text: str, path: str, name: str) -> bool:
    """Return True for the ``FILE:NAME`` of a tensor, with or without folders at the front of FILE; all of NAME must be
    there."""
    end = f":{name}"
    return text.endswith(end) and len(text) > len(end) and f"/{path}".endswith(f"/{text.removesuffix(end)}")


def _full_name(place: NamedTensor) -> str:
    return f"{place.entry.path}:{place.view.name}"
