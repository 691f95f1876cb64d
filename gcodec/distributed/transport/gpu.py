"""Transports of frames on a CUDA device from rank to rank: NCCL, or Gloo through the host's memory.

Sizes are known on both sides by then, for NCCL does not say how much it has received. All that is called here is called
on the lane's thread, in the same order on all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from .delegation import inner_method, plain_reduce_scatter
from .lane import Lane
from .transfers import Buffers, Transfers

_log = logging.getLogger("gcodec.distributed")
_TAG = 1 << 30  #: from here on: tags that no other message of a lane's has
Collect = Callable[[], list[torch.Tensor]]


class GpuTransport(Protocol):
    """Moves bytes between devices."""

    def swap(self, frames: Sequence[torch.Tensor], sizes: Sequence[int]) -> Collect:
        """Send each rank its frame, made on the current stream. Return a function that returns the frames that the
        ranks have sent this one, by rank, for the stream that is current when it is called.

        Args:
            frames: A frame for each rank, by rank: uint8, empty for none.
            sizes: The bytes that each rank sends this one.
        """

    def all_reduce(self, flat: torch.Tensor) -> None:
        """Sum a tensor over all ranks, in place, uncompressed."""

    def reduce_scatter(self, flat: torch.Tensor, part: torch.Tensor, mean: bool) -> None:
        """Sum a tensor over all ranks, uncompressed; ``part`` takes this rank's part of the sum, or of the mean."""

    def close(self, failed: bool) -> None:
        """End what is this transport's own; ``failed``: at once, as other ranks may never come to the end."""


class NcclTransport:
    """Moves bytes by a process group that takes the device's tensors itself: NCCL's, on CUDA devices."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def swap(self, frames: Sequence[torch.Tensor], sizes: Sequence[int]) -> Collect:
        """Implement :meth:`GpuTransport.swap` by one collective, without waiting for a device."""
        sent = torch.cat(list(frames))
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=sent.device)
        lengths = [len(frame) for frame in frames]
        work = inner_method(self.group, "alltoall_base")(received, sent, list(sizes), lengths)

        def collect() -> list[torch.Tensor]:
            work.wait()
            # NCCL's stream has waited for the one they were made on, and this one waits for NCCL's: torch must not give
            # their memory to the first one again before that.
            _record_here(sent, received)
            return list(received.split(list(sizes)))

        return collect

    def all_reduce(self, flat: torch.Tensor) -> None:
        """Implement :meth:`GpuTransport.all_reduce`."""
        self.group.allreduce([flat]).wait()

    def reduce_scatter(self, flat: torch.Tensor, part: torch.Tensor, mean: bool) -> None:
        """Implement :meth:`GpuTransport.reduce_scatter`."""
        plain_reduce_scatter(self.group, flat, part, mean)

    def close(self, failed: bool) -> None:
        """Implement :meth:`GpuTransport.close`: torch warns of a communicator that nobody has ended, and aborts it."""
        if failed:
            self.group.abort()
        else:
            self.group.shutdown()


class StagedTransport:
    """Moves bytes by the lane's Gloo group, through pinned memory of the host. Waits for the device and the network.

    Args:
        device: The device of the tensors.
    """

    def __init__(self, lane: Lane, device: torch.device) -> None:
        self.lane, self.device = lane, device
        self._buffers = Buffers(pinned=device.type == "cuda")
        self._n_swaps = 0

    def swap(self, frames: Sequence[torch.Tensor], sizes: Sequence[int]) -> Collect:
        """Implement :meth:`GpuTransport.swap`; receives are posted before sends. Raises PeerError."""
        transfers = self.lane.transfers(_where, self._buffers)
        try:
            received = self._swap(transfers, frames, sizes)
        except BaseException:
            self.lane.parked.append(transfers)  # what the network may still write to must live on
            raise
        copied = mark_of(self.device)

        def collect() -> list[torch.Tensor]:
            if copied is not None:
                torch.cuda.current_stream(self.device).wait_event(copied)
            _record_here(*received)
            return received

        return collect

    def _swap(self, transfers: Transfers, frames: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        lane = self.lane
        self._n_swaps += 1
        tag = _TAG | self._n_swaps % (1 << 16)
        others = [(lane.rank + distance) % lane.size for distance in range(1, lane.size)]
        incoming = {peer: transfers.post(peer, tag, sizes[peer]) for peer in others if sizes[peer]}
        for peer in others:
            size = len(frames[peer])
            if size:
                buffer = self._buffers.acquire(size)
                buffer[:size].copy_(frames[peer])
                transfers.release_after(buffer)
                transfers.send(peer, tag, buffer, size)
        received = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes]
        for peer, message in incoming.items():
            transfers.receive(message, _where(peer))
            received[peer].copy_(message.buffer[: sizes[peer]])
        transfers.finish()
        return received

    def all_reduce(self, flat: torch.Tensor) -> None:
        """Implement :meth:`GpuTransport.all_reduce`."""
        staged = flat.cpu()
        self.lane.group.allreduce([staged]).wait()
        flat.copy_(staged)

    def reduce_scatter(self, flat: torch.Tensor, part: torch.Tensor, mean: bool) -> None:
        """Implement :meth:`GpuTransport.reduce_scatter`."""
        staged = flat.cpu()
        result = torch.empty(part.shape, dtype=part.dtype, device="cpu")
        plain_reduce_scatter(self.lane.group, staged, result, mean)
        part.copy_(result)

    def close(self, failed: bool) -> None:
        """Implement :meth:`GpuTransport.close`: the group is the lane's, which ends it."""


