"""The compressed all-reduce of one tensor, and what it shares with the hooks: choosing between codec and plain Gloo."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any, Literal, overload

import torch
import torch.distributed as dist

from ...dtypes import DType
from ...errors import InvalidArgument, Unsupported, check_choice, check_flag, check_int, check_optional_int
from ...tensors import values_of
from ..gradients import Gradients
from ..modes import Mode, NearLossless, mode_of
from ..stats import Counters, moved_bytes
from ..transport.arguments import check_not_expanded, check_optional_duration
from ..transport.jobs import ALL_REDUCE, Future, LaneJob, StartedJob, result_of
from ..transport.lane import Lane, lane_of
from ..transport.transfers import labeled
from ..uncompressed import UncompressedLog, small_reason, type_reason
from .coder import BufferCodebooks, Coder
from .gpu_jobs import gpu_in_place_allreduce_job, is_on_gpu
from .level_chooser import LevelChooser
from .reduce import Reduction
from .reduce_request import TYPES, ReduceRequest

_log = UncompressedLog("allreduce")
MIN_BYTES = 1 << 16  #: bytes; what is smaller goes through Gloo as it is, where latency is all that counts


@overload
def allreduce(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    op: str = "sum",
    mode: Mode | str | None = None,
    *,
    params: torch.Tensor | Sequence[torch.Tensor] | None = None,
    async_op: Literal[False] = False,
    min_bytes: int = MIN_BYTES,
    threads: int | None = None,
    timeout: timedelta | None = None,
) -> None: ...


@overload
def allreduce(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    op: str = "sum",
    mode: Mode | str | None = None,
    *,
    params: torch.Tensor | Sequence[torch.Tensor] | None = None,
    async_op: Literal[True],
    min_bytes: int = MIN_BYTES,
    threads: int | None = None,
    timeout: timedelta | None = None,
) -> Future: ...


def allreduce(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    op: str = "sum",
    mode: Mode | str | None = None,
    *,
    params: torch.Tensor | Sequence[torch.Tensor] | None = None,
    async_op: bool = False,
    min_bytes: int = MIN_BYTES,
    threads: int | None = None,
    timeout: timedelta | None = None,
) -> Future | None:
    """Sum a tensor over all ranks in place, compressed on the wire; every rank ends with the same bits.

    Sums are made in the order of ranks, those of narrow types in float32. A group of one rank leaves the tensor as it
    is. Nothing is written to the tensor before every message has proved right. Source: GComp, Figure 8;
    docs/algorithms/all-reduce.md.

    Args:
        tensor: float32, float64, float16 or bfloat16, any shape and strides, the same number of values on all ranks;
            in CPU memory, or on a CUDA device (docs/gpu.md; float64 goes there uncompressed).
        group: A process group, default the world's. Its ranks must make these calls in the same order, and the first
            one makes a private Gloo group.
        op: "sum", or "avg": the sum divided by the number of ranks.
        mode: How values may be changed: a mode, or "exact", "bf16" or "fp16"; default ``Lossless()``.
        params: For ``NearLossless``, the parameter whose gradient the tensor is, or the parameters whose gradients it
            holds end to end.
        async_op: Return at once, with a :class:`Future`. Do not touch the tensor until its ``wait`` returns. On CUDA
            devices, several that are started before the first is waited for take fewer waits for the device.
        min_bytes: Bytes below which nothing is compressed, nor rounded.
        threads: Threads of the codec; default all cores.
        timeout: Time after which a silent rank is an error; default the group's own. Only the first call's on a group
            counts.

    Returns:
        A future for ``async_op``, else None.

    Raises:
        InvalidArgument: An argument has another type or value.
        Unsupported: The tensor is on another kind of device.
        PeerError: The exchange failed; the error names the rank. After that every call on this group fails, until
            ``close_lanes`` on all ranks.
        Corruption: A message arrived damaged; otherwise as PeerError.
    """
    mode, dtype = mode_of(mode), _checked(tensor, op)
    mode.bit_layout(dtype)  # raises where the mode has no ladder for the type, before other ranks wait
    min_bytes, threads = check_int("min_bytes", min_bytes), check_optional_int("threads", threads)
    timeout = check_optional_duration("timeout", timeout)
    check_flag("async_op", async_op)
    dense = tensor.detach().contiguous().view(-1)
    gradients = None
    if params is not None:
        gradients = Gradients.of(_parameters(params), dense.numel())
    elif isinstance(mode, NearLossless):
        raise InvalidArgument("params must be given for NearLossless: the parameters whose gradients the tensor holds")
    lane = lane_of(group, timeout)
    small = dense.nbytes < max(min_bytes, 1)
    _say_uncompressed(lane, dense, min_bytes)
    if lane.size == 1:
        job = LaneJob(lambda: None)
    elif is_on_gpu(tensor):
        job = gpu_in_place_allreduce_job(lane, tensor, dense, mode, op == "avg", gradients, compress=not small)
    elif small:
        job = LaneJob(lambda: _put_back(tensor, dense_allreduce(lane, dense.clone(), op == "avg", Counters())))
    else:
        request = ReduceRequest(lane, dense, torch.empty_like(dense), mode, op == "avg", Counters(), gradients)
        coded = allreduce_job(request, threads=threads)
        job = LaneJob(lambda: _put_back(tensor, result_of(coded.run())), coded.abort)
    future = lane.submit(job, ALL_REDUCE)
    if async_op:
        return future
    future.wait()
    return None


def _say_uncompressed(lane: Lane, flat: torch.Tensor, min_bytes: int) -> None:
    """Say in the log, once for each reason, why a tensor is not compressed, if it is not."""
    reason = type_reason(flat)
    if lane.size == 1:
        return
    if reason is not None:
        _log.say(lane.rank, reason, f"not compressed are {reason}")
    elif flat.nbytes < max(min_bytes, 1):
        _log.say(lane.rank, "small", f"not compressed are {small_reason(min_bytes, 'tensors')}", logging.INFO)


def _parameters(params: Any) -> list[torch.Tensor]:
    """Return the parameters as a list; their types are checked where they are used. Raises InvalidArgument."""
    if isinstance(params, torch.Tensor):
        return [params]
    try:
        return list(params)
    except TypeError:
        raise InvalidArgument(f"params must be a tensor or several, not a {type(params).__name__}") from None


def _checked(tensor: torch.Tensor, op: str) -> DType:
    check_choice("op", op, ("sum", "avg"))
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"tensor must be a torch.Tensor, not a {type(tensor).__name__}")
    if tensor.layout != torch.strided or tensor.dtype not in TYPES:
        raise InvalidArgument(
            f"tensor must be dense and of float16, bfloat16, float32 or float64, not {tensor.layout} of {tensor.dtype}"
        )
    if not tensor.is_cpu and not is_on_gpu(tensor):
        raise Unsupported(f"tensors on {tensor.device.type} are not supported: call .cpu() first")
    check_not_expanded("tensor", tensor)
    if tensor.is_inference():
        raise InvalidArgument("tensor must not be one of inference mode: call .clone() outside of that mode first")
    return TYPES[tensor.dtype]


def _put_back(tensor: torch.Tensor, result: torch.Tensor) -> None:
    tensor.detach().copy_(result.view(tensor.shape))


def dense_allreduce(
    lane: Lane, flat: torch.Tensor, mean: bool, counters: Counters, label: str = "all-reduce"
) -> torch.Tensor:
    """Reduce a tensor in place by Gloo's own all-reduce, on the lane's thread. As in DDP a mean is divided first.

    Args:
        lane: The lane of the group.
        flat: This rank's values, contiguous.
        mean: Divide the sum by the number of ranks.
        counters: Takes times and bytes.
        label: Begins the texts of errors.

    Returns:
        ``flat``.

    Raises:
        PeerError: Some rank failed or is silent.
    """
    reduced: torch.Tensor = start_dense_allreduce(lane, flat, mean, counters, label).finish()
    return reduced


def start_dense_allreduce(
    lane: Lane, flat: torch.Tensor, mean: bool, counters: Counters, label: str = "all-reduce"
) -> StartedJob:
    """Start :func:`dense_allreduce`, with the same arguments: Gloo does several at a time, and goes on beside the lane.

    The seconds of ``counters`` are those until somebody asks for the end.
    """
    start = perf_counter()
    if mean and flat.is_sparse:  # as those of an embedding, it may have the memory of gradients that are still needed
        flat.copy_(flat / lane.size)
    elif mean:
        flat.div_(lane.size)
    label = f"{label}, uncompressed"
    work = labeled(label, lambda: lane.group.allreduce([flat]))

    def finish() -> torch.Tensor:
        labeled(label, work.wait)
        counters.add_dense(moved_bytes(flat), lane.size, perf_counter() - start)
        return flat

    return StartedJob(finish, has_ended=work.is_completed)


def start_cast_allreduce(
    lane: Lane, flat: torch.Tensor, dtype: torch.dtype, counters: Counters, label: str
) -> StartedJob:
    """Start Gloo's own all-reduce of values cast to 16 bits, averaged in place: the bits of torch's compression hooks.

    Args:
        lane: The lane of the group.
        flat: This rank's values, contiguous, float32 or float64.
        dtype: bfloat16 or float16.
        counters: Takes times and bytes.
        label: Begins the texts of errors.
    """
    start = perf_counter()
    narrow = flat.to(dtype)
    counters.seconds += perf_counter() - start
    return start_dense_allreduce(lane, narrow, True, counters, label).then(flat.copy_)


def allreduce_job(
    request: ReduceRequest, codebooks: BufferCodebooks | None = None, threads: int | None = None
) -> LaneJob:
    """Return the job that all-reduces a buffer in CPU memory. Its value is the request's result, as a ``StartedJob``.

    Args:
        request: What to reduce, and how.
        codebooks: The codebooks that ranks share; None for frames that carry their own.
        threads: Threads of the codec; default all cores.
    """
    reduction = partial(reduction_of, request, codebooks, threads)
    return LaneJob(lambda: _started(reduction(), request.result), lambda error: reduction().abort(error), begins=True)


def reduction_of(
    request: ReduceRequest,
    codebooks: BufferCodebooks | None,
    threads: int | None,
    kind: type[Reduction] = Reduction,
) -> Reduction:
    """Make the reduction of a request. Runs on the lane's thread, as optimizers' state is read here.

    Args:
        request: What to reduce, and how.
        codebooks: The codebooks that ranks share; None for frames that carry their own.
        threads: Threads of the codec; None for all cores.
        kind: The class to make: an all-reduce, a reduce-scatter or an all-gather.
    """
    lane, dtype, mode, gradients = request.lane, request.dtype, request.mode, request.gradients
    level_chooser = request.level_chooser(LevelChooser)
    values, result = values_of(request.flat).bits, values_of(request.result).bits
    shapes = [(len(values),)] if gradients is None else gradients.shapes
    coder = Coder(dtype, mode.bit_layout(dtype), level_chooser, codebooks, shapes, threads, request.counters)
    terms: tuple[Any, ...] = (*mode.terms, digest_of(codebooks))
    return kind(lane, coder, values, result, mean=request.mean, terms=terms, label=request.label)


def half_job(
    request: ReduceRequest, codebooks: BufferCodebooks | None, threads: int | None, kind: type[Reduction]
) -> LaneJob:
    """Return the job that makes a half of an all-reduce alone, to its end; arguments as of :func:`reduction_of`. Its
    value is the request's result."""
    half = partial(reduction_of, request, codebooks, threads, kind)

    def run() -> torch.Tensor:
        half().run()
        return request.result

    return LaneJob(run, lambda error: half().abort(error))


def _started(reduction: Reduction, result: torch.Tensor) -> StartedJob:
    """Begin a reduction, and return the rest of it, whose value is ``result``."""
    reduction.begin()

    def finish() -> torch.Tensor:
        while reduction.advance():
            pass
        return result

    # ``advance`` returns the job itself as long as there is more to do, and so is called again.
    started = StartedJob(finish, lambda: started if reduction.advance() else result)
    return started


def digest_of(shared: BufferCodebooks | None) -> int | None:
    """Return a number that stands for the codebooks that ranks share, about which they must agree."""
    return None if shared is None else shared.codebooks.digest
