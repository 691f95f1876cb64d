"""A machine for pickles of strangers: the opcodes run on inert stand-ins, and no code that the pickle names is called.

It hashes nothing, compares nothing and never recurses, and counts what it keeps: so a pickle takes time and memory in
proportion to its size, whatever is in it. The interpreter's own unpickler hashes what keys of dictionaries hold, in C.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_STEPS = 1 << 24
#: Estimates of the bytes that are held for an object, and for an item with its key.
OBJECT_BYTES, ITEM_BYTES = 96, 80


class BudgetError(ValueError):
    """A pickle takes more time or memory than its size warrants."""


class Budget:
    """The bytes that reading a pickle may hold, by estimates: 64 MiB and 64 times its size.

    Attributes:
        spent: What is held until now.
    """

    def __init__(self, pickle_bytes: int) -> None:
        self.limit, self.spent = (1 << 26) + 64 * pickle_bytes, 0

    def spend(self, size: int) -> None:
        """Raises BudgetError if ``size`` bytes more are above the limit."""
        self.spent += size
        if self.spent > self.limit:
            raise BudgetError(f"the pickle takes more than the {self.limit} bytes of memory that its size warrants")


@dataclass(frozen=True, slots=True)
class Global:
    """A class or function that the pickle names."""

    module: str
    name: str


class Items:
    """A list or set: its items with their numbers. Numbers and strings are counted, not kept."""

    __slots__ = ("n_items", "pairs")

    def __init__(self) -> None:
        self.n_items = 0
        self.pairs: list[tuple[object, object]] = []

    def add(self, key: object, value: object) -> None:
        """Adds an item."""
        self.n_items += 1
        if type(value) not in _PLAIN:
            self.pairs.append((key, value))


class KeyedItems(Items):
    """A dictionary: its items with their keys, of which none is hashed."""

    __slots__ = ()


class Ordered(KeyedItems):
    """A ``collections.OrderedDict``, without the attributes that a state dict hangs on it."""

    __slots__ = ()


class Stranger(Items):
    """Stands for an object of any class, or the result of any function: it holds what it was given, with keys."""

    __slots__ = ()


class PickleMachine:
    """Runs one pickle.

    Args:
        functions: What is done for the few functions that are known; all others give a :class:`Stranger`.
        storage: Makes the object that a persistent id stands for.
        budget: Counts what is held.
    """

    def __init__(
        self,
        functions: Mapping[tuple[str, str], Callable[..., object]],
        storage: Callable[[object], object],
        budget: Budget,
    ) -> None:
        self._functions, self._storage, self._budget = functions, storage, budget
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[object] = []

    def run(self, data: bytes) -> object:
        """Return the object that a pickle describes.

        Raises:
            BudgetError: It takes too many steps or too much memory.
            ValueError, LookupError, TypeError: It is malformed.
        """
        stack, memo = self._stack, self._memo
        steps: Iterator[tuple[pickletools.OpcodeInfo, Any, int | None]] = pickletools.genops(data)
        for step, (opcode, argument, _) in enumerate(steps):
            name = opcode.name
            if name in _PUSH:
                stack.append(argument)
            elif name in _PUT:
                place = len(memo) if argument is None else argument
                if not 0 <= place <= len(data):
                    raise ValueError(f"memo slot {place} is out of range")
                if place >= len(memo):
                    memo.extend([None] * (place + 1 - len(memo)))
                memo[place] = stack[-1]
            elif name in _GET:
                stack.append(memo[argument])
            elif name in _ACTIONS:
                _ACTIONS[name](self, argument)
            else:
                raise ValueError(f"opcode {name} is not allowed")
            if step >= MAX_STEPS:
                raise BudgetError(f"the pickle has more than {MAX_STEPS} steps")
        return stack.pop()

    def _new(self, value: object, size: int = OBJECT_BYTES) -> None:
        self._budget.spend(size)
        self._stack.append(value)

    def _since_mark(self) -> list[Any]:
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _mark(self, _: object) -> None:
        self._marks.append(len(self._stack))

    def _pop(self, _: object) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._stack.pop()

    def _tuple(self, items: tuple[Any, ...]) -> None:
        self._new(items, OBJECT_BYTES + 8 * len(items))

    def _last(self, count: int) -> tuple[Any, ...]:
        if len(self._stack) < count:
            raise IndexError("the stack is empty")
        items = tuple(self._stack[-count:])
        del self._stack[-count:]
        return items

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, Items) or isinstance(target, KeyedItems):
            raise TypeError(f"items cannot be appended to a {type(target).__name__}")
        for item in items:
            target.add(target.n_items, item)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, KeyedItems | Stranger) or len(items) % 2:
            raise TypeError(f"{len(items)} keys and values cannot be set in a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target.add(key, value)

    def _global(self, names: Any) -> None:
        module, _, name = names.partition(" ")
        self._new(Global(module, name))

    def _stack_global(self, _: object) -> None:
        module, name = self._last(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError("a class must be named by strings")
        self._new(Global(module, name))

    def _call(self, function: object, args: object, keywords: object = None) -> None:
        """Pushes the result of a known function, or a stranger that holds the arguments."""
        if not isinstance(args, tuple) or not isinstance(function, Global | Stranger):
            raise TypeError(f"a {type(function).__name__} cannot be called with a {type(args).__name__}")
        self._budget.spend(OBJECT_BYTES + ITEM_BYTES * len(args))
        known = self._functions.get((function.module, function.name)) if isinstance(function, Global) else None
        self._stack.append(known(*args) if known else stranger(*args))
        if keywords is not None:
            self._build(keywords)

    def _build(self, state: object) -> None:
        target = self._stack[-1]
        if type(target) in (*_PLAIN, tuple, Items, KeyedItems):
            raise TypeError(f"a {type(target).__name__} has no state")
        if not isinstance(target, Stranger):
            return
        if isinstance(state, KeyedItems):
            self._budget.spend(ITEM_BYTES * len(state.pairs))
            target.pairs += state.pairs
            target.n_items += state.n_items
        else:
            target.add("state", state)

    def _persistent(self, name: object) -> None:
        self._new(self._storage(self._stack.pop() if name is None else name), 2 * OBJECT_BYTES)

    def _set(self, items: list[Any], target: Items) -> None:
        """Pushes a container with items in it."""
        self._new(target)
        (self._set_items if isinstance(target, KeyedItems) else self._append)(items)


def stranger(*args: object) -> Stranger:
    """Return what stands for an object of a class that is not known, or the result of a function."""
    result = Stranger()
    for number, value in enumerate(args):
        result.add(number, value)
    return result


_PLAIN = frozenset((str, int, bool, float, bytes, bytearray, Global, type(None)))

#: What each opcode does; ``a`` is its argument.
_ACTIONS: dict[str, Callable[[PickleMachine, Any], None]] = {
    "MARK": PickleMachine._mark,
    "POP": PickleMachine._pop,
    "POP_MARK": lambda m, a: m._since_mark().clear(),
    "DUP": lambda m, a: m._stack.append(m._stack[-1]),
    "NONE": lambda m, a: m._stack.append(None),
    "NEWTRUE": lambda m, a: m._stack.append(True),
    "NEWFALSE": lambda m, a: m._stack.append(False),
    "EMPTY_TUPLE": lambda m, a: m._stack.append(()),
    "TUPLE1": lambda m, a: m._tuple((m._stack.pop(),)),
    "TUPLE2": lambda m, a: m._tuple(m._last(2)),
    "TUPLE3": lambda m, a: m._tuple(m._last(3)),
    "TUPLE": lambda m, a: m._tuple(tuple(m._since_mark())),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda m, a: m._new(Items())),
    **dict.fromkeys(("LIST", "FROZENSET"), lambda m, a: m._set(m._since_mark(), Items())),
    "EMPTY_DICT": lambda m, a: m._new(KeyedItems()),
    "DICT": lambda m, a: m._set(m._since_mark(), KeyedItems()),
    "APPEND": lambda m, a: m._append([m._stack.pop()]),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda m, a: m._append(m._since_mark())),
    "SETITEM": lambda m, a: m._set_items(list(m._last(2))),
    "SETITEMS": lambda m, a: m._set_items(m._since_mark()),
    "GLOBAL": PickleMachine._global,
    "STACK_GLOBAL": PickleMachine._stack_global,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda m, a: m._call(*m._last(2))),
    "NEWOBJ_EX": lambda m, a: m._call(*m._last(3)),
    "BUILD": lambda m, a: m._build(m._stack.pop()),
    **dict.fromkeys(("PERSID", "BINPERSID"), PickleMachine._persistent),
    **dict.fromkeys(("PROTO", "FRAME", "STOP", "READONLY_BUFFER"), lambda m, a: None),
}
#: Opcodes whose argument is the value.
_PUSH = frozenset(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES"
    " SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE SHORT_BINUNICODE BINUNICODE BINUNICODE8".split()
)
_PUT = frozenset(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"))
_GET = frozenset(("GET", "BINGET", "LONG_BINGET"))
