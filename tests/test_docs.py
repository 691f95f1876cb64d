"""The names in the documentation: dotted names, paths of files and imports, which exist as they are written.

Names are looked up in the source (``ast``), so that nothing has to be imported, not even what needs CUDA.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.doc_blocks import blocks_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md"), *(ROOT / "docs").rglob("*.md")])
#: Folders that paths and modules in the documentation begin with.
TREES = ("gcodec", "tests", "bench", "tools", "examples")

DOTTED = re.compile(r"(?<![\w./-])(?:gcodec|bench|tools|tests)(?:\.[A-Za-z_]\w*)+(?![\w/])")
PATH = re.compile(rf"(?<![\w./-])(?:{'|'.join(TREES)})(?:/\w+)*/(?:\w+\.(?:py|md|csv|json)\b|(?=[\s`),;:]))")
IMPORT = re.compile(r"^\s*from (gcodec[\w.]*) import ([\w, ]+)", re.MULTILINE)
MAKE = re.compile(r"\bmake ([a-z][\w-]*)")
SPAN = re.compile(r"(?:`(?:[A-Z_]+=\S+ )*|^    )make\s+([a-z][\w-]*)", re.MULTILINE)
MODULE = re.compile(r"\bpython -m ((?:gcodec|bench|tools)(?:\.\w+)*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
BARE_FILE = re.compile(r"`(\w+\.py)`")

#: What keeps its lines as they are: code, what benchmarks write, comments and other HTML.
UNWRAPPED = re.compile(r"^ *```.*?^ *```|^<!-- begin .*?^<!-- end [^\n]*|^<[^\n]*", re.MULTILINE | re.DOTALL)
MAX_LINE = 120

#: Tables that are written where there is a GPU; none has been so far.
UNWRITTEN = ("bench/results/gpu.csv", "bench/results/gpu-allreduce.csv")


def module_file(parts: list[str]) -> Path | None:
    """The file of a module or package, or None. A folder without __init__.py counts: ``bench`` is such a one."""
    stem = ROOT.joinpath(*parts)
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py", stem) if p.exists()), None)


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed source of a module; that of nothing for a folder without __init__.py."""
    return ast.parse(path.read_text(encoding="utf-8") if path.is_file() else "")


def names_of(node: ast.Module | ast.ClassDef) -> dict[str, ast.AST]:
    """What a module or class defines or imports, by name."""
    names: dict[str, ast.AST] = {}
    for child in ast.walk(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[child.name] = child
        elif isinstance(child, ast.ImportFrom | ast.Import):
            names.update({alias.asname or alias.name: child for alias in child.names})
        elif isinstance(child, ast.Attribute | ast.Name) and isinstance(child.ctx, ast.Store):
            names[child.attr if isinstance(child, ast.Attribute) else child.id] = child
    if "__getattr__" in names and isinstance(node, ast.Module):  # what is imported on first use stands in a table
        names.update(
            {
                child.value: child
                for child in ast.walk(node)
                if isinstance(child, ast.Constant) and isinstance(child.value, str) and child.value.isidentifier()
            }
        )
    return names


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or stands in one; attributes are followed into classes only."""
    parts = name.split(".")
    known = max((n for n in range(1, len(parts) + 1) if module_file(parts[:n])), default=0)
    file = module_file(parts[:known])
    if known == len(parts) or file is None:
        return file is not None
    node = names_of(tree_of(file)).get(parts[known])
    rest = parts[known + 1 :]
    return node is not None and (not rest or not isinstance(node, ast.ClassDef) or rest[0] in names_of(node))


def lost(page: Path) -> list[str]:
    """The names in a page that do not exist, each with its line."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[int, str]] = []
    for match in DOTTED.finditer(text):
        name = match.group()
        if not resolves(name):
            found.append((match.start(), name))
    found += [
        (match.start(), match.group())
        for match in PATH.finditer(text)
        if match.group() not in UNWRITTEN and not (ROOT / match.group()).exists()
    ]
    for match in IMPORT.finditer(text):
        names = [name.strip() for name in match[2].split(",")]
        found += [(match.start(), f"{match[1]}.{name}") for name in names if not resolves(f"{match[1]}.{name}")]
    found += [(match.start(), match[1]) for match in BARE_FILE.finditer(text) if match[1] not in file_names()]
    return [f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, at) + 1} {name}" for at, name in sorted(set(found))]


