"""Puts tensors that were read on the device that the caller wants, memory by memory, so that ties stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, check_choice, missing_torch, named_device
from ..tensors import is_torch

if TYPE_CHECKING:
    import torch


class Placement:
    """Moves torch tensors to one device; those of the same memory share it there as well. Others stay as they are.

    Args:
        device: As :func:`device_of` gives it; None leaves tensors where they are.
        move: In place of a device, what returns the storage for one in host memory, and ``"cpu"``; or None.

    Attributes:
        device: The device.
        is_given: True if the caller says where tensors are to be.
        map_location: What ``torch.load`` takes to do the same.
    """

    def __init__(self, device: torch.device | None, move: Callable[[Any, str], Any] | None = None) -> None:
        self.device, self._move = device, move
        self.is_given = device is not None or move is not None
        self.map_location: Any = move or device or "cpu"
        self._moved: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}  # with their sources, which live on

    def __call__(self, value: Any, is_alone: bool = False) -> Any:
        """Return a tensor that was read, on the device; of one that shares its memory with no other, the memory where
        it was is free afterwards."""
        if self._move is not None and is_torch(value):
            return self._moved_by(self._move, value)
        if self.device is None or not is_torch(value) or value.device == self.device:
            return value
        import torch

        storage = value.untyped_storage()
        memory = storage.data_ptr(), storage.nbytes()
        if not memory[1]:
            return value.to(self.device)
        moved = self._moved.get(memory)
        if moved is None:
            flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            moved = flat, flat.to(self.device)
            if not is_alone:
                self._moved[memory] = moved
        return moved[1].view(value.dtype).as_strided(value.shape, value.stride(), value.storage_offset())

    def _moved_by(self, move: Callable[[Any, str], Any], value: Any) -> Any:
        """Return a tensor on the storage that the caller's function returns for its own."""
        import torch

        storage = value.untyped_storage()
        memory = storage.data_ptr(), storage.nbytes()
        if memory not in self._moved or not memory[1]:
            found = move(storage, "cpu")
            found = getattr(found, "_untyped_storage", found)  # of one that has a type
            if found is not None and not isinstance(found, torch.UntypedStorage):
                raise InvalidArgument(f"map_location must return a storage or None, not a {type(found).__name__}")
            place = storage if found is None else found
            flat = torch.empty(0, dtype=torch.uint8, device=place.device).set_(place)
            self._moved[memory] = value, flat
        whole = self._moved[memory][1]
        if whole.untyped_storage().data_ptr() == memory[0]:
            return value
        empty = torch.empty(0, dtype=value.dtype, device=whole.device)
        return empty.set_(whole.untyped_storage(), value.storage_offset(), value.shape, value.stride())


def placement_of(device: Any, map_location: Any = None) -> Placement:
    """Return what puts tensors where the caller wants them.

    Args:
        device: As for :func:`device_of`.
        map_location: As ``torch.load`` has it, in place of a device.

    Raises:
        InvalidArgument: Both are given; there is no such device; or ``map_location`` needs to know where tensors were.
        GcodecError: torch is not installed.
    """
    if map_location is None:
        return Placement(device_of(device))
    if device is not None:
        raise InvalidArgument("device and map_location mean the same: give one of them")
    if isinstance(map_location, Mapping):
        return Placement(device_of(_only_device(map_location)))
    if callable(map_location):
        return Placement(None, map_location)
    return Placement(device_of(map_location))


def _only_device(map_location: Mapping[Any, Any]) -> Any:
    """Return the device that tensors of every place are put on. Raises InvalidArgument if there are several: of tensors
    in an archive nobody knows where they were."""
    devices = [map_location.get("cpu", "cpu"), *map_location.values()]
    if any(str(device) != str(devices[0]) for device in devices):
        raise InvalidArgument(
            f"map_location must be one device for all tensors, not {dict(map_location)!r:.80}: an archive does not say "
            f"where tensors were, so give the device itself, as in map_location={str(devices[-1])!r}"
        )
    return devices[0]


def check_kind(like: str | None, device: Any) -> None:
    """Raise InvalidArgument if ``like`` names no kind of array, or numpy's, which has no devices, with one."""
    if like is not None:
        check_choice("like", like, ("numpy", "torch"))
    if device is not None and like == "numpy":
        raise InvalidArgument("device is for torch tensors: leave it out for numpy arrays, as map_location")


def device_of(device: Any) -> torch.device | None:
    """Return the torch device of a name; None for None.

    Raises:
        InvalidArgument: There is no such device here.
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
