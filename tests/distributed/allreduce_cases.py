"""What the ranks of tests/test_distributed*.py run. Every function here is one rank's part."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import threading
import zlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.distributed as gd
from gcodec.adaptive import GraVAC
from gcodec.averaging.averager import CompressionPlan
from gcodec.compressors import Dense, TopK
from gcodec.distributed.reduction import bypass as bypasses
from gcodec.distributed.reduction import coder, reduce, ways
from gcodec.distributed.transport import failures, jobs, message, transfers
from gcodec.distributed.transport import lane as lanes
from gcodec.distributed.transport.lane import lane_of
from tests.support.laws import bits_of

WIDE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
MODES: dict[str, Any] = {"lossless": lambda optimizer: gd.Lossless(), "fixed": lambda optimizer: gd.FixedBits(9),
         "near": gd.NearLossless}


def rank() -> int:
    """This rank."""
    return dist.get_rank()


def size() -> int:
    """All ranks."""
    return dist.get_world_size()


def crc(tensors: Sequence[torch.Tensor]) -> int:
    """Return one number for the bits of tensors."""
    return zlib.crc32(b"".join(bits_of(tensor).tobytes() for tensor in tensors))


def values_at(who: int, n_values: int, dtype: torch.dtype, kind: str = "normal") -> torch.Tensor:
    """Return what rank ``who`` brings, known to all."""
    random = torch.Generator().manual_seed(1000 + who)
    values = torch.randn(n_values, generator=random) * 0.01
    if kind == "sparse":
        values[torch.rand(n_values, generator=random) < 0.7] = 0
    elif kind == "extreme":
        values *= torch.exp(torch.rand(n_values, generator=random) * 170 - 85)
    elif kind == "special":
        special = torch.tensor([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38])
        at = torch.randint(0, 40, (n_values,), generator=random)
        values = torch.where(at < len(special), special[at.clamp(max=len(special) - 1)], values)
    return values.to(dtype)


def dense_sum(tensors: Sequence[torch.Tensor], mean: bool) -> torch.Tensor:
    """Return the sum in the order of ranks: the law of lossless mode."""
    dtype = tensors[0].dtype
    total = tensors[0].to(WIDE.get(dtype, dtype))
    for other in tensors[1:]:
        total = total + other.to(total.dtype)
    return (total / len(tensors) if mean else total).to(dtype)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bits; any NaN equals any other."""
    both = torch.isnan(a) & torch.isnan(b)
    return a.dtype == b.dtype and bool((both | torch.from_numpy(bits_of(a) == bits_of(b)).view(a.shape)).all())


def rounded(values: torch.Tensor, mantissa_bits: int) -> torch.Tensor:
    """Return float32 values rounded to the nearest of so many mantissa bits, ties to even."""
    bits, drop = values.view(torch.int32).to(torch.int64) & 0xFFFFFFFF, 23 - mantissa_bits
    bits = (bits + (1 << drop - 1) - 1 + (bits >> drop & 1)) >> drop << drop
    return bits.to(torch.int32).view(torch.float32)


def accuracy(name: str, mantissa_bits: int) -> list[tuple[float, float]]:
    """Check the law of an accuracy, bit for bit, and return the errors of torch's hook of that name and of ours:
    the root of the mean square and the greatest, each against exact averages and relative to the term's size."""
    terms = [values_at(who, 70_000, torch.float32) for who in range(size())]
    exact_mean = sum(term.double() for term in terms) / size()
    results = []
    for ours in (False, True):
        model = DistributedDataParallel(Terms(len(terms[0])))
        if ours:
            state = gd.CompressedAllreduce(mode=name, smallest=0, threads=1, bypass=None)
            model.register_comm_hook(state, gd.hook)
            assert state.stats()["accuracy"] == name
        else:
            torchs_hook = getattr(default_hooks, f"{name}_compress_hook")
            # By its own name DDP takes that for bfloat16 with CUDA only.
            model.register_comm_hook(None, lambda state, bucket, hook=torchs_hook: hook(state, bucket))
        model(terms[rank()]).backward()
        results.append(model.module.param.grad)
    wanted = dense_sum([rounded(term, mantissa_bits) for term in terms], True)
    assert same_bits(results[1], rounded(wanted, mantissa_bits) if size() > 2 else wanted)
    errors = [(result.double() - exact_mean) for result in results]
    return [(float(error.square().mean().sqrt()), float(error.abs().max())) for error in errors]


