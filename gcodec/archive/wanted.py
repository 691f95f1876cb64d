"""What is to be read of an archive: blobs, and chunk by chunk where they lie and what they are coded against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .base import BaseBytes
from .entries import Blob, Chunk, FileEntry
from .layout import padding


class Wanted(NamedTuple):
    """A blob to be read, what errors call it, and what it is coded against."""

    blob: Blob
    where: str
    base: BaseBytes | None


class Item(NamedTuple):
    """A chunk to be unpacked: where it lies in the archive (``at``), where its part begins in its blob."""

    at: int
    start: int
    chunk: Chunk
    where: str
    base: BaseBytes | None


def verbatim_of(entry: FileEntry) -> Wanted:
    """The bytes of a file between its segments."""
    return Wanted(entry.verbatim, f"{entry.path}: verbatim bytes", None)


def chunks_of(blobs: Sequence[Wanted]) -> Iterator[Item]:
    """The chunks of all blobs in order."""
    for blob, where, base in blobs:
        at, start = blob.offset, 0
        for chunk in blob.chunks:
            yield Item(at, start, chunk, where, base)
            at, start = at + chunk.stored + padding(chunk.stored), start + chunk.size
