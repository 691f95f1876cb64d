"""Write a frame: its blocks, on one thread or several, and its prelude."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import InvalidArgument
from ..format.columns import for_kernels
from ..format.modes import layout_of
from ..format.prelude import Prelude
from ..format.tables import digit_tables, residual_tables, stack
from ..kernels.block import encode as kernels
from ..kernels.block import header
from ..kernels.block.block_index import seal_prelude
from ..kernels.block.predicted import encode_predicted_blocks
from ..kernels.core.bundles import Books, Choices, Columns, FloatBits, Geometry, Planes, Rounding, Scratch
from ..kernels.core.specialized import Specialized
from ..kernels.planes.layout_types import Layout
from ..memory import acquire, float_bits_of, release, residual_scratch_for, scratch_for
from ..plan.plan import FramePlan
from ..plan.prediction import Prediction
from ..plan.request import EncodeRequest
from ..tensors import hash_of
from ..threads import OrderedWriter, run_parallel
from .sizes import block_log2, raw_bytes


class FullError(Exception):
    """Raised when a frame is longer than the room for it."""


class FrameWriter(NamedTuple):
    """Writes one frame; holds what all its blocks have in common.

    Attributes:
        values: uintW[n_values], the array.
        levels: uint8[n_values], the level of each value, or None where there is one level.
        prelude: The frame's prelude.
        geometry: Sizes of the array, its blocks and sub-streams.
        float_bits: Where sign, exponent and mantissa lie in a value.
        rounding: How values are rounded.
        choices: The codebook and reference head of each block.
        columns: Column references.
        books: Tables of the codebooks.
        planes: Tables of the bit planes.
        layout: Which of the kernels' plane layouts applies.
        lossy: True if values are rounded.
        sizes: uint32[n_blocks], bytes of each block, filled in as they are written.
        limit: Largest number of bytes that the frame may take.
        raw: Largest number of bytes that a block takes.
        trial: Largest number of bytes that a block takes while it is tried, before it is stored raw.
        prediction: Which blocks are predicted, and from what; None for none.
        residuals: Tables of its codebooks, or None.
        base: uintW[n_values], an array that predicted blocks may refer to, or None.
        rounded: uintW[n_values], takes what decoding will return; or None.
    """

    values: np.ndarray
    levels: np.ndarray | None
    prelude: Prelude
    geometry: Geometry
    float_bits: FloatBits
    rounding: Rounding
    choices: Choices
    columns: Columns
    books: Books
    planes: Planes
    layout: type[Layout]
    lossy: bool
    sizes: np.ndarray
    limit: int
    raw: int
    trial: int
    prediction: Prediction | None
    residuals: np.ndarray | None
    base: np.ndarray | None
    rounded: np.ndarray | None

    @classmethod
    def of(cls, request: EncodeRequest, plan: FramePlan, rounded: np.ndarray | None = None) -> FrameWriter:
        """Return the writer of one frame; arguments as for ``encode_values``."""
        bits, dtype, dimensions, container = request.values
        bit_layout, prediction, base = request.bit_layout, plan.prediction, request.base
        widths, log2 = bit_layout.widths, block_log2(dtype)
        block = 1 << log2
        prelude = Prelude(
            dtype,
            bit_layout.mode,
            container,
            dimensions,
            log2,
            plan.stream_log2,
            widths,
            bit_layout.levels,
            plan.records,
            plan.codebooks,
            () if prediction is None else prediction.codebooks,
            () if prediction is None else prediction.templates,
            0 if prediction is None or base is None else hash_of(base),
            plan.columns,
        )
        return cls(
            bits,
            request.levels if len(bit_layout.levels) > 1 else None,
            prelude,
            Geometry(len(bits), block, 1 << plan.stream_log2),
            float_bits_of(dtype),
            Rounding(bit_layout.drop_table, len(bit_layout.levels), request.nearest, bit_layout.prune),
            Choices(plan.choice, plan.bases, plan.references),
            for_kernels(plan.columns),
            *stack(plan.codebooks, widths, bit_layout.masks, dtype.tail_bits, False),
            layout_of(dtype, widths, bit_layout.levels),
            bit_layout.lossy,
            np.empty(len(plan.choice), np.uint32),
            prelude.bare_bytes + raw_bytes(len(bits), dtype, block),
            header.BLOCK_HEADER + block * dtype.itemsize,
            block * 8 + block * (12 + dtype.head_bits) // 8 + 4096,
            prediction,
            None if prediction is None else residual_tables(dtype, prediction.codebooks, False).table,
            base,
            rounded if bit_layout.lossy else None,
        )

    def blocks(self, begin: int, end: int, out: np.ndarray, at: int, scratch: Scratch) -> int:
        """Write blocks back to back, and note their sizes.

        Args:
            begin: First block.
            end: End of the blocks.
            out: uint8[n], with room for all of them raw but the last, and for the trial of that.
            at: Byte of ``out`` where the first block goes.
            scratch: Scratch of this thread.

        Returns:
            The byte where the last block ends.

        Raises:
            InvalidArgument: If a level does not exist. That is checked here, where levels are read anyway.
        """
        if self.prediction is None:
            return self._plain(begin, end, out, at, scratch)
        # Predicted blocks have a kernel of their own, which takes runs of blocks that share a template.
        for first, stop, choice in self.prediction.runs(begin, end):
            at = (
                self._plain(first, stop, out, at, scratch)
                if choice < 0
                else self._predicted(self.prediction, choice, first, stop, out, at)
            )
        return at

    def _plain(self, begin: int, end: int, out: np.ndarray, at: int, scratch: Scratch) -> int:
        """Write blocks that are not predicted, as :meth:`blocks` does."""
        end = _encode_blocks(
            (self.prelude.dtype, self.layout, self.lossy, self.levels is None),
            self.values,
            self.levels,
            self.geometry,
            self.float_bits,
            begin,
            end,
            self.rounding,
            self.choices,
            self.columns,
            self.books,
            self.planes,
            scratch.rounded if self.rounded is None else self.rounded,  # where nobody asks, one block is kept
            self.rounded is not None,
            scratch,
            out,
            at,
            self.sizes,
        )
        if end < 0:
            assert self.levels is not None
            n_levels = self.rounding.n_levels
            raise InvalidArgument(
                f"levels must be at most {n_levels - 1} in a ladder of {n_levels}, not {int(self.levels.max())}"
            )
        return end

    def _predicted(self, prediction: Prediction, choice: int, begin: int, end: int, out: np.ndarray, at: int) -> int:
        """Write blocks that are predicted from one template, as :meth:`blocks` does."""
        dtype, (_, block, stream) = self.prelude.dtype, self.geometry
        assert self.residuals is not None
        template = prediction.templates[choice]
        kind = (dtype, stream, "residuals")
        scratch = acquire(kind, lambda: residual_scratch_for(dtype, block, stream))
        at = encode_predicted_blocks(
            self.values,
            None if len(template) else self.base,
            self.geometry,
            dtype.narrow.code,
            begin,
            end,
            template,
            prediction.origins[choice],
            digit_tables(dtype.bits // 4),
            self.residuals[choice],
            choice,
            scratch,
            out,
            at,
            self.sizes,
        )
        release(kind, scratch)
        return at

    def write(self, out: np.ndarray, n_workers: int) -> int:
        """Write the frame to the start of ``out`` (uint8[n]) on ``n_workers`` threads, and return its size. Raises
        FullError."""
        prelude, n_blocks = self.prelude, len(self.sizes)
        index_at, start = prelude.places
        if start > len(out):
            raise FullError
        if n_workers == 1 or n_blocks <= _MIN_BATCH:
            end = self._write_alone(out, start) if n_blocks else start
        else:
            end = self._write_together(out, start, n_workers)
        head = np.frombuffer(bytearray(prelude.start(end)), np.uint8)
        _seal_prelude(None, out, head, index_at, start, self.sizes)
        return end

    def _write_alone(self, out: np.ndarray, at: int) -> int:
        """Write all blocks on this thread, from byte ``at`` on, and return their end."""
        scratch = self._take_scratch()
        at = self._write_some(0, len(self.sizes), out, at, scratch)
        self._give_scratch(scratch)
        return at

    def _write_some(self, begin: int, stop: int, out: np.ndarray, at: int, scratch: Scratch) -> int:
        """Write blocks ``begin ... stop`` from byte ``at`` of ``out`` on, and return their end. Raises FullError."""
        while begin < stop:
            in_place = (len(out) - at - self.trial) // self.raw + 1
            if in_place > 0:
                end = min(begin + in_place, stop)
                at = self.blocks(begin, end, out, at, scratch)
            else:  # near the end of the room, where a trial may not fit, the block itself may
                end = begin + 1
                kind = "buffer", self.trial
                buffer = acquire(kind, lambda: np.empty(self.trial, np.uint8))
                size = self.blocks(begin, end, buffer, 0, scratch)
                at = _put(buffer, size, out, at)
                release(kind, buffer)
            begin = end
        return at

    def _write_together(self, out: np.ndarray, at: int, n_workers: int) -> int:
        """Write all blocks on several threads, from byte ``at`` on, and return their end. Raises FullError."""
        n_blocks = len(self.sizes)
        batch = min(max(n_blocks // (_PARTS * n_workers), _MIN_BATCH), _MAX_BATCH)
        size = (batch - 1) * self.raw + self.trial
        buffers = [acquire(("buffer", size), lambda: np.empty(size, np.uint8)) for _ in range(n_workers + 3)]
        ordered = OrderedWriter(-(-n_blocks // batch), list(buffers), at, n_workers)

        def work() -> None:
            scratch = self._take_scratch()
            try:
                while (taken := ordered.next_part()) is not None:
                    part, buffer, place = taken
                    begin, stop = part * batch, min((part + 1) * batch, n_blocks)
                    if buffer is None:
                        made = self._write_some(begin, stop, out, place, scratch) - place
                    else:
                        made = self.blocks(begin, stop, buffer, 0, scratch)
                    for full, n_bytes, where in ordered.complete(part, buffer, made):
                        _put(full, n_bytes, out, where)
                        ordered.release(full)
            except BaseException:
                ordered.stop()
                raise
            self._give_scratch(scratch)

        run_parallel(work, n_workers)
        for buffer in buffers:
            release(("buffer", size), buffer)
        return ordered.end

    def _take_scratch(self) -> Scratch:
        dtype, layout, lossy = self.prelude.dtype, self.layout, self.lossy
        _, block, stream = self.geometry
        return acquire(
            (dtype, stream, layout, lossy), lambda: scratch_for(dtype, block, stream, layout, decode=False, lossy=lossy)
        )

    def _give_scratch(self, scratch: Scratch) -> None:
        release((self.prelude.dtype, self.geometry.stream_len, self.layout, self.lossy), scratch)


#: Blocks that a thread encodes at a time: few, so that all end together, but not so few that threads do little but take
#: turns at the interpreter; of small arrays so many that each thread has a few parts.
_MIN_BATCH, _MAX_BATCH, _PARTS = 8, 32, 4
_encode_blocks, _seal_prelude = Specialized(kernels.encode_blocks), Specialized(seal_prelude)


def _put(buffer: np.ndarray, size: int, out: np.ndarray, at: int) -> int:
    """Copy the first ``size`` bytes of ``buffer`` to byte ``at`` of ``out``, and return their end. Raises FullError."""
    if at + size > len(out):
        raise FullError
    np.copyto(out[at : at + size], buffer[:size])
    return at + size
