"""The average of many gradients over ranks: which tensor is compressed how, and what is kept of each.

One rank's side. Like a compressor's, its work is a conversation, so that it runs in one process (``simulate``) as well
as on real ranks (``distributed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..compressors.batching import batch_conversations
from ..compressors.casts import Dense
from ..compressors.contract import (
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    Request,
    check_gradient,
    check_whole,
)
from ..compressors.outcome import is_finite
from ..errors import InvalidArgument
from .feedback import Carried, ErrorFeedback, Feedback


@dataclass(frozen=True)
class CompressionPlan:
    """A compressor, what is done around it, and which tensors it is for.

    Small tensors and vectors are sent dense: they are a thousandth of a model, and biases and norms suffer most.

    Attributes:
        compressor: Of the tensors that are not sent dense.
        feedback: Carries what is left out to the next step; None: it is lost.
        smallest: Tensors of fewer values are sent dense.
        vectors: Compress tensors of one dimension, too.
    """

    compressor: Compressor
    feedback: Feedback | None = ErrorFeedback()  # noqa: RUF009 - frozen
    smallest: int = 1024
    vectors: bool = False

    def __post_init__(self) -> None:
        check_whole("smallest", self.smallest, 0)

    @property
    def terms(self) -> str:
        """The plan as ranks compare it. It begins with "Plan" whatever the class is called, so that releases agree."""
        return (
            f"Plan(compressor={self.compressor!r}, feedback={self.feedback!r}, smallest={self.smallest!r}, "
            f"vectors={self.vectors!r})"
        )

    def compresses(self, gradient: torch.Tensor) -> bool:
        """Tell whether a gradient is compressed, rather than sent dense."""
        return gradient.numel() >= self.smallest and (self.vectors or gradient.dim() > 1)


@dataclass
class Count:
    """Counts of what some averages took on one rank.

    Attributes:
        tensors: Tensors averaged.
        dropped: Tensors whose average was not finite, so that residuals stayed as they were.
        values: Values of all tensors.
        raw_bytes: Bytes of these values.
        floats: Floats sent, as papers count them, without indices.
        payload_bytes: Bytes handed over (``batching.Sent``).
    """

    tensors: int = 0
    dropped: int = 0
    values: int = 0
    raw_bytes: int = 0
    floats: float = 0.0
    payload_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Bytes before over bytes after."""
        return self.raw_bytes / self.payload_bytes if self.payload_bytes else math.nan

    @property
    def float_ratio(self) -> float:
        """Values over floats sent: the compression factor of papers."""
        return self.values / self.floats if self.floats else math.nan

    def add(self, other: Count) -> None:
        """Add another's counts."""
        own = vars(self)
        for name, value in vars(other).items():
            own[name] += value


_DENSE = Dense()

Watch = Callable[[str, torch.Tensor, Outcome], None]


_SOME = 1024  #: values of which one is not zero, as a rule, where any is


def _is_zero(gradient: torch.Tensor) -> bool:
    flat = gradient.reshape(-1)
    return not (flat[:_SOME].any() or flat.any())


class Averager:
    """Averages the gradients of a model on one rank, step after step; everything is known by a tensor's name.

    ``compressors``: settings of single tensors, in place of the plan's; changed between steps, on all ranks alike.
    ``watch``: called with every name, what was compressed (in memory that is used again), and its outcome.
    ``skips_zeros``: where a gradient is zero as a whole on this rank, nothing that is kept of it is sent, but waits.
    ``total``: counts of all steps; ``last``: of each tensor's last step.
    """

    def __init__(self, plan: CompressionPlan, rank: int = 0, size: int = 1) -> None:
        self.plan, self.rank, self.size = plan, rank, size
        self.compressors: dict[str, Compressor] = {}
        self.memories: dict[str, Memory] = {}
        self.watch: Watch | None = None
        self.skips_zeros = False
        self.total, self.last = Count(), dict[str, Count]()

    def compressor_of(self, name: str, gradient: torch.Tensor) -> Compressor:
        """Return the compressor of a tensor."""
        if not self.plan.compresses(gradient):
            return _DENSE
        return self.compressors.get(name, self.plan.compressor)

    def feedback_of(self, gradient: torch.Tensor) -> Feedback | None:
        """Return what carries earlier steps' residuals into this gradient; None for nothing."""
        return None if self.skips_zeros and _is_zero(gradient) else self.plan.feedback

    def average(
        self,
        gradients: Mapping[str, torch.Tensor],
        params: Mapping[str, torch.Tensor] | None = None,
        in_place: bool = False,
    ) -> Generator[Request, Any, dict[str, torch.Tensor]]:
        """Return the conversation about some tensors, which returns their averages by name.

        Args:
            gradients: By name: the same names in the same order on all ranks.
            params: The parameters whose gradients these are, for compressors that look at them.
            in_place: Write averages into the gradients' memory.
        """
        sent = yield from batch_conversations(
            [self._one(name, x, (params or {}).get(name), in_place) for name, x in gradients.items()], self.rank
        )
        for name, one in zip(gradients, sent, strict=True):
            self.last[name].payload_bytes = one.payload_bytes
            self.total.add(self.last[name])
        if in_place:
            return dict(gradients)
        return {name: one.outcome.average for name, one in zip(gradients, sent, strict=True)}

    def _one(self, name: str, gradient: torch.Tensor, param: torch.Tensor | None, in_place: bool) -> Conversation:
        check_gradient(gradient)
        gradient = gradient.detach()
        place, memory = Place(self.rank, self.size, name, param), self.memories.setdefault(name, {})
        compressor, feedback = self.compressor_of(name, gradient), self.feedback_of(gradient)
        carried = Carried(gradient) if feedback is None else feedback.before(gradient, memory, place, in_place)
        shown = carried.corrected.to(gradient.dtype)
        if not (compressor.carries_nan or is_finite(shown)):
            shown = torch.full_like(shown, math.nan)  # so that the average of no rank is finite, whatever is left out
        outcome = yield from compressor.compress(shown, memory, place)
        if self.watch is not None:
            self.watch(name, carried.corrected, outcome)
        finite = outcome.finite
        if feedback is not None and finite:
            feedback.after(carried, outcome, memory)
        if in_place:
            outcome.put_into(gradient)
        n = gradient.numel()
        self.last[name] = Count(1, not finite, n, n * gradient.element_size(), outcome.floats)
        return outcome

    def residual(self, name: str) -> torch.Tensor | None:
        """Return the residual of a tensor, what was left out of its gradients so far; None for nothing."""
        return self.memories.get(name, {}).get("residual")

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, between steps: tensors, numbers and strings.

        Settings are not in it: they come with the program, or with what changes them.
        """
        kept = {name: _copy(memory) for name, memory in self.memories.items() if memory}
        return {"version": 1, "rank": self.rank, "size": self.size, "tensors": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, bit for bit. Raises InvalidArgument for another version's, or another rank's."""
        identity = tuple(state.get(key) for key in ("version", "rank", "size"))
        if identity != (1, self.rank, self.size):
            raise InvalidArgument(
                f"state must be of version, rank and size {(1, self.rank, self.size)}, not {identity}"
            )
        self.memories = {name: _copy(memory) for name, memory in state["tensors"].items()}


def _copy(memory: Mapping[str, Any]) -> Memory:
    return {key: value.clone() if torch.is_tensor(value) else value for key, value in memory.items()}
