"""DiLoCo: ranks train alone, and now and then average how far they came.

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models" (2023), Algorithm 1. What ranks
exchange is an outer gradient: where all of them stood after the last exchange, minus where this one stands now. An
outer optimizer, Nesterov's momentum in the paper, takes a step from there with the average of these.

Parts that take turns, and exchanges that go on during the inner steps behind them: Douillard et al., "Streaming DiLoCo
with Overlapping Communication" (2025).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..averaging.averager import NAMED_PLANS, CompressionPlan
from ..compressors.contract import Compressor
from ..errors import (
    GcodecError,
    InvalidArgument,
    Unsupported,
    check_int,
    check_optional_int,
    check_state,
    naming_damaged_state,
)
from ..threads import threads_per_rank
from ..truncation.optimizers import check_takes_averages
from .conversation import ConversationRunner
from .ddp.compressor_state import small_tensor_reason, warm_compressor
from .gradients import Gradients
from .modes import Lossless, Mode, NearLossless, mode_of, option_of
from .outer_exchange import OuterExchange, OverlappedExchange, outer_plan
from .reduction.allreduce import MIN_BYTES, allreduce_job, dense_allreduce
from .reduction.gpu_jobs import (
    gpu_dense_allreduce_job,
    gpu_reduction_job,
    identity_job,
    is_on_gpu,
    side_stream_job,
)
from .reduction.precompile import precompile_kernels
from .reduction.reduce_request import TYPES, ReduceRequest
from .stats import Counters
from .streaming import Streaming
from .transport.agreement import compare_options
from .transport.arguments import check_not_expanded, check_optional_duration
from .transport.jobs import Future, LaneJob
from .transport.lane import Lane, lane_with_options
from .uncompressed import UncompressedLog, small_reason, type_reason
from .visible import Visible


class DiLoCo:
    """The outer loop around any training loop: call :meth:`step` after every step of the inner optimizer.

        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        diloco = gcodec.distributed.DiLoCo(outer, every=100, mode=gcodec.distributed.NearLossless(outer))

    Making one is collective: all ranks start from the parameters of the group's first rank. After each outer step all
    ranks have the same parameters, bit for bit, unless exchanges overlap with steps. All else, such as a batch norm's
    statistics or the inner optimizer's state, stays each rank's own, as in the paper.

    Args:
        optimizer: The outer optimizer, a torch optimizer of the parameters that the inner one trains. All of them must
            be floats, in CPU memory or on one CUDA device. So is what this object keeps of them.
        every: Inner steps between exchanges (H in the paper).
        mode: Lossless by default; ``NearLossless(outer)`` needs an outer optimizer with a rule. The other modes keep
            what they do not send for later rounds: ``Visible()`` sends only what the next forward pass in bfloat16
            would see; a compressor, such as ``Blockwise(2)`` or ``TopK(0.03)``, or a CompressionPlan of one, few bits
            or few values; "fp8", "int8" and "int4" are the plans of these names.
        parts: Into so many parts the parameters are divided, as even as can be. They take turns: every
            ``every / parts`` steps one of them is exchanged and takes its outer step. With ``Streaming(parts,
            overlap_steps)`` inner steps go on meanwhile, fewer than ``every / parts``; not with ``NearLossless``, which
            reads the parameters during the exchange.
        group: The process group; default the world.
        min_bytes: Bytes; smaller exchanges go through Gloo uncompressed, but for modes that keep back: plans have a
            ``min_values`` of their own.
        threads: Threads of the codec. Default: the cores divided by the ranks on this host, as torchrun tells.
        timeout: Time after which a silent rank is an error; default the group's own.

    Raises:
        InvalidArgument: An argument has another type or value, or a parameter another type, no memory of its own for
            each value, or is a DTensor; or the optimizer needs a closure (LBFGS) or sparse gradients (SparseAdam).
        Unsupported: Parameters on another kind of device or on several, or an optimizer without a rule.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        every: int,
        *,
        mode: Mode | Compressor | CompressionPlan | str | None = None,
        parts: int | Streaming = 1,
        group: dist.ProcessGroup | None = None,
        min_bytes: int = MIN_BYTES,
        threads: int | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if not hasattr(optimizer, "param_groups"):
            raise InvalidArgument(f"optimizer must be the outer torch optimizer, not a {type(optimizer).__name__}")
        check_takes_averages(optimizer)
        self.optimizer, self.every = optimizer, check_int("every", every, 1)
        self.streaming = parts if isinstance(parts, Streaming) else Streaming(check_int("parts", parts, 1))
        self.parts, self._plan = self.streaming.parts, outer_plan(mode)
        if self.every % self.parts:
            raise InvalidArgument(f"every must be a multiple of parts, {self.parts}, not {every}")
        self.mode = Lossless() if self._plan else mode_of(mode, "Visible() or a compressor", NAMED_PLANS)
        if self.streaming.overlap_steps >= self.every // self.parts:
            raise InvalidArgument(
                f"overlap_steps must be less than the steps between two exchanges, {self.every // self.parts}, not "
                f"{self.streaming.overlap_steps}"
            )
        if self.streaming.overlap_steps and isinstance(self.mode, NearLossless):
            raise InvalidArgument(
                "overlap_steps must be 0 with NearLossless, which reads the parameters during the exchange, when inner "
                "steps would change them"
            )
        self.group = group
        self.min_bytes, self.timeout = check_int("min_bytes", min_bytes), check_optional_duration("timeout", timeout)
        self.threads = check_optional_int("threads", threads) or threads_per_rank()
        self.steps = 0  #: inner steps so far
        self._counters, self._log = Counters(), UncompressedLog("DiLoCo")
        self._lane: Lane | None = None
        self._overlapped: OverlappedExchange | None = None
        self._params = _by_type(optimizer)
        self._turns = _divided(self._all(), self.parts)
        self._on_gpu = any(map(is_on_gpu, self._all()))
        if self._plan is not None:
            if isinstance(self._plan.compressor, Visible):
                self._plan.compressor.prepare(self._all())
            else:
                warm_compressor(self._plan.compressor, set(self._params))
        elif not self._on_gpu:
            for dtype in self._params:
                precompile_kernels(TYPES[dtype], self.mode, None)
        self._lane = lane = lane_with_options(None, group, timeout, self._options)
        self._kept_back = None if self._plan is None else OuterExchange(self._plan, lane.rank, lane.size)
        if self._plan is not None and not any(map(self._plan.compresses, self._all())):
            reason = small_tensor_reason(self._plan)
            self._log.say(lane.rank, reason, f"not compressed are all parameters, which are {reason}")
        with torch.no_grad():
            for param in self._all():
                # Gloo sends memory as it lies, which is another order of values where the strides are other ones.
                values = param.contiguous()
                dist.broadcast(values, group=group, group_src=0)
                param.copy_(values)
        self._anchors = [param.detach().clone() for param in self._all()]

    def _options(self) -> dict[str, object]:
        """Return what must be equal on all ranks, by name."""
        params = [(str(dtype), [tuple(param.shape) for param in held]) for dtype, held in self._params.items()]
        return {
            "every": self.every,
            "mode": option_of(self.mode) if self._plan is None else self._plan.terms,
            "streaming": self.streaming,
            "min_bytes": self.min_bytes,
            "parameters": params,
            "steps": self.steps,
        }

    def step(self) -> bool:
        """Count an inner step; every ``every``-th time, exchange and take an outer step; with ``parts``, that of a part
        every ``every / parts``-th time; where exchanges overlap, begin it there and take the step so much later.

        Returns:
            True if an outer step was taken.

        Raises:
            PeerError: Another rank failed or is silent. The parameters are then those of the last outer step.
            Corruption: A message arrived damaged, with the same result.
            InvalidArgument: The optimizer holds other parameters than when this object was made.
        """
        self.steps += 1
        turn, rest = divmod(self.steps, self.every // self.parts)
        # One that a state of another ``overlap_steps`` held may be due later than the next exchange begins.
        took = self._overlapped is not None and (self.steps >= self._overlapped.due or not rest)
        if took:
            self._end_overlapped()
        if rest:
            return took
        numbers = self._turns[(turn - 1) % self.parts]
        if self.streaming.overlap_steps:
            self._begin_overlapped(numbers)
            return took
        self._exchange(numbers)
        return True

    def flush(self) -> None:
        """Exchange now, all parts, and take an outer step with everything, residuals included.

        All ranks must call it together, for example before the model is saved for good. It does not count as an inner
        step. In modes that keep nothing back it is an outer step like any other. An exchange that has begun is applied
        first.

        Raises:
            PeerError: Another rank failed or is silent. The parameters are then those of the last outer step.
            Corruption: A message arrived damaged, with the same result.
        """
        self._end_overlapped()
        self._exchange([*range(len(self._anchors))], flush=True)

    @torch.no_grad()
    def _exchange(self, numbers: list[int], flush: bool = False) -> None:
        """Exchange the parameters of these numbers, and take their outer step."""
        every = self._checked_params()
        outer_gradients = self._outer_gradients(numbers)
        # Parameters go back before the exchange: NearLossless reads them as the step's, and if the exchange fails,
        # they are those of the last outer step.
        self._put_back(numbers)
        lane = self._lane_of_step()
        self._agreed(lane, flush).wait()
        averages = self._averaged(lane, outer_gradients, {number: every[number] for number in numbers}, flush)()
        self._take_outer_step(numbers, averages)

    @torch.no_grad()
    def _begin_overlapped(self, numbers: list[int]) -> None:
        """Begin the exchange of the parameters of these numbers, which go on being trained."""
        self._checked_params()
        try:
            lane = self._lane_of_step()
            agreed = self._agreed(lane, False)
            # The lane's thread reads the parameters of the last outer step, which nothing changes before the end.
            anchors = {number: self._anchors[number] for number in numbers}
            averaged = self._averaged(lane, self._outer_gradients(numbers), anchors, False)
        except BaseException:  # such as a broken lane: as where an exchange fails
            self._put_back(numbers)
            raise

        def wait() -> list[torch.Tensor]:
            agreed.wait()
            return averaged()

        self._overlapped = OverlappedExchange(numbers, self.steps + self.streaming.overlap_steps, wait)

    @torch.no_grad()
    def _end_overlapped(self) -> None:
        """Wait for the exchange that has begun, if any has, and take its outer step."""
        if self._overlapped is None:
            return
        every = self._checked_params()
        exchange, self._overlapped = self._overlapped, None
        own = [every[number].clone() for number in exchange.numbers]
        self._put_back(exchange.numbers)
        self._take_outer_step(exchange.numbers, exchange.averages())
        for number, value in zip(exchange.numbers, own, strict=True):
            every[number].lerp_(value, self.streaming.mixing)

    def _checked_params(self) -> list[torch.Tensor]:
        """Return the parameters, after a look whether the optimizer still holds these."""
        every = self._all()
        if [*map(id, _held(_by_type(self.optimizer)))] != [*map(id, every)]:
            raise InvalidArgument(
                "optimizer must hold the parameters that it held when DiLoCo was made: after add_param_group() make a "
                "new DiLoCo, as nothing is exchanged of the new ones"
            )
        return every

    def _outer_gradients(self, numbers: list[int]) -> dict[int, torch.Tensor]:
        """Return by how much parameters have changed since the last outer step, by their numbers."""
        every = self._all()
        return {number: self._anchors[number] - every[number] for number in numbers}

    def _put_back(self, numbers: list[int]) -> None:
        """Let the parameters of these numbers be those of the last outer step."""
        every = self._all()
        for number in numbers:
            every[number].copy_(self._anchors[number])

    def _take_outer_step(self, numbers: list[int], averages: list[torch.Tensor]) -> None:
        """Let the outer optimizer take a step of the parameters of these numbers, which have been put back."""
        every = self._all()
        inner_gradients = [param.grad for param in every]
        try:
            for param in every:  # one without a gradient takes no step
                param.grad = None
            for number, average in zip(numbers, averages, strict=True):
                every[number].grad = average
            self.optimizer.step()
        finally:
            for param, gradient in zip(every, inner_gradients, strict=True):
                param.grad = gradient
        for number in numbers:
            self._anchors[number].copy_(every[number])

    def _lane_of_step(self) -> Lane:
        """Return the lane of the group, a new one if the group's has been closed."""
        self._lane = lane_with_options(self._lane, self.group, self.timeout, self._options)
        return self._lane

    def _agreed(self, lane: Lane, flush: bool) -> Future:
        """Return a future that is done once all ranks have found that they are at the same step."""
        facts, label = {**self._options(), "flush": flush}, self._label
        return lane.submit(lambda: compare_options(lane.group, facts, label))

    @property
    def _label(self) -> str:
        """The text with which errors begin; ranks may have loaded states of different steps."""
        return f"outer step {self.steps * self.parts // self.every}"

    def _averaged(
        self, lane: Lane, gradients: dict[int, torch.Tensor], params: dict[int, torch.Tensor], flush: bool
    ) -> Callable[[], list[torch.Tensor]]:
        """Begin to average gradients over the ranks, and return what waits for the averages; those of a type travel as
        one.

        Args:
            lane: The lane of the group.
            gradients: Outer gradients by the numbers of their parameters.
            params: Likewise the parameters as they were after the last outer step.
            flush: Send everything, the residuals included.
        """
        if self._kept_back is not None:
            return self._averaged_by_plan(lane, self._kept_back, gradients, params, flush)
        begun: list[tuple[list[int], Future]] = []
        for dtype in dict.fromkeys(param.dtype for param in params.values()):
            of_type = [number for number, param in params.items() if param.dtype == dtype]
            flat = torch.cat([gradients[number].reshape(-1) for number in of_type])
            begun.append((of_type, lane.submit(self._job(lane, flat, [params[number] for number in of_type]))))
        shapes = {number: gradient.shape for number, gradient in gradients.items()}

        def wait() -> list[torch.Tensor]:
            averages = []
            for of_type, future in begun:
                result: torch.Tensor = future.wait()
                parts = result.split([shapes[number].numel() for number in of_type])
                averages += [part.view(shapes[number]) for part, number in zip(parts, of_type, strict=True)]
            return averages

        return wait

    def _averaged_by_plan(
        self,
        lane: Lane,
        kept_back: OuterExchange,
        gradients: dict[int, torch.Tensor],
        params: dict[int, torch.Tensor],
        flush: bool,
    ) -> Callable[[], list[torch.Tensor]]:
        """Begin to average gradients over the ranks by a plan, whose residuals are kept once the exchange has ended
        well; arguments and result as of :meth:`_averaged`."""
        assert self._plan is not None
        counters, n_bytes = self._counters, sum(gradient.nbytes for gradient in gradients.values())
        counters.add(Counters.of(n_bytes, lane.size))
        runner = ConversationRunner(lane, (self._plan.terms, flush), counters, self._label)
        conversation = kept_back.average(gradients, params, flush)
        job = LaneJob(lambda: runner.run(conversation), runner.abort)
        if self._on_gpu:
            job = side_stream_job([*gradients.values(), *params.values()], job.run, job.abort)
        future = lane.submit(job)

        def wait() -> list[torch.Tensor]:
            received: list[torch.Tensor] = future.wait()
            kept_back.commit()
            return received

        return wait

    def _job(self, lane: Lane, flat: torch.Tensor, params: list[torch.Tensor]) -> LaneJob:
        if lane.size == 1:
            return identity_job(flat) if self._on_gpu else LaneJob(lambda: flat)
        counters = self._counters
        counters.add(Counters.of(flat.nbytes, lane.size))
        reason = type_reason(flat)
        if reason is None and flat.nbytes < max(self.min_bytes, 1):
            reason = small_reason(self.min_bytes, f"all {flat.nbytes} bytes of {flat.dtype} parameters, which are")
        if reason is not None:
            self._log.say(lane.rank, reason, f"not compressed are {reason}")
            if self._on_gpu:
                return gpu_dense_allreduce_job(lane, flat, True, counters, self._label)
            return LaneJob(lambda: dense_allreduce(lane, flat, True, counters))
        gradients = Gradients.of(params, flat.numel())
        result = torch.empty_like(flat)
        request = ReduceRequest(lane, flat, result, self.mode, True, counters, gradients, self._label)
        return gpu_reduction_job(request) if self._on_gpu else allreduce_job(request, threads=self.threads)

    def _all(self) -> list[torch.Tensor]:
        return _held(self._params)

    def stats(self) -> dict[str, float]:
        """Return wire bytes, ratio and seconds of all exchanges so far, by name, as ``stats.Counters`` has them.

        With ``Visible()``, ``visible_share`` is added: the values that this rank sent over all values, without flushes.
        """
        is_visible = self._plan is not None and isinstance(self._plan.compressor, Visible)
        share = {"visible_share": self._kept_back.share} if self._kept_back and is_visible else {}
        return {**self._counters.numbers(), **share}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs beside model and inner optimizer, for ``torch.load(weights_only=True)``.

        It is the same on all ranks, but for the residual of modes that keep back, which is each rank's own; between
        outer steps, so are model and inner optimizer. An exchange that has begun is waited for; the state holds its
        average, to be applied when it is due.

        Raises:
            PeerError: Another rank failed in that exchange, or is silent.
            Corruption: A message of it arrived damaged.
        """
        anchors = [anchor.clone() for anchor in self._anchors]
        state = {"version": 1, "steps": self.steps, "anchors": anchors, "optimizer": self.optimizer.state_dict()}
        if self._overlapped is not None:
            # Releases that know no such exchange would lose it: they refuse this version.
            state |= {"version": 2, "overlapped": self._overlapped.state_dict()}
        residual = None if self._kept_back is None else self._kept_back.state_dict()
        return state if residual is None else {**state, "residual": residual}

    @naming_damaged_state()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict`. Load the model's parameters separately, after making this object.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            InvalidArgument: The state is not one of these parameters, or holds the residual of another rank or mode.
        """
        check_state(state)
        is_amid = state.get("version") == 2  # in the middle of an exchange
        keys = {"steps", "anchors", "optimizer", *(["overlapped"] if is_amid else [])}
        complete = keys <= state.keys() and (is_amid or state.get("version") == 1)
        kinds = [(anchor.shape, anchor.dtype) for anchor in self._anchors]
        if not complete or [(anchor.shape, anchor.dtype) for anchor in state["anchors"]] != kinds:
            raise InvalidArgument(
                "state must be one of DiLoCo, of version 1 or 2, for parameters of these shapes and types"
            )
        steps, residual = check_int("steps", state["steps"]), state.get("residual")
        overlapped = OverlappedExchange.of_state(state["overlapped"], self._anchors) if is_amid else None
        if self._overlapped is not None:
            with suppress(GcodecError):  # its result is dropped, and the next exchange fails, too
                self._overlapped.averages()
        if self._kept_back is not None:
            if residual is not None:
                self._kept_back.load(residual, self._all())
            else:
                self._kept_back.averager.memories = {}
        elif residual is not None:
            raise InvalidArgument(
                f"state holds a residual, which mode={self.mode!r:.80} would lose: load it with the mode that it was "
                "saved with, or call flush() before saving"
            )
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps, self._overlapped = steps, overlapped
        for anchor, saved in zip(self._anchors, state["anchors"], strict=True):
            anchor.copy_(saved)


def _held(by_type: dict[torch.dtype, list[torch.Tensor]]) -> list[torch.Tensor]:
    return [param for params in by_type.values() for param in params]


def _divided(params: list[torch.Tensor], parts: int) -> list[list[int]]:
    """Return the numbers of the parameters of each part, in order, the parts as even as can be in bytes.

    Raises:
        InvalidArgument: There are fewer parameters than parts.
    """
    if parts > max(len(params), 1):
        raise InvalidArgument(f"parts must be at most the number of parameters, {len(params)}, not {parts}")
    total, before, turns = sum(param.nbytes for param in params), 0, list[list[int]]()
    for turn in range(parts):
        first, limit = sum(map(len, turns)), total * (turn + 1) / parts
        stop = first
        while stop < len(params) - (parts - turn - 1) and (stop == first or before + params[stop].nbytes / 2 <= limit):
            before += params[stop].nbytes
            stop += 1
        turns.append([*range(first, stop)])
    return turns


def _by_type(optimizer: torch.optim.Optimizer) -> dict[torch.dtype, list[torch.Tensor]]:
    by_type: dict[torch.dtype, list[torch.Tensor]] = {}
    for group in optimizer.param_groups:
        for param in group["params"]:
            if hasattr(param, "full_tensor"):
                raise InvalidArgument(
                    "parameters must be plain tensors, not DTensors, as fully_shard makes them: give the optimizer "
                    "each one's to_local().detach(), and group= the ranks that hold the same shards"
                )
            check_not_expanded("a parameter", param)
            if param.dtype not in TYPES or param.layout != torch.strided:
                raise InvalidArgument(f"parameters must be dense floats of 16 to 64 bits, not {param.dtype}")
            if not param.is_cpu and not is_on_gpu(param):
                raise Unsupported(f"parameters on {param.device.type} are not supported: move them to the CPU first")
            by_type.setdefault(param.dtype, []).append(param)
    devices = sorted({str(param.device) for params in by_type.values() for param in params})
    if len(devices) > 1:
        raise Unsupported(f"parameters must lie on one device, not on {' and '.join(devices)}")
    return by_type
