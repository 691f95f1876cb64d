"""Tensors of a program as bits, read and written part by part: numpy arrays, torch tensors on any device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..archive.arrays import as_array, as_bytes
from ..archive.shared_memory import lies_in
from ..errors import InvalidArgument, first_few
from ..files.elements import name_of, width
from ..files.file_plan import TensorView
from ..files.safetensors import CODES
from ..files.source import Bytes
from ..tensors import as_plain_array, check_has_data, check_not_freed, is_jax, is_torch, kernel_view, note_change
from .device_bits import Bits, DeviceBits, is_on_device


class TensorLayout(NamedTuple):
    """A tensor without its values.

    Attributes:
        dtype: Name of its type.
        shape: Its shape.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def item_bytes(self) -> int:
        """Return the bytes of a value."""
        return width(self.dtype) or 1

    @property
    def n_values(self) -> int:
        """Return the number of values."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Return the bytes of all values."""
        return self.n_values * self.item_bytes

    @property
    def uint(self) -> np.dtype:
        """Return the unsigned integer of a value's width."""
        return np.dtype(f"<u{self.item_bytes}")

    def __str__(self) -> str:
        return f"{self.dtype} of shape {list(self.shape)}"


def tensor_layout_of(name: str, value: Any) -> TensorLayout:
    """Return the layout of an array or tensor.

    Args:
        name: Its name, for errors.
        value: numpy array, torch tensor, or what ``numpy.asarray`` takes.

    Raises:
        InvalidArgument: A type that .safetensors lacks, a sparse or quantized tensor, a DTensor, or one without data.
    """
    if is_torch(value):
        _check_torch(name, value)
        dtype = str(value.dtype).removeprefix("torch.")
    else:
        array = as_plain_array(value, f"tensor {name!r}")
        dtype = "object" if array.dtype.hasobject else name_of(array.dtype.newbyteorder("<"))
    if dtype == "object":
        raise InvalidArgument(
            f"tensor {name!r} must be an array or a tensor of numbers, not a {type(value).__name__} of Python objects; "
            "of a nested state give each state_dict() by itself, or join them in one dictionary"
        )
    if dtype not in CODES:
        raise InvalidArgument(f"tensor {name!r} must be of one of the types {', '.join(sorted(CODES))}, not {dtype}")
    return TensorLayout(dtype, tuple(np.shape(value)))


def _check_torch(name: str, value: Any) -> None:
    import torch

    if hasattr(value, "to_local"):
        raise InvalidArgument(
            f"tensor {name!r} must be a plain tensor, not a {type(value).__name__}: each rank publishes its own "
            "shards, which gcodec.distributed.local_shards returns"
        )
    check_has_data(value, f"tensor {name!r}")
    if value.layout != torch.strided or value.is_quantized or value.is_meta:
        what = "on the device meta" if value.is_meta else f"{value.layout}, {value.dtype}"
        raise InvalidArgument(f"tensor {name!r} must be dense, not quantized, and have values; it is {what}")
    check_not_freed(value, f"tensor {name!r}")


def host_bits(value: Any) -> Bytes:
    """Return the row-major little-endian bytes of an array or tensor; a copy only where it does not lie like that in
    host memory."""
    return as_bytes(value)[2]


def shares_memory(value: Any, bits: Bits) -> bool:
    """Return True if ``bits`` are the very memory of an array or tensor, so that they change when it does."""
    if isinstance(bits, DeviceBits):
        return bool(value.data_ptr() == bits.words.data_ptr())
    return lies_in(value, bits)


def as_typed(bits: np.ndarray, dtype: str, shape: tuple[int, ...], like: str, name: str) -> Any:
    """Return bits as an array of their type that shares the memory.

    Args:
        bits: Contiguous, any type.
        dtype: Name of the values' type.
        shape: Shape of the result.
        like: ``"numpy"`` or ``"torch"``. What numpy lacks comes as a type of ml_dtypes, or as unsigned integers where
            that is not installed.
        name: Name of the tensor, for errors.
    """
    return as_array(TensorView(name, dtype, shape, 0), bits.reshape(-1).view(np.uint8), like)


