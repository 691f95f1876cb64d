"""Arrays in and out: numpy, JAX and torch CPU ones as flat unsigned integers, without a copy if possible."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .dtypes import BY_NAME, DTYPES, DType
from .errors import GcodecError, InvalidArgument, Unsupported, check_choice, check_is_fault_of, missing_torch
from .format.limits import MAX_DIMENSIONS, MAX_VALUES

NUMPY, TORCH = 0, 1  #: container codes of the frame header


class Values(NamedTuple):
    """Holds an array seen as bits.

    Attributes:
        bits: uintW[n], the values in row-major order.
        dtype: Their type.
        shape: Shape of the array, as the frame's header records it.
        container: ``NUMPY`` or ``TORCH``, as the frame's header records it.
    """

    bits: np.ndarray
    dtype: DType
    shape: tuple[int, ...]
    container: int


def kernel_view(array: np.ndarray) -> np.ndarray:
    """Return an array of the same memory that is marked writable.

    To numba a read-only array is another type, and every kernel would be compiled twice; kernels do not write to their
    inputs. An array that is not aligned, which is another type too, is copied.
    """
    flags = array.flags
    if not flags.aligned:
        return array.copy()
    return array if flags.writeable else np.asarray(_Pointer(array))


class _Pointer:
    """Memory by address, for :func:`kernel_view`, through the ``__array_interface__`` that numpy documents. numpy keeps
    this object, and it the array, alive."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}


def is_torch(x: Any) -> bool:
    """Return True if ``x`` is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_jax(x: Any) -> bool:
    """Return True if ``x`` is a JAX array, also one without values (a tracer, random keys), without importing JAX."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(x, getattr(jax, "Array", ()))  # without the name, it is being imported


def values_of(x: Any, dtype: str | None = None, argument: str = "x") -> Values:
    """Return an array or tensor as bits; only what is not contiguous is copied.

    Args:
        x: A numpy array (or what ``np.asarray`` takes, such as a JAX array) or a torch CPU tensor, of any shape,
            strides and writability.
        dtype: The type whose bits ``x`` holds, if it is of unsigned integers.
        argument: The caller's name for ``x``, for errors.

    Raises:
        InvalidArgument: The type is not one that gcodec encodes, or not ``dtype``; or there are no plain values.
        Unsupported: The tensor is on another device.
    """
    if type(x) is np.ndarray:
        array = x
    elif is_torch(x):
        try:
            return _torch_values(x, dtype, argument)
        except GcodecError:
            raise
        except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError) as error:
            check_is_fault_of(x, error)
            raise _not_plain(x, argument, error) from None
    else:
        array = as_plain_array(x, argument)
    try:
        value_type = _TYPES.get((array.dtype, dtype))
    except TypeError:  # no name, but what is no key either
        value_type = None
    if value_type is None:
        array, value_type = _bits_of_type(array, dtype, argument)
    shape = array.shape
    if len(shape) > MAX_DIMENSIONS or not array.size:
        check_dimensions(shape)
    if array.flags.carray:  # in C order, aligned and writable, as most are
        bits = array.reshape(-1).view(value_type.uint)
    else:
        bits = kernel_view(np.ascontiguousarray(array).reshape(-1).view(value_type.uint))
    return Values(bits, value_type, shape, NUMPY)


def as_plain_array(x: Any, argument: str) -> np.ndarray:
    """Return ``np.asarray(x)``; ``argument`` is the caller's name for it. Raises InvalidArgument, also for a masked
    array, whose mask would be lost."""
    check_unmasked(x, argument)
    if is_torch(x):
        check_not_freed(x, argument)
    try:
        return np.asarray(x)
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        check_is_fault_of(x, error)
        raise InvalidArgument(f"{argument} must be {_readable(x, error)}") from None


def host_array(x: Any, argument: str) -> Any:
    """Return a JAX array as a numpy array, and anything else as it is; ``argument`` is the caller's name for it. Raises
    InvalidArgument for a JAX array without values."""
    return as_plain_array(x, argument) if is_jax(x) else x


def _readable(x: Any, error: Exception) -> str:
    """Return the end of the error for what numpy does not read, with what to do. ``error``: what numpy or JAX says."""
    kind = type(x).__name__
    if is_jax(x) and isinstance(x, sys.modules["jax"].core.Tracer):
        return (
            f"an array with values, which this {kind} gets only when the function runs: call gcodec outside of jit, "
            "grad, vmap and the like, or in a function that jax.debug.callback or jax.experimental.io_callback calls"
        )
    if is_jax(x) and x.is_deleted():
        return (
            "an array that still has its memory; this JAX array was deleted, or donated to a jitted function: "
            "pass it earlier, or pass what that function returned"
        )
    return f"an array, which this {kind} is not: {error}"


