"""Compressed all-reduces and reduce-scatters of plain tensors, as the process group and FSDP's adapter need them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import InvalidArgument, Unsupported, check_int, check_optional_int
from ..threads import threads_per_rank
from .modes import FixedBits, Lossless, NearLossless
from .reduction.allreduce import MIN_BYTES, allreduce_job, dense_allreduce, half_job
from .reduction.bypass import Bypass
from .reduction.coder import BufferCodebooks
from .reduction.collective_codebooks import CollectiveCodebooks
from .reduction.gather import Gather, dense_gather_job
from .reduction.gpu_coder import GpuCodebooks, KeptCodebooks
from .reduction.gpu_jobs import (
    gpu_dense_allreduce_job,
    gpu_dense_reduce_scatter_job,
    gpu_reduction_job,
    is_on_gpu,
    side_stream_job,
)
from .reduction.gpu_reduce import GpuScatter
from .reduction.precompile import precompile_kernels
from .reduction.reduce_request import TYPES, ReduceRequest
from .reduction.scatter import Scatter, dense_reduce_scatter_job
from .reduction.shared_codebooks import Refresh
from .reduction.step_detection import COMPRESSED, PLAIN, PLAIN_TIMED, GroupBypass
from .stats import Counters
from .transport.agreement import compare_options
from .transport.arguments import check_optional_duration, config_or_none
from .transport.jobs import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, Future, LaneJob, StartedJob, result_of
from .transport.lane import Lane, lane_of
from .transport.small_exchange import confirmed, tell
from .transport.work import LaneWork
from .uncompressed import Awaited, UncompressedLog, has_floats, small_reason, type_reason

_MAX_RESULTS, _MAX_RESULT_BYTES = 64, 1 << 30  #: results whose memory is kept, and their bytes
_compiled: set[tuple[torch.dtype, type, bool]] = set()
_EXACT = Lossless()


@dataclass(frozen=True)
class GroupOptions:
    """Options of a process group that compresses. They must be the same on all of its ranks.

    Attributes:
        mode: ``Lossless()`` or ``FixedBits(k)``. NearLossless needs the parameters, which a process group does not see
            and of which FSDP has only shards.
        min_bytes: Bytes; smaller tensors go through Gloo uncompressed.
        threads: Threads of the codec. Default: the cores divided by the ranks on this host, as torchrun tells.
        timeout: Time after which a silent rank is an error. Default: the ``timeout=`` that torch was given.
        bypass: Policy that measures whether compression pays, for collectives that repeat from step to step; None
            always compresses.
        refresh: When the codebooks that ranks share are renewed. Each kind of collective that repeats has one, up to
            256; every 16 collectives count as a step. None: every frame carries its own codebook.

    Raises:
        InvalidArgument: An option has another type or value.
    """

    mode: Lossless | FixedBits = field(default_factory=Lossless)
    min_bytes: int = MIN_BYTES
    threads: int | None = None
    timeout: timedelta | None = None
    bypass: Bypass | None = field(default_factory=Bypass)
    refresh: Refresh | None = field(default_factory=Refresh)

    def __post_init__(self) -> None:
        if not isinstance(self.mode, Lossless | FixedBits):
            reason = ""
            if isinstance(self.mode, str):
                reason = ": words are for the DDP hook and allreduce(); 'bf16' is FixedBits(7), 'fp16' is FixedBits(10)"
            elif isinstance(self.mode, NearLossless):
                reason = ": NearLossless needs the optimizer and its parameters, which only the DDP hook and DiLoCo see"
            elif isinstance(self.mode, GroupOptions):
                reason = ": what GroupOptions holds are arguments of compress_fsdp, each by its name"
            raise InvalidArgument(f"mode must be Lossless() or FixedBits(k), not {self.mode!r:.80}{reason}")
        check_int("min_bytes", self.min_bytes)
        check_optional_int("threads", self.threads)
        check_optional_duration("timeout", self.timeout)
        object.__setattr__(self, "bypass", config_or_none("bypass", self.bypass, Bypass))
        object.__setattr__(self, "refresh", config_or_none("refresh", self.refresh, Refresh))

    @property
    def terms(self) -> dict[str, object]:
        """Return the options that must be equal on all ranks."""
        return {"mode": self.mode, "min_bytes": self.min_bytes, "bypass": self.bypass, "refresh": self.refresh}

    @property
    def _timeout(self) -> timedelta | None:
        """Return the timeout, under the name by which torch's device meshes ask for it."""
        return self.timeout


