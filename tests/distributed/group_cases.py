"""Cases that the ranks of tests/distributed/test_group.py run, in a world whose backend is gcodec."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

import gcodec.distributed as gd
from gcodec.distributed.reduction.allreduce import MIN_BYTES
from tests.distributed.rank_basics import (
    all_terms,
    assert_refused,
    crc,
    dense_sum,
    heard,
    rank,
    same_bits,
    shown,
    size,
    values_at,
)

LARGE = 70_001  #: values; enough to be compressed
gd.register_backend("gcodec", gd.GroupOptions(bypass=None))  # so that every sum is made in the order of ranks


def world() -> gd.CompressedGroup:
    """Return the world's group."""
    group = dist.group.WORLD
    assert isinstance(group, gd.CompressedGroup)
    return group


def compressed_calls(action: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """Return how many compressed collectives an action makes."""
    before = world().stats()["calls"]
    action(*arguments, **options)
    return world().stats()["calls"] - before


# ----------------------------------------------------------------------------------------------------- All-reduces


def all_reduces() -> int:
    """Check that every type and both operations are the sum in the order of ranks; others are Gloo's."""
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for op, mean in ((dist.ReduceOp.SUM, False), (dist.ReduceOp.AVG, True)):
            brought = all_terms(LARGE, dtype)
            tensor = brought[rank()].clone()
            assert compressed_calls(dist.all_reduce, tensor, op=op) == (size() > 1)
            assert same_bits(tensor, dense_sum(brought, mean)), (dtype, op)
            results.append(tensor)
    brought = all_terms(LARGE)
    for op, law in (
        (dist.ReduceOp.MAX, torch.amax),
        (dist.ReduceOp.MIN, torch.amin),
        (dist.ReduceOp.PRODUCT, torch.prod),
    ):
        tensor = brought[rank()].clone()
        assert compressed_calls(dist.all_reduce, tensor, op=op) == 0
        torch.testing.assert_close(tensor, law(torch.stack(brought), 0))
    few = torch.ones(5)
    assert compressed_calls(dist.all_reduce, few) == 0
    assert torch.equal(few, torch.full((5,), float(size())))
    return crc(results)


def profiled() -> None:
    """Check that torch's profiler shows collectives under the names that it has for torch's own backends."""
    parts = size() * LARGE
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        works = [dist.all_reduce(values_at(rank(), LARGE, torch.float32), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
        dist.reduce_scatter_tensor(torch.empty(LARGE), values_at(rank(), parts, torch.float32))
    assert len(shown(profile, "gcodec:all_reduce")) == 3
    assert len(shown(profile, "gcodec:reduce_scatter")) == 1
    with torch.profiler.profile() as profile:  # what goes to Gloo has Gloo's names
        dist.all_reduce(torch.ones(5))
    assert len(shown(profile, "gloo:all_reduce")) == 1


def inference() -> None:
    """Check that tensors of inference mode are reduced in place, and others after them."""
    brought = all_terms(LARGE * size())
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            tensor, part = brought[rank()].clone(), torch.empty(LARGE)
            dist.all_reduce(tensor)
            dist.reduce_scatter_tensor(part, brought[rank()].clone())
            strided = brought[rank()].view(LARGE, -1).t().clone(memory_format=torch.contiguous_format).t()
            dist.all_reduce(strided)
        wanted = dense_sum(brought, False)
        assert same_bits(tensor, wanted)
        assert same_bits(part, wanted[rank() * LARGE : (rank() + 1) * LARGE])
        assert same_bits(strided.reshape(-1), wanted)


def other_types() -> None:
    """Integers, booleans, complex and sparse tensors give what they give on Gloo."""
    for dtype in (torch.int32, torch.int64, torch.uint8, torch.int8):
        tensor = torch.full((LARGE,), rank() + 1, dtype=dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((LARGE,), size() * (size() + 1) // 2, dtype=dtype))
    result = torch.zeros(LARGE, dtype=torch.bool)
    result[rank()] = True
    dist.all_reduce(result, op=dist.ReduceOp.MAX)
    assert int(result.sum()) == size()
    waves = torch.complex(values_at(rank(), LARGE, torch.float32), torch.ones(LARGE))
    dist.all_reduce(waves)
    assert torch.equal(waves.imag, torch.full((LARGE,), float(size())))
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank(), 5]]), torch.ones(2), (10,))
    dist.all_reduce(sparse)
    assert sparse.to_dense()[5] == size()
    assert sparse.to_dense()[0] == 1


def asynchronous() -> int:
    """Check several collectives under way: a work tells when it is done, and its future has the tensors."""
    brought = [all_terms(LARGE + number) for number in range(5)]
    tensors = [item[rank()].clone() for item in brought]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works[:3]:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    assert works[3].wait(timedelta(seconds=30))
    (last,) = works[4].get_future().wait()
    assert same_bits(last, dense_sum(brought[4], False))
    assert all(same_bits(tensor, dense_sum(item, False)) for tensor, item in zip(tensors, brought, strict=True))
    doubled = dist.all_reduce(tensors[0], async_op=True).get_future().then(lambda done: done.value()[0] * 2).wait()
    assert torch.equal(doubled, tensors[0] * 2)
    return crc(tensors)


def layouts() -> int:
    """Reduce transposed and strided tensors, several dimensions, a parameter that requires grad."""
    brought = [item.view(700, 500) for item in all_terms(700 * 500)]
    wanted, mine = dense_sum(brought, False), brought[rank()]
    turned = mine.t().clone().t()
    spaced = torch.zeros(700, 1000)[:, ::2]
    spaced.copy_(mine)
    leaf = nn.Parameter(mine.clone())
    for tensor in (turned, spaced, leaf):
        assert compressed_calls(dist.all_reduce, tensor) == (size() > 1)
        assert torch.equal(tensor, wanted)
    return crc([leaf])


def spaced_layouts() -> None:
    """Reduce tensors that Gloo gets, whose values do not lie one after another, or do so on one rank only."""
    for dtype, op in (
        (torch.float32, dist.ReduceOp.SUM),
        (torch.int32, dist.ReduceOp.SUM),
        (torch.float32, dist.ReduceOp.MAX),
        (torch.complex64, dist.ReduceOp.SUM),
    ):
        brought = [item.view(40, 50).mul(8).to(dtype) for item in all_terms(40 * 50)]
        wanted = torch.stack(brought).amax(0) if op == dist.ReduceOp.MAX else dense_sum(brought, False)
        gaps = torch.zeros(40, 100, dtype=dtype)
        spaced, turned = gaps[:, ::2].copy_(brought[rank()]), brought[rank()].t().clone().t()
        for tensor in (spaced, turned if rank() else brought[rank()].clone()):
            assert not compressed_calls(dist.all_reduce, tensor, op)
            torch.testing.assert_close(tensor, wanted, rtol=1e-5, atol=1e-5)
        assert not gaps[:, 1::2].any()


def coalesced() -> int:
    """Reduce through the coalescing manager, the function, and with mixed types."""
    sizes = (LARGE, 3, 1000)
    brought = [all_terms(n_values) for n_values in sizes]
    tensors = [item[rank()].clone() for item in brought]

    def together() -> None:
        with distributed_c10d._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)

    assert compressed_calls(together) == (size() > 1)
    assert all(same_bits(tensor, dense_sum(item, False)) for tensor, item in zip(tensors, brought, strict=True))
    again = [item[rank()].clone() for item in brought]
    with distributed_c10d._coalescing_manager(async_ops=True) as under_way:
        for tensor in again:
            dist.all_reduce(tensor)
    under_way.wait()
    assert all(torch.equal(item, other) for item, other in zip(tensors, again, strict=True))
    wholes = [torch.cat([item] * size()) for item in again]
    parts = [torch.empty_like(item) for item in again]
    with distributed_c10d._coalescing_manager():
        for whole, part in zip(wholes, parts, strict=True):
            dist.reduce_scatter_tensor(part, whole)
    assert all(torch.equal(part, item * size()) for part, item in zip(parts, again, strict=True))
    wide = [torch.empty(size() * item.numel()) for item in again]
    with distributed_c10d._coalescing_manager():
        for whole, item in zip(wide, again, strict=True):
            dist.all_gather_into_tensor(whole, item)
    assert all(torch.equal(item, other) for item, other in zip(wide, wholes, strict=True))
    return crc(tensors)


