"""A cache of what was found for the pieces of a buffer by shared codebooks: plans, and whether predicted blocks pay.

Gradients of one layout change little from step to step, and so do the plans of their frames. So symbols are counted,
and plans made, in one step of four; the others use the plans again. A frame that has grown meanwhile is planned anew at
once: frames are as large as fresh plans would make them, but for a few percent.

Pieces of some buffers are smaller with predicted blocks, as rows of an embedding's gradient are. Finding that out takes
several times as long as encoding with codebooks that are there. So it is tried twice for every set of shared codebooks,
by encoding a piece both ways; from then on only templates are made anew (docs/format.md section 8), while which blocks
are predicted, and with what codes, stays as it was. Frames with predicted blocks carry all that decoding needs, so each
rank decides for itself. Predicted blocks keep all bits of their values, in modes that round others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...frame.encode import encode_values, plan_for
from ...options import EncoderOptions
from ...plan.plan import FramePlan
from ...plan.prediction import Prediction, rows_of
from ...plan.request import EncodeRequest

_EVERY = 4  #: steps from one in which symbols are counted to the next
_GROWTH = 1.03  #: times the bytes that a frame had when its plan was new, from which it is planned anew
_CODING = EncoderOptions(columns=False, wide_heads=False)
_GAIN = 0.1  #: share of a frame that prediction must take off: with it, encoding and decoding take about twice as long
_TRIED_AT = 1, 8  #: steps with the same codebooks in which pieces without predicted blocks are tried
_MAX_PIECES = 1 << 12  #: pieces that are remembered


class PieceToEncode(NamedTuple):
    """A range of a buffer to be encoded.

    Attributes:
        key: The same for this range at every step.
        request: The values, with shared codebooks in ``fixed`` if there are any.
        shapes: Finds the shapes of the tensors in the range.
        plan: Makes the plan without prediction.
        rounded: Takes what decoding will return, uintW[n]; None if nobody asks.
        predicts: True if the frame may have predicted blocks.
    """

    key: Hashable
    request: EncodeRequest
    shapes: Callable[[], Sequence[Sequence[int]]]
    plan: Callable[[], FramePlan]
    rounded: np.ndarray | None = None
    predicts: bool = True

    def encode(self, plan: FramePlan, out: np.ndarray) -> int:
        """Write a frame, and return its size in bytes.

        Args:
            out: Takes the frame, at its start, uint8.
        """
        return len(encode_values(self.request, plan, out, self.rounded))


class _Plan(NamedTuple):
    """A plan that is used again.

    Attributes:
        plan: The plan.
        n_bytes: Bytes of the frame that it was made for.
    """

    plan: FramePlan
    n_bytes: int


class _Tried(NamedTuple):
    """A trial in which prediction paid.

    Attributes:
        plan: Plan of the frame with predicted blocks.
        prediction: Which blocks are predicted.
        usual: Bytes of the frame without predicted blocks, when it was last made.
    """

    plan: FramePlan
    prediction: Prediction
    usual: int


@dataclass
class _Known:
    """Holds what is known of a piece.

    Attributes:
        plan: The plan without prediction to use again, if there is one.
        varies: The piece changes so much that no plan is used again before symbols are counted.
        step: Steps with the codebooks in which predicted blocks might have been tried.
        tried: The trial, if prediction paid.
    """

    plan: _Plan | None = None
    varies: bool = False
    step: int = 0
    tried: _Tried | None = None


class PieceCache:
    """Encodes pieces, and keeps what is known of them as long as the shared codebooks hold.

    Attributes:
        counts: True in a step in which symbols are counted and all plans made anew; the same on all ranks.
    """

    def __init__(self) -> None:
        self.counts = True
        self._known: dict[Hashable, _Known] = {}

    def forget(self) -> None:
        """Forget all pieces, when the codebooks are new."""
        self._known.clear()

    def begin_step(self, step: int, has_codebooks: bool) -> None:
        """Begin a step.

        Args:
            step: Its number.
            has_codebooks: True if all layers have codebooks; without, symbols are counted in every step.
        """
        self.counts = step % _EVERY == 0 or not has_codebooks

    def encode(self, piece: PieceToEncode, out: np.ndarray) -> int:
        """Write a frame, and return its size in bytes.

        Args:
            piece: The values.
            out: Takes the frame, at its start, uint8.
        """
        known = self._known.get(piece.key)
        if known is None:
            if len(self._known) >= _MAX_PIECES:
                self.forget()
            known = self._known[piece.key] = _Known()
        if not piece.predicts:
            return self._by_plan(piece, known, out)
        known.step = 0 if piece.request.fixed is None else known.step + 1
        if known.tried is not None:
            return self._again(piece, known, known.tried, out)
        size = self._by_plan(piece, known, out)
        return self._try(piece, known, size, out) if known.step in _TRIED_AT else size

    def _by_plan(self, piece: PieceToEncode, known: _Known, out: np.ndarray) -> int:
        """Write a frame without predicted blocks, by the plan that is kept or by a new one."""
        if known.plan is not None and not self.counts:
            n_bytes = piece.encode(known.plan.plan, out)
            if n_bytes <= _GROWTH * known.plan.n_bytes:
                return n_bytes
            known.plan, known.varies = None, True
        plan = piece.plan()
        n_bytes = piece.encode(plan, out)
        if self.counts or not known.varies:
            known.plan, known.varies = _Plan(plan, n_bytes), False
        return n_bytes

    def _again(self, piece: PieceToEncode, known: _Known, tried: _Tried, out: np.ndarray) -> int:
        """Write a frame with predicted blocks, as in the trial, unless that does not pay any more."""
        values = piece.request.values
        prediction = tried.prediction.renewed(values.bits, values.dtype, rows_of(piece.shapes()))
        plan = tried.plan if prediction.choice.min() >= 0 else piece.plan()
        size = piece.encode(plan._replace(prediction=prediction), out)
        if size <= tried.usual:
            return size
        # The frame without predicted blocks may have grown as well. If not, it is taken until codebooks are new.
        frame, rounded = out[:size].copy(), None if piece.rounded is None else piece.rounded.copy()
        usual = self._by_plan(piece, known, out)
        if usual < size:
            known.tried = None
            return usual
        known.tried = tried._replace(usual=usual)
        out[:size] = frame
        if piece.rounded is not None:
            piece.rounded[:] = rounded
        return size

    def _try(self, piece: PieceToEncode, known: _Known, usual: int, out: np.ndarray) -> int:
        """Try prediction for a piece whose frame of ``usual`` bytes is in ``out``.

        Leaves the smaller frame in ``out``, and returns its size.
        """
        plan = plan_for(piece.request._replace(options=_CODING, shapes=piece.shapes()))
        if plan.prediction is None:
            return usual
        frame = np.empty(len(out), np.uint8)
        rounded = None if piece.rounded is None else np.empty_like(piece.rounded)
        size = piece._replace(rounded=rounded).encode(plan, frame)
        if size > (1 - _GAIN) * usual:
            return usual
        known.tried = _Tried(plan, plan.prediction, usual)
        out[:size] = frame[:size]
        if piece.rounded is not None and rounded is not None:
            piece.rounded[:] = rounded
        return size
