"""A disk that fails when a file gets its name: the error is the disk's own, names the file, and leaves no file."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_safety import POSIX, X, contents, write
from tests.support import commands
from tests.support.commands import run

folder = commands.folder
pytestmark = POSIX


def fail(monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, afterwards: bool = False) -> None:
    """Let the first call of a function of the system fail, before or after it has done its work."""
    call, left = getattr(os, name), [True]

    def failing(*args: Any, **options: Any) -> Any:
        if not left:
            return call(*args, **options)
        left.clear()
        if afterwards:
            call(*args, **options)
        raise OSError(code, os.strerror(code), args[0])

    monkeypatch.setattr(os, name, failing)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ENOSPC], ids=errno.errorcode.get)
@pytest.mark.parametrize(("name", "afterwards"), [("unlink", False), ("unlink", True), ("link", True)])
def test_an_error_while_a_file_gets_its_name_is_reported_as_it_is(name, afterwards, code, monkeypatch, capsys):
    write(x=X)
    fail(monkeypatch, name, code, afterwards=afterwards)
    run("compress", "x", code=1)
    assert capsys.readouterr().err == f"gcodec: error: x.gc: {os.strerror(code)}\n"
    assert contents() == {"x": X}


@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM, errno.EOPNOTSUPP], ids=errno.errorcode.get)
def test_without_hard_links_a_file_gets_its_name_all_the_same(code, monkeypatch):
    write(x=X)
    fail(monkeypatch, "link", code)
    run("compress", "x")
    assert sorted(contents()) == ["x", "x.gc"]


def test_a_name_that_a_server_has_given_before_it_was_asked_again_is_ours(monkeypatch):
    write(x=X)
    fail(monkeypatch, "link", errno.EEXIST, afterwards=True)
    run("compress", "x")
    assert sorted(contents()) == ["x", "x.gc"]


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.EIO, os.strerror(errno.EIO)), (errno.EEXIST, "exists already"), (errno.EPERM, "exists already")],
)
def test_a_file_that_has_just_appeared_is_kept(code, words, monkeypatch, capsys):
    write(x=X)

    def appear(*args: Any, **options: Any) -> None:
        Path("x.gc").write_bytes(b"another's")
        raise OSError(code, os.strerror(code), args[0])

    monkeypatch.setattr(os, "link", appear)
    run("compress", "x", code=1)
    error = capsys.readouterr().err
    assert error.startswith("gcodec: error: x.gc: ") and words in error
    assert contents() == {"x": X, "x.gc": b"another's"}


def test_an_error_of_the_lock_of_a_series_has_its_name(monkeypatch, capsys):
    write(**{"x-1": X})
    run("series", "add", "s", "x-1")
    close = os.close

    def failing(descriptor: int) -> None:
        is_lock = os.path.samestat(os.fstat(descriptor), Path("s/.lock").stat())
        close(descriptor)
        if is_lock:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", failing)
    run("series", "delete", "s", "1", code=1)
    assert capsys.readouterr().err == "gcodec: error: s/.lock: Input/output error\n"
