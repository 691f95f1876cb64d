"""Tensors as numpy or torch arrays over the bytes of a segment, and arrays as bytes."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from ..errors import Corruption, GcodecError, InvalidArgument, LimitExceeded, check_is_fault_of, missing_torch
from ..files.elements import NUMPY_NAMES, PAIRS, RAW_BITS, name_of, numpy_dtype
from ..files.file_plan import TensorView, row_major
from ..files.npy import reinterpreted
from ..files.source import Bytes
from ..tensors import as_plain_array, check_has_data, check_not_freed, is_torch
from .entries import FileEntry


def default_kind(entry: FileEntry) -> str:
    """Return ``"numpy"`` or ``"torch"``: what the tensors of a file come as, if the caller does not say.

    That is what was saved. Of an archive made from a file, tensors come as numpy arrays, but where torch is installed
    those of a ``.pt`` file, and of one with a type that numpy lacks, such as bfloat16, as torch tensors.
    """
    if entry.container in ("numpy", "torch"):
        return entry.container
    of_torch = entry.format == "torch" or any(dtype in RAW_BITS for dtype in entry.dtypes)
    return "torch" if of_torch and _has_torch() else "numpy"


def _has_torch() -> bool:
    return "torch" in sys.modules or _is_torch_installed()


@cache
def _is_torch_installed() -> bool:
    return find_spec("torch") is not None


def as_array(tensor: TensorView, data: Bytes, like: str) -> Any:
    """Return a tensor as a view of its segment's bytes, in the kind of array that ``like`` names.

    Raises:
        InvalidArgument: ``like`` is neither ``"numpy"`` nor ``"torch"``, or torch has no such type.
        GcodecError: A torch tensor is wanted, and torch is not installed.
    """
    if like not in ("numpy", "torch"):
        raise InvalidArgument(f"like must be 'numpy' or 'torch', not {like!r}")
    dtype = numpy_dtype(tensor.dtype)
    assert dtype is not None  # the caller has checked
    flat = data[: data.size // dtype.itemsize * dtype.itemsize]
    if tensor.is_dense and like == "numpy" and 0 not in tensor.shape:
        at = tensor.offset * dtype.itemsize
        values = flat[at : at + math.prod(tensor.shape) * dtype.itemsize].view(ml_dtype(tensor.dtype) or dtype)
        return values.reshape(tensor.shape)
    dense = row_major(tensor.shape)
    # Strides of no effect are those of row-major, which torch wants to see where it views values as other types.
    places = zip(tensor.shape, tensor.stride or dense, dense, strict=True)
    steps = tuple(step if n > 1 else row for n, step, row in places)
    try:
        if like == "torch":
            return _as_torch(flat, tensor, steps)
        values = flat.view(ml_dtype(tensor.dtype) or dtype)
        if 0 in tensor.shape:
            return np.empty(tensor.shape, values.dtype)
        strides = [step * dtype.itemsize for step in steps]
        return np.lib.stride_tricks.as_strided(values[tensor.offset :], tensor.shape, strides)
    except (ValueError, OverflowError, RuntimeError) as error:
        if isinstance(error, GcodecError) or (isinstance(error, RuntimeError) and not _overflows(tensor.shape)):
            raise
        raise LimitExceeded(f"tensor {tensor.name!r}: no array can have shape {tensor.shape}: {error}") from error


def _overflows(shape: Sequence[int]) -> bool:
    """Return True for a shape whose strides torch cannot count, or that has more dimensions than it allows."""
    return math.prod(max(size, 1) for size in shape) >= 1 << 60 or len(shape) > 64


def as_complex(pairs: Any, dtype: str) -> Any:
    """Return pairs of floats, a numpy array or torch tensor whose last size is 2, as complex numbers; numpy, which has
    no complex32, gets these as unsigned integers of the same bits.

    Args:
        dtype: A key of ``PAIRS``.

    Raises:
        ValueError: They are none, or of other floats.
    """
    part = PAIRS.get(dtype)
    if part is None or tuple(pairs.shape[-1:]) != (2,) or str(pairs.dtype).removeprefix("torch.") != part:
        raise ValueError(f"{dtype!r:.80} is no type of pairs of {pairs.dtype} in shape {tuple(pairs.shape)}")
    if not isinstance(pairs, np.ndarray):
        import torch

        return torch.view_as_complex(pairs)
    whole: Any = numpy_dtype(dtype)
    return pairs.view(whole)[..., 0] if pairs.size else np.empty(pairs.shape[:-1], whole)


def as_text(data: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return bytes, with those of each value in the last dimension, as an array of strings or dates. Raises ValueError
    if it is of another size."""
    if data.dtype != np.uint8 or data.shape[-1:] != (dtype.itemsize,):
        raise ValueError(f"values of {dtype} have {dtype.itemsize} bytes each, not {data.shape[-1:]} of {data.dtype}")
    return data.view(dtype)[..., 0] if data.size else np.empty(data.shape[:-1], dtype)


