"""Arguments of kernels as compiled code takes them: numbers one after the other, as in a struct of C."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

#: Fields of an array as a kernel takes it (``Array`` of ``source/device.cuh``): two pointers that are null, the number
#: of items, bytes of an item, the address; then the shape and the strides, a number for each dimension.
_FIELDS = "PPnnP"
_NUMBERS = {np.uint32: "I", np.uint64: "Q"}


class GpuArray:
    """An array on a device: of memory that it keeps, or at an address.

    Args:
        tensor: What keeps the memory: a torch tensor of bytes, of which the array is a part; or None.
        address: Where the array begins.
        dtype: Type of its items.
        shape: Its shape; items lie in the order of C, without gaps.

    Attributes:
        tensor: As above.
        address: As above.
        dtype: As above.
        shape: As above.
        nbytes: Bytes that it takes.
        kind: What compiled code depends on: type of the items and number of dimensions.
        fields: The numbers that stand for it among a kernel's arguments.
    """

    __slots__ = ("address", "dtype", "fields", "kind", "nbytes", "shape", "tensor")

    def __init__(self, tensor: Any, address: int, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        size = dtype.itemsize
        self.tensor, self.address, self.dtype, self.shape = tensor, address, dtype, shape
        if len(shape) == 1:  # of which a call makes ten
            (n,) = shape
            self.fields: tuple[int, ...] = (0, 0, n, size, address, n, size)
        else:
            # From the last dimension, whose items lie side by side, to the first.
            n, strides = 1, [size] * len(shape)
            for k in range(len(shape) - 1, -1, -1):
                strides[k] = n * size
                n *= shape[k]
            self.fields = (0, 0, n, size, address, *shape, *strides)
        self.nbytes, self.kind = n * size, (dtype.char, len(shape))


class Flat(NamedTuple):
    """A bundle of arguments that is used in many launches, with what :func:`add_arguments` makes of it.

    Attributes:
        bundle: The bundle, which keeps the memory at whose addresses its arrays lie.
        kinds: Kinds of its members.
        numbers: Their numbers.
    """

    bundle: Any
    kinds: tuple[Any, ...]
    numbers: tuple[Any, ...]


def flat(bundle: Any) -> Flat:
    """Return a bundle with what :func:`add_arguments` makes of it."""
    kinds: list[Any] = []
    numbers: list[Any] = []
    add_arguments(bundle, kinds, numbers)
    return Flat(bundle, tuple(kinds), tuple(numbers))


def add_arguments(args: Sequence[Any], kinds: list[Any], numbers: list[Any]) -> None:
    """Collect what a kernel's arguments are, and the numbers that it takes for them.

    Args:
        args: :class:`GpuArray`, numpy's unsigned integers of 32 or 64 bits, named tuples of these, and :class:`Flat`.
        kinds: Gets the kind of each.
        numbers: Gets the numbers of each.
    """
    for arg in args:
        kind = type(arg)
        if kind is GpuArray:
            kinds.append(arg.kind)
            numbers += arg.fields
        elif kind is Flat:
            kinds += arg.kinds
            numbers += arg.numbers
        elif kind in _NUMBERS:
            kinds.append(kind)
            numbers.append(int(arg))
        else:
            add_arguments(arg, kinds, numbers)


@cache
def layout(kinds: tuple[Any, ...]) -> struct.Struct:
    """Return what packs the numbers of arguments of these kinds, each where C would put it in a struct."""
    # "@": in the order of bytes, the sizes and the gaps of this machine's C, which devices share.
    return struct.Struct("@" + "".join(map(_letters, kinds)))


def _letters(kind: Any) -> str:
    return _FIELDS + "nn" * kind[1] if isinstance(kind, tuple) else _NUMBERS[kind]