def _record_here(*tensors: torch.Tensor) -> None:
    """Tell torch that the current stream uses these tensors."""
    for tensor in tensors:
        if tensor.device.type == "cuda":
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


def mark_of(device: torch.device) -> Any:
    """Record and return an event behind all work that a device's current stream has been given so far; None for the
    host."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _where(peer: int) -> str:
    return f"rank {peer}"


def gpu_transport_of(lane: Lane, device: torch.device) -> GpuTransport:
    """Return the transport of a device's tensors among a lane's ranks, made on the first call.

    Called on the lane's thread.
    """
    if device not in lane.gpu_transports:
        nccl = has_nccl(lane.parent)
        if not nccl and device.type == "cuda" and lane.rank == 0:
            _log.warning(
                "gradients on %s are sent through the host's memory and Gloo, as the process group has no NCCL for "
                'CUDA: init_process_group("cpu:gloo,cuda:nccl") makes one that has',
                device,
            )
        lane.gpu_transports[device] = (
            NcclTransport(_private_nccl(lane, device)) if nccl else StagedTransport(lane, device)
        )
    transport: GpuTransport = lane.gpu_transports[device]
    return transport


def own_group_of(lane: Lane) -> dist.ProcessGroup | None:
    """Return the group that a lane was made for, if it is one of torch's that moves CUDA tensors by NCCL."""
    group: dist.ProcessGroup = lane.parent
    return group if type(group) is dist.ProcessGroup and has_nccl(group) else None


def has_nccl(group: dist.ProcessGroup) -> bool:
    """Return whether a group moves CUDA tensors by NCCL. The answer is the same on all ranks."""
    if not dist.is_nccl_available():
        return False
    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:  # it has no backend for CUDA
        return False
    # Under TORCH_DISTRIBUTED_DEBUG=DETAIL it is a wrapper that checks all calls.
    return isinstance(getattr(backend, "wrapped_pg", backend), dist.ProcessGroupNCCL)


def _private_nccl(lane: Lane, device: torch.device) -> dist.ProcessGroup:
    """Make an NCCL group with the ranks of a lane: its collectives must not come between those of training."""
    store = PrefixStore(f"nccl-{device}/", lane.store)
    group = dist.ProcessGroup(store, lane.rank, lane.size)
    group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    nccl = nccl_of(group, store, lane.timeout, f"{lane.parent.group_name}-gcodec")
    adopt_nccl([group], device, nccl)
    return group


def nccl_of(group: dist.ProcessGroup, store: Store, timeout: timedelta, name: str) -> Any:
    """Return an NCCL backend for the ranks of a group.

    Args:
        store: The store that its ranks meet through, for this purpose alone.
        timeout: Time after which a silent rank is an error.
        name: The name by which NCCL's messages call it.
    """
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout, options.group_name = timeout, name
    return dist.ProcessGroupNCCL(store, group.rank(), group.size(), options)


def adopt_nccl(groups: Sequence[dist.ProcessGroup], device: torch.device, nccl: Any) -> None:
    """Let groups use an NCCL backend for tensors on a device, or on any of its type."""
    for group in groups:
        group._register_backend(device, dist.ProcessGroup.BackendType.NCCL, nccl)
