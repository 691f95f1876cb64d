"""The weights that a subscriber holds, as the base of a difference."""

from __future__ import annotations

from collections.abc import Callable

from ..archive.base_tensors import Base, BaseSegment
from ..files.elements import stored_as
from ..files.file_plan import TensorView
from ..files.source import Bytes
from .tensor_bits import WritableTensor


class HeldBases:
    """Finds the weights that a subscriber holds, for frames that refer to them.

    Args:
        held: returns the name of what is held, for errors, and its tensors.
    """

    def __init__(self, held: Callable[[], tuple[str, list[WritableTensor]]]) -> None:
        self._held = held

    def find(self, path: str, dtype: str | None = None) -> Base | None:
        """Return the weights, None if there are none."""
        where, held = self._held()
        if not held:
            return None

        def read(segment: int, start: int, stop: int) -> Bytes:
            return held[segment].read(start, stop)

        views = tuple(TensorView(tensor.name, *tensor.layout, number) for number, tensor in enumerate(held))
        segments = tuple(BaseSegment(tensor.layout.n_bytes, stored_as(tensor.layout.dtype)) for tensor in held)
        return Base(where, views, segments, read)
