"""Blocks of the kinds that every value type has: coded ones, and the constant and raw ones that they may turn into."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..base_hash import BaseArray
from ..dtypes import DType
from ..errors import InvalidArgument
from ..format.columns import for_kernels
from ..format.levels import Level
from ..format.modes import BitLayout, layout_of
from ..format.prelude import Prelude
from ..format.tables import MAX_SYMBOLS_WITH_RUNS, run_symbols_of, stack, tables_of_planes
from ..kernels.block import header
from ..kernels.block.decode import CodedDecoding, decode_blocks
from ..kernels.block.encode import CodedEncoding, encode_blocks
from ..kernels.core.bundles import Books, Choices, FloatBits, FrameBlocks, Geometry, Rounding, Scratch
from ..kernels.core.specialized import Specialized
from ..kernels.planes.layout_types import Layout
from ..memory import Borrowed, float_bits_of, scratch_for
from ..plan.codebooks import FittedCodebooks
from ..plan.plan import FramePlan
from ..plan.request import EncodeRequest

encode_coded_blocks, decode_coded_blocks = Specialized(encode_blocks), Specialized(decode_blocks)


@lru_cache(64)
def form_of(
    dtype: DType, widths: tuple[int, ...], levels: tuple[Level, ...]
) -> tuple[type[Layout], FloatBits, tuple[int, ...]]:
    """Return the layout of the planes, the value type as the kernels take it, and the plane mask of every level; kept,
    because together they take as long as decoding a few hundred values."""
    return layout_of(dtype, widths, levels), float_bits_of(dtype), tuple([level.mask for level in levels])


class CodedForm:
    """Holds what encoding coded blocks takes that depends on no value: one object for each combination.

    Args:
        bits: Which bits of a value are kept.
        nearest: True to round to nearest even.
        block: Values of a block.
        stream_len: Values of a sub-stream.

    Attributes:
        masks: Plane mask of every level.
        float_bits: The type as the kernels take it.
        rounding: How values are rounded.
        planes: The planes.
        has_levels: True if there are several levels.
        key: What scratch is kept by.
        types: What the kernel's specialization is known by.
    """

    def __init__(self, dtype: DType, bits: BitLayout, nearest: bool, block: int, stream_len: int) -> None:
        layout, float_bits, self.masks = form_of(dtype, bits.widths, bits.levels)
        if not bits.lossy:  # infinities and NaN have levels as others do
            float_bits = float_bits._replace(infinity=np.uint64(1 << dtype.bits - 1))
        self.float_bits, self.has_levels = float_bits, len(bits.levels) > 1
        self.rounding = Rounding(bits.drop_table, len(bits.levels), nearest, bits.prune)
        _, _, self.planes = tables_of_planes(bits.widths, self.masks, dtype.tail_bits)
        # Values of a lossless frame that leaves out zeros are rounded, too, to themselves: these kernels are there.
        rounds = bits.lossy or any(bits.drops)
        self.key, self.types = (dtype, block, stream_len, layout, rounds), (dtype, layout, rounds, not self.has_levels)

    def new_scratch(self) -> Scratch:
        """Return scratch for one thread."""
        dtype, block, stream_len, layout, rounds = self.key
        return scratch_for(dtype, block, stream_len, layout, decode=False, lossy=rounds)


coded_form = lru_cache(64)(CodedForm)


def with_runs(books: Books, n: int) -> Books:
    """Return the tables of ``n`` codebooks of a frame of its own, in which empty sub-streams may be runs of the most
    frequent symbol."""
    if books.n_symbols.item(0) > MAX_SYMBOLS_WITH_RUNS:
        return books
    return books._replace(run_symbol=run_symbols_of(books, n))


class CodedEncoder:
    """Encodes blocks of one frame; arguments as of :class:`kinds.MakeEncoder`."""

    __slots__ = ("_coding", "_form", "_rounded")

    def __init__(
        self,
        request: EncodeRequest,
        plan: FramePlan,
        geometry: Geometry,
        sizes: np.ndarray,
        rounded: np.ndarray | None,
    ) -> None:
        (bits, dtype, _, _), layout, codebooks = request.values, request.bit_layout, plan.codebooks
        form = self._form = coded_form(dtype, layout, request.nearest, geometry.block, geometry.stream_len)
        if isinstance(codebooks, FittedCodebooks):
            books = codebooks.tables
        else:
            books, _ = stack(tuple(codebooks), layout.widths, form.masks, dtype.tail_bits, False)
        if request.standalone and codebooks:
            books = with_runs(books, len(codebooks))
        self._coding = CodedEncoding(
            bits,
            request.levels if form.has_levels else None,
            geometry,
            form.float_bits,
            form.rounding,
            Choices(plan.choice, plan.bases, plan.references),
            for_kernels(plan.columns),
            books,
            form.planes,
            sizes,
        )
        self._rounded = rounded if layout.lossy else None

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Encode blocks; see :meth:`kinds.BlockEncoder.encode`. Levels are checked here, where they are read anyway."""
        form, coding = self._form, self._coding
        scratch = borrowed.take(form.key, form.new_scratch)
        rounded = scratch.rounded if self._rounded is None else self._rounded  # where nobody asks, one block is kept
        end = encode_coded_blocks(form.types, coding, rounded, begin, end, scratch, out, at)
        if end < 0:
            assert coding.levels is not None
            n_levels = coding.rounding.n_levels
            raise InvalidArgument(
                f"levels must be at most {n_levels - 1} in a ladder of {n_levels}, not {int(coding.levels.max())}"
            )
        return end


