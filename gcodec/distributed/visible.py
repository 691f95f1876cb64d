"""The part of an outer update that the next forward pass in a narrow type would see, and the exchange of only that.

Miahi and Belilovsky, "Understanding and Exploiting Weight Update Sparsity for Communication-Efficient Distributed RL"
(2026), call it compute-visible sparsification, and its use in DiLoCo PULSELoCo.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..averaging.averager import Averager, CompressionPlan
from ..codec import warmup
from ..compressors.codec_frames import Frames
from ..compressors.contract import Compressor, Conversation, Memory, Place, Request, check_whole
from ..compressors.sparse import gather_sparse, pack_sparse, unpack_sparse
from ..errors import InvalidArgument

_VIEWS = (torch.bfloat16, torch.float16)
_TYPES = (torch.float32, torch.float64)  #: of parameters, which must be wider than what is seen of them


@dataclass(frozen=True)
class Visible(Compressor):
    """The mode of DiLoCo that sends only the values of an outer gradient that the next forward pass would see.

    A value p is sent if the parameter has another value in the type ``view`` with it than without it, view(w - p) !=
    view(w), where w is the parameter after the last outer step. All else stays in this rank's residual, which is added
    to its next outer gradient: what was sent plus the residual is the sum of the outer gradients, to rounding. NaN and
    infinity are always sent.

    Attributes:
        view: the type in which the forward pass reads parameters, ``torch.bfloat16`` or ``torch.float16``. The
            parameters themselves must be float32 or float64.
        mantissa_bits: mantissa bits that are sent of each value, at least 1; None for all. The residual keeps what this
            rounds away, too.

    Raises:
        InvalidArgument: an attribute has another type or value.
    """

    carries_nan: ClassVar[bool] = True
    view: torch.dtype = torch.bfloat16
    mantissa_bits: int | None = None

    def __post_init__(self) -> None:
        if self.view not in _VIEWS:
            raise InvalidArgument(f"view must be torch.bfloat16 or torch.float16, not {self.view!r:.80}")
        if self.mantissa_bits is not None:
            check_whole("mantissa_bits", self.mantissa_bits)

    @property
    def terms(self) -> tuple[Any, ...]:
        """The facts of this mode that must be equal on all ranks."""
        return ("visible", str(self.view), self.mantissa_bits)

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        if place.param is None:
            raise InvalidArgument(f"place.param must be the parameter whose update {place.name!r} is, not None")
        flat, param = gradient.reshape(-1), place.param.detach().reshape(-1)
        indices = torch.nonzero((param - flat).to(self.view) != param.to(self.view)).view(-1)
        return (yield from gather_sparse(gradient, pack_sparse(flat, indices, self.mantissa_bits), place))

    def floats(self, shape: Sequence[int]) -> float:
        return math.prod(shape)  # at most; how many it is depends on the values

    def prepare(self, params: Sequence[torch.Tensor]) -> None:
        """Check the types of parameters, and compile what their exchange needs.

        Raises:
            InvalidArgument: a parameter is neither float32 nor float64.
        """
        for dtype in dict.fromkeys(param.dtype for param in params):
            if dtype not in _TYPES:
                raise InvalidArgument(
                    f"parameters must be float32 or float64 for Visible(), not {dtype}: it keeps back what a narrower "
                    "type does not show"
                )
            warmup([str(dtype).removeprefix("torch.")])
            values = torch.linspace(1, 2, 1000, dtype=dtype, device="cpu")
            where = torch.arange(0, 1000, 7, device="cpu")
            unpack_sparse(pack_sparse(values, where, self.mantissa_bits), values)


class VisibleExchange:
    """Averages the visible part of outer gradients, step after step, and keeps the residual.

    Args:
        mode: what is visible.
        rank: this rank.
        size: the number of ranks.

    Attributes:
        averager: holds the residuals, by the number of the parameter as a string.
        seen_values: values sent by this rank in all steps that were not flushed.
        values: all values of these steps.
    """

    def __init__(self, mode: Visible, rank: int, size: int) -> None:
        self.averager = Averager(CompressionPlan(mode, smallest=0, vectors=True), rank, size)
        self.seen_values, self.values = 0, 0
        self._trial: tuple[Averager, bool] | None = None

    @property
    def share(self) -> float:
        """Values sent over all values, of the steps so far that were not flushed; NaN before the first."""
        return self.seen_values / self.values if self.values else math.nan

    def average(
        self, gradients: Sequence[torch.Tensor], params: Sequence[torch.Tensor], flush: bool
    ) -> Generator[Request, Any, list[torch.Tensor]]:
        """Return the conversation that averages outer gradients. Nothing is kept of it before :meth:`commit`.

        Args:
            gradients: this rank's outer gradients.
            params: the parameters, as they were after the last outer step.
            flush: send everything, the residuals included, as lossless frames.

        Returns:
            A generator of requests, which returns the averages.
        """
        trial = copy(self.averager)  # a step that fails halfway has changed residuals of some tensors only
        trial.memories = {name: dict(memory) for name, memory in self.averager.memories.items()}
        names = [str(number) for number in range(len(gradients))]
        trial.compressors = dict.fromkeys(names, Frames()) if flush else {}
        named = dict(zip(names, gradients, strict=True))
        averages = yield from trial.average(named, dict(zip(names, params, strict=True)))
        self._trial = trial, flush
        return [averages[name] for name in names]

    def commit(self) -> None:
        """Keep the residuals of the step whose conversation has ended."""
        assert self._trial is not None
        (trial, flushed), self._trial = self._trial, None
        self.averager.memories = trial.memories
        if not flushed:
            self.values += sum(count.values for count in trial.last.values())
            self.seen_values += int(sum(count.floats for count in trial.last.values()))

    def load_residual(self, state: Any, params: Sequence[torch.Tensor]) -> None:
        """Go on from the state of an averager; residuals go where their parameters are.

        Args:
            state: what ``averager.state_dict()`` returned.
            params: the parameters.

        Raises:
            InvalidArgument: it is another rank's, or not of these parameters.
        """
        ours = self.averager.rank, self.averager.size
        theirs = (state.get("rank"), state.get("size")) if isinstance(state, dict) else None
        if theirs != ours:
            raise InvalidArgument(
                f"the residual must be that of rank and size {ours}, not {theirs}: every rank has its own; flush() "
                "before saving makes a state without one"
            )
        by_name = {str(number): param for number, param in enumerate(params)}
        moved = {}
        for name, memory in state.get("tensors", {}).items():
            residual: Any = memory.get("residual") if isinstance(memory, dict) else None
            param: Any = by_name.get(name)
            fits = torch.is_tensor(residual) and param is not None and residual.shape == param.shape
            if not fits or residual.dtype != param.dtype:
                raise InvalidArgument(f"the residual of parameter {name} must have that parameter's shape and type")
            moved[name] = {**memory, "residual": residual.to(param.device)}
        self.averager.load_state_dict({**state, "tensors": moved})


def drop_zeros(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an averager without the residuals that are zero as a whole, as after a flush."""
    tensors = {name: memory for name, memory in state["tensors"].items() if "residual" in memory}
    tensors = {name: memory for name, memory in tensors.items() if memory["residual"].any()}
    return {**state, "tensors": tensors}