def check_unmasked(x: Any, argument: str) -> None:
    """Raise InvalidArgument for a masked array, whose mask would be lost; ``argument`` is the caller's name for it."""
    if isinstance(x, np.ma.MaskedArray):
        raise InvalidArgument(
            f"{argument} must not be a masked array, for its mask would be lost: pass {argument}.filled(value) or "
            f"{argument}.data, and keep {argument}.mask beside it"
        )


_NATIVE = {np.dtype(t.name): t for t in DTYPES if t.in_numpy}
#: The value type by that of an array in native byte order, and the name that its caller gives.
_TYPES: dict[tuple[Any, str | None], DType] = {
    **{(kind, None): t for kind, t in _NATIVE.items()},
    **{(t.uint, t.name): t for t in DTYPES},
}


def _bits_of_type(array: np.ndarray, dtype: str | None, argument: str) -> tuple[np.ndarray, DType]:
    """Return the array in native byte order, and its type; ``argument`` is the caller's name for it. Raises
    InvalidArgument."""
    if dtype is not None:
        check_choice("dtype", dtype, BY_NAME)
    if dtype is not None and array.dtype.kind == "u" and array.dtype.itemsize == BY_NAME[dtype].itemsize:
        name = dtype
    else:
        name = array.dtype.name
        if dtype is not None and name != dtype:
            bits = BY_NAME[dtype].bits
            raise InvalidArgument(f"{argument} must be of {dtype} or uint{bits}, as dtype says, not {array.dtype}")
    if array.dtype.hasobject:
        raise InvalidArgument(
            f"{argument} must be one array or tensor of numbers, not None, a dictionary or the like; "
            "gcodec.save takes nested objects"
        )
    if name not in BY_NAME:
        raise InvalidArgument(f"{argument} must be {_instead_of(array, argument)}")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array, BY_NAME[name]


def _instead_of(array: np.ndarray, argument: str) -> str:
    """Return the end of the error for an array of another type, with what to pass or call; ``argument`` is the caller's
    name for it."""
    kind, itemsize = array.dtype.kind, array.dtype.itemsize
    if kind in "SU" and not array.ndim:
        return "an array or tensor of numbers, not a string; gcodec.compress_file takes the path of a file"
    if kind == "c" and itemsize <= 16:
        return f"real, not of {array.dtype}: pass {argument}.real and {argument}.imag, or let gcodec.save keep it"
    if kind == "u" and itemsize <= 2:
        held = " or ".join(repr(t.name) for t in DTYPES if t.itemsize == itemsize and not t.in_numpy)
        return f"{_known_types(array.dtype)}; if it holds the bits of floats, say dtype={held}"
    return _known_types(array.dtype)


def _known_types(dtype: Any) -> str:
    """Return the end of the error for an array of another type."""
    return f"of one of {', '.join(BY_NAME)}, not {dtype}; gcodec.save and gcodec.save_file keep other types, too"


def check_dimensions(shape: Sequence[int]) -> None:
    """Raise InvalidArgument for a shape that no frame's header holds."""
    if (ndim := len(shape)) > MAX_DIMENSIONS:
        raise InvalidArgument(f"an array must have at most {MAX_DIMENSIONS} dimensions to fit a frame, not {ndim}")
    if 0 in shape and math.prod(size for size in shape if size) >= MAX_VALUES:
        raise InvalidArgument(f"an empty array's other sizes must have a product below 2^48, not {tuple(shape)}")


@cache
def _torch_types() -> dict[Any, tuple[DType, Any]]:
    """Return the value type of each of torch's types, and torch's integers of the same width."""
    import torch

    return {getattr(torch, t.name): (t, getattr(torch, f"int{t.bits}")) for t in BY_NAME.values()}


def check_tensor(x: Any, argument: str = "x") -> tuple[DType, Any]:
    """Return the value type of a torch tensor on any device, and torch's integers of the same width.

    Args:
        argument: The caller's name for it, for errors.

    Raises:
        InvalidArgument: The tensor is not dense, of another type, or has more dimensions than a frame holds.
    """
    import torch

    value_type, integer = _torch_types().get(x.dtype, (None, None))
    if value_type is None or x.layout != torch.strided:
        raise _not_plain(x, argument)
    check_dimensions(x.shape)
    return value_type, integer


@cache
def _plain_kinds() -> tuple[type, type]:
    """Return torch's own classes of dense tensors."""
    import torch

    return torch.Tensor, torch.nn.Parameter


