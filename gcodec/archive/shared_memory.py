"""Torch tensors on shared memory: what is stored for them, so that they share it again when they are loaded.

Tensors of one storage whose ranges of memory overlap become views of one stored tensor: of the one among them that has
all of the range in row-major order (a matrix, beside rows of it), or else of the whole range. Tensors that lie side by
side in one storage, as those of a flat buffer do, are stored one by one under their names.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import check_is_fault_of
from ..files.elements import MAX_SIZE
from ..files.file_plan import row_major
from ..tensors import is_torch

MAX_DIMENSIONS = 64


class Strided(NamedTuple):
    """A place in memory: shape, strides and first element, in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Any) -> Strided:
        """Return the place of a torch tensor, which is not empty, in its storage; strides of no effect are those of
        row-major order."""
        shape, dense = tuple(tensor.shape), row_major(tuple(tensor.shape))
        steps = (step if n > 1 else row for n, step, row in zip(shape, tensor.stride(), dense, strict=True))
        return cls(shape, tuple(steps), tensor.storage_offset())

    @property
    def end(self) -> int:
        """The element after the last one."""
        return self.offset + 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))

    @property
    def is_dense(self) -> bool:
        """True in row-major order, without gaps."""
        return self.stride == row_major(self.shape)


class StoredView(NamedTuple):
    """A tensor as what is stored for it.

    Attributes:
        stored: The tensor to store; the same object for all that are views of it.
        view: The tensor's place in it; None if it is all of it.
    """

    stored: Any
    view: Strided | None


class Member(NamedTuple):
    """A tensor among others that may share memory with it.

    Attributes:
        number: Its number among all.
        tensor: The tensor.
        place: Its place in the memory.
    """

    number: int
    tensor: Any
    place: Strided


def memory_of(value: Any) -> Hashable:
    """Return what arrays or tensors of the same memory, type, shape and strides have in common; None for one that is
    empty or has no plain memory."""
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
        address = array.__array_interface__["data"][0]
        return ("numpy", address, array.dtype, array.shape, array.strides) if array.size else None
    try:
        key = _storage_of(value)
        return None if key is None else (key, Strided.of(value))
    except (AttributeError, RuntimeError, ValueError) as error:
        check_is_fault_of(value, error)
        return None


def lies_in(value: Any, data: np.ndarray) -> bool:
    """Return True if the bytes of an array or tensor, as they are stored, are its very memory and no copy."""
    if is_torch(value):
        return bool(value.is_cpu) and value.data_ptr() == data.__array_interface__["data"][0]
    if data.base is not None and (data.base is value or data.base is value.base):
        return True
    return bool(np.may_share_memory(np.asarray(value), data))


def _storage_of(tensor: Any) -> Hashable:
    """Return what torch tensors of one storage and type have in common; None for one that is stored alone."""
    if not tensor.numel() or tensor.is_neg() or tensor.is_conj():
        return None
    return tensor.device, tensor.untyped_storage().data_ptr(), tensor.dtype


def stored_views(tensors: Sequence[Any]) -> list[StoredView]:
    """Return what is stored for each of these torch tensors, which are dense and have values."""
    result = [StoredView(tensor, None) for tensor in tensors]
    storages: dict[Hashable, list[int]] = defaultdict(list)
    for number, tensor in enumerate(tensors):
        key = _storage_of(tensor)
        if key is not None:
            storages[key].append(number)
    for numbers in storages.values():
        if len(numbers) == 1 and tensors[numbers[0]].is_contiguous():  # most: it is stored as it is
            continue
        members = [Member(number, tensors[number], Strided.of(tensors[number])) for number in numbers]
        for range_ in overlapping(members):
            for member, view in zip(range_, _views_of_one(range_), strict=True):
                result[member.number] = view
    return result


def view_of(stored: Any, shape: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """Return a view of a torch tensor or numpy array in row-major order.

    Raises:
        ValueError: As for :func:`check_view`; or it is in another order, so that each view would be one of a copy.
    """
    if not (stored.flags.c_contiguous if isinstance(stored, np.ndarray) else stored.is_contiguous()):
        raise ValueError("what others are views of must be in row-major order, without steps of its own")
    flat = stored.reshape(-1)
    place = check_view(len(flat), shape, stride, offset)
    if not isinstance(flat, np.ndarray):
        return flat.as_strided(*place)
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, [step * flat.itemsize for step in stride])


def check_view(n_values: int, shape: Sequence[int], stride: Sequence[int], offset: int) -> Strided:
    """Return the place of a view in a row-major array of ``n_values``.

    Raises:
        ValueError: It would reach beyond the array, or a number is none of a place in memory.
    """
    numbers = (*shape, *stride, offset)
    if len(shape) != len(stride) or len(shape) > MAX_DIMENSIONS or 0 in shape:
        raise ValueError("a view must have as many strides as sizes, and no size of 0")
    if not all(type(n) is int and 0 <= n < MAX_SIZE for n in numbers):
        raise ValueError("sizes, strides and offset of a view must be integers of at least 0")
    place = Strided(tuple(shape), tuple(stride), offset)
    if place.end > n_values or math.prod(shape) >= MAX_SIZE:  # with steps of 0 it does not reach far
        raise ValueError(f"a view of shape {list(shape)} reaches beyond the {n_values} values of its tensor")
    return place


def overlapping(members: list[Member]) -> Iterator[list[Member]]:
    """Yield members of one memory in groups whose ranges overlap, each in the order of the tensors."""
    group: list[Member] = []
    end = 0
    for member in sorted(members, key=lambda member: member.place.offset):
        if group and member.place.offset >= end:
            yield sorted(group, key=lambda member: member.number)
            group = []
        group.append(member)
        end = max(end, member.place.end) if len(group) > 1 else member.place.end
    yield sorted(group, key=lambda member: member.number)


def _views_of_one(members: list[Member]) -> list[StoredView]:
    """Return tensors whose ranges overlap as views of one that is stored."""
    start, end = min(m.place.offset for m in members), max(m.place.end for m in members)
    whole = next((m for m in members if m.place.is_dense and (m.place.offset, m.place.end) == (start, end)), None)
    first = members[0]
    if whole is not None:
        stored, place = whole.tensor, whole.place
    elif all(m.place == first.place for m in members) and end - start >= first.tensor.numel():
        order = sorted(range(first.tensor.ndim), key=lambda n: -first.place.stride[n])
        stored = first.tensor.permute(order)
        if not Strided.of(stored).is_dense:  # with gaps, which are not worth storing
            return [StoredView(first.tensor, None) for _ in members]
        place = Strided.of(stored)
    else:
        largest = max(members, key=lambda member: member.tensor.untyped_storage().nbytes()).tensor
        place = Strided((end - start,), (1,), start)
        stored = largest.as_strided(*place)
    return [
        StoredView(stored, None if m.place == place else m.place._replace(offset=m.place.offset - start))
        for m in members
    ]
