"""The exchange of outer gradients by a compressor, such as few bits or few values, which keeps back the rest.

Each rank has a residual: what it has not sent so far of its outer gradients. It is added to the next one, so that on
every rank contributions plus the residual are the sum of its outer gradients; with a lossless flush, nothing is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from typing import Any

import torch

from ..averaging.averager import NAMED_PLANS, Averager, CompressionPlan
from ..averaging.feedback import ErrorFeedback
from ..averaging.state import SHAPED
from ..compressors.codec_frames import Frames
from ..compressors.contract import Compressor, Memory, Request, wide
from ..errors import InvalidArgument, check_int
from .visible import Visible


def outer_plan(mode: Any) -> CompressionPlan | None:
    """Return the plan of a mode of DiLoCo that keeps a residual; None for all other modes.

    Args:
        mode: A compressor, which gets error feedback; a plan; "fp8", "int8" or "int4"; or anything else.

    Raises:
        InvalidArgument: A plan whose feedback is another one than error feedback.
    """
    if isinstance(mode, Visible):
        return CompressionPlan(mode, min_values=0, vectors=True)
    if isinstance(mode, Compressor):
        return CompressionPlan(mode)
    plan = NAMED_PLANS.get(mode) if isinstance(mode, str) else mode
    if not isinstance(plan, CompressionPlan):
        return None
    if not isinstance(plan.feedback, ErrorFeedback | None):
        raise InvalidArgument(
            f"mode must have ErrorFeedback() or no feedback for DiLoCo, whose outer optimizer has the momentum, not "
            f"{plan.feedback!r:.80}"
        )
    return plan


class OverlappedExchange:
    """An exchange that goes on while inner steps are taken, until its outer step is due.

    Args:
        numbers: Of the parameters that are exchanged.
        due: The inner step, counted from the training's beginning, that takes the outer step.
        wait: Waits for the averages and returns them; raises what the exchange raised.
    """

    def __init__(self, numbers: Sequence[int], due: int, wait: Callable[[], list[torch.Tensor]]) -> None:
        self.numbers, self.due = list(numbers), due
        self._wait: Callable[[], list[torch.Tensor]] = wait
        self._averages: list[torch.Tensor] | None = None

    def averages(self) -> list[torch.Tensor]:
        """Return the averages of the outer gradients, in the order of ``numbers``; waits for them the first time."""
        if self._averages is None:
            self._averages = self._wait()
        return self._averages

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`of_state` needs, the same on all ranks; waits for the averages."""
        averages = [average.clone() for average in self.averages()]
        return {"numbers": list(self.numbers), "due": self.due, "averages": averages}

    @classmethod
    def of_state(cls, state: Any, params: Sequence[torch.Tensor]) -> OverlappedExchange:
        """Return an exchange whose averages a :meth:`state_dict` holds.

        Args:
            params: The parameters.

        Raises:
            InvalidArgument: It is not one of these parameters.
        """
        state = state if isinstance(state, Mapping) else {}
        numbers, averages = state.get("numbers"), state.get("averages")
        if not isinstance(numbers, list) or not isinstance(averages, list) or len(numbers) != len(averages):
            raise InvalidArgument("the overlapped exchange must have the numbers of parameters and as many averages")
        last, kept = len(params) - 1, []
        for number, average in zip(numbers, averages, strict=True):
            param = params[check_int("the number of an average's parameter", number, 0, last)]
            if not torch.is_tensor(average) or (average.shape, average.dtype) != (param.shape, param.dtype):
                raise InvalidArgument(f"the average of parameter {number} must have that parameter's shape and type")
            kept.append(average.to(param.device, copy=True))
        return cls(numbers, check_int("due", state.get("due"), 1), lambda: kept)


