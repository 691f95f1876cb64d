"""What the ranks of tests/distributed/test_ddp.py run. Every function here is one rank's part."""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn.parallel import DistributedDataParallel

import gcodec.distributed as gd
from gcodec.adaptive import GraVAC
from gcodec.averaging.averager import CompressionPlan
from gcodec.compressors import Dense, TopK
from gcodec.distributed.reduction import bypass as bypasses
from gcodec.distributed.reduction import ways
from gcodec.distributed.transport import transfers
from gcodec.distributed.transport.lane import Lane
from tests.distributed.rank_basics import (
    Net,
    all_terms,
    batch_of,
    crc,
    dense_sum,
    from_all,
    loss_at,
    parts_of_step,
    rank,
    same_bits,
    shown,
    size,
    slowed,
    take_steps,
    values_at,
)

MODES: dict[str, Any] = {
    "lossless": lambda optimizer: gd.Lossless(),
    "fixed": lambda optimizer: gd.FixedBits(9),
    "near": gd.NearLossless,
}


def rounded(values: torch.Tensor, mantissa_bits: int) -> torch.Tensor:
    """Return float32 values rounded to the nearest of so many mantissa bits, ties to even."""
    bits, drop = values.view(torch.int32).to(torch.int64) & 0xFFFFFFFF, 23 - mantissa_bits
    bits = (bits + (1 << drop - 1) - 1 + (bits >> drop & 1)) >> drop << drop
    return bits.to(torch.int32).view(torch.float32)


def accuracy(name: str, mantissa_bits: int) -> list[tuple[float, float]]:
    """Check the law of an accuracy, bit for bit, and return the errors of torch's hook of that name and of ours:
    the root of the mean square and the greatest, each against exact averages and relative to the term's size."""
    terms = all_terms(70_000)
    exact_mean = sum(term.double() for term in terms) / size()
    results = []
    for ours in (False, True):
        model = DistributedDataParallel(Terms(len(terms[0])))
        if ours:
            state = gd.CompressedAllreduce(mode=name, min_bytes=0, threads=1, bypass=None)
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


class Given(nn.Module):
    """Parameters whose gradients are what the batch says: the loss is their product with it."""

    def __init__(self, sizes: Sequence[int], dtypes: Sequence[torch.dtype] = (torch.float32,)) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(1)
        self.parts = nn.ParameterList(
            [
                nn.Parameter((torch.randn(n, generator=random) * 0.05).to(dtypes[i % len(dtypes)]))
                for i, n in enumerate(sizes)
            ]
        )

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        """The loss."""
        return torch.stack(
            [(part * values.to(part.dtype)).sum().float() for part, values in zip(self.parts, batch, strict=True)]
        ).sum()


class HeldUp:
    """A hook that holds a lane up until all buckets of a step wait for it, as they do where the network is slow.

    Args:
        lane: The lane.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane, self._go_on = lane, threading.Event()

    def begin_step(self) -> None:
        """Hold the lane up, until the last bucket has come or it is let go."""
        self._go_on.clear()
        self._lane.submit(lambda: self._go_on.wait(60))

    def let_go(self) -> None:
        """Let the lane go on."""
        self._go_on.set()

    def hook(self, state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook."""
        future = gd.hook(state, bucket)
        if bucket.is_last():
            self.let_go()
        return future


HeldUp.hook.__annotations__.clear()  # DDP compares them with its own classes


