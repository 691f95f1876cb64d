"""The DDP hook's state for the codec: mode, codebooks and statistics, and the all-reduce of a bucket."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from ...averaging.state import pack_state, unpack_state
from ...errors import (
    InvalidArgument,
    Unsupported,
    check_int,
    check_optional_int,
    check_state,
    naming_damaged_state,
)
from ...threads import threads_per_rank
from ..gradients import Gradients, gradients_of, holds_complex
from ..modes import Lossless, Mode, NearLossless, cast_of, mode_by_optimizer, mode_of, option_of
from ..reduction.allreduce import MIN_BYTES, allreduce_job, start_cast_allreduce, start_dense_allreduce
from ..reduction.bypass import TIMED, Bypass, BypassController
from ..reduction.coder import BufferCodebooks
from ..reduction.gpu_coder import GpuCodebooks
from ..reduction.gpu_jobs import (
    gpu_dense_allreduce_job,
    gpu_reduction_job,
    identity_job,
    is_on_gpu,
    start_on_own_group,
)
from ..reduction.precompile import precompile_kernels
from ..reduction.reduce_request import TYPES, ReduceRequest
from ..reduction.refresh import CodebookRefresh
from ..reduction.shared_codebooks import Refresh, SharedCodebooks
from ..reduction.ways import CAST, CODED, CODING, DENSE, OWN_CODEBOOKS, UNPREDICTED
from ..stats import Counters, Stats, moved_bytes
from ..transport.arguments import check_group_member, check_optional_duration, config_or_none
from ..transport.gpu import own_group_of
from ..transport.jobs import ALL_REDUCE, Future, LaneJob, StartedJob, result_of, then
from ..transport.lane import Lane, lane_with_options
from ..transport.message import agreement_of
from ..transport.small_exchange import confirmed
from ..uncompressed import UncompressedBuckets, small_reason, type_reason
from .group_check import check_group

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket


class CompressedAllreduce:
    """State of the DDP hook that sends gradients through the codec: two lines compress a model's gradients.

        state = gcodec.distributed.CompressedAllreduce(optimizer=optimizer)
        ddp.register_comm_hook(state, gcodec.distributed.hook)

    One state belongs to one DDP model. Making it compiles the kernels, for minutes on a fresh installation. Where there
    is a CUDA device, the first bucket in CPU memory does so, and buckets on the device need none of them.

    Args:
        optimizer: The torch optimizer (or several) that will take the step, for near-lossless mode. Without one the
            mode is lossless.
        mode: Any mode, in place of ``optimizer``, or the accuracy that is wanted: "exact", "bf16" or "fp16", which lose
            no more than torch's compression hooks of these names. It may be assigned anew between steps, on all ranks
            alike.
        refresh: When shared codebooks are renewed. None (or False): every frame carries its own, which is smaller by a
            few percent where rows of a gradient resemble each other, and slower to encode by half or more.
        bypass: Policy that measures, per bucket size, whether compression pays. None (or False): all buckets are
            compressed, and training repeats bit for bit.
        group: DDP's process group; default the world. Another one than DDP's is an error of the first step.
        min_bytes: Smaller buckets go through Gloo uncompressed, as do those of types other than float32, float64,
            float16 and bfloat16.
        threads: Threads of the codec. Default: the cores divided by the ranks on this host, as torchrun tells.
        timeout: Time after which a silent rank is an error; default the group's own.

    Raises:
        Unsupported: The optimizer has no rule.
        InvalidArgument: An argument has another type or value.
    """

    def __init__(
        self,
        *,
        optimizer: Any = None,
        mode: Mode | str | None = None,
        refresh: Refresh | bool | None = Refresh(),  # noqa: B008 - frozen
        bypass: Bypass | bool | None = Bypass(),  # noqa: B008 - frozen
        group: dist.ProcessGroup | None = None,
        min_bytes: int = MIN_BYTES,
        threads: int | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        check_group_member(group)
        policy = config_or_none("bypass", bypass, Bypass)
        self._bypass = None if policy is None else BypassController(policy)
        self.refresh, self.min_bytes = config_or_none("refresh", refresh, Refresh), check_int("min_bytes", min_bytes)
        self._step_end: Future | None = None  #: that the lane ends the last step, where nobody has waited for it
        chosen = mode_by_optimizer(mode, optimizer)
        self.mode = mode if isinstance(mode, str) and cast_of(mode) else chosen
        self.group, self.timeout = group, check_optional_duration("timeout", timeout)
        self.threads = check_optional_int("threads", threads) or threads_per_rank()
        self._stats = Stats()
        self._codebooks = SharedCodebooks(self.refresh or Refresh())
        self._codebook_refresh = CodebookRefresh(self._codebooks, self._stats)
        self._uncompressed = UncompressedBuckets("CompressedAllreduce")
        self._compressed_any = self._warned = self._unconfirmed = self._any_on_lane = False
        self._beside_lane: list[Callable[[], object]] = []  #: end the buckets of this step that are reduced beside it
        self._numbers: dict[int, int] = {}
        self._params: list[torch.Tensor] = []  # keeps their ids from being used again
        self._results: dict[tuple[int, ...], torch.Tensor] = {}  #: by the ids of their parameters, as layouts are
        self._layouts: dict[tuple[int, ...], Gradients] = {}
        self._kept_gpu_codebooks: dict[Any, GpuCodebooks] = {}
        self._warm: set[tuple[torch.dtype, str]] = set()
        self._lane: Lane | None = None
        for dtype in dict.fromkeys(self._likely_types()):
            self._precompile(dtype)

    @property
    def mode(self) -> Mode:
        """The mode: what compression may do to values. It may be assigned between steps, on all ranks alike."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode | str) -> None:
        """Set the mode for the steps to come. Raises InvalidArgument for anything that is no mode."""
        self._settle()
        self._mode = mode_of(mode)
        cast = cast_of(mode)
        self._cast: torch.dtype | None = None if cast is None else getattr(torch, cast)
        if self._bypass is not None:
            self._bypass.choose_among(self._ways())
            label = f"accuracy {self._mode.accuracy}"
            if label != self._bypass.label:
                self._bypass.label = label
                self._bypass.restart()

    def _ways(self) -> tuple[int, ...]:
        """Return the ways of reducing buckets that keep the mode's promise."""
        ways = [CODED]
        if self.refresh is not None:
            ways += [UNPREDICTED] * isinstance(self._mode, Lossless) + [OWN_CODEBOOKS]
        return (*ways, DENSE) if self._cast is None else (*ways, DENSE, CAST)

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the all-reduce of a bucket, and return the future of its average. The hook calls it."""
        self._settle()
        self._uncompressed.come(bucket)
        buffer, index, last = bucket.buffer(), bucket.index(), bucket.is_last()
        if not buffer.is_cpu and (buffer.is_sparse or not is_on_gpu(buffer)):
            raise Unsupported(
                f"{buffer.layout} gradients on {buffer.device.type} are not supported: outside of CPU memory only "
                "dense ones on CUDA devices are"
            )
        if not is_on_gpu(buffer):
            self._precompile(buffer.dtype)
        elif self._bypass is not None:
            self._bypass.choose_among((CODED, DENSE))  # there are no others there
        if self._lane is None:
            check_group(bucket.parameters(), self.group, self._uncompressed.log)
        self._lane = lane = lane_with_options(self._lane, self.group, self.timeout, self._options)
        counters = Counters.of(moved_bytes(buffer), lane.size)
        reason = None if lane.size == 1 else self._reason_of(bucket, counters)
        end_bucket, label = partial(self._end_bucket, index, buffer, counters), self._label(index)
        own_group = self._own_group(lane, bucket, reason)
        if own_group is not None:
            averaged = start_on_own_group(own_group, buffer, counters, label)
            self._beside_lane.append(partial(end_bucket, buffer))
            if last:
                self._step_end = lane.submit(partial(self._end_step, lane, self._take_beside_lane()))
            return averaged
        self._any_on_lane = not last
        job = self._job(lane, bucket, counters, reason)
        beside = self._take_beside_lane() if last else []

        def reduce_bucket() -> torch.Tensor | StartedJob:
            value = job.run()
            if not last:
                started: torch.Tensor | StartedJob = then(value, end_bucket)
                return started
            lane.drain()  # a step ends when all of its buckets have
            if self._unconfirmed:
                self._unconfirmed = False
                result = confirmed(lane, label, lambda: end_bucket(result_of(value)))
            else:
                result = end_bucket(result_of(value))
            self._end_step(lane, beside)
            return result

        reduced = LaneJob(reduce_bucket, job.abort, job.devices, job.place, job.begins)
        return lane.submit(reduced, ALL_REDUCE).get_future()

    def _own_group(self, lane: Lane, bucket: GradBucket, reason: str | None) -> dist.ProcessGroup | None:
        """Return the group by which a bucket on a device is reduced at once, beside the lane; None for the lane.

        These are buckets that are not compressed. In trials the lane times them; a last bucket must come after those
        of its step that the lane has, and a broken lane has an error to raise.

        Args:
            reason: Why it is not compressed, whatever the bypass says; None if it is.
        """
        bypass, buffer = self._bypass, bucket.buffer()
        if not is_on_gpu(buffer) or lane.size == 1 or lane.broken or (bypass is not None and bypass.trying):
            return None
        is_coded = reason is None and (bypass is None or bypass.compresses(buffer.nbytes))
        return None if is_coded or (bucket.is_last() and self._any_on_lane) else own_group_of(lane)

    def _take_beside_lane(self) -> list[Callable[[], object]]:
        taken, self._beside_lane = self._beside_lane, []
        return taken

    def _settle(self) -> None:
        """Wait until the lane has ended the last step, on which the next one's choices depend. Raises its error."""
        ended, self._step_end = self._step_end, None
        if ended is not None:
            ended.wait()

    def _end_bucket(self, index: int, buffer: torch.Tensor, counters: Counters, result: torch.Tensor) -> torch.Tensor:
        """Check and count a bucket that has been reduced, and return its result."""
        self._check(result, buffer)
        self._stats.add(index, counters)
        self._compressed_any |= not counters.dense and not self._is_reduced_by(OWN_CODEBOOKS, counters.raw_bytes)
        return result

    def _options(self) -> dict[str, object]:
        """Return what must be equal on all ranks, by name."""
        bypass, refresh = self._bypass, self._codebook_refresh
        tried = None if bypass is None else (bypass.step, bypass.start, bypass.default, sorted(bypass.verdicts.items()))
        loaded = agreement_of(refresh.step, refresh.renewed, self._codebooks.digest, tried)
        return {
            "state": type(self).__name__,
            "mode": option_of(self.mode) if self._cast is None else self.mode.accuracy,
            "refresh": self.refresh,
            "bypass": None if bypass is None else bypass.config,
            "min_bytes": self.min_bytes,
            "loaded state": f"of step {refresh.step}, checksum {loaded:x}" if refresh.step else None,
        }

    def _reason_of(self, bucket: GradBucket, counters: Counters) -> str | None:
        """Return why a bucket is not compressed, whatever the bypass says; None if it is. It is counted."""
        buffer = bucket.buffer()
        reason = type_reason(buffer, holds_complex(bucket))
        is_small = reason is None and buffer.nbytes < max(self.min_bytes, 1)
        reason = small_reason(self.min_bytes, "buckets") if is_small else reason
        self._uncompressed.add(counters.raw_bytes, reason, is_small)
        return reason

    def _job(self, lane: Lane, bucket: GradBucket, counters: Counters, reason: str | None) -> LaneJob:
        """Return the job that reduces a bucket, compressed or not, and whose value is the average.

        Args:
            counters: Takes times and bytes.
            reason: Why it is not compressed, whatever the bypass says; None if it is.
        """
        buffer, index = bucket.buffer(), bucket.index()
        on_gpu = is_on_gpu(buffer)
        if lane.size == 1:
            return identity_job(buffer) if on_gpu else LaneJob(lambda: buffer)
        label = self._label(index)
        dense = LaneJob(lambda: start_dense_allreduce(lane, buffer, True, counters, label), begins=True)
        if on_gpu:
            dense = gpu_dense_allreduce_job(lane, buffer, True, counters, label, is_timed=self._is_trying)
        if reason is not None:
            return dense
        # A rank reads its own values for the last time before it writes results over them; but of two ranks that round
        # theirs, each keeps what it rounded where the result will be, while it encodes.
        in_place = not on_gpu and (lane.size > 2 or isinstance(self.mode, Lossless))
        gradients, result = self._gradients(bucket), buffer if in_place else self._result_for(bucket)
        request = ReduceRequest(lane, buffer, result, self.mode, True, counters, gradients, label)
        if on_gpu:
            coded = gpu_reduction_job(request, self._gpu_codebooks(index, buffer), goes_on=self._goes_on)
        else:
            coded = self._coded_job(request, self._shared(gradients))
        if self._bypass is None:
            return coded
        jobs = {CODED: coded, DENSE: dense} | ({} if on_gpu else self._other_jobs(request, gradients))
        reduce = partial(_as_bypass_decides, self._bypass, request, jobs)
        return LaneJob(reduce, coded.abort, coded.devices, coded.place, coded.begins)

    def _label(self, index: int) -> str:
        return f"step {self._stats.steps}, bucket {index}"

    def _goes_on(self) -> bool:
        """Return True if a bucket on a device is left to it, and confirmed with the others at the end of the step. On
        the lane's thread."""
        # The first step may have no last bucket: with static_graph, DDP's has none.
        goes_on = self._stats.steps > 0 and not self._is_trying()
        self._unconfirmed |= goes_on
        return goes_on

    def _is_trying(self) -> bool:
        """Return True in the steps of a trial, whose seconds must not be left to the next. On the lane's thread."""
        return self._bypass is not None and self._bypass.trying

    def _other_jobs(self, request: ReduceRequest, gradients: Gradients) -> dict[int, LaneJob]:
        """Return the jobs that reduce a bucket in CPU memory in further ways that keep the mode's promise."""
        jobs, flat, cast = {OWN_CODEBOOKS: self._coded_job(request, None)}, request.flat, self._cast
        codebooks = self._shared(gradients)
        if codebooks is not None:
            jobs[UNPREDICTED] = self._coded_job(request, codebooks._replace(predicts=False))
        if cast is not None and flat.element_size() > cast.itemsize:
            start = partial(start_cast_allreduce, request.lane, flat, cast, request.counters, request.label)
            jobs[CAST] = LaneJob(start, begins=True)
        return jobs

    def _is_reduced_by(self, way: int, n_bytes: int) -> bool:
        """Return True if the bypass chooses a way for buckets of this size in this step."""
        return self._bypass is not None and self._bypass.way_for(n_bytes) == way

    def _coded_job(self, request: ReduceRequest, codebooks: BufferCodebooks | None) -> LaneJob:
        """Return the job that reduces a bucket in CPU memory, compressed.

        Args:
            request: What to reduce, and how.
            codebooks: The codebooks that ranks share; None for frames that carry their own.
        """
        coded = allreduce_job(request, codebooks, self.threads)
        if codebooks is None:
            return coded

        def prepare_and_reduce() -> Any:
            n_levels = len(request.mode.bit_layout(request.dtype).levels)
            self._codebooks.prepare(codebooks.numbers.tolist(), request.dtype.head_bits, n_levels)
            return coded.run()

        return LaneJob(prepare_and_reduce, coded.abort, begins=coded.begins)

    def _gradients(self, bucket: GradBucket) -> Gradients:
        """Return :func:`gradients_of` a bucket, kept until DDP forms another bucket of any of its parameters."""
        params = tuple(map(id, bucket.parameters()))
        if params not in self._layouts:
            for former in [known for known in self._layouts if not set(known).isdisjoint(params)]:
                del self._layouts[former]
                self._results.pop(former, None)
            self._layouts[params] = gradients_of(bucket)
            self._check_held(bucket.index(), set(params))
        return self._layouts[params]

    def _check_held(self, index: int, params: set[int]) -> None:
        """Warn, once, where the optimizers given are other ones than those that will take the step."""
        if isinstance(self.mode, NearLossless) and not self._warned and params.isdisjoint(map(id, self.mode.params)):
            self._warned = True
            text = f"no optimizer of the mode holds a parameter of bucket {index}: these gradients keep all their bits"
            warnings.warn(text, stacklevel=2)

    def _shared(self, gradients: Gradients) -> BufferCodebooks | None:
        if self.refresh is None:
            return None
        numbers = np.array([self._number(segment.param) for segment in gradients.segments], np.int64)
        return BufferCodebooks(self._codebooks, gradients, numbers)

    def _gpu_codebooks(self, index: int, buffer: torch.Tensor) -> GpuCodebooks | None:
        """Return the codebooks of a bucket on a GPU. The key has all that may change: DDP rebuilds buckets."""
        if self.refresh is None:
            return None
        key = index, buffer.numel(), buffer.dtype, repr(self.mode.terms)
        return self._kept_gpu_codebooks.setdefault(key, GpuCodebooks(self.refresh))

    def _result_for(self, bucket: GradBucket) -> torch.Tensor:
        """Return the memory of a bucket's result, the same in every step: DDP reads it before the next begins."""
        # Not by the index: buckets of two models that share this state may be under way at once.
        params, buffer = tuple(map(id, bucket.parameters())), bucket.buffer()
        kept = self._results.get(params)
        if kept is None or kept.shape != buffer.shape or kept.dtype != buffer.dtype:
            kept = self._results[params] = torch.empty_like(buffer)
        return kept

    def _number(self, param: torch.Tensor) -> int:
        """Return a parameter's number, counted in the order in which parameters are first seen."""
        if id(param) not in self._numbers:
            self._numbers[id(param)] = len(self._params)
            self._params.append(param)
        return self._numbers[id(param)]

    def _likely_types(self) -> list[torch.dtype]:
        """Return the types that gradients in CPU memory will probably have. Kernels for others are compiled when one
        arrives, and so are all of them where gradients may as well be on a device."""
        if not isinstance(self.mode, NearLossless):
            return [] if torch.cuda.is_available() else [torch.float32]
        return [param.dtype for param in self.mode.params if param.requires_grad and param.is_cpu]

    def _precompile(self, dtype: torch.dtype) -> None:
        key = dtype, repr(type(self.mode))
        if key not in self._warm and dtype in TYPES:
            precompile_kernels(TYPES[dtype], self.mode, self.refresh)
            self._warm.add(key)

    def _end_step(self, lane: Lane, beside: Sequence[Callable[[], object]]) -> None:
        """End a step, on the lane's thread; ``beside`` ends its buckets that were reduced beside the lane."""
        for end_bucket in beside:
            end_bucket()
        self._stats.end_step()
        self._uncompressed.end_step(lane.rank)
        if self.refresh is not None and self._compressed_any:
            self._codebook_refresh.end_step(lane)
        if self._bypass is not None and lane.size > 1:
            self._bypass.end_step(lane)
        self._compressed_any = False

    @staticmethod
    def _check(result: torch.Tensor, buffer: torch.Tensor) -> None:
        """Raise InvalidArgument for a result unlike its bucket: DDP would take any length and type silently."""
        if result.shape != buffer.shape or result.dtype != buffer.dtype or result.device != buffer.device:
            raise InvalidArgument(
                f"a result of {tuple(result.shape)} {result.dtype} for a bucket of {tuple(buffer.shape)} {buffer.dtype}"
            )

    def stats(self) -> dict[str, Any]:
        """Return statistics of this rank by name. Call it between steps.

        * ``sent_bytes``, ``received_bytes``: with every header; ``dense_bytes``: what a dense ring would have sent;
          ``ratio``: of that to what was sent
        * ``raw_bytes``, ``encoded_bytes``, ``decoded_bytes``: bytes of values, given in, encoded and decoded
        * ``steps``; ``calls``: all-reduces; ``dense``: those of them that were not compressed
        * ``encode_seconds``, ``level_seconds`` (part of these), ``decode_seconds``, ``sum_seconds``, ``wait_seconds``,
          and ``seconds`` in all: buckets overlap. On CUDA devices those of uncompressed buckets are the host's alone,
          but in a trial of the bypass
        * ``bits_per_symbol``, ``entropy_per_symbol``: what a head took in the latest step that is known, and could
          have taken; NaN before the first refresh
        * ``refreshes``, ``refresh_bytes``: of shared codebooks; ``own_codebooks``: frames that these did not suit
        * ``last_step``, ``buckets``: the sums above, of the last step and of each bucket
        * ``accuracy``: of the mode, as text
        * ``bypass_way``: how buckets are reduced by the bypass' choice; ``bypass_ways_ms``, ``bypass_ratios``: what its
          trial found of each way; others of its numbers begin with ``bypass_``, too
        """
        self._settle()
        bypass: dict[str, Any] = {}
        if self._bypass is not None:
            found = {"bypass_ways_ms": self._bypass.way_ms, "bypass_ratios": self._bypass.way_ratios}
            bypass = {**self._bypass.numbers, "bypass_way": self._bypass.way_name, **found}
        return {"accuracy": self.mode.accuracy, **self._stats.numbers(), **bypass}

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs, for :meth:`load_state_dict`. Call it between steps, after a backward pass.

        All of it is numbers and strings: ``torch.load`` reads it with ``weights_only=True``, and a distributed
        checkpoint in place.

        All but this rank's counts is the same on every rank; these are under ``"rank<r>"``, so that a distributed
        checkpoint keeps each rank's.
        """
        self._settle()
        codebooks, counts = self._codebooks.state_dict()
        bypass = {} if self._bypass is None else self._bypass.state_dict()
        shared = {"rounds": self._codebook_refresh.state_dict(), "bypass": bypass, "codebooks": codebooks}
        return {"version": 1, "shared": pack_state(shared), f"rank{self._rank()}": pack_state(counts)}

    @naming_damaged_state()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state_dict`. Call it on all ranks, before the first step.

        All ranks may load one rank's state, or each its own, which also has what it counted for the next refresh.
        Either way the gradients are those of the uninterrupted run, bit for bit.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            InvalidArgument: The state is another version's.
        """
        self._settle()
        check_state(state)
        if state.get("version") != 1 or "shared" not in state:
            raise InvalidArgument(
                f"state must be a hook's state of version 1, with 'shared'; it is of version {state.get('version')} "
                f"and has {list(state)}"
            )
        shared, counts = unpack_state(state["shared"]), state.get(f"rank{self._rank()}")
        self._codebooks.load_state_dict(shared["codebooks"], None if counts is None else unpack_state(counts))
        self._codebook_refresh.load_state_dict(shared["rounds"])
        if self._bypass is not None and shared["bypass"]:
            self._bypass.load_state_dict(shared["bypass"])

    def __getstate__(self) -> dict[str, Any]:
        """Return what ``torch.save`` of the DDP model stores: the options but ``group``, and :meth:`state_dict`."""
        bypass = None if self._bypass is None else self._bypass.config
        names = "refresh", "min_bytes", "threads", "timeout"
        mode = self.mode if self._cast is None else self.mode.accuracy
        options = {name: getattr(self, name) for name in names} | {"mode": mode, "bypass": bypass}
        return {"options": options, "state": self.state_dict()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        """Make the state anew, on the world's group; assign ``group`` before the first step for another one."""
        self.__init__(**saved["options"])  # type: ignore[misc]  # all that a state holds is made there
        self.load_state_dict(saved["state"])

    def _rank(self) -> int:
        return dist.get_rank(self.group) if dist.is_initialized() else 0


def _as_bypass_decides(bypass: BypassController, request: ReduceRequest, jobs: dict[int, LaneJob]) -> Any:
    """Run one of the jobs for a bucket, by way, and tell the bypass when it ends. Return the job's value."""

    def record(flat: torch.Tensor) -> torch.Tensor:
        bypass.add(request.flat.nbytes, request.counters)
        return flat

    way = bypass.way_for(request.flat.nbytes)
    if way in CODING:
        return then(jobs.get(way, jobs[CODED]).run(), record)
    value = jobs.get(way, jobs[DENSE]).run()
    return record(result_of(value)) if bypass.kind == TIMED else value
