"""The request for one compressed reduction, which the jobs for tensors in CPU memory and on CUDA devices share."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch

from ...dtypes import DTYPES, DType
from ..gradients import Gradients
from ..modes import Mode, NearLossless
from ..stats import Counters
from ..transport.lane import Lane
from .level_chooser import LevelChooser

TYPES = {getattr(torch, t.name): t for t in DTYPES if t.reducible}  #: that can be reduced, by torch's
Chooser = TypeVar("Chooser", bound=LevelChooser)


class ReduceRequest(NamedTuple):
    """A buffer that is to be reduced over a lane, and how.

    Attributes:
        lane: The lane of the group whose ranks take part.
        flat: This rank's values: contiguous, one-dimensional, of a type in ``TYPES``.
        result: Contiguous memory for the result, apart from ``flat``: of its length for an all-reduce, of this rank's
            part for a reduce-scatter. For an all-reduce it may be ``flat`` itself, unless two ranks round their values.
        mode: How values may be changed.
        mean: Divide the sum by the number of ranks.
        counters: Takes times and bytes.
        gradients: The parameters whose gradients ``flat`` holds; None where they are not known. NearLossless needs it.
        label: Begins the texts of errors.
    """

    lane: Lane
    flat: torch.Tensor
    result: torch.Tensor
    mode: Mode
    mean: bool
    counters: Counters
    gradients: Gradients | None = None
    label: str = ""

    @property
    def dtype(self) -> DType:
        """The type of the values."""
        return TYPES[self.flat.dtype]

    def level_chooser(self, kind: type[Chooser]) -> Chooser | None:
        """Make what chooses levels; None where the mode has none. On the lane's thread, as it reads optimizers."""
        if not isinstance(self.mode, NearLossless):
            return None
        assert self.gradients is not None
        ranks_share = 1.0 if self.mean else float(self.lane.size)
        return kind(self.mode, self.gradients, self.dtype, ranks_share)