def in_rank_order(state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that averages as lossless mode promises to, without any compression."""
    buffer = bucket.buffer()
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(dense_sum(from_all(buffer), True))
    return future


in_rank_order.__annotations__ = {}


@contextlib.contextmanager
def hooked(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    mode: str | None,
    state_options: dict[str, Any] | None = None,
    **ddp: Any,
) -> Iterator[tuple[Any, Any]]:
    """Return the model under DDP and the state of our hook, or None with the hook in rank order (mode None)."""
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, **ddp)
    state = None
    if mode is None:
        wrapped.register_comm_hook(None, in_rank_order)
    else:
        options = {"min_bytes": 0, "threads": 1, "bypass": None, **(state_options or {})}
        state = gd.CompressedAllreduce(mode=MODES[mode](optimizer), **options)
        wrapped.register_comm_hook(state, gd.hook)
    yield wrapped, state
    del wrapped


def train(
    mode: str | None,
    steps: int = 5,
    *,
    optimizer_name: str = "SGD",
    branch: bool = False,
    narrow: bool = False,
    images: bool = False,
    accumulate: int = 1,
    loss_scale: float = 1.0,
    poison: bool = False,
    state_options: dict[str, Any] | None = None,
    **ddp: Any,
) -> tuple[int, dict[str, Any]]:
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
            for part in parts_of_step(wrapped, accumulate):
                x, y = batch_of(step * accumulate + part)
                if poison and step == 1 and rank() == 0:
                    x[0, 0] = float("nan")
                arguments = (x, (step + part) % 2 == 0) if branch and ddp.get("find_unused_parameters") else (x,)
                (nn.functional.cross_entropy(wrapped(*arguments), y) * loss_scale).backward()
            for param in model.parameters():
                if param.grad is not None:
                    param.grad.div_(loss_scale)
            if poison and step == 1:  # a scaler would leave out this step
                assert all(bool(param.grad is None or torch.isnan(param.grad).any()) for param in model.parameters())
                continue
            optimizer.step()
            schedule.step()
        statistics = {} if state is None else state.stats()
        return crc(list(model.parameters())), statistics


def profiled() -> int:
    """Train under torch's profiler, and check that it shows the all-reduce of every bucket; return how many."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hooked(model, optimizer, "lossless") as (wrapped, state):
        for step in range(3):  # whose first rebuilds the buckets
            before = state.stats()["calls"]
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                loss_at(step, wrapped).backward()
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


class Added(nn.Module):
    """Two embeddings whose rows are added: the gradient of one, which is sparse, has the memory of the other's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.dense, self.sparse = nn.Embedding(500, 64), nn.Embedding(300, 64, sparse=True)
        self.last = nn.Linear(64, 500)
        self.before_dense: Any = lambda gradient: None

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores."""
        rows = self.dense(words)
        rows.register_hook(self.before_dense)
        return self.last(rows + self.sparse(words % 300))


def sparse_of_shared_memory(kind: str) -> float:
    """Return how far gradients are from their averages where the sparse one is reduced before the dense one is made."""
    model, alone, futures = Added(), Added(), []
    wrapped = DistributedDataParallel(model)
    state: Any = gd.CompressedAllreduce(bypass=None, min_bytes=0)
    if kind == "compressor":
        state = gd.CompressedGradients(wrapped, CompressionPlan(TopK(1.0), min_values=0, vectors=True))

    elif kind == "controller":
        state = gd.AdaptiveGradients(wrapped, CompressionPlan(Dense()), GraVAC(TopK(1.0)))

    def noted(future: torch.futures.Future[torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
        futures.append(future)
        return future

    if kind != "controller":  # which reduces nothing before it has all gradients
        model.before_dense = lambda gradient: [future.wait() for future in futures] and None
    wrapped.register_comm_hook(state, lambda state, bucket: noted(gd.hook(state, bucket)))
    farthest = 0.0
    for step in range(3):
        words = torch.randint(0, 500, (8,), generator=torch.Generator().manual_seed(step * 10 + rank()))
        for module in (wrapped, alone):
            module.zero_grad()
            module(words).square().mean().backward()
            futures.clear()
        for averaged, own in zip(model.parameters(), alone.parameters(), strict=True):
            assert averaged.grad is not None and own.grad is not None
            wanted = own.grad.to_dense().clone()
            dist.all_reduce(wanted)
            error = torch.linalg.vector_norm(averaged.grad.to_dense() * size() - wanted)
            farthest = max(farthest, float(error / torch.linalg.vector_norm(wanted)))
    return farthest


def shared_state(mode: str) -> float:
    """Return how far gradients of two models are from their averages, in one backward pass and with one state."""
    torch.manual_seed(6)
    models = [nn.Linear(200, 200), nn.Linear(200, 200)]
    state = gd.CompressedAllreduce(mode=mode, bypass=None, min_bytes=0)
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


def complex_parameters(kind: str) -> tuple[int, float] | None:
    """Check that gradients of complex parameters are averages; return their checksum, and the calls compressed, or
    nothing where torch itself refuses such a model."""
    model, alone = Waves(), Waves()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.3)
    except RuntimeError as error:  # torch 2.6, whose Gloo broadcasts no complex values
        if "Invalid scalar type" in str(error):
            return None
        raise
    states: dict[str, Any] = {
        "exact": lambda: gd.CompressedAllreduce(bypass=None, min_bytes=0),
        "near": lambda: gd.CompressedAllreduce(optimizer=optimizer, bypass=None, min_bytes=0),
        "compressor": lambda: gd.CompressedGradients(wrapped, CompressionPlan(TopK(1.0), min_values=0, vectors=True)),
        "controller": lambda: gd.AdaptiveGradients(wrapped, CompressionPlan(Dense()), GraVAC(TopK(1.0))),
    }
    state = states[kind]()
    wrapped.register_comm_hook(state, gd.hook)
    for step in range(3):
        for module in (wrapped, alone):
            module.zero_grad()
            loss_at(step, module).backward()
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
        take_steps(range(2 + 2 * rank()), wrapped, optimizer)
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
                used = state._codebooks.digest
                take_steps([step], wrapped, optimizer)
                trace.append((crc(list(model.parameters())), used))
                if step == first - 1:
                    file = io.BytesIO()
                    torch.save(
                        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "hook": state.state_dict()},
                        file,
                    )
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
            loss_at(step, wrapped).backward()
        save({"hook": state}, checkpoint_id=folder)
        fresh = gd.CompressedAllreduce(refresh=gd.Refresh(interval=3), bypass=None)
        empty = fresh.state_dict()
        load({"hook": fresh}, checkpoint_id=folder)
        return bool(fresh.state_dict() == state.state_dict() != empty)


def refresh(
    steps: int, interval: int, change_at: int | None, trigger: float = 0.1
) -> list[tuple[int, int, float, float]]:
    """Return for each step a digest of the codebooks in use, bytes sent, and bits per symbol, also at the entropy."""
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
            trace.append(
                (
                    used,
                    int(numbers["last_step"]["sent_bytes"]),
                    numbers["bits_per_symbol"],
                    numbers["entropy_per_symbol"],
                )
            )
    return trace


def bypass(slow: str) -> list[int]:
    """Return how many buckets of each step were sent as they are, where one of the two ways is slow."""
    counts = []
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"bypass": gd.Bypass(steps=2, every=8), "min_bytes": 1 << 16}
    logging = mock.patch.object(bypasses._log, "info")
    with slowed(slow), logging as logged, hooked(model, optimizer, "near", options) as (wrapped, state):
        for step in range(24):
            take_steps([step], wrapped, optimizer)
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
    assert len(lines) == (rank() == 0), lines
    assert all(f"{numbers['bypass_gain']:.3g} times as fast: " in line for line in lines), lines
    return [*counts, len(state.stats()["buckets"]), crc(list(model.parameters()))]


