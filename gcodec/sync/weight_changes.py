"""Changes of a subscriber's tensors, in host memory or on a device: found, written, and taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..plan.finding import differing_values
from .tensor_bits import TensorLayout, WritableTensor, as_typed

if TYPE_CHECKING:
    import torch

#: Where less than one value in so many changed, the changed ones are kept with their indices, else all of a part.
SPARSE = 4
#: Values of a part on a device.
DEVICE_PART = 1 << 26


class HostChange(NamedTuple):
    """New values of a part of a tensor, in host memory.

    Attributes:
        tensor: The tensor.
        first: Its first value in the part.
        n_values: Values in the part.
        n_changed: How many of them change.
        bits: The new values as unsigned integers.
        indices: Which values of the part they replace, uint32, ascending; None: all.
    """

    tensor: WritableTensor
    first: int
    n_values: int
    n_changed: int
    bits: np.ndarray
    indices: np.ndarray | None

    def write(self) -> None:
        """Write the new values."""
        self.tensor.write(self.first, self.bits, self.indices)

    def taken_back(self) -> HostChange:
        """Return the change that puts back the values that are there now."""
        return self._replace(bits=self.tensor.old_bits(self.first, self.n_values, self.indices))

    def places_and_values(self, like: str | None) -> tuple[Any, Any]:
        """Return flat indices into the tensor and the values there; as a pending version gives them."""
        kind, first = like or self.tensor.like, self.first
        indices = self.indices
        places = np.arange(first, first + self.n_values) if indices is None else indices.astype(np.int64) + first
        values = as_typed(self.bits.copy(), self.tensor.layout.dtype, (len(self.bits),), kind, self.tensor.name)
        return as_typed(places, "int64", (len(values),), kind, self.tensor.name), values


class DeviceChange(NamedTuple):
    """New values of a part of a tensor, on its device.

    Attributes:
        tensor: The tensor.
        first: Its first value in the part.
        n_values: Values in the part.
        n_changed: How many of them change.
        bits: The new values, signed integers of their width, on the device.
        indices: Which values of the part they replace, int64, ascending, on the device; None: all.
    """

    tensor: WritableTensor
    first: int
    n_values: int
    n_changed: int
    bits: torch.Tensor
    indices: torch.Tensor | None

    def write(self) -> None:
        """Write the new values."""
        part = self._part()
        if self.indices is None:
            part.copy_(self.bits)
        else:
            part[self.indices] = self.bits

    def taken_back(self) -> DeviceChange:
        """Return the change that puts back the values that are there now."""
        part = self._part()
        return self._replace(bits=part.clone() if self.indices is None else part[self.indices])

    def places_and_values(self, like: str | None) -> tuple[Any, Any]:
        """Return flat indices into the tensor and the values there, on the device if ``like`` is None."""
        import torch

        if self.indices is None:
            places = torch.arange(self.first, self.first + self.n_values, device=self.bits.device)
        else:
            places = self.indices + self.first
        values = self.bits.clone().view(self.tensor.value.dtype)
        if like is None:
            return places, values
        bits = self.bits.cpu().numpy().copy()
        typed = as_typed(bits, self.tensor.layout.dtype, (len(bits),), like, self.tensor.name)
        return as_typed(places.cpu().numpy().copy(), "int64", (len(bits),), like, self.tensor.name), typed

    def _part(self) -> Any:
        return self.tensor.words_on_device[self.first : self.first + self.n_values]


Change = HostChange | DeviceChange


def host_changes(tensor: WritableTensor, first: int, bits: np.ndarray) -> list[Change]:
    """Return how a part of a tensor changes: nothing, some values, or all.

    Args:
        first: Its first value in the part.
        bits: The part's new values, unsigned integers of their width.
    """
    size = tensor.layout.item_bytes
    before = tensor.read(first * size, (first + len(bits)) * size).view(bits.dtype)
    indices, changed = differing_values(bits, before)
    count = len(indices)
    if not count:
        return []
    if count * SPARSE > len(bits):
        return [HostChange(tensor, first, len(bits), count, bits, None)]
    return [HostChange(tensor, first, len(bits), count, changed, indices)]


def device_changes(tensor: WritableTensor, new: torch.Tensor) -> list[Change]:
    """Return how a tensor changes, part by part; waits for the device.

    Args:
        tensor: The tensor, whose words are on a device.
        new: All of its new values, flat, uint8, on that device.
    """
    before, changes = tensor.words_on_device, list[Change]()
    after = new.clone() if new.storage_offset() % tensor.layout.item_bytes else new
    after = after.view(before.dtype)
    for first in range(0, len(before), DEVICE_PART):
        part = after[first : first + DEVICE_PART]
        indices = (part != before[first : first + DEVICE_PART]).nonzero().view(-1)
        count = len(indices)
        if count * SPARSE > len(part):
            changes.append(DeviceChange(tensor, first, len(part), count, part.clone(), None))
        elif count:
            changes.append(DeviceChange(tensor, first, len(part), count, part[indices], indices))
    return changes


def fill(tensor: WritableTensor, first: int, bits: np.ndarray) -> list[Change]:
    """Write a part of a new tensor, and return it as a change; arguments as of :func:`host_changes`."""
    size = tensor.layout.item_bytes
    tensor.write(first, bits, None)
    written = tensor.read(first * size, (first + len(bits)) * size).view(bits.dtype)
    return [HostChange(tensor, first, len(bits), len(bits), written, None)]


def write_all(
    changes: Sequence[Change], check: Callable[[], None], is_kept: Callable[[], bool] = lambda: False
) -> None:
    """Write all changes, or none: whatever is raised, and wherever, what was written is undone unless it is to be kept.

    Args:
        check: Called when all is written; may raise, or note in one step that the changes are to be kept.
        is_kept: Returns whether that is noted; by default they are never kept, where only the check is wanted.
    """
    undo: list[Change] = []

    def take_back() -> None:
        while undo and not is_kept():
            undo[-1].write()
            undo.pop()  # afterwards: to write one again changes nothing, but for those before it

    try:
        try:
            for change in changes:
                undo.append(change.taken_back())
                change.write()
            check()
        finally:
            take_back()
    finally:  # an interrupt may have come before the other one, or in it
        take_back()


def layouts_of(tensors: dict[str, WritableTensor]) -> dict[str, TensorLayout]:
    """Return the layouts of tensors by name."""
    return {name: tensor.layout for name, tensor in tensors.items()}
