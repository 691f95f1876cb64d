"""Nested states as tensors by name and a text that says how they are nested; nothing is pickled.

A state is what ``torch.save`` is usually given: dictionaries, lists and tuples of tensors, numpy arrays, numbers and
strings. Its tensors get names by their path (``optimizer/state/0/exp_avg``), the same in every step of a training, so
that each finds its base. All else is JSON, in which an object of one key stands for what JSON lacks::

    {"model": {"w": <tensor>}, "betas": (0.9, 0.999)}
    {"dict": ["model", {"dict": ["w", {"torch": "model/w"}]}, "betas", {"tuple": [0.9, 0.999]}]}

A tensor that is a view of another has its shape, strides and offset beside the name: ``"view": [[3], [1], 6]``. All
kinds of nodes are in docs/archive.md, section 9.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..errors import Corruption, GcodecError, InvalidArgument, LimitExceeded, NoMemory, Unsupported
from ..files.elements import PAIRS, name_of, width
from ..files.safetensors import CODES
from ..files.unique_names import UniqueNames
from ..tensors import as_plain_array, is_jax, is_torch
from .arrays import as_complex, as_text, item_at
from .container_keys import check_hashes, check_item, check_key, key_text
from .file_state import FilePlace
from .lazy_dict import LazyDict, Unread
from .mesh_tensors import distributed_tensor, is_distributed, local_part, mesh_facts
from .own_classes import (
    ClassEntry,
    KnownClasses,
    entry_of,
    further_attributes,
    member_names,
    member_of,
    new_dataclass,
    new_named_tuple,
    tag_of,
)
from .plain_values import FIRST_TAGS, TEXT_KINDS, number_node, plain_node, plain_value, text_dtype
from .quantized_tensors import PARTS as QUANTIZED_PARTS
from .quantized_tensors import quantized_parts, quantized_tensor
from .shared_memory import stored_views, view_of
from .sparse_tensors import PARTS, sparse_layout, sparse_parts, sparse_tensor
from .stored_types import check_flattened, numpy_facts, torch_type
from .structure_text import MAX_ITEMS, check_text

#: Containers in each other, more than any optimizer or model has.
MAX_DEPTH = 100
#: What an item takes as a Python object, and in the JSON that it is made of.
ITEM_COST = 128
#: Names of tensors are cut after so many characters.
MAX_NAME = 1 << 12
#: Under this name an archive has the text.
STRUCTURE = "__structure__"
RESERVED = (STRUCTURE, "__metadata__")
#: Versions that are read; objects that the first can describe are written in that.
VERSIONS = (1, 2)
#: The most that a number takes.
MAX_NUMBER_BYTES = 16
#: Containers of one kind of item each, by the key that stands for them.
SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}
#: Dictionaries, by the key that stands for them.
DICTIONARIES: dict[str, Callable[[dict[Any, Any]], Any]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
#: Objects of attributes, by the key that stands for them.
NAMESPACES: dict[str, type] = {"namespace": Namespace, "simple_namespace": SimpleNamespace}
#: What a defaultdict may make: these types have no effect but a new object.
FACTORIES: dict[str, Callable[[], Any]] = {
    **{kind.__name__: kind for kind in (bool, bytearray, bytes, complex, dict, float, frozenset, int, list, set)},
    **{kind.__name__: kind for kind in (str, tuple, OrderedDict, Counter, deque)},
}
#: Tags of tensors.
TENSORS = frozenset(("torch", "numpy", "scalar"))
#: Tags of what a tensor of a class of one's own may be made of.
MADE_OF = frozenset(("torch", "subclass", "sparse", "quantized", "distributed"))
#: Tags of objects of classes of one's own.
OBJECTS = ("dataclass", "named_tuple", "subclass")

#: What Python raises on a text that is no structure.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError)

Read = Callable[[str, str], Any]


class Leaf(NamedTuple):
    """A tensor or array of a state.

    Attributes:
        value: torch tensor on any device, or numpy array.
        dtype: Name of the type of its elements as they are stored.
        shape: Shape as stored.
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
        node: What stands for it in JSON; it gets the name.
        path: Its place.
        value: Tensor or array.
        memory: What arrays of the same memory have in common; None for one that is alone, and for torch tensors.
    """

    node: dict[str, Any]
    path: str
    value: Any
    memory: Any


class FlatState(NamedTuple):
    """A state, taken apart.

    Attributes:
        leaves: Its tensors by name, in the order of the state; none is copied.
        text: The structure, as JSON.
        in_views: Names of those that the structure takes views of, or pairs: each must be all of its segment.
    """

    leaves: dict[str, Leaf]
    text: bytes
    in_views: frozenset[str]


def flatten(state: Any) -> FlatState:
    """Return the tensors of a state by name, and its structure.

    Args:
        state: What :func:`gcodec.save` takes.

    Raises:
        InvalidArgument: Something else, which the error names with its place.
    """
    flattener = _Flattener()
    node = flattener.node(state, "", 0)
    flattener.name_tensors()
    content: dict[str, Any] = {"version": VERSIONS[flattener.is_later], "state": node}
    if flattener.classes:
        content["classes"] = [list(entry) for entry in flattener.classes]
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        check_text(text)
    except (ValueError, GcodecError) as error:
        raise InvalidArgument(
            f"the numbers, strings and containers of a state are too many or too long: {error}; keep them in an array"
        ) from None
    return FlatState(flattener.leaves, text, frozenset(flattener.in_views))


def rebuild(text: bytes, read: Read, max_copied_bytes: float | None = None, known: KnownClasses | None = None) -> Any:
    """Return the state of a structure.

    Args:
        text: As :func:`flatten` made it.
        read: Returns the tensor of a name as ``"torch"`` or ``"numpy"``, or, for ``"text"``, as a numpy array, whatever
            the caller prefers; called once for each name.
        max_copied_bytes: Refuse to copy more than this of what ``read`` returned: arrays in big-endian order are
            copies, one for each place in the state. No limit if None.
        known: The classes of one's own; None for those that are imported.

    Raises:
        Corruption: The text is malformed.
        Unsupported: It is of a later version, or has an object of a class that is not known.
        LimitExceeded: Copies take more than ``max_copied_bytes``, or, as NoMemory, than there is.
        GcodecError: Whatever ``read`` raises.
    """
    return of_text(text, lambda parsed: Rebuilder(parsed, read, max_copied_bytes, known).value(parsed.state, 0))


class ParsedStructure(NamedTuple):
    """A structure as JSON.

    Attributes:
        state: The node of the state.
        classes: The classes of one's own that nodes name by number.
    """

    state: Any
    classes: list[ClassEntry]


def of_text(text: bytes, use: Callable[[ParsedStructure], Any]) -> Any:
    """Return what ``use`` makes of a structure's JSON; what Python raises on a malformed one becomes Corruption, as for
    :func:`rebuild`."""
    check_text(text)
    with translated_errors():
        parsed = json.loads(text)
        if parsed["version"] not in VERSIONS:
            raise Unsupported(
                f"the structure of the state is of version {parsed['version']!r}, and this version of gcodec reads "
                f"{VERSIONS[0]} to {VERSIONS[-1]}"
            )
        return use(ParsedStructure(parsed["state"], [ClassEntry.of_json(entry) for entry in parsed.get("classes", ())]))


def tag_of_node(node: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the tag and the content of a node that is a JSON object. Raises ValueError if it is empty."""
    for item in node.items():
        return item
    raise ValueError("an object of a structure has no tag")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Make Corruption of what Python raises on a malformed structure while a state is put together; errors of reading
    tensors come out as they are."""
    try:
        yield
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


class _Flattener:
    """Takes a state apart, container by container.

    Attributes:
        leaves: The tensors by name.
        in_views: Names of those that others are views of.
        classes: The classes of one's own, in the order of their numbers.
        is_later: True if a node needs the later version of the structure.
    """

    def __init__(self) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.in_views: set[str] = set()
        self.classes: dict[ClassEntry, int] = {}
        self.is_later = False
        self._n_values = 0
        self._found: list[_Found] = []
        self._names = UniqueNames(RESERVED)
        self._entries: dict[type, ClassEntry] = {}

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
            return number_node(value)
        if is_torch(value) or (isinstance(value, np.ndarray | np.generic) and kind not in (np.str_, np.bytes_)):
            return self._tensor(value, path, depth)
        if kind is list:
            return self._nodes(value, path, depth)
        if kind in (dict, OrderedDict, Counter, defaultdict, LazyDict):
            return self._dictionary(value, path, depth)
        if kind in (tuple, set, frozenset):
            for item in () if kind is tuple else value:
                check_item(item, path or "the state")
            return {kind.__name__: self._nodes(value, path, depth)}
        return self._other(value, path, depth)

    def _later(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return a node that the first version of the structure lacks."""
        self.is_later = True
        return node

    def _nodes(self, values: Any, path: str, depth: int) -> list[Any]:
        return [self.node(item, join_path(path, n), depth + 1) for n, item in enumerate(values)]

    def _items(self, value: Any, path: str, depth: int) -> list[Any]:
        items: list[Any] = []
        for key, item in value.items():
            check_key(key, path or "the state")
            items += [self.node(key, path, 0), self.node(item, join_path(path, key_text(key)), depth + 1)]
        return items

    def _dictionary(self, value: Any, path: str, depth: int) -> Any:
        items = self._items(value, path, depth)
        if type(value) is dict:
            return {"dict": items}
        if type(value) is Counter:
            return {"counter": items}
        if type(value) is defaultdict:
            name = getattr(value.default_factory, "__name__", None)
            if value.default_factory is not None and FACTORIES.get(str(name)) is not value.default_factory:
                raise InvalidArgument(
                    f"{path or 'the state'}: a defaultdict must have one of these factories to be saved, "
                    f"{', '.join(FACTORIES)}, or none, not {value.default_factory!r:.80}; pass dict(value)"
                )
            return self._later({"defaultdict": [name, items]})
        metadata = getattr(value, "_metadata", None)  # of a module's state dict: versions, which loading looks at
        if metadata is None:
            return {"dict" if type(value) is LazyDict else "ordered": items}
        return {"state_dict": [items, self.node(metadata, join_path(path, "_metadata"), depth + 1)]}

    def _other(self, value: Any, path: str, depth: int) -> Any:
        kind, where = type(value), path or "the state"
        if (plain := plain_node(value, where)) is not None:
            return plain if FIRST_TAGS.issuperset(plain) else self._later(plain)
        if kind is deque:
            return self._later({"deque": [value.maxlen, self._nodes(value, path, depth)]})
        for name, namespace in NAMESPACES.items():
            if kind is namespace:
                return self._later({name: self._items(vars(value), path, depth)})
        if (tag := tag_of(value)) is not None:
            return self._own(tag, value, path, depth)
        if is_jax(value):
            return self._tensor(as_plain_array(value, where), path, depth)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        advice = "its state_dict(), or what it holds as tensors, numbers, strings, dictionaries and lists"
        if "jax" in sys.modules:
            advice += (
                "; for a JAX pytree, pass jax.tree.leaves(state), and rebuild it with "
                "jax.tree.unflatten(jax.tree.structure(state), loaded)"
            )
        raise InvalidArgument(f"{where}: a {name} cannot be saved; pass {advice}")

    def _own(self, tag: str, value: Any, path: str, depth: int) -> Any:
        """Return what stands for a dataclass, a named tuple or a member of an enumeration."""
        kind, where = type(value), path or "the state"
        if tag == "enum":
            names = member_names(value, where)
            tag = "enum" if isinstance(names, str) else "flag"
            return self._later({tag: [self._class(tag, kind, where), names]})
        number = self._class(tag, kind, where)
        fields = self._entries[kind].fields
        further = further_attributes(value, fields, where)
        if tag == "named_tuple":
            if further:
                extra = ", ".join(further)
                raise InvalidArgument(f"{where}: a named tuple must have no attributes but its fields, not {extra:.80}")
            values = list(value)
        else:
            missing = next((name for name in fields if not hasattr(value, name)), None)
            if missing is not None:
                raise InvalidArgument(f"{where}: the field {missing!r} of this {kind.__name__} has no value")
            values = [getattr(value, name) for name in fields]
        pairs = zip(fields, values, strict=True)
        nodes = [self.node(item, join_path(path, name), depth + 1) for name, item in pairs]
        if tag == "named_tuple":
            return self._later({tag: [number, nodes]})
        return self._later({tag: [number, nodes, self._items(further, path, depth)]})

    def _class(self, tag: str, kind: type, where: str) -> int:
        """Return the number of a class of one's own. Raises InvalidArgument for one that cannot be put together."""
        if kind not in self._entries:
            self._entries[kind] = entry_of(tag, kind, where)
        return self.classes.setdefault(self._entries[kind], len(self.classes))

    def _tensor(self, value: Any, path: str, depth: int) -> Any:
        kind = "torch" if is_torch(value) else "numpy" if isinstance(value, np.ndarray) else "scalar"
        where = path or "the state"
        if kind == "torch":
            if (layout := sparse_layout(value)) is not None:
                return self._sparse(value, layout, path, depth)
            if is_distributed(value):
                part = self.node(local_part(value), join_path(path, "local"), depth + 1)
                return self._later({"distributed": [part, *mesh_facts(value, where)]})
            if value.is_quantized:
                return self._quantized(value, path, depth)
            if check_flattened(value, where):
                return self._subclass(value, path, depth)
        dtype, memory = (torch_type(value, where), None) if kind == "torch" else numpy_facts(value, where)
        node: dict[str, Any] = {kind: ""}
        if kind != "torch" and value.dtype.kind in TEXT_KINDS and value.dtype.itemsize:
            self._later(node)["as"] = dtype
        elif PAIRS.get(dtype, dtype) not in CODES:
            raise InvalidArgument(
                f"{where}: a tensor must be of bools, strings or dates, or of a type of numbers that .safetensors has, "
                f"to be saved, not of {dtype}"
            )
        elif dtype in PAIRS:
            node["complex"] = dtype
            self.is_later |= dtype != "complex128"
        if kind == "numpy" and value.dtype.byteorder == ">":
            node["order"] = ">"
        self._found.append(_Found(node, path or "tensor", value, memory))
        return node

    def _sparse(self, value: Any, layout: str, path: str, depth: int) -> Any:
        parts = sparse_parts(value, layout, path or "the state")
        nodes = [self.node(part, join_path(path, name), depth + 1) for name, part in parts.items()]
        return self._later({"sparse": [layout, list(value.shape), layout == "coo" and value.is_coalesced(), *nodes]})

    def _quantized(self, value: Any, path: str, depth: int) -> Any:
        scheme, parts, numbers = quantized_parts(value, path or "the state")
        nodes = [self.node(part, join_path(path, name), depth + 1) for name, part in parts.items()]
        return self._later({"quantized": [scheme, nodes, *map(number_node, numbers)]})

    def _subclass(self, value: Any, path: str, depth: int) -> Any:
        """Return what stands for a tensor that is made of others."""
        kind = type(value)
        names, context = value.__tensor_flatten__()
        entry = entry_of("subclass", kind, path or "the state")._replace(fields=tuple(names))
        number = self.classes.setdefault(entry, len(self.classes))
        nodes = [self.node(getattr(value, name), join_path(path, name), depth + 1) for name in names]
        own = self.node(context, join_path(path, "context"), depth + 1)
        return self._later({"subclass": [number, nodes, own, list(value.shape), list(value.stride())]})

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
                self.leaves[name] = _leaf(stored, node)
                names.update({} if memory is None else {memory: name})
            node[kind] = name
            if view is not None:
                node["view"] = [list(view.shape), list(view.stride), view.offset]
            if view is not None or "complex" in node or "as" in node:
                self.in_views.add(name)

    def _new_name(self, path: str) -> str:
        """Return a name that no tensor has yet, and that any file can hold."""
        return self._names.new(path[:MAX_NAME].encode(errors="replace").decode())


