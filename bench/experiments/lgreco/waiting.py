"""A training step on a link by the alpha-beta model, and how long it waits for each of its buckets.

A step's backward pass takes twice as long as its forward pass, and each bucket's gradients are known when a share of it
has passed that is theirs among the values. From then on a bucket waits for those before it, is compressed, and sent;
the step ends with the last one. Dense tensors and factors are reduced along a ring, payloads are gathered by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from bench.cluster.model import ring

ALPHA = 1e-4  #: seconds that a message takes, whatever its size
FORWARD = 1 / 3  #: of the time of both passes


@dataclass(frozen=True)
class Load:
    """A step of one rank: ``compute`` and ``compress`` seconds, and of each bucket, in the order of transmission, the
    share of all values and the bytes to send. ``reduced``: sums are sent, and not each rank's payload."""

    compute: float
    compress: float
    shares: tuple[float, ...]
    n_bytes: tuple[float, ...]
    reduced: bool


def wire_seconds(n_bytes: float, workers: int, gbps: float, reduced: bool) -> float:
    """Return the seconds that a bucket takes. Payloads: every rank gets those of the others, (N - 1) (a + S b)."""
    beta = 8 / (gbps * 1e9)
    return ring(n_bytes, workers, ALPHA, beta) if reduced else (workers - 1) * (ALPHA + n_bytes * beta)


def step_seconds(load: Load, workers: int, gbps: float) -> tuple[float, float]:
    """Return what a step takes, and what of it sending the last bucket takes."""
    last = wire_seconds(load.n_bytes[-1], workers, gbps, load.reduced) if workers > 1 else 0.0
    return _ends(load, workers, gbps)[-1], last


def waits(load: Load, workers: int, gbps: float) -> list[float]:
    """Return the seconds by which each bucket prolongs the step once the backward pass is over."""
    ends = [max(end, load.compute) for end in (0.0, *_ends(load, workers, gbps))]
    return [end - before for before, end in pairwise(ends)]


def _ends(load: Load, workers: int, gbps: float) -> list[float]:
    """Return when each bucket is through, since the step began."""
    known, end, results = load.compute * FORWARD, 0.0, list[float]()
    for share, n_bytes in zip(load.shares, load.n_bytes, strict=True):
        known += load.compute * (1 - FORWARD) * share
        sending = wire_seconds(n_bytes, workers, gbps, load.reduced) if workers > 1 else 0.0
        end = max(known, end) + (load.compress * share if workers > 1 else 0.0) + sending
        results.append(end)
    return results
