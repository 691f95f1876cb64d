"""Arguments of kernels as compiled code takes them: numbers one after the other, as in a struct of C."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ...errors import GcodecError

#: numba's arrays by the fields that a kernel takes: two pointers that are null on a device, the number of items, bytes
#: of an item, the address; then the shape and the strides, a number for each dimension.
_FIELDS = "PPnnP"
_NUMBERS = {np.uint32: "I", np.uint64: "Q"}
#: How PTX declares what :mod:`struct` packs by these letters.
_DECLARED = {"P": "u64", "n": "u64", "Q": "u64", "I": "u32"}


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
            n, strides = 1, [size] * len(shape)
            for k in range(len(shape) - 1, -1, -1):
                strides[k] = n * size
                n *= shape[k]
            self.fields = (0, 0, n, size, address, *shape, *strides)
        self.nbytes, self.kind = n * size, (dtype.char, len(shape))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, False), "version": 2}


class Flat(NamedTuple):
    """A bundle of arguments that is used in many launches, with what :func:`add_arguments` makes of it.

    Attributes:
        bundle: The bundle.
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
    return struct.Struct("@" + "".join(map(_letters, kinds)))


def _letters(kind: Any) -> str:
    return _FIELDS + "nn" * kind[1] if isinstance(kind, tuple) else _NUMBERS[kind]


def declared(kinds: tuple[Any, ...]) -> list[str]:
    """Return the types by which PTX declares a kernel's arguments of these kinds."""
    return [_DECLARED[letter] for kind in kinds for letter in _letters(kind)]


def signature(args: Sequence[Any]) -> tuple[Any, ...]:
    """Return numba's types of arguments."""
    return tuple(map(_type_of, args))


def _type_of(arg: Any) -> Any:
    if isinstance(arg, Flat):
        return _type_of(arg.bundle)
    if isinstance(arg, tuple):
        kinds = [_type_of(item) for item in arg]
        same = len(set(kinds)) == 1
        return types.NamedUniTuple(kinds[0], len(kinds), type(arg)) if same else types.NamedTuple(kinds, type(arg))
    if isinstance(arg, GpuArray):
        return types.Array(_scalar(arg.dtype.type), len(arg.shape), "C")
    return _scalar(type(arg))


def _scalar(kind: type) -> Any:
    """Return numba's type of a number."""
    known = getattr(types, kind.__name__, None)
    if known is None:
        raise GcodecError(f"a kernel's argument is of {kind.__name__}, which compiled code does not take")
    return known
