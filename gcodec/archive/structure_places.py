"""The tensors of a structure by their paths, without reading any: their names, and the parts that a caller wants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ..errors import LimitExceeded
from ..files.elements import PAIRS
from ..files.file_plan import TensorView
from ..files.unique_names import UniqueNames
from .own_classes import ClassEntry
from .plain_values import plain_value, text_dtype
from .quantized_tensors import PARTS as QUANTIZED_PARTS
from .shared_memory import check_view
from .sparse_tensors import PARTS
from .structure import (
    DICTIONARIES,
    FACTORIES,
    MAX_DEPTH,
    MAX_NAME,
    NAMESPACES,
    OBJECTS,
    SEQUENCES,
    TENSORS,
    ParsedStructure,
    join_path,
    of_text,
    tag_of_node,
)

#: Bound on the names made for tied tensors: their characters, and as many again for each as it takes beside them.
MAX_MADE_NAMES, NAME_COST = 1 << 26, 64


class TensorPlace(NamedTuple):
    """A tensor of a state, as a view of what is stored.

    Attributes:
        view: Its name, type and place. Tied tensors, and views of another, have names by their own paths.
        kind: ``"torch"`` or ``"numpy"``, as it was saved.
    """

    view: TensorView
    kind: str


def tensor_places(
    text: bytes, stored: Mapping[str, TensorView], check_names: Callable[[int, str], None] = lambda size, what: None
) -> list[TensorPlace]:
    """Return all tensors of a structure, without reading any, under names that are unique.

    Args:
        text: As :func:`gcodec.archive.structure.flatten` made it.
        stored: The tensors that are stored, by name, each all of a segment.
        check_names: Raises LimitExceeded if so many bytes are too many for the names of tied tensors.

    Raises:
        Corruption, Unsupported: As for :func:`gcodec.archive.structure.rebuild`; but classes need not be known.
        LimitExceeded: So many tensors are tied, or in such deep containers, that their names take too much memory.
    """
    return of_text(text, partial(_tensor_places, stored=stored, check_names=check_names))


def _tensor_places(
    parsed: ParsedStructure, stored: Mapping[str, TensorView], check_names: Callable[[int, str], None]
) -> list[TensorPlace]:
    places: list[TensorPlace] = []
    first: set[str] = set()
    made, n_made = UniqueNames(stored, first), 0
    for path, node in leaves_of(parsed):
        place = _place_of(node, stored)
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
        places.append(place._replace(view=place.view._replace(name=name)))
    return places


def _place_of(node: Mapping[str, Any], stored: Mapping[str, TensorView]) -> TensorPlace:
    """Return the place of the tensor that a node stands for. Raises ValueError for one that is not there."""
    tag, name = next(iter(node.items()))
    view = stored.get(name)
    if view is None:
        raise ValueError(f"the file lacks the tensor {name!r}")
    if (view.stride is not None or view.offset) and not {"complex", "as", "view"}.isdisjoint(node):
        raise ValueError(f"{name!r} must be all of its segment, for others are views of it")
    if "complex" in node:
        if PAIRS.get(node["complex"]) != view.dtype or view.shape[-1:] != (2,):
            raise ValueError(f"{node['complex']!r} is no type of pairs")
        view = view._replace(dtype=node["complex"], shape=view.shape[:-1])
    if "as" in node:
        dtype = text_dtype(node["as"])
        if view.dtype != "uint8" or view.shape[-1:] != (dtype.itemsize,):
            raise ValueError(f"values of {dtype} have {dtype.itemsize} bytes each, not {view.shape[-1:]}")
        view = view._replace(dtype=node["as"], shape=view.shape[:-1])
    if "view" in node:
        shape, stride, offset = check_view(math.prod(view.shape), *node["view"])
        view = view._replace(shape=shape, stride=stride, offset=offset)
    return TensorPlace(view, "torch" if tag == "torch" else "numpy")


def leaves_of(parsed: ParsedStructure) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the nodes of the tensors of a structure, each with its path.

    Raises:
        ValueError, TypeError, LookupError: The structure is malformed.
    """
    levels = [iter([("", parsed.state)])]
    while levels:
        path, node = next(levels[-1], ("", _END))
        if node is _END:
            levels.pop()
        elif isinstance(node, dict) and tag_of_node(node)[0] in TENSORS:
            yield path, node
        elif isinstance(node, list | dict):
            if len(levels) > 2 * MAX_DEPTH:
                raise ValueError(f"containers are nested more than {2 * MAX_DEPTH} deep")
            levels.append(children_of(node, path, parsed.classes))