def join_path(path: str, key: object) -> str:
    """Return the path of what is under a key, or has a number, in a container at ``path``."""
    return f"{path}/{key}" if path else str(key)


def _leaf(value: Any, node: Mapping[str, Any]) -> Leaf:
    """Return what is stored of a tensor; ``node`` says whether it is stored as pairs, or as bytes."""
    if "complex" in node:
        return Leaf(value, PAIRS[node["complex"]], (*value.shape, 2))
    if "as" in node:
        return Leaf(value, "uint8", (*value.shape, value.dtype.itemsize))
    dtype = str(value.dtype).removeprefix("torch.") if is_torch(value) else name_of(value.dtype.newbyteorder("<"))
    return Leaf(value, dtype, tuple(value.shape))


class _NotReadError(Exception):
    """Carries what reading a tensor raised past the errors of a malformed text."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Lazily(NamedTuple):
    """Says how the values of a :class:`LazyDict` are made.

    Attributes:
        once: Returns what a function makes of the node of an ``Unread``; one thread at a time, and once for each.
        shared: Names of the tensors that are in several places, and are kept for the others.
        places: Of the file that they are read from, and of those that it needs.
    """

    once: Callable[[Unread, Callable[[Any], Any]], Any]
    shared: Container[str]
    places: tuple[FilePlace, ...]


def has_tensors(node: Any) -> bool:
    """Return True if a tensor is in a node."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if not TENSORS.isdisjoint(node):
                return True
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
    return False


