"""The working memory of the block kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from .format import ValueType
from .kernels import planes
from .kernels.parameters import Kind, Scratch
from .kernels.streams import STREAM_PAD


def scratch_for(dtype: ValueType, block: int, stream: int, layout: int, decode: bool, lossy: bool = False) -> Scratch:
    """The working memory of one thread."""
    n_streams, more = -(-block // stream), planes.GROUP
    narrow, strided = layout == planes.LAYOUT_NARROW, n_streams * (stream + STREAM_PAD) + 2 * more

    def array(wanted: bool, shape: Any, kind: Any) -> Any:
        return np.empty(shape, kind) if wanted else None

    return Scratch(
        symbols=np.empty(strided, np.uint8),
        references=np.empty(n_streams, np.uint32),
        stream_bytes=np.empty(n_streams, np.uint32),
        n_items=np.zeros(8, np.int64),
        chunk=np.empty(4 * (stream + more), np.uint8),
        words=array(narrow or layout == planes.LAYOUT_24, stream + more, np.uint32),
        dense=array(layout == planes.LAYOUT_24, stream + more, np.uint32),
        lone=array(layout == planes.LAYOUT_8, stream + more, np.uint8),
        bytes=array(narrow, 2 * (stream + more), np.uint8),
        marks=array(narrow, strided, np.uint8),
        items=array(narrow, (8, block + more), np.uint8),
        general=array(layout == planes.LAYOUT_GENERAL, block if decode else 0, np.uint64),
        bare=array(layout == planes.LAYOUT_NONE, 0, np.uint8),
        rounded=array(lossy, block, dtype.uint),
        starts=array(decode, n_streams, np.int64),
        bases=array(decode, n_streams, np.uint16),
        lanes=array(decode, (3, 4), np.int64),
        escapes=array(decode, block, np.int64),
        escape_heads=array(decode, block, np.uint16),
    )


def kind_of(dtype: ValueType) -> Kind:
    """A value type as the kernels want it."""
    return Kind(
        dtype.head_bits, dtype.head_shift, dtype.tail_bits, np.uint64(dtype.infinity), np.uint64(dtype.smallest_normal)
    )
