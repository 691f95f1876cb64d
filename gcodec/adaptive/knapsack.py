"""Choose one option for each item at min cost within a budget: L-GreCo's dynamic programming.

Alimohammadi et al., MLSys 2024, Algorithm 1, lines 6 to 31.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..kernels.core.jit import kernel

_NEVER = 1 << 40  #: bins of an option that fits into no budget


def solve(bins: Sequence[np.ndarray], costs: Sequence[np.ndarray], budget: int) -> list[int]:
    """Choose one option of each item so that bins sum up to at most ``budget`` and costs to the min possible.

    Of options of equal cost the one of fewer bins is chosen. Time is in proportion to options * budget, memory to items
    * budget.

    Args:
        bins: For each item int64[n_options], not negative.
        costs: For each item float64[n_options].
        budget: Max sum of bins.

    Returns:
        The chosen option of each item.

    Raises:
        InvalidArgument: No choice fits into the budget.
    """
    orders = [np.lexsort((cost, weight)) for weight, cost in zip(bins, costs, strict=True)]
    counts = [len(order) for order in orders]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if not orders:
        return []
    weights = np.concatenate([weight[order] for weight, order in zip(bins, orders, strict=True)]).astype(np.int64)
    prices = np.concatenate([cost[order] for cost, order in zip(costs, orders, strict=True)]).astype(np.float64)
    options = np.full((len(orders), budget + 1), -1, np.int32)
    best, scratch = np.zeros(budget + 1), np.empty(budget + 1)
    chosen = np.empty(len(orders), np.int64)
    if not _fill(weights, prices, starts, best, scratch, options, chosen):
        min_budget = sum(int(weight.min()) for weight in bins)
        raise InvalidArgument(f"budget must be at least {min_budget}, the sum of the items' fewest bins, not {budget}")
    return [int(order[option]) for order, option in zip(orders, chosen, strict=True)]


def discretized(errors: Sequence[np.ndarray], references: Sequence[int], n_bins: int) -> tuple[list[np.ndarray], int]:
    """Return errors in bins, and the budget: the sum of the references' bins.

    A bin is 1 / ``n_bins`` of the sum of the references' errors. Differences from an item's reference are rounded up,
    and then counted from the item's min: so a choice that fits into the budget has no more error than the references,
    exactly, and the references fit.

    Args:
        errors: For each item float64[n_options].
        references: The option of each item that is its reference.
        n_bins: The paper's D.

    Returns:
        For each item int64[n_options], and the budget.
    """
    total = sum(float(error[reference]) for error, reference in zip(errors, references, strict=True))
    unit = total / n_bins
    bins, budget = [], 0
    for error, reference in zip(errors, references, strict=True):
        excess = error - error[reference]
        if unit > 0 and math.isfinite(unit):
            steps = np.ceil(np.minimum(excess / unit, n_bins + 1))
        else:  # the references lose nothing, or their errors are not finite
            steps = np.where(excess <= 0, 0.0, n_bins + 1.0)
        steps = np.where(np.isfinite(steps), steps, n_bins + 1.0).astype(np.int64)
        lowest = int(steps.min())
        budget -= lowest
        bins.append(np.where(steps > n_bins, _NEVER, steps - lowest))
    return bins, budget


@kernel
def _fill(weights: Any, prices: Any, starts: Any, best: Any, scratch: Any, options: Any, chosen: Any) -> Any:
    """Find the min cost for every budget up to the greatest, item by item, then go back from the greatest.

    Args:
        weights: int64[sum of n_options], bins of all options, item after item.
        prices: float64, their costs.
        starts: int64[n_items + 1], where the options of each item begin.
        best: float64[budget + 1], zeros; becomes the min cost at each budget.
        scratch: float64[budget + 1].
        options: int32[n_items, budget + 1]; becomes the option of each item at each budget.
        chosen: int64[n_items]; becomes the options at the greatest budget.

    Returns:
        False if there are none.
    """
    n = len(best)
    for item in range(len(options)):
        for e in range(n):
            scratch[e] = np.inf
        for option in range(starts[item], starts[item + 1]):
            weight, price = weights[option], prices[option]
            number = np.int32(option - starts[item])
            for e in range(min(weight, n), n):
                cost = best[e - weight] + price
                if cost < scratch[e]:
                    scratch[e] = cost
                    options[item, e] = number
        for e in range(n):
            best[e] = scratch[e]
    remaining = n - 1
    if not best[remaining] < np.inf:
        return False
    for back in range(len(options)):
        item = len(options) - 1 - back
        chosen[item] = options[item, remaining]
        remaining -= weights[starts[item] + chosen[item]]
    return True
