"""Programs that use numba, run in copies of a process that has imported it and begun to compile, which takes a second.

A program finds what one of its own finds, but that numba is prepared to compile. What tests of that, or of settings of
numba that hold from its first compilation on (``NUMBA_OPT``, ``NUMBA_CPU_NAME``), needs a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support import numba_without
from tests.support.paths import ROOT

_templates: dict[tuple[str, ...], subprocess.Popen[str]] = {}


@pytest.fixture(scope="module", autouse=True)
def templates() -> Iterator[None]:
    """End the processes that are copied, behind the last test of a module that has this fixture."""
    yield
    while _templates:
        _templates.popitem()[1].communicate()


def run_in_copy(
    program: str, folder: Path, environment: Mapping[str, str], missing: str = "", prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder and an environment of its own, and return its exit code and what it has printed.

    Args:
        program: Its source.
        folder: Working folder.
        environment: All of its environment, of which ``PYTHONPATH`` comes before the path of this process.
        missing: Private parts that numba lacks (:mod:`tests.support.numba_without`).
        prefix: A command that starts the process that is copied.
    """
    command = [*prefix, sys.executable, "-m", __name__, missing]
    template = _templates.get(tuple(command))
    if template is None:
        template = _templates[tuple(command)] = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert template.stdin is not None and template.stdout is not None
    with tempfile.TemporaryDirectory() as printed:
        asked = {"program": program, "folder": str(folder), "environment": dict(environment), "printed": printed}
        template.stdin.write(json.dumps(asked) + "\n")
        template.stdin.flush()
        code = int(template.stdout.readline())
        stdout, stderr = (Path(printed, name).read_text() for name in ("1", "2"))
    return subprocess.CompletedProcess(program, code, stdout, stderr)


def _serve() -> None:
    """Run programs that are asked for on standard input, one after another, and print their exit codes."""
    from numba import njit

    assert njit(lambda x: x + 1)(1) == 2
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(program: str, folder: str, environment: dict[str, str], printed: str) -> None:
    """Run a program in this copy, which ends with it."""
    from numba.core import config

    for stream in (1, 2):
        os.dup2(os.open(f"{printed}/{stream}", os.O_WRONLY | os.O_CREAT), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    tempfile.tempdir = None
    config.reload_config()
    code = 1
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    numba_without.hide(sys.argv[1].split())
    _serve()
