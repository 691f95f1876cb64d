"""Versions in a folder or object store: each file complete before it has its name, the manifest last."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from ..archive.folders import DiskFolder, folder_at, one_writer, replace_file
from ..archive.numbered_files import NumberedFiles, remove_unneeded
from ..errors import (
    BrokenChain,
    Corruption,
    GcodecError,
    InsufficientData,
    InvalidArgument,
    NoMemory,
    Unsupported,
    check_optional_int,
)
from ..files.source import open_regular
from ..files.urls import fixed_place
from .publisher import WeightVersion
from .sync_stats import LOG
from .version_chain import StoredMessage, StoredVersion
from .version_message import Message

MANIFEST = "versions.json"
FORMAT = "gcodec-sync-folder-1"
ANY_FORMAT = re.compile(r"gcodec-sync-folder-[1-9][0-9]{0,8}")
MAX_MANIFEST = 1 << 26
END_OF_NUMBERS = 1 << 62
DIFFERENCES, ANCHORS = (NumberedFiles("", 10, f".{kind}.gc", END_OF_NUMBERS) for kind in ("difference", "anchor"))
HASH = re.compile(r"[0-9a-f]{16}")
COPY_BYTES = 1 << 22


class VersionFolder:
    """A folder with the versions of one publisher, which any number of subscribers read.

        folder = gcodec.sync.VersionFolder("/shared/run-7")
        folder.send(publisher.publish(state))           # the trainer
        subscriber.catch_up(folder)                     # a worker

    A message is written under another name, flushed to the disk and renamed; the manifest, which readers go by, is
    replaced after that in the same way. A publisher that is killed at any moment leaves the last version whole. A
    second publisher waits for the first; at a URL there is no lock, so let only one at a time write there.

    Args:
        path: A folder, which the first ``send`` makes if it does not exist, or a URL for fsspec, such as
            "s3://bucket/run-7", if that is installed. There objects are put whole.
        keep_anchors: So many of the newest anchors are kept, and all versions since; older ones are removed. None:
            nothing is removed.

    Raises:
        InvalidArgument: ``keep_anchors`` is not None or an integer of at least 1; or there is a file at the path.
        GcodecError: A URL, and fsspec is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_anchors: int | None = 2) -> None:
        self._keep_anchors = check_optional_int("keep_anchors", keep_anchors)
        self._folder = folder_at(fixed_place(path))
        self.path = os.fsdecode(path)

    def versions(self) -> tuple[StoredVersion, ...]:
        """Return the versions that are there, in ascending order.

        Raises:
            Corruption: The manifest is damaged.
            NoMemory: There is no memory for the manifest.
            Unsupported: The manifest is of a later format.
            OSError: It cannot be read.
        """
        try:
            text = self._read(MANIFEST, MAX_MANIFEST)
        except FileNotFoundError:
            return ()
        return _manifest_from_json(text, f"{self.path}/{MANIFEST}")

    def check_is_there(self) -> None:
        """Raise GcodecError if there is no such folder. A store has no folders: there it is as an empty one."""
        if isinstance(self._folder, DiskFolder) and not self._folder.path.is_dir():
            raise GcodecError(
                f"{self.path}: no such folder; the publisher's first send makes it, so where workers may "
                "begin before that, make it first"
            )

    @property
    def newest(self) -> int:
        """Return the number of the newest version, 0 if there is none."""
        versions = self.versions()
        return versions[-1].number if versions else 0

    def message(self, number: int, *, anchor: bool, stored: StoredMessage | None = None) -> Message:
        """Return a message, compared with the manifest's size and hash: a path in a folder, bytes from elsewhere.

        Args:
            number: Number of the version.
            anchor: Its anchor, not the difference.
            stored: What :meth:`versions` has said of the message; None: the manifest is read again.

        Raises:
            FileNotFoundError: It is not there.
            Corruption: It is damaged.
        """
        name = _file_name(number, anchor)
        if stored is None:
            found = (version for version in self.versions() if version.number == number)
            stored = next((version.anchor if anchor else version.difference for version in found), None)
        if stored is None:
            raise FileNotFoundError(f"{self.path}/{name} is not among the versions")
        return self._checked(name, stored)

    def send(self, version: WeightVersion) -> int:
        """Write a version: its difference, its anchor if one is due, then the manifest; then remove what is too old.

        Where the difference does not apply to the newest version there is, as after a publisher's restart or a failed
        ``send``, an anchor is written. In an empty folder only the difference of a publisher's first version applies,
        to the weights that it was given as ``start``.

        Args:
            version: The version that the publisher has just made.

        Returns:
            The bytes written.

        Raises:
            BrokenChain: There is a version of the same or a higher number.
            GcodecError: Another publisher has been writing to the folder for minutes.
            InvalidArgument: ``version`` is none, such as its bytes alone, or has so long metadata that nobody could
                read the manifest; nothing is written.
            OSError: The folder cannot be written to. It then has the versions that it had.
        """
        if not isinstance(version, WeightVersion):
            raise InvalidArgument(f"version must be what publish returns, not a {type(version).__name__}")
        with one_writer(self._folder):
            return self._send(version)

    def _send(self, version: WeightVersion) -> int:
        """Write a version; only for the holder of the lock."""
        before = self.versions()
        last = before[-1] if before else None
        if last is not None and version.number <= last.number:
            raise BrokenChain(
                f"{self.path} has version {last.number} already, so version {version.number} cannot follow: continue "
                "with Publisher(first=folder.newest + 1)"
            )
        follows = version.is_first if last is None else version.info.base == last.state
        difference = version.difference if follows else None
        anchor = version.anchor() if version.is_anchor_due or difference is None else None
        stored = StoredVersion(
            version.number,
            version.state,
            None if difference is None else version.info.base,
            None if difference is None else _stored(difference),
            None if anchor is None else _stored(anchor),
            dict(version.info.metadata),
        )
        kept = _since_anchor([*before, stored], self._keep_anchors)
        manifest = _manifest_to_json(kept)
        if len(manifest) > MAX_MANIFEST:
            raise InvalidArgument(
                f"{self.path}/{MANIFEST}: must have at most {MAX_MANIFEST} bytes to be read, but would have "
                f"{len(manifest)} with version {version.number}, for it has the metadata of all that are kept: "
                "make metadata shorter, or keep fewer versions (keep_anchors, anchor_every)"
            )
        self._remove_all_but(before)
        for data, is_anchor in ((difference, False), (anchor, True)):
            if data is not None:
                replace_file(self._folder, _file_name(version.number, is_anchor), data)
        replace_file(self._folder, MANIFEST, manifest)
        self._remove_all_but(kept)
        return sum(len(data) for data in (difference, anchor) if data is not None)

    def _read(self, name: str, max_bytes: int) -> bytes:
        """Return a file's bytes. Raises Corruption if there are more than ``max_bytes``."""
        data = self._folder.read(name, max_bytes + 1)
        if len(data) > max_bytes:
            raise Corruption(f"{self.path}/{name}: has more than {max_bytes} bytes")
        return data

    def _checked(self, name: str, stored: StoredMessage) -> Message:
        """Return a message whose size and hash are right: its path in a folder, its bytes from a URL."""
        if not isinstance(self._folder, DiskFolder):
            data = self._read(name, stored.n_bytes)
            _check_message(f"{self.path}/{name}", stored, len(data), xxhash.xxh3_64_hexdigest(data))
            return data
        path, digest, left = self._folder.place(name), xxhash.xxh3_64(), stored.n_bytes
        with open_regular(path) as file:
            _check_size(str(path), stored, os.fstat(file.fileno()).st_size)  # before a read that takes as long as that
            while left and (part := file.read(min(left, COPY_BYTES))):
                digest.update(part)
                left -= len(part)
        _check_message(str(path), stored, stored.n_bytes - left, digest.hexdigest())
        return path

    def _remove_all_but(self, versions: Sequence[StoredVersion]) -> None:
        """Remove messages that no manifest names: too old ones, and those of a publisher that was killed."""
        needed = {MANIFEST, *(_file_name(version.number, anchor) for version in versions for anchor in (False, True))}
        remove_unneeded(self._folder, _is_ours, needed.__contains__, LOG.warning)


