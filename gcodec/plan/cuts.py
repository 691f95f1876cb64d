"""Cut bins that follow each other into ranges, such that all ranges together take the fewest bits."""

from __future__ import annotations

import numpy as np


def as_rows_and_columns(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values as the rows, and as the columns, of two square matrices.

    numpy would stretch ``values[None, :]`` by itself, but in buffers, and where there is no memory for these it ends
    the process: it raises the error without holding the interpreter. Assignments need none.
    """
    rows = np.empty((len(values), len(values)), values.dtype)
    columns = np.empty_like(rows)
    rows[:], columns[:] = values, values[:, None]
    return rows, columns


def cheapest_ranges(cost: np.ndarray, max_ranges: int, range_bits: float) -> tuple[list[int], float]:
    """Cut bins into ranges by dynamic programming.

    The best way to cut the first k bins into c + 1 ranges ends with a range that begins at some bin j, behind the best
    way to cut the first j bins into c.

    Args:
        cost: float64[n + 1, n + 1], at [j, k] the bits of a range of bins j ... k - 1; infinite where j >= k.
        max_ranges: Largest number of ranges.
        range_bits: Bits that each range but the first costs besides.

    Returns:
        The bins, rising, that begin a range, without the first; and the bits.
    """
    n = len(cost) - 1
    best, begins = cost[0].copy(), []
    ways = np.empty_like(cost)
    results: list[tuple[float, list[int]]] = [(float(cost[0, n]), [])]
    for c in range(1, min(max_ranges, n)):
        ways[:] = best[:, None]  # and no sum of both, as above
        ways += cost
        begin = ways.argmin(axis=0)
        best = ways.min(axis=0)
        begins.append(begin)
        cuts, k = [], n
        for row in reversed(begins):
            k = int(row[k])
            cuts.append(k)
        results.append((float(best[n]) + c * range_bits, cuts[::-1]))
    n_bits, best_cuts = min(results, key=lambda result: result[0])
    return best_cuts, n_bits
