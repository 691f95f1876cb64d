"""The DDP hook's state for compressors such as Top-k, DGC, PowerSGD and GradZip, and what they keep."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...averaging.averager import Averager, CompressionPlan, compression_plan
from ...averaging.state import pack_by_tensor, unpack_by_tensor
from ...compressors import Compressor, Frames, alone
from ...compressors.contract import Request
from ...errors import InvalidArgument, Unsupported, check_state, naming_damaged_state
from ..conversation import ConversationRunner
from ..gradients import gradient_views, holds_complex
from ..reduction.allreduce import dense_allreduce
from ..reduction.gpu_jobs import side_stream_job
from ..reduction.reduce_request import TYPES
from ..stats import Counters, Stats, moved_bytes
from ..transport.arguments import check_group_member, check_model, check_optional_duration
from ..transport.jobs import ALL_REDUCE
from ..transport.lane import Lane, lane_with_options
from ..uncompressed import UncompressedBuckets, type_reason
from .group_check import check_group

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

_NOT_SAVED = "group", "_lane", "_names", "_uncompressed"  #: attributes of this process


class CompressedGradients:
    """State of the DDP hook that averages gradients with a compressor, such as Top-k or PowerSGD.

        state = gcodec.distributed.CompressedGradients(model, TopK(density=0.01))
        ddp.register_comm_hook(state, gcodec.distributed.hook)

    One state belongs to one DDP model. Making it compiles kernels, on a fresh installation. The averages are those of
    ``gcodec.averaging.simulate``, and the same on all ranks, bit for bit; low-rank compressors need the same BLAS and
    number of threads everywhere for that.

    Args:
        model: The module whose gradients come, wrapped by DDP or not, on the CPU or a CUDA device (docs/gpu.md). Its
            parameters' names tell tensors apart, however DDP forms its buckets. With ``find_unused_parameters`` give
            DDP's module, unless gradients are None between steps (``zero_grad(set_to_none=True)``).
        plan: A compressor, which gets error feedback; a
            :class:`~gcodec.averaging.averager.CompressionPlan`; or "fp8", which keeps 2 mantissa bits of each value,
            "int8" or "int4", integers with a scale for each 128 values; all three feed back the rest.
        optimizer: The optimizer that will take the step. Plans with momentum correction need it, to check that it has
            no momentum of its own.
        group: DDP's process group; default that of ``model``, if it is DDP's module, else the world.
        timeout: Time after which a silent rank is an error; default the group's own.

    Raises:
        InvalidArgument: torch.distributed is not initialized, or an argument has another type or value.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: CompressionPlan | Compressor | str,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise InvalidArgument("torch.distributed is not initialized: call init_process_group first")
        check_model(model)
        check_group_member(group)
        self.plan = compression_plan(plan)
        _check_optimizer(self.plan, optimizer)
        if group is None and isinstance(model, DistributedDataParallel):
            group = model.process_group
        self.group, self.timeout = group, check_optional_duration("timeout", timeout)
        module = model.module if isinstance(model, DistributedDataParallel) else model
        self._names = {id(param): name for name, param in module.named_parameters()}
        self._params = dict(module.named_parameters())  # keeps their ids from being used again
        self._ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.averager = Averager(self.plan, dist.get_rank(group), dist.get_world_size(group))
        if isinstance(model, DistributedDataParallel):  # it throws away the average of what no rank has used
            self.averager.skips_zeros = bool(model.find_unused_parameters)
        self._term_texts: dict[str, tuple[Compressor, torch.Size, torch.dtype, str]] = {}
        self._feedback = repr(self.plan.feedback)
        self._stats = Stats()
        self._uncompressed = UncompressedBuckets(type(self).__name__)
        self._step = 0  #: steps ended, of this run and those that it goes on from
        self._lane: Lane | None = None
        self._arrived: set[int] = set()  #: ids of the parameters whose buckets a backward pass has brought so far
        warm_compressor(self.plan.compressor, {param.dtype for param in self._params.values()})

    @property
    def compressors(self) -> dict[str, Compressor]:
        """Compressors of single parameters by name, in place of the plan's. Change them between steps, on all ranks."""
        return self.averager.compressors

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the averaging of a bucket, and return the future of its average. The hook calls it."""
        lane = self._lane_for(bucket)
        return self._start(bucket, lane, self._arrive(bucket)[1])

    def _start(self, bucket: GradBucket, lane: Lane, last: bool) -> torch.futures.Future[torch.Tensor]:
        buffer, index = bucket.buffer(), bucket.index()
        gradients = self._gradients(bucket)
        counters = Counters.of(moved_bytes(buffer), lane.size)
        runner = ConversationRunner(lane, self._terms(gradients), counters, f"step {self._stats.steps}, bucket {index}")
        conversation = self._conversation(gradients, last)

        def average_bucket() -> torch.Tensor:
            if not gradients:
                dense_allreduce(lane, buffer, True, counters)
            if conversation is not None:
                runner.run(conversation)
            self._count(lane, index, counters, last)
            return buffer

        abort = None if conversation is None else runner.abort
        return lane.submit(side_stream_job([buffer], average_bucket, abort), ALL_REDUCE).get_future()

    def _arrive(self, bucket: GradBucket) -> tuple[bool, bool]:
        """Return whether a bucket that has just arrived is the first of its backward pass, and whether it is the last.

        DDP tells, but for the first pass with ``static_graph``: there each of several buckets, as parameters of several
        types have, is number 0, and none the last.
        """
        params = set(map(id, bucket.parameters()))
        first = bucket.index() == 0 and not (self._arrived and self._arrived.isdisjoint(params))
        self._arrived = params if first else self._arrived | params
        last = bucket.is_last() or (bucket.index() == 0 and not first and self._arrived >= self._trained())
        if last:
            self._arrived = set()
        return first, last

    def _trained(self) -> set[int]:
        """Return the ids of the parameters that DDP averages."""
        return {id(param) for name, param in self._params.items() if param.requires_grad and name not in self._ignored}

    def _lane_for(self, bucket: GradBucket) -> Lane:
        """Return the lane, after a look at what would show later, or never. Raises InvalidArgument or Unsupported."""
        buffer = bucket.buffer()
        if not buffer.is_cpu and not (buffer.is_cuda and is_coded(bucket)):
            kind = "complex numbers" if holds_complex(bucket) else str(buffer.dtype)
            raise Unsupported(
                f"{buffer.layout} gradients of {kind} on {buffer.device.type} are not supported: outside of CPU "
                "memory only dense floats on CUDA devices are"
            )
        self._uncompressed.come(bucket)
        if self._lane is None:
            check_group(bucket.parameters(), self.group, self._uncompressed.log)
        unknown = sorted(self.compressors.keys() - self._params.keys())
        if unknown:
            raise InvalidArgument(
                "compressors must be set by the names of the model's own parameters, such as "
                f"{next(iter(self._params))!r}; {unknown[0]!r} is none of them (DDP's 'module.' is no part of a name)"
            )
        self._lane = lane_with_options(self._lane, self.group, self.timeout, self._options)
        return self._lane

    def _options(self) -> dict[str, object]:
        """Return what must be equal on all ranks from the beginning, by name."""
        return {"state": type(self).__name__, "plan": self.plan.terms}

    def _conversation(self, gradients: dict[str, torch.Tensor], last: bool) -> Averages | None:
        """Return the conversation that puts averages in the place of a bucket's gradients, or None if it has none."""
        return self.averager.average(gradients, self._params, in_place=True) if gradients else None

    # Whatever decides what is sent, and would otherwise show as messages that nobody expects.
    def _terms(self, gradients: dict[str, torch.Tensor]) -> tuple[object, ...]:
        """Return what ranks compare in every conversation."""
        tensors = [self._term(name, x, self.averager.compressor_of(name, x)) for name, x in gradients.items()]
        return "compressors", tensors, self._feedback, self._step

    def _term(self, name: str, gradient: torch.Tensor, compressor: Compressor) -> str:
        """Return a tensor and its compressor as text, kept, as making it takes longer than a small tensor's product."""
        kept = self._term_texts.get(name)
        if kept is None or kept[0] is not compressor or kept[1] != gradient.shape or kept[2] != gradient.dtype:
            text = repr((name, tuple(gradient.shape), str(gradient.dtype), compressor))
            self._term_texts[name] = kept = compressor, gradient.shape, gradient.dtype, text
        return kept[3]

    def _count(self, lane: Lane, index: int, counters: Counters, last: bool) -> None:
        self._stats.add(index, counters)
        if last:
            self._stats.end_step()
            self._uncompressed.end_step(lane.rank if lane.size > 1 else None)
            self._step += 1

    def _gradients(self, bucket: GradBucket) -> dict[str, torch.Tensor]:
        """Return a bucket's gradients by name; none where it does not hold dense floats."""
        gradients: dict[str, torch.Tensor] = {}
        if not is_coded(bucket):
            buffer = bucket.buffer()
            self._uncompressed.add(moved_bytes(buffer), type_reason(buffer, holds_complex(bucket)))
            return gradients
        for param, gradient in gradient_views(bucket):
            name = self._names.get(id(param))
            if name is None:
                raise InvalidArgument(
                    "model must be the one that DDP trains, with all parameters that it has now: the state knows none "
                    f"that is this one of {tuple(param.shape)}; after adding parameters make a new state"
                )
            if param.grad is None:  # a parameter that this rank has used has its gradient by now
                self.averager.skips_zeros = True
            gradients[name] = gradient
            is_small = not self.plan.compresses(gradient)
            self._uncompressed.add(gradient.nbytes, small_tensor_reason(self.plan) if is_small else None, is_small)
        return gradients

    def stats(self) -> dict[str, Any]:
        """Return wire bytes and seconds as ``CompressedAllreduce.stats``: in all, by bucket, and of the last step.

        Under ``compressor`` stand the counts of :class:`~gcodec.averaging.averager.Count` with its two ratios. Call it
        between steps.
        """
        count = self.averager.total
        counts = {**vars(count), "ratio": count.ratio, "float_ratio": count.float_ratio}
        return {**self._stats.numbers(), "compressor": counts}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, such as residuals and factors, for its checkpoint. Call it between steps.

        All of it is numbers and strings: ``torch.load`` reads it with ``weights_only=True``, and a distributed
        checkpoint in place. It stands under ``"rank<r>"``; only all ranks' together are the state of a run.
        """
        return {"version": 1, self._key: self._packed()}

    @naming_damaged_state()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the same rank's :meth:`state_dict`, bit for bit. Call it before the first step.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            InvalidArgument: The state is another version's or another rank's, or of a model with other names or shapes.
        """
        check_state(state)
        packed: Any = state.get(self._key)
        parts = packed.keys() if isinstance(packed, Mapping) else set()  # a text in the state of CompressedAllreduce
        if state.get("version") != 1 or not {"averager", "tensors"} <= parts:
            raise InvalidArgument(
                f"state must be of version 1 and have {self._key}, with 'averager' and 'tensors', as each rank saves "
                f"and loads its own; it is of version {state.get('version')} and has {list(state)}"
            )
        self._unpack(packed)

    def __getstate__(self) -> dict[str, Any]:
        """Return what ``torch.save`` of the DDP model stores: all but the group and what belongs to this process."""
        return {key: value for key, value in vars(self).items() if key not in _NOT_SAVED}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        """Restore a state of this rank, on the world's group. Raises InvalidArgument for another rank's."""
        vars(self).update(saved)
        ours = dist.get_rank(), dist.get_world_size()
        if (self.averager.rank, self.averager.size) != ours:
            raise InvalidArgument(
                f"a state of rank {self.averager.rank} of {self.averager.size} cannot be loaded on rank {ours[0]} of "
                f"{ours[1]}: it holds that rank's residuals"
            )
        self.group = self._lane = None
        self._uncompressed = UncompressedBuckets(type(self).__name__)
        self._names = {id(param): name for name, param in self._params.items()}

    @property
    def _key(self) -> str:
        """The key of this rank's part of a state."""
        return f"rank{self.averager.rank}"

    def _packed(self) -> dict[str, Any]:
        return pack_by_tensor({**self.averager.state_dict(), "step": self._step}, self._params)

    def _unpack(self, packed: dict[str, Any]) -> None:
        state = unpack_by_tensor(packed, self._params)
        if "step" not in state:
            raise InvalidArgument("state must be one of CompressedGradients, not of AdaptiveGradients")
        self.averager.load_state_dict(state)
        self._step = int(state["step"])


