"""The shape of the house: imports only go down, outside packages stay in their rooms, files stay short.

Everything is read from the source (``ast``), so that a module counts even where nothing imports it. A new module, a new
import sideways or a long file is a line in one of the tables here; nothing else has to change.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "gcodec"

# A room is a module or a folder of gcodec/, named without "gcodec."; "gcodec" itself is __init__.py, the public names.
# A room imports from the floors below its own, and within itself in any way that forms no cycle.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("threads", "compiling"),
    ("kernels",),
    ("dtypes",),
    ("format",),
    ("options", "memory", "tensors", "truncation"),
    ("base_hash",),
    ("plan",),
    ("frame",),
    ("gpu",),
    ("codec",),
    ("stream",),
    ("files", "archive", "recorder"),
    ("sync",),
    ("checkpoints",),
    ("compressors",),
    ("averaging",),
    ("adaptive",),
    ("distributed", "gcodec"),
    ("integrations",),
    ("benchmark", "report"),
    ("demo",),
    ("cli",),
    ("__main__",),
)

# From one room to another of the same floor: (from, to).
SIDEWAYS: tuple[tuple[str, str], ...] = (
    ("archive", "files"),  # an archive holds files
    ("compiling", "threads"),  # what is said after a while is said by a thread
    ("recorder", "files"),  # dumps go to URLs as files do
    ("truncation", "memory"),  # what is widened goes to memory that is reused
    ("truncation", "tensors"),  # an optimizer's state is of tensors, whose memory is checked as that of all others
)

# Outside packages that only some rooms or modules may use, inside functions too.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "torch.distributed": ("distributed", "integrations"),
    "numba.cuda": (),  # kernels for CUDA devices are in CUDA C++
    "triton": (),
    "sklearn": ("demo",),
    "matplotlib": ("demo",),
}

# Packages that `import gcodec` must not load.
HEAVY = ("torch", "triton", "sklearn", "matplotlib", "rich")


def module_name(path: Path, package: Path = PACKAGE) -> str:
    """The dotted name of a file of the package: ``gcodec``, ``gcodec.errors``, ``gcodec.kernels`` ..."""
    parts = (package.name, *path.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of all modules, by name; not made where tests are merely collected."""
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def within(name: str, prefix: str) -> bool:
    """Whether a dotted name is ``prefix`` or lies below it."""
    return name == prefix or name.startswith(prefix + ".")


def room_of(module: str) -> str | None:
    """The entry of ``FLOORS`` that a module belongs to, or None for one that has no place there yet."""
    name = module.removeprefix("gcodec.")
    return next((room for floor in FLOORS for room in floor if within(name, room)), None)


def floor_of(room: str) -> int:
    """How far up a room is: its index in ``FLOORS``."""
    return next(number for number, floor in enumerate(FLOORS) if room in floor)


