"""What the ranks of tests/distributed/test_allreduce.py run. Every function here is one rank's part."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gcodec
import gcodec.distributed as gd
from gcodec.distributed.transport import jobs
from gcodec.distributed.transport.lane import lane_of
from tests.distributed.rank_basics import all_terms, assert_refused, crc, dense_sum, rank, same_bits, size


def exact(dtype: str, sizes: Sequence[int], kinds: Sequence[str], min_bytes: int) -> list[int]:
    """Check lossless all-reduces of many arrays; return a checksum of every result."""
    results = []
    for n_values in sizes:
        for kind in kinds:
            for op in ("sum", "avg"):
                terms = all_terms(n_values, getattr(torch, dtype), kind)
                tensor = terms[rank()].clone()
                gd.allreduce(tensor, op=op, min_bytes=min_bytes, threads=1)
                assert same_bits(tensor, dense_sum(terms, op == "avg")), (n_values, kind, op)
                results.append(crc([tensor]))
    return results


def layouts() -> int:
    """Reduce tensors that are not contiguous or of several dimensions, several at once."""
    terms = [term.view(600, 500) for term in all_terms(600 * 500)]
    wanted = dense_sum(terms, False)
    mine = terms[rank()]
    turned = mine.t().clone().t()
    spaced = torch.zeros(600, 1000)[:, ::2]
    spaced.copy_(mine)
    future = [gd.allreduce(tensor, min_bytes=0, async_op=True) for tensor in (turned, spaced)]
    for item in future:
        assert item is not None
        item.wait()
        assert item.done()
    assert torch.equal(turned, wanted)
    assert torch.equal(spaced, wanted)
    leaf = nn.Parameter(mine.clone())
    gd.allreduce(leaf)
    assert torch.equal(leaf, wanted)
    return crc([leaf])


def refusals() -> None:
    """Check that arguments without a meaning are refused before anything is sent, and that the group goes on."""
    good: Any = torch.zeros(10)
    other: Any = {"mode": 8, "group": "sum", "min_bytes": "none", "threads": 0, "timeout": 10}
    narrow = gd.NearLossless(torch.optim.SGD([good], lr=1.0), ladder={"bfloat16": gcodec.Ladder((0, 2))})
    with torch.inference_mode():
        thought = torch.zeros(10)
    assert_refused(
        lambda: gd.allreduce(good, op="max"),
        lambda: gd.allreduce(torch.zeros(3, dtype=torch.int32)),
        lambda: gd.allreduce(good, mode=gd.NearLossless(torch.optim.SGD([nn.Parameter(good)], lr=1.0))),
        lambda: gd.FixedBits(0),
        lambda: gd.Refresh(interval=1),
        lambda: gd.allreduce(torch.zeros(1).expand(100_000)),
        lambda: gd.allreduce(good.numpy()),
        lambda: gd.allreduce(good, mode=narrow, params=good),
        lambda: gd.allreduce(thought),
        *(functools.partial(gd.allreduce, good, **{name: value}) for name, value in other.items()),
    )
    assert_refused(lambda: gd.allreduce(torch.zeros(10, device="meta")), by=gcodec.Unsupported)
    gd.allreduce(total := torch.ones(100_000))
    assert torch.equal(total, torch.full((100_000,), float(size())))


def fixed_bound(bits: int) -> int:
    """Check that each encoding, one for two ranks and two for more, moves a value by 2**-(bits + 1) at most."""
    terms = all_terms(200_000)
    tensor = terms[rank()].clone()
    gd.allreduce(tensor, op="avg", mode=gd.FixedBits(bits), threads=1)
    wide = torch.stack(terms).double()
    unit = 2.0 ** -(bits + 1)
    moved = unit * wide.abs().sum(0) / size()
    mean = wide.mean(0)
    again = unit * (mean.abs() + moved) if size() != 2 else 0.0
    bound = moved + again + 2.0**-22 * wide.abs().sum(0)
    assert bool(((tensor.double() - mean).abs() <= bound).all())
    assert not torch.equal(tensor, dense_sum(terms, True))
    return crc([tensor])


def lossy_law(mode: str, dtype: str) -> int:
    """The result is what encoding and decoding makes of the mean of what encoding and decoding makes of each term; for
    two ranks that mean itself."""
    random = torch.Generator().manual_seed(6)
    param = nn.Parameter(torch.randn(90_001, generator=random) * 0.1)
    optimizer = torch.optim.AdamW([param], lr=0.01)
    param.grad = torch.randn(param.shape, generator=random) * 0.01
    optimizer.step()
    terms = all_terms(param.numel(), getattr(torch, dtype), "sparse")
    options: dict[str, Any] = {"optimizer": optimizer, "param": param} if mode == "near" else {"mantissa_bits": 5}
    options["options"] = gcodec.EncoderOptions(exact_if_smaller=False)

    def coded(tensor: torch.Tensor) -> torch.Tensor:
        decoded: torch.Tensor = gcodec.decode(gcodec.encode(tensor, **options))
        return decoded

    tensor = terms[rank()].clone()
    gd.allreduce(
        tensor,
        op="avg",
        mode=gd.NearLossless(optimizer) if mode == "near" else gd.FixedBits(5),
        params=param,
        min_bytes=0,
    )
    mean = dense_sum([coded(term) for term in terms], True)
    assert same_bits(tensor, mean if size() == 2 else coded(mean))
    few = torch.full((3,), 1.1 + rank())  # so few that a frame stores them as they are, but for the rounding
    gd.allreduce(few, mode=gd.FixedBits(2), min_bytes=0)
    return crc([tensor, few])


def near_bound(op: str, scale: float) -> tuple[int, float]:
    """After SGD's step a parameter is within the bound once for all contributions and, for more than two ranks, once
    for the result."""
    lr, momentum, decay = 0.1, 0.9, 1e-3
    random = torch.Generator().manual_seed(5)
    param = nn.Parameter(torch.randn(150_000, generator=random) * 0.1)
    other = nn.Parameter(torch.randn(50, 700, generator=random))
    optimizer = torch.optim.SGD([param, other], lr=lr, momentum=momentum, weight_decay=decay)
    for item in (param, other):
        item.grad = torch.randn(item.shape, generator=random) * 0.01
    optimizer.step()
    params = [other, param]
    n_values = param.numel() + other.numel()
    terms = all_terms(n_values, kind="extreme")
    tensor = terms[rank()].clone()
    before = tensor.clone()
    gd.allreduce(tensor, op=op, mode=gd.NearLossless(optimizer, scale=scale), params=params, threads=1)
    theta = torch.cat([item.detach().reshape(-1) for item in params]).double()
    buffer = torch.cat([optimizer.state[item]["momentum_buffer"].reshape(-1) for item in params]).double()
    wide = torch.stack(terms).double()
    exactly = wide.mean(0) if op == "avg" else wide.sum(0)
    rest = ((1 - lr * decay) * theta - lr * momentum * buffer).abs()
    moved = lr * (tensor.double() - exactly).abs()
    summing = lr * 2.0**-22 * wide.abs().sum(0) + lr * size() * 2.0**-125  # float32 sums, denormals
    bound = (1 if size() == 2 else 2) * 2.0**-24 / scale * rest * (1 + 2.0**-20) + summing
    assert bool((moved <= bound).all()), float((moved - bound).max())
    assert not torch.equal(tensor, before)
    return crc([tensor]), float((moved > 0).double().mean())


def under_way(n_jobs: int, n_parts: int) -> tuple[list[str], list[str]]:
    """What a lane does of jobs that are handed in together, each of which works in parts: part by part; and what
    comes of each. The last part of the second job fails."""
    lane, log, ready = lane_of(dist.new_group()), list[str](), threading.Event()

    def job(name: str) -> jobs.LaneJob:
        left = iter(range(n_parts))

        def advance() -> Any:
            part = next(left)
            log.append(f"{name}{part}")
            if part == n_parts - 1 and name == "b":
                raise ZeroDivisionError(name)
            return name if part == n_parts - 1 else later

        def finish() -> str:
            while (value := advance()) is later:
                pass
            return str(value)

        later = jobs.StartedJob(finish, advance)

        def run() -> jobs.StartedJob:
            ready.wait(30)
            log.append(f"{name} begins")
            return later.then(str.upper)

        return jobs.LaneJob(run, begins=True)

    works = {name: lane.submit(job(name)) for name in "abcdefgh"[:n_jobs]}
    ready.set()
    ends = []
    for name, work in works.items():
        try:
            ends.append(work.wait())
        except (ZeroDivisionError, gcodec.PeerError) as error:
            ends.append(f"{name}: {type(error).__name__}")
    return log, ends