class Terms(nn.Module):
    """A parameter whose gradient is the model's input."""

    def __init__(self, n_values: int) -> None:
        super().__init__()
        self.param = nn.Parameter(torch.zeros(n_values))

    def forward(self, term: torch.Tensor) -> torch.Tensor:
        return (self.param * term).sum()


# --------------------------------------------------------------------------------------------------- One all-reduce


def exact(dtype: str, sizes: Sequence[int], kinds: Sequence[str], smallest: int) -> list[int]:
    """Check lossless all-reduces of many arrays; return a checksum of every result."""
    results = []
    for n_values in sizes:
        for kind in kinds:
            for op in ("sum", "avg"):
                terms = [values_at(who, n_values, getattr(torch, dtype), kind) for who in range(size())]
                tensor = terms[rank()].clone()
                gd.allreduce(tensor, op=op, smallest=smallest, threads=1)
                assert same_bits(tensor, dense_sum(terms, op == "avg")), (n_values, kind, op)
                results.append(crc([tensor]))
    return results


def layouts() -> int:
    """Reduce tensors that are not contiguous or of several dimensions, several at once."""
    terms = [values_at(who, 600 * 500, torch.float32).view(600, 500) for who in range(size())]
    wanted = dense_sum(terms, False)
    mine = terms[rank()]
    turned = mine.t().clone().t()
    spaced = torch.zeros(600, 1000)[:, ::2]
    spaced.copy_(mine)
    future = [gd.allreduce(tensor, smallest=0, async_op=True) for tensor in (turned, spaced)]
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
    other: Any = {"mode": 8, "group": "sum", "smallest": "none", "threads": 0, "timeout": 10}
    narrow = gd.NearLossless(torch.optim.SGD([good], lr=1.0), ladder={"bfloat16": gcodec.Ladder((0, 2))})
    with torch.inference_mode():
        thought = torch.zeros(10)
    calls: Any = (lambda: gd.allreduce(good, op="max"), lambda: gd.allreduce(torch.zeros(3, dtype=torch.int32)),
                  lambda: gd.allreduce(good, mode=gd.NearLossless(torch.optim.SGD([nn.Parameter(good)], lr=1.0))),
                  lambda: gd.FixedBits(0), lambda: gd.Refresh(interval=1),
                  lambda: gd.allreduce(torch.zeros(1).expand(100_000)), lambda: gd.allreduce(good.numpy()),
                  lambda: gd.allreduce(good, mode=narrow, params=good), lambda: gd.allreduce(thought),
                  *(functools.partial(gd.allreduce, good, **{name: value}) for name, value in other.items()))
    for call in calls:
        with contextlib.suppress(gcodec.InvalidArgument):
            call()
            raise AssertionError("not refused")
    with contextlib.suppress(gcodec.Unsupported):
        gd.allreduce(torch.zeros(10, device="meta"))
        raise AssertionError("not refused")
    gd.allreduce(total := torch.ones(100_000))
    assert torch.equal(total, torch.full((100_000,), float(size())))