class OuterExchange:
    """Averages outer gradients by a plan, step after step, and keeps the residuals.

    Args:
        plan: The compressor, and whether what it leaves out is fed back.
        size: The number of ranks.

    Attributes:
        averager: Holds the residuals, by the number of the parameter as a string.
        sent_values: Values sent by this rank in all steps that were not flushed.
        values: All values of these steps.
    """

    def __init__(self, plan: CompressionPlan, rank: int, size: int) -> None:
        self.averager = Averager(plan, rank, size)
        self.sent_values, self.values = 0, 0
        self._trial: tuple[Averager, bool] | None = None

    @property
    def share(self) -> float:
        """Values sent over all values, of the steps so far that were not flushed; NaN before the first."""
        return self.sent_values / self.values if self.values else math.nan

    def average(
        self, gradients: Mapping[int, torch.Tensor], params: Mapping[int, torch.Tensor], flush: bool
    ) -> Generator[Request, Any, list[torch.Tensor]]:
        """Return the conversation that averages outer gradients. Nothing is kept of it before :meth:`commit`.

        Args:
            gradients: This rank's outer gradients, by the numbers of their parameters.
            params: The parameters, likewise, as they were after the last outer step.
            flush: Send everything, the residuals included, as lossless frames.

        Returns:
            A generator of requests, which returns the averages, in the order of ``gradients``.
        """
        trial = copy(self.averager)  # a step that fails halfway has changed residuals of some tensors only
        trial.memories = {name: dict(memory) for name, memory in self.averager.memories.items()}
        trial.last = {}
        if flush:
            trial.plan = CompressionPlan(Frames(), trial.plan.feedback, min_values=0, vectors=True)
        averages = yield from trial.average(_named(gradients), _named(params))
        self._trial = trial, flush
        return [averages[str(number)] for number in gradients]

    def commit(self) -> None:
        """Keep the residuals of the step whose conversation has ended. After a flush compressors begin anew."""
        assert self._trial is not None
        (trial, flushed), self._trial = self._trial, None
        self.averager.memories = trial.memories
        if flushed:
            self.averager.memories = {
                name: {"residual": memory["residual"]}
                for name, memory in trial.memories.items()
                if "residual" in memory
            }
        else:
            self.values += sum(count.values for count in trial.last.values())
            self.sent_values += int(sum(count.floats for count in trial.last.values()))

    def state_dict(self) -> dict[str, Any] | None:
        """Return what this rank keeps of its outer gradients, for :meth:`load`; None if that is nothing."""
        state = self.averager.state_dict()
        tensors = {
            name: {key: value for key, value in memory.items() if key not in SHAPED or value.any()}
            for name, memory in state["tensors"].items()
        }
        tensors = {name: memory for name, memory in tensors.items() if memory}
        return {**state, "tensors": tensors} if tensors else None

    def load(self, state: Any, params: Sequence[torch.Tensor]) -> None:
        """Go on from a :meth:`state_dict`; residuals go where their parameters are.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            InvalidArgument: It is another rank's, or not of these parameters.
        """
        ours = self.averager.rank, self.averager.size
        theirs = (state.get("rank"), state.get("size")) if isinstance(state, dict) else None
        if theirs != ours:
            raise InvalidArgument(
                f"the residual must be that of rank and size {ours}, not {theirs}: every rank has its own; flush() "
                "before saving makes a state without one"
            )
        by_name = _named(dict(enumerate(params)))
        tensors = state.get("tensors", {})
        moved = {name: _placed(name, memory, by_name.get(name)) for name, memory in tensors.items()}
        self.averager.load_state_dict({**state, "tensors": moved})


def _named(tensors: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(number): tensor for number, tensor in tensors.items()}


def _placed(name: str, memory: Any, param: torch.Tensor | None) -> Memory:
    """Return what is kept of a parameter's outer gradients, its tensors on the parameter's device."""
    residual: Any = memory.get("residual") if isinstance(memory, dict) else torch.nan
    fits = residual is None or (torch.is_tensor(residual) and param is not None and residual.shape == param.shape)
    if param is None or not fits or (residual is not None and residual.dtype != wide(param.dtype)):
        raise InvalidArgument(f"the residual of parameter {name} must have that parameter's shape and type")
    return {key: value.to(param.device) if torch.is_tensor(value) else value for key, value in memory.items()}
