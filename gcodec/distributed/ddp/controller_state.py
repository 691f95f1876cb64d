"""The DDP hook's state for controllers: settings that change in training, decided from what all ranks have.

A controller that decides between steps (Accordion, L-GreCo) needs nothing of the whole until a step ends, so each of
its buckets is averaged as soon as it is there, beside the rest of the backward pass. One that decides within a step
(GraVAC) looks at all gradients before any is sent: its buckets are held until the last one is there.
"""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ...adaptive import Adaptive, Controller, Planner
from ...adaptive.driver import load_packed_state, packed_state
from ...averaging.averager import Averager, CompressionPlan
from ...compressors import Compressor, Frames, alone
from ...errors import InvalidArgument, PeerError, check_flag
from ..conversation import ConversationRunner
from ..reduction.allreduce import dense_allreduce
from ..reduction.gpu_jobs import side_stream_job
from ..reduction.reduce_request import TYPES
from ..stats import Counters, moved_bytes
from ..transport.jobs import Future, LaneJob
from ..transport.lane import Lane
from .compressor_state import Averages, CompressedGradients, trial_gradient

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class HeldBucket(NamedTuple):
    """A bucket that waits for the last one of its step.

    Attributes:
        number: DDP's index of it.
        buffer: Its memory.
        gradients: The gradients in it, by the parameters' names; none where Gloo reduces it.
        counters: Its counters.
        future: What DDP waits for.
    """

    number: int
    buffer: torch.Tensor
    gradients: dict[str, torch.Tensor]
    counters: Counters
    future: Future


