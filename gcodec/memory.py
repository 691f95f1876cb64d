"""The working memory of the block kernels, used again from call to call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import numpy as np

from .dtypes import DType
from .format.prelude import TEMPLATE_COLUMNS
from .kernels.core.bundles import Kind, Residuals, Scratch
from .kernels.entropy.encode_streams import CHUNK_BYTES, STREAM_PAD
from .kernels.planes import whole_tail
from .kernels.planes.class_tables import CLASS_BYTES

_MOST = 4  #: of a kind that are kept: more threads than that have work enough to bear the allocation
KEPT_BLOCK = 1 << 15  #: largest blocks, in values, whose working memory is kept
_kept: dict[Hashable, list[Any]] = {}


def take(kind: Hashable, make: Callable[[], Any]) -> Any:
    """Something of this kind that was used before, or a new one. Until :func:`give` it is nobody else's, be it another
    thread or a signal handler that encodes in between."""
    try:
        return _kept[kind].pop()
    except LookupError:
        return make()


def give(kind: Hashable, thing: Any) -> None:
    """It may be taken again. What an error has kept from being given is lost, which does not matter."""
    kept = _kept.setdefault(kind, [])
    if len(kept) < _MOST:
        kept.append(thing)


def scratch_for(dtype: DType, block: int, stream: int, layout: int, decode: bool, lossy: bool = False) -> Scratch:
    """The working memory of one thread."""
    n_streams, more = -(-block // stream), whole_tail.GROUP
    with_heads = dtype.bits == 32 and not decode
    narrow, strided = layout == whole_tail.LAYOUT_NARROW, n_streams * (stream + STREAM_PAD) + 2 * more

    def array(wanted: bool, shape: Any, kind: Any) -> Any:
        return np.empty(shape, kind) if wanted else None

    return Scratch(
        symbols=np.empty(strided, np.uint8),
        references=np.empty(n_streams, np.uint32),
        stream_bytes=np.empty(n_streams, np.uint32),
        n_items=np.zeros(8, np.int64),
        chunk=np.empty(max(4 * (stream + more), CHUNK_BYTES, CLASS_BYTES), np.uint8),
        columns=np.empty(block, np.int8),
        shifted=np.empty(0 if decode else block, dtype.uint),
        heads=np.empty(block + more if with_heads else 0, np.uint8),
        others=np.empty(block // 64 + 1 if with_heads else 0, np.uint64),
        words=array(narrow or layout == whole_tail.LAYOUT_24, stream + more, np.uint32),
        dense=array(layout == whole_tail.LAYOUT_24, stream + more, np.uint32),
        lone=array(layout == whole_tail.LAYOUT_8, stream + more, np.uint8),
        seven=array(layout in (whole_tail.LAYOUT_7, whole_tail.LAYOUT_23), block + more, np.uint8),
        tails=array(layout in (whole_tail.LAYOUT_7, whole_tail.LAYOUT_23), stream + more, np.uint8),
        bytes=array(narrow, 2 * (stream + more), np.uint8),
        marks=array(narrow, strided, np.uint8),
        items=array(narrow, (8, block + more), np.uint8),
        general=array(layout == whole_tail.LAYOUT_GENERAL, block if decode else 0, np.uint64),
        bare=array(layout == whole_tail.LAYOUT_NONE, 0, np.uint8),
        rounded=array(lossy, block, dtype.uint),
        starts=array(decode, n_streams, np.int64),
        bases=array(decode, n_streams, np.uint16),
        lanes=array(decode, (5, 4), np.int64),
        escapes=array(decode, block, np.int64),
        escape_heads=array(decode, block, np.uint16),
    )


@lru_cache
def kind_of(dtype: DType) -> Kind:
    """A value type as the kernels want it."""
    return Kind(
        dtype.head_bits, dtype.head_shift, dtype.tail_bits, np.uint64(dtype.infinity), np.uint64(dtype.smallest_normal)
    )


def residual_scratch_for(dtype: DType, block: int, stream: int) -> Residuals:
    """The working memory of one thread for predicted blocks."""
    n_streams = -(-block // stream)
    strided = n_streams * (stream + STREAM_PAD) + 2 * whole_tail.GROUP
    return Residuals(
        symbols=np.empty(strided, np.uint8),
        marks=np.empty(strided, np.uint8),
        predictions=np.empty(block, np.uint32),
        words=np.empty(block, np.uint32),
        bytes=np.empty(2 * (stream + whole_tail.GROUP), np.uint8),
        items=np.empty((dtype.itemsize, block + whole_tail.GROUP), np.uint8),
        n_items=np.zeros(8, np.int64),
        scales=np.empty(block // TEMPLATE_COLUMNS.start + 2, np.uint32),
        sums=np.empty(16, np.float32),
        stream_bytes=np.empty(n_streams, np.uint32),
        starts=np.empty(n_streams, np.int64),
        lanes=np.empty((5, 4), np.int64),
        chunk=np.empty(CHUNK_BYTES, np.uint8),
        escapes=np.empty(block, np.int64),
        escape_heads=np.empty(block, np.uint16),
    )
