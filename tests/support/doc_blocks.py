"""Code blocks of the documentation, and a runner: ``python -m tests.support.doc_blocks docs/training.md``.

The blocks of a page run one after another, in one namespace and one temporary folder, as they are printed. What a page
leaves to its reader (``model``, ``ddp``, files to compress) comes from a module of ``tests.support.given`` that has the
name of the page, or of its folder: its ``before_page(names)`` runs once, its ``before_block(names, text)`` before each
block.

=========== =====================================================================================================
tag         what becomes of a block
=========== =====================================================================================================
python      it is run; one that imports a package of ``OPTIONAL`` that is not installed ends there
python cuda it is run where there is a CUDA device; else it is only compiled
sh          its lines are run: commands of gcodec in this process, anything else by bash
others      of ``SHOWN``: it is not run
=========== =====================================================================================================

``--serve`` runs pages that are named on standard input, each in a process that is forked after torch and gcodec have
been imported: most pages import both, which takes longer than their blocks.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import importlib.util
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: Tags of blocks that are not run; ``bash`` is for commands that install, connect, or take long.
SHOWN = ("text", "bash", "dockerfile", "diff", "json", "toml", "yaml", "ini")
#: Packages that a block may import where they are installed; none of them comes with ``gcodec[dev]``.
OPTIONAL = (
    "accelerate",
    "blosc2",
    "flax",
    "flwr",
    "jax",
    "lightning",
    "ml_dtypes",
    "numcodecs",
    "optax",
    "pytorch_lightning",
    "torchft",
    "transformers",
    "xarray",
    "zarr",
)
FENCE = re.compile(r"^ {0,3}(```+)\s*(.*)$")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


class Block(NamedTuple):
    """A code block.

    Attributes:
        line: Number of the line of its fence.
        tag: What stands behind the fence.
        text: The code.
    """

    line: int
    tag: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """Return the code blocks of a page, those that are only indented with the tag ``indented``."""
    blocks: list[Block] = []
    inside: list[str] = []
    fence, tag, start = "", "", 0
    previous = ""
    for number, line in enumerate(text.splitlines(), 1):
        match = FENCE.match(line)
        if fence:
            if match and match[1] == fence and not match[2]:
                blocks.append(Block(start, tag, "\n".join(inside)))
                fence = ""
            else:
                inside.append(line)
        elif match:
            fence, tag, start, inside = match[1], match[2].strip(), number, []
        elif line.startswith("    ") and line.strip() and not previous.strip():
            blocks.append(Block(number, "indented", line))
        previous = line
    return blocks


def is_runnable(block: Block) -> bool:
    """Return True for a block that this machine can run."""
    if block.tag == "python cuda":
        import torch

        return torch.cuda.is_available()
    return block.tag in ("python", "sh")


def run_python(block: Block, page: Path, names: dict[str, Any]) -> str:
    """Run a block of Python; tracebacks name the lines of the page.

    Returns:
        The package that is not installed, at whose import the block has ended; empty for one that ran to its end.
    """
    try:
        exec(compile("\n" * block.line + block.text, str(page), "exec"), names)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in OPTIONAL:
            raise
        return package
    return ""


def run_shell(block: Block) -> None:
    """Run the lines of a block one by one; each must end well."""
    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        bare = QUOTED.sub("", line).split(" #")[0]
        if not bare.strip() or bare.startswith("#"):
            continue
        words = shlex.split(line, comments=True)
        if words[0] == "gcodec" and not re.search(r"[|<>&;$`~]", bare):
            quoted = {QUOTED.search(line)} - {None}
            if not quoted:
                words = [name for word in words for name in sorted(glob.glob(word)) or [word]]  # noqa: PTH207
            code = _gcodec(words[1:])
        else:
            code = subprocess.run(["bash", "-o", "pipefail", "-c", line], check=False).returncode
        if code:
            raise RuntimeError(f"exit code {code} of: {line}")


def _gcodec(arguments: list[str]) -> int:
    from gcodec.cli import main

    try:
        return main(arguments)
    except SystemExit as error:
        return int(error.code or 0)


def given_by(page: Path) -> Any:
    """Return what a page leaves to its reader: the module of ``tests.support.given`` that has the name of the page, or
    of its folder, or nothing."""
    for part in (page.stem, page.parent.name):
        name = f"tests.support.given.{part.lower().replace('-', '_')}"
        if "." not in part and importlib.util.find_spec(name):
            return importlib.import_module(name)
    return SimpleNamespace()


def run_page(page: Path) -> int:
    """Run all blocks of a page, and say which; return the number of those that failed."""
    given, names, n_failed = given_by(page), {"__name__": "__main__"}, 0
    getattr(given, "before_page", lambda names: None)(names)
    for block in blocks_of(page.read_text(encoding="utf-8")):
        language = block.tag.split()[0] if block.tag else ""
        if not is_runnable(block):
            if block.tag == "python cuda":
                compile(block.text, str(page), "exec")
            continue
        getattr(given, "before_block", lambda names, text: None)(names, block.text)
        output, missing = io.StringIO(), ""
        try:
            with contextlib.redirect_stdout(output):
                if language == "sh":
                    run_shell(block)
                else:
                    missing = run_python(block, page, names)
        except BaseException:
            print(f"FAILED {page.name}:{block.line}\n{block.text}\n{output.getvalue()}", flush=True)
            traceback.print_exc(file=sys.stdout)
            n_failed += 1
        else:
            begun = f"began {page.name}:{block.line}, which needs {missing}"
            print(begun if missing else f"ran {page.name}:{block.line}", flush=True)
    if not n_failed:
        getattr(given, "after_page", lambda names: None)(names)
    return n_failed


def main(pages: list[str]) -> int:
    """Run pages, each in a folder of its own, with ``gcodec`` on the path of the shell."""
    n_failed = 0
    for page in map(Path, pages):
        with tempfile.TemporaryDirectory() as folder:
            command = Path(folder, "bin", "gcodec")
            command.parent.mkdir()
            command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m gcodec "$@"\n')
            command.chmod(0o755)
            os.environ["PATH"] = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
            Path(folder, "work").mkdir()
            whole = page.resolve()
            with contextlib.chdir(Path(folder, "work")):
                n_failed += run_page(whole)
    return min(n_failed, 99)


def end(pages: list[str]) -> NoReturn:
    """Run pages and end this process."""
    code = 99
    try:
        code = main(pages)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # threads of torch and DDP are none of a page's business


def serve(seconds: int = 540) -> None:
    """Run the page of each line of standard input, which also names a file for what is printed; print exit codes.

    No submodule is imported here that pages have names of: one that uses it has to import it.
    """
    import gcodec

    assert gcodec.encode is not None
    if importlib.util.find_spec("torch"):
        import torch._dynamo  # noqa: F401 - by the first DistributedDataParallel of a process, in a second
    for line in sys.stdin:
        page, printed = line.rstrip("\n").split("\t")
        pid = os.fork()
        if not pid:
            signal.alarm(seconds)
            log = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for descriptor, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
                os.dup2(descriptor, number)
            end([page])
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        end(sys.argv[1:])