class _Call(NamedTuple):
    """The facts by which a collective is recognized when it comes again in a later step.

    Attributes:
        name: The operation.
        passes: Passes around a ring that the uncompressed operation takes: 2 for an all-reduce, 1 for its halves.
        n_bytes: Bytes of its tensors.
        dtype: Type of its tensors.
    """

    name: str
    passes: int
    n_bytes: int
    dtype: torch.dtype


class _Confirmed(NamedTuple):
    """Says how ranks confirm a reduce-scatter on a device to each other.

    Attributes:
        is_left: By :meth:`Collectives.begin_confirming`.
        touched: Else with those that follow, if these touch none of the tensors; at once if there are none.
    """

    is_left: bool
    touched: Sequence[torch.Tensor]


class Collectives:
    """Starts compressed collectives on lanes, and counts them.

    Args:
        options: How to compress.
        label: Begins the texts of errors.
        on_gpu: Take tensors on CUDA devices, too.

    Attributes:
        log: Says what is not compressed.
    """

    def __init__(self, options: GroupOptions, label: str, *, on_gpu: bool = False) -> None:
        self.options, self.label, self.on_gpu = options, label, on_gpu
        self.threads = options.threads or threads_per_rank()
        self._counters, self._lock = Counters(), threading.Lock()
        self._results: dict[tuple[int, int, torch.dtype], torch.Tensor] = {}
        self._compared: set[dist.ProcessGroup] = set()
        self.log = UncompressedLog(label)
        self.awaited: Awaited | None = None  # where a model's gradients are; kept, for a model may be gone
        self._bypasses: dict[Lane, GroupBypass] = {}
        self._codebooks: dict[Lane, CollectiveCodebooks] = {}
        self._gpu_codebooks = None if options.refresh is None else KeptCodebooks(options.refresh)
        self._left: dict[Lane, None] = {}  #: lanes whose collectives may be left to be confirmed
        #: Those on which some are; only the thread of a lane touches it.
        self._unconfirmed: set[Lane] = set()

    def stats(self) -> dict[str, float]:
        """Return the counts so far, by name, as in :class:`gcodec.distributed.stats.Counters`, and those of refreshes.

        The results of the bypass on the latest group are added, by the names in ``bypass.NUMBERS``. Dense collectives
        that torch makes itself have no seconds.
        """
        with self._lock:
            counts = [codebooks.stats for codebooks in self._codebooks.values()]
            refreshes, n_bytes = sum(each.refreshes for each in counts), sum(each.refresh_bytes for each in counts)
            trials: list[dict[str, float]] = [{}, *(bypass.numbers for bypass in self._bypasses.values())]
            return {**self._counters.numbers(), "refreshes": refreshes, "refresh_bytes": n_bytes, **trials[-1]}

    def suits(self, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> bool:
        """Return whether these tensors can be compressed. The answer is the same on all ranks.

        The first call for a group is collective: ranks compare their options.

        Args:
            tensors: The tensors of one collective.

        Raises:
            Unsupported: The tensors are floats on a device that is neither the CPU nor a CUDA device, or on several.
            PeerError: Ranks were given different options.
        """
        first = tensors[0] if tensors else None
        if first is None or group.size() == 1:
            return False
        if any(tensor.dtype != first.dtype for tensor in tensors):
            self.say_uncompressed(group, tensors, "tensors of several types at once")
            return False
        if first.dtype not in TYPES or any(tensor.layout != torch.strided for tensor in tensors):
            self.say_uncompressed(group, tensors, next(filter(None, map(type_reason, tensors))))
            return False
        places = sorted({str(tensor.device) for tensor in tensors})
        if len(places) > 1 or not (first.is_cpu or (self.on_gpu and is_on_gpu(first))):
            legal = "CPU memory or on one CUDA device" if self.on_gpu else "CPU memory"
            raise Unsupported(
                f"{self.label}: tensors on {' and '.join(places)} are not supported; only those in {legal} are"
            )
        reason = type_reason(first)
        if reason is not None:
            self.say_uncompressed(group, tensors, reason)
            return False
        if group not in self._compared:
            compare_options(group, self.options.terms, self.label)
            self._compared.add(group)
        if sum(tensor.nbytes for tensor in tensors) >= max(self.options.min_bytes, 1):
            return True
        text = f"not compressed are {small_reason(self.options.min_bytes, 'tensors')}"
        self.log.say(group.rank(), "small", text, logging.INFO)
        return False

    def say_uncompressed(
        self, group: dist.ProcessGroup, tensors: Sequence[torch.Tensor], reason: str, is_expected: bool = False
    ) -> None:
        """Say in the log, once for each reason, that tensors are sent uncompressed; small ones are not worth a line.

        Args:
            tensors: The tensors of one collective.
            reason: why.
            is_expected: They are not gradients, or the like, for whose sake somebody compresses.
        """
        n_bytes = sum(tensor.nbytes for tensor in tensors if tensor.layout == torch.strided)
        is_sparse = any(tensor.layout != torch.strided for tensor in tensors)
        if group.size() > 1 and (is_sparse or n_bytes >= max(self.options.min_bytes, 1)):
            level = logging.INFO if is_expected or not has_floats(tensors) else logging.WARNING
            self.log.say(group.rank(), reason, f"not compressed are {reason}", level)

    def mean_of(self, op: Any, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> bool | None:
        """Return True for a mean, False for a sum; None for any other reduce operation, of which the log hears.

        Args:
            tensors: The tensors of the collective.
        """
        # Compared one by one: ``in`` does not work on torch's operations.
        if op == dist.ReduceOp.AVG or op == dist.ReduceOp.SUM:
            return bool(op == dist.ReduceOp.AVG)
        reason, is_scaled = "other reductions than sums and averages", bool(op == dist.ReduceOp.PREMUL_SUM)
        if is_scaled:
            reason = "sums of scaled values, PREMUL_SUM (in FSDP2, set_force_sum_reduction_for_comms(True) avoids them)"
        self.say_uncompressed(group, tensors, reason, is_expected=not is_scaled)
        return None

    def all_reduce(self, group: dist.ProcessGroup, tensors: list[torch.Tensor], mean: bool) -> LaneWork | None:
        """Start the all-reduce of tensors of one type, in place; they travel as one.

        Args:
            tensors: Dense floats, for which :meth:`suits` returned True.
            mean: Divide the sum by the number of ranks.

        Returns:
            The work, whose value is the list of tensors; None where the bypass found that compression does not pay:
            then the caller makes the collective itself.

        Raises:
            PeerError: The group's lane is broken, or takes nothing more.
        """
        call = _Call("all-reduce", 2, sum(tensor.nbytes for tensor in tensors), tensors[0].dtype)
        lane, kind, counters = self._begin(group, call, is_on_gpu(tensors[0]))
        if kind == PLAIN:
            return None
        parts = [tensor.detach().contiguous().view(-1) for tensor in tensors]
        flat, on_gpu = parts[0] if len(parts) == 1 else torch.cat(parts), is_on_gpu(tensors[0])
        if kind == PLAIN_TIMED:
            result, job = flat, LaneJob(lambda: dense_allreduce(lane, flat, mean, counters, self.label))
            if on_gpu:
                job = gpu_dense_allreduce_job(lane, flat, mean, counters, self.label)
        else:
            result = torch.empty_like(flat) if on_gpu else self._result_for(lane, flat)
            request = ReduceRequest(lane, flat, result, self.options.mode, mean, counters, label=self.label)
            if on_gpu:
                touched = [] if self._is_trying(lane) else [flat, result, *tensors]
                job = gpu_reduction_job(request, self._kept(lane, "reduce", flat), touched=touched)
            else:
                job = _made_on_lane(lambda: allreduce_job(request, self._shared(lane, "reduce", flat), self.threads))

        def end() -> list[torch.Tensor]:
            for tensor, part in zip(tensors, result.split([part.numel() for part in parts]), strict=True):
                tensor.detach().copy_(part.view(tensor.shape))
            self._end(lane, kind, call, counters, on_gpu)
            return tensors

        whole = _with_end([job], end, tensors, _nothing if on_gpu else None)
        if on_gpu:
            whole = side_stream_job([flat, result, *tensors], whole.run, whole.abort)
        return LaneWork(lane.submit(whole, ALL_REDUCE))

    def reduce_scatter(
        self,
        group: dist.ProcessGroup,
        pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
        mean: bool,
        *,
        later: str = "",
    ) -> LaneWork | None:
        """Start the reduce-scatter of pairs of tensors.

        Args:
            pairs: Each a whole tensor, and the tensor that takes this rank's part of its sum.
            mean: Divide the sum by the number of ranks.
            later: For tensors on a device that no other collective writes to, and of which nobody reads the parts
                before the futures of :meth:`begin_confirming` are done: what to call them in errors. The next
                collective is then encoded while these travel, and the work has an error only on ranks that find one.

        Returns:
            The work, whose value is the list of parts; or None, as for :meth:`all_reduce`.

        Raises:
            PeerError: The group's lane is broken, or takes nothing more.
        """
        call = _Call("reduce-scatter", 1, sum(whole.nbytes for whole, _ in pairs), pairs[0][0].dtype)
        lane, kind, counters = self._begin(group, call, is_on_gpu(pairs[0][0]))
        if kind == PLAIN:
            return None
        flat = [(whole.detach().contiguous().view(-1), part.detach().contiguous().view(-1)) for whole, part in pairs]
        on_gpu = is_on_gpu(pairs[0][0])
        may_wait = on_gpu and kind == COMPRESSED and not self._is_trying(lane)
        is_left, touched = bool(later) and may_wait, [tensor for pair in (*flat, *pairs) for tensor in pair]
        label = f"{self.label}, {later}" if later else self.label
        how = _Confirmed(is_left, touched if may_wait else ())
        jobs = [self._scatter(lane, kind, whole, part, mean, counters, label, how) for whole, part in flat]

        def end() -> list[torch.Tensor]:
            for (_, part), (_, result) in zip(pairs, flat, strict=True):
                if not part.is_contiguous():
                    part.detach().copy_(result.view(part.shape))
            self._end(lane, kind, call, counters, on_gpu)
            return [part for _, part in pairs]

        if is_left:
            self._left[lane] = None
        leave = partial(self._unconfirmed.add, lane) if is_left else _nothing if may_wait else None
        whole = _with_end(jobs, end, [part for _, part in pairs], leave)
        if on_gpu:
            whole = side_stream_job(touched, whole.run, whole.abort)
        return LaneWork(lane.submit(whole, REDUCE_SCATTER))

    def begin_confirming(self) -> list[Future]:
        """Return futures that are done when no rank has found an error in a collective that was left to be confirmed;
        else they raise it. Ranks call it after the same collectives."""

        def confirm(lane: Lane) -> None:
            if lane in self._unconfirmed:  # on all ranks
                self._unconfirmed.remove(lane)
                confirmed(lane, self.label, lambda: None)

        left, self._left = self._left, {}
        return [lane.submit(LaneJob(partial(confirm, lane), partial(tell, lane))) for lane in left]

    def all_gather(self, group: dist.ProcessGroup, whole: torch.Tensor, part: torch.Tensor) -> LaneWork | None:
        """Start the all-gather of a tensor in CPU memory, without loss whatever the mode is.

        Args:
            whole: Contiguous, takes the values of all ranks.
            part: This rank's values, contiguous; perhaps where ``whole`` has them.

        Returns:
            The work, whose value is ``[whole]``; or None, as for :meth:`all_reduce`.

        Raises:
            PeerError: The group's lane is broken, or takes nothing more.
        """
        call = _Call("all-gather", 1, whole.nbytes, whole.dtype)
        lane, kind, counters = self._begin(group, call, False, _EXACT)
        if kind == PLAIN:
            return None
        flat, own = whole.detach().view(-1), part.detach().view(-1)
        if kind == PLAIN_TIMED:
            job = dense_gather_job(lane, own, flat, counters, self.label)
        else:
            request = ReduceRequest(lane, own, flat, _EXACT, False, counters, label=self.label)
            job = _made_on_lane(
                lambda: half_job(request, self._shared(lane, "gather", flat, _EXACT), self.threads, Gather)
            )

        def end() -> list[torch.Tensor]:
            self._end(lane, kind, call, counters)
            return [whole]

        return LaneWork(lane.submit(_with_end([job], end, [whole]), ALL_GATHER))

    def _scatter(
        self,
        lane: Lane,
        kind: int,
        whole: torch.Tensor,
        part: torch.Tensor,
        mean: bool,
        counters: Counters,
        label: str,
        how: _Confirmed,
    ) -> LaneJob:
        on_gpu = is_on_gpu(whole)
        if kind == PLAIN_TIMED:
            make = gpu_dense_reduce_scatter_job if on_gpu else dense_reduce_scatter_job
            return make(lane, whole, part, mean, counters, label)
        request = ReduceRequest(lane, whole, part, self.options.mode, mean, counters, label=label)
        if on_gpu:
            goes_on, kept = (lambda: True) if how.is_left else None, self._kept(lane, "scatter", whole)
            return gpu_reduction_job(request, kept, GpuScatter, goes_on=goes_on, touched=how.touched)
        return _made_on_lane(lambda: half_job(request, self._shared(lane, "scatter", whole), self.threads, Scatter))

    def _shared(
        self, lane: Lane, name: str, flat: torch.Tensor, mode: Lossless | FixedBits | None = None
    ) -> BufferCodebooks | None:
        """Return the shared codebook of a collective, if there are any. Called on the lane's thread.

        Args:
            name: The operation.
            flat: Its values, those of all ranks.
            mode: How they may be changed, if not as the options say.
        """
        if self.options.refresh is None:
            return None
        with self._lock:
            codebooks = self._codebooks.setdefault(lane, CollectiveCodebooks(self.options.refresh))
        n_values, dtype = flat.numel(), TYPES[flat.dtype]
        return codebooks.shared((name, n_values, dtype.name), n_values, dtype, mode or self.options.mode)

    def _kept(self, lane: Lane, name: str, flat: torch.Tensor) -> GpuCodebooks | None:
        """Return the codebooks that are kept for a collective on a CUDA device, if any are."""
        kept = self._gpu_codebooks
        return None if kept is None else kept.of((lane, name, flat.numel(), flat.dtype))

    def _begin(
        self, group: dist.ProcessGroup, call: _Call, on_gpu: bool, mode: Lossless | FixedBits | None = None
    ) -> tuple[Lane, int, Counters]:
        """Return the lane, how to make the collective, and its counters. A PLAIN one has been counted already; ``mode``
        as of :meth:`_shared`."""
        if not on_gpu:
            self.precompile(call.dtype, mode)
        lane, bypass = lane_of(group, self.options.timeout), self.options.bypass
        counters = Counters.of(call.n_bytes, lane.size, call.passes)
        if bypass is None:
            return lane, COMPRESSED, counters
        if lane not in self._bypasses:
            self._bypasses[lane] = GroupBypass(bypass, lane, self.label)
        kind = self._bypasses[lane].kind(call, call.n_bytes)
        if kind == PLAIN:
            counters.add_dense(call.n_bytes, lane.size, 0.0, call.passes)
            self._count(counters)
        return lane, kind, counters

    def _end(self, lane: Lane, kind: int, call: _Call, counters: Counters, on_gpu: bool = False) -> None:
        """Record that a collective has completed. Called on the lane's thread."""
        self._count(counters)
        # Those on devices use none of these codebooks; and to renew one, ranks would have to come here in one order.
        if kind == COMPRESSED and lane in self._codebooks and not on_gpu:
            self._codebooks[lane].end(lane)
        if lane in self._bypasses:
            self._bypasses[lane].add(call.n_bytes, counters)

    def _is_trying(self, lane: Lane) -> bool:
        """Return True in a trial of the bypass, whose seconds must not be left to the next collective."""
        return lane in self._bypasses and self._bypasses[lane].trying

    def _count(self, counters: Counters) -> None:
        with self._lock:
            self._counters.add(counters)

    def _result_for(self, lane: Lane, like: torch.Tensor) -> torch.Tensor:
        """Return memory for a result.

        A lane does one job after another and empties it at the end of each, so jobs share.
        """
        key = id(lane), like.numel(), like.dtype
        if key not in self._results:
            n_bytes = sum(result.nbytes for result in self._results.values())
            if len(self._results) >= _MAX_RESULTS or n_bytes + like.nbytes > _MAX_RESULT_BYTES:
                self._results.clear()
            with torch.inference_mode(False):  # the memory outlives the caller's mode
                self._results[key] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        return self._results[key]

    def precompile(self, dtype: torch.dtype, mode: Lossless | FixedBits | None = None) -> None:
        """Compile the kernels before other ranks wait; ``mode`` as of :meth:`_shared`."""
        mode = mode or self.options.mode
        key = dtype, type(mode), self.options.refresh is None
        if key not in _compiled:
            precompile_kernels(TYPES[dtype], mode, self.options.refresh)
            _compiled.add(key)


def _nothing() -> None:
    """Do nothing."""


def _made_on_lane(make: Callable[[], LaneJob]) -> LaneJob:
    """Return a job that calls ``make`` on the lane's thread and runs the job that it returns."""

    def make_and_abort(error: BaseException) -> None:
        job = make()
        if job.abort is not None:
            job.abort(error)

    return LaneJob(lambda: make().run(), make_and_abort)


def _with_end(
    jobs: Sequence[LaneJob],
    end: Callable[[], list[torch.Tensor]],
    written: Sequence[torch.Tensor],
    leave: Callable[[], None] | None = None,
) -> LaneJob:
    """Return one job that runs several, then ``end``, whose value it has.

    Args:
        end: Called when all have ended.
        written: What they write to.
        leave: Called if jobs go on by themselves when they have run, where they may: then so does the one that is
            returned.
    """
    # Tensors of inference mode may be written to only in that mode, which is each thread's own: the lane enters it.
    inference = any(tensor.is_inference() for tensor in written)

    def run_all_and_end() -> list[torch.Tensor] | StartedJob:
        with torch.inference_mode(inference):
            started = []
            for job in jobs:
                value = job.run()
                if leave is not None and isinstance(value, StartedJob):
                    started.append(value)
                else:
                    result_of(value)
            if leave is None or not started:
                return end()
            leave()
        return StartedJob(partial(finish, started), None, lambda: all(each.has_ended() for each in started))

    def finish(started: Sequence[StartedJob]) -> list[torch.Tensor]:
        with torch.inference_mode(inference):
            for each in started:
                each.finish()
            return end()

    def abort_all(error: BaseException) -> None:
        for job in jobs:
            if job.abort is not None:
                job.abort(error)

    return LaneJob(run_all_and_end, abort_all)
