"""Chunks of an archive, each a part of a blob: stored, Zstandard or a frame, whichever is smallest.

The codec is imported where it is first needed: listing an archive does not wait for its kernels to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ..errors import Corruption, GcodecError
from ..files.elements import width
from ..files.record_fields import RecordFields
from ..files.source import Bytes, new_bytes
from .entries import Chunk
from .layout import FRAME, MIN_FRAME, RECORDS, STORED, ZSTD
from .records import Stream, pack_records, unpack_records
from .zstd_text import compressed, decompressed, stated_size

#: Level of Zstandard for what is not floating-point numbers, and where the smallest result is wanted; and for fields of
#: records, in which a higher one finds nothing more, as they look random.
ZSTD_LEVEL, SMALLEST_LEVEL, FIELD_LEVEL = 3, 19, 1
#: Of a part that is to be smallest, the higher level is tried where the lower one takes at most this multiple of what
#: is best so far, and this share of the part: it takes half a second for a MiB.
IN_REACH, COMPRESSIBLE = 1.05, 0.98
#: Zstandard frames of so many bytes have a checksum: they may be one of several in a segment, and read alone.
CHECKSUM_BYTES = 1 << 16
#: Parts of values up to this size are tried with Zstandard too: a frame's header weighs on them.
SMALL = 1 << 12
#: Tensors of a group of which fewer than half of so many values differ are tried with Zstandard, up to so many bytes
#: at a time.
SAMPLE, MAX_TEXT = 64, 1 << 16
#: Tensors of a group that are as in the base are tried in chunks of their own, where chunks would have so many bytes
#: on average; each takes so many in the index and for alignment.
MIN_RUN, CHUNK_COST = 1 << 12, 16
#: Values that were only found in a file are tried with Zstandard, too, where their frame is no smaller than this share
#: of them, or where more than this share of a sample of their words occurs again: repetitions are what it is good at.
FOUND_FRAME, FOUND_REPEATS = 0.95, 0.02
#: Records that take more than this share of their size field by field are tried with Zstandard as they are, too.
RECORDS_LIKELY = 0.97
#: Bytes of a part of a tensor, in its middle, that are looked at for repetitions, least and most: half of a part, and
#: an eighth of one that is as large as any.
LEAST_LOOKED_AT, LOOKED_AT = 1 << 16, 1 << 19
#: Bytes of the pieces of a part that are tried with Zstandard, least and most: a 64th of a part, and one piece of parts
#: that are smaller than so many pieces of the most. A part is tried as a whole where its pieces take no larger share of
#: their size than this multiple of what its frame takes: a piece has fewer bytes before it to find again.
LEAST_TRIED, MOST_TRIED, FEW_PIECES, PIECES_NEAR = 1 << 12, 1 << 14, 1 << 6, 1.06
#: Least share of its size that a base must save a part: for less nobody should have to keep another file.
WORTH_A_BASE = 0.005


class Packed(NamedTuple):
    """A part as it is stored.

    Attributes:
        codec: Code of the codec, an index into ``CODECS``.
        payload: The stored bytes.
        restored: The bytes that unpacking gives.
        lossy: True if these may differ from the part.
        needs_base: True if unpacking needs the base.
    """

    codec: int
    payload: bytes | memoryview
    restored: Bytes
    lossy: bool = False
    needs_base: bool = False


class OrderedHash:
    """The XXH3-64 of a segment whose parts several threads have, each in its own time.

    A thread hashes its part while that is in the core's cache; where an earlier part is still missing, the thread that
    brings that one does it. All parts are hashed once all calls have returned.
    """

    __slots__ = ("_end", "_hash", "_is_busy", "_lock", "_waiting")

    def __init__(self) -> None:
        self._hash, self._lock, self._is_busy = xxhash.xxh3_64(), Lock(), False
        self._waiting: dict[int, list[Bytes]] = {}
        self._end = 0  # of what is hashed or being hashed

    def put(self, start: int, *parts: Bytes) -> None:
        """Take bytes that begin at byte ``start`` of the segment: one part, or several that follow each other."""
        with self._lock:
            self._waiting[start] = list(parts)
            if self._is_busy:
                return
            self._is_busy = True
        while True:
            with self._lock:
                ready = self._waiting.pop(self._end, None)
                if ready is None:
                    self._is_busy = False
                    return
                self._end += sum(part.size for part in ready)
            for part in ready:
                self._hash.update(part.data)

    def hexdigest(self) -> str:
        """Return the hash of all parts."""
        return self._hash.hexdigest()


def stored_chunk(data: Bytes) -> Packed:
    """Stores a part as it is."""
    return Packed(STORED, data.data, data)


def pack_chunk(
    data: Bytes,
    dtype: str | None,
    options: Mapping[str, Any],
    n_columns: int = 0,
    base: Bytes | None = None,
    *,
    base_is_held: bool = False,
    smallest: bool = False,
    take: Callable[[int], Bytes] | None = None,
) -> Packed:
    """Stores a part as small as it gets.

    Args:
        data: The part, one-dimensional.
        dtype: The codec's type of its values, None for plain bytes.
        options: For ``gcodec.encode``; if there are any the part may be changed, where that makes it smaller.
        n_columns: Length of the rows that the part consists of, 0 if it is not of rows.
        base: Bytes of the same type that the part may be coded against; not together with options.
        base_is_held: Every reader holds the base anyway, so that coding the part without it is not tried.
        smallest: Try more ways, however slow they are.
        take: Gives the memory of a frame; new memory if None.
    """
    best = exact = stored_chunk(data)
    if dtype is not None and (data.size > MIN_FRAME or options):
        n_values = data.size // (width(dtype) or 1)
        in_rows = n_columns and n_values % n_columns == 0
        shapes = [(n_values // n_columns, n_columns)] if in_rows else None
        best = _packed_frame(data, dtype, options, shapes, base, base_is_held, smallest, take)
    if dtype is None or data.size <= SMALL or (not best.needs_base and (smallest or _may_be_text(best, dtype))):
        best = _or_text(best, smallest)
        exact = _or_text(exact, smallest) if best.lossy else exact
    # Of small parts the rounded values, too, may fit into no frame that is smaller: then rounding would be for nothing.
    return exact if best.lossy and _may_stay_exact(options) and len(exact.payload) <= len(best.payload) else best


def record_chunk(data: Bytes, fields: RecordFields) -> Packed:
    """Stores a part of whole records, field by field if that is smaller than Zstandard makes them.

    Args:
        data: The part, one-dimensional.
        fields: What the records consist of.
    """
    payload = pack_records(data, fields, _packed_field)
    best = Packed(RECORDS, payload, data) if len(payload) < data.size else stored_chunk(data)
    return _or_text(best) if len(payload) > RECORDS_LIKELY * data.size else best


def _packed_field(data: Bytes, dtype: str | None) -> Stream:
    if dtype is not None and data.size > MIN_FRAME:
        from .. import codec

        frame = codec.encode(_as_bits(data, dtype), dtype=dtype, threads=1)
        if len(frame) < data.size:
            return Stream(FRAME, frame)
    text = compressed(data.data, FIELD_LEVEL)
    return Stream(ZSTD, text) if len(text) < data.size else Stream(STORED, data.data)


def pack_group(
    data: Bytes,
    dtype: str,
    shapes: Sequence[tuple[int, ...]],
    base: Bytes | None = None,
    *,
    base_is_held: bool = False,
    smallest: bool = False,
    take: Callable[[int], Bytes] | None = None,
) -> list[Packed]:
    """Stores small tensors that lie end to end, without loss, in as few chunks as serve them well.

    Args:
        data: The tensors, one-dimensional.
        dtype: The codec's type of their values.
        shapes: Their shapes, in values.
        base: As for :func:`pack_chunk`; all chunks are coded against it, or none.
        base_is_held: As for :func:`pack_chunk`.
        smallest: As for :func:`pack_chunk`.
        take: As for :func:`pack_chunk`.
    """
    if base is not None and data.size > MIN_FRAME:
        against = _packed_frame(data, dtype, {}, shapes, base, base_is_held, smallest, take)
        apart = [
            _packed_frame(data[start:stop], dtype, {}, run, base[start:stop], base_is_held, smallest, take)
            for start, stop, run in _runs_against(_as_bits(data, dtype), _as_bits(base, dtype), shapes)
        ]
        n_bytes = sum(len(chunk.payload) + CHUNK_COST for chunk in apart)
        if any(chunk.needs_base for chunk in apart) and n_bytes < len(against.payload):
            return apart
        if against.needs_base:
            return [_or_text(against) if data.size <= SMALL else against]
    packed, sampled = [], _Sampled(_as_bits(data, dtype), list(map(prod, shapes)))
    for start, stop, run, repeats in _runs(shapes, sampled.repeats(), width(dtype) or 1):
        part = data[start:stop]
        best = stored_chunk(part)
        if part.size > MIN_FRAME:
            best = _packed_frame(part, dtype, {}, run, None, False, smallest, take)
        packed.append(_or_text(best, smallest) if repeats or part.size <= SMALL else best)
    n_bytes = sum(len(chunk.payload) + CHUNK_COST for chunk in packed) - CHUNK_COST
    if smallest or sampled.share_of_copies() > FOUND_REPEATS or _pieces_are_smaller(data, dtype, n_bytes):
        whole = _or_text(stored_chunk(data), smallest)
        packed = [whole] if len(whole.payload) < n_bytes else packed
    return packed


def _runs(
    shapes: Sequence[tuple[int, ...]], repeats: Sequence[bool], value_bytes: int
) -> Iterator[tuple[int, int, list[tuple[int, ...]], bool]]:
    """Yield runs of tensors that one chunk serves: first byte and end, their shapes, and whether values repeat.

    Args:
        shapes: The shapes of tensors that lie end to end.
    """
    start, at, run, kind = 0, 0, list[tuple[int, ...]](), False
    for shape, again in zip(shapes, repeats, strict=True):
        end = at + prod(shape)
        if end == at:  # an archive has no chunks of no bytes
            run.append(shape)
            continue
        full = kind and (end - start) * value_bytes > MAX_TEXT
        if at > start and (again != kind or full):
            yield start * value_bytes, at * value_bytes, run, kind
            start, run = at, []
        run.append(shape)
        at, kind = end, again
    if at > start:
        yield start * value_bytes, at * value_bytes, run, kind


def _runs_against(
    bits: np.ndarray, base: np.ndarray, shapes: Sequence[tuple[int, ...]]
) -> list[tuple[int, int, list[tuple[int, ...]]]]:
    """Return runs of tensors that are all as in the base, or all others: first byte and end, and their shapes. None
    where all are of one kind, or the runs too short to be worth it.

    Args:
        bits: uintW[n], the tensors end to end.
        base: uintW[n], those of the base.
    """
    ends = np.cumsum(np.array(list(map(prod, shapes)), np.int64))
    differ = bits != base
    changed = np.array([bool(differ[start:stop].any()) for start, stop in pairwise([0, *ends.tolist()])])
    filled = np.flatnonzero(np.diff(ends, prepend=0))  # empty tensors are of either kind
    firsts = [0, *filled[1:][changed[filled[1:]] != changed[filled[:-1]]].tolist(), len(shapes)]
    if len(firsts) == 2 or (len(firsts) - 1) * MIN_RUN > bits.nbytes:
        return []
    places = [0, *(int(end) * bits.itemsize for end in ends)]
    return [(places[first], places[last], list(shapes[first:last])) for first, last in pairwise(firsts)]


#: Odd factor, of which the highest bits of products are well mixed: that of the golden ratio.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class _Sampled:
    """Says of several arrays, end to end, what a sample of each tells.

    Args:
        bits: uintW[n], the arrays.
        sizes: How many values each has.
    """

    def __init__(self, bits: np.ndarray, sizes: Sequence[int]) -> None:
        self._sizes = n = np.array(sizes, np.int64)
        places = (np.cumsum(n) - n)[:, None] + np.arange(SAMPLE) * n[:, None] // SAMPLE
        some = np.sort(bits[np.minimum(places, bits.size - 1)], axis=1)
        self._n_different = np.count_nonzero(some[:, 1:] != some[:, :-1], axis=1) + (some[:, 0] != 0)
        self._sorted = some

    def repeats(self) -> list[bool]:
        """Return which have few values other than 0, each again and again."""
        few = (self._n_different > 0) & (self._n_different < SAMPLE // 2)
        repeats: list[bool] = ((self._sizes >= SAMPLE) & few).tolist()
        return repeats

    def share_of_copies(self) -> float:
        """Return the share of values that are in arrays like earlier ones, but for those of a single value."""
        low, high = (self._sorted[:, at].astype(np.uint64) for at in (SAMPLE // 4, 3 * SAMPLE // 4))
        keys = (low * _FACTOR + high) * _FACTOR + self._sizes.astype(np.uint64)
        in_order = np.sort(keys)
        if not (in_order[1:] == in_order[:-1]).any():  # mostly
            return 0.0
        alone = self._n_different < 2
        _, firsts = np.unique(keys, return_index=True)
        first = np.zeros(len(keys), bool)
        first[firsts] = True
        return float(self._sizes[~first & ~alone].sum() / max(int(self._sizes.sum()), 1))


def found_chunk(packed: Packed, dtype: str) -> Packed:
    """Return a part of values that were only found in a file, not named by it, as small as it gets.

    What a sample of the file promises need not hold for all of it. Where the part does not look like values, or holds
    the same values again, it is tried with Zstandard, too.

    Args:
        packed: The part as :func:`pack_chunk` stores it.
        dtype: The codec's type of its values.
    """
    data = packed.restored
    is_doubtful = len(packed.payload) >= FOUND_FRAME * data.size
    return _or_text(packed) if is_doubtful or has_repeats(data, min(width(dtype) or 1, 4)) else packed


def _may_be_text(packed: Packed, dtype: str) -> bool:
    """Return True if Zstandard may store a part of values in fewer bytes, as far as samples tell."""
    data, n_bytes = packed.restored, len(packed.payload)
    return _repeats_values(data, dtype) or _pieces_are_smaller(data, dtype, n_bytes)


def _pieces_are_smaller(data: Bytes, dtype: str, n_bytes: int) -> bool:
    """Return True if Zstandard makes pieces of a part about as small as frames of so many bytes make all of it; of
    values of a byte, too, for each of which it has a code, where frames have one for the exponent."""
    if width(dtype) == 1:
        return True
    size = min(max(data.size // 64, LEAST_TRIED), MOST_TRIED)
    middles = (1, 3) if data.size >= FEW_PIECES * MOST_TRIED else (2,)
    starts = [max(data.size * middle // 4 - size // 2, 0) // 16 * 16 for middle in middles]
    pieces = [data[start : start + size] for start in starts]
    tried = sum(len(compressed(piece.data, ZSTD_LEVEL)) for piece in pieces)
    return tried * data.size <= PIECES_NEAR * n_bytes * sum(piece.size for piece in pieces)


def _repeats_values(data: Bytes, dtype: str) -> bool:
    """Return True if values of a type occur again one after the other, as far as a sample from the middle tells."""
    size = min(max(data.size // 2, LEAST_LOOKED_AT), LOOKED_AT)
    start = max(data.size - size, 0) // 16 * 8  # where values begin, of whatever type
    return has_repeats(data[start : start + size], min(width(dtype) or 1, 4))


def has_repeats(data: Bytes, step: int = 1) -> bool:
    """Return True if many pairs of words, at multiples of ``step`` bytes, occur more than once, as far as a sample
    tells."""
    from ..kernels.sample.repeated_words import share_repeated

    return share_repeated(data, step) > FOUND_REPEATS


def _or_text(best: Packed, smallest: bool = False) -> Packed:
    """Return a part as it is best stored so far, or with Zstandard if that is smaller."""
    size = best.restored.nbytes
    text = compressed(best.restored.data, ZSTD_LEVEL, checksum=size >= CHECKSUM_BYTES)
    if smallest and len(text) < min(IN_REACH * len(best.payload), COMPRESSIBLE * size):
        text = compressed(best.restored.data, SMALLEST_LEVEL, checksum=size >= CHECKSUM_BYTES)
    return best._replace(codec=ZSTD, payload=text, needs_base=False) if len(text) < len(best.payload) else best


def unpack_chunk(
    chunk: Chunk,
    payload: Bytes,
    where: str,
    base: Callable[[], Bytes] | None = None,
    take: Callable[[int], Bytes] | None = None,
) -> Bytes:
    """Return the part that a chunk holds; ``where`` is for the error message.

    Args:
        base: Reads the part's bytes of the base; called only if the chunk needs them.
        take: Gives the memory of the part; new memory if None.

    Raises:
        GcodecError: The chunk does not decode to a part of its size, or needs another base.
    """
    if chunk.codec == STORED:
        return payload
    try:
        if chunk.codec == RECORDS:
            part = new_bytes(chunk.size) if take is None else take(chunk.size)
            unpack_records(payload, part, _unpacked_field)
        else:
            is_text = chunk.codec == ZSTD
            part = _unpacked_zstd(chunk, payload) if is_text else _unpacked_frame(chunk, payload, base, take)
    except GcodecError as error:
        raise type(error)(f"{where}: {error}") from error
    if part.size != chunk.size:
        raise Corruption(f"{where}: the chunk decodes to {part.size} bytes where {chunk.size} were expected")
    return part


def _unpacked_field(stream: Stream, n_bytes: int) -> Bytes:
    """Return the bytes of a field of records."""
    stored = np.frombuffer(stream.payload, np.uint8)
    if stream.codec == STORED and len(stored) != n_bytes:
        raise Corruption(f"a field of records is stored in {len(stored)} bytes where {n_bytes} were expected")
    return unpack_chunk(Chunk(stream.codec, len(stored), n_bytes), stored, "a field of records")


def _packed_frame(
    data: Bytes,
    dtype: str,
    options: Mapping[str, Any],
    shapes: Sequence[tuple[int, ...]] | None,
    base: Bytes | None,
    base_is_held: bool,
    smallest: bool,
    take: Callable[[int], Bytes] | None,
) -> Packed:
    from .. import codec
    from ..frame.decode import FrameReader
    from ..frame.encode import OwnBuffer
    from ..frame.sizes import roomy_size
    from ..options import EncoderOptions

    bits, earlier = _as_bits(data, dtype), None if base is None else _as_bits(base, dtype)
    out = None if take is None else take(roomy_size(bits.size, dtype)).view(OwnBuffer)
    exactly: dict[str, Any] = {"options": EncoderOptions(smallest=True)} if smallest else {}
    how = options or exactly
    frame = codec.encode(bits, dtype=dtype, shapes=shapes, base=earlier, threads=1, out=out, **how)
    needs_base = earlier is not None and FrameReader(frame).prelude.refers_to_base
    if needs_base and not base_is_held:
        # Not every block that looks better against a base is: rows may predict each other as well.
        alone = codec.encode(bits, dtype=dtype, shapes=shapes, threads=1, **exactly)
        if len(frame) > (1 - WORTH_A_BASE) * len(alone):
            frame, needs_base = alone, False
    if options and shapes:  # where rows predict each other, exact values may take less room than rounded ones
        exact = codec.encode(bits, dtype=dtype, shapes=shapes, threads=1, **exactly)
        if len(exact) < len(frame):
            frame, options = exact, {}
    restored = _as_bytes(codec.decode(frame, like="numpy", threads=1)) if options else data
    if len(frame) >= data.size:
        return Packed(STORED, restored.data, restored, bool(options))
    return Packed(FRAME, frame, restored, bool(options), needs_base)


def _may_stay_exact(options: Mapping[str, Any]) -> bool:
    """Return True if values may keep all of their bits where that is smaller, though the mode may drop some."""
    more = options.get("options")
    return more is None or bool(more.exact_if_smaller)


def _unpacked_zstd(chunk: Chunk, payload: Bytes) -> Bytes:
    stated = stated_size(payload.data)
    if stated != chunk.size:
        raise Corruption(f"its Zstandard frame decodes to {stated} bytes where {chunk.size} were expected")
    return np.frombuffer(decompressed(payload.data, chunk.size), np.uint8)


def _unpacked_frame(
    chunk: Chunk, payload: Bytes, base: Callable[[], Bytes] | None, take: Callable[[int], Bytes] | None
) -> Bytes:
    from .. import codec
    from ..format.prelude import stated_frame_bytes
    from ..frame.decode import FrameReader
    from ..frame.small_reads import small_frame

    stated = stated_frame_bytes(payload)
    if stated != chunk.stored:
        raise Corruption(f"its frame has {stated} bytes where {chunk.stored} are stored")
    small, room = small_frame(payload), None
    if small is not None and small.n_values * small.dtype.itemsize == chunk.size:
        room = np.empty(chunk.size, np.uint8) if take is None else take(chunk.size)
        if small.decode(room.view(small.dtype.uint)):
            return room
    frame, earlier, out = FrameReader(payload), None, None
    if base is not None and frame.prelude.refers_to_base:
        dtype = frame.prelude.dtype
        if frame.prelude.n_values * dtype.itemsize != chunk.size:  # before a base of another size is blamed for it
            raise Corruption(f"a frame of {frame.prelude.n_values} {dtype.name} where {chunk.size} bytes were expected")
        earlier = _as_bits(base(), dtype.name)
    kind = frame.prelude.dtype.narrow
    if take is not None and frame.prelude.n_values * kind.itemsize == chunk.size:
        room = take(chunk.size) if room is None else room
        out = room.view(kind.name if kind.in_numpy else kind.uint)
    return _as_bytes(codec.decode_frame(frame, out, "numpy", 1, chunk.size, earlier))


def _as_bits(data: Bytes, dtype: str) -> np.ndarray:
    return np.ascontiguousarray(data).view(f"u{width(dtype)}")


def _as_bytes(array: np.ndarray) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
