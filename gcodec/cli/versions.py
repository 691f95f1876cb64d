"""Files that are versions of each other, such as the checkpoints of a run: what their differences would save."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from ..archive.base_tensors import Base
from ..archive.entries import FileEntry
from ..archive.file_versions import WORTH_SAVING, share_saved, step_order, tensors_of
from ..errors import GcodecError
from ..files import open_source, plan_or_bytes


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
        if entry.tensors and entry.exact and not entry.needs_base:
            versions.setdefault(tensors_of(entry.tensors), []).append(path)
    several = max(versions.values(), key=len, default=[])
    if len(several) < 2:
        return None
    *_, earlier, later = sorted(several, key=step_order)
    try:
        saved = _share_saved(earlier, later, in_one_archive)
    except (GcodecError, OSError):  # they have been read once; whoever changes them meanwhile needs no remark
        return None
    if saved < WORTH_SAVING:
        return None
    percent = min(round(100 * saved), 99)
    series = "gcodec series add FOLDER FILE..." if len({path.name for path in several}) == len(several) else "--base"
    how = "--auto-base" if in_one_archive else series
    if len(several) == 2:
        return f"{later} has the tensors of {earlier}: as a difference it would take about {percent} % less ({how})"
    return f"{len(several)} files have the same tensors: as differences they would take about {percent} % less ({how})"


def _share_saved(earlier: Path, later: Path, in_one_archive: bool) -> float:
    """Return the share of a file's size that is saved where it is stored as the difference, by a sample."""
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(closing(plan_or_bytes(path.name, stack.enter_context(closing(open_source(path))))))
            for path in (earlier, later)
        )
        return share_saved(new, Base.of_plan(str(earlier), old), equal_is_free=in_one_archive)
