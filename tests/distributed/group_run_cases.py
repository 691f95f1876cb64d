"""What the ranks of tests/distributed/test_group.py run besides collectives: trainings with DDP, and faults."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.distributed as gd
from gcodec.distributed.reduction import coder
from gcodec.distributed.transport.lane import lane_of
from tests.distributed.group_cases import LARGE
from tests.distributed.rank_basics import (
    Net,
    all_terms,
    crc,
    dense_sum,
    heard,
    loss_at,
    only_on,
    rank,
    sabotage,
    same_bits,
    size,
    slowed,
    take_steps,
    values_at,
)

# ------------------------------------------------------------------------------------------------------------ Training


def train_ddp(
    gloo: bool,
    steps: int = 4,
    narrow: bool = False,
    bits: int = 0,
    join: bool = False,
    divide_by_initial: bool = True,
    **options: Any,
) -> tuple[int, list[float]]:
    """Train DDP without any hook, on the backend or on Gloo. ``join``: ranks have different numbers of batches."""
    group = dist.new_group(backend="gloo") if gloo else None
    if not divide_by_initial and not gloo:  # DDP then counts ranks by a sum of one value, which the lane makes, too
        group = dist.new_group(backend="gcodec", pg_options=gd.GroupOptions(min_bytes=1, bypass=None))
    if bits and not gloo:
        narrow_options = gd.GroupOptions(mode=gd.FixedBits(bits), min_bytes=1, bypass=None)
        group = dist.new_group(backend="gcodec", pg_options=narrow_options)
    net = Net(branch=bool(options.get("find_unused_parameters")), narrow=narrow)
    model = DistributedDataParallel(net, bucket_cap_mb=0.5, process_group=group, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with model.join(enable=join, divide_by_initial_world_size=divide_by_initial):
        take_steps(range(steps + join * rank()), model, optimizer)
    parameters = [item.detach() for item in model.parameters()]
    return crc(parameters), [float(item.double().abs().sum()) for item in parameters]


def bypass(slow: str) -> tuple[list[float], list[float], int]:
    """DDP without a hook where one of two ways is slow: uncompressed collectives and all of them, of every step."""
    options = gd.GroupOptions(gd.FixedBits(8), min_bytes=1000, bypass=gd.Bypass(steps=2, every=8))
    group: Any = dist.new_group(backend="gcodec", pg_options=options)
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.5, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = []
    with slowed(slow):
        for step in range(36):
            take_steps([step], model, optimizer)
            counts.append([group.stats()[name] for name in ("dense", "calls")])
    dense, calls = ([after - before for before, after in pairwise([0, *of])] for of in zip(*counts, strict=True))
    return dense, calls, crc(list(model.parameters()))


def changing() -> tuple[list[bool], list[bool], int]:
    """Steps before and after one from which on there are fewer collectives, in the middle of a trial: whether each was
    uncompressed as a whole. What is reduced has gaps in memory, which Gloo would take for values."""
    options = gd.GroupOptions(min_bytes=1000, bypass=gd.Bypass(steps=2, every=8))
    group: Any = dist.new_group(backend="gcodec", pg_options=options)
    result, results = [], []
    with slowed("coded"):
        for step in range(42):
            before = group.stats()
            for n_values in (1000, 3000, 9000)[: 3 if step < 18 else 2]:
                brought = all_terms(n_values * size())
                gaps, part = torch.zeros(n_values * size(), 2), torch.empty(n_values)
                tensor = gaps[:, 0].copy_(brought[rank()])
                dist.all_reduce(tensor, group=group)
                assert not gaps[:, 1].any()
                exact = dense_sum(brought, False)
                torch.testing.assert_close(tensor, exact, rtol=1e-4, atol=1e-6)
                group.reduce_scatter_single(part, brought[rank()]).wait()
                torch.testing.assert_close(part, exact.chunk(size())[rank()], rtol=1e-4, atol=1e-6)
                results.append(tensor)
            after = group.stats()
            result.append(after["dense"] - before["dense"] == after["calls"] - before["calls"])
    return result[:18], result[18:], crc(results)


# -------------------------------------------------------------------------------------------------------------- Faults


def corrupted(how: str, by: int) -> list[str]:
    """Return what this rank hears when one rank's messages are damaged, by every road a user can take."""
    lines = []
    for road in (_blocking, _asynchronous, _future, _functional, _scatter, _ddp):
        group = dist.new_group(backend="gcodec", timeout=timedelta(seconds=20))
        dist.all_reduce(torch.ones(LARGE), group=group)  # the lane is there, and DDP's own messages come later
        with only_on(by, sabotage(how)):
            lines.append(heard(partial(road, group), Exception).line)
    return lines


