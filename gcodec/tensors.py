"""Arrays in and out: numpy arrays and torch CPU tensors as flat arrays of unsigned integers, without copies where
that can be."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InvalidArgument, Unsupported
from .format import BY_NAME, MAX_DIMENSIONS, ValueType

NUMPY, TORCH = 0, 1  #: container codes of the frame header
_BITS_ONLY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  #: types that numpy itself does not have


@dataclass(frozen=True)
class Values:
    """An array seen as bits: ``bits``: uintW[n], row-major; ``shape`` and ``container`` as the frame header records
    them."""

    bits: np.ndarray
    dtype: ValueType
    shape: tuple[int, ...]
    container: int


def kernel_view(array: np.ndarray) -> np.ndarray:
    """The same memory, marked writable: to numba a read-only array is another type, and every kernel would be
    compiled twice.

    Kernels do not write to their inputs.
    """
    return array if array.flags.writeable else np.asarray(_Pointer(array))


class _Pointer:
    """Memory by address, for :func:`kernel_view`; numpy keeps this object, and it the array, alive."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def is_torch(x: Any) -> bool:
    """Whether ``x`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def values_of(x: Any, dtype: str | None = None) -> Values:
    """See an array or tensor as bits.

    ``x``: numpy array (or what ``np.asarray`` takes) or torch CPU tensor, any shape, strides and writability;
    ``dtype``: says that ``x``, of unsigned integers, holds the bits of this type. Copies only what is not
    contiguous. Raises InvalidArgument for other types, Unsupported for other devices.
    """
    if is_torch(x):
        return _torch_values(x, dtype)
    try:
        array = np.asarray(x)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"cannot make an array of this {type(x).__name__}: {error}") from None
    name = array.dtype.name
    if dtype is not None:
        if dtype not in BY_NAME:
            raise InvalidArgument(f"unknown dtype {dtype!r}; one of {', '.join(BY_NAME)}")
        if array.dtype.kind == "u" and array.dtype.itemsize == BY_NAME[dtype].itemsize:
            name = dtype
        elif name != dtype:
            raise InvalidArgument(f"dtype={dtype!r} needs {BY_NAME[dtype].uint} bits, not {array.dtype}")
    if name not in BY_NAME:
        raise InvalidArgument(f"cannot encode values of type {array.dtype}; one of {', '.join(BY_NAME)}")
    check_dimensions(array.ndim)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    flat = np.ascontiguousarray(array).reshape(-1)
    return Values(kernel_view(flat.view(BY_NAME[name].uint)), BY_NAME[name], array.shape, NUMPY)


def check_dimensions(ndim: int) -> None:
    """Raises InvalidArgument for more dimensions than a frame header holds."""
    if ndim > MAX_DIMENSIONS:
        raise InvalidArgument(f"{ndim} dimensions; a frame holds at most {MAX_DIMENSIONS}")


def _torch_values(x: Any, dtype: str | None) -> Values:
    import torch

    name = str(x.dtype).removeprefix("torch.")
    if dtype is not None and dtype != name:
        raise InvalidArgument(f"dtype={dtype!r}, but the tensor is {name}")
    if name not in BY_NAME or x.layout != torch.strided:
        raise InvalidArgument(f"cannot encode a {x.layout} tensor of {x.dtype}; dense ones of {', '.join(BY_NAME)}")
    check_dimensions(x.ndim)
    if x.device.type != "cpu":
        raise Unsupported(f"tensors on {x.device.type} are not supported yet: move the tensor to the CPU first")
    value_type = BY_NAME[name]
    flat = x.detach().resolve_neg().contiguous().reshape(-1)
    bits = flat.view(getattr(torch, f"int{value_type.bits}")).numpy().view(value_type.uint)
    return Values(bits, value_type, tuple(x.shape), TORCH)


def new_output(dtype: ValueType, shape: tuple[int, ...], container: int) -> tuple[Any, np.ndarray]:
    """An uninitialized array of a type and shape, and its bits: uintW[n] sharing the memory.

    As numpy, a type that numpy lacks comes as the type of ``ml_dtypes`` where that is installed, else as unsigned
    integers.
    """
    bits = np.empty(math.prod(shape), dtype.uint)
    return wrap(bits, dtype, shape, container), bits


def wrap(bits: np.ndarray, dtype: ValueType, shape: tuple[int, ...], container: int) -> Any:
    """Bits (uintW[n]) as an array of their type, sharing the memory."""
    if container == TORCH:
        import torch

        return torch.from_numpy(bits.view(f"int{dtype.bits}")).view(getattr(torch, dtype.name)).reshape(shape)
    return bits.view(_numpy_dtype(dtype)).reshape(shape)


def _numpy_dtype(dtype: ValueType) -> Any:
    if dtype.name not in _BITS_ONLY:
        return np.dtype(dtype.name)
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype.name))
    except ImportError:
        return dtype.uint


def output_bits(out: Any, dtype: ValueType, n_values: int) -> np.ndarray:
    """The bits of a caller's output array, uintW[n_values] sharing its memory. Raises InvalidArgument where it does
    not fit."""
    if is_torch(out):
        import torch

        fits = (
            str(out.dtype) == f"torch.{dtype.name}"
            and out.device.type == "cpu"
            and out.is_contiguous()
            and not (out.is_neg() or out.is_conj())
            and not (out.requires_grad and out.is_leaf and torch.is_grad_enabled())
        )
        if fits and out.numel() == n_values:
            return out.detach().reshape(-1).view(getattr(torch, f"int{dtype.bits}")).numpy().view(dtype.uint)
    elif isinstance(out, np.ndarray):
        same = (out.dtype.name == dtype.name and out.dtype.isnative) or (
            out.dtype == dtype.uint and dtype.name in _BITS_ONLY
        )
        if same and out.size == n_values and out.flags.c_contiguous and out.flags.writeable:
            return out.reshape(-1).view(dtype.uint)
    raise InvalidArgument(f"out must be a writable, contiguous CPU array of {n_values} values of {dtype.name}")
