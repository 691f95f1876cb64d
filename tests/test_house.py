"""The words and measures of the house: a name means one thing, docstrings stand alone, parameter lists stay short.

All of it is read from the source (``ast``). Each exception is a line in a table here, with its reason; a line that is
no longer needed fails a test, so that the tables only shrink.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.test_floors import MODULES, PACKAGE, at, trees

MAX_ROOT_MODULES = 12  #: beside __init__ and __main__
MAX_PARAMETERS = 8
MAX_LONG_LISTS = 6  #: functions that may have more parameters than that
MAX_LINES = 800

#: Files of more lines than that, and why.
LONG_FILES: dict[str, str] = {}

#: File names that occur in several rooms: the same stage elsewhere.
SAME_STAGE: dict[str, str] = {
    "columns": "column references: in the format, and planned",
    "contract": "what the members of a folder have in common",
    "decode": "the same stage of blocks, and of whole frames",
    "encode": "the same stage of blocks, and of whole frames",
    "inspect": "of frames, and the verb that shows them",
    "jobs": "of a lane, and of the command line",
    "report": "a benchmark's table, a page for a browser, and the verb that writes that",
    "modes": "of frames, and of all-reduces, which are made of them",
    "writer": "of frames and of archives",
}

#: Public top-level names that stand in several modules, because they fill the same place in one protocol.
SAME_CONTRACT: dict[str, str] = {
    "add_arguments": "every verb of the command line has it",
    "decode": "for arrays, for tensors on a GPU, and for batches of these",
    "encode": "for arrays, for tensors on a GPU, and for batches of these",
    "load": "a vector in kernels, and an object from an archive: torch's word",
    "run": "every verb of the command line has it",
    "warmup": "of this process' kernels, and of a group's devices with them",
}

#: Functions with more parameters than ``MAX_PARAMETERS``, and why.
LONG_LISTS: dict[str, str] = {
    "archive.dicts.save_file": "public keywords",
    "archive.whole_files.compress_file": "public keywords",
    "codec.encode": "public keywords",
    "distributed.fsdp.compress_fsdp": "public keywords",
    "distributed.reduction.allreduce.allreduce": "public keywords",
    "truncation.formulas.adam_formula": "torch's hyperparameters, by name",
}

#: Endings of files in the repository; no other kind, and no file of more bytes, is committed by accident.
KINDS = {".base", ".case", ".cpp", ".css", ".csv", ".cu", ".cuh", ".frame", ".gc", ".h", ".js", ".json", ".md",
         ".png", ".py", ".safetensors", ".toml", ".txt", ".typed", ".yaml", ".yml"}  # fmt: skip
WITHOUT_ENDING = {".ci/run", ".git-blame-ignore-revs", ".gitignore", "LICENSE", "Makefile"}
MAX_FILE_BYTES = 2 << 20

#: How a docstring's first line does not begin: such a line says nothing without the docstring before it.
RIDDLES = re.compile(
    r"(What|Whether|How|Of|As|It|Its|Those|These|That|This one|All|One|So|Where|Which|In|Until|Also|And|Likewise)\b"
    r"|They\b|The (same|others?|rest)\b|:(func|class|meth|mod):"
)

#: An entry of a section of a docstring that begins in lower case, though its first word is one of the language.
SMALL_ENTRY = re.compile(
    r" {4}[\w*`.]+(?:(?:, | or | and )[\w*`.]+)*: "
    r"(?!(?:[b-z]|llvmlite|alpha|max|min|numpy|torch|gcodec|numba|zstd|pickle|fsspec|safetensors|uint\w*|int\d+|float\d+"
    r"|bfloat\d+|xxh\w*)\b|\w*[\[\]_\d.(/=`])[a-z]"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """(dotted name, node) of every function, method and nested function."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}.{node.name}" if isinstance(node, Function | ast.ClassDef) else prefix
        if isinstance(node, Function):
            yield name, node
        yield from functions_of(node, name)


def n_parameters(node: Function) -> int:
    """The number of parameters of a function, without self or cls."""
    positional = [*node.args.posonlyargs, *node.args.args]
    bound = bool(positional) and positional[0].arg in ("self", "cls")
    return len(positional) + len(node.args.kwonlyargs) - bound


def documented_in(tree: ast.Module) -> Iterator[tuple[Documented, str]]:
    """(node, docstring) of everything in a module that has one, the module included."""
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            text = ast.get_docstring(node)
            if text:
                yield node, text