# ---------------------------------------------------------------------------------------------------- Reduce-scatter


def reduce_scatters() -> list[int]:
    """A rank keeps its part of the sum: of all parts together the law is the all-reduce's."""
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        for n_values in (1, 1000, LARGE, 400_003):
            for op, mean in ((dist.ReduceOp.SUM, False), (dist.ReduceOp.AVG, True)):
                brought = all_terms(n_values * size(), dtype)
                part = torch.empty(n_values, dtype=dtype)
                calls = compressed_calls(dist.reduce_scatter_tensor, part, brought[rank()], op=op)
                assert calls == (size() > 1 and brought[0].nbytes >= MIN_BYTES), (dtype, n_values, op)
                wanted = dense_sum(brought, mean).chunk(size())[rank()]
                if calls:
                    assert same_bits(part, wanted), (dtype, n_values, op)
                else:
                    torch.testing.assert_close(part, wanted, rtol=0.02, atol=2e-4)
                results.append(part)
    brought = all_terms(LARGE * size())
    part = torch.empty(LARGE)
    work = dist.reduce_scatter_tensor(part, brought[rank()], async_op=True)
    work.wait()
    assert same_bits(part, dense_sum(brought, False).chunk(size())[rank()])
    parts = list(brought[rank()].chunk(size()))
    dist.reduce_scatter(part, parts)
    torch.testing.assert_close(part, dense_sum(brought, False).chunk(size())[rank()])
    return [crc(results)]


