"""Count and select large values by a threshold, and find thresholds from samples.

On the CPU, float32 goes through kernels that make one pass and write nothing but the indices; all else through torch.
The magnitude of NaN counts as greater than every other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..kernels.core.jit import kernel
from ..tensors import kernel_view

_RUN = 16  #: values that are compared at once
_DENSE = 16  #: where one value of so many is chosen, a mask takes less time than sorting the chosen indices


def magnitudes_of(values: torch.Tensor) -> torch.Tensor:
    """Return |values|, with infinity for NaN."""
    return values.abs().nan_to_num_(nan=math.inf, posinf=math.inf)


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Return where the k values of max magnitude are: int64[k], ascending. Ties are broken by torch.topk."""
    indices = torch.topk(magnitudes_of(values), k, sorted=False).indices
    if _DENSE * k < values.numel():
        return indices.sort().values
    mask = torch.zeros(values.numel(), dtype=torch.bool, device=values.device)
    mask[indices] = True
    return mask.nonzero().view(-1)


def above(values: torch.Tensor, threshold: float, expected: int = 0) -> torch.Tensor:
    """Return where values are of magnitude ``threshold`` or more: int64, ascending.

    If there are at most ``expected`` of them, they need not be counted first.
    """
    bits = magnitude_bits(values)
    if bits is None:
        return torch.nonzero(magnitudes_of(values) >= threshold).view(-1)
    min_bits = threshold_bits(threshold)
    indices = np.empty(expected + _RUN, np.int64)
    count = int(_select(bits, min_bits, indices)) if expected else -1
    if count < 0:
        indices = np.empty(int(_count(bits, min_bits)) + _RUN, np.int64)
        count = int(_select(bits, min_bits, indices))
    return torch.from_numpy(indices[:count])


def count_above(values: torch.Tensor, threshold: float) -> int:
    """Count the values of magnitude ``threshold`` or more."""
    bits = magnitude_bits(values)
    if bits is None:
        return int((magnitudes_of(values) >= threshold).sum())
    return int(_count(bits, threshold_bits(threshold)))


def strided_sample(values: torch.Tensor, share: float, least: int, random: torch.Generator) -> torch.Tensor:
    """Return the magnitudes of a sample, taken at equal distances from a random start.

    The distance is odd, so that rows of even length do not always give the same column.

    Args:
        values: Flat tensor.
        share: Share of the values to take, about.
        least: Take at least so many, if there are so many.
        random: Chooses the start.
    """
    n = values.numel()
    stride = max(min(int(1 / share), n // max(least, 1)), 1)
    stride -= 1 - stride % 2 if stride > 1 else 0
    start = int(torch.randint(stride, (1,), generator=random, device="cpu"))
    return magnitudes_of(values[start::stride])


def sampled_threshold(sample: torch.Tensor, density: float) -> float:
    """Return the magnitude that a share ``density`` of a sample reaches: its ceil(density * n)-th largest."""
    k = min(max(math.ceil(sample.numel() * density), 1), sample.numel())
    return float(torch.topk(sample, k, sorted=False).values.min())


def magnitude_bits(values: torch.Tensor) -> np.ndarray | None:
    """Return the bits of values for the kernels, uint32[n], or None where the kernels cannot be used."""
    if values.dtype != torch.float32 or not values.is_cpu:
        return None
    return kernel_view(values.detach().contiguous().numpy().view(np.uint32))


def threshold_bits(threshold: float) -> np.uint32:
    """Return the bits of a threshold that is not negative: such numbers are in the order of their bits."""
    return np.float32(threshold).view(np.uint32)


@kernel
def _count(bits: Any, threshold: Any) -> Any:
    """Count the values whose magnitudes reach a threshold, as bits."""
    count = np.uint32(0)
    for value in bits:
        count += np.uint32(np.uint32(value & np.uint32(0x7FFFFFFF)) >= threshold)
    return count


@kernel
def _select(bits: Any, threshold: Any, indices: Any) -> Any:
    """Write where values reach a threshold, and return how many do; -1 if ``indices`` lacks room for ``_RUN`` more.

    A run of ``_RUN`` values is counted first, for many runs hold none.
    """
    at, n, last = 0, len(bits), len(indices) - _RUN
    whole = n - n % _RUN
    for begin in range(0, whole, _RUN):
        count = np.uint32(0)
        for i in range(_RUN):
            count += np.uint32(np.uint32(bits[begin + i] & np.uint32(0x7FFFFFFF)) >= threshold)
        if count:
            if at > last:
                return -1
            for i in range(begin, begin + _RUN):
                indices[at] = i
                at += np.uint32(bits[i] & np.uint32(0x7FFFFFFF)) >= threshold
    if at > last:
        return -1
    for i in range(whole, n):
        indices[at] = i
        at += np.uint32(bits[i] & np.uint32(0x7FFFFFFF)) >= threshold
    return at
