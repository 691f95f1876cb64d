"""A lane's jobs for tensors on CUDA devices.

A job runs on a side stream, which waits for the work that training's stream had been given when the job was made.
Contributions of buckets are encoded on a stream of their own, which does the same. Waiting for a job makes streams wait
for each other, never the host for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from ..gradients import Gradients
from ..modes import Mode
from ..stats import Counters
from ..transport.gpu import gpu_transport_of
from ..transport.jobs import LaneJob, StartedJob, then
from ..transport.lane import Lane
from ..transport.small_exchange import tell
from ..transport.transfers import labeled
from . import gpu_chain
from .gpu_coder import (
    TYPES,
    GpuCodebooks,
    GpuCoder,
    KeptCodebooks,
    devices_of,
    encoding_stream_of,
    side_stream_of,
)
from .gpu_levels import GpuLevelChooser
from .gpu_reduce import GpuReduction
from .reduce_request import ReduceRequest
from .shared_codebooks import Refresh

_kept: WeakKeyDictionary[Lane, KeptCodebooks] = WeakKeyDictionary()  #: of plain all-reduces, by lane


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on a CUDA device, where it is then reduced."""
    return tensor.is_cuda


def side_stream_job(
    buffers: Sequence[torch.Tensor], run: Callable[[], Any], abort: Callable[[BaseException], None] | None = None
) -> LaneJob:
    """Return the job that calls ``run`` on the side stream of the buffers' device, or for buffers on the host.

    Args:
        buffers: What ``run`` reads and writes, on one device; they are ready in the caller's current stream.
        run: Does the work, on the lane's thread.
        abort: As for :class:`LaneJob`; called where ``run`` fails, too.
    """
    side = side_stream_of(buffers[0].device)
    mark = side.mark()

    def run_on_side_stream() -> Any:
        side.after(mark, *buffers)
        try:
            return run()
        except BaseException as error:
            if abort is not None:
                abort(error)
            raise

    return LaneJob(run_on_side_stream, abort, devices_of(buffers[0]), side.current, touched=buffers)


def identity_job(flat: torch.Tensor) -> LaneJob:
    """Return the job of a group of one rank, whose value is ``flat`` as it is."""
    return side_stream_job([flat], lambda: flat)


def gpu_connect_job(lane: Lane, device: torch.device) -> LaneJob:
    """Return the job that makes, on a device, what the first all-reduce would else wait for: the lane's communicator,
    and its connections. The host waits for it."""
    sums = torch.zeros(lane.size, device=device)

    def connect() -> None:
        transport = gpu_transport_of(lane, device)
        transport.all_reduce(sums)
        frame = torch.zeros(8, dtype=torch.uint8, device=device)
        lengths = [0 if rank == lane.rank else 8 for rank in range(lane.size)]
        transport.swap([frame[:length] for length in lengths], lengths)()
        side_stream_of(device).finish()

    return side_stream_job([sums], lambda: labeled("warming up", connect))


def gpu_dense_allreduce_job(
    lane: Lane,
    flat: torch.Tensor,
    mean: bool,
    counters: Counters,
    label: str = "all-reduce",
    *,
    is_timed: Callable[[], bool] = lambda: True,
) -> LaneJob:
    """Return the job that reduces a tensor in place, uncompressed. As in DDP, a mean is divided before it is summed.

    Args:
        lane: The lane of the group.
        flat: This rank's values, contiguous.
        mean: Divide the sum by the number of ranks.
        counters: Takes times and bytes.
        label: Begins the texts of errors.
        is_timed: Asked on the lane's thread; True has the host wait for the device, so that the seconds counted are
            those of the network.
    """

    def reduce_uncompressed() -> torch.Tensor:
        start = perf_counter()
        if mean:
            flat.div_(lane.size)
        labeled(f"{label}, uncompressed", send)
        counters.add_dense(flat.nbytes, lane.size, perf_counter() - start)
        return flat

    def send() -> None:
        gpu_transport_of(lane, flat.device).all_reduce(flat)
        if is_timed():
            side_stream_of(flat.device).finish()

    return side_stream_job([flat], reduce_uncompressed, partial(tell, lane))


def start_on_own_group(
    group: dist.ProcessGroup, flat: torch.Tensor, counters: Counters, label: str
) -> torch.futures.Future[torch.Tensor]:
    """Start to average a tensor in place by the caller's own group, on the caller's thread, as DDP itself would, and
    return the future of it.

    Args:
        group: The group, whose other ranks all do the same.
        flat: This rank's values.
        counters: Takes bytes, and the host's time.
        label: Begins the texts of errors.
    """
    start = perf_counter()
    flat.div_(group.size())
    work = labeled(f"{label}, uncompressed", lambda: group.allreduce([flat]))
    counters.add_dense(flat.nbytes, group.size(), perf_counter() - start)
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return averaged