# ----------------------------------------------------------------------------------------------------- Everything else


def shared_codebooks() -> list[int]:
    """Check that codebooks are renewed by and by, whatever comes in between, and change no bit."""
    outcomes = []
    for refresh in (gd.Refresh(interval=2), None):
        options = gd.GroupOptions(gd.FixedBits(9), bypass=None, refresh=refresh)
        group: Any = dist.new_group(backend="gcodec", pg_options=options)
        results = []
        for turn in range(52):
            whole = values_at(rank(), LARGE // size() * size(), torch.float32) * (1 + turn)
            results.append(whole.clone())
            dist.all_reduce(results[-1], group=group)
            if turn % 3 == 0:
                results.append(whole.new_empty(len(whole) // size()))
                dist.reduce_scatter_tensor(results[-1], whole, group=group)
        stats = group.stats()
        assert (stats["refreshes"] > 1) == (refresh is not None and size() > 1), stats["refreshes"]
        outcomes.append(crc(results))
        dist.destroy_process_group(group)
    assert outcomes[0] == outcomes[1]
    return outcomes


def data_movement() -> None:
    """Check that broadcast, gather, scatter, reduce, all-gather and all-to-all do as on Gloo, small and large."""
    for n_values in (3, LARGE):
        brought = all_terms(n_values)
        mine = brought[rank()]
        gathered = [torch.empty(n_values) for _ in range(size())]
        dist.all_gather(gathered, mine)
        assert all(torch.equal(one, other) for one, other in zip(gathered, brought, strict=True))
        whole = torch.empty(n_values * size())
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, torch.cat(brought))
        tensor = mine.clone()
        dist.broadcast(tensor, src=size() - 1)
        assert torch.equal(tensor, brought[-1])
        tensor = mine.clone()
        dist.reduce(tensor, dst=0)
        if rank() == 0:
            torch.testing.assert_close(tensor, dense_sum(brought, False))
        dist.gather(mine, gathered if rank() == 0 else None, dst=0)
        own = torch.empty(n_values)
        dist.scatter(own, brought if rank() == 0 else None, src=0)
        assert torch.equal(own, mine)
        turned = torch.empty(n_values * size())
        dist.all_to_all_single(turned, torch.cat([mine] * size()))
        assert torch.equal(turned, torch.cat(brought))
        dist.all_to_all(gathered, [mine] * size())
        assert all(torch.equal(one, other) for one, other in zip(gathered, brought, strict=True))
    splits = [who + 1 for who in range(size())]
    sent = torch.cat([torch.full((n,), float(rank())) for n in splits])
    got = torch.empty((rank() + 1) * size())
    dist.all_to_all_single(got, sent, [rank() + 1] * size(), splits)
    assert torch.equal(got, torch.arange(size()).repeat_interleave(rank() + 1).float())


def objects() -> None:
    """Check object collectives and barriers."""
    result: list[Any] = [None] * size()
    dist.all_gather_object(result, {"rank": rank()})
    assert result == [{"rank": who} for who in range(size())]
    told = [["from 0", rank()]]
    dist.broadcast_object_list(told, src=0)
    assert told == [["from 0", 0]]
    dist.gather_object(rank(), result if rank() == 0 else None)
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, list(range(10, 10 + size())) if rank() == 0 else None)
    assert mine == [10 + rank()]
    dist.barrier()
    dist.barrier(async_op=True).wait()
    group: Any = world()
    group.monitored_barrier(timedelta(seconds=30))  # dist.monitored_barrier wants a group named "gloo"


def point_to_point() -> None:
    """Send and receive, blocking, not blocking, in a batch, from anyone."""
    if size() == 1:
        return
    after, before = (rank() + 1) % size(), (rank() - 1) % size()
    for n_values in (1, LARGE):
        brought = all_terms(n_values)
        got = torch.empty(n_values)
        under_way = [dist.irecv(got, src=before, tag=3), dist.isend(brought[rank()], dst=after, tag=3)]
        for item in under_way:
            assert item is not None
            item.wait()
        assert torch.equal(got, brought[before])
        got.zero_()
        operations = [dist.P2POp(dist.irecv, got, before), dist.P2POp(dist.isend, brought[rank()], after)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert torch.equal(got, brought[before])
        if rank() == 0:
            dist.send(brought[0], dst=1)
        elif rank() == 1:
            assert dist.recv(got) == 0
            assert torch.equal(got, brought[0])
    dist.barrier()


def functional_collectives() -> int:
    """Check what compiled programs and DTensor call."""
    brought = all_terms(LARGE)
    mine = brought[rank()]
    total = functional.wait_tensor(functional.all_reduce(mine, "sum", world()))
    assert same_bits(total, dense_sum(brought, False))
    mean = functional.wait_tensor(functional.all_reduce(mine, "avg", world()))
    assert same_bits(mean, dense_sum(brought, True))
    pair = functional.all_reduce_coalesced([mine, mine * 2], "sum", world())
    assert torch.equal(functional.wait_tensor(pair[1]), total * 2)
    whole = functional.wait_tensor(functional.all_gather_tensor(mine, 0, world()))
    assert torch.equal(whole, torch.cat(brought))
    part = functional.wait_tensor(functional.reduce_scatter_tensor(whole, "sum", 0, world()))
    assert torch.equal(part, mine * size())
    splits = [LARGE] * size()
    turned = functional.wait_tensor(functional.all_to_all_single(torch.cat([mine] * size()), splits, splits, world()))
    assert torch.equal(turned, torch.cat(brought))
    told = functional.wait_tensor(functional.broadcast(mine, 0, world()))
    assert torch.equal(told, brought[0])
    return crc([total, mean])


def interleaved(rounds: int) -> int:
    """Mix compressed and plain collectives, none waited for before all have begun."""
    results = []
    for number in range(rounds):
        brought = [all_terms(LARGE + number), all_terms(100)]
        tensors = [item[rank()].clone() for item in brought]
        counts = torch.tensor([number])
        gathered = torch.empty(size() * LARGE)
        works = [
            dist.all_reduce(tensors[0], async_op=True),
            dist.all_reduce(counts, async_op=True),
            dist.all_gather_into_tensor(gathered, brought[0][rank()][:LARGE].clone(), async_op=True),
            dist.all_reduce(tensors[1], async_op=True),
        ]
        for work in works[::-1]:
            work.wait()
        assert same_bits(tensors[0], dense_sum(brought[0], False))
        assert int(counts) == number * size()
        results.append(tensors[0])
    return crc(results)


# -------------------------------------------------------------------------------------------------------------- Groups


def subgroups() -> None:
    """Make and destroy groups of some ranks, of Gloo and of gcodec, with options of their own."""
    ranks = [0, size() - 1] if size() > 1 else [0]
    options = gd.GroupOptions(mode=gd.FixedBits(6), min_bytes=1000, bypass=None)
    group = dist.new_group(ranks, backend="gcodec", pg_options=options)
    gloo = dist.new_group(ranks, backend="gloo")
    assert dist.get_backend() == "gcodec"
    if rank() in ranks:
        assert isinstance(group, gd.CompressedGroup)
        assert dist.get_backend(group) == "gcodec"
        brought = [values_at(who, 2000, torch.float32) for who in ranks]
        tensor = brought[ranks.index(rank())].clone()
        dist.all_reduce(tensor, group=group)
        exact = dense_sum(brought, False)
        other = brought[ranks.index(rank())].clone()
        dist.all_reduce(other, group=gloo)
        torch.testing.assert_close(other, exact)
        torch.testing.assert_close(tensor, exact, rtol=2**-5, atol=0.002)
        if size() > 1:
            assert not torch.equal(tensor, exact)
            assert group.stats()["calls"] == 1
        dist.destroy_process_group(group)
        dist.destroy_process_group(gloo)
    dist.barrier()


def overlapping() -> None:
    """Use pairs that share a rank: how many groups a rank is in differs from rank to rank, and falls when one ends."""
    pairs = [[0, other] for other in range(1, size())]
    for again in range(2):
        groups = [dist.new_group(pair, backend=backend) for pair in pairs for backend in ("gcodec", "gloo")]
        for number, group in enumerate(groups):
            if rank() in pairs[number // 2]:
                tensor = torch.full((LARGE,), float(1 + again))
                if number % 2:
                    gd.allreduce(tensor, group)
                else:
                    dist.all_reduce(tensor, group=group)
                assert torch.equal(tensor, torch.full((LARGE,), 2.0 * (1 + again)))
                gd.close_lanes(group)
                dist.destroy_process_group(group)
    dist.barrier()


def named_backend() -> None:
    """Use a second name with other options; nonsense is refused."""
    near: Any = gd.NearLossless(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0))
    word: Any = "bf16"
    gd.register_backend("gcodec_narrow", gd.GroupOptions(gd.FixedBits(3), min_bytes=100))
    group = dist.new_group(backend="gcodec_narrow")
    assert dist.get_backend(group) == "gcodec_narrow"
    brought = all_terms(5000)
    tensor = brought[rank()].clone()
    dist.all_reduce(tensor, group=group)
    assert torch.equal(tensor, dense_sum(brought, False)) == (size() == 1)
    dist.destroy_process_group(group)
    assert_refused(
        lambda: gd.register_backend("gloo"),
        lambda: gd.register_backend("a b"),
        lambda: gd.GroupOptions(mode=near),
        lambda: gd.GroupOptions(mode=word),
    )


def device_mesh() -> int:
    """Use a mesh over the world, and one whose dimension asks for the backend."""
    mesh = init_device_mesh("cpu", (size(),), mesh_dim_names=("all",))
    options: Any = gd.GroupOptions(min_bytes=100)
    other = init_device_mesh(
        "cpu", (size(), 1), mesh_dim_names=("rep", "one"), backend_override={"rep": ("gcodec", options), "one": "gloo"}
    )
    brought = all_terms(LARGE)
    for group in (mesh.get_group(), other.get_group("rep")):
        tensor = brought[rank()].clone()
        dist.all_reduce(tensor, group=group)
        assert same_bits(tensor, dense_sum(brought, False))
    assert dist.get_backend(other.get_group("one")) == "gloo"
    assert dist.get_backend(other.get_group("rep")) == "gcodec"
    return crc([tensor])


def expanded() -> tuple[list[str], float]:
    """Return what collectives say that are to write to expanded tensors, and a sum that follows."""
    wrong = [torch.ones(1, dtype=dtype).expand(n) for n in (4, LARGE) for dtype in (torch.float32, torch.int32)]
    said = [heard(partial(dist.all_reduce, tensor)).text for tensor in wrong]
    tensor = torch.ones(LARGE)
    dist.all_reduce(tensor)
    return [text for text in said if text], float(tensor.mean())
