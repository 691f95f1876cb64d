"""A digest of all that a kernel is compiled from, so that a cache holds what would be compiled now, and no edit that
changes no code compiles anything again.

What a kernel is compiled from is a graph: the bytecode of its function, the constants, functions and classes that the
bytecode names, and what those name in turn. Intrinsics are part of it, with the Python functions that write their
instructions. Bytecode has no comments, no docstring and no numbers of lines. The digest is over the graph as it is
reached from the kernel, each thing once:

    kernel ── step ── intrinsic ── its code ── _emit ── ir (a library: by its name)
       └───── GROUP = 64            └── HAS_AVX2 = True
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import Enum
from functools import partial
from opcode import opmap
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_128

#: Whose code counts by its name: the stamp of a cache has the versions of Python and numba, and kernels call no others.
_LIBRARIES = frozenset({"numba", "llvmlite", "numpy", "xxhash", *sys.stdlib_module_names}) - {"__main__"}
_LOAD_CONST = opmap["LOAD_CONST"]
_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes, np.generic, np.dtype)


class UnknownPartError(Exception):
    """Raised for an object of a kind that this module does not know."""


class _Part(NamedTuple):
    """Describes one thing that a kernel is compiled from.

    Attributes:
        thing: The thing, which must stay where it is: it is known by its address.
        text: All about it but for ``named``.
        named: What it names, in a fixed order.
    """

    thing: Any
    text: str
    named: tuple[Any, ...]


_parts: dict[int, _Part] = {}


def source_digest(function: Any) -> str:
    """Return a digest of all that a function of Python's may be compiled from, in hexadecimal digits. Raises
    UnknownPartError."""
    places, order, digest = {id(function): 0}, [function], xxh3_128()
    for thing in order:  # which grows meanwhile
        part = _parts.get(id(thing))
        if part is None:
            part = _parts[id(thing)] = _part_of(thing)
        for named in part.named:
            # It returns the place that the thing had already, or the one that it has just been given: only then is it
            # new.
            if places.setdefault(id(named), len(order)) == len(order):
                order.append(named)
        # What a thing names stands as numbers of places, which are the order in which things were met: the same in
        # every process, unlike addresses, and finite where things name each other in circles.
        digest.update(f"{part.text} {[places[id(named)] for named in part.named]}\n".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _part_of(thing: Any) -> _Part:
    """Return what is known of a thing. Raises UnknownPartError."""
    if isinstance(thing, _PLAIN):
        return _Part(thing, f"{type(thing).__name__} {thing!r}", ())
    if isinstance(thing, FunctionType):
        return _function(thing)
    if isinstance(thing, tuple | list):
        return _Part(thing, _name_of(type(thing)), (*thing,))
    if isinstance(thing, dict):
        return _Part(thing, "dict", tuple(item for pair in thing.items() for item in pair))
    # Sorted, for their order is that of hashes, which are others in each process for strings.
    if isinstance(thing, set | frozenset):
        return _Part(thing, f"set {sorted(map(repr, thing))}", ())
    if isinstance(thing, np.ndarray):
        return _Part(thing, f"array {thing.dtype} {thing.shape} {thing.tobytes().hex()}", ())
    if isinstance(thing, Enum | ModuleType | BuiltinFunctionType | np.ufunc):
        return _Part(thing, f"{type(thing).__name__} {thing if isinstance(thing, Enum) else thing.__name__}", ())
    if isinstance(thing, type):
        return _class(thing)
    return _wrapped(thing)


def _wrapped(thing: Any) -> _Part:
    """Return what is known of a kernel, an intrinsic, a decorated function or an object of a library's."""
    if hasattr(thing, "py_func"):  # numba's dispatcher
        return _Part(thing, f"kernel {sorted(thing.targetoptions.items())}", (thing.py_func,))
    if hasattr(thing, "_defn"):  # numba's intrinsic
        return _Part(thing, "intrinsic", (thing._defn,))
    if isinstance(thing, classmethod | staticmethod):
        return _Part(thing, type(thing).__name__, (thing.__func__,))
    if isinstance(thing, partial):
        return _Part(thing, "partial", (thing.func, thing.args, thing.keywords))
    if isinstance(thing, property):
        return _Part(thing, "property", (thing.fget, thing.fset))
    if hasattr(thing, "__wrapped__"):
        return _Part(thing, "decorated", (thing.__wrapped__,))
    text = repr(thing)
    # A repr with an address is another one in each process, so that nothing would ever be found again.
    if _is_of_a_library(type(thing).__module__) and " at 0x" not in text:
        return _Part(thing, f"{_name_of(type(thing))} {text}", ())
    raise UnknownPartError(f"a kernel names {text:.200}, of the type {_name_of(type(thing))}")