class AdaptiveGradients(CompressedGradients):
    """State of the DDP hook that averages gradients with a compressor whose settings a controller chooses.

        state = gcodec.distributed.AdaptiveGradients(ddp, TopK(0.1), GraVAC(TopK(0.1)), optimizer=optimizer)
        ddp.register_comm_hook(state, gcodec.distributed.hook)

    All ranks make the same decisions at the same steps. Which gradients there are, and their shapes, must not change
    from step to step.

    Args:
        model: As for :class:`CompressedGradients`.
        plan: As for :class:`CompressedGradients`. Its compressor is used where the controller sets none, its feedback
            always.
        controller: The controller, newly made.
        optimizer: The optimizer that will take the step. The controller hears the learning rate of its first parameter
            group at every step.
        samples: Samples of a step on this rank, for throughputs. The attribute may be changed.
        overlap: Average each bucket as soon as it is there, if the controller can do without the others. False: all
            buckets at the end of the step, in the order of the model's parameters, with the same bits.
        group: DDP's process group; default that of ``model``, if it is DDP's module, else the world.
        timeout: Time after which a silent rank is an error; default the group's own.

    Attributes:
        adaptive: The :class:`~gcodec.adaptive.Adaptive` at work.

    Raises:
        InvalidArgument: torch.distributed is not initialized, or an argument has another type or value.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: CompressionPlan | Compressor | str,
        controller: Controller,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        samples: float = 1.0,
        overlap: bool = True,
        group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if not isinstance(controller, Controller):
            raise InvalidArgument(
                f"controller must be a Controller, such as GraVAC(TopK(0.1)), not a {type(controller).__name__}"
            )
        check_flag("overlap", overlap)
        super().__init__(model, plan, optimizer=optimizer, group=group, timeout=timeout)
        self.optimizer, self.samples, self.overlap = optimizer, samples, overlap
        self.adaptive = Adaptive(self.averager, controller)
        self._held: list[HeldBucket] = []
        self._rate: float | None = None
        self._in_parts = False
        _warm(controller, self.plan, self._params)

    @property
    def controller(self) -> Controller:
        """The controller at work."""
        return self.adaptive.controller

    def _options(self) -> dict[str, object]:
        return {**super()._options(), "controller": repr(self.controller), "overlap": self.overlap}

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the averaging of a bucket, or hold it, and return the future of its average. The hook calls it."""
        buffer, lane = bucket.buffer(), self._lane_for(bucket)
        first, last = self._arrive(bucket)
        if first:
            self._begin()
        if self._in_parts:
            return self._start(bucket, lane, last)
        future, counters = Future([] if buffer.is_cpu else [buffer.device]), Counters.of(moved_bytes(buffer), lane.size)
        held = HeldBucket(bucket.index(), buffer, self._gradients(bucket), counters, future)
        self._held.append(held)
        if last:
            lane.submit(self._job_of_all(lane))
        return held.future.get_future()

    def _begin(self) -> None:
        """Begin a step, when its first bucket arrives."""
        for held in self._held:  # of a backward pass that ended in an error
            held.future.complete(None, PeerError("this backward pass has not come to its end"))
        self._held = []
        self._rate = None if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"])
        self._in_parts = self.overlap and self.adaptive.in_parts
        if self._in_parts:
            self.adaptive.begin(self._rate)

    def _conversation(self, gradients: dict[str, torch.Tensor], last: bool) -> Averages | None:
        return self._part(gradients, last) if gradients or last else None

    def _part(self, gradients: dict[str, torch.Tensor], last: bool) -> Averages:
        averages = yield from self.adaptive.part(gradients, self._params, in_place=True)
        if last:
            yield from self.adaptive.end(self.samples)
        return averages

    def _terms(self, gradients: dict[str, torch.Tensor]) -> tuple[object, ...]:
        shown: object = [(name, tuple(x.shape), str(x.dtype)) for name, x in gradients.items()]
        if self._in_parts:  # settings are known; else the step's own choices are still in there
            shown = super()._terms(gradients)
        return "adaptive", shown, self.plan.terms, repr(self.controller), self.adaptive.step, self._rate

    def _job_of_all(self, lane: Lane) -> LaneJob:
        """Return the job that averages all buckets of a step in one conversation, counted as the last bucket's."""
        step, self._held = self._held, []
        by_bucket = {name: gradient for held in step for name, gradient in held.gradients.items()}
        gradients = {name: by_bucket[name] for name in self._params if name in by_bucket}
        runner = ConversationRunner(lane, self._terms(gradients), step[-1].counters, f"step {self._stats.steps}")
        conversation = self.adaptive.average(
            gradients, self._params, rate=self._rate, samples=self.samples, in_place=True
        )

        def average_step() -> None:
            for held in step:
                if not held.gradients:
                    dense_allreduce(lane, held.buffer, True, held.counters)
            runner.run(conversation)
            for held in step:
                self._count(lane, held.number, held.counters, held is step[-1])

        return _for_all(step, side_stream_job([held.buffer for held in step], average_step, runner.abort))

    def _packed(self) -> dict[str, Any]:
        return packed_state(self.adaptive, self._params)

    def _unpack(self, packed: dict[str, Any]) -> None:
        load_packed_state(self.adaptive, packed, self._params)


def _for_all(step: list[HeldBucket], job: LaneJob) -> LaneJob:
    """Return the job that completes all buckets of a step when it ends, with a result or an error."""

    def complete_all(error: BaseException | None) -> None:
        for held in step:
            held.future.complete(held.buffer, error)

    def run_and_complete() -> None:
        try:
            job.run()
        except BaseException as error:
            complete_all(error)
            raise
        complete_all(None)

    def abort_and_complete(error: BaseException) -> None:
        complete_all(PeerError(f"an earlier all-reduce of this group has failed: {error}"))
        if job.abort is not None:
            job.abort(error)

    return LaneJob(run_and_complete, abort_and_complete, job.devices, job.place)


def _warm(controller: Controller, plan: CompressionPlan, params: dict[str, torch.nn.Parameter]) -> None:
    """Compile what the controller needs, on a small tensor of each type, before other ranks wait for this one."""
    if isinstance(plan.compressor, Frames) and plan.compressor.optimizer is not None:
        return
    names = {param.dtype: name for name, param in params.items() if plan.compresses(param) and param.dtype in TYPES}
    for dtype, name in names.items():
        trial = copy.deepcopy(controller)
        gradient = {name: trial_gradient(dtype)}
        alone(Adaptive(Averager(CompressionPlan(plan.compressor, None, min_values=0)), trial).average(gradient))
        if isinstance(trial, Planner):
            trial.decide(gradient)
