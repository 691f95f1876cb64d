"""From a frame to values: parse and check the prelude, run the decoding kernels over blocks on several threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import format as fmt
from . import prior
from . import scheme as schemes
from .errors import Corruption, InvalidArgument, Unsupported
from .format import FindCodebook
from .kernels import blocks, predicted
from .kernels import decode as kernels
from .kernels.parameters import Geometry, Planes, Scratch
from .kernels.streams import STREAM_PAD, checksum
from .prediction import digit_tables
from .prediction import scratch_for as residual_scratch
from .scratch import kind_of, scratch_for
from .tables import stack
from .tensors import kernel_view
from .workers import run


def margin(stream: int, head_bits: int) -> int:
    """Bytes past a block that the decoder may read."""
    return (stream + STREAM_PAD) * (12 + head_bits) // 8 + 64


_MESSAGES = {
    blocks.BAD_CHECKSUM: "the checksum is wrong",
    blocks.BAD_FIELD: "a header field is outside its legal values",
    blocks.BAD_SIZE: "its size does not fit its contents",
    blocks.BAD_STREAM: "a sub-stream does not end where it should",
    blocks.BAD_PLANES: "the planes do not fit the symbols",
}


class Frame:
    """A parsed frame: the prelude checked, the blocks not yet looked at."""

    def __init__(self, data: Any, find: FindCodebook | None = None) -> None:
        try:
            buffer = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            raise InvalidArgument(f"data must be a bytes-like object: {error}") from None
        prelude_bytes, frame_bytes = fmt.prelude_size(buffer)
        stored = int.from_bytes(buffer[fmt.CHECKSUM_AT : fmt.CHECKSUM_AT + 8].tobytes(), "little")
        if int(checksum(kernel_view(buffer), 0, prelude_bytes // 4, fmt.CHECKSUM_HOLE, np.uint64(0))) != stored:
            raise Corruption("frame header: the checksum is wrong")
        self.data = kernel_view(buffer[:frame_bytes])
        self.prelude, self.sizes = fmt.read_prelude(buffer[:prelude_bytes].tobytes(), find or prior.find)
        self.offsets = prelude_bytes + np.cumsum(self.sizes) - self.sizes

    def decode_blocks(self, begin: int, end: int, out: np.ndarray, threads: int) -> None:
        """Values of blocks ``begin ... end`` into ``out`` (uintW, exactly these). Raises Corruption, Unsupported."""
        prelude = self.prelude
        dtype, block, stream = prelude.dtype, 1 << prelude.block_log2, 1 << prelude.stream_log2
        books, uniform = stack(
            prelude.codebooks, prelude.widths, [level.mask for level in prelude.levels], dtype.tail_bits, decode=True
        )
        geometry, shape = (
            Geometry(prelude.n_values, block, stream),
            Planes(len(prelude.widths), np.array(prelude.widths, np.int64), uniform),
        )
        layout = schemes.layout_of(dtype, prelude.widths, prelude.levels)
        over = margin(stream, dtype.head_bits)
        # Blocks near the end of the data are decoded from a padded copy, so that wide loads stay inside.
        ends = self.offsets + self.sizes
        safe = min(int(np.searchsorted(ends, len(self.data) - over, "right")), end)

        def some(first: int, last: int, data: np.ndarray, offsets: np.ndarray, scratch: Scratch) -> None:
            at = first
            while True:
                status, at = kernels.decode_blocks(
                    data,
                    offsets,
                    self.sizes,
                    at,
                    last,
                    geometry,
                    kind_of(dtype),
                    books,
                    shape,
                    scratch,
                    out,
                    begin * block,
                )
                if status != blocks.IS_PREDICTED or not dtype.predictable:
                    break
                status, at = self._decode_predicted(data, offsets, at, last, geometry, out, begin * block)
                if status != blocks.OK or at == last:
                    break
            if status == blocks.IS_PREDICTED:
                raise Corruption(f"block {at}: predicted, which {dtype.name} never is")
            if status == blocks.BAD_KIND:
                raise Unsupported(f"block {at} is of a kind that this version does not know")
            if status != blocks.OK:
                raise Corruption(f"block {at}: {_MESSAGES[status]}")

        def work(first: int, last: int) -> None:
            first, last = first + begin, last + begin
            scratch = scratch_for(dtype, block, stream, layout, decode=True)
            middle = min(max(safe, first), last)
            if middle > first:
                some(first, middle, self.data, self.offsets, scratch)
            if last > middle:
                start = int(self.offsets[middle])
                stop = int(ends[last - 1])
                padded = np.zeros(stop - start + over, np.uint8)
                padded[: stop - start] = self.data[start:stop]
                some(middle, last, padded, self.offsets - start, scratch)

        run(work, end - begin, threads)

    def _decode_predicted(
        self, data: np.ndarray, offsets: np.ndarray, first: int, last: int, geometry: Geometry, out: np.ndarray, at: int
    ) -> tuple[int, int]:
        """Predicted blocks from ``first`` on, as many as there are before ``last``: (status, block)."""
        prelude = self.prelude
        dtype, templates = prelude.dtype, prelude.templates
        tables = digit_tables(dtype.bits // 4)
        books, _ = stack(prelude.residuals, (), [0] * (dtype.bits // 4), 0, decode=True)
        ends = np.cumsum([0, *map(len, templates)])
        status, at = predicted.decode_predicted_blocks(
            data,
            offsets,
            self.sizes,
            first,
            last,
            geometry,
            dtype.code,
            np.concatenate(templates) if templates else np.zeros(0, np.float32),
            np.stack([ends[:-1], ends[1:]], axis=1),
            tables,
            books,
            residual_scratch(dtype, geometry.block, geometry.stream),
            out,
            at,
        )
        return status, at
