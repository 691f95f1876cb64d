"""What the host asks of a device and of the network for the buckets of a step, counted among ranks without a device:
what runs, in tests/distributed/test_gpu_counts.py.

The codec is the device's own, its kernels compiled for the host (:mod:`tests.gpu.cuda_torch`); frames travel as they
would by NCCL, in a group of their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import gcodec.distributed as gd
from gcodec import gpu
from gcodec.distributed import collectives
from gcodec.distributed.ddp import codec_state
from gcodec.distributed.reduction import allreduce, gpu_coder
from gcodec.distributed.transport import gpu as gpu_transport
from gcodec.distributed.transport import lane as lanes
from gcodec.gpu import gpu_memory
from tests.distributed import fsdp_cases
from tests.distributed.ddp_cases import Given, HeldUp
from tests.distributed.rank_basics import all_terms, dense_sum, loss_at, rank, same_bits, size
from tests.gpu.cuda_torch import TorchOnHost

N_VALUES = 1 << 16  #: of each bucket: no rank's part is empty

COUNTS: Counter[str] = Counter()  #: what was asked for so far


class OfThread(threading.local):
    """What the rank that is this thread has asked for so far; None where ranks are processes."""

    counts: Counter[str] | None = None


OF_THREAD = OfThread()


def counts() -> Counter[str]:
    """Return what this rank has asked for so far."""
    return COUNTS if OF_THREAD.counts is None else OF_THREAD.counts


class NextWait:
    """An event of a device that never idles: what it is behind has come to pass when the host next waits for it."""

    def __init__(self) -> None:
        self._waits = counts()["waits"]

    def query(self) -> bool:
        return counts()["waits"] > self._waits

    def synchronize(self) -> None:
        counts().update(waits=1)


class CountingMemory(TorchOnHost):
    """A pretended device that counts launches, copies to the host, and waits of the host for it."""

    def fetch_all(self, *arrays: Any) -> list[np.ndarray]:
        if all(array.tensor is arrays[0].tensor for array in arrays):
            counts().update(waits=1, downloads=1)
        return super().fetch_all(*arrays)

    def heads(self, tensors: Any, sizes: Any) -> list[np.ndarray]:
        counts().update(waits=1, downloads=1)
        return super().heads(tensors, sizes)

    def begin_heads(self, tensors: Any, sizes: Any) -> gpu_memory.PendingCopy:
        counts().update(downloads=1)
        return super().begin_heads(tensors, sizes)

    def begin_fetch(self, array: Any) -> gpu_memory.PendingCopy:
        counts().update(downloads=1)
        return super().begin_fetch(array)

    def _mark(self) -> Any:
        return NextWait()

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        counts().update(launches=blocks > 0)
        super().launch(kernel, blocks, *args)


class CountingGroup:
    """A group that counts what it is asked for: messages, and collectives."""

    def __init__(self, group: Any, counted: dict[str, str]) -> None:
        self._group, self._counted = group, counted

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)
        if name not in self._counted:
            return found

        def counted(*arguments: Any) -> Any:
            counts().update([self._counted[name]])
            return found(*arguments)

        return counted


#: What is counted of a lane's Gloo group, and of the group in NCCL's place, by torch's names for it.
OF_LANE = {"send": "messages", "alltoall_base": "exchanges", "all_to_all_single": "exchanges"}
OF_DEVICE = {"alltoall_base": "swaps", "all_to_all_single": "swaps"}


@contextlib.contextmanager
def on_a_device() -> Iterator[None]:
    """Make all tensors seem to be on a device, whose kernels run, and count what is asked of it."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (gpu, "_memory", lambda tensors: CountingMemory(None)),
            (gpu, "_indexed", lambda device: torch.device("cpu")),
            (gpu_memory, "TorchMemory", CountingMemory),
            (gpu_coder.SideStream, "finish", lambda side: counts().update(waits=1)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


@contextlib.contextmanager
def counting() -> Iterator[None]:
    """Make all tensors seem to be on a device, and count what is asked of it and of the network."""
    private_group = lanes.private_group

    def counted_group(*arguments: Any) -> Any:
        return CountingGroup(private_group(*arguments), OF_LANE)

    def in_place_of_nccl(lane: Any, device: torch.device) -> Any:
        store = PrefixStore("in place of nccl/", lane.store)
        return CountingGroup(private_group(store, lane.rank, lane.size, lane.timeout), OF_DEVICE)

    with on_a_device(), contextlib.ExitStack() as stack:
        for owner, name, value in (
            (codec_state, "is_on_gpu", lambda tensor: True),
            (lanes, "private_group", counted_group),
            (gpu_transport, "has_nccl", lambda group: True),
            (gpu_transport, "_private_nccl", in_place_of_nccl),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def counts_of_a_step(mode: str, how: str) -> list[dict[str, int]]:
    """Return what a step of the hook asks for, once codebooks are kept: of two buckets, which are alike; of four.

    Args:
        mode: "lossless" or "fixed".
        how: "alone": each is done before the next comes; "queued": all have come before one is done.
    """
    gd.close_lanes()
    terms = all_terms(N_VALUES)
    wanted = dense_sum(terms, True)
    chosen: Any = {"lossless": gd.Lossless(), "fixed": gd.FixedBits(5)}[mode]
    found = []
    with counting(), contextlib.ExitStack() as stack:
        if how == "alone":
            stack.enter_context(mock.patch.object(lanes.Lane, "has_next", lambda lane, devices: False))
        for n_buckets in (2, 4):
            model = DistributedDataParallel(Given((N_VALUES,) * n_buckets), bucket_cap_mb=0.1)
            state = gd.CompressedAllreduce(mode=chosen, min_bytes=0, bypass=None, refresh=gd.Refresh(100, 9.0))
            held = HeldUp(lanes.lane_of(None))
            model.register_comm_hook(state, gd.hook if how == "alone" else held.hook)
            for step in range(4):
                COUNTS.clear()
                model.zero_grad()
                if how == "queued" and step:  # the first has its own buckets
                    held.begin_step()
                model([terms[rank()]] * n_buckets).backward()
            found.append(dict(COUNTS))
            assert state.stats()["last_step"]["calls"] == n_buckets
            if mode == "lossless":
                assert all(same_bits(part.grad, wanted) for part in model.module.parts)
        gd.close_lanes()
    return found


def counts_of_fsdp() -> tuple[dict[str, int], int]:
    """Return what a backward pass of FSDP2 asks for, once codebooks are kept, and the number of units it reduces."""
    gd.close_lanes()
    model = fsdp_cases.sharded(init_device_mesh("cpu", (size(),), mesh_dim_names=("shard",)))
    counted = gd.compress_fsdp(
        model,
        parameters=False,
        min_bytes=1000,
        bypass=None,
        refresh=gd.Refresh(100, 9.0),
        timeout=timedelta(seconds=50),
    )
    with counting(), mock.patch.object(collectives, "is_on_gpu", lambda tensor: True):
        for _ in range(4):
            loss, before = loss_at(0, model), counted.stats()["calls"]
            COUNTS.clear()
            loss.backward()
            model.zero_grad()
        gd.close_lanes()
    return dict(COUNTS), int(counted.stats()["calls"] - before)


def counts_of_collectives(n: int) -> dict[str, int]:
    """Return what so many all-reduces of a process group ask for that wait for each other, once codebooks are kept."""
    gd.close_lanes()
    group = dist.group.WORLD
    assert group is not None
    terms = all_terms(N_VALUES)
    options = gd.GroupOptions(min_bytes=0, bypass=None, refresh=gd.Refresh(100, 9.0))
    with counting(), mock.patch.object(collectives, "is_on_gpu", lambda tensor: True):
        counted, held = collectives.Collectives(options, "group", on_gpu=True), HeldUp(lanes.lane_of(group))
        for _ in range(4):
            COUNTS.clear()
            tensors = [terms[rank()].clone() for _ in range(n)]
            held.begin_step()
            works = [counted.all_reduce(group, [tensor], True) for tensor in tensors]
            held.let_go()
            for work in works:
                assert work is not None and work.wait()
            assert all(same_bits(tensor, dense_sum(terms, True)) for tensor in tensors)
        gd.close_lanes()
    return dict(COUNTS)


def counts_of_plain_allreduces(n: int) -> dict[str, int]:
    """Return what so many calls of ``allreduce`` ask for once codebooks are kept: several wait for each other, while
    one is waited for at once."""
    gd.close_lanes()
    terms = all_terms(N_VALUES)
    with counting(), mock.patch.object(allreduce, "is_on_gpu", lambda tensor: True):
        held = HeldUp(lanes.lane_of(None))
        for _ in range(4):
            COUNTS.clear()
            tensors = [terms[rank()].clone() for _ in range(n)]
            if n == 1:
                gd.allreduce(tensors[0], op="avg")
            else:
                held.begin_step()
                futures = [gd.allreduce(tensor, op="avg", async_op=True) for tensor in tensors]
                held.let_go()
                for future in futures:
                    future.wait()
            assert all(same_bits(tensor, dense_sum(terms, True)) for tensor in tensors)
        gd.close_lanes()
    return dict(COUNTS)
