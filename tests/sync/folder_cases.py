"""Folders of versions, filled or forged, for the laws of weight sync."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import xxhash

from gcodec.sync import Publisher, VersionFolder
from gcodec.sync.version_chain import StoredVersion
from tests.sync.states import moved, some_state


def filled(folder: VersionFolder, n_versions: int, **options: Any) -> tuple[Publisher, list[dict[str, Any]]]:
    """Send versions to a folder; return their publisher and their states."""
    publisher, states = Publisher(**options), [some_state()]
    for number in range(n_versions):
        if number:
            states.append(moved(states[-1], seed=number))
        folder.send(publisher.publish(states[-1], metadata={"step": str(number)}))
    return publisher, states


class WithoutAnchors:
    """A source whose anchors are gone."""

    def __init__(self, folder: VersionFolder) -> None:
        self.folder, self.message = folder, folder.message

    def versions(self) -> list[StoredVersion]:
        """Return the versions that have a difference."""
        return [version._replace(anchor=None) for version in self.folder.versions()]


def forged(path: Path, *changes: dict[str, Any]) -> VersionFolder:
    """Change rows of a folder's manifest, of which the hash is right again; return the folder."""
    manifest = json.loads((path / "versions.json").read_text())
    for row, change in zip(manifest["versions"], changes, strict=True):
        for key in change.keys() & {"difference", "anchor"}:
            data = change[key]
            name = f"{change.get('version', row['version']):010}.{key}.gc"
            (path / name).write_bytes(data)
            change[key] = {"bytes": len(data), "hash": xxhash.xxh3_64_hexdigest(data)}
        row.update(change)
    text = json.dumps(manifest["versions"], separators=(",", ":"), sort_keys=True)
    manifest["hash"] = xxhash.xxh3_64_hexdigest(text.encode())
    (path / "versions.json").write_text(json.dumps(manifest))
    return VersionFolder(path)