def check_has_data(x: Any, argument: str = "x") -> None:
    """Raise InvalidArgument for a tensor that says it is on a device, but has no memory there: one of fake, distributed
    or nested tensors, or of those made of others; and for one of a lazy module, which has no shape yet."""
    if type(x) in _plain_kinds() and not x.is_nested:
        return
    if (kind := type(x).__name__) in ("UninitializedParameter", "UninitializedBuffer"):
        raise InvalidArgument(f"{argument} must have values, but this {kind} gets its shape in the first forward pass")
    if kind == "FakeTensor" or hasattr(x, "full_tensor") or x.is_nested or hasattr(x, "__tensor_flatten__"):
        raise _not_plain(x, argument)


def check_has_memory(x: Any, argument: str = "x") -> None:
    """Raise InvalidArgument for a dense tensor whose address leads nowhere: what :func:`check_has_data` refuses, other
    tensors that torch gives no memory of their own, and those whose memory has been freed."""
    check_has_data(x, argument)
    if not x.numel():
        return
    try:
        address = x.data_ptr()
    except RuntimeError as error:  # of transforms of torch.func
        raise _not_plain(x, argument, error) from None
    if not address:
        raise _without_memory(x, argument)
    check_not_freed(x, argument)


def check_not_freed(x: Any, argument: str) -> None:
    """Raise InvalidArgument for a dense tensor whose memory has been freed: to read there would end the process."""
    try:
        is_freed = x.numel() and not x.untyped_storage().nbytes()
    except (RuntimeError, ValueError):  # of tensors made of others, or uninitialized: there is nothing to be freed
        return
    if is_freed:
        raise _without_memory(x, argument)


def _without_memory(x: Any, argument: str) -> InvalidArgument:
    """Return the error for a tensor without memory; ``argument`` is the caller's name for it."""
    return InvalidArgument(
        f"{argument} must be a tensor whose memory is there; that of this {type(x).__name__} has been freed, as FSDP "
        "frees parameters between their uses, or lies in other tensors, which are to be passed"
    )


def _not_plain(x: Any, argument: str, error: Exception | None = None) -> InvalidArgument:
    """Return the error for a tensor whose values cannot be had as they are; it says what to pass instead. ``error``:
    what torch says."""
    import torch

    kind, dtype, layout = type(x).__name__, x.dtype, getattr(x, "layout", None)
    if kind == "MaskedTensor":
        what = f"must not be a masked tensor, for its mask would be lost: pass {argument}.get_data()"
    elif hasattr(x, "full_tensor"):
        what = f"must not be a {kind}: pass {argument}.to_local(), this rank's part, or {argument}.full_tensor()"
    elif x.is_nested:
        parts = f"{argument}.values()" if layout == torch.jagged else f"each of {argument}.unbind()"
        what = f"must not be a nested tensor: pass {parts}"
    elif hasattr(x, "__tensor_flatten__"):  # torch's protocol for tensors that are made of others
        what = f"must be plain, not a {kind}: pass those that it is made of: {', '.join(x.__tensor_flatten__()[0])}"
    elif layout != torch.strided:
        what = f"must be dense, not a {layout} tensor: pass {argument}.to_dense(), or the tensors of its parts"
    elif x.is_quantized:
        what = f"must not be quantized: pass {argument}.dequantize()"
    elif x.is_complex():
        what = f"must be real, not of {dtype}: pass torch.view_as_real({argument})"
    elif dtype not in _torch_types():
        what = f"must be {_known_types(dtype)}"
    elif error is None or kind == "FakeTensor" or "ninitialized" in kind:
        what = f"must be a tensor with values, but this {kind} has no data: pass the one that it stands for"
    else:
        what = (
            "must be a plain tensor, whose memory can be read; transforms of torch.func, such as vmap or grad, "
            f"hide it: call from outside of them ({kind}: {error})"
        )
    return InvalidArgument(f"{argument} {what}")


def _torch_values(x: Any, dtype: str | None, argument: str) -> Values:
    value_type, integer = check_tensor(x, argument)
    if dtype is not None and dtype != value_type.name:
        raise InvalidArgument(f"dtype must be None or {value_type.name!r}, the tensor's own, not {dtype!r}")
    shape = tuple(x.shape)
    if not x.is_cpu:
        if x.is_meta:
            raise Unsupported(f"{argument} must be a tensor with values, but one on the device meta has no data")
        raise Unsupported(
            f"{argument} must be on the CPU, not on {x.device.type}; gcodec.encode and gcodec.gpu take CUDA tensors too"
        )
    check_not_freed(x, argument)
    dense = (x.detach() if x.requires_grad else x).resolve_neg().contiguous()
    bits = dense.view(integer).numpy().reshape(-1).view(value_type.uint)
    return Values(kernel_view(bits), value_type, shape, TORCH)


