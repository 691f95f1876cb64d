"""Pythons that gcodec refuses say so in one sentence, from the library and from the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_LOCK = "import sys; sys._is_gil_enabled = lambda: False; import gcodec, gcodec.cli; "
SENTENCE = (
    "gcodec does not work without the global interpreter lock: start this free-threaded Python with PYTHON_GIL=1, "
    "or as python -X gil=1"
)


def run_without_lock(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that says that it has no lock."""
    command = [sys.executable, "-c", WITHOUT_LOCK + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("call", ["encode(b'')", "load('x.gc')"])
def test_the_library_refuses_a_python_without_its_lock(call):
    done = run_without_lock(f"gcodec.{call}")
    assert done.stderr.splitlines()[-1] == f"gcodec.errors.Unsupported: {SENTENCE}"


@pytest.mark.parametrize("verb", ["compress", "inspect"])
def test_the_command_line_refuses_a_python_without_its_lock(verb):
    done = run_without_lock(f"sys.exit(gcodec.cli.main([{verb!r}, 'x.npy']))")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip().endswith(SENTENCE)
    assert len(done.stderr.splitlines()) == 1


def test_the_version_is_shown_without_the_lock():
    done = run_without_lock("sys.exit(gcodec.cli.main(['--version']))")
    assert (done.returncode, done.stderr) == (0, "")