Averages = Generator[Request, Any, dict[str, torch.Tensor]]


def is_coded(bucket: GradBucket) -> bool:
    """Return whether a compressor takes a bucket. Gloo reduces the others uncompressed."""
    buffer = bucket.buffer()
    return not buffer.is_sparse and buffer.dtype in TYPES and not holds_complex(bucket)


def small_tensor_reason(plan: CompressionPlan) -> str:
    """Return why a plan compresses no tensor that is small, or of one dimension."""
    shape, more = ("", "") if plan.vectors else (" or of one dimension", ", vectors=True")
    return f"tensors of fewer than {plan.min_values} values{shape} (a CompressionPlan with min_values=0{more} has none)"


def _check_optimizer(plan: CompressionPlan, optimizer: torch.optim.Optimizer | None) -> None:
    if plan.feedback is None:
        return
    if optimizer is not None:
        plan.feedback.check(optimizer)
    elif plan.feedback.needs_optimizer:
        raise InvalidArgument(
            f"optimizer must be given for {type(plan.feedback).__name__}, and have no momentum of its own"
        )


def trial_gradient(dtype: torch.dtype) -> torch.Tensor:
    """Return a small gradient to compile kernels with, drawn of a generator that the training does not draw of."""
    random = torch.Generator("cpu").manual_seed(0)
    return torch.randn(64, 48, generator=random, dtype=torch.float32, device="cpu").to(dtype)


def warm_compressor(compressor: Compressor, dtypes: set[torch.dtype]) -> None:
    """Compile the kernels that a compressor needs, before other ranks wait for this one."""
    if isinstance(compressor, Frames) and compressor.optimizer is not None:
        return
    for dtype in sorted(dtypes & TYPES.keys(), key=str):
        gradient = trial_gradient(dtype)
        alone(Averager(CompressionPlan(compressor, None, min_values=0)).average({"": gradient}))