def imports_of(tree: ast.Module, module: str, is_folder: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, at any depth; ``from a import b`` gives ``a.b``."""
    package = module.split(".") if is_folder else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, node.module] if node.module else base)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def absolute_imports_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name of the module) of every import without leading dots, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, str(node.module)


def uses_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every chain of attributes that starts at a plain name: ``torch.distributed.barrier``."""
    for node in ast.walk(tree):
        chain: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if chain and isinstance(inner, ast.Name):
            yield inner.lineno, ".".join([inner.id, *reversed(chain)])


def internal_imports(module: str) -> list[tuple[int, str]]:
    """(line, module of gcodec) for every import of ``module`` that stays inside the package."""
    found = []
    for line, name in imports_of(trees()[module], module, MODULES[module].name == "__init__.py"):
        if within(name, "gcodec"):
            parts = name.split(".")
            prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            found.append((line, next((prefix for prefix in prefixes if prefix in MODULES), "gcodec")))
    return found


def may_import(module: str, target: str) -> bool:
    """Whether ``module`` may import ``target``, both of gcodec."""
    here, there = room_of(module), room_of(target)
    if here is None or there is None:
        return False
    return here == there or floor_of(there) < floor_of(here) or (here, there) in SIDEWAYS


def undocumented(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of every public function, class and method of a module that has no docstring.

    Methods count where the class has no base: a base may document them.
    """

    def scan(body: list[ast.stmt], prefix: str) -> Iterator[tuple[int, str]]:
        for node in body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            overload = any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)
            if node.name.startswith("_") or overload:
                continue
            if ast.get_docstring(node) is None:
                yield node.lineno, prefix + node.name
            if isinstance(node, ast.ClassDef) and not node.bases:
                yield from scan(node.body, f"{prefix}{node.name}.")

    yield from scan(tree.body, "")


def at(module: str, line: int) -> str:
    """Where something is, as an editor understands it."""
    return f"{MODULES[module].relative_to(PACKAGE.parent)}:{line}"


def run_python(program: str) -> str:
    """What ``program`` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The rules


def test_every_module_has_a_floor():
    rooms = [room for floor in FLOORS for room in floor]
    assert len(rooms) == len(set(rooms))
    assert all(a in rooms and b in rooms and floor_of(a) == floor_of(b) for a, b in SIDEWAYS)
    lost = [name for name in MODULES if room_of(name) is None]
    assert not lost, f"give these modules a room in FLOORS, at the top of {Path(__file__).name}: {lost}"


def test_imports_only_go_down():
    up = [
        f"{at(module, line)} imports {target}"
        for module in MODULES
        for line, target in internal_imports(module)
        if not may_import(module, target)
    ]
    assert not up, "imports that go up, or sideways without a line in SIDEWAYS:\n" + "\n".join(up)


def test_imports_form_no_cycle():
    graph = {module: {target for _, target in internal_imports(module)} - {module} for module in MODULES}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_imports_inside_the_package_are_relative():
    absolute = [
        f"{at(module, line)} imports {name}"
        for module, tree in trees().items()
        for line, name in absolute_imports_of(tree)
        if within(name, "gcodec")
    ]
    assert not absolute, "inside gcodec, write `from .x import y` or `from ..x import y`:\n" + "\n".join(absolute)


@pytest.mark.parametrize("package", OUTSIDE)
def test_outside_packages_stay_in_their_rooms(package):
    strays = [
        f"{at(module, line)} uses {name}"
        for module, tree in trees().items()
        if not any(within(module, f"gcodec.{room}") for room in OUTSIDE[package])
        for line, name in (*imports_of(tree, module, MODULES[module].name == "__init__.py"), *uses_of(tree))
        if within(name, package)
    ]
    assert not strays, f"only {OUTSIDE[package]} may use {package}:\n" + "\n".join(strays)


def test_importing_gcodec_loads_nothing_heavy():
    loaded = run_python(f"import sys, gcodec; print(*(name for name in {HEAVY} if name in sys.modules))")
    assert not loaded, f"`import gcodec` loads {loaded}: import it in the function that needs it"


def test_arrays_need_no_torch():
    program = f"""
import sys
sys.modules.update(dict.fromkeys({HEAVY}))      # an import of any of them now fails
import gcodec
import numpy as np
values = np.linspace(-1, 1, 1000, dtype=np.float32)
assert np.array_equal(gcodec.decode(gcodec.encode(values)), values)
"""
    run_python(program)


def test_everything_public_is_documented():
    missing = [at(module, 1) for module, tree in trees().items() if ast.get_docstring(tree) is None]
    missing += [f"{at(module, line)} {name}" for module, tree in trees().items() for line, name in undocumented(tree)]
    assert not missing, "no docstring:\n" + "\n".join(missing)


# The rules can fail


def test_every_form_of_import_is_found():
    source = """
import torch.distributed as dist
def late():
    from torch import distributed
    from .. import format
    from ..codec import encode
    from . import scalar
"""
    names = [name for _, name in imports_of(ast.parse(source), "gcodec.kernels.cpu", is_folder=False)]
    assert names == [
        "torch.distributed",
        "torch.distributed",
        "gcodec.format",
        "gcodec.codec.encode",
        "gcodec.kernels.scalar",
    ]
    names = [name for _, name in imports_of(ast.parse("from .cpu import x"), "gcodec.kernels", is_folder=True)]
    assert names == ["gcodec.kernels.cpu.x"]


def test_absolute_imports_are_seen():
    source = "import gcodec.codec\nfrom .x import y\ndef late():\n    from gcodec import stream\n    from . import z\n"
    assert list(absolute_imports_of(ast.parse(source))) == [(1, "gcodec.codec"), (4, "gcodec")]


def test_every_use_of_a_module_is_seen():
    tree = ast.parse("import torch\ntorch.distributed.barrier()\n")
    assert any(within(name, "torch.distributed") for _, name in uses_of(tree))


@pytest.mark.parametrize(
    ("module", "target", "legal"),
    [
        ("gcodec.codec", "gcodec.errors", True),
        ("gcodec.codec", "gcodec.kernels.block", True),
        ("gcodec.stream", "gcodec.codec", True),
        ("gcodec.codec", "gcodec.stream", False),
        ("gcodec.kernels.entropy.encode_streams", "gcodec.kernels.core.scalar", True),
        ("gcodec.kernels.entropy.encode_streams", "gcodec.codec", False),
        ("gcodec.files", "gcodec", False),
        ("gcodec.cli.compress", "gcodec", True),
        ("gcodec.codec", "gcodec.nowhere", False),
    ],
)
def test_imports_down_are_legal_and_imports_up_are_not(module, target, legal):
    assert may_import(module, target) == legal


def test_missing_docstrings_are_seen():
    source = """
def public(): ...
def _private(): ...
class Public:
    "Documented."
    def method(self): ...
    def __len__(self): ...
class Derived(Public):
    "Documented."
    def method(self): ...
"""
    assert [name for _, name in undocumented(ast.parse(source))] == ["public", "Public.method"]