def new_output(dtype: DType, shape: tuple[int, ...], container: int) -> tuple[Any, np.ndarray]:
    """Return an uninitialized array, and its bits: uintW[n] of the same memory.

    Args:
        dtype: Type of the values. One that numpy lacks becomes the type of ``ml_dtypes`` where that is installed, else
            unsigned integers.
        container: ``NUMPY`` or ``TORCH``.
    """
    bits = np.empty(math.prod(shape), dtype.uint)
    return as_container(bits, dtype, shape, container), bits


def as_container(bits: np.ndarray, dtype: DType, shape: tuple[int, ...], container: int) -> Any:
    """Return bits, uintW[n], as an array of their type that shares the memory."""
    if container == TORCH:
        try:
            import torch
        except ImportError as error:
            raise missing_torch("a frame of a torch tensor, or like='torch',", "pass like='numpy'") from error
        array = bits if len(shape) == 1 else bits.reshape(shape)
        return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(getattr(torch, dtype.name))
    array = bits.view(_numpy_dtype(dtype))
    return array if len(shape) == 1 else array.reshape(shape)


@cache
def _numpy_dtype(dtype: DType) -> Any:
    if dtype.in_numpy:
        return np.dtype(dtype.name)
    try:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype.name))
    except ImportError:
        return dtype.uint


def output_bits(out: Any, dtype: DType, n_values: int) -> np.ndarray:
    """Return the bits of a caller's output array, uintW[n_values] of the same memory.

    Raises:
        InvalidArgument: The array is of another type or size, or cannot be written to in place.
    """
    if isinstance(out, np.ndarray):
        kind, flags = out.dtype, out.flags
        same = _NATIVE.get(kind) is dtype or (
            not dtype.in_numpy and ((kind.name == dtype.name and kind.isnative) or kind == dtype.uint)
        )
        if same and out.size == n_values and flags.c_contiguous and flags.writeable:
            return out.reshape(-1).view(dtype.uint)
    elif is_torch(out):
        try:
            bits = _torch_output(out, dtype, n_values)
        except GcodecError:
            raise
        except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError) as error:
            check_is_fault_of(out, error)
            raise _not_plain(out, "out", error) from None
        if bits is not None:
            return bits
        if out.is_nested:
            raise _not_plain(out, "out")
    found = type(out).__name__
    if hasattr(out, "shape") and hasattr(out, "dtype"):
        found += f" of shape {out.shape} and dtype {out.dtype}"
    raise InvalidArgument(
        f"out must be a writable, contiguous CPU array of {n_values} values of {dtype.name}; it is a {found}"
        f"{_why_not_written(out)}"
    )


def _why_not_written(out: Any) -> str:
    """Return the end of the error for an output whose shape and type do not show why it cannot be written to."""
    if isinstance(out, np.ndarray):
        if not out.flags.c_contiguous:
            return ", not contiguous"
        return "" if out.flags.writeable else ", read-only"
    if is_jax(out):
        return ", and JAX arrays cannot be written to: leave out the argument, and pass the result to jax.device_put"
    if not is_torch(out) or str(out.layout) != "torch.strided":
        return ""
    if not out.is_cpu:
        return f", on {out.device}"
    if not out.is_contiguous():
        return ", not contiguous"
    return ", and requires gradients: pass out.detach()" if out.requires_grad else ""


def _torch_output(out: Any, dtype: DType, n_values: int) -> np.ndarray | None:
    """Return the bits of a caller's output tensor, None if it does not fit."""
    if not out.is_cpu or not fits_as_output(out, dtype, n_values):
        return None
    check_not_freed(out, "out")
    note_change(out)
    dense = out.detach() if out.requires_grad else out
    bits: np.ndarray = dense.view(_torch_types()[out.dtype][1]).numpy().reshape(-1).view(dtype.uint)
    return bits


def note_change(tensor: Any) -> None:
    """Tell torch that a tensor is written to: a backward pass that has saved its values must not take others."""
    import torch

    torch.autograd.graph.increment_version(tensor)


def fits_as_output(out: Any, dtype: DType, n_values: int) -> bool:
    """Return True if a torch tensor on any device can be written to in place, and has this type and size."""
    import torch

    known, _ = _torch_types().get(out.dtype, (None, None))
    return (
        known is dtype
        and out.is_contiguous()
        and not (out.is_neg() or out.is_conj())
        and not (out.requires_grad and out.is_leaf and torch.is_grad_enabled())
        and bool(out.numel() == n_values)
    )
