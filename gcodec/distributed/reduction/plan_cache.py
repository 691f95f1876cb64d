"""A cache of the plans of frames by shared codebooks.

Gradients of one layout change little from step to step, and so do the plans of their frames. So symbols are counted,
and plans made, in one step of four; the others use the plans again. A frame that has grown meanwhile is planned anew at
once: frames are as large as fresh plans would make them, but for a few percent.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from ...plan.plan import FramePlan

_EVERY = 4  #: steps from one in which symbols are counted to the next
_GROWTH = 1.03  #: times the bytes that a frame had when its plan was new, from which it is planned anew
_MAX_PLANS = 1 << 12  #: plans that are kept


class _Kept(NamedTuple):
    """A plan that is used again.

    Attributes:
        plan: the plan.
        n_bytes: bytes of the frame that it was made for.
    """

    plan: FramePlan
    n_bytes: int


class PlanCache:
    """Keeps plans as long as the shared codebooks hold.

    Attributes:
        counts: True in a step in which symbols are counted and all plans made anew; the same on all ranks.
    """

    def __init__(self) -> None:
        self.counts = True
        self._plans: dict[Hashable, _Kept | None] = {}

    def forget(self) -> None:
        """Forget all plans, when the codebooks are new."""
        self._plans.clear()

    def begin_step(self, step: int, has_codebooks: bool) -> None:
        """Begin a step.

        Args:
            step: its number.
            has_codebooks: True if all layers have codebooks; without, symbols are counted in every step.
        """
        self.counts = step % _EVERY == 0 or not has_codebooks

    def encode(self, key: Hashable, make: Callable[[], FramePlan], write: Callable[[FramePlan], int]) -> int:
        """Write a frame by the kept plan, or by a new one, and return its size in bytes.

        Args:
            key: the same for this range of the buffer at every step.
            make: makes a plan.
            write: writes the frame by a plan, and returns its size in bytes.
        """
        kept = None if self.counts else self._plans.get(key)
        if kept is not None:
            n_bytes = write(kept.plan)
            if n_bytes <= _GROWTH * kept.n_bytes:
                return n_bytes
            self._plans[key] = None  # these values change much: no plan is used again before symbols are counted
        plan = make()
        n_bytes = write(plan)
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        if self.counts or key not in self._plans:
            self._plans[key] = _Kept(plan, n_bytes)
        return n_bytes
