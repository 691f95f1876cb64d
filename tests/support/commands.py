"""Commands of the command line, run in this process and in a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gcodec.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run every test of a module that has this fixture in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: object, code: int = 0) -> None:
    """Run a command, which must end with this exit code."""
    assert main([str(argument) for argument in arguments]) == code
