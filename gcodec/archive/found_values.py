"""Floating-point values in files of unknown kinds, such as HDF5, ONNX, msgpack and old ``.pt`` files.

Samples of a file are counted by places: how the bytes at each offset modulo 8 are distributed. In text and in
compressed data all places are alike. In values of several bytes the place of the highest byte, with sign and exponent,
has far less entropy than those of mantissa bits. What such a sample promises is tried: it holds values if a frame of
them is smaller than what Zstandard makes of it. Where the next sample is distributed as one before, nothing has to be
tried again; where it holds something else, the border between them is looked for by bisection.

Zstandard finds what occurs again within some MiB, but not across borders. So parts of a file that would be cut into
pieces are tried as a whole, too; and where values repeat, they are tried with Zstandard when an archive is written
(:func:`gcodec.archive.chunks.found_chunk`).

Nothing depends on a guess but size and speed. The bytes are restored as they were, and values that were found have no
names, so that no lossy mode applies to them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..files.elements import width
from ..files.file_plan import FilePlan, FileSegment, SegmentViews, assemble
from ..files.source import Bytes, ByteSource, SubSource
from .chunks import found_chunk, has_repeats, pack_chunk
from .writer import PART_BYTES

#: Bytes of a sample, a multiple of 8; how far samples lie apart, and how many a large file has at first.
SAMPLE, STEP, MOST_STEPS = 1 << 13, 1 << 18, 1 << 12
#: How far they lie apart in runs that turn out to be no values: what lies between two samples may be of other kinds.
SHORT_STEP = 1 << 15
#: A border is looked for down to so many bytes.
GRAIN = 1 << 10
#: Fewer bytes of values are not worth a segment, and a file needs more bytes than that to be looked at.
MIN_RUN, MIN_FILE = 1 << 15, 1 << 16
#: From each run of values so many bytes are tried once more, for there may be repetitions that a sample does not show.
TRIAL = 1 << 18
#: So many parts of a file that would be cut into pieces of some bytes are tried without cuts, too.
CUT_TRIALS, MIN_PIECE = 4, 1 << 12
#: Entropies of places, in bits, which differ by no more than this are those of the same kind of values.
ALIKE = 0.4
#: How many samples that were tried are remembered.
REMEMBERED = 32
#: A place of less entropy may be of bits that are zero in all values.
CONSTANT = 0.3
#: Values in a sample must make it smaller by this factor than what is known already, and those of a run by this one
#: than Zstandard.
WORTH_IT, GAIN = 0.995, 0.97
#: By the width of a value. Often both types of two bytes serve alike, and the first is the faster one.
TYPES = {2: ("bfloat16", "float16"), 4: ("float32",), 8: ("float64",)}

_PLACES = (np.arange(SAMPLE, dtype=np.int64) & 7) << 8
_COUNTS = np.arange(SAMPLE // 8 + 1, dtype=np.float64)
_WEIGHTS = _COUNTS * np.log2(np.maximum(_COUNTS, 1))


class _Kind(NamedTuple):
    """The values that a part of a file holds, or none.

    Attributes:
        dtype: Type of the values; None for anything else.
        phase: Where they begin: at offsets that are this modulo the width of a value.
        width: Bytes of a value.
    """

    dtype: str | None = None
    phase: int = 0
    width: int = 1


_OTHER = _Kind()


def with_found_values(plan: FilePlan) -> FilePlan:
    """Return the plan of the same file with a segment for each run of values that is found in it.

    A plan of any other format than ``bytes``, and of a file that cannot be read twice at little cost, stays as it is.
    """
    at_hand = getattr(plan.source, "is_at_hand", None)
    if plan.format != "bytes" or plan.source.size < MIN_FILE or at_hand is None or not at_hand(0):
        return plan
    tried = (found for run in _runs(plan.source, STEP) for found in _tried(plan.source, run))
    runs = _worth_cutting(plan.source, list(tried))
    if not runs:
        return plan
    return assemble(plan.path, plan.format, plan.source, map(SegmentViews, runs), longest_run=0, note=plan.note)


def _tried(source: ByteSource, run: FileSegment) -> Iterator[FileSegment]:
    """Yield a run of values that are smaller as a frame, else such runs in it as are found by shorter steps."""
    if _is_smaller(source, run):
        yield run
    elif run.stop - run.start > STEP:
        start = run.start // 8 * 8
        for part in _runs(SubSource(source, start, run.stop), SHORT_STEP):
            found = FileSegment(start + part.start, start + part.stop, part.dtype)
            if _is_smaller(source, found):
                yield found


def _runs(source: ByteSource, step: int) -> Iterator[FileSegment]:
    """Yield runs of values, in the order of the file, found by samples that are so many bytes apart, or more."""
    look, step = _Look(source), max(step, source.size // MOST_STEPS // 8 * 8)
    last = (source.size - SAMPLE) // 8 * 8
    start, at, kind, stride = 0, 0, look.kind_at(0), step
    while at < last:
        after, stride = min(at + stride, last), step
        found = look.kind_at(after)
        if found == kind:
            at = after
            continue
        while after - at > GRAIN:
            middle = (at + after) // 16 * 8
            between = look.kind_at(middle)
            at, after, found = (middle, after, found) if between == kind else (at, middle, between)
        # A sample that holds other things, too, may still be found to hold values: half of it is taken to be of them.
        border = max(start, after if kind is _OTHER or found.dtype else at + SAMPLE // 2)
        yield from _run(kind, start, border)
        # The sample at the border is of both sides, and may be neither: the next one is all of what follows.
        start, at, kind, stride = border, after, found, SAMPLE
    yield from _run(kind, start, source.size)


def _run(kind: _Kind, start: int, stop: int) -> Iterator[FileSegment]:
    """Yield the segment of the values between two offsets, if they are values, and enough."""
    if kind.dtype is None:
        return
    start += (kind.phase - start) % kind.width
    stop -= (stop - start) % kind.width
    if stop - start >= MIN_RUN:
        yield FileSegment(start, stop, kind.dtype)


def _is_smaller(source: ByteSource, run: FileSegment) -> bool:
    """Return True if values from the middle of a run are smaller as a frame."""
    size = min(TRIAL, run.stop - run.start) // 8 * 8
    start = run.start + (run.stop - run.start - size) // 16 * 8
    return _frame_size(data := source.read(start, start + size), run.dtype) < GAIN * _frame_size(data, None)


def _worth_cutting(source: ByteSource, runs: list[FileSegment]) -> list[FileSegment]:
    """Return runs without short ones, if parts of the file that they cut into pieces are smaller as a whole."""
    pieces = {
        start: _pieces(start, min(start + PART_BYTES, source.size), runs) for start in range(0, source.size, PART_BYTES)
    }
    cut = [start for start, found in pieces.items() if sum(p.stop - p.start >= MIN_PIECE for p in found) > 1]
    in_pieces = as_a_whole = 0
    for start in cut[:: len(cut) // CUT_TRIALS + 1]:
        data = source.read(start, min(start + PART_BYTES, source.size))
        if not has_repeats(data):
            continue
        as_a_whole += _frame_size(data, None)
        in_pieces += sum(_frame_size(data[p.start - start : p.stop - start], p.dtype) for p in pieces[start])
    return runs if in_pieces <= as_a_whole else [run for run in runs if run.stop - run.start >= PART_BYTES]


def _pieces(start: int, stop: int, runs: Sequence[FileSegment]) -> list[FileSegment]:
    """Return what a part of a file is cut into by runs, in order, each of whole values."""
    first = bisect_right(runs, start, key=lambda run: run.stop)
    last = bisect_left(runs, stop, key=lambda run: run.start)
    pieces, at = list[FileSegment](), start
    for run in runs[first:last]:
        size = width(run.dtype or "") or 1
        begin = max(run.start, start + (run.start - start) % size)
        end = min(run.stop, stop - (stop - begin) % size)
        if begin < end:
            pieces += [FileSegment(at, begin), FileSegment(begin, end, run.dtype)]
            at = end
    return [piece for piece in (*pieces, FileSegment(at, stop)) if piece.start < piece.stop]


def _frame_size(data: Bytes, dtype: str | None) -> int:
    """Return the bytes that values take, or other data if ``dtype`` is None."""
    packed = pack_chunk(data, dtype, {})
    return len((packed if dtype is None else found_chunk(packed, dtype)).payload)


class _Look:
    """Looks at samples of a file, and remembers what those were that were tried last."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._kinds, self._entropies = [_OTHER] * REMEMBERED, np.full((REMEMBERED, 8), np.inf)
        self._n_tried = 0

    def kind_at(self, at: int) -> _Kind:
        """Return what a file holds at a multiple of 8."""
        sample = self._source.read(at, at + SAMPLE)
        entropies = _entropies(sample)
        distances = np.abs(self._entropies - entropies).max(axis=1)
        nearest = int(distances.argmin())
        if distances[nearest] > ALIKE:
            nearest = self._n_tried % REMEMBERED
            self._n_tried += 1
            self._kinds[nearest], self._entropies[nearest] = _kind_of(sample, entropies), entropies
        return self._kinds[nearest]


def _entropies(sample: Bytes) -> np.ndarray:
    """Return float64[8]: for each offset modulo 8, the entropy of the bytes there, in bits."""
    counts = np.bincount(_PLACES + sample, minlength=2048).reshape(8, 256)
    n = SAMPLE // 8
    return np.log2(n) - _WEIGHTS[counts].sum(axis=1) / n


def _kind_of(sample: Bytes, entropies: np.ndarray) -> _Kind:
    """Return what a sample holds: whatever makes the smallest frame, if that is smaller than without values."""
    width = next((n for n in (1, 2, 4) if np.abs(entropies[n:] - entropies[:-n]).max() <= ALIKE), 8)
    if width == 1:
        return _OTHER
    best, kind = _frame_size(sample, None), _OTHER
    places = entropies.reshape(-1, width).mean(axis=0)
    varying = np.where(places < CONSTANT, np.inf, places)
    for highest in {int(places.argmin()), int(varying.argmin())}:
        phase = (highest + 1) % width
        values = sample[phase : SAMPLE - (width - phase) % width]
        for dtype in TYPES[width]:
            size = _frame_size(values, dtype)
            if size < WORTH_IT * best:
                best, kind = size, _Kind(dtype, phase, width)
    return kind
