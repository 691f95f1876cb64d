"""Puts tensors that were read on the device that the caller wants, memory by memory, so that ties stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, check_choice, missing_torch, named_device
from ..tensors import is_torch

if TYPE_CHECKING:
    import torch


class Placement:
    """Moves torch tensors to one device; those of the same memory share it there as well. Others stay as they are.

    Args:
        device: as :func:`device_of` gives it; None leaves tensors where they are.
    """

    def __init__(self, device: torch.device | None) -> None:
        self.device = device
        self._moved: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # with their sources, which live on

    def __call__(self, value: Any) -> Any:
        """Return a tensor that was read, on the device."""
        if self.device is None or not is_torch(value) or value.device == self.device:
            return value
        import torch

        storage = value.untyped_storage()
        memory = storage.data_ptr(), storage.nbytes()
        if not memory[1]:
            return value.to(self.device)
        if memory not in self._moved:
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            self._moved[memory] = flat, flat.to(self.device)
        whole = self._moved[memory][1].view(value.dtype)
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def check_kind(like: str | None, device: Any) -> None:
    """Raise InvalidArgument if ``like`` names no kind of array, or numpy's, which has no devices, with one."""
    if like is not None:
        check_choice("like", like, ("numpy", "torch"))
    if device is not None and like == "numpy":
        raise InvalidArgument("device is for torch tensors: leave it out for numpy arrays")


def device_of(device: Any) -> torch.device | None:
    """Return the torch device of a name; None for None.

    Raises:
        InvalidArgument: there is no such device here.
        GcodecError: torch is not installed.
    """
    if device is None:
        return None
    try:
        import torch
    except ImportError as error:
        raise missing_torch("device=") from error

    found = None
    try:
        found = named_device(device)
        return torch.empty(0, device=found).device
    except (AssertionError, ImportError, RuntimeError, ValueError) as error:
        if isinstance(error, RuntimeError) and (found is None or _is_there(found)):
            raise  # of its memory or its driver
        reason = str(error).splitlines()[0]
        raise InvalidArgument(f"device must be a torch device of this machine, not {device!r}: {reason}") from error


def _is_there(device: torch.device) -> bool:
    """Return True if this machine has a device of this kind and number."""
    import torch

    if device.type in ("cpu", "meta"):
        return True
    kind: Any = getattr(torch, device.type, None)
    number: Any = device.index  # None, if the name has none
    return kind is not None and bool(kind.is_available()) and (number is None or number < kind.device_count())
