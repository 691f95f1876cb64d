"""The codec of one rank for one buffer: ranges of its values to frames in a message, and frames back to values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from ...dtypes import DType
from ...errors import Corruption
from ...format.modes import BitLayout
from ...frame.decode import FrameReader
from ...frame.encode import encode_values, plan_for
from ...kernels.core.bundles import Rounding
from ...kernels.core.specialized import Specialized
from ...kernels.levels.rounding import ROUNDING_BYTES, round_values
from ...memory import acquire, float_bits_of, release
from ...options import EncoderOptions
from ...plan.plan import FramePlan
from ...plan.request import NO_LEVELS, EncodeRequest
from ...plan.unused_bits import drop_common_zeros
from ...tensors import NUMPY, Values
from ...threads import n_threads
from ..stats import Counters
from .partition import shapes_within
from .piece_cache import PieceToEncode
from .shared_codebooks import COUNTING, SharedCodebooks

_DEFAULT = EncoderOptions(exact_if_smaller=False)  #: ranks round their own values without encoding them
_PREDICTING = EncoderOptions()  #: for plans in which predicted blocks keep all bits of values, while others are rounded
_round_values = Specialized(round_values)


class BlockOwners(Protocol):
    """Anything that knows whose the blocks of a buffer are, as :class:`gradients.Gradients` does."""

    def owners(self, begin: int, end: int) -> np.ndarray:
        """Return the segment that counts each block; arguments as for :meth:`gradients.Gradients.owners`."""


class BufferCodebooks(NamedTuple):
    """The codebooks that ranks share, as one buffer uses them.

    Attributes:
        codebooks: The codebooks.
        gradients: The segments of the buffer.
        numbers: The parameter number of each segment, int64.
        predicts: True if frames may have predicted blocks.
    """

    codebooks: SharedCodebooks
    gradients: BlockOwners
    numbers: np.ndarray
    predicts: bool = True

    @property
    def key(self) -> bytes:
        """The parameter numbers, as a key."""
        return self.numbers.tobytes()


class LevelSource(Protocol):
    """Anything that chooses levels, as a :class:`level_chooser.LevelChooser` does."""

    def levels(self, begin: int, values: np.ndarray, kind: int, out: np.ndarray) -> None:
        """Write the levels of values; arguments as for :meth:`level_chooser.LevelChooser.levels`."""


class Coder:
    """Encodes and decodes ranges of a buffer of one type.

    Args:
        bit_layout: Bits that frames keep.
        level_chooser: Chooses levels, where there are any.
        shared: The codebooks that ranks share, or None for frames that carry their own.
        shapes: Shapes of the tensors in the buffer.
        threads: Threads of the codec; None for all cores.
        counters: Takes times and bytes.
    """

    def __init__(
        self,
        dtype: DType,
        bit_layout: BitLayout,
        level_chooser: LevelSource | None,
        shared: BufferCodebooks | None,
        shapes: Sequence[Sequence[int]],
        threads: int | None,
        counters: Counters,
    ) -> None:
        self.dtype, self.bit_layout, self.level_chooser, self.shared = dtype, bit_layout, level_chooser, shared
        self.shapes, self.threads, self.counters = shapes, threads, counters

    @property
    def exact(self) -> bool:
        """True if decoding returns what was encoded."""
        return not self.bit_layout.lossy

    def encode(
        self, bits: np.ndarray, begin: int, kind: int, out: np.ndarray, rounded: np.ndarray | None = None
    ) -> int:
        """Encode a range of the buffer.

        Args:
            bits: The values, uintW[n].
            begin: Position of the first one in the buffer.
            kind: 0 for this rank's own values, 1 for a result.
            out: Takes the frame, at its start, uint8.
            rounded: Takes what decoding will return, uintW[n]; None if nobody asks.

        Returns:
            The size of the frame, bytes.
        """
        start = perf_counter()
        values = Values(bits, self.dtype, (len(bits),), NUMPY)
        if self.bit_layout.lossy:
            levels = self._levels(bits, begin, kind)
            request = self._request(values, levels)
            n_bytes = self._encode(request, begin, kind, out, rounded)
            self._give_back(levels)
        else:
            request = drop_common_zeros(self._request(values, NO_LEVELS))
            n_bytes = self._encode(request, begin, kind, out)
            if rounded is not None:
                rounded[:] = bits
        self.counters.encode_seconds += perf_counter() - start
        self.counters.encoded_bytes += bits.nbytes
        return n_bytes

    def _request(self, values: Values, levels: np.ndarray) -> EncodeRequest:
        """Return the request for a range; :meth:`_plan` adds what only planning asks for."""
        return EncodeRequest(values, self.bit_layout, levels, _DEFAULT, threads=self.threads)

    def _encode(
        self, request: EncodeRequest, begin: int, kind: int, out: np.ndarray, rounded: np.ndarray | None = None
    ) -> int:
        """Encode a range, with what is known of it from earlier steps where ranks share codebooks."""
        shared, values, plan = self.shared, request.values, partial(self._plan, request, begin)
        if shared is None:
            return len(encode_values(request, plan(), out, rounded))
        key = begin, kind, len(values.bits), self.dtype.name, request.bit_layout, shared.key
        # Not with fixed mantissa bits, for the reason that _plan gives.
        predicts = shared.predicts and (self.level_chooser is not None or not self.bit_layout.lossy)
        if predicts:
            request = request._replace(fixed=shared.codebooks.for_frame(self._owners(values, begin)))
        piece = PieceToEncode(key, request, partial(self._shapes, values, begin), plan, rounded, predicts)
        return shared.codebooks.piece_cache.encode(piece, out)

    def round(self, bits: np.ndarray, begin: int, out: np.ndarray) -> None:
        """Write what decoding would return for this rank's own values.

        Args:
            bits: The values, uintW[n].
            begin: Position of the first one in the buffer.
            out: Takes the rounded values, uintW[n].
        """
        start = perf_counter()
        bit_layout, kind = self.bit_layout, float_bits_of(self.dtype)
        if not bit_layout.lossy:
            out[:] = bits
            return
        levels = self._levels(bits, begin, 0)
        rounding = Rounding(bit_layout.drop_table, len(bit_layout.levels), True, bit_layout.prune)
        _round_values(
            (self.dtype, len(levels) > 0),
            bits,
            levels if len(levels) else None,
            kind,
            rounding,
            np.empty(ROUNDING_BYTES, np.uint8),
            None,  # nothing to prefetch
            out,
        )
        self._give_back(levels)
        self.counters.encode_seconds += perf_counter() - start

    def _levels(self, bits: np.ndarray, begin: int, kind: int) -> np.ndarray:
        """Return the levels of a range in a buffer of the pool, to be given back by :meth:`_give_back`."""
        if self.level_chooser is None:
            return NO_LEVELS
        start, n_values = perf_counter(), len(bits)
        floats = bits if self.dtype.name == "bfloat16" else bits.view(self.dtype.name)
        levels: np.ndarray = acquire(("levels", n_values), lambda: np.empty(n_values, np.uint8))
        self.level_chooser.levels(begin, floats, kind, levels)
        self.counters.level_seconds += perf_counter() - start
        return levels

    def _give_back(self, levels: np.ndarray) -> None:
        if len(levels):
            release(("levels", len(levels)), levels)

    def _plan(self, request: EncodeRequest, begin: int) -> FramePlan:
        """Plan a range with codebooks of its own, or with those that ranks share, which count its symbols."""
        shared, values = self.shared, request.values
        if shared is None:
            # Fixed mantissa bits are so few that whole values, as predicted blocks keep them, are hardly ever smaller.
            options = request.options if self.level_chooser is None else _PREDICTING
            return plan_for(request._replace(shapes=self._shapes(values, begin), standalone=True, options=options))
        request, owners = request._replace(options=shared.codebooks.options), self._owners(values, begin)
        fixed = shared.codebooks.for_frame(owners)
        plan = plan_for(request._replace(fixed=fixed or COUNTING))
        suits = shared.codebooks.count(owners, plan)
        if fixed is not None and suits:
            return plan
        # No codebook yet, or none that suits these values: the frame carries its own.
        return plan_for(request._replace(standalone=True))

    def _shapes(self, values: Values, begin: int) -> list[tuple[int, ...]]:
        return shapes_within(self.shapes, begin, begin + len(values.bits))

    def _owners(self, values: Values, begin: int) -> np.ndarray:
        assert self.shared is not None
        return self.shared.numbers[self.shared.gradients.owners(begin, begin + len(values.bits))]

    def decode(self, payload: np.ndarray, out: np.ndarray) -> None:
        """Decode a frame.

        Args:
            payload: The frame, uint8.
            out: Takes the values, uintW[n].

        Raises:
            Corruption: The frame is damaged, or one of other values than are due.
            Unsupported: The frame has features that this version does not know.
        """
        start = perf_counter()
        frame = FrameReader(payload, None if self.shared is None else self.shared.codebooks.find)
        prelude = frame.prelude
        if prelude.dtype.narrow is not self.dtype or prelude.n_values != len(out):
            raise Corruption(
                f"a frame of {prelude.n_values} values of {prelude.dtype.name} instead of {len(out)} of "
                f"{self.dtype.name}"
            )
        frame.decode_blocks(0, prelude.n_blocks, out, n_threads(self.threads, len(out)))
        self.counters.decode_seconds += perf_counter() - start
        self.counters.decoded_bytes += out.nbytes
