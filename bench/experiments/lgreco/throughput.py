"""How fast training would be on links that are not at hand: the alpha-beta model, with what trainings really sent and
took. Nothing in it is a measurement of a network. ``waiting`` has the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.experiments.lgreco.methods import BUCKETS, DENSE, RANKS
from bench.experiments.lgreco.trainings import Training
from bench.experiments.lgreco.waiting import Load, step_seconds

GBPS = (0.1, 1.0, 10.0)
WORKERS = (1, 2, 4, 8, 16)


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


def rows_of(trainings: Sequence[Training]) -> Iterator[dict[str, object]]:
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
                yield {
                    "problem": job.problem,
                    "family": job.family,
                    "method": job.method,
                    "gbps": gbps,
                    "workers": workers,
                    "step_of_dense": f"{seconds / reference:.4f}",
                    "speedup": f"{reference / seconds:.4f}",
                    "of_ideal": f"{compute / seconds:.4f}",
                    "last_bucket_share": f"{last / seconds:.4f}",
                }
