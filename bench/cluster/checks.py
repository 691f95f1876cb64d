"""Check on every rank that an average is right, before anything is timed."""

from __future__ import annotations

import torch
import torch.distributed as dist
import xxhash

from bench.cluster import methods
from bench.cluster.buffers import Share
from gcodec.benchmark.settings import FIXED_BITS
from gcodec.errors import GcodecError

_HALF_ULP = 2.0**-24  #: of float32, relative
_RELATIVE = {methods.FP16: 2.0**-10, methods.BF16: 2.0**-7}


class WrongResultError(GcodecError):
    """An all-reduce gave a wrong result."""


def gathered(values: torch.Tensor) -> torch.Tensor:
    """Return every rank's values: float32[ranks, n]."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values)
    return torch.stack(parts)


def ordered_mean(parts: torch.Tensor) -> torch.Tensor:
    """Summed in the order of ranks, each sum rounded to float32, then divided."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total / len(parts)


def check(name: str, result: torch.Tensor, parts: torch.Tensor, share: Share) -> float:
    """Raises WrongResultError. Where gradients were rounded for an optimizer: by how much parameters will deviate after
    its next step at most, as a multiple of half an ulp at the magnitude of what the update adds to."""
    exact = ordered_mean(parts)
    _require(_alike(result), f"{name}: ranks ended with different bits")
    if name.startswith(methods.NEAR):
        deviation = step_deviation(result, parts, share)
        maximum = 1.0 if len(parts) == 2 else 2.0  # once for the contributions, once for a result that is sent
        _require(deviation <= maximum + 1e-3, f"{name}: a step that deviates by {deviation:.2f} half ulps")
        return deviation
    if name in _RELATIVE or name == methods.BF16_MODE:
        rounding = _RELATIVE.get(name, 2.0 ** -(FIXED_BITS["float32"] + 1))
        limit = 1.01 * rounding * (parts.abs().mean(0) + exact.abs()) + len(parts) * _floor(name)
        _require(bool(((result - exact).abs() <= limit).all()), f"{name}: beyond the rounding of its type")
    elif name == methods.FP32:
        limit = len(parts) * 2.0**-23 * parts.abs().mean(0) + 2.0**-149
        _require(bool(((result - exact).abs() <= limit).all()), f"{name}: not the mean")
    else:
        same = torch.equal(result.view(torch.int32), exact.view(torch.int32))
        _require(same, f"{name}: not the ordered sum, bit for bit")
    return 0.0


def step_deviation(result: torch.Tensor, parts: torch.Tensor, share: Share) -> float:
    """Return, for SGD with momentum, η |g′ − g| / (2⁻²⁴ |N|), the largest of all parameters, in float64.

    What float32 sums may lose themselves, and what denormals may, is taken off first. The bound is that of
    docs/algorithms/near-lossless.md.
    """
    worst, at = 0.0, 0
    for group in share.optimizer.param_groups:
        for parameter in group["params"]:
            here = slice(at, at + parameter.numel())
            at += parameter.numel()
            theta = parameter.detach().double().reshape(-1)
            momentum = share.optimizer.state[parameter]["momentum_buffer"].double().reshape(-1)
            rate, decay = group["lr"], group["weight_decay"]
            kept = (1 - rate * decay) * theta - rate * group["momentum"] * momentum
            own = parts[:, here].double()
            lost = len(parts) * (2.0**-23 * own.abs().mean(0) + 2.0**-126)
            error = ((result[here].double() - own.mean(0)).abs() - lost).clamp_min(0)
            ratios = rate * error / (_HALF_ULP * kept.abs())
            worst = max(worst, float(ratios.nan_to_num(0.0).max()))
    return worst


def _floor(name: str) -> float:
    """Return the magnitude below which a type cannot represent values."""
    return {methods.FP16: 2.0**-24, methods.BF16_MODE: 2.0**-126}.get(name, 2.0**-133)


def _alike(result: torch.Tensor) -> bool:
    digest = xxhash.xxh3_64_intdigest(result.numpy().tobytes()) & ((1 << 63) - 1)
    outcome = gathered(torch.tensor([digest], dtype=torch.int64))
    return len(outcome.unique()) == 1


def _require(truth: bool, fault: str) -> None:
    if not truth:
        raise WrongResultError(fault)
