"""Names of tensors and files to fuzz: what ``load_file(names=...)`` and ``decompress --only`` take of an archive.

A case is one byte, the kind of archive and whether the command line is called, and lines of text: ``=PATH`` begins a
file, ``+NAME`` is a tensor of it, and ``?NAME`` is asked for. What comes out is compared with what docs/cli.md and the
docstring of :func:`gcodec.load_file` say, written down here once more, and looked up in all that the archive holds.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import load as load_safetensors

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter
from gcodec.archive.dicts import plan_tensors
from gcodec.archive.structure import STRUCTURE
from gcodec.cli import UsageError, main
from gcodec.cli.extract import find_files, find_tensors
from gcodec.errors import InvalidArgument
from tests.fuzz.mutation import Dice

DICTIONARY, FILES, OBJECT = range(3)
COMMAND = 4  #: added to the kind: the command line is called, too
T = TypeVar("T")
Place = tuple[str, str]  #: path of the file, and name of the tensor in it

PATHS = ("a.safetensors", "b/a.safetensors", "c/b/a.safetensors", "b/x", "x", "aa", "aa:b", "b/a[1].npz", "d/w", "*")
NAMES = (
    "w",
    "b",
    "a/w",
    "m/w",
    "b:c",
    "b:w",
    "c",
    "a.safetensors:w",
    "x:w",
    "layers.0.w",
    "layers.1.w",
    "w[0]",
    "w*",
    "a",
    "é",
    "[",
    "",
    " ",
    "a.safetensors",
    "b/a.safetensors:w",
    ":",
    "/w",
    "w/",
    "W",
)
ALPHABET = "aabbwx//::**??[]!-. \\é0"


class Lines:
    """A case, read.

    Attributes:
        kind: Of the archive.
        with_command: True if the command line is called, too.
        files: For each path the names of its tensors.
        asked: What is asked for.
    """

    def __init__(self, case: bytes) -> None:
        self.kind, self.with_command = case[0] % COMMAND % 3, bool(case[0] & COMMAND)
        self.files: dict[str, list[str]] = {"x": []}
        self.asked: list[str] = []
        path = "x"
        for line in case[1:].decode(errors="surrogateescape").split("\n")[:60]:
            sign, text = line[:1], line[1:]
            if sign == "=":
                path = text
                self.files.setdefault(path, [])
            elif sign == "+" and text not in self.files[path]:
                self.files[path].append(text)
            elif sign == "?":
                self.asked.append(text)
        if self.kind == DICTIONARY:
            self.files = {"tensors.safetensors": list(dict.fromkeys(chain(*self.files.values())))}


def written(kind: int, files: dict[str, list[str]]) -> bytes:
    """Return an archive in which every tensor has values of its own."""
    archive = io.BytesIO()
    tensors = {
        path: {name: np.arange(3, dtype=np.float32) + 10 * (40 * number + place) for place, name in enumerate(names)}
        for number, (path, names) in enumerate(files.items())
    }
    if kind == DICTIONARY:
        gcodec.save_file(next(iter(tensors.values())), archive, threads=1)
    elif kind == OBJECT:
        root: dict[str, Any] = {}
        for path, named in tensors.items():
            for name, value in named.items():
                at = root.setdefault(path, {})
                *folders, last = name.split("/")
                for folder in folders:
                    at = at.setdefault(folder, {}) if isinstance(at, dict) else {}
                if isinstance(at, dict):
                    at.setdefault(last, value)
        gcodec.save(root, archive, threads=1)
    else:
        with ArchiveWriter(archive, threads=1) as writer:
            for path, named in tensors.items():
                writer.add(replace(plan_tensors(named), path=path))
    return archive.getvalue()


def is_below(asked: str, path: str) -> bool:
    """Return True for a path, and for one of which folders at the front are left out."""
    return f"/{path}".endswith(f"/{asked}") and asked != ""


def fitting(asked: str, places: list[Place]) -> list[Place]:
    """Return the tensors whose names fit a pattern; if none does, those that fit it as ``FILE:NAME``."""

    def forms(path: str) -> list[str]:
        parts = path.split("/")
        return ["/".join(parts[number:]) for number in range(len(parts))]

    return [place for place in places if fnmatchcase(place[1], asked)] or [
        (path, name) for path, name in places if any(fnmatchcase(f"{form}:{name}", asked) for form in forms(path))
    ]


def called(asked: str, places: list[Place]) -> list[Place]:
    """Return the tensors of a name or ``FILE:NAME``; if there is none, those where folders are left out before it."""
    return [(path, name) for path, name in places if asked in (name, f"{path}:{name}")] or [
        (path, name)
        for path, name in places
        if asked.endswith(f":{name}") and is_below(asked[: len(asked) - len(name) - 1], path)
    ]


def tensors_meant(asked: list[str], places: list[Place]) -> list[Place] | None:
    """Return the tensors that are meant, each once, in the order of their names; None for an error."""
    found: list[Place] = []
    for name in asked:
        one = called(name, places)
        if len(one) > 1 or not (one or fitting(name, places)):
            return None
        found += one or fitting(name, places)
    return list(dict.fromkeys(found))


def files_meant(asked: list[str], places: list[Place], paths: list[str]) -> list[str] | None:
    """Return the files that are meant, in the archive's order; none where tensors are, None for an error."""
    found, n_files = set[str](), 0
    for name in asked:
        one = called(name, places)
        if len(one) > 1:
            return None
        meant = [] if one or fitting(name, places) else _files_called(name, paths)
        if meant is None:
            return None
        n_files += bool(meant)
        found |= set(meant)
    return None if 0 < n_files < len(asked) else [path for path in paths if path in found]


