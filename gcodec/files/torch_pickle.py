"""The pickle in a ``.pt`` file: which tensors it describes, and on which storages. Nothing in it is executed.

The pickle runs on inert stand-ins (``inert_pickle.py``): every class or function it names, except a few that rebuild
tensors and dictionaries, is a placeholder that takes any arguments and does nothing. That is stricter than torch's
``weights_only=True``, needs no torch, and still finds the tensors inside objects of unknown classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPES
from .elements import MAX_SIZE, width
from .inert_pickle import Budget, BudgetError, Global, Items, Ordered, PickleMachine, stranger

#: Deeper than Python's own pickler goes, unless its limit on recursion was raised.
MAX_DEPTH = 1000
#: Keys and paths are cut after so many characters.
MAX_KEY, MAX_PATH = 1 << 10, 1 << 12
MAX_DIMENSIONS = 64
#: Estimate of the bytes that are held for a tensor, name aside, until its archive is written.
TENSOR_BYTES = 1024
STORAGES = {
    **{t.torch_storage: t.name for t in DTYPES if t.torch_storage is not None},
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage.

    Attributes:
        key: Name of its member in the zip.
        dtype: Type of its elements; None if it is untyped.
    """

    key: str
    dtype: str | None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on a storage.

    Attributes:
        storage: The storage.
        dtype: Type of its elements.
        shape: Shape of the tensor.
        offset: First element, counted in elements.
        stride: Steps in elements.
    """

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    offset: int
    stride: tuple[int, ...]


def read_pickle(data: bytes, budget: Budget | None = None) -> object:
    """Return the object a ``data.pkl`` describes, with :class:`Tensor` for tensors.

    Args:
        budget: Counts what is held; the one that the pickle's size warrants if None.

    Raises:
        BudgetError: It takes more steps or memory than its size warrants.
        ValueError: Malformed, or not to be read safely.
    """
    try:
        return PickleMachine(_KNOWN, _storage, budget or Budget(len(data))).run(data)
    except BudgetError:
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"malformed pickle: {error}") from error


def named_tensors(root: object, default: str, budget: Budget | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor under ``root`` with its path (``model/fc.weight``); ``default`` if ``root`` is itself a tensor.

    Every container is visited once, so shared and recursive structures end.

    Args:
        root: What :func:`read_pickle` returned.
        default: Name of a bare tensor.
        budget: Counts what is held, as for :func:`read_pickle`.

    Raises:
        BudgetError: Containers are too deep in each other, or the tensors are too many.
    """
    budget = budget or Budget(0)
    seen: set[int] = set()
    levels: list[tuple[str, Iterator[tuple[object, object]]]] = [("", iter([("", root)]))]
    while levels:
        above, children = levels[-1]
        for key, value in children:
            if isinstance(value, Tensor):
                path = _path(above, key)
                budget.spend(TENSOR_BYTES + 8 * len(path))
                yield path or default, value
            elif isinstance(value, Items | tuple) and id(value) not in seen:
                seen.add(id(value))
                levels.append((_path(above, key), iter(_children(value))))
                break
        else:
            levels.pop()
        if len(levels) > MAX_DEPTH:
            raise BudgetError(f"containers are nested more than {MAX_DEPTH} deep, at {levels[-1][0][:80]!r}")


def _children(value: Items | tuple[object, ...]) -> Iterable[tuple[object, object]]:
    return value.pairs if isinstance(value, Items) else enumerate(value)


def _path(above: str, key: object) -> str:
    name = str(key)[:MAX_KEY] if isinstance(key, str | int | float | bool | None) else "?"
    return (f"{above}/{name}" if above else name)[:MAX_PATH]


def _storage(pid: object) -> Storage:
    """Return what a persistent id stands for: ("storage", type, key, device, number of elements)."""
    if not isinstance(pid, tuple) or len(pid) < 3:
        raise ValueError("a persistent id must be a tuple of at least 3")
    kind, type_, key = pid[:3]
    if kind != "storage" or not isinstance(type_, Global) or not isinstance(key, str):
        raise ValueError("a persistent id must be of kind 'storage', with a type and a key")
    return Storage(key, STORAGES.get(type_.name))


def _rebuild_tensor(storage: Storage, offset: int, size: Any, stride: Any, *rest: object) -> Tensor:
    """Do what ``torch._utils._rebuild_tensor_v2`` and its like do: (storage, offset, size, stride, requires_grad,
    hooks)."""
    return _tensor(storage, getattr(storage, "dtype", None) or "uint8", offset, size, stride)


def _rebuild_tensor_v3(
    storage: Storage, offset: int, size: Any, stride: Any, grad: bool, hooks: object, dtype: object, *rest: object
) -> Tensor:
    """Do what ``torch._utils._rebuild_tensor_v3`` does, for types that have no storage class of their own."""
    return _tensor(storage, dtype.name if isinstance(dtype, Global) else "", offset, size, stride)


def _tensor(storage: object, dtype: str, offset: int, size: Any, stride: Any) -> Tensor:
    if not isinstance(storage, Storage) or not isinstance(size, tuple) or not isinstance(stride, tuple):
        raise TypeError("a tensor must be of a storage, an offset, sizes and strides")
    if len(size) != len(stride) or len(size) > MAX_DIMENSIONS or width(dtype) is None:
        raise ValueError(f"a tensor of type {dtype} with {len(size)} sizes and {len(stride)} strides cannot be read")
    if not all(type(n) is int and 0 <= n < MAX_SIZE for n in (offset, *size, *stride)):
        raise ValueError("a tensor's offset, sizes and strides must be integers of at least 0 and below 2^62")
    return Tensor(storage, dtype, size, offset, stride)


def _rebuild_parameter(data: object, *rest: object) -> object:
    return data


def _rebuild_from_type(function: object, type_: object, args: object, *rest: object) -> object:
    """Do what ``torch._tensor._rebuild_from_type_v2`` does, for subclasses of tensors: (function, type, arguments,
    state)."""
    if not isinstance(function, Global) or not isinstance(args, tuple):
        raise TypeError("a tensor's subclass must be rebuilt by a function of a tuple")
    known = _KNOWN.get((function.module, function.name))
    if known is _rebuild_from_type:
        raise ValueError("a tensor's subclass cannot be of another subclass")
    return (known or stranger)(*args)


def _ordered(*args: object) -> Items:
    """Return an OrderedDict: an empty one, which later steps of the pickle fill."""
    return stranger(*args) if args else Ordered()


_KNOWN: dict[tuple[str, str], Callable[..., object]] = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("collections", "OrderedDict"): _ordered,
}
