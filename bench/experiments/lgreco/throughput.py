"""How fast training would be on links that are not at hand: the alpha-beta model, with what trainings really sent and
took. Nothing in it is a measurement of a network.

A step's backward pass takes twice as long as its forward pass, and each bucket's gradients are known when a share of it
has passed that is theirs among the values. From then on a bucket waits for those before it, is compressed, and sent;
the step ends with the last one. Dense tensors and factors are reduced along a ring, payloads are gathered by all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.cluster.model import ring
from bench.experiments.lgreco.methods import BUCKETS, DENSE, RANKS
from bench.experiments.lgreco.trainings import Training

ALPHA = 1e-4  #: seconds that a message takes, whatever its size
GBPS = (0.1, 1.0, 10.0)
WORKERS = (1, 2, 4, 8, 16)
FORWARD = 1 / 3  #: of the time of both passes
COLUMNS = ("problem", "family", "method", "gbps", "workers", "step_of_dense", "speedup", "of_ideal",
           "last_bucket_share")


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
    """Return what a step takes, and how much of it the last bucket is waited for after the backward pass."""
    known, end = load.compute * FORWARD, 0.0
    for share, n_bytes in zip(load.shares, load.n_bytes, strict=True):
        known += load.compute * (1 - FORWARD) * share
        sending = wire_seconds(n_bytes, workers, gbps, load.reduced) if workers > 1 else 0.0
        end = max(known, end) + (load.compress * share if workers > 1 else 0.0) + sending
        last = sending
    return end, last


def load_of(training: Training, compute: float) -> Load:
    """Return a step's costs from a training and the seconds that a step computes."""
    values, n_bytes = [0.0] * BUCKETS, [0.0] * BUCKETS
    for name, count in training.tensors.items():
        values[training.buckets[name] - 1] += count.values
        n_bytes[training.buckets[name] - 1] += count.payload_bytes / training.job.steps
    total, dense = sum(values), training.job.method == DENSE
    compress = 0.0 if dense else training.compress_seconds / training.job.steps
    shares = tuple(value / total for value in values)
    return Load(compute, compress, shares, tuple(n_bytes), dense or training.job.family == RANKS)


def rows_of(trainings: Sequence[Training]) -> Iterator[list[object]]:
    """Yield every training of one problem and seed, the dense one among them, on every link."""
    dense = next(item for item in trainings if item.job.method == DENSE)
    compute = dense.train_seconds / dense.job.steps
    plain = load_of(dense, compute)
    for training in trainings:
        load = load_of(training, compute)
        for gbps in GBPS:
            for workers in WORKERS:
                (seconds, last), (reference, _) = (step_seconds(item, workers, gbps) for item in (load, plain))
                job = training.job
                yield [job.problem, job.family, job.method, gbps, workers, f"{seconds / reference:.4f}",
                       f"{reference / seconds:.4f}", f"{compute / seconds:.4f}", f"{last / seconds:.4f}"]
