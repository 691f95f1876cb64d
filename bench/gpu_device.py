"""The common part of benchmarks on a CUDA device: its presence, inputs, a clock, and the device's own copy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from gcodec.gpu import gpu_memory

ROTATING = 1 << 28          #: bytes of buffers that are used in turn: more than a cache holds
_SAMPLE = 1 << 22           #: values that are drawn; more are copies of these


def reason_not_to() -> str:
    """Return why nothing can be measured here; empty if something can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        gpu_memory.TorchMemory(torch.device("cuda", torch.cuda.current_device()))
    except Exception as error:
        return str(error)
    return ""


def gradients(dtype: str, size: int, device: str = "cuda", seed: int = 0) -> Any:
    """Values like a gradient's, on the device: normal, of a scale for each row of 1024, a quarter of them zero."""
    import torch

    kind = getattr(torch, dtype)
    n = size // kind.itemsize
    generator = torch.Generator(device=device).manual_seed(seed)
    rows = max(min(n, _SAMPLE) // 1024, 1)
    x = torch.randn(rows, 1024, device=device, generator=generator)
    x *= torch.exp2(torch.randint(-6, 1, (rows, 1), device=device, generator=generator)) * 1e-2
    x *= torch.rand(rows, 1024, device=device, generator=generator) > 0.25
    return x.to(kind).reshape(-1).repeat(-(-n // x.numel()))[:n].clone()


def buffers_of(size: int) -> int:
    """Return the number of buffers of so many bytes to use in turn."""
    return max(min(ROTATING // size, 64), 2)


def seconds(call: Callable[[int], Any], n_buffers: int, rounds: int) -> float:
    """Return the median time of ``call(k)``, k going around, between two events on the device's stream: with the time
    in which the device waits for the host to launch."""
    import torch

    call(0)
    results = []
    for k in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        call(k % n_buffers)
        end.record()
        torch.cuda.synchronize()
        results.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(results)


def copies(sizes: Sequence[int], rounds: int) -> dict[int, float]:
    """Return the GB/s at which the device copies, by size: bytes copied, not read plus written."""
    import torch

    results = {}
    for size in sizes:
        n_buffers = buffers_of(size)
        buffers = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(n_buffers)]
        took = seconds(lambda k: buffers[k].copy_(buffers[k - 1]), n_buffers, rounds)  # noqa: B023 - called here
        results[size] = size / took / 1e9
    return results
