"""The laws of the digest that a kernel is cached under: it changes with what the kernel is compiled from, and with
nothing else."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gcodec.kernels
from gcodec.kernels.core.source_digest import source_digest
from tests.kernels.test_kernel_cache import module_at

PACKAGE = Path(gcodec.__file__).parent
SOURCE = '''
"""A module."""
from functools import partial
from typing import NamedTuple
import numpy as np
from numba import types
from numba.extending import intrinsic
from gcodec.kernels.core.intrinsics import intrinsic_step
from gcodec.kernels.core.jit import chosen_by_types, kernel

LIMIT = 5
TABLE = np.arange(3)
STEPS = {int: lambda n: n + 1}


class Pair(NamedTuple):
    first: int
    second: int


class Builder:
    def emit(self, builder, value):
        return builder.add(value, value)


def _double(builder, value):
    return Builder().emit(builder, value)


@intrinsic
def doubled(typingctx, n):
    return types.int64(types.int64), lambda context, builder, signature, args: _double(builder, args[0])


def times(factor, builder, args, at):
    return builder.mul(args[0], args[0].type(factor))


tripled = intrinsic_step(types.int64, 1, partial(times, 3))


def step(n):
    """Steps."""
    raise NotImplementedError


@chosen_by_types(step)
def _step(n):
    return STEPS[int]


@kernel
def leaf(n):
    """Return a number."""
    return n + LIMIT  # a comment


@kernel
def with_table(n):
    return TABLE[n]


@kernel
def with_intrinsic(n):
    return doubled(n)


@kernel
def with_step(n):
    return tripled(n)


@kernel
def with_choice(n):
    return step(n)


@kernel
def with_pair(n):
    return Pair(n, n).first


@kernel
def caller(n):
    return leaf(n) + 1


@kernel
def alone(n):
    return n
'''
KERNELS = ("leaf", "with_table", "with_intrinsic", "with_step", "with_choice", "with_pair", "caller", "alone")


def digests(path: Path) -> dict[str, str]:
    """Return the digest of each kernel of a file."""
    module = module_at(path)
    return {name: source_digest(getattr(module, name)) for name in KERNELS}


@pytest.mark.parametrize(("before", "after", "changed"), [
    ("# a comment", "# another comment, and one more\n    # over two lines", ()),
    ("A module.", "Another docstring,\n\nand longer.", ()),
    ("Return a number.", "Return another number.", ()),
    ("Steps.", "Steps, as many as it takes.", ()),
    ("LIMIT = 5", "\n\n\nLIMIT = 5", ()),
    ("LIMIT = 5", "LIMIT = 6", ("leaf", "caller")),
    ("LIMIT = 5", "LIMIT = 5.0", ("leaf", "caller")),
    ("n + LIMIT", "n - LIMIT", ("leaf", "caller")),
    ("def leaf(n)", "def leaf(n, k=0)", ("leaf", "caller")),
    ("np.arange(3)", "np.arange(4)", ("with_table",)),
    ("np.arange(3)", "np.arange(3.0)", ("with_table",)),
    ("builder.add(", "builder.sub(", ("with_intrinsic",)),
    ("types.int64(", "types.int32(", ("with_intrinsic",)),
    ("partial(times, 3)", "partial(times, 4)", ("with_step",)),
    ("builder.mul(", "builder.sdiv(", ("with_step",)),
    ("intrinsic_step(types.int64", "intrinsic_step(types.int32", ("with_step",)),
    ("lambda n: n + 1", "lambda n: n + 2", ("with_choice",)),
    ("    first: int\n    second: int", "    second: int\n    first: int", ("with_pair",)),
    ("leaf(n) + 1", "alone(n) + 1", ("caller",)),
    ("@kernel\ndef leaf", "@inlined\ndef leaf", ("leaf", "caller")),
    ("def alone(n):\n    return n", "def alone(k):\n    return k", ("alone",)),
])  # fmt: skip
def test_a_digest_changes_with_the_code_and_with_nothing_else(tmp_path, monkeypatch, before, after, changed):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "kernels_to_edit.py"
    path.write_text(SOURCE.replace("import chosen_by_types, kernel", "import chosen_by_types, inlined, kernel"))
    first = digests(path)
    assert digests(path) == first
    edited = path.read_text().replace(before, after)
    assert edited != path.read_text()
    path.write_text(edited)
    second = digests(path)
    assert {name for name in KERNELS if first[name] != second[name]} == set(changed)


# The package itself

DIGESTS = """
import importlib, json, pkgutil, sys
import gcodec.kernels
from gcodec.kernels.core.source_digest import source_digest
names = [m.name for m in pkgutil.walk_packages(gcodec.kernels.__path__, "gcodec.kernels.") if ".cuda" not in m.name]
found = {}
for module in map(importlib.import_module, names):
    for kernel in vars(module).values():
        if hasattr(kernel, "py_func") and kernel.py_func.__module__ == module.__name__:
            found[f"{module.__name__}:{kernel.py_func.__qualname__}"] = source_digest(kernel)
