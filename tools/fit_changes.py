"""Fit codebooks of changes that come with gcodec: ``python -m tools.fit_changes`` prints the records from id 52 on of
``gcodec/format/shipped_changes.py``, in about four minutes.

They are fitted to what AdamW changes in the bfloat16 tensors of two models, each by itself and end to end as weight
sync sends them, at other learning rates and steps than those of ``bench.differences``. Small arrays are what they are
for, so one counts by the square root of what its changes take. Where classes begin shifts with the learning rate; codes
do not, so that all shifts of a shape share them. The shapes of ids below 52 were fitted likewise to single tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.checkpoints import LAYERS, WIDTH, Training
from bench.differences import Pictures, bound_bytes
from gcodec.format.change_codebook import ChangeCodebook
from gcodec.format.shipped_changes import FIRST_EXPONENT, N_CLASSES, N_SHIFTS
from gcodec.kernels.entropy.changes import MAX_CATEGORIES, category_bits
from gcodec.plan.finding import Finding
from gcodec.plan.sparse_frames import count_all, lengths_for, sparse_sizes

N_SHAPES = 4
RATES, STEPS, N_WARMUP, SEED = (7e-7, 1.5e-6, 2e-6, 4e-6, 7e-6, 1.5e-5), (1, 2, 5), 60, 7
EXPONENTS = range(FIRST_EXPONENT, FIRST_EXPONENT + N_SHIFTS)
N_GAPS = 36  #: categories of gaps, up to 2**18 - 1
N_COUNTS, N_STEPS = MAX_CATEGORIES, 33
MIN_VALUES, MAX_SHARE, MIN_BYTES, MAX_BYTES = 256, 0.4, 150, 40_000
PIECES = (1 << 20, 1 << 18)  #: values of large models' pieces
N_STARTS, MAX_ROUNDS = 4, 25
#: Shares of all symbols together that are added, so that all of them have codes; numbers of changes depend on sizes.
_FLOOR, _FLOOR_OF_COUNTS = 5e-4, 0.1
_NEVER = 1e7  #: stands for counts of symbols that have no codes: gaps that are too long


class Sample(NamedTuple):
    """An array: by shift how often each symbol occurs, float64[N_SHIFTS, n_symbols]; bytes that changes take at least,
    and the share of values that change."""

    counts: np.ndarray
    bound: float
    share: float


def thresholds_from(exponent: int) -> tuple[int, ...]:
    """Return where classes begin, but the first: at powers of two."""
    return tuple(exponent + j << 7 for j in range(N_CLASSES - 1))


def bits_by_tensor(model: torch.nn.Module) -> list[np.ndarray]:
    """Return the parameters as bfloat16: uint16[n] each."""
    flat = [parameter.detach().reshape(-1).to(torch.bfloat16) for parameter in model.parameters()]
    return [tensor.view(torch.int16).numpy().view(np.uint16).copy() for tensor in flat]


def arrays_of(model: torch.nn.Module, is_large: bool) -> list[np.ndarray]:
    """Return the parameters one by one, and end to end: all of a small model, pieces of a large one."""
    tensors = bits_by_tensor(model)
    whole = np.concatenate(tensors)
    sizes = PIECES if is_large else (len(whole),)
    return tensors + [whole[first : first + size] for size in sizes for first in range(0, len(whole), size)]


def samples() -> Iterator[Sample]:
    """Train both models, and yield every array that changes in part."""
    makers: tuple[Callable[[], Any], ...] = (lambda: Training(WIDTH, LAYERS), Pictures)
    for make in makers:
        training = make()
        training._random, is_large = np.random.default_rng(SEED), make is makers[0]
        training.take_steps(N_WARMUP, 1e-3)
        for rate in RATES:
            training.take_steps(6, rate)
            for steps in STEPS:
                before = arrays_of(training.model, is_large)
                training.take_steps(steps, rate)
                for base, values in zip(before, arrays_of(training.model, is_large), strict=True):
                    share, bound = float(np.mean(values != base)), bound_bytes(values, base)
                    if len(values) >= MIN_VALUES and 0 < share < MAX_SHARE and MIN_BYTES < bound <= MAX_BYTES:
                        counts = np.stack([counts_of(values, base, at) for at in EXPONENTS])
                        if (counts < _NEVER).any(axis=1).any():
                            yield Sample(counts, bound, share)


def counts_of(values: np.ndarray, base: np.ndarray, exponent: int) -> np.ndarray:
    """Return how often each symbol occurs where classes begin at an exponent: counts, steps, then those of classes."""
    finding = Finding(values, base, thresholds_from(exponent), sparse_sizes(len(values), with_base=True))
    finding.find(0, finding.n_blocks)
    counts, found = finding.counts(), finding.found() or []
    count_all(values.dtype, [blocks.differences for blocks in found], np.zeros(N_CLASSES, np.bool_), counts.counts)
    own = np.concatenate([counts.counts, counts.steps, counts.classes[:N_CLASSES, : 3 * N_GAPS].reshape(-1)])
    return np.full(len(own), _NEVER) if counts.classes[:, 3 * N_GAPS :].any() else own.astype(np.float64)


def costs_of(codebook: ChangeCodebook) -> np.ndarray:
    """Return the bits of each symbol, with those that follow it, in the order of :func:`counts_of`."""
    lengths = np.frombuffer(b"".join((codebook.counts, codebook.steps, *codebook.classes)), np.uint8)
    extra = np.array([category_bits(category) for category in range(MAX_CATEGORIES)])
    of_steps = np.maximum((np.arange(N_STEPS) + 1) // 2 - 1, 0)
    return lengths + np.concatenate([extra, of_steps, np.tile(np.repeat(extra[:N_GAPS], 3), N_CLASSES)])


def fitted(counts: np.ndarray) -> ChangeCodebook:
    """Return codes for symbols that occur so often, in the order of :func:`counts_of`."""
    of_steps = counts[N_COUNTS : N_COUNTS + N_STEPS]
    rows = counts[N_COUNTS + N_STEPS :].reshape(N_CLASSES, N_GAPS, 3).copy()
    rows[:, :, :2] = rows[:, :, :2].mean(axis=2, keepdims=True)  # up and down alike
    classes = tuple(lengths_of(row.reshape(-1)) for row in rows)
    numbers = lengths_of(counts[:N_COUNTS], _FLOOR_OF_COUNTS)
    return ChangeCodebook(16, thresholds_from(FIRST_EXPONENT), numbers, lengths_of(of_steps), classes)


def lengths_of(shares: np.ndarray, floor: float = _FLOOR) -> bytes:
    """Return code lengths for shares, of which every symbol has some."""
    shares = shares + (shares.sum() + 1e-9) * floor / len(shares)
    return lengths_for(np.maximum(shares / shares.sum() * 1e6, 1).astype(np.int64))


def fit(arrays: list[Sample]) -> list[ChangeCodebook]:
    """Return a codebook for each shape: arrays choose among them and shifts, then they are fitted again. The best of
    several starts."""
    counts = np.stack([array.counts for array in arrays])
    weights = 1 / np.sqrt([max(array.bound, 1.0) for array in arrays])
    by_share = np.argsort(np.argsort([array.share for array in arrays])) * N_SHAPES // len(arrays)
    begin = np.array([round(111 + np.log2(max(array.share, 1e-5) / 0.01)) for array in arrays]) - EXPONENTS[0]
    found: list[tuple[float, list[ChangeCodebook]]] = []
    for seed in range(N_STARTS):
        shapes = np.random.default_rng(seed).integers(0, N_SHAPES, len(arrays)) if seed else by_share
        shifts, books = begin.clip(0, N_SHIFTS - 1), list[ChangeCodebook]()
        for _ in range(MAX_ROUNDS):
            chosen = [np.flatnonzero(shapes == shape) for shape in range(N_SHAPES)]
            books = [fitted(weights[mine] @ counts[mine, shifts[mine]]) for mine in chosen]
            bits = np.stack([counts @ costs_of(book) for book in books], axis=2).reshape(len(arrays), -1)
            before, best = (shifts, shapes), bits.argmin(axis=1)
            shifts, shapes = best // N_SHAPES, best % N_SHAPES
            if np.array_equal(before, (shifts, shapes)):
                break
        found.append((float(weights @ bits.min(axis=1)), books))
    return min(found, key=lambda result: result[0])[1]


def main() -> None:
    """Print the record of each shape."""
    torch.set_num_threads(1)
    for book in fit(list(samples())):
        print(book.record.hex())


if __name__ == "__main__":
    main()
