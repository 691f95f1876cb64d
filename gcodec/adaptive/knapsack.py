"""The least cost within a budget, choosing one option for each item: L-GreCo's dynamic programming
(Alimohammadi et al., MLSys 2024, Algorithm 1, lines 6 to 31)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..kernels.core.jit import kernel

_NEVER = 1 << 40  #: bins of an option that no budget has room for


def solve(bins: Sequence[np.ndarray], costs: Sequence[np.ndarray], budget: int) -> list[int]:
    """Choose one option of each item so that the bins sum up to at most ``budget`` and the costs to the least possible.

    ``bins``: of each item an int64 array, not negative, one number for each option; ``costs``: float64, likewise. Of
    options that come to the same the one of fewer bins is taken. Takes time in proportion to options * budget, memory
    to items * budget. Raises InvalidArgument where nothing fits.
    """
    orders = [np.lexsort((cost, weight)) for weight, cost in zip(bins, costs, strict=True)]
    counts = [len(order) for order in orders]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if not orders:
        return []
    weights = np.concatenate([weight[order] for weight, order in zip(bins, orders, strict=True)]).astype(np.int64)
    prices = np.concatenate([cost[order] for cost, order in zip(costs, orders, strict=True)]).astype(np.float64)
    taken = np.full((len(orders), budget + 1), -1, np.int32)
    best, scratch = np.zeros(budget + 1), np.empty(budget + 1)
    chosen = np.empty(len(orders), np.int64)
    if not _fill(weights, prices, starts, best, scratch, taken, chosen):
        raise InvalidArgument(f"nothing fits into a budget of {budget}")
    return [int(order[option]) for order, option in zip(orders, chosen, strict=True)]


def discretized(errors: Sequence[np.ndarray], references: Sequence[int], n_bins: int) -> tuple[list[np.ndarray], int]:
    """Errors in bins, and the budget: the sum of the references' own bins.

    A bin is 1 / ``n_bins`` of the references' errors in all. Differences from an item's reference are rounded up, and
    then counted from the item's least: so what fits into the budget has no more error than the references, exactly,
    and the references fit.
    """
    total = sum(float(error[reference]) for error, reference in zip(errors, references, strict=True))
    unit = total / n_bins
    found, budget = [], 0
    for error, reference in zip(errors, references, strict=True):
        excess = error - error[reference]
        if unit > 0 and math.isfinite(unit):
            steps = np.ceil(np.minimum(excess / unit, n_bins + 1))
        else:  # nothing may be lost, or nothing is known
            steps = np.where(excess <= 0, 0.0, n_bins + 1.0)
        steps = np.where(np.isfinite(steps), steps, n_bins + 1.0).astype(np.int64)
        least = int(steps.min())
        budget -= least
        found.append(np.where(steps > n_bins, _NEVER, steps - least))
    return found, budget


@kernel
def _fill(
    weights: Any, prices: Any, starts: Any, best: Any, scratch: Any, taken: Any, chosen: Any
) -> Any:
    """Least costs ``best`` for every budget up to the greatest, item by item; ``taken``: the option of each item at
    each budget; ``chosen``: those at the greatest. Whether there are any."""
    n = len(best)
    for item in range(len(taken)):
        for e in range(n):
            scratch[e] = np.inf
        for option in range(starts[item], starts[item + 1]):
            weight, price = weights[option], prices[option]
            number = np.int32(option - starts[item])
            for e in range(min(weight, n), n):
                cost = best[e - weight] + price
                if cost < scratch[e]:
                    scratch[e] = cost
                    taken[item, e] = number
        for e in range(n):
            best[e] = scratch[e]
    left = n - 1
    if not best[left] < np.inf:
        return False
    for back in range(len(taken)):
        item = len(taken) - 1 - back
        chosen[item] = taken[item, left]
        left -= weights[starts[item] + chosen[item]]
    return True