def gpu_dense_reduce_scatter_job(
    lane: Lane, flat: torch.Tensor, part: torch.Tensor, mean: bool, counters: Counters, label: str
) -> LaneJob:
    """Return the job that reduces and scatters a tensor on a CUDA device, uncompressed. Its value is the part.

    Args:
        lane: The lane of the group.
        flat: This rank's values.
        part: Takes this rank's part of the result.
        mean: Divide the sum by the number of ranks.
        counters: Takes times and bytes.
        label: Begins the texts of errors.
    """

    def reduce_uncompressed() -> torch.Tensor:
        start = perf_counter()
        labeled(f"{label}, uncompressed", lambda: gpu_transport_of(lane, flat.device).reduce_scatter(flat, part, mean))
        side_stream_of(flat.device).finish()  # so that the seconds counted are those of the network
        counters.add_dense(flat.nbytes, lane.size, perf_counter() - start, 1)
        return part

    return side_stream_job([flat, part], reduce_uncompressed)


def gpu_reduction_job(
    request: ReduceRequest,
    codebooks: GpuCodebooks | None = None,
    kind: type[GpuReduction] = GpuReduction,
    *,
    goes_on: Callable[[], bool] | None = None,
    touched: Sequence[torch.Tensor] = (),
) -> LaneJob:
    """Return the job that reduces a buffer on a CUDA device. Its value is the request's result.

    Args:
        codebooks: The codebooks kept for this buffer; None to make them anew.
        kind: An all-reduce, or a reduce-scatter, whose mode is not NearLossless, which has no meaning without all
            gradients.
        goes_on: For a buffer that no other job writes to, which is then encoded while those before travel. Asked on the
            lane's thread; True on all ranks leaves the end to the device, as a ``StartedJob``, which no rank has
            confirmed to the others: :func:`~gcodec.distributed.transport.small_exchange.confirmed` is for the caller.
        touched: Without ``goes_on``, the tensors that the caller's job reads and writes, if it may be confirmed
            together with those that follow, and then is a ``StartedJob`` (``gpu_chain``).
    """
    device, lane, label = request.flat.device, request.lane, request.label or "all-reduce"
    stream = side_stream_of(device) if goes_on is None else encoding_stream_of(device)
    mark = stream.mark()

    def reduce_compressed() -> torch.Tensor | StartedJob:
        stream.after(mark, request.flat)
        reduction = _reduction(request, codebooks, kind)
        waits = goes_on() if goes_on is not None else bool(touched) and gpu_chain.may_wait(lane, touched)
        started = reduction.run(stream, waits).then(lambda _: request.result)
        if goes_on is not None and reduction.ends_late:
            return StartedJob(partial(_or_tell, lane, started.finish), None, started.has_ended)
        ended: torch.Tensor | StartedJob = gpu_chain.add_link(lane, label, started, touched, reduction.ends_late)
        return ended

    return side_stream_job([request.flat, request.result], reduce_compressed, partial(tell, lane))


def _or_tell(lane: Lane, finish: Callable[[], Any]) -> Any:
    """Return what ``finish`` returns. If it fails, the other ranks are told: there may be no further job to do so."""
    try:
        return finish()
    except BaseException as error:
        tell(lane, error)
        raise


def _reduction(request: ReduceRequest, codebooks: GpuCodebooks | None, kind: type[GpuReduction]) -> GpuReduction:
    """Make the reduction of a request. Runs on the lane's thread, as optimizers' state is read here."""
    mode, values, result = request.mode, request.flat, request.result
    coder = GpuCoder(request.dtype, mode, request.level_chooser(GpuLevelChooser), codebooks, request.counters)
    return kind(request.lane, coder, values, result, mean=request.mean, terms=mode.terms, label=request.label)


def gpu_in_place_allreduce_job(
    lane: Lane,
    tensor: torch.Tensor,
    dense: torch.Tensor,
    mode: Mode,
    mean: bool,
    gradients: Gradients | None,
    *,
    compress: bool,
) -> LaneJob:
    """Return the job that all-reduces ``tensor`` in place, on a CUDA device; its value is ``tensor``.

    Args:
        lane: The lane of the group.
        tensor: The tensor to write the result to, of any strides.
        dense: Its values, contiguous and flat.
        mode: How values may be changed.
        mean: Divide the sum by the number of ranks.
        gradients: The parameters whose gradients the tensor holds, for NearLossless.
        compress: False to send the values as they are. Types that the codec does not have on GPUs always are.
    """
    # What optimizers' state says is read when the job begins: no job before may still have to write to it.
    touched = None if gradients is not None else [tensor, dense]
    if compress and dense.dtype in TYPES:
        request = ReduceRequest(lane, dense, torch.empty_like(dense), mode, mean, Counters(), gradients)
        codebooks = _kept_on(lane).of((dense.numel(), dense.dtype, mode.terms))
        job = gpu_reduction_job(request, codebooks, touched=[tensor, dense, request.result])
    else:
        job = gpu_dense_allreduce_job(lane, dense.clone(), mean, Counters(), is_timed=lambda: False)

    def put_back(result: torch.Tensor) -> torch.Tensor:
        # The job's own ``run`` makes the stream wait; ``tensor``, which it does not know, has to be recorded.
        side_stream_of(tensor.device).after(None, tensor)
        tensor.detach().copy_(result.view(tensor.shape))
        return tensor

    return LaneJob(lambda: then(job.run(), put_back), job.abort, job.devices, job.place, touched=touched)


def _kept_on(lane: Lane) -> KeptCodebooks:
    """Return the codebooks that are kept for the plain all-reduces of a lane's group."""
    return _kept.setdefault(lane, KeptCodebooks(Refresh()))