def fixed_bound(bits: int) -> int:
    """Check that each encoding, one for two ranks and two for more, moves a value by at most 2**-(bits + 1) of itself.
    """
    terms = [values_at(who, 200_000, torch.float32) for who in range(size())]
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
    terms = [values_at(who, param.numel(), getattr(torch, dtype), "sparse") for who in range(size())]
    options: dict[str, Any] = {"optimizer": optimizer, "param": param} if mode == "near" else {"mantissa_bits": 5}
    options["options"] = gcodec.EncoderOptions(exact_if_smaller=False)

    def coded(tensor: torch.Tensor) -> torch.Tensor:
        decoded: torch.Tensor = gcodec.decode(gcodec.encode(tensor, **options))
        return decoded

    tensor = terms[rank()].clone()
    gd.allreduce(tensor, op="avg", mode=gd.NearLossless(optimizer) if mode == "near" else gd.FixedBits(5),
                 params=param, smallest=0)
    mean = dense_sum([coded(term) for term in terms], True)
    assert same_bits(tensor, mean if size() == 2 else coded(mean))
    few = torch.full((3,), 1.1 + rank())    # so few that a frame stores them as they are, but for the rounding
    gd.allreduce(few, mode=gd.FixedBits(2), smallest=0)
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
    terms = [values_at(who, n_values, torch.float32, "extreme") for who in range(size())]
    tensor = terms[rank()].clone()
    before = tensor.clone()
    gd.allreduce(tensor, op=op, mode=gd.NearLossless(optimizer, scale=scale), params=params, threads=1)
    theta = torch.cat([item.detach().reshape(-1) for item in params]).double()
    buffer = torch.cat([optimizer.state[item]["momentum_buffer"].reshape(-1) for item in params]).double()
    wide = torch.stack(terms).double()
    exactly = wide.mean(0) if op == "avg" else wide.sum(0)
    rest = ((1 - lr * decay) * theta - lr * momentum * buffer).abs()
    moved = lr * (tensor.double() - exactly).abs()
    summing = lr * 2.0**-22 * wide.abs().sum(0) + lr * size() * 2.0**-125     # float32 sums, denormals
    bound = (1 if size() == 2 else 2) * 2.0**-24 / scale * rest * (1 + 2.0**-20) + summing
    assert bool((moved <= bound).all()), float((moved - bound).max())
    assert not torch.equal(tensor, before)
    return crc([tensor]), float((moved > 0).double().mean())


# ------------------------------------------------------------------------------------------------------------ Training


class Given(nn.Module):
    """Parameters whose gradients are what the batch says: the loss is their product with it."""

    def __init__(self, sizes: Sequence[int], dtypes: Sequence[torch.dtype] = (torch.float32,)) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.parts = nn.ParameterList([
            nn.Parameter((torch.randn(n, generator=random) * 0.05).to(dtypes[i % len(dtypes)]))
            for i, n in enumerate(sizes)])

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss."""
        return torch.stack([(part * values.to(part.dtype)).sum().float()
                            for part, values in zip(self.parts, batch, strict=True)]).sum()


class Net(nn.Module):
    """A small network: several buckets of 1 MB, odd sizes, a tiny bias; with a branch that some batches leave out."""

    def __init__(self, branch: bool = False, narrow: bool = False, images: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.images, self.narrow = images, narrow
        first: nn.Module = nn.Conv2d(3, 64, 3, padding=1) if images else nn.Linear(48, 500)
        self.first = first
        self.deep = nn.Conv2d(64, 500, 4) if images else nn.Linear(500, 701)
        self.branch = nn.Linear(701 if not images else 500, 333) if branch else None
        self.last = nn.Linear(500 if images else 701, 333)
        self.head = nn.Linear(333, 10)
        if images:
            self.to(memory_format=torch.channels_last)     # type: ignore[call-overload]
        if narrow:
            self.last.to(torch.bfloat16)

    def forward(self, x: torch.Tensor, use_branch: bool = True) -> torch.Tensor:
        """Scores."""
        if self.images:
            x = self.deep(torch.relu(self.first(x.view(-1, 3, 4, 4)))).flatten(1)
        else:
            x = self.deep(torch.relu(self.first(x)))
        x = torch.relu(x)
        wide = self.last(x.to(self.last.weight.dtype)).to(x.dtype)
        if self.branch is not None and use_branch:
            wide = wide + self.branch(x)
        return self.head(wide)


def in_rank_order(state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that averages as lossless mode promises to, without any compression."""
    buffer = bucket.buffer()
    gathered = [torch.empty_like(buffer) for _ in range(size())]
    dist.all_gather(gathered, buffer)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(dense_sum(gathered, True))
    return future


in_rank_order.__annotations__ = {}