@cache
def file_names() -> frozenset[str]:
    """The names of the Python files of the package and its tests, without their folders."""
    return frozenset(path.name for tree in ("gcodec", "tests") for path in (ROOT / tree).rglob("*.py"))


def long_lines(text: str) -> list[int]:
    """The numbers of the lines of prose that are too long; rows of tables, headings and pictures cannot be broken."""
    prose = UNWRAPPED.sub(lambda match: "\n" * match[0].count("\n"), text).splitlines()
    return [n for n, line in enumerate(prose, 1) if len(line) > MAX_LINE and not line.lstrip().startswith(tuple("|#!"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped(page):
    assert not long_lines(page.read_text(encoding="utf-8"))


def test_long_lines_are_found_outside_of_tables_code_and_what_benchmarks_write():
    long = "word " * 25
    text = f"{long}\n| {long} |\n\n```\n{long}\n```\n<!-- begin x -->\n{long}\n<!-- end x -->\n* {long}\n"
    assert long_lines(text) == [1, 10]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_and_paths_in_the_documentation_exist(page):
    assert not lost(page), "these exist no more:\n" + "\n".join(lost(page))


def test_names_in_the_documentation_that_do_not_exist_are_found(tmp_path):
    assert resolves("gcodec.encode") and resolves("gcodec.gpu.encoder.plan_of") and resolves("bench.gpu")
    assert not resolves("gcodec.nowhere") and not resolves("gcodec.codec.nothing")


@cache
def targets() -> frozenset[str]:
    """The targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def options_of(module: str) -> frozenset[str]:
    """The options that a module or the ``__main__`` of a package defines."""
    file = module_file(module.split("."))
    main = file and (
        file
        if file.suffix == ".py" and file.name != "__init__.py"
        else (file if file.is_dir() else file.parent) / "__main__.py"
    )
    return frozenset(
        node.value
        for node in ast.walk(tree_of(main) if main else ast.Module([], []))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OPTION.fullmatch(node.value)
    )


def mistaken_commands(text: str) -> list[str]:
    """The lines of blocks of commands that are not run (tag ``bash``) which name a target or an option, in the command
    or in the comment behind it, that is not there."""
    lines = [line for block in blocks_of(text) if block.tag == "bash" for line in block.text.splitlines()]
    wrong = [line for line in lines for target in MAKE.findall(line) if target not in targets()]
    for line in lines:
        module = MODULE.search(line)
        if module and not set(OPTION.findall(line)) <= options_of(module[1]):
            wrong.append(line)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_no_test_runs_name_targets_and_options_that_exist(page):
    assert not mistaken_commands(page.read_text(encoding="utf-8"))


def unknown_targets(text: str) -> list[str]:
    """The targets that code in a page gives to make, in a span or an indented block, and the Makefile lacks."""
    return [target for target in SPAN.findall(text) if target not in targets()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_targets_of_make_that_pages_name_exist(page):
    assert not unknown_targets(page.read_text(encoding="utf-8"))


def test_unknown_targets_of_make_are_found():
    text = "Call `make test` or\n`make\nnothing`, and make sure.\n\n    make docs   the site\n    make none   of it\n"
    assert unknown_targets(text) == ["nothing", "none"]


def test_mistaken_commands_are_found():
    lines = [
        "make demo",
        "make nothing",
        "python -m bench.experiments.gravac --clock  # or --resume",
        "python -m bench.experiments.lgreco --untimed",
        "python -m bench.experiments.gravac  # or --nothing",
    ]
    assert mistaken_commands("\n".join(["```bash", *lines, "```"])) == [lines[1], lines[4]]