_END = object()


def children_of(node: Any, path: str, classes: list[ClassEntry]) -> Iterator[tuple[str, Any]]:
    """Yield the nodes in a container with their paths, cut as the names of stored tensors are; none for a node without
    others in it.

    Raises:
        ValueError, TypeError, LookupError: The node is malformed.
    """
    for key, child in _named(node, classes):
        yield join_path(path, key)[:MAX_NAME], child


def _named(node: Any, classes: list[ClassEntry]) -> Iterator[tuple[object, Any]]:
    if isinstance(node, list):
        yield from enumerate(node)
        return
    if not isinstance(node, dict):
        return
    ((tag, content),) = node.items()
    if tag in SEQUENCES:
        yield from enumerate(content)
    elif tag in DICTIONARIES or tag in NAMESPACES:
        yield from _pairs(content, classes)
    elif tag in ("state_dict", "defaultdict"):
        first, second = content
        yield from _pairs(first if tag == "state_dict" else second, classes)
        if tag == "state_dict":
            yield "_metadata", second
        elif first is not None and first not in FACTORIES:
            raise ValueError(f"{first!r:.80} is no factory")
    elif tag == "deque":
        yield from enumerate(content[1])
    elif tag == "sparse":
        yield from zip(PARTS[content[0]], content[3:], strict=True)
    elif tag == "quantized":
        yield from zip(QUANTIZED_PARTS[content[0]], content[1], strict=True)
    elif tag == "distributed":
        yield "local", content[0]
    elif tag in OBJECTS:
        number, nodes, *rest = content
        yield from zip(classes[number].fields, nodes, strict=True)
        if tag == "dataclass":
            yield from _pairs(rest[0], classes)
        elif tag == "subclass":
            yield "context", rest[0]
    elif tag not in ("enum", "flag"):
        plain_value(tag, content)


def _pairs(content: list[Any], classes: list[ClassEntry]) -> Iterator[tuple[object, Any]]:
    if len(content) % 2:
        raise ValueError("a key lacks a value")
    for key, child in zip(content[::2], content[1::2], strict=True):
        yield _key_text(key, classes), child


def _key_text(node: Any, classes: list[ClassEntry]) -> str:
    """Return a key as it stands in paths, as :func:`gcodec.archive.container_keys.key_text` makes it."""
    if not isinstance(node, dict | list):
        return str(node)
    if isinstance(node, list):
        raise TypeError("a list is no key")
    ((tag, content),) = node.items()
    if tag in ("enum", "flag"):
        number, names = content
        kind = classes[number].name.rpartition(".")[2]
        return f"{kind}.{names if isinstance(names, str) else '|'.join(names)}"
    if tag in SEQUENCES:
        return str(SEQUENCES[tag]([_plain_key(part) for part in content]))
    value = plain_value(tag, content)
    return repr(value) if isinstance(value, bytes) else str(value)


def _plain_key(node: Any) -> Any:
    """Return a part of a key that is a tuple. Raises ValueError for one that is none."""
    if isinstance(node, list):
        raise TypeError("a list is no key")
    if isinstance(node, dict):
        ((tag, content),) = node.items()
        return plain_value(tag, content)
    return node
