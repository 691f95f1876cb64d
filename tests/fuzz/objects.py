"""Structures of objects to fuzz: what ``gcodec.load``, ``gcodec.load_file`` and names make of them.

A case is the JSON of a structure (docs/archive.md, section 9). Its classes have constructors, properties and ends that
fail: a structure that reaches any of their code is a finding.
"""

from __future__ import annotations

import argparse
import json
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import Enum, Flag
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import numpy as np
import torch

from gcodec.archive.lazy_dict import Unread
from gcodec.archive.named_parts import named_parts
from gcodec.archive.structure import (
    Lazily,
    ParsedStructure,
    Rebuilder,
    flatten,
    of_text,
    rebuild,
    translated_errors,
)
from gcodec.archive.structure_places import tensor_places
from gcodec.errors import Corruption, GcodecError
from gcodec.files.file_plan import TensorView
from tests.fuzz.mutation import Dice, Text

LAZY = "lazy_classes"  #: a module that imports, or fails, where it is asked for a name
NAMES = ("*", "a", "a/*", "*/0", "w", "n/[a-c]", "x?", "Color.RED")


def _fail(*_: object) -> Any:
    raise AssertionError("code of a class was run")


@dataclass
class Config:
    """A dataclass."""

    rate: float
    nested: Any = None
    __post_init__ = __setattr__ = __getattr__ = _fail  # type: ignore[misc]

    def method(self) -> None:
        """Do nothing."""


@dataclass
class Ending:
    """A dataclass that must not be made."""

    x: int
    __del__ = _fail


@dataclass
class Managed:
    """A dataclass whose field is set by code."""

    x: int


Managed.x = property(_fail, _fail)  # type: ignore[assignment]


class Moments(NamedTuple):
    """A named tuple."""

    mean: Any
    steps: Any


Moments.__hash__ = _fail  # type: ignore[assignment,method-assign]


class Color(Enum):
    """An enumeration."""

    RED = 1
    GREEN = 2


class Access(Flag):
    """Flags."""

    READ = 1
    WRITE = 2


class Scaled(torch.Tensor):
    """A tensor made of others, which is not given."""

    __tensor_unflatten__ = staticmethod(_fail)


def config(**fields: Any) -> Any:
    """Return a dataclass's object, which no constructor has made."""
    made = object.__new__(Config)
    object.__getattribute__(made, "__dict__").update({"rate": 0.5, "nested": None} | fields)
    return made


def states() -> list[Any]:
    """Return objects that have nodes of all tags."""
    x, n = torch.arange(6.0).reshape(2, 3), np.arange(4)
    scales, zeros = torch.ones(3), torch.zeros(3)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2), (3,), check_invariants=True)
    return [
        {"a": x, "b": [x[0], (x.T, 1.5)], "w": n, "s": np.float32(1), "z": torch.ones(2) * 1j, "c": 1j},
        OrderedDict(a=Counter("ab"), b={1, "x"}, c=frozenset([b"y"]), d=[torch.Size([1]), torch.int8, None, True]),
        {"n": argparse.Namespace(a=1, b=x), "m": types.SimpleNamespace(c=2), "d": defaultdict(list, a=[1])},
        [deque([1, 2], 3), bytearray(b"x"), range(3), slice(1, None), Path("a"), PureWindowsPath("b")],
        [date(2025, 1, 2), datetime(2025, 1, 2, tzinfo=UTC), time(1, 2), timedelta(1), UTC],
        [np.str_("a"), np.bytes_(b"b"), np.dtype(">f4"), np.array(["ab", "c"]), np.datetime64("2025-01-01")],
        [
            torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
            torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8),
        ],
        {"sparse": sparse, "a": np.array([1 + 2j]), "o": n.astype(">i4")},
        {Color.RED: config(nested=Moments(x, 1)), "a": Access.READ | Access.WRITE, "e": Color.GREEN},
        [config(nested=[config(seen=1)]), Moments(1, Moments(2, 3))],
    ]


class Objects:
    """The fuzzing target of objects' structures."""

    seconds, n_prefix = 10.0, 0

    def __init__(self) -> None:
        flat = [flatten(state) for state in states()]
        texts = [state.text.decode() for state in flat]
        texts += [texts[-1].replace("Config", name) for name in ("Ending", "Managed", "Moments", "Color")]
        made = {"version": 2, "state": {"subclass": [0, [1], 2, [3], [1]]}, "classes": [[__name__, "Scaled", ["x"]]]}
        texts.append(json.dumps(made, separators=(",", ":")))
        self.texts = [Text(text) for text in texts]
        self.leaves = {name: leaf for state in flat for name, leaf in state.leaves.items()}
        self.views = {name: TensorView(name, leaf.dtype, leaf.shape, 0) for name, leaf in self.leaves.items()}
        self.lazy = types.ModuleType(LAZY)
        self.lazy.__getattr__ = _fail  # type: ignore[method-assign]

    def cases(self) -> list[bytes]:
        """Return the cases from which all others are made."""
        return ["".join(text.tokens).encode() for text in self.texts]

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        text = dice.pick(self.texts).mutated(dice, self.texts)
        if dice.random() < 0.2:
            text = text.replace(__name__, dice.pick((LAZY, "os", "builtins", "torch", "this", "")))
        return text.encode(errors="replace")

    def run(self, case: bytes) -> Any:
        """Put an object together, all of it and parts of it, and list its tensors."""
        modules, sys.modules[LAZY] = set(sys.modules), self.lazy
        try:
            return self._put_together(case)
        finally:
            del sys.modules[LAZY]  # which fails for all who ask it for anything
            assert "this" not in set(sys.modules) - modules, "a module was imported"

    def _put_together(self, case: bytes) -> type:
        with suppress(GcodecError):
            tensor_places(case, self.views)
        for name in NAMES:
            with suppress(GcodecError):
                of_text(case, lambda parsed, name=name: named_parts(parsed, name, "case"))  # type: ignore[misc]
        with suppress(GcodecError):
            of_text(case, self._use_lazily)
        return type(rebuild(case, self._read, 1 << 20))

    def _use_lazily(self, parsed: ParsedStructure) -> None:
        """Put an object together item by item, as each is used."""

        def once(value: Unread, make: Callable[[Any], Any]) -> Any:
            with translated_errors():
                return make(value.node)

        found = [Rebuilder(parsed, self._read, 1 << 20, None, Lazily(once, (), ())).value(parsed.state, 0)]
        while found:
            value = found.pop()
            found += value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()

    def _read(self, name: str, kind: str) -> Any:
        """Return the tensor of a name."""
        leaf = self.leaves.get(name)
        if leaf is None:
            raise Corruption("the file lacks a tensor")
        value = leaf.value
        if isinstance(value, torch.Tensor):
            return value if kind == "torch" else value.detach().numpy()
        array = np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<")))
        array = array.reshape(-1).view(leaf.dtype).reshape(leaf.shape)
        return torch.from_numpy(array) if kind == "torch" else array
