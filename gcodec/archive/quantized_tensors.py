"""Tensors that torch has quantized, as the integers, scales and zero points that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument, Unsupported, check_has_memory_for
from ..tensors import is_torch
from .arrays import check_not_meta

#: The names of the tensors that each scheme is made of.
PARTS: Mapping[str, tuple[str, ...]] = {
    "per_tensor_affine": ("int_repr",),
    "per_channel_affine": ("int_repr", "scales", "zero_points"),
    "per_channel_affine_float_qparams": ("int_repr", "scales", "zero_points"),
}
#: torch ends the process where it makes floats of one of these.
_FATAL = ("per_channel_affine_float_qparams", "torch.int32")
_INTEGERS = {"torch.qint8": "torch.int8", "torch.quint8": "torch.uint8", "torch.qint32": "torch.int32"}


def quantized_parts(value: Any, where: str) -> tuple[str, dict[str, Any], list[Any]]:
    """Return the scheme of a quantized tensor, the tensors that it is made of by name, and the numbers beside them.

    Raises:
        InvalidArgument: It is of another scheme or type, or without data.
    """
    plain, scheme = value.detach(), str(value.qscheme()).removeprefix("torch.")
    check_not_meta(value, where)
    integers = _INTEGERS.get(str(value.dtype))
    if scheme not in PARTS or integers is None or (scheme, integers) == _FATAL:
        raise InvalidArgument(
            f"{where}: a tensor that torch has quantized must be of {', '.join(_INTEGERS)} to be saved, and one of "
            f"{', '.join(PARTS)}, not of {value.dtype}, {scheme}: pass its int_repr(), scales and zero points"
        )
    if scheme == "per_tensor_affine":
        return scheme, {"int_repr": plain.int_repr()}, [plain.q_scale(), plain.q_zero_point()]
    parts = plain.int_repr(), plain.q_per_channel_scales(), plain.q_per_channel_zero_points()
    return scheme, dict(zip(PARTS[scheme], parts, strict=True)), [plain.q_per_channel_axis()]


def quantized_tensor(scheme: str, parts: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """Return the quantized tensor that :func:`quantized_parts` took apart.

    Raises:
        InvalidArgument: The parts are numpy arrays.
        Unsupported: They are on the device meta, or this torch has no quantized tensors.
        ValueError: They are none of such a tensor.
        MemoryError: There is no memory for it.
    """
    if any(not is_torch(part) for part in parts):
        raise InvalidArgument("the state has a quantized tensor, which is no numpy array: leave out like")
    if parts[0].is_meta:
        raise Unsupported("the state has a quantized tensor, which cannot be on the device meta")
    if str(parts[0].dtype) not in _INTEGERS.values():
        raise ValueError("a quantized tensor is made of integers")
    if (scheme, str(parts[0].dtype)) == _FATAL:
        raise ValueError("a quantized tensor of 32 bits has no zero points that are floats")
    import torch

    if not hasattr(torch, "_make_per_tensor_quantized_tensor"):
        raise Unsupported(
            f"the state has a quantized tensor, and torch {torch.__version__} has none any more: gcodec.open and "
            "load_file read the integers, scales and zero points"
        )
    try:
        if scheme == "per_tensor_affine":
            scale, zero_point = numbers
            if type(scale) not in (float, int) or type(zero_point) is not int:
                raise ValueError("a scale and a zero point must be numbers")
            return torch._make_per_tensor_quantized_tensor(parts[0], float(scale), zero_point)
        (axis,), types = numbers, (torch.float64, torch.int64)
        if scheme == "per_channel_affine_float_qparams":
            types = (torch.float32, torch.float32)
        if type(axis) is not int or not 0 <= axis < parts[0].ndim:
            raise ValueError(f"there is no axis {axis}" if type(axis) is int else "an axis must be an integer")
        for part, dtype in zip(parts[1:], types, strict=True):
            if part.dtype != dtype or part.shape != parts[0].shape[axis : axis + 1]:
                raise ValueError("there must be a scale and a zero point for each index of the axis")
        integers, scales, zero_points = parts
        return torch._make_per_channel_quantized_tensor(integers, scales, zero_points, axis)
    except (RuntimeError, TypeError, OverflowError) as error:
        check_has_memory_for(error)
        raise ValueError(f"a quantized tensor is malformed: {str(error).splitlines()[0]}") from error