def _is_ours(name: str) -> bool:
    return name == MANIFEST or any(files.number(name) is not None for files in (DIFFERENCES, ANCHORS))


def _check_size(where: str, stored: StoredMessage, n_bytes: int) -> None:
    if n_bytes != stored.n_bytes:
        kind = InsufficientData if n_bytes < stored.n_bytes else Corruption
        raise kind(f"{where}: has {n_bytes} bytes, where the manifest says {stored.n_bytes}")


def _check_message(where: str, stored: StoredMessage, n_bytes: int, digest: str) -> None:
    _check_size(where, stored, n_bytes)
    if digest != stored.hash:
        raise Corruption(f"{where}: the hash is {digest}, where the manifest says {stored.hash}")


def _file_name(number: int, anchor: bool) -> str:
    return (ANCHORS if anchor else DIFFERENCES).name(number)


def _stored(data: bytes) -> StoredMessage:
    return StoredMessage(len(data), xxhash.xxh3_64_hexdigest(data))


def _since_anchor(versions: Sequence[StoredVersion], n_anchors: int | None) -> Sequence[StoredVersion]:
    """Return the versions from one of the last anchors on, counted from the end; all if there are not so many."""
    anchors = [place for place, version in enumerate(versions) if version.anchor is not None]
    return versions if n_anchors is None or len(anchors) < n_anchors else versions[anchors[-n_anchors] :]


