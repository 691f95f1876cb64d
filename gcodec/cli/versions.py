"""Files that are versions of each other, such as the checkpoints of a run: what their differences would save."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from ..archive.chunks import pack_chunk
from ..archive.entries import FileEntry
from ..errors import GcodecError
from ..files import FilePlan, open_source, plan_or_bytes
from ..files.source import Bytes

#: Parts of so many bytes are compared, in so many of the largest tensors.
_SAMPLE_BYTES, _N_SAMPLES = 1 << 20, 4
#: Least share that differences must save to be worth a remark.
_WORTH_SAYING = 0.05


def remark_on_versions(written: Sequence[tuple[Path, FileEntry]], in_one_archive: bool) -> str | None:
    """Return what the user should know of files that have the same tensors and were compressed one by one.

    Args:
        written: files on the disk, and what archives have of them.
        in_one_archive: whether they are in the same archive, in which tensors that are equal are stored once.

    Returns:
        The remark; None if no files have the same tensors, or too little would be saved, as far as a sample of the last
        two tells.
    """
    versions = dict[object, list[Path]]()
    for path, entry in written:
        tensors = tuple((view.name, view.dtype, view.shape) for view in entry.tensors)
        if tensors and entry.exact and not entry.needs_base:
            versions.setdefault(tensors, []).append(path)
    several = max(versions.values(), key=len, default=[])
    if len(several) < 2:
        return None
    *_, earlier, later = sorted(several, key=_in_order)
    try:
        saved = _share_saved(earlier, later, in_one_archive)
    except (GcodecError, OSError):  # they have been read once; whoever changes them meanwhile needs no remark
        return None
    if saved < _WORTH_SAYING:
        return None
    percent = min(round(100 * saved), 99)
    how = "gcodec series add FOLDER FILE..." if len({path.name for path in several}) == len(several) else "--base"
    if len(several) == 2:
        return f"{later} has the tensors of {earlier}: as a difference it would take about {percent} % less ({how})"
    return f"{len(several)} files have the same tensors: as differences they would take about {percent} % less ({how})"


def _in_order(path: Path) -> list[tuple[bool, int, str]]:
    """Return a key by which step-9 comes before step-10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", str(path))]


def _share_saved(earlier: Path, later: Path, in_one_archive: bool) -> float:
    """Return the share of a file's size that is saved where it is stored as the difference, by a sample."""
    with ExitStack() as stack:
        plans = [
            stack.enter_context(closing(plan_or_bytes(path.name, stack.enter_context(closing(open_source(path))))))
            for path in (earlier, later)
        ]
        alone = against = 0
        for dtype, old, new in _samples(*plans):
            if in_one_archive and np.array_equal(old, new):
                continue
            alone += len(pack_chunk(new, dtype, {}).payload)
            against += len(pack_chunk(new, dtype, {}, base=old).payload)
    return 1 - against / alone if alone else 0.0


def _samples(earlier: FilePlan, later: FilePlan) -> Iterator[tuple[str, Bytes, Bytes]]:
    """Yield the type and the bytes of parts of tensors in both files."""
    places = {view.name: earlier.segments[view.segment] for view in earlier.tensors}
    pairs = [(places.get(view.name), later.segments[view.segment]) for view in later.tensors]
    found = {(old, new) for old, new in pairs if old and old.stop - old.start == new.stop - new.start and new.dtype}
    for old, new in sorted(found, key=lambda pair: (pair[1].start - pair[1].stop, pair[1].start))[:_N_SAMPLES]:
        assert new.dtype is not None
        size = min(new.stop - new.start, _SAMPLE_BYTES)
        at = (new.stop - new.start - size) // 16 * 8
        yield (
            new.dtype,
            earlier.source.read(old.start + at, old.start + at + size),
            later.source.read(new.start + at, new.start + at + size),
        )
