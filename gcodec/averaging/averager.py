"""The average of many gradients over ranks: how each tensor is compressed, and what is kept of it.

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
from ..compressors.blockwise import Blockwise
from ..compressors.casts import Dense
from ..compressors.codec_frames import Frames
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
from ..errors import InvalidArgument, check_field_types, check_state
from .feedback import Carried, ErrorFeedback, Feedback, narrowed
from .state import SHAPED


@dataclass(frozen=True)
class CompressionPlan:
    """A compressor, what is done around it, and which tensors it is for.

    Small tensors and vectors are sent dense: they are a thousandth of a model, and biases and norms suffer most.

    Attributes:
        compressor: The compressor of the tensors that are not sent dense.
        feedback: Carries what is left out to the next step; None to drop it.
        min_values: Tensors of fewer values are sent dense.
        vectors: Compress tensors of one dimension, too.

    Raises:
        InvalidArgument: An argument is of another type or out of its range, or the compressor must have no feedback.
    """

    compressor: Compressor
    feedback: Feedback | None = ErrorFeedback()  # noqa: RUF009 - frozen
    min_values: int = 1024
    vectors: bool = False

    def __post_init__(self) -> None:
        check_field_types(self)
        check_whole("min_values", self.min_values, 0)
        if self.feedback is not None:
            self.compressor.check_feedback()

    @property
    def terms(self) -> str:
        """The plan as ranks compare it. It begins with "Plan" whatever the class is called, so that releases agree."""
        return (
            f"Plan(compressor={self.compressor!r}, feedback={self.feedback!r}, min_values={self.min_values!r}, "
            f"vectors={self.vectors!r})"
        )

    def compresses(self, gradient: torch.Tensor) -> bool:
        """Tell whether a gradient is compressed, rather than sent dense."""
        return gradient.numel() >= self.min_values and (self.vectors or gradient.dim() > 1)


#: Plans that users name by an accuracy. "fp8": as many mantissa bits as float8_e5m2, the 8-bit type for gradients.
NAMED_PLANS = {
    "fp8": CompressionPlan(Frames(2)),
    "int8": CompressionPlan(Blockwise(8)),
    "int4": CompressionPlan(Blockwise(4)),
}


def compression_plan(plan: CompressionPlan | Compressor | str) -> CompressionPlan:
    """Return a plan, given itself, by its compressor, which gets error feedback, or by an accuracy in a user's words.

    With the accuracy "fp8" a value keeps the sign, all exponents of its type and 2 mantissa bits; with "int8" and
    "int4" it becomes an integer of so many bits, and every 128 values share a scale. What rounding has taken from it is
    added to a later gradient.

    Args:
        plan: A plan, a compressor, or an accuracy.

    Raises:
        InvalidArgument: Anything else.
    """
    if isinstance(plan, CompressionPlan):
        return plan
    if isinstance(plan, Compressor):
        return CompressionPlan(plan)
    named = NAMED_PLANS.get(str(plan))
    if named is None:
        raise InvalidArgument(
            f"plan must be a compressor, such as PowerSGD(4), a CompressionPlan, or one of "
            f"{', '.join(map(repr, NAMED_PLANS))}, not {plan!r:.80}"
        )
    return named


@dataclass
class Count:
    """Counts of what averages took on one rank.

    Attributes:
        tensors: Tensors averaged.
        dropped: Tensors whose average was not finite, so that residuals stayed as they were.
        values: Values of all tensors.
        raw_bytes: Bytes of these values.
        floats: Floats sent, as papers count them, without indices.
        payload_bytes: Bytes handed to the network, without headers (``batching.Sent``).
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
        """Add the counts of another object to those of this one."""
        counts = vars(self)
        for name, value in vars(other).items():
            counts[name] += value


_DENSE = Dense()
_PROBED = 1024  #: values that are looked at before all of a tensor is

Watch = Callable[[str, torch.Tensor, Outcome], None]


def _is_zero(gradient: torch.Tensor) -> bool:
    flat = gradient.reshape(-1)
    # Where any value is not zero, one of the first ones is, as a rule: the whole tensor is rarely read.
    return not (flat[:_PROBED].any() or flat.any())