def item_at(key: Any, array: Any, name: str) -> Any:
    """Return ``array[key]``, of an array that was read.

    Args:
        key: An index that the array has.
        array: numpy array or torch tensor.
        name: Name of the tensor in errors.

    Raises:
        Corruption: A value of a numpy text is no text: a character of it has a code point that Unicode lacks.
    """
    try:
        return array[key]
    except (SystemError, ValueError, OverflowError) as error:  # a SystemError from CPython, which makes the string
        raise Corruption(f"tensor {name!r}: no value of type {array.dtype} has its bytes: {error}") from error


def _as_torch(flat: Bytes, tensor: TensorView, steps: Sequence[int]) -> Any:
    try:
        import torch
    except ImportError as error:
        raise missing_torch(
            f"tensor {tensor.name!r} is to be a torch tensor, which",
            "read numpy arrays: like='numpy', or framework='np' of gcodec.open",
        ) from error

    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise InvalidArgument(f"tensor {tensor.name!r}: torch has no type {tensor.dtype}; use like='numpy'")
    if 0 in tensor.shape:
        return torch.empty(tensor.shape, dtype=dtype, device="cpu")
    return torch.from_numpy(flat).view(dtype).as_strided(tensor.shape, steps, tensor.offset)


def ml_dtype(name: str) -> Any:
    """Return the type of ml_dtypes, where numpy lacks one and that package is installed and has it."""
    if name not in RAW_BITS:
        return None
    try:
        import ml_dtypes
    except ImportError:
        return None
    return getattr(ml_dtypes, name, None)


#: Types of numbers as they are stored, by their types in numpy.
_PLAIN = {np.dtype(name).newbyteorder("<"): name for name in NUMPY_NAMES}


def as_bytes(value: Any, dtype: str | None = None) -> tuple[str, tuple[int, ...], Bytes]:
    """Return an array's type, shape and little-endian row-major bytes; a copy only where it is not laid out like that.

    Args:
        value: numpy array, torch tensor on any device, or what ``numpy.asarray`` takes.
        dtype: What the raw bits of an unsigned integer array stand for.

    Raises:
        InvalidArgument: A type without fixed-size elements, a sparse tensor, or ``dtype`` does not fit.
    """
    if type(value) is np.ndarray and dtype is None and value.flags.c_contiguous:  # most, and soon told
        name = _PLAIN.get(value.dtype)
        if name is not None:
            return name, value.shape, value.reshape(-1).view(np.uint8)
    if is_torch(value):
        own = str(value.dtype).removeprefix("torch.")
        if dtype is not None and dtype != own:
            raise InvalidArgument(f"dtype must be None or {own!r}, the tensor's own, not {dtype!r}")
        return _torch_bytes(value)
    array = as_plain_array(value, "tensor")
    if array.dtype.hasobject:
        kind = type(value).__name__
        raise InvalidArgument(
            f"an array must be of numbers to be saved, not a {kind} of Python objects; gcodec.save takes nested ones"
        )
    name = reinterpreted(array.dtype, dtype) if dtype else name_of(array.dtype.newbyteorder("<"))
    little = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.byteorder == ">" else array
    return name, array.shape, np.ascontiguousarray(little).reshape(-1).view(np.uint8)


def check_not_meta(value: Any, where: str = "") -> None:
    """Raise InvalidArgument for a torch tensor on the device meta; ``where``: its place, for the error."""
    if value.is_meta:
        place = f"{where}: " if where else ""
        raise InvalidArgument(f"{place}a tensor must have values to be saved, but one on the device meta has no data")


def is_at_hand(value: Any) -> bool:
    """Return True for a torch tensor whose bytes lie in the host's memory as they are stored."""
    return bool(value.is_cpu and value.is_contiguous() and not value.is_conj() and not value.is_neg())


def _torch_bytes(value: Any) -> tuple[str, tuple[int, ...], Bytes]:
    import torch

    check_has_data(value, "value")
    check_not_meta(value)
    if value.layout != torch.strided or value.is_quantized:
        raise InvalidArgument(
            f"a tensor must be dense and not quantized to be saved, not a {value.layout} tensor of {value.dtype}"
        )
    check_not_freed(value, "value")
    try:
        if is_at_hand(value):
            flat = value.detach().reshape(-1)
        else:
            flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # of tensors made of others
        check_is_fault_of(value, error)
        raise InvalidArgument(f"the values of this {type(value).__name__} cannot be read: {error}") from None
    if flat.numel() <= 1:  # torch calls one value contiguous whatever its step, but does not look at it as bytes then
        flat = flat.as_strided(flat.shape, (1,))
    return str(value.dtype).removeprefix("torch."), tuple(value.shape), flat.view(torch.uint8).numpy()
