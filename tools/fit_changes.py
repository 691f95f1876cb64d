"""Fit the codebooks of changes that come with gcodec: ``python -m tools.fit_changes`` prints the records of
``gcodec/format/shipped_changes.py``, in about two minutes.

They are fitted to what AdamW changes in the bfloat16 tensors of two models, at several learning rates. Small tensors
are what they are for, so a tensor counts by the square root of what its changes take. Where classes begin shifts with
the learning rate; codes do not, so that all shifts of a shape share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.checkpoints import LAYERS, WIDTH, Training
from bench.differences import RATES, STEPS, Pictures, bound_bytes
from gcodec.format.change_codebook import ChangeCodebook
from gcodec.format.shipped_changes import FIRST_EXPONENT, N_CLASSES, N_SHAPES, N_SHIFTS
from gcodec.kernels.block.sparse_types import Counts
from gcodec.plan.sparse_frames import Finding, bits_of, lengths_for

EXPONENTS = range(FIRST_EXPONENT, FIRST_EXPONENT + N_SHIFTS)
N_GAPS = 30  #: categories of gaps, up to 2**15 - 1
MIN_VALUES, MAX_SHARE, MAX_BYTES = 256, 0.4, 20_000
ROUNDS = 12
#: Shares of all symbols together that are added, so that all of them have codes; numbers of changes depend on sizes.
_FLOOR, _FLOOR_OF_COUNTS = 2e-3, 0.1


class Sample(NamedTuple):
    """A tensor: by exponent at which its classes begin, how often each symbol occurs; bytes that changes take at
    least, and the share of values that change."""

    counts: dict[int, Counts]
    bound: float
    share: float


def thresholds_from(exponent: int) -> tuple[int, ...]:
    """Return where classes begin, but the first: at powers of two."""
    return tuple(exponent + j << 7 for j in range(N_CLASSES - 1))


def bits_by_tensor(model: torch.nn.Module) -> list[np.ndarray]:
    """Return the parameters as bfloat16: uint16[n] each."""
    flat = [parameter.detach().reshape(-1).to(torch.bfloat16) for parameter in model.parameters()]
    return [tensor.view(torch.int16).numpy().view(np.uint16).copy() for tensor in flat]


def samples() -> Iterator[Sample]:
    """Train both models, and yield every tensor that changes in part."""
    makers: tuple[Callable[[], Any], ...] = (lambda: Training(WIDTH, LAYERS), Pictures)
    for make in makers:
        training = make()
        training.take_steps(100, 1e-3)
        for rate in RATES:
            training.take_steps(8, rate)
            for steps in STEPS:
                before = bits_by_tensor(training.model)
                training.take_steps(steps, rate)
                for base, values in zip(before, bits_by_tensor(training.model), strict=True):
                    share, bound = float(np.mean(values != base)), bound_bytes(values, base)
                    if len(values) >= MIN_VALUES and 0 < share < MAX_SHARE and bound < MAX_BYTES:
                        yield Sample({at: counts_of(values, base, at) for at in EXPONENTS}, bound, share)


def counts_of(values: np.ndarray, base: np.ndarray, exponent: int) -> Counts:
    """Return how often each symbol occurs where classes begin at an exponent."""
    finding = Finding(values, base, thresholds_from(exponent))
    finding.find(0, finding.n_blocks)
    return finding.counts_with(np.zeros(N_CLASSES, np.bool_))


def fitted(samples: list[Sample], exponents: list[int]) -> ChangeCodebook:
    """Return codes for tensors whose classes begin at these exponents."""
    parts = []
    for number in range(3):
        weighed = [sample.counts[at][number] / max(1.0, sample.bound) ** 0.5
                   for sample, at in zip(samples, exponents, strict=True)]
        parts.append(np.sum(weighed, axis=0))
    rows = parts[2][:N_CLASSES, : 3 * N_GAPS].reshape(N_CLASSES, N_GAPS, 3)
    rows[:, :, :2] = rows[:, :, :2].mean(axis=2, keepdims=True)  # up and down alike
    counts, steps = lengths_of(parts[0], _FLOOR_OF_COUNTS), lengths_of(parts[1])
    classes = tuple(lengths_of(row.reshape(-1)) for row in rows)
    return ChangeCodebook(16, thresholds_from(FIRST_EXPONENT), counts, steps, classes)


def lengths_of(shares: np.ndarray, floor: float = _FLOOR) -> bytes:
    """Return code lengths for shares, of which every symbol has some."""
    shares = shares + (shares.sum() + 1e-9) * floor / len(shares)
    return lengths_for(np.maximum(shares / shares.sum() * 1e6, 1).astype(np.int64))


def best(codebook: ChangeCodebook, sample: Sample) -> tuple[float, int]:
    """Return the fewest bits that a codebook takes, and the exponent at which classes begin then."""
    return min((float("inf") if counts.classes[:, 3 * N_GAPS :].any() else bits_of(codebook, counts), at)
               for at, counts in sample.counts.items())


def fit(tensors: list[Sample]) -> list[ChangeCodebook]:
    """Return a codebook for each shape: tensors choose among them and shifts, then they are fitted again."""
    shapes = np.argsort(np.argsort([sample.share for sample in tensors])) * N_SHAPES // len(tensors)
    starts = [round(111 + np.log2(max(sample.share, 1e-5) / 0.01)) for sample in tensors]
    chosen = [(int(shape), min(max(at, EXPONENTS[0]), EXPONENTS[-1]))
              for shape, at in zip(shapes, starts, strict=True)]
    books: list[ChangeCodebook] = []
    for _ in range(ROUNDS):
        books = []
        for shape in range(N_SHAPES):
            mine = [(sample, at) for sample, (own, at) in zip(tensors, chosen, strict=True) if own == shape]
            books.append(fitted([sample for sample, _ in mine], [at for _, at in mine]))
        before, chosen = chosen, []
        for sample in tensors:
            (_, at), shape = min((best(book, sample), shape) for shape, book in enumerate(books))
            chosen.append((shape, at))
        if chosen == before:
            break
    return books


def main() -> None:
    """Print the record of each shape."""
    torch.set_num_threads(1)
    for book in fit(list(samples())):
        print(book.record.hex())


if __name__ == "__main__":
    main()