class WritableTensor:
    """An array or tensor whose values are read and replaced as bits, in place.

    Args:
        name: Its name, for errors.
        value: numpy array or torch tensor; on a device, values are copied to the host to be read, and only the new ones
            to the device.
        layout: Its layout, where an array of unsigned integers stands for a type that numpy lacks; None: its own.
        on_device: Compare and hash the values where they are, if that is a CUDA device and they lie end to end.

    Attributes:
        words: The values as integers of their width: a numpy array or a torch tensor of the same memory.

    Raises:
        InvalidArgument: It cannot be written to, or is not of a type that versions have.
    """

    def __init__(self, name: str, value: Any, layout: TensorLayout | None = None, *, on_device: bool = False) -> None:
        self.name, self.value = name, value
        if not is_torch(value) and not isinstance(value, np.ndarray):
            advice = '; JAX arrays cannot be written to: see Subscriber(like="numpy")' if is_jax(value) else ""
            raise InvalidArgument(
                f"tensor {name!r} must be a numpy array or torch tensor, not a {type(value).__name__}{advice}"
            )
        self.layout = layout or tensor_layout_of(name, value)
        self.like = "torch" if is_torch(value) else "numpy"
        words: Any = _torch_words(name, value) if is_torch(value) else _numpy_words(name, value)
        self.words: Any = words
        self._dense: Bytes | None = None
        self._is_on_device = on_device and is_on_device(value) and bool(self.words.is_contiguous())

    @property
    def words_on_device(self) -> Any:
        """Return the values' own memory as a flat tensor of signed integers of their width on a device; None where
        they are not kept up to date there."""
        return self.words.view(-1) if self._is_on_device else None

    @cached_property
    def _flat(self) -> Bytes | None:
        """The values' own memory as bytes; None where they do not lie one after the other in host memory."""
        words = self.words
        if isinstance(words, np.ndarray):
            return words.reshape(-1).view(np.uint8) if words.flags.c_contiguous else None
        return words.numpy().reshape(-1).view(np.uint8) if words.is_cpu and words.is_contiguous() else None

    @property
    def has_moved(self) -> bool:
        """Return True if a torch tensor has other memory than it had, as after ``parameter.data = ...``."""
        return self.like == "torch" and bool(self.value.data_ptr() != self.words.data_ptr())

    def read(self, start: int, stop: int) -> Bytes:
        """Return bytes ``start`` to ``stop`` of the values in row-major order, which are not to be written to; safe
        from several threads."""
        if self._flat is not None:
            return self._flat[start:stop]
        if not isinstance(self.words, np.ndarray) and self.words.is_contiguous():
            size = self.layout.item_bytes
            part: np.ndarray = self.words.view(-1)[start // size : -(-stop // size)].cpu().numpy()
            return part.view(np.uint8)[start % size : start % size + stop - start]
        if self._dense is None:
            self._dense = host_bits(self.value)
        return self._dense[start:stop]

    def forget_copy(self) -> None:
        """Drop the copy of the values that reading made, if it made one."""
        self._dense = None

    def old_bits(self, first: int, count: int, indices: np.ndarray | None) -> np.ndarray:
        """Return a copy of the bits that :meth:`write` of ``count`` values would replace; other arguments as there."""
        if self._flat is not None:
            part = self._flat.view(self.layout.uint)[first : first + count]
            return part.copy() if indices is None else part[indices]
        words, index = self._place(first, count, indices)
        bits: np.ndarray = words[index] if isinstance(words, np.ndarray) else words[index].cpu().numpy()
        return bits.copy().view(self.layout.uint)

    def write(self, first: int, bits: np.ndarray, indices: np.ndarray | None) -> None:
        """Replace values.

        Args:
            first: The value that indices are counted from.
            bits: The new values, unsigned integers of their width.
            indices: Which values they replace, ascending; None: as many as there are, one after the other.
        """
        self._dense = None
        if self._flat is not None:
            if self.like == "torch":
                note_change(self.words)
            part = self._flat.view(self.layout.uint)[first:]
            if indices is None:
                part[: len(bits)] = bits
            else:
                part[indices] = bits
            return
        words, index = self._place(first, len(bits), indices)
        if isinstance(words, np.ndarray):
            words[index] = bits
            return
        import torch

        signed = np.ascontiguousarray(bits).view(f"i{bits.itemsize}")
        # torch warns of arrays that are marked read-only, though this one is only read.
        words[index] = torch.from_numpy(kernel_view(signed)).to(words.device).view(words.dtype)

    def _place(self, first: int, count: int, indices: np.ndarray | None) -> tuple[Any, Any]:
        """Return an array or tensor, and the index of some of the values in it."""
        words, is_numpy = self.words, isinstance(self.words, np.ndarray)
        if not is_numpy and words.is_contiguous():
            words = words.view(-1)
            if indices is None:
                return words, slice(first, first + count)
            places: tuple[np.ndarray, ...] = (indices.astype(np.int64) + first,)
        else:
            flat = np.arange(first, first + count) if indices is None else indices.astype(np.int64) + first
            places = np.unravel_index(flat, self.layout.shape)
        if is_numpy:
            return words, places
        import torch

        return words, tuple(torch.from_numpy(place.copy()).to(words.device) for place in places)


def _numpy_words(name: str, value: np.ndarray) -> np.ndarray:
    if not value.flags.writeable or value.dtype.byteorder == ">":
        raise InvalidArgument(f"tensor {name!r} must be a writable array in native byte order to be kept up to date")
    _check_no_overlap(name, value.shape, value.strides, value.itemsize)
    return np.asarray(value).view(f"u{value.dtype.itemsize}")  # a matrix would stay one, which has no flat shape


def _torch_words(name: str, value: Any) -> Any:
    import torch

    _check_no_overlap(name, tuple(value.shape), value.stride())
    if value.is_neg() or value.is_conj():
        raise InvalidArgument(f"tensor {name!r} must hold its values as they are: pass x.resolve_neg().resolve_conj()")
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return value.detach().view(integers[value.element_size()])


def _check_no_overlap(name: str, shape: tuple[int, ...], strides: tuple[int, ...], width: int = 1) -> None:
    """Raise InvalidArgument for a tensor of which values share memory: to write one would change another.

    Args:
        name: Its name, for the error.
        strides: Steps from one value to the next, in whatever unit.
        width: Of a value, in that unit.
    """
    if 0 in shape:
        return
    reach = width - 1  # the last place that the smaller steps lead to
    for step, size in sorted((abs(step), size) for size, step in zip(shape, strides, strict=True) if size > 1):
        if step <= reach:
            what = "its strides overlap" if step else "it is an expanded tensor"
            raise InvalidArgument(f"tensor {name!r} must have memory for each value; {what}")
        reach += step * (size - 1)


def check_memory(tensors: Iterable[WritableTensor]) -> None:
    """Raise InvalidArgument if tensors have other memory than they had: nothing that is written would reach it."""
    if moved := [tensor.name for tensor in tensors if tensor.has_moved]:
        raise InvalidArgument(f"tensor {names_as_text(moved)} has other memory by now: make a new Subscriber")


def names_as_text(names: Iterable[str]) -> str:
    """Return names in order as text, a few of many."""
    return first_few([repr(name) for name in sorted(names)])
