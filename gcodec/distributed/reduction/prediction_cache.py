"""A cache of which pieces of a buffer are smaller with predicted blocks, as rows of an embedding's gradient are.

Finding that out takes several times as long as encoding with codebooks that are there. So it is tried twice for every
set of shared codebooks, by encoding a piece both ways; from then on only templates are made anew (docs/format.md
section 8), while which blocks are predicted, and with what codes, stays as it was. Frames with predicted blocks carry
all that decoding needs, so each rank decides for itself. Predicted blocks keep all bits of their values, in modes that
round others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from ...frame.encode import encode_values, plan_for
from ...options import EncoderOptions
from ...plan.plan import FramePlan
from ...plan.prediction import Prediction, rows_of
from ...plan.request import EncodeRequest

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
        encode_usual: Writes the frame without prediction, and returns its size in bytes.
        rounded: Takes what decoding will return, uintW[n]; None if nobody asks.
    """

    key: Hashable
    request: EncodeRequest
    shapes: Callable[[], Sequence[Sequence[int]]]
    plan: Callable[[], FramePlan]
    encode_usual: Callable[[], int]
    rounded: np.ndarray | None = None

    def encode(self, plan: FramePlan, out: np.ndarray) -> int:
        """Write a frame, and return its size in bytes.

        Args:
            plan: the plan of the frame.
            out: takes the frame, at its start, uint8.
        """
        return len(encode_values(self.request, plan, out, self.rounded))


class _Tried(NamedTuple):
    """A trial in which prediction paid.

    Attributes:
        plan: plan of the frame with predicted blocks.
        prediction: which blocks are predicted.
        usual: bytes of the frame without predicted blocks, when it was last made.
    """

    plan: FramePlan
    prediction: Prediction
    usual: int


class PredictionCache:
    """Encodes pieces, and remembers what came of trials as long as the shared codebooks hold."""

    def __init__(self) -> None:
        self._tried: dict[Hashable, _Tried | None] = {}
        self._steps: dict[Hashable, int] = {}

    def forget(self) -> None:
        """Forget all trials, when the codebooks are new."""
        self._tried.clear()
        self._steps.clear()

    def encode(self, piece: PieceToEncode, out: np.ndarray) -> int:
        """Write a frame, and return its size in bytes.

        Args:
            piece: the values.
            out: takes the frame, at its start, uint8.
        """
        if len(self._steps) >= _MAX_PIECES:
            self.forget()
        step = 0 if piece.request.fixed is None else self._steps.get(piece.key, 0) + 1
        self._steps[piece.key] = step
        tried = self._tried.get(piece.key)
        if tried is not None:
            return self._again(piece, tried, out)
        size = piece.encode_usual()
        return self._try(piece, size, out) if step in _TRIED_AT else size

    def _again(self, piece: PieceToEncode, tried: _Tried, out: np.ndarray) -> int:
        values = piece.request.values
        prediction = tried.prediction.renewed(values.bits, values.dtype, rows_of(piece.shapes()))
        plan = tried.plan if prediction.choice.min() >= 0 else piece.plan()
        size = piece.encode(plan._replace(prediction=prediction), out)
        if size <= tried.usual:
            return size
        # The frame without predicted blocks may have grown as well. If not, it is taken until codebooks are new.
        frame, rounded = out[:size].copy(), None if piece.rounded is None else piece.rounded.copy()
        usual = piece.encode_usual()
        if usual < size:
            self._tried[piece.key] = None
            return usual
        self._tried[piece.key] = tried._replace(usual=usual)
        out[:size] = frame
        if piece.rounded is not None:
            piece.rounded[:] = rounded
        return size

    def _try(self, piece: PieceToEncode, usual: int, out: np.ndarray) -> int:
        """Try prediction for a piece whose frame of ``usual`` bytes is in ``out``.

        Leaves the smaller frame in ``out``, and returns its size.
        """
        self._tried[piece.key] = None
        plan = plan_for(piece.request._replace(options=_CODING, shapes=piece.shapes()))
        if plan.prediction is None:
            return usual
        frame = np.empty(len(out), np.uint8)
        rounded = None if piece.rounded is None else np.empty_like(piece.rounded)
        size = piece._replace(rounded=rounded).encode(plan, frame)
        if size > (1 - _GAIN) * usual:
            return usual
        self._tried[piece.key] = _Tried(plan, plan.prediction, usual)
        out[:size] = frame[:size]
        if piece.rounded is not None and rounded is not None:
            piece.rounded[:] = rounded
        return size
