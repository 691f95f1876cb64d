"""The life of codebooks that are reused: counted while encoding, rebuilt now and then, switched at an agreed step.

GComp (SoCC '24, "Dynamic adjustment of the Huffman table") refreshes its table every 50 iterations, exchanging
histograms beside training. Here the parts are apart, so that a single process and an all-reduce can drive them
alike: :meth:`CodebookCycle.count` adds what an encoding saw, :attr:`CodebookCycle.due` says that a refresh would
pay, :meth:`CodebookCycle.take` hands out the histogram (to be summed over workers), :meth:`CodebookCycle.schedule`
builds the next version from the sum, which takes effect at a step named by the caller. The same sums give the same
codebooks on every worker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .errors import InvalidArgument
from .format.codebook import Codebook
from .kernels.sample import code_costs
from .options import EncoderOptions
from .plan.codebooks import bin_costs, from_histogram, n_bins_of, window_of


@dataclass(frozen=True)
class Version:
    """A codebook in use: its ``number``, from 1; ``step`` from which it holds; ``references``: heads are relative to
    sub-streams' means."""

    number: int
    step: int
    codebook: Codebook
    references: bool


class CodebookCycle:
    """Versions of one codebook over the steps of a training run.

    ``head_bits``, ``n_levels``: of the frames it is for; ``interval``: steps after which a refresh is due (GComp:
    50); ``trigger``: bits per symbol above what a fresh codebook would need that make one due earlier; ``options``:
    how codebooks are built.
    """

    def __init__(
        self,
        head_bits: int,
        n_levels: int,
        *,
        interval: int = 50,
        trigger: float = 0.1,
        options: EncoderOptions | None = None,
    ) -> None:
        if interval < 1 or trigger <= 0:
            raise InvalidArgument(f"interval={interval} and trigger={trigger} must be positive")
        self.head_bits, self.n_levels = head_bits, n_levels
        self.interval, self.trigger = interval, trigger
        self.options = options or EncoderOptions()
        _, self.center = window_of(n_levels)
        self.histogram = np.zeros(n_bins_of(n_levels), np.uint64)
        self.step = 0
        self.current: Version | None = None
        self._coming: list[Version] = []
        self._last: np.ndarray | None = None
        self._costs_of: Version | None = None
        self._costs = self.histogram

    def advance(self, step: int) -> Version | None:
        """Go to ``step`` (never back); returns the version that holds there, None before the first."""
        if step < self.step:
            raise InvalidArgument(f"step {step} comes before step {self.step}")
        self.step = step
        while self._coming and self._coming[0].step <= step:
            self.current = self._coming.pop(0)
        return self.current

    def count(self, histogram: np.ndarray) -> None:
        """Add what an encoding saw: integers[n_bins], as in ``plan.FramePlan.histogram``."""
        self._last = histogram.astype(np.uint64)
        self.histogram += self._last

    @property
    def excess(self) -> float:
        """Bits per symbol by which the current codebook exceeds the entropy of the last thing counted; infinite
        without a codebook."""
        if self.current is None or self._last is None:
            return float("inf")
        total = int(self._last.sum())
        if not total:
            return 0.0
        if self._costs_of is not self.current:
            self._costs = bin_costs([self.current.codebook])[0].astype(np.uint64)
            self._costs_of = self.current
        cost = int(self._last @ self._costs)
        return (cost - int(code_costs.entropy_fixed(self._last)) / 256) / total

    @property
    def due(self) -> bool:
        """Whether a refresh would pay now: no version yet, ``interval`` steps old, or ``trigger`` exceeded; never
        while one is coming."""
        if self._coming:
            return False
        return self.current is None or self.step - self.current.step >= self.interval or self.excess > self.trigger

    def take(self) -> np.ndarray:
        """The histogram counted so far, uint64[n_bins], to be summed over workers; counting starts again."""
        taken = self.histogram.copy()
        self.histogram[:] = 0
        return taken

    def schedule(self, histogram: np.ndarray, step: int, references: bool = False) -> Version:
        """Build the next version from a histogram; it holds from ``step`` on, which must not lie behind. Raises
        InvalidArgument."""
        last = self._coming[-1] if self._coming else self.current
        if step < max(self.step, last.step if last else 0):
            raise InvalidArgument(f"step {step} has passed")
        book = from_histogram(
            histogram,
            self.head_bits,
            self.n_levels,
            self.center,
            max_length=self.options.max_length,
            escape_threshold=self.options.escape_threshold,
        )
        version = Version(last.number + 1 if last else 1, step, book, references)
        self._coming.append(version)
        return version