def _files_called(name: str, paths: list[str]) -> list[str] | None:
    if name in paths:
        return [name]
    if name.endswith("/"):
        return [path for path in paths if f"/{name}" in f"/{path}"]
    below = [path for path in paths if is_below(name, path)]
    if len(below) > 1:
        return None
    return below or [path for path in paths if fnmatchcase(f"/{path}", f"*/{name}")]


def said(path: str, name: str, alone: bool) -> str:
    """Return the name under which ``load_file`` has a tensor."""
    return name if alone else f"{path}:{name}"


def _refused_or(call: Callable[[], T]) -> T | None:
    """Return what a call returns; None where it raises InvalidArgument."""
    try:
        return call()
    except InvalidArgument:
        return None


class Names:
    """The fuzzing target of names, patterns, and names in several files."""

    seconds, n_prefix = 10.0, 1

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        lines = "=a.safetensors\n+w\n+m/w\n=b/a.safetensors\n+w\n+b:c\n?"
        asked = ("m/w", "b:c", "*w", "b/a.safetensors:w\n?m/w", "b/", "b/a.safetensors")
        return [
            bytes([kind + command]) + (lines + name).encode()
            for kind in range(3)
            for command in (0, COMMAND)
            for name in asked
        ]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        lines, known = list[str](), list[str]()
        for _ in range(dice.pick((1, 1, 2, 2, 3))):
            path = dice.pick(PATHS) if dice.random() < 0.9 else self._text(dice)
            names = [dice.pick(NAMES) if dice.random() < 0.8 else self._text(dice) for _ in range(dice.below(4))]
            lines += [f"={path}", *(f"+{name}" for name in names)]
            known += [path, *names, *(f"{path}:{name}" for name in names)]
        for _ in range(dice.pick((1, 1, 1, 2, 3))):
            lines.append("?" + self._asked(dice, known))
        kind = dice.pick((DICTIONARY, FILES, FILES, OBJECT)) + COMMAND * (dice.random() < 0.1)
        return bytes([kind]) + "\n".join(lines).encode()

    @staticmethod
    def _text(dice: Dice) -> str:
        return "".join(dice.pick(ALPHABET) for _ in range(1 + dice.below(5)))

    def _asked(self, dice: Dice, known: list[str]) -> str:
        text, how = dice.pick(known), dice.random()
        if how < 0.4:
            return text
        if how < 0.5:
            return self._text(dice)
        if how < 0.65:
            return text.partition("/")[2] if how < 0.6 else text.rpartition("/")[0] + "/"
        at = dice.below(len(text) + 1)
        sign = dice.pick(("*", "*", "?", "[ab]", "[!w]", "[", "]", "/", ":", "", "."))
        return text[:at] + sign + text[at + dice.below(3) :]

    def run(self, case: bytes) -> Any:
        """Make an archive, ask for tensors and files of it, and compare."""
        lines = Lines(case)
        archive = written(lines.kind, lines.files)
        with ArchiveReader(io.BytesIO(archive), threads=1) as reader:
            places = [(entry.path, tensor.name) for entry, tensor in reader.tensors()]
            paths = [entry.path for entry in reader.files]
            meant = tensors_meant(lines.asked, places), files_meant(lines.asked, places, paths)
            loaded = self._loaded(archive, lines.asked, places, len(paths) == 1)
            self._check_command_line_names(reader, lines.asked, *meant)
            if lines.with_command and lines.asked and all(lines.asked):  # an empty name is an error of its own
                _check_command(archive, reader, lines.asked, *meant)
        if loaded is None and not any(meant):
            raise InvalidArgument("a name that nothing has, or several")
        return loaded, meant

    @staticmethod
    def _loaded(archive: bytes, asked: list[str], places: list[Place], alone: bool) -> list[str] | None:
        """Return the names of what ``load_file`` loads, which must be what is meant; None where it must refuse."""
        whole = _refused_or(lambda: gcodec.load_file(io.BytesIO(archive), threads=1))
        if any(name == STRUCTURE for _, name in places):  # of an object all that is in it is loaded, nothing else
            assert whole is not None
            places = [(places[0][0], name) for name in whole]
        all_names = [said(*place, alone) for place in places]
        assert (list(whole) == all_names) if whole is not None else len(set(all_names)) < len(all_names), (
            f"load_file has {whole and list(whole)}"
        )
        expected: dict[str, Place] | None = {}
        for name in asked:
            exact = [place for place in places if name in (place[1], ":".join(place))]
            meant = exact or called(name, places) or fitting(name, places)
            if len(exact) > 1 or not meant:
                expected = None
            for place in meant:
                key = name if exact else said(*place, alone)
                if expected is not None and expected.setdefault(key, place) != place:
                    expected = None
        found = _refused_or(lambda: gcodec.load_file(io.BytesIO(archive), names=asked, threads=1))
        if found is None or expected is None:
            assert found is expected is None, f"load_file has {found and list(found)}, not {expected}"
            return None
        assert list(found) == list(expected), f"load_file has {list(found)}, not {expected}"
        assert whole is None or all(
            np.array_equal(found[key], whole[said(*place, alone)]) for key, place in expected.items()
        ), "other values"
        return list(found)

    @staticmethod
    def _check_command_line_names(
        archive: ArchiveReader, asked: list[str], tensors: list[Place] | None, files: list[str] | None
    ) -> None:
        """Assert that the command line means the same tensors and files."""
        try:
            found: Any = [entry.path for entry in find_files(archive, asked)]
        except (InvalidArgument, UsageError):
            found = None
        assert found == files, f"files: {found}, not {files}"
        if found == []:
            try:
                found = [(entry.path, tensor.name) for entry, tensor in find_tensors(archive, asked)]
            except InvalidArgument:
                found = None
            assert found == tensors, f"tensors: {found}, not {tensors}"


