"""Turn a frame into values: parse and check the prelude, run the decoding kernels over blocks on several threads."""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from ..errors import Corruption, InvalidArgument, Unsupported
from ..format import prelude as fmt
from ..format import shipped
from ..format.prelude import FindCodebook, Prelude
from ..kernels.block.block_index import find_blocks
from ..kernels.block.header import OK
from ..kernels.core.bundles import FrameBlocks, Geometry
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.encode_streams import STREAM_PAD, checksum
from ..memory import MAX_POOLED_BLOCK, Borrowed
from ..tensors import hash_of
from ..threads import run_batches
from .kinds import BlockDecoder, MakeDecoder, check_status, kind_of


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
        try:
            buffer = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgument(f"data must be a bytes-like object: {error}") from None
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
        prelude = self.prelude
        if prelude.refers_to_base and (base is None or hash_of(base) != prelude.base_hash):
            raise Unsupported(
                "base must be given: the frame was encoded against a base"
                if base is None
                else "base is not the array that the frame was encoded against: their hashes differ"
            )
        if begin == end:
            return
        job = _Decoding(
            self,
            prelude,
            Geometry(prelude.n_values, 1 << prelude.block_log2, 1 << prelude.stream_log2),
            base,
            out,
            begin << prelude.block_log2,
            {},
            Lock(),
        )
        if threads == 1:
            job.decode(begin, end)
        else:
            run_batches(lambda first, last: job.decode(begin + first, begin + last), end - begin, threads)


_NO_SEED = np.uint64(0)


class _Decoding(NamedTuple):
    """Decodes blocks of one frame; holds what they have in common.

    Attributes:
        frame: The frame.
        prelude: Its prelude.
        geometry: Sizes of the array, its blocks and sub-streams.
        base: uintW[n_values], the array that predicted blocks may refer to, or None.
        out: uintW[n], takes values.
        out_first: The value of the frame that ``out`` begins with.
        decoders: Decoders of the kinds of blocks that were met. Each makes tables of all of the frame's codebooks, so
            there is one for all blocks and threads: made at every change of kinds, they would make the time to decode
            a small frame the product of its blocks and its codebooks.
        making: Held while a decoder is made.
    """

    frame: FrameReader
    prelude: Prelude
    geometry: Geometry
    base: np.ndarray | None
    out: np.ndarray
    out_first: int
    decoders: dict[MakeDecoder, BlockDecoder]
    making: Lock

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
            status, begin = decoder.decode(blocks, begin, end, self.out, self.out_first, borrowed)
            if status != OK:
                check_status(status, begin)
