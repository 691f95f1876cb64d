"""Hooks of DistributedDataParallel, ours and PyTorch's, on one bucket of one rank: a contest of ``bench.compressors``.

From the call to the result in the bucket, with error feedback, on Gloo: all that a rank computes in a step, and no
network. PyTorch's PowerSGD hook needs one bucket for it to work on Gloo at all, so one bucket is all there is.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

import gcodec.distributed as gd
from gcodec.averaging.averager import CompressionPlan
from gcodec.compressors import ACPSGD, DGC, QSGD, Cast, Compressor, GradZip, PowerSGD, RandomK, RedSync, TopK

PYTORCH, HALF = "PyTorch PowerSGD hook", "PyTorch fp16 hook"
DENSITY = 0.01


class WrongResultError(Exception):
    """A method did not do what it is timed for."""


class Bucket:
    """A stand-in for a ``GradBucket``, as far as hooks use it: the gradients of a model in one piece of memory.
    ``model``: whose; a bias beside each matrix would be a thousandth of it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._params = list(model.parameters())
        self._buffer = torch.empty(sum(param.numel() for param in self._params))
        for param, gradient in zip(self._params, self.gradients(), strict=True):
            param.grad = gradient  # none would say that this rank has not used it

    def index(self) -> int:
        """Return 0, the index of the only bucket."""
        return 0

    def is_last(self) -> bool:
        """Return True, for the only bucket is the last."""
        return True

    def buffer(self) -> torch.Tensor:
        """Return all gradients, end to end."""
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """Views of these."""
        parts = self._buffer.split([param.numel() for param in self._params])
        return [part.view(param.shape) for part, param in zip(parts, self._params, strict=True)]

    def parameters(self) -> list[torch.Tensor]:
        """Whose they are."""
        return [*self._params]

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Set the buffer, as PyTorch's fp16 hook may do."""
        self._buffer = buffer


Hook = Callable[[Bucket], torch.Tensor]


def layer(width: int) -> torch.nn.Module:
    """Return the matrices of a transformer's layer."""
    shapes = [(width, width)] * 4 + [(4 * width, width), (width, 4 * width)]
    return torch.nn.ParameterList([torch.nn.Parameter(torch.empty(shape)) for shape in shapes])


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    """Make a process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        try:
            yield
        finally:
            gd.close_lanes()
            dist.destroy_process_group()


def ours(
    model: torch.nn.Module, settings: Mapping[str, Compressor | CompressionPlan]
) -> tuple[dict[str, gd.CompressedGradients], dict[str, Hook]]:
    """Return our hook's states for compressors, and what the hook does with each."""
    states = {name: gd.CompressedGradients(model, setting) for name, setting in settings.items()}
    return states, {name: partial(_reduced, state) for name, state in states.items()}


def _reduced(state: gd.CompressedGradients, bucket: Any) -> torch.Tensor:
    return state.reduce(bucket).wait()


def pytorch_powersgd(rank: int) -> Hook:
    """Return PyTorch's PowerSGD hook, past its first steps, which are dense."""
    state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    state.iter = 2

    def reduce(bucket: Any) -> torch.Tensor:
        return powerSGD_hook(state, bucket).wait()

    return reduce


def pytorch_half(bucket: Any) -> torch.Tensor:
    """Return PyTorch's hook that casts to 16 bits."""
    assert dist.group.WORLD is not None
    return fp16_compress_hook(dist.group.WORLD, bucket).wait()


def seconds_of(hooks: dict[str, Hook], bucket: Bucket, gradient: torch.Tensor, rounds: int) -> dict[str, float]:
    """Return the median seconds of each, in turn, after a call that is not timed; the bucket gets the gradient anew
    each time."""
    results: dict[str, list[float]] = {name: [] for name in hooks}
    for number in range(rounds + 1):
        for name, hook in hooks.items():
            bucket.buffer().copy_(gradient)
            start = perf_counter()
            hook(bucket)
            if number:
                results[name].append(perf_counter() - start)
    return {name: median(times) for name, times in results.items()}


def check_low_rank(hooks: dict[str, Hook], bucket: Bucket, rank: int, steps: int = 10) -> None:
    """Raises WrongResultError unless gradients of this rank, which need not lose anything, come back: in the sum of
    some steps, for the first one does not know them yet."""
    random = torch.Generator().manual_seed(3)
    for view in bucket.gradients():
        view.copy_(torch.randn(len(view), rank, generator=random) @ torch.randn(rank, view.shape[1], generator=random))
    gradient = bucket.buffer().clone()
    for name, hook in hooks.items():
        total = torch.zeros_like(gradient)
        for _ in range(steps):
            bucket.buffer().copy_(gradient)
            total += hook(bucket)
        apart = float((total / steps - gradient).norm() / gradient.norm())
        if not apart < 0.01:
            raise WrongResultError(f"{name}: gradients of rank {rank} come back with an error of {apart:.4f}")


def contest(width: int, rounds: int, ranks: Sequence[int]) -> Iterator[dict[str, object]]:
    """Yield rows: low ranks beside PyTorch's PowerSGD hook, then the others beside its fp16 hook."""
    model = layer(width)
    bucket = Bucket(model)
    gradient = torch.randn(bucket.buffer().numel(), generator=torch.Generator().manual_seed(4))
    with one_rank():
        for rank in ranks:
            yield from low_rank("hook", model, bucket, gradient, rounds, rank)
        states, hooks = ours(
            model,
            {
                "cast to float16": Cast("float16"),
                "the same without feedback": CompressionPlan(Cast("float16"), None),
                "QSGD, 4 bits": QSGD(4),
                "Top-k, sampled": TopK(DENSITY, sample=0.01),
                "DGC": DGC(DENSITY),
                "RedSync": RedSync(DENSITY),
                "Random-k": RandomK(DENSITY),
            },
        )
        hooks = {HALF: pytorch_half, **hooks}
        times = seconds_of(hooks, bucket, gradient, rounds)
        yield from _rows("hook", f"density {DENSITY}", states, times, gradient)


def low_rank(
    name: str, model: torch.nn.Module, bucket: Bucket, gradient: torch.Tensor, rounds: int, rank: int
) -> Iterator[dict[str, object]]:
    """Rows of the contest ``name``: hooks of one low rank, on whatever ranks there are."""
    states, hooks = ours(model, {"PowerSGD": PowerSGD(rank), "ACP-SGD": ACPSGD(rank), "GradZip": GradZip(rank)})
    hooks = {PYTORCH: pytorch_powersgd(rank), **hooks}
    check_low_rank(hooks, bucket, rank)
    yield from _rows(name, f"rank {rank}", states, seconds_of(hooks, bucket, gradient, rounds), gradient)


def _rows(
    contest: str, what: str, states: dict[str, gd.CompressedGradients], times: dict[str, float], gradient: torch.Tensor
) -> Iterator[dict[str, object]]:
    """One row for each hook; the first is what others are compared with. Of PyTorch's the bytes are not known."""
    first = next(iter(times))
    for name, seconds in times.items():
        ratio, sent = "", ""
        if name in states:
            count = states[name].stats()["compressor"]
            ratio, sent = f"{count['ratio']:.2f}", str(round(gradient.nbytes / count["ratio"]))
        yield {
            "contest": contest,
            "data": what,
            "values": gradient.numel(),
            "threads": torch.get_num_threads(),
            "method": name,
            "seconds": f"{seconds:.6f}",
            "times_faster": f"{times[first] / seconds:.2f}",
            "bytes": sent,
            "ratio": ratio,
            "norm_kept": "",
            "of_best": "",
        }