print(json.dumps(found))
"""


def digests_of_package(folder: Path) -> dict[str, str]:
    """Return the digest of each kernel of the package in a folder; what a kernel names must be of kinds that are
    known."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "random"}
    done = subprocess.run([sys.executable, "-c", DIGESTS], cwd=folder, env=environment, check=True,
                          capture_output=True, text=True)  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found


def imports_of(modules: dict[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each of some modules imports, or that what it imports imports."""
    direct: dict[str, set[str]] = {}
    for name, path in modules.items():
        direct[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join([*name.split(".")[: -node.level], *filter(None, [node.module])])
                direct[name] |= {base, *(f"{base}.{alias.name}" for alias in node.names)} & modules.keys()
    for _ in modules:
        for found in direct.values():
            found.update(*(direct[name] for name in found))
    return direct


def edit(source: str) -> str:
    """Return a source in which all functions but those of the decorators' own module do one thing more."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            node.body.insert(int(first), ast.parse("_edited = 20_000_001").body[0])
    return ast.unparse(tree)


def modules_of_kernels() -> dict[str, Path]:
    """Return the files of the modules with kernels."""
    names = [found.name for found in pkgutil.walk_packages(gcodec.kernels.__path__, "gcodec.kernels.")
             if ".cuda" not in found.name]  # fmt: skip
    return {name: Path(str(importlib.import_module(name).__file__)) for name in names}


def with_kernels(found: dict[str, str]) -> list[str]:
    """Return the modules that have kernels."""
    return sorted({name.partition(":")[0] for name in found})


@pytest.mark.slow
def test_an_edit_of_each_file_changes_the_kernels_that_it_is_a_part_of(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "gcodec", ignore=shutil.ignore_patterns("__pycache__"))
    before, modules = digests_of_package(tmp_path), modules_of_kernels()
    importing = imports_of(modules)
    for module in with_kernels(before):
        path = tmp_path / modules[module].relative_to(PACKAGE.parent)
        source = path.read_text(encoding="utf-8")
        path.write_text(edit(source), encoding="utf-8")
        after = digests_of_package(tmp_path)
        path.write_text(source, encoding="utf-8")
        changed = {name for name in before if before[name] != after[name]}
        assert changed >= {name for name in before if name.startswith(f"{module}:")}
        assert all(module in importing[name.partition(":")[0]] | {name.partition(":")[0]} for name in changed)


def test_comments_docstrings_and_line_numbers_of_the_package_change_no_digest(tmp_path):
    """Nor does the order in which Python hashes strings, which differs from process to process."""
    shutil.copytree(PACKAGE, tmp_path / "gcodec", ignore=shutil.ignore_patterns("__pycache__"))
    before = digests_of_package(tmp_path)
    assert len(before) > 300
    for path in (tmp_path / "gcodec" / "kernels").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.Module | ast.ClassDef) and ast.get_docstring(node) is not None:
                node.body[0] = ast.parse("'''Another\\ndocstring.'''").body[0]
        path.write_text("# a comment\n\n\n" + ast.unparse(tree), encoding="utf-8")
    assert digests_of_package(tmp_path) == before