def bypass_of_one_rank() -> None:
    """Check that a single rank, which sends nothing, tries out nothing and logs nothing."""
    model = DistributedDataParallel(Terms(70_000))
    state = gd.CompressedAllreduce(min_bytes=0, bypass=gd.Bypass(steps=1, every=8))
    model.register_comm_hook(state, gd.hook)
    with mock.patch.object(bypasses._log, "info") as logged:
        for _ in range(12):
            model(values_at(0, 70_000, torch.float32)).backward()
    assert not logged.called
    assert set(map(str, (state.stats()[name] for name in bypasses.NUMBERS))) == {"nan"}


def cast_by_bypass(name: str) -> int:
    """Check that gradients are those of torch's hook, bit for bit, once the bypass has found the cast to be fastest."""
    model = DistributedDataParallel(Terms(70_000))
    torchs_model = DistributedDataParallel(Terms(70_000))
    state = gd.CompressedAllreduce(mode=name, min_bytes=0, threads=1, bypass=gd.Bypass(steps=1, every=8))
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
    return {
        **{key: numbers[key] for key in ("sent_bytes", "received_bytes", "raw_bytes", "encoded_bytes")},
        "handed": handed,
        "by_bucket": sum(item["sent_bytes"] for item in numbers["buckets"].values()),
        "buckets": len(numbers["buckets"]),
    }
