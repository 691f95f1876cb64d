"""Turn a frame into values: parse and check the prelude, run the decoding kernels over blocks on several threads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..errors import Corruption, InvalidArgument, Unsupported
from ..format import prelude as fmt
from ..format import shipped
from ..format.columns import for_kernels
from ..format.modes import layout_of
from ..format.prelude import FindCodebook, Prelude
from ..format.tables import digit_tables, residual_tables, stack
from ..kernels.block import decode as kernels
from ..kernels.block import header
from ..kernels.block.block_index import find_blocks
from ..kernels.block.predicted import decode_predicted_blocks
from ..kernels.core.bundles import Books, Columns, Geometry, Planes, Scratch
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.encode_streams import STREAM_PAD, checksum
from ..kernels.planes.layout_types import Layout
from ..memory import MAX_POOLED_BLOCK, acquire, float_bits_of, release, residual_scratch_for, scratch_for
from ..tensors import hash_of, kernel_view
from ..threads import run_batches


def margin(stream: int, head_bits: int) -> int:
    """Return the number of bytes past a block that the decoder may read."""
    return (stream + STREAM_PAD) * (12 + head_bits) // 8 + 64


_MESSAGES = {
    header.BAD_CHECKSUM: "the checksum is wrong",
    header.BAD_FIELD: "a header field is outside its legal values",
    header.BAD_SIZE: "its size does not fit its contents",
    header.BAD_STREAM: "a sub-stream does not end where it should",
    header.BAD_PLANES: "the planes do not fit the symbols",
}


def check_status(status: int, block: int, dtype: DType) -> None:
    """Raise the error that a kernel's status of a block stands for, if it stands for one."""
    if status == header.IS_PREDICTED:
        raise Corruption(f"block {block}: its kind is predicted, which blocks of {dtype.name} cannot be")
    if status == header.BAD_KIND:
        raise Unsupported(f"block {block}: its kind is not known to this version")
    if status != header.OK:
        raise Corruption(f"block {block}: {_MESSAGES[status]}")


_checksum, _decode_blocks = Specialized(checksum), Specialized(kernels.decode_blocks)


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
    sizes, offsets = np.empty((2, prelude.n_blocks), np.int64)
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
        dtype = prelude.dtype
        masks = tuple([level.mask for level in prelude.levels])
        job = _Decoding(
            self,
            Geometry(prelude.n_values, 1 << prelude.block_log2, 1 << prelude.stream_log2),
            layout_of(dtype, prelude.widths, prelude.levels),
            for_kernels(prelude.columns),
            *stack(prelude.codebooks, prelude.widths, masks, dtype.tail_bits, True),
            out,
            begin << prelude.block_log2,
            margin(1 << prelude.stream_log2, dtype.head_bits),
            base,
        )
        if threads == 1:
            job.decode(begin, end)
        else:
            run_batches(lambda first, last: job.decode(begin + first, begin + last), end - begin, threads)


_find_blocks = Specialized(find_blocks)
_NO_SEED = np.uint64(0)
_NO_TEMPLATE = np.zeros(0, np.float32)


class _Decoding(NamedTuple):
    """Decodes blocks of one frame; holds what they have in common.

    Attributes:
        frame: The frame.
        geometry: Sizes of the array, its blocks and sub-streams.
        layout: Which of the kernels' plane layouts applies.
        columns: Column references.
        books: Tables of the codebooks.
        planes: Tables of the bit planes.
        out: uintW[n], takes values.
        out_first: The value of the frame that ``out`` begins with.
        margin: Bytes past a block that must be readable.
        base: uintW[n_values], the array that predicted blocks refer to, or None.
    """

    frame: FrameReader
    geometry: Geometry
    layout: type[Layout]
    columns: Columns
    books: Books
    planes: Planes
    out: np.ndarray
    out_first: int
    margin: int
    base: np.ndarray | None

    def decode(self, begin: int, end: int) -> None:
        """Decode blocks ``begin ... end`` on this thread. Raises Corruption, Unsupported."""
        frame, (_, block, stream) = self.frame, self.geometry
        dtype, layout = frame.prelude.dtype, self.layout
        kind = (dtype, block, stream, layout, "decode")
        scratch = acquire(kind, lambda: scratch_for(dtype, block, stream, layout, decode=True))
        # Blocks near the end of the data are decoded from a padded copy, so that wide loads stay inside.
        offsets, safe = frame.offsets, len(frame.data) - self.margin
        middle = end
        while middle > begin and offsets[middle - 1] + frame.sizes[middle - 1] > safe:
            middle -= 1
        if middle > begin:
            self._run(begin, middle, frame.data, offsets, scratch)
        if end > middle:
            start, stop = int(offsets[middle]), int(offsets[end - 1] + frame.sizes[end - 1])
            padded = np.empty(stop - start + self.margin, np.uint8)
            padded[: stop - start] = frame.data[start:stop]
            padded[stop - start :] = 0
            self._run(middle, end, padded, offsets - start, scratch)
        if block <= MAX_POOLED_BLOCK:
            release(kind, scratch)

    def _run(self, begin: int, end: int, data: np.ndarray, offsets: np.ndarray, scratch: Scratch) -> None:
        at, status = begin, header.OK
        while status == header.OK and at < end:
            status, at = self._plain(at, end, data, offsets, scratch)
            if status == header.IS_PREDICTED and self.frame.prelude.dtype.predictable:
                status, at = self._predicted(at, end, data, offsets)
        check_status(status, at, self.frame.prelude.dtype)

    def _plain(self, begin: int, end: int, data: np.ndarray, offsets: np.ndarray, scratch: Scratch) -> tuple[int, int]:
        """Decode blocks up to ``end`` or to one that is predicted, and return (status, block)."""
        dtype = self.frame.prelude.dtype
        return _decode_blocks(
            (dtype, self.layout, self.out.flags.aligned),
            data,
            offsets,
            self.frame.sizes,
            begin,
            end,
            self.geometry,
            float_bits_of(dtype),
            self.columns,
            self.books,
            self.planes,
            scratch,
            self.out,
            self.out_first,
        )

    def _predicted(self, begin: int, end: int, data: np.ndarray, offsets: np.ndarray) -> tuple[int, int]:
        """Decode predicted blocks up to ``end`` or to one that is not, and return (status, block)."""
        prelude, (_, block, stream) = self.frame.prelude, self.geometry
        dtype, templates = prelude.dtype, prelude.templates
        ends = np.cumsum([0, *map(len, templates)])
        kind = (dtype, block, stream, "residuals")
        scratch = acquire(kind, lambda: residual_scratch_for(dtype, block, stream))
        status, at = decode_predicted_blocks(
            kernel_view(data),
            offsets,
            self.frame.sizes,
            begin,
            end,
            self.geometry,
            dtype.narrow.code,
            self.base,
            np.concatenate([_NO_TEMPLATE, *templates]),
            np.stack([ends[:-1], ends[1:]], axis=1),
            digit_tables(dtype.bits // 4),
            residual_tables(dtype, prelude.residuals, True),
            scratch,
            self.out,
            self.out_first,
        )
        if block <= MAX_POOLED_BLOCK:
            release(kind, scratch)
        return status, at