class CodedDecoder:
    """Decodes blocks of one frame; arguments as of :class:`kinds.MakeDecoder`."""

    def __init__(self, prelude: Prelude, geometry: Geometry, base: BaseArray | None) -> None:
        dtype, widths = prelude.dtype, prelude.widths
        self._dtype, (self._layout, float_bits, masks) = dtype, form_of(dtype, widths, prelude.levels)
        books, planes = stack(prelude.codebooks, widths, masks, dtype.tail_bits, True)
        self._coding = CodedDecoding(geometry, float_bits, for_kernels(prelude.columns), books, planes)

    def decode(
        self, blocks: FrameBlocks, begin: int, end: int, out: np.ndarray, out_first: int, borrowed: Borrowed
    ) -> tuple[int, int]:
        """Decode blocks; see :meth:`kinds.BlockDecoder.decode`."""
        dtype, layout, (_, block, stream_len) = self._dtype, self._layout, self._coding.geometry
        scratch = borrowed.take(
            (dtype, block, stream_len, layout, "decode"),
            lambda: scratch_for(dtype, block, stream_len, layout, decode=True),
        )
        types = dtype, layout, out.flags.aligned
        return decode_coded_blocks(types, blocks, begin, end, self._coding, scratch, out, out_first)

    def decode_inner(self, data: np.ndarray, at: int, size: int, out: np.ndarray, borrowed: Borrowed) -> int:
        """Decode a block that stands for itself, as if it were block 0 of an array (docs/format.md section 9).

        Args:
            data: uint8, with a margin behind the block.
            at: Where it begins.
            size: Its bytes, a multiple of 8 above 0.
            out: uintW[n], takes its values, as many as it must have.
            borrowed: Buffers of this thread.

        Returns:
            A status.
        """
        dtype, layout, geometry = self._dtype, self._layout, self._coding.geometry
        scratch = borrowed.take(
            (dtype, geometry.block, geometry.stream_len, layout, "decode"),
            lambda: scratch_for(dtype, geometry.block, geometry.stream_len, layout, decode=True),
        )
        alone = self._coding._replace(geometry=geometry._replace(n_values=len(out)))
        blocks = FrameBlocks(data, np.array([at]), np.array([size]))
        status, end = decode_coded_blocks((dtype, layout, True), blocks, 0, 1, alone, scratch, out, 0)
        has_columns = data.item(at) == header.CODED and data.item(at + header.FLAGS) != 0
        return header.BAD_FIELD if status == header.OK and (end == 0 or has_columns) else status