class Averager:
    """Averages the gradients of a model on one rank, step after step. Tensors are told apart by their names.

    Args:
        plan: Which tensors are compressed, by what, and what is kept of them.
        rank: This rank.
        size: The number of ranks.

    Attributes:
        compressors: Compressors of single tensors by name, in place of the plan's; changed between steps, on all ranks
            alike.
        memories: What is kept of each tensor, by name.
        watch: Called with every name, what was compressed (in memory that is used again), and its outcome.
        skips_zeros: True if residuals are not added to gradients that are zero as a whole, but wait for a later step.
        total: Counts of all steps.
        last: Counts of each tensor's last step, by name.
    """

    def __init__(self, plan: CompressionPlan, rank: int = 0, size: int = 1) -> None:
        self.plan, self.rank, self.size = plan, rank, size
        self.compressors: dict[str, Compressor] = {}
        self.memories: dict[str, Memory] = {}
        self.watch: Watch | None = None
        self.skips_zeros = False
        self.total, self.last = Count(), dict[str, Count]()

    def compressor_of(self, name: str, gradient: torch.Tensor) -> Compressor:
        """Return the compressor of a tensor, by its name and its gradient."""
        if not self.plan.compresses(gradient):
            return _DENSE
        return self.compressors.get(name, self.plan.compressor)

    def feedback_of(self, gradient: torch.Tensor) -> Feedback | None:
        """Return the feedback that adds earlier steps' residuals to this gradient, or None if none does."""
        return None if self.skips_zeros and _is_zero(gradient) else self.plan.feedback

    def average(
        self,
        gradients: Mapping[str, torch.Tensor],
        params: Mapping[str, torch.Tensor] | None = None,
        in_place: bool = False,
    ) -> Generator[Request, Any, dict[str, torch.Tensor]]:
        """Return the conversation that averages gradients.

        The conversations about all tensors run side by side, so that they share messages.

        Args:
            gradients: Gradients by name: the same names in the same order on all ranks.
            params: The parameters whose gradients these are, by name, for compressors that look at them.
            in_place: Write averages into the gradients' memory.

        Returns:
            A generator of requests, which returns the averages by name.
        """
        conversations = [
            self._average_tensor(name, gradient, (params or {}).get(name), in_place)
            for name, gradient in gradients.items()
        ]
        sent = yield from batch_conversations(conversations, self.rank)
        for name, result in zip(gradients, sent, strict=True):
            self.last[name].payload_bytes = result.payload_bytes
            self.total.add(self.last[name])
        if in_place:
            return dict(gradients)
        return {name: result.outcome.average for name, result in zip(gradients, sent, strict=True)}

    def _average_tensor(
        self, name: str, gradient: torch.Tensor, param: torch.Tensor | None, in_place: bool
    ) -> Conversation:
        """Return the conversation about one tensor: feedback, compressor, feedback."""
        check_gradient(gradient, name)
        gradient = gradient.detach()
        place, memory = Place(self.rank, self.size, name, param), self.memories.setdefault(name, {})
        for key in SHAPED & memory.keys():  # others might be broadcast
            if memory[key].shape != gradient.shape:
                raise InvalidArgument(
                    f"gradient of {name!r} must have shape {tuple(memory[key].shape)}, as the {key} that earlier steps "
                    f"have left of it, not {tuple(gradient.shape)}"
                )
        compressor, feedback = self.compressor_of(name, gradient), self.feedback_of(gradient)
        carried = Carried(gradient) if feedback is None else feedback.before(gradient, memory, place, in_place)
        narrow = narrowed(carried.corrected, gradient.dtype)
        # A compressor may leave out the value that is not finite: make all of them so, and the average on every rank.
        if not (compressor.carries_nan or is_finite(narrow)):
            narrow = torch.full_like(narrow, math.nan)
        outcome = yield from compressor.compress(narrow, memory, place)
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
        """Return the residual of a tensor, the sum of what was left out of its gradients so far, or None for none."""
        return self.memories.get(name, {}).get("residual")

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank's checkpoint needs, between steps: tensors, numbers and strings.

        Settings are not in it: they come with the program, or with what changes them.
        """
        tensors = {name: _copy(memory) for name, memory in self.memories.items() if memory}
        return {"version": 1, "rank": self.rank, "size": self.size, "tensors": tensors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`, bit for bit. Raises InvalidArgument for anything else, or another rank's."""
        check_state(state)
        if state.get("version") != 1:
            raise InvalidArgument(f"state must be of version 1, not {state.get('version')}")
        rank, size = state.get("rank"), state.get("size")
        if (rank, size) != (self.rank, self.size):
            raise InvalidArgument(
                f"state must be that of rank {self.rank} of {self.size}, not of rank {rank} of {size}: it holds what "
                "one rank has not sent yet. For another number of ranks load none, and go on without that"
            )
        tensors = state.get("tensors")
        if not isinstance(tensors, Mapping) or not all(isinstance(memory, Mapping) for memory in tensors.values()):
            raise InvalidArgument(f"state['tensors'] must be a dictionary for each tensor, not {tensors!r:.80}")
        for name, memory in tensors.items():
            for key in SHAPED & memory.keys():
                if not torch.is_tensor(memory[key]):
                    raise InvalidArgument(f"the {key} of {name!r} must be a tensor, not a {type(memory[key]).__name__}")
        self.memories = {name: _copy(memory) for name, memory in tensors.items()}


def _copy(memory: Mapping[str, Any]) -> Memory:
    return {key: value.clone() if torch.is_tensor(value) else value for key, value in memory.items()}
