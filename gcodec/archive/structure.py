"""Nested states as tensors by name and a text that says how they are nested; nothing is pickled.

A state is what ``torch.save`` is usually given: dictionaries, lists and tuples of tensors, numpy arrays, numbers and
strings. Its tensors get names by their path (``optimizer/state/0/exp_avg``), the same in every step of a training, so
that each finds its base. All else is JSON, in which an object of one key stands for what JSON lacks::

    {"model": {"w": <tensor>}, "betas": (0.9, 0.999)}
    {"dict": ["model", {"dict": ["w", {"torch": "model/w"}]}, "betas", {"tuple": [0.9, 0.999]}]}

A tensor that is a view of another has its shape, strides and offset beside the name: ``"view": [[3], [1], 6]``.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..errors import Corruption, GcodecError, InvalidArgument, LimitExceeded, NoMemory, Unsupported, named_device
from ..files.elements import name_of, width
from ..files.file_plan import TensorView
from ..files.safetensors import CODES
from ..tensors import as_plain_array, is_jax, is_torch
from .arrays import as_complex, item_at
from .container_keys import check_hashes, check_key
from .shared_memory import check_view, stored_views, view_of
from .stored_types import numpy_facts, torch_type
from .structure_text import MAX_ITEMS, check_text
from .unique_names import UniqueNames

#: Containers in each other, more than any optimizer or model has.
MAX_DEPTH = 100
#: What an item takes as a Python object, and in the JSON that it is made of.
ITEM_COST = 128
#: Names of tensors are cut after so many characters.
MAX_NAME = 1 << 12
#: Bound on the names made for tied tensors: their characters, and as many again for each as it takes beside them.
MAX_MADE_NAMES, NAME_COST = 1 << 26, 64
#: Under this name an archive has the text.
STRUCTURE = "__structure__"
RESERVED = (STRUCTURE, "__metadata__")
VERSION = 1
#: The most that a number takes.
MAX_NUMBER_BYTES = 16
#: Complex numbers of 16 bytes, which .safetensors lacks, are stored as pairs of float64.
PAIRS = {"complex128": "float64"}
#: Containers of one kind of item each, by the key that stands for them.
SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}

#: What Python raises on a text that is no structure.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)

Read = Callable[[str, str], Any]


class Leaf(NamedTuple):
    """A tensor or array of a state.

    Attributes:
        value: torch tensor on any device, or numpy array.
        dtype: name of the type of its elements as they are stored.
        shape: shape as stored.
    """

    value: Any
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * (width(self.dtype) or 1)


class _Found(NamedTuple):
    """A tensor or array in a state, which has no name yet.

    Attributes:
        node: what stands for it in JSON; it gets the name.
        path: its place.
        value: tensor or array.
        memory: what arrays of the same memory have in common; None for one that is alone, and for torch tensors.
    """

    node: dict[str, Any]
    path: str
    value: Any
    memory: Any


class FlatState(NamedTuple):
    """A state, taken apart.

    Attributes:
        leaves: its tensors by name, in the order of the state; none is copied.
        text: the structure, as JSON.
        in_views: names of those that the structure takes views of, or pairs: each must be all of its segment.
    """

    leaves: dict[str, Leaf]
    text: bytes
    in_views: frozenset[str]


def flatten(state: Any) -> FlatState:
    """Return the tensors of a state by name, and its structure.

    Args:
        state: dictionaries (also ``OrderedDict`` and ``Counter``), lists, tuples and sets, in each other, of torch
            tensors, numpy arrays and numbers, Python numbers, strings, bytes, bools and None.

    Raises:
        InvalidArgument: something else, which the error names with its place.
    """
    flattener = _Flattener()
    node = flattener.node(state, "", 0)
    flattener.name_tensors()
    try:
        text = json.dumps({"version": VERSION, "state": node}, separators=(",", ":"), allow_nan=False).encode()
        check_text(text)
    except (ValueError, GcodecError) as error:
        raise InvalidArgument(
            f"the numbers, strings and containers of a state are too many or too long: {error}; keep them in an array"
        ) from None
    return FlatState(flattener.leaves, text, frozenset(flattener.in_views))


def rebuild(text: bytes, read: Read, max_copied_bytes: int | None = None) -> Any:
    """Return the state of a structure.

    Args:
        text: as :func:`flatten` made it.
        read: returns the tensor of a name as ``"torch"`` or ``"numpy"``; called once for each name.
        max_copied_bytes: refuse to copy more than this of what ``read`` returned: arrays in big-endian order are
            copies, one for each place in the state. No limit if None.

    Raises:
        Corruption: the text is malformed.
        Unsupported: it is of a later version.
        LimitExceeded: copies take more than ``max_copied_bytes``, or, as NoMemory, than there is.
        GcodecError: whatever ``read`` raises.
    """
    return _of_text(text, _Rebuilder(read, max_copied_bytes))


def _of_text(text: bytes, rebuilder: _Rebuilder) -> Any:
    check_text(text)
    try:
        parsed = json.loads(text)
        if parsed["version"] != VERSION:
            raise Unsupported(f"the structure of the state is of version {parsed['version']!r}, not {VERSION}")
        return rebuilder.value(parsed["state"], 0)
    except _NotReadError as error:  # no fault of the text, whatever it is: a device without memory, a store's own error
        raise error.cause from error.cause.__cause__
    except GcodecError:
        raise
    except ImportError as error:
        raise Unsupported(
            "the state holds torch objects, but torch is not installed: pip install torch, or "
            f"load it with like='numpy' ({error})"
        ) from error
    except MemoryError as error:
        raise NoMemory(f"there is no memory for the state: {error}") from None
    except _MALFORMED as error:
        raise Corruption(f"the structure of the state is malformed: {error}") from error


class TensorPlace(NamedTuple):
    """A tensor of a state, as a view of what is stored.

    Attributes:
        view: its name, type and place. Tied tensors, and views of another, have names by their own paths.
        kind: ``"torch"`` or ``"numpy"``, as it was saved.
    """

    view: TensorView
    kind: str


def tensor_places(
    text: bytes, stored: Mapping[str, TensorView], check_names: Callable[[int, str], None] = lambda size, what: None
) -> list[TensorPlace]:
    """Return all tensors of a structure, without reading any, under names that are unique.

    Args:
        text: as :func:`flatten` made it.
        stored: the tensors that are stored, by name, each all of a segment.
        check_names: raises LimitExceeded if so many bytes are too many for the names of tied tensors.

    Raises:
        Corruption, Unsupported: as for :func:`rebuild`.
        LimitExceeded: so many tensors are tied, or in such deep containers, that their names take too much memory.
    """
    places: list[TensorPlace] = []
    first: set[str] = set()
    made, n_made = UniqueNames(stored, first), 0
    for path, place in _places_in(_of_text(text, _PlaceFinder(stored)), ""):
        name = place.view.name
        if name in first:
            name = made.new(path or "tensor")
            # A text compresses to a thousandth where tensors are alike, and each may have all of a long path.
            n_made += len(name) + NAME_COST
            check_names(n_made, "a list of the names of tied tensors")
            if n_made > MAX_MADE_NAMES:
                raise LimitExceeded(
                    f"the names of tensors that share memory with others, such as {name[:80]!r}, take "
                    f"more than {MAX_MADE_NAMES} bytes; gcodec.load reads the state without them"
                )
        else:
            first.add(name)
        places.append(place._replace(view=replace(place.view, name=name)))
    return places


def _places_in(value: Any, path: str) -> Iterator[tuple[str, TensorPlace]]:
    """Yield the places in a state, each with its path, cut as the names of stored tensors are."""
    if isinstance(value, TensorPlace):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _places_in(item, _join(path, key)[:MAX_NAME])
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield from _places_in(item, _join(path, number)[:MAX_NAME])


class _Flattener:
    """Takes a state apart, container by container."""

    def __init__(self) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.in_views: set[str] = set()
        self._n_values = 0
        self._found: list[_Found] = []
        self._names = UniqueNames(RESERVED)

    def node(self, value: Any, path: str, depth: int) -> Any:
        """Return what stands for a value in JSON; ``path`` is its place."""
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"{path[:80]} ...: containers are nested more than {MAX_DEPTH} deep")
        self._n_values += 1
        if self._n_values > MAX_ITEMS:
            raise InvalidArgument(
                f"{path[:80]}: more than {MAX_ITEMS} numbers, strings and containers are in the "
                "state; keep them in an array"
            )
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if is_torch(value) or isinstance(value, np.ndarray | np.generic):
            return self._tensor(value, path)
        if kind is list:
            return [self.node(item, _join(path, n), depth + 1) for n, item in enumerate(value)]
        if kind in (dict, OrderedDict, Counter):
            return self._dictionary(value, path, depth)
        if kind in (tuple, set, frozenset):
            return {kind.__name__: [self.node(item, _join(path, n), depth + 1) for n, item in enumerate(value)]}
        return self._other(value, path)

    def _dictionary(self, value: Any, path: str, depth: int) -> Any:
        items: list[Any] = []
        for key, item in value.items():
            items += [self._key(key, path), self.node(item, _join(path, key), depth + 1)]
        if type(value) is dict:
            return {"dict": items}
        if type(value) is Counter:
            return {"counter": items}
        metadata = getattr(value, "_metadata", None)  # of a module's state dict: versions, which loading looks at
        if metadata is None:
            return {"ordered": items}
        return {"state_dict": [items, self.node(metadata, _join(path, "_metadata"), depth + 1)]}

    def _key(self, key: Any, path: str) -> Any:
        check_key(key, path or "the state")
        return self.node(key, path, 0)

    def _other(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if kind is complex:
            return {"complex": [self.node(value.real, path, 0), self.node(value.imag, path, 0)]}
        if is_jax(value):
            return self._tensor(as_plain_array(value, path or "the state"), path)
        if kind.__module__ == "torch" and kind.__name__ in ("Size", "dtype", "device"):
            return {"Size": list(value)} if kind.__name__ == "Size" else {kind.__name__: str(value)}
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        advice = "its state_dict(), or what it holds as tensors, numbers, strings, dictionaries and lists"
        if "jax" in sys.modules:
            advice += (
                "; for a JAX pytree, pass jax.tree.leaves(state), and rebuild it with "
                "jax.tree.unflatten(jax.tree.structure(state), loaded)"
            )
        raise InvalidArgument(f"{path or 'the state'}: a {name} cannot be saved; pass {advice}")

    def _tensor(self, value: Any, path: str) -> Any:
        kind = "torch" if is_torch(value) else "numpy" if isinstance(value, np.ndarray) else "scalar"
        where = path or "the state"
        dtype, memory = (torch_type(value, where), None) if kind == "torch" else numpy_facts(value, where)
        stored = PAIRS.get(dtype, dtype)
        if stored not in CODES:
            raise InvalidArgument(
                f"{where}: a tensor must be of bools, or of a type of numbers that .safetensors has, "
                f"to be saved, not of {dtype}"
            )
        node: dict[str, Any] = {kind: ""}
        if stored != dtype:
            node["complex"] = dtype
        if kind == "numpy" and value.dtype.byteorder == ">":
            node["order"] = ">"
        self._found.append(_Found(node, path or "tensor", value, memory))
        return node

    def name_tensors(self) -> None:
        """Names the tensors that were found, those of the same memory as one, and adds what is stored of them."""
        views = iter(stored_views([found.value for found in self._found if "torch" in found.node]))
        names: dict[Any, str] = {}
        for node, path, value, memory in self._found:
            kind, stored, view = next(iter(node)), value, None
            if kind == "torch":
                stored, view = next(views)
                memory = id(stored)
            name = None if memory is None else names.get(memory)
            if name is None:
                name = self._new_name(path)
                self.leaves[name] = _leaf(stored, node.get("complex"))
                names.update({} if memory is None else {memory: name})
            node[kind] = name
            if view is not None:
                node["view"] = [list(view.shape), list(view.stride), view.offset]
            if view is not None or "complex" in node:
                self.in_views.add(name)

    def _new_name(self, path: str) -> str:
        """Return a name that no tensor has yet, and that any file can hold."""
        return self._names.new(path[:MAX_NAME].encode(errors="replace").decode())


def _join(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _leaf(value: Any, pairs: str | None) -> Leaf:
    """Return what is stored of a tensor; ``pairs``: its type, if it is stored as pairs of another."""
    if pairs is not None:
        return Leaf(value, PAIRS[pairs], (*value.shape, 2))
    dtype = str(value.dtype).removeprefix("torch.") if is_torch(value) else name_of(value.dtype.newbyteorder("<"))
    return Leaf(value, dtype, tuple(value.shape))


class _NotReadError(Exception):
    """Carries what reading a tensor raised past the errors of a malformed text."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Rebuilder:
    """Puts a state together again, node by node."""

    def __init__(self, read: Read, max_copied_bytes: int | None = None) -> None:
        self._read = read
        self._known: dict[tuple[str, str], Any] = {}
        self._max_copied, self._n_copied = max_copied_bytes, 0

    def value(self, node: Any, depth: int) -> Any:
        """Return what a node of the JSON stands for."""
        if depth > 2 * MAX_DEPTH:
            raise ValueError(f"containers are nested more than {2 * MAX_DEPTH} deep")
        if isinstance(node, list):
            return [self.value(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        tag, content = next(iter(node.items()))
        if tag in ("torch", "numpy", "scalar"):
            return self._tensor(tag, content, node)
        if len(node) != 1:
            raise ValueError(f"{tag!r} must stand alone")
        if tag in SEQUENCES:
            items = self.value(content, depth + 1)
            if tag != "tuple":
                check_hashes(items)
            return SEQUENCES[tag](items)
        if tag in ("dict", "ordered", "counter"):
            make: Any = {"dict": dict, "ordered": OrderedDict, "counter": Counter}[tag]
            return make(dict(self._items(content, depth)))
        if tag == "state_dict":
            items, metadata = content
            result: Any = OrderedDict(self._items(items, depth))
            result._metadata = self.value(metadata, depth + 1)
            return result
        return _plain(tag, content, self.value)

    def _items(self, content: list[Any], depth: int) -> list[tuple[Any, Any]]:
        items = [
            (self.value(key, depth + 1), self.value(item, depth + 1))
            for key, item in zip(content[::2], content[1::2], strict=True)
        ]
        check_hashes([key for key, _ in items])
        return items

    def _tensor(self, tag: str, name: str, node: dict[str, Any]) -> Any:
        key = "torch" if tag == "torch" else "numpy", name
        if key not in self._known:
            try:
                value = self._read(name, key[0])
            except (GcodecError, MemoryError):
                raise
            except Exception as error:
                raise _NotReadError(error) from error
            if "complex" in node:
                if node["complex"] not in PAIRS:
                    raise ValueError(f"{node['complex']!r} is no type of pairs")
                value = as_complex(value)
            self._known[key] = value
        value = self._known[key]
        if "view" in node:
            value = view_of(value, *node["view"])
        if node.get("order") == ">" and isinstance(value, np.ndarray):
            self._count_copy(value, name)
            value = value.astype(value.dtype.newbyteorder(">"))
        if tag != "scalar" or not isinstance(value, np.ndarray):
            return value
        if value.itemsize > MAX_NUMBER_BYTES:  # no number, but a text of any length
            self._count_copy(value, name)
        return item_at((), value, name)

    def _count_copy(self, value: np.ndarray, name: str) -> None:
        """Raises LimitExceeded if a copy of ``value`` is one too many. A view may have far more values than memory."""
        self._n_copied += value.nbytes
        if self._max_copied is not None and self._n_copied > self._max_copied:
            raise LimitExceeded(
                f"tensor {name!r}: with its copy of {value.nbytes} bytes, copies of tensors take "
                f"{self._n_copied} bytes, above the {self._max_copied} that the limit leaves for them"
            )


class _PlaceFinder(_Rebuilder):
    """Puts a state together of the places of tensors, in place of tensors."""

    def __init__(self, stored: Mapping[str, TensorView]) -> None:
        super().__init__(lambda name, kind: None)
        self._stored = stored

    def _tensor(self, tag: str, name: str, node: dict[str, Any]) -> Any:
        view = self._stored.get(name)
        if view is None:
            raise ValueError(f"the file lacks the tensor {name!r}")
        if (view.stride is not None or view.offset) and ("complex" in node or "view" in node):
            raise ValueError(f"{name!r} must be all of its segment, for others are views of it")
        if "complex" in node:
            if PAIRS.get(node["complex"]) != view.dtype or view.shape[-1:] != (2,):
                raise ValueError(f"{node['complex']!r} is no type of pairs")
            view = replace(view, dtype=node["complex"], shape=view.shape[:-1])
        if "view" in node:
            shape, stride, offset = check_view(math.prod(view.shape), *node["view"])
            view = replace(view, shape=shape, stride=stride, offset=offset)
        return TensorPlace(view, "torch" if tag == "torch" else "numpy")


def _plain(tag: str, content: Any, value: Callable[[Any, int], Any]) -> Any:
    """Return what a tag without containers stands for."""
    if tag == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "bytes":
        return base64.b64decode(content, validate=True)
    if tag == "complex":
        real, imaginary = (value(part, MAX_DEPTH) for part in content)
        return complex(real, imaginary)
    if tag in ("Size", "dtype", "device"):
        import torch

        if tag != "dtype":
            return torch.Size(content) if tag == "Size" else named_device(content)
        found = vars(torch).get(content.removeprefix("torch."))
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{content!r} is no {tag}")
        return found
    raise ValueError(f"unknown tag {tag!r}")
