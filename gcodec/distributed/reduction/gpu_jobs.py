"""A lane's jobs for tensors on CUDA devices.

A job runs on a side stream, which waits for the work that training's stream had been given when the job was made.
Waiting for a job makes streams wait for each other, never the host for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from ...dtypes import DType
from ..gradients import Gradients
from ..modes import Mode, NearLossless
from ..stats import Counters
from ..transport.gpu import gpu_transport_of
from ..transport.jobs import LaneJob
from ..transport.lane import Lane
from ..transport.transfers import labeled
from .gpu_coder import TYPES, GpuCodebooks, GpuCoder, side_stream_of
from .gpu_levels import GpuLevelChooser
from .gpu_reduce import GpuReduction


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is on a CUDA device, where it is then reduced."""
    return tensor.is_cuda


def beside(
    buffers: Sequence[torch.Tensor], run: Callable[[], Any], abort: Callable[..., None] | None = None
) -> LaneJob:
    """Return the job that calls ``run`` on the side stream of the buffers' device, or for buffers on the host."""
    side = side_stream_of(buffers[0].device)
    mark = side.mark()

    def run_there() -> Any:
        side.after(mark, *buffers)
        return run()

    return LaneJob(run_there, abort, _devices(buffers[0]), side.current)


def unchanged(flat: torch.Tensor) -> LaneJob:
    """Return the job of a group of one rank, whose value is ``flat`` as it is."""
    side = side_stream_of(flat.device)
    mark = side.mark()

    def run() -> torch.Tensor:
        side.after(mark, flat)
        return flat

    return LaneJob(run, None, _devices(flat), side.current)


def plain_on_gpu(lane: Lane, flat: torch.Tensor, mean: bool, counters: Counters, label: str = "all-reduce") -> LaneJob:
    """Return the job that reduces ``flat`` in place, uncompressed. As in DDP, a mean is divided before it is summed.

    The job raises PeerError, whose text begins with ``label``.
    """
    side = side_stream_of(flat.device)
    mark = side.mark()

    def run() -> torch.Tensor:
        start = perf_counter()
        side.after(mark, flat)
        if mean:
            flat.div_(lane.size)

        def reduce() -> None:
            gpu_transport_of(lane, flat.device).all_reduce(flat)
            side.finish()  # so that seconds are those of the network

        labeled(f"{label}, uncompressed", reduce)
        counters.add_dense(flat.nbytes, lane.size, perf_counter() - start)
        return flat

    return LaneJob(run, None, _devices(flat), side.current)


def compressed_on_gpu(
    lane: Lane,
    flat: torch.Tensor,
    result: torch.Tensor,
    dtype: DType,
    mode: Mode,
    mean: bool,
    gradients: Gradients | None,
    books: GpuCodebooks | None,
    counters: Counters,
    label: str = "",
) -> LaneJob:
    """Return the job that reduces ``flat`` (contiguous) into ``result``, which is its value."""
    side = side_stream_of(flat.device)
    mark = side.mark()

    def reduction() -> GpuReduction:
        level_chooser = None
        if isinstance(mode, NearLossless):
            assert gradients is not None
            level_chooser = GpuLevelChooser(mode, gradients, dtype, 1.0 if mean else float(lane.size))
        coder = GpuCoder(dtype, mode, level_chooser, books, counters)
        return GpuReduction(lane, coder, flat, result, mean=mean, terms=mode.terms, label=label)

    def run() -> torch.Tensor:
        side.after(mark, flat, result)
        reduction().run()
        return result

    return LaneJob(run, lambda error: reduction().abort(error), _devices(flat), side.current)


def allreduce_on_gpu(
    lane: Lane,
    tensor: torch.Tensor,
    dense: torch.Tensor,
    dtype: DType | None,
    mode: Mode,
    mean: bool,
    gradients: Gradients | None,
) -> LaneJob:
    """Return the job that reduces ``tensor`` in place, whose contiguous values are ``dense``; its value is ``tensor``.

    It is not compressed where ``dtype`` is None, or the codec has no such type on GPUs.
    """
    if dtype is None or dense.dtype not in TYPES:
        job = plain_on_gpu(lane, dense.clone(), mean, Counters())
    else:
        job = compressed_on_gpu(lane, dense, torch.empty_like(dense), dtype, mode, mean, gradients, None, Counters())

    def run() -> torch.Tensor:
        side_stream_of(tensor.device).after(None, tensor)
        tensor.detach().copy_(job.run().view(tensor.shape))
        return tensor

    return LaneJob(run, job.abort, job.devices, job.place)


def _devices(flat: torch.Tensor) -> list[torch.device]:
    return [] if flat.is_cpu else [flat.device]
