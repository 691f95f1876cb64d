"""Tensors of a subscriber that share memory, as tied weights do: a version must have the same values for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np

from ..archive.shared_memory import Member, Strided, overlapping
from ..errors import InvalidArgument
from .tensor_bits import WritableTensor
from .version_message import HashedTensor, VersionInfo


class SharedTensors:
    """The tensors among some that share memory with another one.

    Attributes:
        in_part: Those that share only a part of it, or in another order or shape; what is written for one of them
            shows in others as values at other places.
    """

    def __init__(self, tensors: Iterable[WritableTensor]) -> None:
        self.in_part: dict[str, WritableTensor] = {}
        self._tied, self._overlapping = list[list[str]](), list[list[str]]()
        devices: dict[str, list[Member]] = defaultdict(list)
        for number, tensor in enumerate(tensors):
            if tensor.layout.n_values:
                devices[_device_of(tensor)].append(Member(number, tensor, _range_of(tensor)))
        for members in devices.values():
            for group in overlapping(members):
                self._add([member.tensor for member in group])

    def _add(self, group: list[WritableTensor]) -> None:
        """Take in tensors whose ranges of memory overlap."""
        places: dict[Hashable, list[str]] = defaultdict(list)
        for tensor in group:
            places[_place_of(tensor)].append(tensor.name)
        self._tied += [names for names in places.values() if len(names) > 1]
        if len(places) > 1:
            self.in_part |= {tensor.name: tensor for tensor in group}
            self._overlapping.append([tensor.name for tensor in group])

    def check_tied(self, info: VersionInfo, hashes: Mapping[str, HashedTensor]) -> None:
        """Compare what a version has for tensors of the very same memory.

        Args:
            info: The facts about the version.
            hashes: Of all tensors, once it is applied.

        Raises:
            InvalidArgument: It has different values for them.
        """
        for first, *others in self._tied:
            for name in others:
                if hashes[name].hash != hashes[first].hash:
                    raise _not_held(info, first, name)

    def check_written(
        self, info: VersionInfo, wanted: Mapping[str, HashedTensor], found: Mapping[str, HashedTensor]
    ) -> None:
        """Compare the hashes of tensors that share memory in part with those that they are to have.

        Raises:
            InvalidArgument: They differ, because one tensor's values were written over another's.
        """
        for names in self._overlapping:
            for name in names:
                if found[name].hash != wanted[name].hash:
                    raise _not_held(info, name, next(other for other in names if other != name))


def _not_held(info: VersionInfo, one: str, other: str) -> InvalidArgument:
    return InvalidArgument(
        f"{info} has different values for the tensors {one!r} and {other!r}, which share memory in the subscriber: "
        "give it tensors of their own, or tie the publisher's, too"
    )


def _device_of(tensor: WritableTensor) -> str:
    words: Any = tensor.words
    return "cpu" if isinstance(words, np.ndarray) else str(words.device)


def _place_of(tensor: WritableTensor) -> tuple[int, tuple[tuple[int, int], ...], int]:
    """Return the address of the first value, each size of more than 1 with its step in bytes, and a value's bytes."""
    words: Any = tensor.words
    if isinstance(words, np.ndarray):
        address, steps = words.__array_interface__["data"][0], words.strides
    else:
        address, steps = words.data_ptr(), tuple(step * words.element_size() for step in words.stride())
    sizes = tuple((n, step) for n, step in zip(words.shape, steps, strict=True) if n > 1)
    return address, sizes, tensor.layout.item_bytes


def _range_of(tensor: WritableTensor) -> Strided:
    """Return the bytes from the first to the last value as a place in the device's memory."""
    address, sizes, item_bytes = _place_of(tensor)
    reach = [(n - 1) * step for n, step in sizes]  # below 0 where numpy counts backwards
    start = address + sum(step for step in reach if step < 0)
    return Strided((sum(map(abs, reach)) + item_bytes,), (1,), start)
