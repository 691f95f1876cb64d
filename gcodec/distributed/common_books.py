"""Codebooks that ranks share for collectives about which nothing is known but their kind: a call of the same name, size
and type again is taken for one of values that are distributed alike.

There are no steps here. A turn, which stands for one, ends with every sixteenth compressed collective: that is the same
one on all ranks, as their lanes make them in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch

from ..valuetypes import ValueType
from .codebooks import Codebooks, Refresh
from .coder import Shared
from .gradients import Gradients, Segment
from .lane import Lane
from .modes import Mode
from .rounds import Rounds
from .stats import Stats

_TURN = 16  #: collectives


class CommonBooks:
    """The codebooks of a lane's collectives, one for each kind; on the lane's thread. ``stats`` counts refreshes."""

    def __init__(self, refresh: Refresh) -> None:
        self.stats = Stats()
        self._codebooks = Codebooks(refresh)
        self._rounds = Rounds(self._codebooks, self.stats)
        self._numbers: dict[Hashable, int] = {}
        self._calls = 0

    def shared(self, kind: Hashable, n_values: int, dtype: ValueType, mode: Mode) -> Shared:
        """For the next collective, of so many values."""
        number = self._numbers.setdefault(kind, len(self._numbers))
        self._codebooks.prepare([number], dtype.head_bits, len(mode.scheme(dtype).levels))
        whole = Gradients([Segment(0, n_values, torch.empty(0), (1,))])
        return Shared(self._codebooks, whole, np.array([number], np.int64))

    def end(self, lane: Lane) -> None:
        """It has been made."""
        self._calls += 1
        if self._calls % _TURN == 0:
            self._rounds.end_step(lane)
