"""Casts of float32 tensors to types of 16 bits, which archives store as what they are casts of.

Checkpoints of mixed-precision training hold the weights in bfloat16 or float16, and the optimizer's copy of them in
float32, which says all about the former.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from ..files.file_plan import FilePlan
from ..files.source import Bytes, ByteSource

#: Smaller segments are not looked at.
MIN_BYTES = 1 << 12
#: Values that are compared at three places each before a segment is taken for a cast of another; and how many of them
#: must differ from each other: of zeros and ones everything is a cast.
_SAMPLED, _DIFFERENT = 64, 16


def to_bfloat16(data: Bytes) -> Bytes:
    """Return float32 values as bfloat16, rounded to nearest, ties to even; NaN keeps its sign and upper bits, and is
    quiet.

    Args:
        data: uint8[4n], the values.

    Returns:
        uint8[2n].
    """
    bits = data.view("<u4")
    upper = bits >> np.uint32(16)
    # Rounds up where what is cut off is above half, or is half and the last bit that stays is set.
    rounded = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if is_nan.any():
        rounded = np.where(is_nan, upper | np.uint32(0x40), rounded)
    return rounded.astype("<u2").view(np.uint8)


def to_float16(data: Bytes) -> Bytes:
    """Return float32 values as float16, rounded to nearest, ties to even; every NaN is 0x7E00 with its sign.

    Args:
        data: uint8[4n], the values.

    Returns:
        uint8[2n].
    """
    values = data.view("<f4")
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        rounded = values.astype("<f2")
    is_nan = np.isnan(values)
    if is_nan.any():
        bits = rounded.view("<u2")
        bits[is_nan] = 0x7E00 | (data.view("<u4")[is_nan] >> np.uint32(16) & np.uint32(0x8000)).astype("<u2")
    return rounded.view(np.uint8)


#: What casts float32 to each type.
CASTS: Mapping[str, Callable[[Bytes], Bytes]] = {"bfloat16": to_bfloat16, "float16": to_float16}


def find_casts(plan: FilePlan, without: Collection[int] = ()) -> dict[int, int]:
    """Return the segments of a file that look like casts of float32 segments of the same file, by number, with the
    numbers of these. Only samples are compared: what they are coded against decides nothing but their size.

    Args:
        plan: The file.
        without: Numbers of segments that are not to be read.
    """
    is_at_hand = getattr(plan.source, "is_at_hand", lambda start: False)

    def candidates(dtypes: Collection[str]) -> list[int]:
        return [
            number
            for number, segment in enumerate(plan.segments)
            if segment.dtype in dtypes and not segment.group and number not in without
            if segment.stop - segment.start >= MIN_BYTES and is_at_hand(segment.start)
        ]

    narrow = candidates(CASTS)
    sizes = {plan.segments[number].stop - plan.segments[number].start for number in narrow}
    by_sample = dict[tuple[str, int, bytes], int]()
    for number in candidates(["float32"]) if narrow else ():
        segment = plan.segments[number]
        size = (segment.stop - segment.start) // 2
        if size in sizes:
            sample = _sample(plan.source, segment.start, size // 2, 4)
            for dtype, cast in CASTS.items():
                by_sample.setdefault((dtype, size, cast(sample).tobytes()), number)
    found = dict[int, int]()
    for number in narrow:
        segment = plan.segments[number]
        size = segment.stop - segment.start
        sample = _sample(plan.source, segment.start, size // 2, 2)
        of = by_sample.get((segment.dtype or "", size, sample.tobytes()))
        if of is not None and len(np.unique(sample.view("<u2"))) >= _DIFFERENT:
            found[number] = of
    return found


def _sample(source: ByteSource, start: int, n_values: int, item_bytes: int) -> Bytes:
    """Return some values from the beginning, the middle and the end of a segment."""
    places = 0, (n_values - _SAMPLED) // 2, n_values - _SAMPLED
    starts = [start + item_bytes * place for place in places]
    return np.concatenate([source.read(at, at + item_bytes * _SAMPLED) for at in starts])
