"""Casts of float32 tensors to types of 16 bits, which archives store as what they are casts of.

Checkpoints of mixed-precision training hold the weights in bfloat16 or float16, and the optimizer's copy of them in
float32, which says all about the former. And folders of models hold a model in both types, as files side by side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import xxhash

from ..errors import GcodecError
from ..files.file_plan import FilePlan
from ..files.source import Bytes, ByteSource, FileSource, naming
from .base_tensors import BaseBytes
from .file_state import EarlierFile, FileState
from .tensor_groups import MAX_SMALL
from .type_casts import CASTS

#: Smaller segments are not looked at.
MIN_BYTES = 1 << 12
#: Values that are compared at three places each before a segment is taken for a cast of another; and how many of them
#: must differ from each other: of zeros and ones everything is a cast.
_SAMPLED, _DIFFERENT = 64, 16
#: Share by which a file of casts may differ from half the size of the file of what they are casts of.
_HEADERS = 0.05

_Likeness = tuple[str, int, int]
_Member = TypeVar("_Member")


class CastOf(NamedTuple):
    """The segment of float32 that another segment may be a cast of.

    Attributes:
        place: Number of its file in the archive, and of the segment in it.
        start: Where it begins in its file.
        file: Reads that file.
    """

    place: tuple[int, int]
    start: int
    file: ByteSource | EarlierFile

    def check(self) -> None:
        """Raise GcodecError if its file is an earlier one that has changed."""
        if isinstance(self.file, EarlierFile):
            self.file.check()

    def as_base(self, dtype: str) -> BaseBytes:
        """Return its values, cast to a type, as what a segment is coded against."""
        read = self.file.read
        return BaseBytes(
            f"segment {self.place[1]}",
            self.place[1],
            self.start,
            None,
            lambda _, start, stop: read(start, stop),
            is_held=True,
            cast=CASTS[dtype],
        )


class _UnseenFile(NamedTuple):
    """A file with segments of float32 that nothing was compared with yet.

    Attributes:
        file: Reads it again.
        sizes: Bytes of casts of its segments.
        wide: The segments, each with the bytes of a cast of it.
    """

    file: EarlierFile
    sizes: set[int]
    wide: list[tuple[CastOf, int]]


class CastSources:
    """The segments of float32 in the files of an archive, of which segments of 16 bits may be casts.

    Only samples are compared: what a segment is coded against decides nothing but its size.
    """

    def __init__(self) -> None:
        self._known = dict[_Likeness, CastOf]()
        self._unseen = list[_UnseenFile]()

    def add(self, plan: FilePlan, number: int) -> None:
        """Note the segments of a file that is in the archive, if it can be read again once it is closed."""
        source = plan.source
        if isinstance(source, FileSource) and source.path is not None and source.descriptor is not None:
            with naming(source.path):
                file = EarlierFile(source.path, FileState.of(source.descriptor))
            if found := _wide(plan, number, file):
                self._unseen.append(_UnseenFile(file, {size for _, size in found}, found))

    def find(self, plan: FilePlan, number: int, without: Collection[int] = ()) -> dict[int, CastOf]:
        """Return the segments of a file that look like casts of others, in the same file or an earlier one.

        Args:
            number: Its number in the archive.
            without: Numbers of segments that are not to be read.

        Returns:
            What each is a cast of, by its number.
        """
        narrow = _at_hand(plan, CASTS, without)
        if not narrow:
            return {}
        sizes = {plan.segments[at].stop - plan.segments[at].start for at in narrow}
        here = dict[_Likeness, CastOf]()
        _note(here, plan.source, _wide(plan, number, plan.source, without), sizes)
        seen = [file for file in self._unseen if file.sizes & sizes]
        self._unseen = [file for file in self._unseen if not file.sizes & sizes]
        for unseen in seen:
            with suppress(OSError, GcodecError), closing(unseen.file.open()) as source:  # unless it is gone by now
                _note(self._known, source, unseen.wide, unseen.sizes)
        found = dict[int, CastOf]()
        for at in narrow:
            segment = plan.segments[at]
            size = segment.stop - segment.start
            sample = _sample(plan.source, segment.start, size // 2, 2)
            key = _likeness(segment.dtype or "", size, sample)
            of = here.get(key) or self._known.get(key)
            if of is None or (isinstance(of.file, EarlierFile) and of.file.change):
                continue
            if len(np.unique(sample.view("<u2"))) >= _DIFFERENT:
                found[at] = of
        return found


def casts_last(members: Sequence[_Member], file_of: Callable[[_Member], Path | None]) -> list[_Member]:
    """Return what goes into an archive in an order in which files of float32 tensors come before casts of them to 16
    bits, as far as sizes tell: a file comes before one of half its size in the same folder.

    Args:
        file_of: Returns where one of these is; None if it is not a file of this machine.
    """
    places = dict[Path, list[tuple[int, int]]]()  # sizes of the files of each folder, and their places
    order = list[tuple[int, int]]()
    for place, member in enumerate(members):
        order.append((place, 1))
        file = file_of(member)
        with suppress(OSError):  # which whoever opens it reports
            if file is not None:
                places.setdefault(file.parent, []).append((file.stat().st_size, place))
    for files in places.values():
        for place, half in _first_halves(sorted(files)):
            order[place] = half, 0
    return [members[place] for place in sorted(range(len(members)), key=lambda place: order[place])]


def _first_halves(files: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the places of files before which there is one of half the size, each with the first place of such a one;
    ``files``: sizes and places, rising."""
    # Sizes rise, and so do the bounds of their halves: what lies between them is a window that moves on. Of it, only
    # files are kept behind which none has an earlier place.
    window, following = deque[tuple[int, int]](), 0
    for size, place in files:
        while following < len(files) and files[following][0] <= size / 2 * (1 + _HEADERS):
            while window and window[-1][1] > files[following][1]:
                window.pop()
            window.append(files[following])
            following += 1
        while window and window[0][0] < size / 2 * (1 - _HEADERS):
            window.popleft()
        if window and window[0][1] < place and size > 2 * MAX_SMALL:  # smaller tensors are put together
            yield place, window[0][1]