@contextlib.contextmanager
def hooked(model: nn.Module, optimizer: torch.optim.Optimizer, mode: str | None,
           state_options: dict[str, Any] | None = None, **ddp: Any) -> Iterator[tuple[Any, Any]]:
    """Return the model under DDP and the state of our hook, or None with the hook in rank order (mode None)."""
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, **ddp)
    state = None
    if mode is None:
        wrapped.register_comm_hook(None, in_rank_order)
    else:
        options = {"smallest": 0, "threads": 1, "bypass": None, **(state_options or {})}
        state = gd.CompressedAllreduce(mode=MODES[mode](optimizer), **options)
        wrapped.register_comm_hook(state, gd.hook)
    yield wrapped, state
    del wrapped


def batch_of(step: int, images: bool = False, n: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's batch."""
    random = torch.Generator().manual_seed(step * 100 + rank())
    return torch.randn(n, 48, generator=random), torch.randint(0, 10, (n,), generator=random)


def train(mode: str | None, steps: int = 5, *, optimizer_name: str = "SGD", branch: bool = False, narrow: bool = False,
          images: bool = False, accumulate: int = 1, loss_scale: float = 1.0, poison: bool = False,
          state_options: dict[str, Any] | None = None, **ddp: Any) -> tuple[int, dict[str, Any]]:
    """Train some steps; return a checksum of the parameters, and the statistics."""
    model = Net(branch, narrow, images)
    options: dict[str, Any] = {"momentum": 0.9} if optimizer_name == "SGD" else {}
    optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.01, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    with hooked(model, optimizer, mode, state_options, **ddp) as (wrapped, state):
        if state is not None and loss_scale != 1:
            state.mode = gd.NearLossless(optimizer, loss_scale=lambda: loss_scale) if mode == "near" else state.mode
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(accumulate):
                x, y = batch_of(step * accumulate + part)
                if poison and step == 1 and rank() == 0:
                    x[0, 0] = float("nan")
                silent = wrapped.no_sync() if part < accumulate - 1 else contextlib.nullcontext()
                with silent:
                    arguments = (x, step % 2 == 0) if branch and ddp.get("find_unused_parameters") else (x,)
                    (nn.functional.cross_entropy(wrapped(*arguments), y) * loss_scale).backward()
            for param in model.parameters():
                if param.grad is not None:
                    param.grad.div_(loss_scale)
            if poison and step == 1:        # a scaler would leave out this step
                assert all(bool(param.grad is None or torch.isnan(param.grad).any()) for param in model.parameters())
                continue
            optimizer.step()
            schedule.step()
        statistics = {} if state is None else state.stats()
        return crc(list(model.parameters())), statistics


def shown(profile: torch.profiler.profile, name: str) -> list[float]:
    """Return the microseconds of the events of a name that a profiler has seen."""
    return [event.time_range.elapsed_us() for event in profile.events() if event.name == name]


def profiled() -> int:
    """Train under torch's profiler, and check that it shows the all-reduce of every bucket; return how many."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hooked(model, optimizer, "lossless") as (wrapped, state):
        for step in range(3):       # whose first rebuilds the buckets
            before = state.stats()["calls"]
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                x, y = batch_of(step)
                nn.functional.cross_entropy(wrapped(x), y).backward()
            times = shown(profile, "gcodec:all_reduce")
            assert len(times) == state.stats()["calls"] - before
            assert all(time > 0 for time in times)
    return len(times)


def sparse() -> int:
    """Train an embedding with sparse gradients beside dense parameters."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Embedding(500, 64, sparse=True), nn.Linear(64, 3000), nn.Linear(3000, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hooked(model, optimizer, "near") as (wrapped, state):
        for step in range(3):
            words = torch.randint(0, 500, (8,), generator=torch.Generator().manual_seed(step * 10 + rank()))
            optimizer.zero_grad()
            wrapped(words).square().mean().backward()
            assert model[0].weight.grad is not None
            assert model[0].weight.grad.is_sparse
            optimizer.step()
        assert 0 < state.stats()["dense"] < state.stats()["calls"]
    return crc(list(model.parameters()))


def shared_state(mode: str) -> float:
    """Return how far gradients of two models are from their averages, in one backward pass and with one state."""
    torch.manual_seed(6)
    models = [nn.Linear(200, 200), nn.Linear(200, 200)]
    state = gd.CompressedAllreduce(mode=mode, bypass=None, smallest=0)
    both = [DistributedDataParallel(model) for model in models]
    for wrapped in both:
        wrapped.register_comm_hook(state, gd.hook)
    farthest = 0.0
    for step in range(3):
        x = values_at(10 * step + rank(), 1600, torch.float32).view(8, 200)
        params = [param for model in models for param in model.parameters()]
        sum(((scale * each(x)).square().sum() for scale, each in enumerate(models, 1)), torch.zeros(())).backward()
        wanted = [torch.zeros(()) if param.grad is None else param.grad.clone() for param in params]
        for model in models:
            model.zero_grad()
        sum(((scale * each(x)).square().sum() for scale, each in enumerate(both, 1)), torch.zeros(())).backward()
        for param, average in zip(params, wanted, strict=True):
            dist.all_reduce(average)
            assert param.grad is not None
            error = torch.linalg.vector_norm(param.grad - average / size()) / torch.linalg.vector_norm(average)
            farthest = max(farthest, float(error))
        for model in models:
            model.zero_grad()
    return farthest


class Waves(nn.Module):
    """A layer of complex parameters, two in a bucket, between real ones."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(48, 200)
        self.waves = nn.ParameterList([nn.Parameter(torch.randn(101, 101, dtype=torch.complex64)) for _ in range(2)])
        self.last = nn.Linear(200, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        spectrum = torch.fft.rfft(self.first(x))
        for wave in self.waves:
            spectrum = spectrum @ wave / 10
        return self.last(torch.fft.irfft(spectrum, 200))


def complex_parameters(kind: str) -> tuple[int, float]:
    """Check that gradients of complex parameters are averages; return their checksum, and the calls compressed."""
    model, alone = Waves(), Waves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.3)
    states: dict[str, Any] = {
        "exact": lambda: gd.CompressedAllreduce(bypass=None, smallest=0),
        "near": lambda: gd.CompressedAllreduce(optimizer=optimizer, bypass=None, smallest=0),
        "compressor": lambda: gd.CompressedGradients(wrapped, CompressionPlan(TopK(1.0), smallest=0, vectors=True)),
        "controller": lambda: gd.AdaptiveGradients(wrapped, CompressionPlan(Dense()), GraVAC(TopK(1.0)))}
    state = states[kind]()
    wrapped.register_comm_hook(state, gd.hook)
    for step in range(3):
        x, y = batch_of(step)
        for each, module in ((model, wrapped), (alone, alone)):
            each.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
        for averaged, own in zip(model.parameters(), alone.parameters(), strict=True):
            assert own.grad is not None
            dist.all_reduce(own.grad)
            torch.testing.assert_close(averaged.grad, own.grad / size(), rtol=1e-3, atol=1e-6)
    numbers = state.stats()
    return crc([torch.view_as_real(wave.grad) for wave in model.waves]), numbers["calls"] - numbers["dense"]


def join(mode: str | None) -> int:
    """Train ranks with different numbers of batches."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hooked(model, optimizer, mode) as (wrapped, _), wrapped.join():
        for step in range(2 + 2 * rank()):
            x, y = batch_of(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
    everywhere = [torch.zeros_like(param) for param in model.parameters()]
    for copy, param in zip(everywhere, model.parameters(), strict=True):
        copy.copy_(param.detach())
        dist.broadcast(copy, size() - 1)
    return crc(everywhere)


def resume(mode: str, first: int, second: int) -> tuple[list[Any], list[Any]]:
    """Return (parameters, codebooks) by step, of the second part of an uninterrupted run and of a resumed one."""

    def run(steps: range, saved: dict[str, Any] | None) -> tuple[dict[str, Any], list[Any]]:
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if saved is not None:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        trace = []
        with hooked(model, optimizer, mode, {"refresh": gd.Refresh(interval=4)}) as (wrapped, state):
            assert state is not None
            if saved is not None:
                state.load_state_dict(saved["hook"])
            for step in steps:
                x, y = batch_of(step)
                optimizer.zero_grad()
                used = state._codebooks.digest
                nn.functional.cross_entropy(wrapped(x), y).backward()
                optimizer.step()
                trace.append((crc(list(model.parameters())), used))
                if step == first - 1:
                    file = io.BytesIO()
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                                "hook": state.state_dict()}, file)
                    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
        assert saved is not None
        return saved, trace

    saved, whole = run(range(first + second), None)
    _, resumed = run(range(first, first + second), saved)
    return whole[first:], resumed


