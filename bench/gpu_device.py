"""The common part of benchmarks on a CUDA device: its presence, inputs, a clock, and the device's own copy."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from time import perf_counter
from typing import Any, NamedTuple

from gcodec.gpu import gpu_memory
from gcodec.kernels.cuda import nvrtc

ROTATING = 1 << 28  #: bytes of buffers that are used in turn: more than a cache holds
_CYCLES = 2e9  #: of the device's clock in a second, or a few less
_SAMPLE = 1 << 22  #: values that are drawn; more are copies of these


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


class Times(NamedTuple):
    """The times of a call, in seconds.

    Attributes:
        call: From its start to the end of its last kernel, on a device that has nothing else to do.
        host: What the host takes until the call returns.
        spread: How far the slower half of the rounds lies above the faster one, relative to ``call``.
        kernels: What the device takes for it, behind queued work; of a call that waits for the device, ``call``.
    """

    call: float
    host: float
    spread: float
    kernels: float


def times(call: Callable[[int], Any], n_buffers: int, rounds: int, *, waits: bool = False) -> Times:
    """Return the median times of ``call(k)``, k going around.

    Args:
        call: The call.
        n_buffers: Number of values that k takes.
        rounds: How often it is timed, each way.
        waits: The call waits for the device, so that nothing can be queued before it.
    """
    call(0)
    both = [_timed(call, k % n_buffers, 0.0) for k in range(rounds)]
    took, host = sorted(device for device, _ in both), statistics.median(host for _, host in both)
    quarter = len(took) // 4
    middle = statistics.median(took)
    kernels = middle
    if not waits:
        kernels = statistics.median(_timed(call, k % n_buffers, 2 * host + 1e-4)[0] for k in range(rounds))
    return Times(middle, host, (took[-1 - quarter] - took[quarter]) / middle if middle else 0.0, kernels)


def _timed(call: Callable[[int], Any], k: int, behind: float) -> tuple[float, float]:
    """Return seconds of the device and of the host for a call, which the device gets to see after so many seconds."""
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if behind:
        torch.cuda._sleep(int(behind * _CYCLES))
    started = perf_counter()
    begin.record()
    call(k)
    end.record()
    host = perf_counter() - started
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3, host


@cache
def copy_speed(size: int, rounds: int) -> float:
    """Return the GB/s at which the device copies so many bytes: bytes copied, not read plus written."""
    import torch

    n_buffers = buffers_of(size)
    buffers = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(n_buffers)]
    return size / times(lambda k: buffers[k].copy_(buffers[k - 1]), n_buffers, rounds).kernels / 1e9


def environment() -> list[str]:
    """Return what the results depend on, a line for each: versions, the device, what compiles for it."""
    import torch

    def of(what: Callable[[], Any]) -> str:
        try:
            return str(what())
        except Exception as error:  # of many kinds: what is missing is said
            return f"unknown ({type(error).__name__})"

    return [
        f"device: {of(torch.cuda.get_device_name)}, capability {of(torch.cuda.get_device_capability)}",
        f"driver's CUDA: {of(lambda: import_module('torch')._C._cuda_getDriverVersion())}",
        f"python {sys.version.split()[0]}, torch {torch.__version__} with CUDA {torch.version.cuda}",
        f"NVRTC: {of(lambda: nvrtc.newest_library(99)[1])}",
    ]
