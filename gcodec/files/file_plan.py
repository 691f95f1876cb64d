"""The make-up of a file: segments of values between verbatim bytes, and the tensors that are views of the segments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import Corruption
from .elements import width
from .record_fields import RecordFields
from .source import ByteSource
from .unique_names import UniqueNames

#: Longer runs of verbatim bytes become segments of their own, so that they need not be held in memory.
MAX_VERBATIM_RUN = 1 << 20
#: A file without tensors is a segment from so many bytes on, so that an archive stores equal ones once.
MIN_PLAIN = 1 << 12
#: Names of tensors in the index are cut after so many bytes of UTF-8.
LONGEST_NAME = 60_000


class FileSegment(NamedTuple):
    """Bytes ``start`` to ``stop`` of the file.

    Attributes:
        dtype: The codec's type of the values, None for plain bytes.
        crc_at: Places in the file that hold a zip CRC-32 of bytes ``crc_from`` to ``stop``.
        group: Shapes, in values of ``dtype``, of the small tensors that it consists of, end to end; empty for any other
            segment.
        apart: True if it must not become a part of a group.
        fields: What the records consist of that it holds, of plain bytes; None where it holds no records.
    """

    start: int
    stop: int
    dtype: str | None = None
    crc_from: int = 0
    crc_at: tuple[int, ...] = ()
    group: tuple[tuple[int, ...], ...] = ()
    apart: bool = False
    fields: RecordFields | None = None


class TensorView(NamedTuple):
    """A named view of a segment.

    Attributes:
        name: Name of the tensor.
        dtype: Type of its elements.
        shape: Shape of the tensor.
        segment: Number of the segment.
        offset: First element, counted in elements from the segment's beginning.
        stride: Steps in elements; None for row-major.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    segment: int
    offset: int = 0
    stride: tuple[int, ...] | None = None

    @property
    def is_dense(self) -> bool:
        """True in row-major order, without gaps."""
        return self.stride is None or self.stride == row_major(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes that its values take without gaps; of a type that is not known here, their number."""
        return math.prod(self.shape) * (width(self.dtype) or 1)

    def at_start(self) -> TensorView:
        """Return the same tensor at the beginning of its segment."""
        return TensorView(self.name, self.dtype, self.shape, self.segment, 0, self.stride)


@dataclass(frozen=True)
class FilePlan:
    """A file and its parts.

    Attributes:
        path: Relative path under which an archive keeps the file.
        format: ``npy``, ``npz``, ``safetensors``, ``torch``, ``gguf``, ``raw`` or ``bytes``.
        source: The file's bytes.
        segments: In the order of the file, without overlaps.
        tensors: The tensors on the segments.
        exact: Restoring gives the bytes of the original; False if the file had to be re-made.
        container: ``numpy`` or ``torch`` if the file stands for arrays that a program holds.
        metadata: The file's own key-value pairs (.safetensors).
        note: Something the user should know.
    """

    path: str
    format: str
    source: ByteSource
    segments: tuple[FileSegment, ...]
    tensors: tuple[TensorView, ...]
    exact: bool = True
    container: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def close(self) -> None:
        """Closes the source, which for a file that had to be re-made is a temporary one."""
        close = getattr(self.source, "close", None)
        if close is not None:
            close()

    def columns(self) -> dict[int, int]:
        """Return, by segment, the length of the rows of the tensor that it is, where it is one of two dimensions or
        more."""
        columns = {}
        for view in self.tensors:
            segment = self.segments[view.segment]
            fills = view.n_bytes == segment.stop - segment.start
            dense = view.is_dense and fills and not segment.group
            if len(view.shape) > 1 and 0 not in view.shape and view.offset == 0 and dense:
                columns[view.segment] = view.shape[-1] if len(view.shape) == 2 else math.prod(view.shape[1:])
        return columns

    def verbatim_runs(self) -> list[tuple[int, int]]:
        """Return the runs of bytes before each segment and after the last: one more than there are segments."""
        starts = [0, *(segment.stop for segment in self.segments)]
        stops = [*(segment.start for segment in self.segments), self.source.size]
        return list(zip(starts, stops, strict=True))


class SegmentViews(NamedTuple):
    """A stretch of values while a file is being taken apart.

    Attributes:
        segment: The stretch.
        views: The tensors on it.
    """

    segment: FileSegment
    views: tuple[TensorView, ...] = ()


def assemble(
    path: str,
    format: str,
    source: ByteSource,
    pieces: Iterable[SegmentViews],
    *,
    longest_run: int = MAX_VERBATIM_RUN,
    **more: object,
) -> FilePlan:
    """Sorts pieces by place, turns long verbatim runs into segments and numbers the tensors' segments.

    A file without pieces is a segment as a whole, if it is not very small.

    Args:
        path, format, source: Of the file.
        pieces: Its segments of values, each with its tensors.
        longest_run: Longer runs of verbatim bytes, of so many bytes, become segments.
        more: Further fields of the plan.

    Raises:
        Corruption: Pieces overlap or lie outside the file.
    """
    pieces = sorted(pieces, key=lambda piece: (piece.segment.start, piece.segment.stop))
    segments: list[FileSegment] = []
    views: list[TensorView] = []
    at, longest = 0, longest_run if pieces else MIN_PLAIN - 1
    for piece in pieces:
        if piece.segment.start < at:
            raise Corruption(f"{path}: two parts of the file overlap at byte {piece.segment.start}")
        segments += _long_run(at, piece.segment.start, longest)
        views += [_moved(view, len(segments), view.name) for view in piece.views]
        segments.append(piece.segment)
        at = piece.segment.stop
    if at > source.size:
        raise Corruption(f"{path}: ends at byte {source.size}, {at - source.size} bytes short")
    segments += _long_run(at, source.size, longest)
    return FilePlan(path, format, source, tuple(segments), unique_names(views), **more)  # type: ignore[arg-type]


def unique_names(views: Sequence[TensorView]) -> tuple[TensorView, ...]:
    """Return views with names that an archive can hold; a name that occurs again gets ``#2``, ``#3`` and so on."""
    names = UniqueNames()
    return tuple(_moved(view, view.segment, names.new(_sound(view.name))) for view in views)


def by_segment(tensors: Iterable[TensorView]) -> dict[int, list[TensorView]]:
    """Return the tensors on each segment, by its number."""
    result: dict[int, list[TensorView]] = {}
    for tensor in tensors:
        result.setdefault(tensor.segment, []).append(tensor)
    return result


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous array, in elements."""
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))


def _long_run(start: int, stop: int, longest: int) -> list[FileSegment]:
    return [FileSegment(start, stop)] if stop - start > longest else []


def _sound(name: str) -> str:
    """Return at most ``LONGEST_NAME`` bytes of valid UTF-8."""
    if len(name) <= LONGEST_NAME and name.isascii():
        return name
    return name.encode(errors="replace")[:LONGEST_NAME].decode(errors="ignore")


def _moved(view: TensorView, segment: int, name: str) -> TensorView:
    if view.segment == segment and view.name == name:
        return view
    return TensorView(name, view.dtype, view.shape, segment, view.offset, view.stride)
