"""The laws of the command line about several files: all appear or none, whatever fails and whoever interrupts."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveWriter, output
from tests.cli.test_safety import POSIX, X, archive_of, change_after, contents, write
from tests.support import commands
from tests.support.commands import run

folder = commands.folder


@contextmanager
def handled(number: int, handler: Any) -> Iterator[None]:
    """Give a signal this handler for a block, whatever the tests run with."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@POSIX
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_during_the_renames_waits_for_them(number, code, force, monkeypatch):
    names = [f"f{n}" for n in range(20)]
    write(**{"a.gc": archive_of(**dict.fromkeys(names, X))})
    if force:
        write(**dict.fromkeys(names, b"old"))
    change_after(monkeypatch, output, "_rename", lambda: os.kill(os.getpid(), number))
    with handled(number, signal.SIG_DFL):
        run("decompress", "a.gc", *(["-f"] if force else []), code=code)
    assert contents() == {"a.gc": Path("a.gc").read_bytes(), **dict.fromkeys(names, X)}


@POSIX
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_decides_the_exit_code_also_where_compiled_code_makes_another_error_of_it(number, code, monkeypatch):
    write(x=X)

    def interrupt() -> None:
        try:
            os.kill(os.getpid(), number)
            list(range(1000))
        except BaseException as error:
            raise SystemError("returned a result with an exception set") from error

    change_after(monkeypatch, ArchiveWriter, "add", interrupt)
    with handled(number, signal.SIG_DFL):
        run("compress", "x", code=code)
    assert contents() == {"x": X}


@POSIX
@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGINT, signal.SIGINT, 130),
        (signal.SIGINT, signal.SIGTERM, 130),
        (signal.SIGHUP, signal.SIGTERM, 143),
    ],
)
def test_a_second_signal_does_not_cut_off_what_the_first_one_has_removed(first, second, code, monkeypatch):
    write(x=X)
    abort = output.Staging.abort

    def interrupted(staging: output.Staging) -> None:
        os.kill(os.getpid(), second)
        abort(staging)

    change_after(monkeypatch, ArchiveWriter, "add", lambda: os.kill(os.getpid(), first))
    monkeypatch.setattr(output.Staging, "abort", interrupted)
    with handled(first, signal.SIG_DFL), handled(second, signal.SIG_DFL):
        run("compress", "x", code=code)
    assert contents() == {"x": X}


@POSIX
def test_a_second_interrupt_of_a_save_leaves_no_partial_file(monkeypatch):
    abort, interrupts = output.Staging.abort, [KeyboardInterrupt]

    def interrupted(staging: output.Staging) -> None:
        if interrupts:
            raise interrupts.pop()
        abort(staging)

    def interrupt() -> None:
        raise KeyboardInterrupt

    change_after(monkeypatch, ArchiveWriter, "add", interrupt)
    monkeypatch.setattr(output.Staging, "abort", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gcodec.save({"a": np.arange(9)}, "a.gc")
    assert contents() == {}


@POSIX
def test_every_signal_that_was_held_back_has_its_effect(monkeypatch):
    arrived: list[int] = []
    with handled(signal.SIGINT, signal.default_int_handler), handled(signal.SIGTERM, lambda *_: arrived.append(1)):
        with pytest.raises(KeyboardInterrupt), output.signals_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert not arrived
        assert arrived == [1]
        set_handler = signal.signal

        def interrupted(number: int, handler: Any) -> Any:
            before = set_handler(number, handler)
            if handler is signal.default_int_handler:
                os.kill(os.getpid(), number)
            return before

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), output.signals_deferred():
            patch.setattr(signal, "signal", interrupted)
        os.kill(os.getpid(), signal.SIGTERM)  # whose handler was not given back
        assert arrived == [1, 1]


@POSIX
def test_a_signal_that_is_ignored_as_under_nohup_stays_ignored(monkeypatch):
    write(x=X)
    change_after(monkeypatch, ArchiveWriter, "add", lambda: os.kill(os.getpid(), signal.SIGHUP))
    with handled(signal.SIGHUP, signal.SIG_IGN):
        run("compress", "x")


@pytest.mark.parametrize("force", [False, True])
def test_renames_are_taken_back_if_one_fails(force, monkeypatch, capsys):
    names = [f"f{n}" for n in range(5)]
    write(**{"a.gc": archive_of(**dict.fromkeys(names, X))})
    write(**({"f0": b"old", "f2": b"older"} if force else {}))
    before = contents()

    def appear() -> None:  # a folder can be had in no way, a file only by force
        if not Path("f3").exists():
            Path("f3").mkdir() if force else Path("f3").write_bytes(b"mine")

    change_after(monkeypatch, output, "_rename", appear)
    run("decompress", "a.gc", *(["-f"] if force else []), code=1)
    assert "f3: " in capsys.readouterr().err
    assert contents() == before | ({} if force else {"f3": b"mine"})


@pytest.mark.parametrize("is_free", [True, False])
def test_renames_are_taken_back_where_files_cannot_have_two_names(is_free, monkeypatch):
    names = [f"f{n}" for n in range(3)]
    write(**{"a.gc": archive_of(**dict.fromkeys(names, X))}, f0=b"old", f2=b"older")
    before, replace = contents(), Path.replace

    def refuse(*names: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def fail_at_the_last(path: Path, target: Path) -> Path:
        if path.suffix == ".partial" and target.name == "f2":
            raise OSError(errno.EIO, "Input/output error")
        if path.suffix == ".replaced" and not is_free:
            raise OSError(errno.EIO, "Input/output error")
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)  # as on a stick, or for a file of another user
        patch.setattr(Path, "replace", fail_at_the_last)
        run("decompress", "a.gc", "-f", code=1)
    left = contents()
    if not is_free:  # what has lost its name is still there
        assert sorted(data for name, data in left.items() if name.endswith(".replaced")) == [b"old", b"older"]
    else:
        assert left == before
        run("decompress", "a.gc", "-f")
        assert contents() == {**before, **dict.fromkeys(names, X)}


def test_folders_made_for_nothing_are_removed_with_all_their_parents():
    data = bytearray(archive_of(x=X))
    data[len(data) // 3] ^= 1
    write(**{"a.gc": bytes(data)})
    run("decompress", "a.gc", "-o", "new/deep/folder/", code=1)
    assert contents() == {"a.gc": bytes(data)} and not Path("new").exists()