def _manifest_to_json(versions: Sequence[StoredVersion]) -> bytes:
    rows = [_version_to_json(version) for version in versions]
    return json.dumps({"format": FORMAT, "versions": rows, "hash": _hash_of_rows(rows)}, indent=1).encode()


def _version_to_json(version: StoredVersion) -> dict[str, Any]:
    messages = {"difference": version.difference, "anchor": version.anchor}
    row = {"version": version.number, "state": version.state, "base": version.base, "metadata": version.metadata}
    return row | {
        key: None if stored is None else {"bytes": stored.n_bytes, "hash": stored.hash}
        for key, stored in messages.items()
    }


def _hash_of_rows(rows: Any) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(rows, separators=(",", ":"), sort_keys=True).encode())


def _manifest_from_json(text: bytes, where: str) -> tuple[StoredVersion, ...]:
    """Return the versions that a manifest names.

    Raises:
        Corruption: It is damaged.
        NoMemory: There is no memory for it.
        Unsupported: It is of another version of the format.
    """
    try:
        root = json.loads(text.decode())
        if root["format"] != FORMAT:
            if isinstance(root["format"], str) and ANY_FORMAT.fullmatch(root["format"]):
                raise Unsupported(
                    f"{where}: the manifest has the format {root['format']!r}, but this version of "
                    f"gcodec reads {FORMAT!r} only"
                )
            raise ValueError(f"its format is {root['format']!r}, not {FORMAT!r}")
        if root["hash"] != _hash_of_rows(root["versions"]):
            raise ValueError("its hash is wrong")
        return tuple(_versions_from_json(root["versions"]))
    except MemoryError:
        raise NoMemory(f"{where}: there is no memory to read the manifest's {len(text)} bytes") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corruption(f"{where}: the manifest is damaged: {type(error).__name__}: {error}") from error


def _versions_from_json(rows: Any) -> Iterator[StoredVersion]:
    last = 0
    for row in rows:
        number, base, metadata = row["version"], row["base"], row["metadata"]
        difference, anchor = (_message_from_json(row[key]) for key in ("difference", "anchor"))
        if type(number) is not int or number <= last or number >= END_OF_NUMBERS:
            raise ValueError(f"version {number!r} comes after {last}")
        if (difference is None) != (base is None) or (difference is None and anchor is None):
            raise ValueError(f"version {number} must have a difference and its base, or an anchor")
        if not all(isinstance(item, str) for pair in metadata.items() for item in pair):
            raise ValueError(f"version {number} has metadata that are no strings")
        base = None if base is None else _hash(base)
        yield StoredVersion(number, _hash(row["state"]), base, difference, anchor, dict(metadata))
        last = number


def _message_from_json(value: Any) -> StoredMessage | None:
    if value is None:
        return None
    size = value["bytes"]
    if type(size) is not int or not 0 <= size < 1 << 62:
        raise ValueError(f"a message has {size!r} bytes")
    return StoredMessage(size, _hash(value["hash"]))


def _hash(value: Any) -> str:
    if not isinstance(value, str) or not HASH.fullmatch(value):
        raise ValueError(f"a hash must have 16 hexadecimal digits, not be {value!r}")
    return value
