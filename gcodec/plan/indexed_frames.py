"""Plan frames of indexed blocks: which dictionary, and how indices into it are coded."""

from __future__ import annotations

from ..format.codebook import Codebook
from ..format.dictionary import INDEX_TYPE
from .indexing import INDEXED_LOG2, find_indexing, index_request
from .plan import FramePlan, make_plan, no_plan
from .request import EncodeRequest

#: Stands in a dictionary whose inner blocks are all raw or constant.
_UNUSED_CODEBOOK = Codebook(INDEX_TYPE.head_bits, ((0, 0),), bytes([1, *bytes(254), 1]))


def make_indexed_plan(request: EncodeRequest) -> FramePlan | None:
    """Plan a frame of indexed blocks.

    Args:
        request: The array and how to encode it losslessly; :func:`indexing.may_be_indexed` is True for it.

    Returns:
        The plan, with an estimate of its bits, good for this array only; None if no dictionary has nearly all of the
        values.
    """
    found = find_indexing(request)
    if found is None:
        return None
    inner = make_plan(index_request(request, found.indices), 1 << INDEXED_LOG2, weigh=True)
    codebook = inner.codebooks[0] if inner.codebooks else _UNUSED_CODEBOOK
    return no_plan(request.values.dtype, -(-len(found.indices) >> INDEXED_LOG2))._replace(
        stream_log2=inner.stream_log2,
        indexed=found.with_codes(codebook),
        inner=inner,
        bits=inner.bits + found.extra_bits(request.values.dtype.bits),
    )