def distributed_checkpoint(folder: str) -> bool:
    """Save a state through ``torch.distributed.checkpoint`` and load it in place into a new one."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hooked(model, optimizer, "lossless", {"refresh": gd.Refresh(interval=3)}) as (wrapped, state):
        for step in range(4):
            x, y = batch_of(step)
            nn.functional.cross_entropy(wrapped(x), y).backward()
        save({"hook": state}, checkpoint_id=folder)
        fresh = gd.CompressedAllreduce(refresh=gd.Refresh(interval=3), bypass=None)
        empty = fresh.state_dict()
        load({"hook": fresh}, checkpoint_id=folder)
        return bool(fresh.state_dict() == state.state_dict() != empty)


def refresh(steps: int, interval: int, change_at: int | None,
            trigger: float = 0.1) -> list[tuple[int, int, float, float]]:
    """Return for each step a digest of the codebooks in use, bytes sent, and bits per symbol, with and at the entropy.
    """
    model = Given([70_001, 40_000, 3, 90_000])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trace = []
    with hooked(model, optimizer, "lossless", {"refresh": gd.Refresh(interval, trigger)}) as (wrapped, state):
        assert state is not None
        for step in range(steps):
            random = torch.Generator().manual_seed(step * 10 + rank())
            spread = 0.0 if change_at is None or step < change_at else 0.8
            normal = [[torch.randn(part.shape, generator=random) for part in model.parts] for _ in range(2)]
            batch = [item * torch.exp(spread * other) for item, other in zip(*normal, strict=True)]
            used = state._codebooks.digest
            optimizer.zero_grad()
            wrapped(batch).backward()
            numbers = state.stats()
            trace.append((used, int(numbers["last_step"]["sent_bytes"]), numbers["bits_per_symbol"],
                          numbers["entropy_per_symbol"]))
    return trace


@contextlib.contextmanager
def slowed(slow: str) -> Iterator[None]:
    """Make one sort of ways of making a collective, "dense" or "coded", seem slow, and codebooks in every frame slower
    than shared ones; with "all but the cast" all but the cast to 16 bits."""
    add, end_step = bypasses.BypassController.add, bypasses.BypassController.end_step

    def seconds(kind: int | None) -> float:
        coded, plain = kind in ways.CODING, kind in (ways.DENSE, ways.CAST, bypasses.TIMED)
        slower = {"dense": plain, "coded": coded, "all but the cast": coded or kind == ways.DENSE}[slow]
        return 100.0 * slower + 20.0 * (kind == ways.OWN_CODEBOOKS) + 40.0 * (kind == ways.CAST and slow == "coded")

    def slow_add(self: bypasses.BypassController, n_bytes: int, counters: Any) -> None:
        counters.seconds += seconds(self.kind)
        add(self, n_bytes, counters)

    def slow_end(self: bypasses.BypassController, lane: Any) -> None:
        self._ended -= seconds(self.kind)         # the step took that long, too
        end_step(self, lane)

    with mock.patch.multiple(bypasses.BypassController, add=slow_add, end_step=slow_end):
        yield


def bypass(slow: str) -> list[int]:
    """Return how many buckets of each step were sent as they are, where one of the two ways is slow."""
    counts = []
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"bypass": gd.Bypass(steps=2, every=8), "smallest": 1 << 16}
    logging = mock.patch.object(bypasses._log, "info")
    with slowed(slow), logging as logged, hooked(model, optimizer, "near", options) as (wrapped, state):
        for step in range(24):
            x, y = batch_of(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
            counts.append(int(state.stats()["last_step"]["dense"]))
            assert (step < 11) == (state.stats()["bypass_gain"] != state.stats()["bypass_gain"])
        copy = gd.CompressedAllreduce(bypass=gd.Bypass(steps=2, every=8))
        copy.load_state_dict(state.state_dict())
        assert copy._bypass is not None
        assert copy._bypass.verdicts == state._bypass.verdicts
    numbers = state.stats()
    assert numbers["bypass_compressing"] == (numbers["bypass_gain"] > 1) == (slow == "dense")
    assert numbers["bypass_gain"] == pytest.approx(numbers["bypass_dense_ms"] / numbers["bypass_compressed_ms"])
    assert numbers["bypass_way"] == ("compressed" if slow == "dense" else "uncompressed")
    assert set(numbers["bypass_ways_ms"]) == {"compressed", "compressed with a codebook in every frame", "uncompressed"}
    assert all(ratio > 1 for ratio in numbers["bypass_ratios"].values())
    lines = [call.args[0] % call.args[1:] for call in logged.call_args_list]
    assert len(lines) == (rank() == 0)
    assert all(f"{numbers['bypass_gain']:.3g} times as fast: " in line for line in lines), lines
    return [*counts, len(state.stats()["buckets"]), crc(list(model.parameters()))]


def cast_by_bypass(name: str) -> int:
    """Check that gradients are those of torch's hook, bit for bit, once the bypass has found the cast to be fastest."""
    model = DistributedDataParallel(Terms(70_000))
    torchs_model = DistributedDataParallel(Terms(70_000))
    state = gd.CompressedAllreduce(mode=name, smallest=0, threads=1, bypass=gd.Bypass(steps=1, every=8))
    model.register_comm_hook(state, gd.hook)
    torchs_hook = getattr(default_hooks, f"{name}_compress_hook")
    torchs_model.register_comm_hook(None, lambda state, bucket: torchs_hook(state, bucket))
    with slowed("all but the cast"):
        for step in range(12):
            term = values_at(rank() + step * size(), 70_000, torch.float32)
            for each in (model, torchs_model):
                each.zero_grad()
                each(term).backward()
            cast = state.stats()["last_step"]["dense"]
            assert not (step > 9 and not cast)
            if step > 9:
                assert same_bits(model.module.param.grad, torchs_model.module.param.grad)
    restored = pickle.loads(pickle.dumps(state))
    assert restored._bypass.default == ways.CAST and restored._cast == state._cast
    return crc([model.module.param.grad])


