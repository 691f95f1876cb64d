"""Small tensors that lie next to each other: one segment of an archive, and few frames, for many of them.

A frame and an entry of the index for each would take more time and room than their values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Protocol

from ..files.elements import stored_as, width
from ..files.file_plan import FilePlan, FileSegment, TensorView, by_segment

#: Tensors of up to so many bytes are put together, up to so many bytes in all: who reads one reads all of these.
MAX_SMALL, MAX_GROUP = 1 << 16, 1 << 20
#: Those of so many bytes stay apart where they look like copies of each other, by so many bytes at their beginnings and
#: ends: an archive stores equal segments once.
MIN_COPY, _EDGE = 1 << 14, 1 << 8


def laid_out(tensors: Mapping[str, tuple[str, tuple[int, ...], int]], apart: Collection[str] = ()) -> list[str]:
    """Return names in the order in which their tensors best lie in a file: small ones after all others, and those of
    one type and one last part of the name, such as ``bias`` or ``exp_avg``, together, as their values are alike.

    Args:
        tensors: Name to (dtype, shape, size in bytes).
        apart: Names of small ones that lie among the others, as they are not put together.
    """
    kinds: dict[tuple[str, str], int] = {}
    types: dict[str, int] = {}

    def place(name: str) -> tuple[int, int, int]:
        dtype, _, size = tensors[name]
        if size > MAX_SMALL or stored_as(dtype) != dtype or name in apart:
            return 0, 0, 0
        kind = dtype, name[max(name.rfind("."), name.rfind("/")) + 1 :]
        return 1, types.setdefault(dtype, len(types)), kinds.setdefault(kind, len(kinds))

    return sorted(tensors, key=place)


def in_order(plan: FilePlan, places: Sequence[int]) -> FilePlan:
    """Return the plan of the same file which lists its tensors in another order.

    Args:
        places: For each tensor its place in the list; those of equal places stay in order.
    """
    pairs = sorted(zip(places, plan.tensors, strict=True), key=itemgetter(0))
    return replace(plan, tensors=tuple(tensor for _, tensor in pairs))


class HasBases(Protocol):
    """Says which segments have a base, as :class:`gcodec.archive.base_tensors.Base` does."""

    def bytes_for(self, views: Sequence[TensorView], size: int, dtype: str | None, *, alone: bool) -> object | None:
        """Return what a segment with these tensors is coded against; None for nothing."""
        ...


def grouped(plan: FilePlan, base: HasBases | None = None) -> FilePlan:
    """Return the plan of the same file in which runs of small tensors of one type are one segment each, where they are
    listed in the order in which they lie, but for those that look like copies of each other.

    Args:
        plan: The plan; tensors that share memory stay as they are.
        base: What the file is to be coded against. Tensors that it has not are not put together with those that it has,
            because a segment is coded against all of its tensors or against none.
    """
    views = by_segment(plan.tensors)
    listed = {view.segment: place for place, view in enumerate(plan.tensors)}
    runs: list[list[int]] = []  # of segments by their numbers
    n_bytes, before, with_base = 0, None, False
    copies = _copies(plan, views) if base is None or getattr(base, "number", None) is not None else frozenset()
    for number, segment in enumerate(plan.segments):
        size, known = segment.stop - segment.start, with_base
        small = number not in copies and _is_small(segment, views.get(number, ()))
        if small and base is not None:
            with_base = base.bytes_for(views[number], size, segment.dtype, alone=len(plan.tensors) == 1) is not None
        fits = before is not None and before.stop == segment.start and before.dtype == segment.dtype
        fits = fits and listed.get(number - 1, 0) < listed.get(number, 0)
        if small and fits and known == with_base and n_bytes + size <= MAX_GROUP:
            runs[-1].append(number)
            n_bytes += size
        else:
            runs.append([number])
            n_bytes = size
        before = segment if small else None
    if len(runs) == len(plan.segments):
        return plan
    return _with_runs(plan, views, runs)


def parted(plan: FilePlan, base: HasBases) -> FilePlan:
    """Return the plan of the same file in which each group of tensors, of which a base has only some, is several
    segments: those that have a base lie apart from those that have none, as :func:`grouped` has them."""
    views, runs = by_segment(plan.tensors), list[tuple[int, list[TensorView]]]()
    for number, segment in enumerate(plan.segments):
        known: bool | None = None
        runs.append((number, []))
        for view in views.get(number, ()) if segment.group else ():
            size = view.n_bytes
            has_base = base.bytes_for([view], size, segment.dtype, alone=False) is not None if size else known
            if runs[-1][1] and has_base != known and known is not None:
                runs.append((number, []))
            runs[-1][1].append(view)
            known = has_base
    if len(runs) == len(plan.segments):
        return plan
    segments, moved = list[FileSegment](), dict[str, TensorView]()
    for number, group in runs:
        segment = plan.segments[number]
        if group:
            at = group[0].offset
            start = segment.start + at * (width(group[0].dtype) or 1)
            shapes = tuple(view.shape for view in group) if len(group) > 1 else ()
            moved.update({v.name: v._replace(segment=len(segments), offset=v.offset - at) for v in group})
            segment = segment._replace(start=start, stop=start + sum(view.n_bytes for view in group), group=shapes)
        else:
            moved.update({view.name: view._replace(segment=len(segments)) for view in views.get(number, ())})
        segments.append(segment)
    return replace(plan, segments=tuple(segments), tensors=tuple(moved[view.name] for view in plan.tensors))


def are_grouped(views: Sequence[TensorView]) -> bool:
    """Return True if tensors on one segment are small ones, several, in order and apart."""
    if len(views) < 2:
        return False
    end = 0
    for view in views:
        size = width(view.dtype)
        if size is None or not view.is_dense or view.offset * size < end:
            return False
        end = view.offset * size + view.n_bytes
        if view.n_bytes > MAX_SMALL:
            return False
    return end <= MAX_GROUP


def _copies(plan: FilePlan, views: Mapping[int, Sequence[TensorView]]) -> frozenset[int]:
    """Return the numbers of segments with small tensors that are copies of each other, as far as their ends tell."""
    is_at_hand = getattr(plan.source, "is_at_hand", None)
    read, alike = plan.source.read, dict[tuple[int, bytes], list[int]]()
    n_of_size = Counter(segment.stop - segment.start for segment in plan.segments)
    for number, segment in enumerate(plan.segments):
        start, size = segment.start, segment.stop - segment.start
        if not MIN_COPY <= size <= MAX_SMALL or segment.dtype is None or n_of_size[size] < 2:
            continue
        if is_at_hand is not None and is_at_hand(start):
            alike.setdefault((size, read(start, start + _EDGE).tobytes()), []).append(number)
    found = set[int]()
    for (_, edge), numbers in alike.items():
        if len(numbers) < 2 or edge[8:] == edge[:-8]:  # zeros, ones: small in a group, too
            continue
        by_end = dict[tuple[str | None, bytes], list[int]]()
        for number in numbers:
            segment = plan.segments[number]
            if _is_small(segment, views.get(number, ())):
                by_end.setdefault((segment.dtype, read(segment.stop - _EDGE, segment.stop).tobytes()), []).append(
                    number
                )
        found.update(number for same in by_end.values() if len(same) > 1 for number in same)
    return frozenset(found)


def _is_small(segment: FileSegment, views: Sequence[TensorView]) -> bool:
    """Return True for a small tensor that is alone on its segment, and of the segment's type."""
    if len(views) != 1 or segment.stop - segment.start > MAX_SMALL:
        return False
    view = views[0]
    return (
        segment.dtype == view.dtype
        and not segment.crc_at
        and not segment.apart
        and view.offset == 0
        and view.is_dense
        and segment.stop - segment.start == view.n_bytes
    )


def _with_runs(plan: FilePlan, views: dict[int, list[TensorView]], runs: Iterable[list[int]]) -> FilePlan:
    """Return a plan of which the segments of each run have become one."""
    segments: list[FileSegment] = []
    moved: dict[int, tuple[int, int]] = {}  # each segment's new number, and where in bytes it begins there
    for run in runs:
        first, last = plan.segments[run[0]], plan.segments[run[-1]]
        moved.update({number: (len(segments), plan.segments[number].start - first.start) for number in run})
        shapes = tuple(views[number][0].shape for number in run) if len(run) > 1 else first.group
        segments.append(first._replace(stop=last.stop, group=shapes))
    tensors = []
    for view in plan.tensors:
        number, at = moved[view.segment]
        offset = view.offset + (at // (width(view.dtype) or 1) if at else 0)
        tensors.append(TensorView(view.name, view.dtype, view.shape, number, offset, view.stride))
    return replace(plan, segments=tuple(segments), tensors=tuple(tensors))