def _function(function: FunctionType) -> _Part:
    """Return what is known of a function: its bytecode, what that names in the module, and what it encloses."""
    if function.__module__ and _is_of_a_library(function.__module__):  # what exec has made may be of no module
        return _Part(function, f"function {_name_of(function)}", ())
    codes = list(_with_nested(function.__code__))
    names = sorted({name for code in codes for name in code.co_names})
    texts, named = [_text_of(code) for code in codes], list[Any]()
    for name in names:
        if name in function.__globals__:
            texts.append(name)
            named.append(function.__globals__[name])
            if isinstance(named[-1], ModuleType) and not _is_of_a_library(named[-1].__name__):
                # Of `module.step`, bytecode has both names, but not side by side. All names that the module has are
                # taken for names in it: a few too many compile something anew that need not be, and none is missed.
                within = [other for other in names if other in vars(named[-1])]
                texts += within
                named += [vars(named[-1])[other] for other in within]
    for cell in function.__closure__ or ():
        named.append(cell.cell_contents)
    named += [function.__defaults__, function.__kwdefaults__, vars(function)]
    return _Part(function, f"function {texts}", tuple(named))


def _with_nested(code: CodeType) -> Iterable[CodeType]:
    """Yield a function's code and that of all functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


def _text_of(code: CodeType) -> str:
    """Return all of a code object but comments, lines and names of files; for a docstring, that there is one."""
    constants = [_text_of_constant(constant) for constant in code.co_consts]
    # A docstring is the first of the constants. That it is there counts, because by it all others have another number
    # in the bytecode; what it says does not.
    if code.co_consts and isinstance(code.co_consts[0], str) and not _loads_first_constant(code):
        constants[0] = "docstring"
    return " ".join(map(str, (
        code.co_name, code.co_code.hex(), code.co_exceptiontable.hex(), constants, code.co_names, code.co_varnames,
        code.co_freevars, code.co_cellvars, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount,
        code.co_flags,
    )))  # fmt: skip


def _text_of_constant(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return "code"
    return str(sorted(map(repr, constant))) if isinstance(constant, frozenset) else repr(constant)


def _loads_first_constant(code: CodeType) -> bool:
    """Return whether a function uses the constant that stands where a docstring would."""
    # An instruction takes two bytes, its number and its argument. Of an argument above 255 these are the low bits only:
    # a function with so many constants may seem to use its docstring, which then counts.
    return (_LOAD_CONST, 0) in zip(code.co_code[::2], code.co_code[1::2], strict=True)


def _class(kind: type) -> _Part:
    """Return what is known of a class: the fields of a bundle, and the functions and constants that it has."""
    if _is_of_a_library(kind.__module__):
        return _Part(kind, f"class {_name_of(kind)}", ())
    names = [
        name
        for name in sorted(vars(kind))
        if not (name.startswith("__") and name.endswith("__"))
        or name in ("__init__", "__new__", "__call__", "__eq__", "__hash__", "__getitem__")
    ]
    members = {name: vars(kind)[name] for name in names}
    kept = {name: value for name, value in members.items() if not _is_made_for_tuples(value)}
    return _Part(kind, f"class {_name_of(kind)} {list(kept)}", (*kept.values(), *kind.__bases__))


def _is_made_for_tuples(member: Any) -> bool:
    """Return whether a member of a class is one that Python writes into every named tuple."""
    function = getattr(member, "__func__", member)
    name = getattr(function, "__globals__", {}).get("__name__", "")
    return type(member).__name__ in ("_tuplegetter", "_abc_data") or name == "collections" or "namedtuple" in name


def _is_of_a_library(module: str | None) -> bool:
    """Return whether a module belongs to Python or to a library that kernels are compiled by."""
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