def conservation() -> dict[str, float]:
    """Return bytes counted, and bytes that were handed to Gloo."""
    handed = 0
    original = transfers.Transfers.send

    def send(self: transfers.Transfers, peer: int, tag: int, buffer: torch.Tensor, n_bytes: int) -> None:
        nonlocal handed
        handed += n_bytes
        original(self, peer, tag, buffer, n_bytes)

    with mock.patch.object(transfers.Transfers, "send", send):
        _, numbers = train("near", 4)
    return {**{key: numbers[key] for key in ("sent_bytes", "received_bytes", "raw_bytes", "encoded_bytes")},
            "handed": handed, "by_bucket": sum(item["sent_bytes"] for item in numbers["buckets"].values()),
            "buckets": len(numbers["buckets"])}


# -------------------------------------------------------------------------------------------------------------- Faults


def fault(kind: str, culprit: int, patience: float = 30) -> tuple[str, str, bool, str]:
    """An all-reduce in which one rank does wrong: the error here, its text, whether the tensor is untouched, and the
    error of the next all-reduce."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    timeout = timedelta(seconds=patience)
    lane = lane_of(group, timeout)
    terms = values_at(rank(), 400_000, torch.float32)
    gd.allreduce(terms.clone(), smallest=0, threads=1)      # in another lane: then nobody is slow
    tensor = terms.clone()
    options: dict[str, Any] = {"group": group, "smallest": 0, "threads": 1}
    guilty = rank() == culprit
    undo = _sabotage(kind) if guilty else None
    name = text = following = ""
    try:
        if guilty and kind == "mode":
            gd.allreduce(tensor, mode=gd.FixedBits(3), **options)
        elif guilty and kind in ("longer", "shorter"):
            gd.allreduce(torch.zeros(6_000_000 if kind == "longer" else 10_000, dtype=torch.float64), **options)
        elif guilty and kind == "sequence":
            lane.next_sequence()
            gd.allreduce(tensor, **options)
        elif not (guilty and kind == "silence"):
            gd.allreduce(tensor, **options)
    except gcodec.GcodecError as error:
        name, text = type(error).__name__, str(error)
    except ZeroDivisionError as error:
        name, text = "ZeroDivisionError", str(error)
    finally:
        if undo is not None:
            undo()
    untouched = torch.equal(tensor, terms)
    if name:
        try:
            gd.allreduce(tensor, **options)
        except gcodec.PeerError as error:
            following = str(error)
    return name, text, untouched, following


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


def full_queue(culprit: int, patience: float) -> list[str]:
    """Return the errors of more all-reduces than may wait while a rank is silent."""
    lane_of(group := dist.new_group(timeout=timedelta(seconds=60)), timedelta(seconds=patience))
    if rank() == culprit:
        return []
    begun, texts = [], []
    with mock.patch.object(lanes, "_MAX_QUEUED", 3):
        lane_of(group)._queue.maxsize = 3
        for _ in range(9):
            try:
                future = gd.allreduce(torch.ones(100_000), group, smallest=0, async_op=True)
                assert future is not None
                begun.append(future)
            except gcodec.PeerError as error:
                texts.append(str(error))
    for item in begun:
        try:
            item.wait()
        except gcodec.PeerError as error:
            texts.append(str(error))
    return texts


def _sabotage(kind: str) -> Any:
    original = coder.Coder.encode
    if kind == "header":
        write = message.Header.write_to

        def write_to(self: message.Header, out: Any) -> None:
            write(self, out)
            out[20] ^= 255

        return _patched(message.Header, "write_to", write_to)

    if kind == "result":
        decode = reduce.Reduction._decode

        def fail(self: reduce.Reduction, wire: Any, slot: Any, *rest: Any) -> None:
            decode(self, wire, slot, *rest)
            if slot.kind == message.RESULT:
                raise ZeroDivisionError("a fault on purpose")

        return _patched(reduce.Reduction, "_decode", fail)

    def encode(self: coder.Coder, bits: Any, begin: int, which: int, out: Any, rounded: Any = None) -> int:
        n_bytes = original(self, bits, begin, which, out, rounded)
        if kind == "payload":
            out[n_bytes // 2] ^= 16
        elif kind == "exception":
            raise ZeroDivisionError("a fault on purpose")
        return n_bytes

    return _patched(coder.Coder, "encode", encode)


def _patched(owner: Any, name: str, value: Any) -> Any:
    """Put it in place; returns what takes it away."""
    patch = mock.patch.object(owner, name, value)
    patch.start()
    return patch.stop


def death(culprit: int) -> tuple[list[tuple[str, str]], int]:
    """One rank dies in the middle of an all-reduce: the errors of that one and of later ones, and how often a rank has
    looked for what another one may have said of why it has gone."""
    tensor = values_at(rank(), 4_000_000, torch.float32)
    gd.allreduce(tensor, smallest=0, timeout=timedelta(seconds=30))
    if rank() == culprit:
        _patched(coder.Coder, "encode", lambda *_: os._exit(1))
    heard = []
    with mock.patch.object(failures, "_briefly", side_effect=failures._briefly) as looks:
        for _ in range(4):
            try:
                gd.allreduce(tensor, smallest=0)
            except gcodec.GcodecError as error:
                heard.append((type(error).__name__, str(error)))
        gd.close_lanes()
    return heard, looks.call_count


def backward_error() -> str:
    """Return what the user sees when an all-reduce fails under DDP."""
    model = Net()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, process_group=dist.new_group())
    state = gd.CompressedAllreduce(group=wrapped.process_group, smallest=0, timeout=timedelta(seconds=20))
    wrapped.register_comm_hook(state, gd.hook)
    undo = _sabotage("payload") if rank() == 1 else None
    x, y = batch_of(0)
    try:
        nn.functional.cross_entropy(wrapped(x), y).backward()
    except RuntimeError as error:
        return str(error)
    finally:
        if undo is not None:
            undo()
    return ""