class Rebuilder:
    """Puts a state together again, node by node.

    Args:
        parsed: The structure.
        read: As for :func:`rebuild`.
        max_copied_bytes: As for :func:`rebuild`.
        known: As for :func:`rebuild`.
        lazily: What dictionaries with tensors in them are made by, as :class:`LazyDict`; None: they are made whole.
    """

    def __init__(
        self,
        parsed: ParsedStructure,
        read: Read,
        max_copied_bytes: float | None = None,
        known: KnownClasses | None = None,
        lazily: Lazily | None = None,
    ) -> None:
        self._entries, self._read, self._known_classes = parsed.classes, read, known or KnownClasses()
        self._lazily = lazily
        self._kinds: dict[tuple[str, int], Any] = {}
        self._known: dict[tuple[str, str], Any] = {}
        self._max_copied, self._n_copied = max_copied_bytes, 0
        self._quantized = set[str]()  # names of the integers that a quantized tensor was made of

    def value(self, node: Any, depth: int) -> Any:
        """Return what a node of the JSON stands for."""
        if depth > 2 * MAX_DEPTH:
            raise ValueError(f"containers are nested more than {2 * MAX_DEPTH} deep")
        if isinstance(node, list):
            return [self.value(item, depth + 1) for item in node]
        if not isinstance(node, dict):
            return node
        tag, content = tag_of_node(node)
        if tag in TENSORS:
            return self._tensor(tag, content, node)
        if len(node) != 1:
            raise ValueError(f"{tag!r} must stand alone")
        if tag in SEQUENCES:
            items = self.value(content, depth + 1) if tag == "tuple" else self._hashed(content, depth + 1)
            return SEQUENCES[tag](items)
        if tag in DICTIONARIES:
            made = None if tag == "counter" else self._lazy(content, depth)
            return DICTIONARIES[tag](dict(self._items(content, depth))) if made is None else made
        return self._later(tag, content, depth)

    def _later(self, tag: str, content: Any, depth: int) -> Any:
        """Return what a node of a less common tag stands for."""
        if tag == "state_dict":
            items, metadata = content
            made = self._lazy(items, depth)
            result: Any = OrderedDict(self._items(items, depth)) if made is None else made
            result._metadata = self.value(metadata, depth + 1)
            return result
        if tag == "defaultdict":
            name, items = content
            return defaultdict(None if name is None else FACTORIES[name], self._items(items, depth))
        if tag == "deque":
            longest, items = content
            if longest is not None and (type(longest) is not int or longest < len(items)):
                raise ValueError(f"a deque of at most {longest!r:.80} values cannot have {len(items)}")
            return deque(self.value(items, depth + 1), longest)
        if tag in NAMESPACES:
            result = NAMESPACES[tag]()
            vars(result).update(self._attributes(content, depth))
            return result
        if tag == "sparse":
            layout, shape, coalesced, *nodes = content
            if any(type(size) is not int for size in shape):
                raise ValueError("a sparse tensor has a shape of integers")
            return sparse_tensor(layout, shape, coalesced, self._parts(nodes, len(PARTS[layout]), depth))
        if tag == "quantized":
            scheme, nodes, *numbers = content
            parts = self._parts(nodes, len(QUANTIZED_PARTS[scheme]), depth)
            if (name := nodes[0]["torch"]) in self._quantized:  # whose memory is not that of the first
                self._count_copy(parts[0], name)
            self._quantized.add(name)
            return quantized_tensor(scheme, parts, [self.value(number, depth + 1) for number in numbers])
        if tag == "distributed":
            node, *facts = content
            if not isinstance(node, dict) or {"torch", "quantized", "subclass"}.isdisjoint(node):
                raise ValueError("a part of a distributed tensor must be a tensor")
            return distributed_tensor(self.value(node, depth + 1), facts, self._known_classes.meshes)
        if tag in OBJECTS or tag in ("enum", "flag"):
            return self._own(tag, content, depth)
        return plain_value(tag, content)

    def _parts(self, nodes: list[Any], n_parts: int, depth: int) -> list[Any]:
        """Return the plain tensors that another is made of."""
        if len(nodes) != n_parts or not all(isinstance(node, dict) and "torch" in node for node in nodes):
            raise ValueError(f"a tensor must be made of {n_parts} others")
        return [self.value(node, depth + 1) for node in nodes]

    def _own(self, tag: str, content: Any, depth: int) -> Any:
        """Return an object of a class of one's own."""
        number, *content = content
        entry, kind = self._class(tag, number)
        if tag in ("enum", "flag"):
            (names,) = content
            if isinstance(names, str) != (tag == "enum"):
                raise ValueError(f"{names!r:.80} is no name of a member")
            return member_of(kind, names)
        nodes, *rest = content
        fields = dict(zip(entry.fields, (self.value(node, depth + 1) for node in nodes), strict=True))
        if tag == "named_tuple":
            if rest:
                raise ValueError("a named tuple has fields alone")
            return new_named_tuple(kind, fields)
        if tag == "dataclass":
            (further,) = rest
            return new_dataclass(kind, fields, self._attributes(further, depth))
        context, shape, stride = rest
        if not all(isinstance(node, dict) and not MADE_OF.isdisjoint(node) for node in nodes):
            raise ValueError("a tensor must be made of tensors")
        return self._subclass(kind, fields, self.value(context, depth + 1), (shape, stride))

    def _class(self, tag: str, number: Any) -> tuple[ClassEntry, Any]:
        """Return the class of a number, and what the structure says of it; looked for once."""
        if type(number) is not int or not 0 <= number < len(self._entries):
            raise ValueError(f"there is no class {number!r:.80}")
        entry = self._entries[number]
        if (tag, number) not in self._kinds:
            self._kinds[tag, number] = self._known_classes.find(tag, entry)
        return entry, self._kinds[tag, number]

    def _subclass(self, kind: Any, parts: dict[str, Any], context: Any, places: tuple[Any, Any]) -> Any:
        """Return a tensor that is made of others; ``places``: its shape and strides."""
        if not all(map(is_torch, parts.values())):
            raise InvalidArgument(f"the state has a {kind.__qualname__}, which is no numpy array: leave out like")
        import torch

        shape, stride = (torch.Size(sizes) for sizes in places)
        try:
            made = kind.__tensor_unflatten__(parts, context, shape, tuple(stride))
        except Exception as error:  # whatever the class's function raises on what it is given
            raise Unsupported(f"a {kind.__qualname__} cannot be put together: {error}") from error
        if type(made) is not kind or made.shape != shape:
            raise Unsupported(f"__tensor_unflatten__ of {kind.__qualname__} made another tensor than was saved")
        return made

    def _attributes(self, content: list[Any], depth: int) -> dict[str, Any]:
        pairs = dict(self._items(content, depth))
        if not all(isinstance(name, str) for name in pairs):
            raise ValueError("attributes must have names")
        return pairs

    def _items(self, content: list[Any], depth: int) -> list[tuple[Any, Any]]:
        keys = self._hashed(content[::2], depth)
        return list(zip(keys, (self.value(item, depth + 1) for item in content[1::2]), strict=True))

    def _lazy(self, content: list[Any], depth: int) -> LazyDict | None:
        """Return a dictionary whose tensors, and containers of tensors, are made when they are first used; None for one
        without tensors, and where all are made whole."""
        lazily, nodes = self._lazily, content[1::2]
        if lazily is None:
            return None
        unread = [has_tensors(node) for node in nodes]
        if not any(unread):
            return None

        def read(value: Unread) -> Any:
            return lazily.once(value, lambda node: self.value(node, depth + 1))

        values = (
            Unread(node, read) if later else self.value(node, depth + 1)
            for node, later in zip(nodes, unread, strict=True)
        )
        return LazyDict(zip(self._hashed(content[::2], depth), values, strict=True), lazily.places)

    def _hashed(self, content: list[Any], depth: int) -> list[Any]:
        """Return keys or items of a set, none of which has a class of one's own that says how it is hashed."""
        for node in content:
            if not isinstance(node, str):
                _check_plain(node)
        values = [self.value(node, depth + 1) for node in content]
        check_hashes(values)
        return values

    def _tensor(self, tag: str, name: str, node: dict[str, Any]) -> Any:
        key = "torch" if tag == "torch" else "text" if "as" in node else "numpy", name
        if key not in self._known:
            try:
                value = self._read(name, key[0])
            except (GcodecError, MemoryError):
                raise
            except Exception as error:
                raise _NotReadError(error) from error
            if "complex" in node:
                value = as_complex(value, node["complex"])
            elif "as" in node:
                value = as_text(value, text_dtype(node["as"]))
            if self._lazily is None or name in self._lazily.shared:  # else it ends with the dictionary's item
                self._known[key] = value
        else:
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

    def _count_copy(self, value: Any, name: str) -> None:
        """Raises LimitExceeded if a copy of ``value`` is one too many. A view may have far more values than memory."""
        self._n_copied += value.nbytes
        if self._max_copied is not None and self._n_copied > self._max_copied:
            raise LimitExceeded(
                f"tensor {name!r}: with its copy of {value.nbytes} bytes, copies of tensors take "
                f"{self._n_copied} bytes, above the {self._max_copied} that the limit leaves for them"
            )


def _check_plain(node: Any) -> None:
    """Raise ValueError for the node of a key, or of an item of a set, whose class may say how it is hashed."""
    nodes = [node]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if any(tag in OBJECTS for tag in node):
                raise ValueError("a key, or an item of a set, must have no class of its own but an enumeration's")
            nodes.extend(node.values())
        elif isinstance(node, list):
            nodes.extend(node)