def _check_command(
    archive: bytes, reader: ArchiveReader, asked: list[str], tensors: list[Place] | None, files: list[str] | None
) -> None:
    """Assert that ``decompress --only`` writes the tensors or files that are meant, or nothing and says why."""
    errors = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="gcodec-names-") as temporary, contextlib.redirect_stderr(errors):
        name, folder = Path(temporary) / "a.gc", Path(temporary) / "out"
        name.write_bytes(archive)
        output = folder if files else folder / "all.safetensors"
        folder.mkdir()
        code = main(["decompress", "-q", str(name), "-o", str(output), *(f"--only={text}" for text in asked)])
        made = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    shared = [name for _, name in tensors or ()]
    keys = {place: place[1] if shared.count(place[1]) == 1 else ":".join(place) for place in tensors or ()}
    if code:
        text = errors.getvalue()
        assert not made and text.count("\n") <= 4 and "Traceback" not in text, text
        assert not files and (None in (tensors, files) or len(set(keys.values())) < len(keys)), f"refused: {text}"
    elif files:
        contents = {entry.path: b"".join(part.tobytes() for part in reader.restored(entry)) for entry in reader.files}
        assert made == {path: contents[path] for path in files}, "other files"
    else:
        found = load_safetensors(made["all.safetensors"])
        assert len(made) == 1 and len(found) == len(keys), "tensors are left out"
        for entry, tensor in reader.tensors():
            if (place := (entry.path, tensor.name)) in keys:
                value = reader.array(entry, tensor, reader.segment_bytes(entry, tensor), like="numpy")
                assert np.array_equal(found[keys[place]], value), f"other values of {place}"
