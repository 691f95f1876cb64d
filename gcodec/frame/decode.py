"""Turn a frame into values: parse and check the prelude, run the decoding kernels over blocks on several threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ..base_hash import BaseArray, BaseHash
from ..errors import Corruption, InvalidArgument, Unsupported
from ..format import prelude as fmt
from ..format import shipped
from ..format.prelude import FindCodebook, Prelude
from ..kernels.block.block_index import find_blocks
from ..kernels.block.header import OK
from ..kernels.block.sparse_decode import apply_patch
from ..kernels.block.sparse_types import ChangedValues
from ..kernels.core.bundles import FrameBlocks, Geometry
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.encode_streams import STREAM_PAD, checksum
from ..memory import MAX_POOLED_BLOCK, Borrowed
from ..tensors import is_torch
from ..threads import run_batches
from .kinds import BlockDecoder, MakeDecoder, check_status, kind_of
from .sparse_blocks import SparseDecoder


def margin(stream: int, head_bits: int) -> int:
    """Return the number of bytes past a block that the decoder may read."""
    return (stream + STREAM_PAD) * (12 + head_bits) // 8 + 64


_checksum, _find_blocks = Specialized(checksum), Specialized(find_blocks)


def read_start(
    buffer: np.ndarray, prelude_bytes: int, frame_bytes: int, find: FindCodebook | None = None
) -> tuple[Prelude, np.ndarray, np.ndarray]:
    """Read a frame's prelude, and where its blocks lie; all of that is checked.

    Args:
        buffer: uint8[n], the prelude or more.
        prelude_bytes: Size of the prelude.
        frame_bytes: Size of the frame.
        find: Finds codebooks that the frame names; those that come with gcodec if None.

    Returns:
        The prelude, and the sizes and offsets of the blocks in bytes, int64[n_blocks] each.

    Raises:
        Corruption: If the frame is damaged.
        Unsupported: If it names a codebook that is not found, or is of a later version.
    """
    start = buffer[:prelude_bytes].tobytes()
    computed = _checksum(None, buffer, 0, prelude_bytes >> 2, fmt.CHECKSUM_HOLE, _NO_SEED)
    if computed != int.from_bytes(start[fmt.CHECKSUM_AT : fmt.CHECKSUM_AT + 8], "little"):
        raise Corruption("frame header: the checksum is wrong")
    prelude = fmt.read_prelude(start, find or shipped.find)
    sizes, offsets = np.empty(prelude.n_blocks, np.int64), np.empty(prelude.n_blocks, np.int64)
    if _find_blocks(None, buffer, prelude.index_at, prelude_bytes, sizes, offsets) != frame_bytes:
        raise Corruption(
            f"frame index: its block sizes do not add up to the frame's {frame_bytes} bytes, or its padding is not zero"
        )
    return prelude, sizes, offsets


def check_base_hash(prelude: Prelude, found: int | None) -> None:
    """Raise Unsupported unless a base has the hash that a frame names.

    Args:
        prelude: The prelude of a frame that refers to a base.
        found: Hash of the base that is at hand; None if there is none.
    """
    if found is None:
        raise Unsupported("base must be given: the frame was encoded against a base, which decoding needs again")
    if found != prelude.base_hash:
        raise Unsupported("base is not the array that the frame was encoded against: their hashes differ")


def bytes_like(data: Any) -> np.ndarray:
    """Return the bytes of a bytes-like object, uint8[n], in its memory. Raises InvalidArgument for anything else."""
    try:
        return np.frombuffer(data, np.uint8)
    except (TypeError, ValueError, BufferError) as error:
        advice = ""
        if isinstance(data, str | os.PathLike):
            advice = "; pass what is in the file, or an archive to gcodec.load, gcodec.load_file or gcodec.open"
        elif is_torch(data):
            advice = "; pass data.numpy(), the bytes of a tensor of uint8 on the CPU"
        raise InvalidArgument(f"data must be a bytes-like object: {error}{advice}") from None


class FrameReader:
    """Reads a frame: its prelude is checked at once, blocks only when they are decoded.

    Args:
        data: A bytes-like object that begins with a frame.
        find: Finds codebooks that the frame names; those that come with gcodec if None.

    Attributes:
        data: uint8[n], the frame.
        prelude: Its prelude.
        sizes: int64[n_blocks], bytes of each block.
        offsets: int64[n_blocks], where each block begins.

    Raises:
        InvalidArgument: If ``data`` is not bytes-like.
        InsufficientData: If it ends before the frame does.
        Corruption: If the prelude is damaged.
        Unsupported: If it names a codebook that is not found, or is of a later version.
    """

    def __init__(self, data: Any, find: FindCodebook | None = None) -> None:
        buffer = bytes_like(data)
        prelude_bytes, frame_bytes = fmt.prelude_size(buffer, len(buffer))
        self.data = buffer[:frame_bytes]
        self.prelude, self.sizes, self.offsets = read_start(buffer, prelude_bytes, frame_bytes, find)

    def decode_blocks(
        self, begin: int, end: int, out: np.ndarray, threads: int, base: np.ndarray | None = None
    ) -> None:
        """Decode blocks ``begin ... end``.

        Args:
            begin: First block.
            end: End of the blocks.
            out: uintW[n], takes the values of exactly these blocks.
            threads: Number of threads.
            base: uintW[n_values], the array that the frame refers to, if it does.

        Raises:
            Corruption: If a block is damaged.
            Unsupported: If the base is missing or another one, or a block is of an unknown kind.
        """
        self._run(begin, end, out, threads, base, None)

    def patches(self, threads: int, base: np.ndarray | None) -> list[Patch]:
        """Decode all blocks, and return what they make of the base, or of zeros without one, in any order.

        Sparse blocks take memory for what they change only, other blocks for all of their values.

        Args:
            threads: Number of threads.
            base: As for :meth:`decode_blocks`, whose errors this raises, too.
        """
        patches: list[Patch] = []
        self._run(0, self.prelude.n_blocks, _NOWHERE, threads, base, patches)
        return patches

    def decode_in_place(self, values: np.ndarray, threads: int) -> None:
        """Make the frame's array of the base, in its own memory. If this raises an error, the base is as it was.

        Args:
            values: uintW[n_values], the base.
            threads: Number of threads.

        Raises:
            Corruption: If a block is damaged.
            Unsupported: If the base is another one, or a block is of an unknown kind.
        """
        patches = self.patches(threads, values)
        interrupt, is_done, n_left = None, False, _MAX_INTERRUPTS
        while not is_done and n_left:
            try:
                run_batches(partial(_apply, patches, values), len(patches), threads, batch=1)
                is_done = True
            except BaseException as error:  # whatever a signal handler raises, Ctrl-C for one: half a change is none
                interrupt, n_left = error, n_left - 1  # and applying a patch again changes nothing
        if interrupt is not None:
            raise interrupt

    def _run(
        self, begin: int, end: int, out: np.ndarray, threads: int, base: np.ndarray | None, patches: list[Patch] | None
    ) -> None:
        """Decode blocks to ``out``, or to patches; other arguments as for :meth:`decode_blocks`."""
        prelude = self.prelude
        geometry = Geometry(prelude.n_values, 1 << prelude.block_log2, 1 << prelude.stream_log2)
        batch = max(_MAX_BATCH_VALUES >> prelude.block_log2, 1)
        hashing = None
        if prelude.refers_to_base:
            if base is None:
                check_base_hash(prelude, None)
            assert base is not None
            hashing = BaseHash(base, geometry.block)
            if not prelude.changes or prelude.residuals or prelude.codebooks:  # small blocks, of several kinds
                run_batches(hashing.add, hashing.n_parts, threads, batch)
                _check_base(hashing, prelude)
                hashing = None
        if begin == end:
            if not prelude.n_blocks:  # no block would look at the base
                _check_base(hashing, prelude)
            return
        first = begin << prelude.block_log2
        referred = None if base is None else BaseArray(base, hashing)
        job = _Decoding(self, prelude, geometry, referred, out, first, {}, Lock(), patches)
        try:
            if threads == 1:
                job.decode(begin, end)
            else:
                run_batches(lambda first, last: job.decode(begin + first, begin + last), end - begin, threads, batch)
        except Corruption:
            _check_base(hashing, prelude)  # with another base, blocks may look damaged
            raise
        _check_base(hashing, prelude)


_NO_SEED = np.uint64(0)
_NOWHERE = np.zeros(0, np.uint8)
#: So often the writing of changes begins anew after an interrupt; what comes each time is no interrupt.
_MAX_INTERRUPTS = 100
_MAX_BATCH_VALUES = 1 << 19  #: values that a thread decodes at a time

_apply_patch = Specialized(apply_patch)


def _check_base(hashing: BaseHash | None, prelude: Prelude) -> None:
    """Raise Unsupported if the base is not the one that a frame refers to."""
    if hashing is not None:
        check_base_hash(prelude, hashing.value())


class Patch(NamedTuple):
    """Says what blocks that follow each other make of their part of a base.

    Attributes:
        first: Number of the blocks' first value.
        places: uint32[n], places of the values that change, counted from there, or None for all of them.
        values: uintW[n], what they become.
    """

    first: int
    places: np.ndarray | None
    values: np.ndarray

    def apply(self, out: np.ndarray) -> None:
        """Write the values to where they belong in ``out``, uintW[n_values], which has the base's."""
        if self.places is None:
            np.copyto(out[self.first : self.first + len(self.values)], self.values)
        elif len(self.places):
            target = out[self.first : self.first + int(self.places.max()) + 1]
            types = target.dtype, target.flags.aligned
            _apply_patch(types, target, ChangedValues(self.places, self.values), len(self.places))


