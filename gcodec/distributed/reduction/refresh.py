"""The small sums that all ranks make beside training, at the end of every step, and what they decide from them.

Whatever changes what goes over the wire follows from summed numbers alone, and is decided where every rank has just
read the same sums: at the end of a step, in the lane.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ...stream import is_refresh_due
from ..stats import Stats, ring_bytes
from ..transport.lane import Lane
from ..transport.transfers import labeled
from .shared_codebooks import MISFIT, SharedCodebooks, Spent


class AsyncSum:
    """Runs an all-reduce of a flat tensor beside the lane: ``begin``, then a step or more later ``finish``.

    Attributes:
        tensor: The tensor that is being summed; None if there is none.
    """

    def __init__(self) -> None:
        self.tensor: torch.Tensor | None = None
        self._work: Any = None
        self._lane: Lane | None = None  #: keeps the group alive: the lane may be closed before the sum is read

    def begin(self, lane: Lane, tensor: torch.Tensor) -> None:
        """Start an all-reduce, on which Gloo works beside the lane.

        Args:
            lane: The lane, on whose thread this is called.
            tensor: The tensor, to be summed in place.
        """
        self.tensor = tensor
        if lane.size > 1:
            self._lane = lane
            self._work = labeled("sums between steps", lambda: lane.group.allreduce([tensor]))

    def wait(self) -> torch.Tensor | None:
        """Wait for the sum and return it; None if none was begun. It can be read again."""
        if self._work is not None:
            labeled("sums between steps", self._work.wait)
            self._work = self._lane = None
        return self.tensor

    def finish(self) -> torch.Tensor | None:
        """Return the sum as :meth:`wait` does, and forget it."""
        tensor = self.wait()
        self.tensor = None
        return tensor


class CodebookRefresh:
    """Refreshes shared codebooks, step by step. It runs on the lane's thread.

    Args:
        stats: Counts refreshes, their bytes, and bits per symbol.

    Attributes:
        step: Steps ended.
        renewed: The step from which the codebooks hold; -1 before the first.
        usual: Bits per symbol beyond the entropy when these codebooks were new; None until that is known.
    """

    def __init__(self, codebooks: SharedCodebooks, stats: Stats) -> None:
        self.codebooks, self.stats = codebooks, stats
        self.step = 0
        self.renewed = -1
        self.usual: float | None = None
        self._spent, self._histograms = AsyncSum(), AsyncSum()
        self._numbers: list[int] = []

    def end_step(self, lane: Lane) -> None:
        """Go on with the refresh, at the end of a step: all of its buckets have been reduced."""
        self.step += 1
        # First read what earlier steps have begun to sum, then begin anew, in the same order on all ranks.
        histograms = self._histograms.finish()
        if histograms is not None:
            self.codebooks.renew(self._numbers, histograms.numpy(), self.step)
            self.renewed, self.usual = self.step, None
            self.stats.refreshes += 1
        spent = self._spent.finish()
        if spent is not None:
            self._record(Spent(*spent.tolist()))
        of_step = None
        if self.codebooks.piece_cache.counts:
            of_step = self.codebooks.end_step()
        self.stats.own_codebooks = self.codebooks.n_unsuited
        if histograms is None and self._due(spent):
            self._numbers = sorted(self.codebooks.layers)
            self._begin(lane, self._histograms, torch.from_numpy(self.codebooks.take()))
        if of_step is not None:
            self._begin(lane, self._spent, torch.tensor(of_step, dtype=torch.float64, device="cpu"))
        self._begin_step()

    def _begin_step(self) -> None:
        self.codebooks.piece_cache.begin_step(self.step, self.renewed >= 0 and not self.codebooks.unmade)

    def _due(self, spent: torch.Tensor | None) -> bool:
        """Return True if a refresh is to begin; follows from facts and sums that all ranks have in common."""
        if not self.codebooks.layers or self._histograms.tensor is not None:
            return False
        if self.codebooks.unmade and not self.codebooks.piece_cache.counts:
            return False  # parameters came in a step that was not counted: the next one is, and has histograms of them
        if self.renewed < 0:
            return True
        refresh = self.codebooks.refresh
        age = self.step - self.renewed
        if self.codebooks.unmade and age >= refresh.min_age:
            return True
        excess = usual = 0.0
        if age >= 2 and spent is not None:  # before that, the last sum is not of frames with these codebooks
            excess = self._excess(Spent(*spent.tolist()))
            # The first codebooks may suit no later step: an optimizer without a state chooses other levels than later.
            self.usual = usual = min(excess, MISFIT) if self.usual is None else self.usual
            if age < refresh.min_age:
                excess = usual
        # Histograms take a step to be summed, so a refresh begins a step before it is due.
        return is_refresh_due(age + 1, excess, refresh.interval, refresh.trigger, usual)

    def _begin(self, lane: Lane, async_sum: AsyncSum, tensor: torch.Tensor) -> None:
        async_sum.begin(lane, tensor)
        self.stats.refresh_bytes += round(ring_bytes(tensor.nbytes, lane.size))

    @staticmethod
    def _excess(spent: Spent) -> float:
        return (spent.paid - spent.entropy) / spent.symbols if spent.symbols else 0.0

    def _record(self, spent: Spent) -> None:
        if spent.symbols and spent.paid:
            self.stats.bits_per_symbol = spent.taken / spent.symbols
            self.stats.entropy_per_symbol = spent.entropy / spent.symbols

    def state_dict(self) -> dict[str, Any]:
        """Return the state as numbers and arrays. Waits for sums under way, which all ranks have begun."""
        spent, histograms = self._spent.wait(), self._histograms.wait()
        empty = np.zeros(0)
        return {
            "step": self.step,
            "renewed": self.renewed,
            "usual": float("nan") if self.usual is None else self.usual,
            "spent": empty if spent is None else spent.numpy().copy(),
            "histograms": empty.astype(np.int64) if histograms is None else histograms.numpy().copy(),
            "numbers": np.array(self._numbers, np.int64),
            "refreshing": histograms is not None,
            "unmade": self.codebooks.unmade,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.step, self.renewed = int(state["step"]), int(state["renewed"])
        self.usual = None if math.isnan(state["usual"]) else float(state["usual"])
        self._spent, self._histograms = AsyncSum(), AsyncSum()
        if len(state["spent"]) == len(Spent._fields):  # states from before had fewer numbers: nothing is lost by them
            self._spent.tensor = torch.tensor(np.asarray(state["spent"]), dtype=torch.float64, device="cpu")
        if state["refreshing"]:
            self._histograms.tensor = torch.tensor(np.asarray(state["histograms"]), dtype=torch.int64, device="cpu")
        self._numbers = [int(number) for number in state["numbers"]]
        self.codebooks.unmade = bool(state.get("unmade", False))  # not in states that were saved before it counted
        self._begin_step()
