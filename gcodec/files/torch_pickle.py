"""The pickle in a ``.pt`` file: which tensors it describes, and on which storages. Nothing in it is executed.

The pickle runs on inert stand-ins: every class or function it names, except a few that rebuild tensors and
containers, is a placeholder that takes any arguments and does nothing. That is stricter than torch's
``weights_only=True``, needs no torch, and still finds the tensors inside objects of unknown classes.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPES
from .elements import width

MAX_TENSORS = 1 << 22
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


class Inert:
    """An object that keeps its fields: a state that the pickle would set is dropped."""

    def __setstate__(self, state: object) -> None:
        pass


@dataclass(frozen=True)
class Storage(Inert):
    """A storage.

    Attributes:
        key: name of its member in the zip.
        dtype: type of its elements; None if it is untyped.
    """

    key: str
    dtype: str | None


@dataclass(frozen=True)
class Tensor(Inert):
    """A tensor on a storage.

    Attributes:
        storage: the storage.
        dtype: type of its elements.
        shape: shape of the tensor.
        offset: first element, counted in elements.
        stride: steps in elements.
    """

    storage: Storage
    dtype: str
    shape: tuple[int, ...]
    offset: int
    stride: tuple[int, ...]


class Stranger:
    """Stands for an object of any class, or the result of any function: it holds what it was given, with keys."""

    held: list[tuple[object, object]]

    def __new__(cls, *args: object, **kwargs: object) -> Stranger:
        self = super().__new__(cls)
        self.held = [*enumerate(args), *kwargs.items()]
        return self

    def __call__(self, *args: object, **kwargs: object) -> Stranger:
        return Stranger(*args, **kwargs)

    def __setstate__(self, state: object) -> None:
        self.held += state.items() if isinstance(state, dict) else [("state", state)]

    def append(self, value: object) -> None:
        """Keep an item, as a pickle adds it to a list."""
        self.held.append((len(self.held), value))

    def extend(self, values: Any) -> None:
        """Keep several items, as a pickle adds them to a list."""
        for value in values:
            self.append(value)

    def __setitem__(self, key: object, value: object) -> None:
        self.held.append((key, value))


class Ordered(OrderedDict[Any, Any]):
    """``collections.OrderedDict``, without the attributes a state dict hangs on it."""

    def __setstate__(self, state: object) -> None:
        pass


def read_pickle(data: bytes) -> Any:
    """Return the object a ``data.pkl`` describes, with :class:`Tensor` for tensors and :class:`Stranger` for the
    unknown.

    Raises:
        ValueError: malformed, or not to be read safely.
    """
    try:
        _check_opcodes(data)
        return _Reader(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"malformed pickle: {error}") from error
    except (AttributeError, EOFError, OverflowError, RecursionError, MemoryError, ImportError) as error:
        raise ValueError(f"malformed pickle: {error}") from error


def named_tensors(root: object, default: str) -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor under ``root`` with its path (``model/fc.weight``); ``default`` if ``root`` is itself a tensor.

    Every container is visited once, so shared and recursive structures end.

    Raises:
        ValueError: an unreasonable number of tensors.
    """
    seen: set[int] = set()
    count = 0
    stack: list[tuple[str, object]] = [("", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Tensor):
            count += 1
            if count > MAX_TENSORS:
                raise ValueError(f"there are more than {MAX_TENSORS} tensors")
            yield path or default, value
        elif id(value) not in seen and (children := list(_children(value))):
            seen.add(id(value))
            stack += [(f"{path}/{key}" if path else key, child) for key, child in reversed(children)]


def _children(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((_key(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(index), child) for index, child in enumerate(value))
    elif isinstance(value, Stranger):
        yield from ((_key(key), child) for key, child in value.held)


def _key(key: object) -> str:
    return str(key)[:1024] if isinstance(key, str | int | float | bool | None) else "?"


def _check_opcodes(data: bytes) -> None:
    """Refuses what would make the unpickler allocate more than the data warrants, or run for long."""
    for opcode, argument, _ in pickletools.genops(data):
        memo = opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
        if memo and not 0 <= int(str(argument)) <= len(data):
            raise ValueError(f"memo slot {argument} is out of range")
        if opcode.name in ("EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "INST", "OBJ"):
            raise ValueError(f"opcode {opcode.name} is not allowed")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _KNOWN.get((module, name)) or type(name, (Stranger,), {"__module__": module})

    def persistent_load(self, pid: Any) -> Storage:
        kind, type_, key = pid[0], pid[1], pid[2]
        if kind != "storage" or not isinstance(type_, type) or not isinstance(key, str):
            raise ValueError(f"a persistent id must be of kind 'storage', not {kind!r}")
        return Storage(key, STORAGES.get(type_.__name__))


def _rebuild_tensor(storage: Storage, offset: int, size: Any, stride: Any, *rest: object) -> Tensor:
    """Do what ``torch._utils._rebuild_tensor_v2`` and its like do: (storage, offset, size, stride, requires_grad,
    hooks)."""
    return _tensor(storage, getattr(storage, "dtype", None) or "uint8", offset, size, stride)


def _rebuild_tensor_v3(
    storage: Storage, offset: int, size: Any, stride: Any, grad: bool, hooks: object, dtype: type, *rest: object
) -> Tensor:
    """Do what ``torch._utils._rebuild_tensor_v3`` does, for types that have no storage class of their own."""
    return _tensor(storage, dtype.__name__, offset, size, stride)


def _tensor(storage: object, dtype: str, offset: int, size: Any, stride: Any) -> Tensor:
    numbers = (offset, *size, *stride)
    if not isinstance(storage, Storage) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        raise ValueError("a tensor's offset, sizes and strides must be integers of at least 0")
    if len(size) != len(stride) or len(size) > 64 or width(dtype) is None:
        raise ValueError(f"a tensor of type {dtype} with {len(size)} sizes and {len(stride)} strides cannot be read")
    return Tensor(storage, dtype, tuple(size), offset, tuple(stride))


def _rebuild_parameter(data: object, *rest: object) -> object:
    return data


def _rebuild_from_type(function: Callable[..., object], type_: object, args: Any, *rest: object) -> object:
    """Do what ``torch._tensor._rebuild_from_type_v2`` does, for subclasses of tensors: (function, type, arguments,
    state)."""
    return function(*args)


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
    ("collections", "OrderedDict"): Ordered,
}