def _at_hand(plan: FilePlan, dtypes: Collection[str], without: Collection[int]) -> list[int]:
    """Return the numbers of a file's segments of some types that are large enough, and read at little cost."""
    is_at_hand = getattr(plan.source, "is_at_hand", lambda start: False)
    return [
        number
        for number, segment in enumerate(plan.segments)
        if segment.dtype in dtypes and not segment.group and number not in without
        if segment.stop - segment.start >= MIN_BYTES and is_at_hand(segment.start)
    ]


def _wide(
    plan: FilePlan, file: int, source: ByteSource | EarlierFile, without: Collection[int] = ()
) -> list[tuple[CastOf, int]]:
    """Return the segments of float32 of a file, each with the bytes of a cast of it; ``source``: reads the file."""
    segments = [(number, plan.segments[number]) for number in _at_hand(plan, ["float32"], without)]
    return [(CastOf((file, at), each.start, source), (each.stop - each.start) // 2) for at, each in segments]


def _note(
    known: dict[_Likeness, CastOf], source: ByteSource, wide: Sequence[tuple[CastOf, int]], sizes: Collection[int]
) -> None:
    """Add segments of float32 in a source to those that are known, by samples of their casts of some sizes in bytes."""
    for of, size in wide:
        if size in sizes:
            sample = _sample(source, of.start, size // 2, 4)
            for dtype, cast in CASTS.items():
                known.setdefault(_likeness(dtype, size, cast.apply(sample)), of)


def _likeness(dtype: str, size: int, sample: Bytes) -> _Likeness:
    """Return what a segment and the cast that it is have in common: type, bytes, and a hash of some values."""
    return dtype, size, xxhash.xxh3_64_intdigest(sample.data)


def _sample(source: ByteSource, start: int, n_values: int, item_bytes: int) -> Bytes:
    """Return some values from the beginning, the middle and the end of a segment."""
    places = 0, (n_values - _SAMPLED) // 2, n_values - _SAMPLED
    starts = [start + item_bytes * place for place in places]
    return np.concatenate([source.read(at, at + item_bytes * _SAMPLED) for at in starts])
