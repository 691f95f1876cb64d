"""Codebooks that ranks share for collectives of which only the kind is known.

Values of a call of the same name, size and type are taken to be distributed as before. There are no training steps
here: a step of the refresh ends with every sixteenth compressed collective, which is the same one on all ranks, as
their lanes make them in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch

from ...dtypes import DType
from ..gradients import Gradients, GradientSegment
from ..modes import Mode
from ..stats import Stats
from ..transport.lane import Lane
from .coder import BufferCodebooks
from .refresh import CodebookRefresh
from .shared_codebooks import Refresh, SharedCodebooks

_STEP = 16  #: collectives that count as a step
_MAX_KINDS = 256  #: kinds with a codebook: those that were the first to come twice
_MAX_SEEN = 1 << 12  #: kinds that are remembered for having come once; then all are forgotten


class CollectiveCodebooks:
    """Keeps the codebooks of a lane's collectives, one for each kind. It runs on the lane's thread.

    Args:
        refresh: When codebooks are renewed.

    Attributes:
        stats: Counts refreshes.
    """

    def __init__(self, refresh: Refresh) -> None:
        self.stats = Stats()
        self._codebooks = SharedCodebooks(refresh)
        self._codebook_refresh = CodebookRefresh(self._codebooks, self.stats)
        self._numbers: dict[Hashable, int] = {}
        self._seen: set[Hashable] = set()
        self._calls = 0

    def shared(self, kind: Hashable, n_values: int, dtype: DType, mode: Mode) -> BufferCodebooks | None:
        """Return the codebook for the next collective, or None for one of a kind that has none.

        Args:
            kind: What collectives that come again have in common.
            mode: How they may be changed.
        """
        number = self._number(kind)
        if number is None:
            return None
        self._codebooks.prepare([number], dtype.head_bits, len(mode.bit_layout(dtype).levels))
        whole = Gradients([GradientSegment(0, n_values, torch.empty(0, device="cpu"), (1,))])
        return BufferCodebooks(self._codebooks, whole, np.array([number], np.int64))

    def _number(self, kind: Hashable) -> int | None:
        if kind not in self._numbers and len(self._numbers) < _MAX_KINDS:
            if kind in self._seen:
                self._numbers[kind] = len(self._numbers)
            elif len(self._seen) < _MAX_SEEN:
                self._seen.add(kind)
            else:
                self._seen = {kind}
        return self._numbers.get(kind)

    def end(self, lane: Lane) -> None:
        """Record that a compressed collective has completed."""
        self._calls += 1
        if self._calls % _STEP == 0:
            self._codebook_refresh.end_step(lane)