def public_names(tree: ast.Module) -> list[str]:
    """The public functions and classes that a module defines at its top level."""
    return sorted(
        {node.name for node in tree.body if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_")}
    )


def defined_in(tree: ast.Module) -> set[str]:
    """Every name that a module defines or imports, at any depth: functions, classes, variables, fields."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return names


@cache
def defined() -> dict[str, set[str]]:
    """What each module defines or imports."""
    return {module: defined_in(tree) for module, tree in trees().items()}


BY_FILE_NAME: dict[str, list[str]] = defaultdict(list)
for _module in MODULES:
    BY_FILE_NAME[_module.rpartition(".")[2]].append(_module)

#: In docstrings: Sphinx roles, and dotted names of the package between double backquotes.
REFERENCE = re.compile(r":(?:mod|func|class|meth|data|attr|const):`([^`]+)`|``(gcodec(?:\.\w+)+)(?:\(\))?``")
ELSEWHERE = {"torch", "numpy", "np", "numba", "dist", "llvmlite", "tests", "bench", "tools", "examples"}


def resolves(reference: str, module: str, defined: Mapping[str, set[str]]) -> bool:
    """Whether a dotted name in a docstring of ``module`` names something that exists."""
    parts = reference.strip().lstrip("~").removesuffix("()").split(".")
    if parts[0] in ELSEWHERE:
        return True
    if parts[0] == "gcodec":
        prefixes = (n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in defined)
        n = next(prefixes)
        home = ".".join(parts[:n])
        return n == len(parts) or parts[n] in defined[home] | public_of_package(home)
    if parts[0] in defined[module]:
        return True
    return any(len(parts) == 1 or parts[1] in defined[other] for other in BY_FILE_NAME.get(parts[0], ()))


def public_of_package(module: str) -> set[str]:
    """The names that ``import gcodec`` offers lazily, which no statement of its module binds."""
    if module != "gcodec":
        return set()
    strings = {node.value for node in ast.walk(trees()["gcodec"]) if isinstance(node, ast.Constant)}
    return {text for text in strings if isinstance(text, str)}


def unknown_references(trees: Mapping[str, ast.Module], defined: Mapping[str, set[str]]) -> Iterator[str]:
    """Where a docstring names what does not exist."""
    for module, tree in trees.items():
        for node, text in documented_in(tree):
            for role, plain in REFERENCE.findall(text):
                if not resolves(role or plain, module, defined):
                    yield f"{at(module, getattr(node, 'lineno', 1))} names {role or plain}"


def compare(found: Iterable[str], table: Mapping[str, str], advice: str) -> None:
    """Compare what was found with the table of what is meant."""
    names = set(found)
    unexplained, stale = names - table.keys(), table.keys() - names
    assert not unexplained, f"{advice}: {sorted(unexplained)}"
    assert not stale, f"no longer so, remove from the table: {sorted(stale)}"


# The rules


def test_the_root_has_few_modules():
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) <= MAX_ROOT_MODULES, f"{len(modules)} modules at the root of gcodec: {sorted(modules)}"


def test_long_files_have_a_reason():
    lengths = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES.values()
    }
    compare((name for name, lines in lengths.items() if lines > MAX_LINES), LONG_FILES, f"over {MAX_LINES} lines")


def test_a_file_name_means_one_thing():
    twice = [
        name
        for name, modules in BY_FILE_NAME.items()
        if len([module for module in modules if MODULES[module].name != "__init__.py"]) > 1
    ]
    compare(twice, SAME_STAGE, "file names that stand in several rooms")


def test_a_public_name_means_one_thing():
    homes = defaultdict(list)
    for module, tree in trees().items():
        for name in public_names(tree):
            homes[name].append(module)
    compare(
        (name for name, modules in homes.items() if len(modules) > 1), SAME_CONTRACT, "public names with two meanings"
    )


def test_parameter_lists_stay_short():
    long = [
        name
        for module, tree in trees().items()
        for name, node in functions_of(tree, module.removeprefix("gcodec."))
        if n_parameters(node) > MAX_PARAMETERS
    ]
    compare(long, LONG_LISTS, f"more than {MAX_PARAMETERS} parameters")
    assert len(LONG_LISTS) <= MAX_LONG_LISTS


def test_first_lines_of_docstrings_stand_alone():
    riddles = [
        f"{at(module, getattr(node, 'lineno', 1))} {text.splitlines()[0]!r}"
        for module, tree in trees().items()
        for node, text in documented_in(tree)
        if RIDDLES.match(text)
    ]
    assert not riddles, "write a whole sentence with a subject and a verb:\n" + "\n".join(riddles)


def small_entries(text: str) -> list[str]:
    """Return the entries of a docstring's sections of names that begin in lower case."""
    found, inside = [], False
    for line in text.splitlines():
        if line in ("Args:", "Attributes:", "Raises:"):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and SMALL_ENTRY.match(line):
            found.append(line.strip())
    return found


def test_entries_of_docstrings_begin_with_a_capital():
    small = [
        f"{at(module, getattr(node, 'lineno', 1))} {entry}"
        for module, tree in trees().items()
        for node, text in documented_in(tree)
        for entry in small_entries(text)
    ]
    assert not small, "\n".join(small)


def test_small_entries_are_recognized():
    text = """Return.

    Args:
        a: values, and more.
        b, c: Values.
        d: uint8[n].
        e: numpy's.

    Returns:
        f: values
    """
    assert small_entries(inspect.cleandoc(text)) == ["a: values, and more."]


def test_names_in_docstrings_exist():
    unknown = list(unknown_references(trees(), defined()))
    assert not unknown, "docstrings name what does not exist:\n" + "\n".join(unknown)


def test_only_known_kinds_of_files_are_committed():
    root = PACKAGE.parent
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("this is no checkout")
    paths = [path for path in listing.stdout.split("\0") if (root / path).is_file()]
    unknown = [path for path in paths if path not in WITHOUT_ENDING and Path(path).suffix not in KINDS]
    assert not unknown, f"files of kinds that are not listed here: {unknown}"
    large = [path for path in paths if (root / path).stat().st_size > MAX_FILE_BYTES]
    assert not large, f"files of more than {MAX_FILE_BYTES} bytes: {large}"


def test_tests_that_need_torch_are_skipped_without_it():
    unguarded = []
    for path in (PACKAGE.parent / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if "skip" in ast.unparse(node):
                break
            if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names):
                unguarded.append(path.name)
    assert not unguarded, f'pytest.importorskip("torch") before the import: {unguarded}'


# The rules can fail


def test_parameters_are_counted_without_self():
    tree = ast.parse("class A:\n    def f(self, a, /, b, *c, d=1, **e): ...\n")
    assert [(name, n_parameters(node)) for name, node in functions_of(tree, "m")] == [("m.A.f", 3)]


@pytest.mark.parametrize(
    ("reference", "known"),
    [
        ("gcodec.encode", True),
        ("gcodec.nothing", False),
        ("gcodec.codec.encode", True),
        ("gcodec.codec.nothing", False),
        ("gcodec.nowhere.encode", False),
        ("encode", True),
        ("~gcodec.errors.GcodecError", True),
        ("nothing", False),
        ("torch.Tensor", True),
    ],
)
def test_references_are_resolved(reference, known):
    assert resolves(reference, "gcodec.codec", defined()) == known


@pytest.mark.parametrize(
    ("line", "riddle"),
    [
        ("Whether it is so.", True),
        ("The same for others.", True),
        ("Return the sum.", False),
        ("An array of levels.", False),
        (":func:`kernel` for a step.", True),
        ("Ascending drops.", False),
    ],
)
def test_riddles_are_recognized(line, riddle):
    assert bool(RIDDLES.match(line)) == riddle


# The map


def mapped() -> Iterator[tuple[str, bool]]:
    """(path, whether it is a folder) of every line of the map in CONTRIBUTING.md."""
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    stack: list[str] = []
    for line in page.split("```")[1].splitlines():
        if line.strip():
            depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
            stack[depth:] = [name]
            yield "".join(stack), name.endswith("/")


def test_the_map_in_contributing_is_the_tree():
    lines = list(mapped())
    places = [(PACKAGE.parent / path, folder) for path, folder in lines]
    wrong = [str(place) for place, folder in places if not (place.is_dir() if folder else place.is_file())]
    assert not wrong, f"not there: {wrong}"
    listed = {path.rstrip("/") for path, _ in lines}
    rooms = {
        f"gcodec/{path.name}"
        for path in PACKAGE.iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or path.suffix == ".py"
    }
    missing = rooms - listed - {"gcodec/__init__.py", "gcodec/__main__.py"}
    assert not missing, f"not on the map: {sorted(missing)}"
