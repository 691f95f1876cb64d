"""The kinds of blocks: one row says which values a kind is for, who encodes it and who decodes it.

A new kind is a row here, a number and a header in ``kernels/block/header.py``, a driver in ``kernels/block``, a binding
beside ``coded_blocks.py``, and who plans it (``FramePlan.runs``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from ..base_hash import BaseArray
from ..dtypes import DType
from ..errors import Corruption, Unsupported
from ..format.prelude import Prelude
from ..kernels.block import header
from ..kernels.core.bundles import FrameBlocks, Geometry
from ..memory import Borrowed
from ..plan.plan import FramePlan
from ..plan.request import EncodeRequest
from .coded_blocks import CodedDecoder, CodedEncoder
from .indexed_blocks import IndexedDecoder, IndexedEncoder
from .predicted_blocks import PredictedDecoder, PredictedEncoder
from .sparse_blocks import SparseDecoder, SparseEncoder


class BlockEncoder(Protocol):
    """Encodes blocks of one frame that are planned as one kind; several threads may use it."""

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Encode blocks back to back and note their sizes; any of them may turn out constant or raw.

        Args:
            begin: First block.
            out: uint8, with room for all of them raw but the last, and for the trial of that.
            at: Byte of ``out`` where the first block goes.
            borrowed: Buffers of this thread.

        Returns:
            The byte where the last block ends.

        Raises:
            InvalidArgument: A level does not exist.
        """
        ...


class BlockDecoder(Protocol):
    """Decodes blocks of some kinds of one frame; several threads may use it."""

    def decode(
        self, blocks: FrameBlocks, begin: int, end: int, out: np.ndarray, out_first: int, borrowed: Borrowed
    ) -> tuple[int, int]:
        """Decode blocks from ``begin`` on, as many before ``end`` as are of its kinds.

        Args:
            begin: First block.
            out: uintW, takes values.
            out_first: The frame's value that ``out`` begins with.
            borrowed: Buffers of this thread.

        Returns:
            (status, block): the first block that is of another kind (status OK) or faulty; ``end`` if there is none.
        """
        ...


#: Makes the encoder of a frame: from the request and its plan, sizes of the array's parts, uint32[n_blocks] that takes
#: sizes of blocks, and uintW[n_values] that takes what decoding will return, or None.
MakeEncoder = Callable[[EncodeRequest, FramePlan, Geometry, np.ndarray, np.ndarray | None], BlockEncoder]
#: Makes the decoder of a frame: from its prelude, sizes of the array's parts, and the base, if it refers to one.
MakeDecoder = Callable[[Prelude, Geometry, BaseArray | None], BlockDecoder]


class BlockKind(NamedTuple):
    """A kind of block.

    Attributes:
        number: Its number in the block's header.
        name: Its name in descriptions of frames.
        applies_to: Returns True for value types that have such blocks.
        make_encoder: Makes what encodes blocks that are planned as this kind.
        make_decoder: Makes what decodes blocks of this kind; kinds with the same one are decoded together.
    """

    number: int
    name: str
    applies_to: Callable[[DType], bool]
    make_encoder: MakeEncoder
    make_decoder: MakeDecoder


def _always(dtype: DType) -> bool:
    return True


def _has_tail(dtype: DType) -> bool:
    return dtype.tail_bits > 0


def _is_predictable(dtype: DType) -> bool:
    return dtype.predictable


#: All kinds; each stands at its number.
BLOCK_KINDS = (
    BlockKind(header.CONSTANT, "constant", _always, CodedEncoder, CodedDecoder),
    BlockKind(header.RAW, "raw", _always, CodedEncoder, CodedDecoder),
    BlockKind(header.CODED, "coded", _always, CodedEncoder, CodedDecoder),
    BlockKind(header.PREDICTED, "predicted", _is_predictable, PredictedEncoder, PredictedDecoder),
    BlockKind(header.SPARSE, "sparse", _always, SparseEncoder, SparseDecoder),
    BlockKind(header.INDEXED, "indexed", _has_tail, IndexedEncoder, IndexedDecoder),
)

_MESSAGES = {
    header.BAD_CHECKSUM: "the checksum is wrong",
    header.BAD_FIELD: "a header field is outside its legal values",
    header.BAD_SIZE: "its size does not fit its contents",
    header.BAD_STREAM: "a sub-stream does not end where it should",
    header.BAD_PLANES: "the planes do not fit the symbols",
}


def check_status(status: int, block: int) -> None:
    """Raise Corruption where a kernel's status of a block is not OK."""
    if status != header.OK:
        raise Corruption(f"block {block}: {_MESSAGES[status]}")


def kind_of(blocks: FrameBlocks, block: int, dtype: DType) -> BlockKind:
    """Return the kind of a block.

    Raises:
        Corruption: The block is damaged, or of a kind that values of its type never have.
        Unsupported: It is of a kind that is not known.
    """
    at = blocks.offsets.item(block)
    number = blocks.data.item(at)
    if number < len(BLOCK_KINDS):
        kind = BLOCK_KINDS[number]
        if kind.applies_to(dtype):
            return kind
    # A wrong checksum is said first (docs/format.md, section 11): the number may be what is damaged.
    check_status(header.check_block(blocks.data, at, blocks.sizes[block], block), block)
    if number < len(BLOCK_KINDS):
        name = BLOCK_KINDS[number].name
        raise Corruption(f"block {block}: its kind is {name}, which blocks of {dtype.name} cannot be")
    raise Unsupported(f"block {block}: its kind is not known to this version")