def _apply(patches: Sequence[Patch], out: np.ndarray, begin: int, end: int) -> None:
    for patch in patches[begin:end]:
        patch.apply(out)


class _Decoding(NamedTuple):
    """Decodes blocks of one frame; holds what they have in common.

    Attributes:
        frame: The frame.
        prelude: Its prelude.
        geometry: Sizes of the array, its blocks and sub-streams.
        base: The array that blocks may refer to, or None. If it is to be hashed, each block's part is when the block is
            decoded.
        out: uintW[n], takes values.
        out_first: The value of the frame that ``out`` begins with.
        decoders: Decoders of the kinds of blocks that were met. Each makes tables of all of the frame's codebooks, so
            there is one for all blocks and threads: made at every change of kinds, they would make the time to decode
            a small frame the product of its blocks and its codebooks.
        making: Held while a decoder is made.
        patches: Takes what blocks change, in place of ``out``; or None.
    """

    frame: FrameReader
    prelude: Prelude
    geometry: Geometry
    base: BaseArray | None
    out: np.ndarray
    out_first: int
    decoders: dict[MakeDecoder, BlockDecoder]
    making: Lock
    patches: list[Patch] | None

    def decode(self, begin: int, end: int) -> None:
        """Decode blocks ``begin ... end`` on this thread. Raises Corruption, Unsupported."""
        borrowed, frame = Borrowed(), self.frame
        data, offsets, sizes = frame.data, frame.offsets, frame.sizes
        # Blocks near the end of the data are decoded from a padded copy, so that wide loads stay inside.
        n_margin = margin(self.geometry.stream_len, self.prelude.dtype.head_bits)
        middle, safe = end, len(data) - n_margin
        while middle > begin and offsets.item(middle - 1) + sizes.item(middle - 1) > safe:
            middle -= 1
        if middle > begin:
            self._decode_run(FrameBlocks(data, offsets, sizes), begin, middle, borrowed)
        if end > middle:
            start, stop = offsets.item(middle), offsets.item(end - 1) + sizes.item(end - 1)
            padded = np.empty(stop - start + n_margin, np.uint8)
            padded[: stop - start] = data[start:stop]
            padded[stop - start :] = 0
            self._decode_run(FrameBlocks(padded, offsets - start, sizes), middle, end, borrowed)
        if self.geometry.block <= MAX_POOLED_BLOCK:
            borrowed.give_back()

    def _decode_run(self, blocks: FrameBlocks, begin: int, end: int, borrowed: Borrowed) -> None:
        """Decode blocks, as many at a time as have the same decoder."""
        while begin < end:
            make = kind_of(blocks, begin, self.prelude.dtype).make_decoder
            decoder = self.decoders.get(make)
            if decoder is None:
                with self.making:
                    decoder = self.decoders.get(make)  # another thread may have made it in the meantime
                    if decoder is None:
                        decoder = self.decoders[make] = make(self.prelude, self.geometry, self.base)
            if self.patches is None:
                status, begin = decoder.decode(blocks, begin, end, self.out, self.out_first, borrowed)
            else:
                status, begin = self._append_patch(decoder, blocks, begin, end, borrowed)
            if status != OK:
                check_status(status, begin)

    def _append_patch(
        self, decoder: BlockDecoder, blocks: FrameBlocks, begin: int, end: int, borrowed: Borrowed
    ) -> tuple[int, int]:
        """Append to the patches what blocks from ``begin`` on change, some before ``end``; return a status and the
        first block that was not read."""
        assert self.patches is not None
        first = begin << self.prelude.block_log2
        if isinstance(decoder, SparseDecoder) and decoder.changes_base(blocks, begin):
            n_blocks = max(_MAX_BATCH_VALUES >> self.prelude.block_log2, 1)
            changes = decoder.read(blocks, begin, min(end, begin + n_blocks), borrowed)
            self.patches.append(Patch(first, changes.places.copy(), changes.values.copy()))
            return changes.status, changes.end
        values = np.empty(min(self.geometry.block, self.geometry.n_values - first), self.prelude.dtype.uint)
        result = decoder.decode(blocks, begin, begin + 1, values, first, borrowed)
        self.patches.append(Patch(first, None, values))
        return result