def _blocking(group: dist.ProcessGroup) -> None:
    dist.all_reduce(values_at(rank(), LARGE, torch.float32), group=group)


def _asynchronous(group: dist.ProcessGroup) -> None:
    work = dist.all_reduce(values_at(rank(), LARGE, torch.float32), group=group, async_op=True)
    try:
        work.wait()
    finally:
        assert not work.is_success()
        assert isinstance(work.exception(), Exception)


def _future(group: dist.ProcessGroup) -> None:
    dist.all_reduce(values_at(rank(), LARGE, torch.float32), group=group, async_op=True).get_future().wait()


def _functional(group: dist.ProcessGroup) -> None:
    functional.wait_tensor(functional.all_reduce(values_at(rank(), LARGE, torch.float32), "sum", group))


def _scatter(group: dist.ProcessGroup) -> None:
    dist.reduce_scatter_tensor(torch.empty(LARGE), values_at(rank(), LARGE * size(), torch.float32), group=group)


def _ddp(group: dist.ProcessGroup) -> None:
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.5, process_group=group)
    loss_at(0, model).backward()


def death(by: int) -> str:
    """Return what this rank hears when another has gone in the middle of an all-reduce."""
    tensor = torch.ones(LARGE * 4)
    dist.all_reduce(tensor)
    with only_on(by, mock.patch.object(coder.Coder, "encode", lambda *_: os._exit(1))):
        return heard(lambda: dist.all_reduce(tensor), gcodec.GcodecError, RuntimeError).text


def ended() -> None:
    """End the world and begin it again, as after a failure that a launcher has mended."""
    dist.all_reduce(torch.ones(LARGE))
    store = distributed_c10d._get_default_store()
    number, all_of_them = rank(), size()
    dist.destroy_process_group()
    dist.init_process_group(
        "cpu:gcodec",
        store=distributed_c10d.PrefixStore("again", store),
        rank=number,
        world_size=all_of_them,
        timeout=timedelta(seconds=60),
    )
    total = torch.ones(LARGE)
    dist.all_reduce(total)
    assert torch.equal(total, torch.full((LARGE,), float(all_of_them)))


# --------------------------------------------------------------------------------------------------- Groups by hand


def by_hand(n_groups: int, silent: int | None) -> list[int]:
    """Sum in one group after another that torch.distributed does not know, in a process that it may never have been
    initialized in, and return checksums. A silent rank takes no part in the first group's second sum."""
    store, checksums = distributed_c10d._get_default_store(), []
    for number in range(n_groups):
        options = gd.GroupOptions(bypass=None, timeout=timedelta(seconds=2 if silent is not None else 60))
        part = PrefixStore(f"by hand {silent} {number}/", store)
        group = gd.CompressedGroup.made_by_hand(part, rank(), size(), options, "by-hand")
        with mock.patch.object(dist, "is_initialized", return_value=False):
            brought = all_terms(LARGE + number)
            tensor = brought[rank()].clone()
            group.allreduce([tensor], dist.AllreduceOptions()).wait()
            assert same_bits(tensor, dense_sum(brought, False))
            assert group.stats()["calls"] == (size() > 1)
            checksums.append(crc([tensor]))
            if number == 0 and silent is not None and rank() != silent:
                with pytest.raises(gcodec.PeerError):
                    group.allreduce([tensor], dist.AllreduceOptions()).wait()
        group.abort()
        with pytest.raises(gcodec.InvalidArgument):
            lane_of(group)
    return checksums
