"""The laws of the command line about files: none is lost, replaced unasked, half restored or laid open to others."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter, output
from gcodec.archive.file_state import FileState
from tests.archive.test_files import npy, npz
from tests.support import commands
from tests.support.children import become, forked
from tests.support.commands import run

X = npy(np.arange(2000, dtype=np.float32))
POSIX = pytest.mark.skipif(os.name != "posix", reason="files as on Unix")
#: What only an owner or root may do is tried as somebody else.
needs_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="changes users")


folder = commands.folder


def write(**files: bytes) -> None:
    for name, data in files.items():
        Path(name).write_bytes(data)


def contents() -> dict[str, bytes]:
    """Return every regular file below the folder, partial ones included."""
    return {path.as_posix(): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


def as_another_user(function: Callable[[], int | None]) -> tuple[int, str]:
    """Call a function in a process of user and group 4001; returns its result, the exit code, and what it printed."""

    def call() -> int | None:
        become(4001)
        return function()

    return forked(call).wait()


def archive_of(**files: bytes) -> bytes:
    """Return an archive with files of these names, made in a folder of its own."""
    Path("made").mkdir()
    for name, data in files.items():
        Path("made", name).write_bytes(data)
    run("compress", *(f"made/{name}" for name in files), "-o", "made.gc", "-q")
    data = Path("made.gc").read_bytes()
    for path in (*Path("made").iterdir(), Path("made.gc")):
        path.unlink()
    Path("made").rmdir()
    return data


# --------------------------------------------------------------------------------------------- The same file twice


@pytest.mark.parametrize("options", [[], ["-f"], ["--rm"], ["-f", "--rm"], ["--only", "*"], ["--only", "*", "-f"]])
def test_each_of_many_archives_is_not_compared_with_all_others(options, monkeypatch):
    """Twice as many archives take twice as many looks at files, whether what is restored replaces files or not."""
    looks: list[Any] = []
    look_at = FileState.of

    def counted(file: Any) -> FileState:
        looks.append(file)
        return look_at(file)

    monkeypatch.setattr(FileState, "of", counted)

    def looks_at(n: int) -> int:
        names = [f"{n}/{i}.npy" for i in range(n)]
        Path(str(n)).mkdir()
        write(**dict.fromkeys(names, X))
        run("compress", *names)
        for name in () if "-f" in options else names:
            Path(name).unlink()
        looks.clear()
        run("decompress", *(f"{name}.gc" for name in names), "-o", f"{n}/", *options)
        assert all(Path(name).read_bytes() == X for name in names)
        return len(looks)

    assert looks_at(20) <= 2 * looks_at(10)


@pytest.mark.parametrize("options", [["-f"], ["-f", "--rm"], ["-f", "--json"]])
@pytest.mark.parametrize("target", ["x", "./x", "sub/../x", "link", "hard"])
def test_an_input_is_not_replaced_by_its_own_archive(target, options, capsys):
    write(x=X)
    Path("sub").mkdir()
    Path("link").symlink_to("x")
    Path("hard").hardlink_to("x")
    before = contents()
    run("compress", "x", "-o", target, *options, code=2)
    assert "is the same file as the input" in (error := capsys.readouterr().err) or "is an input itself" in error
    assert contents() == before


@pytest.mark.parametrize("options", [["-f"], ["-f", "--rm"]])
@pytest.mark.parametrize("target", ["a.gc", "link", "hard"])
def test_an_archive_is_not_replaced_by_its_own_file(target, options, capsys):
    Path("a.gc").write_bytes(archive_of(x=X))
    Path("link").symlink_to("a.gc")
    Path("hard").hardlink_to("a.gc")
    before = contents()
    run("decompress", "a.gc", "-o", target, *options, code=2)
    run("decompress", "a.gc", "--only", "x", "-o", target, "-f", code=2)
    assert "replaced" in capsys.readouterr().err and contents() == before


@pytest.mark.parametrize("options", [["-f"], ["-f", "--rm"]])
def test_an_archive_that_holds_a_file_of_its_own_name_is_kept(options, capsys):
    write(x=archive_of(x=X))
    before = contents()
    run("decompress", "x", *options, code=2)
    assert "x: is an input itself, and would be replaced" in capsys.readouterr().err and contents() == before
    run("decompress", "x", "-o", "out/", *options)
    assert Path("out/x").read_bytes() == X


def test_a_later_input_is_not_replaced_by_an_earlier_one():
    write(x=X, **{"x.gc": X})
    before = contents()
    run("compress", "x", "x.gc", "-f", "--rm", code=2)
    assert contents() == before
    write(a=archive_of(b=X), b=archive_of(c=X))
    before = contents()
    run("decompress", "a", "b", "-f", "--rm", code=2)
    assert contents() == before


def test_a_tensor_is_not_written_over_its_archive():
    write(**{"t.npy": archive_of(t=X)})
    before = contents()
    run("decompress", "t.npy", "--only", "t", "-f", code=2)
    assert contents() == before


def test_a_base_is_not_replaced_by_what_needs_it(capsys):
    write(**{"old.npy": X, "new.npy": npy(np.arange(2000, dtype=np.float32) + 1)})
    run("compress", "new.npy", "--base", "old.npy", "-o", "x.gc")
    before = contents()
    run("decompress", "x.gc", "--base", "old.npy", "-o", "old.npy", "-f", code=2)
    assert "is needed as --base" in capsys.readouterr().err and contents() == before


def test_a_file_of_an_archived_folder_is_not_replaced_unless_it_is_an_archive(capsys):
    Path("run").mkdir()
    write(**{"run/x.npy": X, "run/y.npy": X})
    before = contents()
    run("compress", "run", "-o", "run/x.npy", "-f", code=2)
    assert contents() == before
    run("compress", "run", "-o", "run/all.gc")
    Path("other.gc").symlink_to("run/all.gc")
    run("compress", "run", "-o", "run/all.gc", "-f")
    with ArchiveReader("run/all.gc") as archive:
        assert [entry.path for entry in archive.files] == ["run/x.npy", "run/y.npy"]


@POSIX
def test_inputs_are_removed_only_for_regular_files():
    write(x=X, **{"x.gc": archive_of(x=X)})
    os.mkfifo("pipe")
    before = contents()
    run("compress", "x", "-o", "/dev/null", "--rm", code=2)
    run("decompress", "x.gc", "-o", "/dev/null", "--rm", code=2)
    run("compress", "pipe", "--rm", code=2)
    assert contents() == before


def test_removing_an_input_that_is_a_link_keeps_its_file():
    write(x=X)
    Path("link").symlink_to("x")
    run("compress", "link", "--rm")
    assert not Path("link").is_symlink() and Path("x").read_bytes() == X
    run("decompress", "link.gc")
    assert Path("link").read_bytes() == X


# ------------------------------------------------------------------------------------- Inputs that change meanwhile


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(500)
        file.write(b"else")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))  # clocks of file systems are coarse


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


CHANGES = {
    grow: "grew from 8128 to 8132 bytes",
    rewrite: "was written to",
    replace: "was replaced by another file",
    remove: "was taken away",
}


def change_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[[], None]) -> None:
    """Let ``change`` happen after each call of a function."""
    function = getattr(owner, name)

    def then_change(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        change()
        return result

    monkeypatch.setattr(owner, name, then_change)


@pytest.mark.parametrize("options", [[], ["--rm"]])
@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_changes_while_it_is_read_is_kept_and_reported(change, options, monkeypatch, capsys):
    write(**{"x.npy": X})
    change_after(monkeypatch, ArchiveWriter, "add", lambda: change(Path("x.npy")))
    run("compress", "x.npy", *options, code=1)
    error = capsys.readouterr().err
    assert f"gcodec: error: x.npy: {CHANGES[change]}" in error and "the archive holds what was read" in error
    assert Path("x.npy").exists() is (change is not remove)
    run("decompress", "x.npy.gc", "-o", "y.npy")
    assert Path("y.npy").read_bytes() == X


def test_a_changed_file_of_a_folder_is_named_and_the_result_lists_it(monkeypatch, capsys):
    Path("run").mkdir()
    write(**{"run/x.npy": X, "run/y.npy": X})
    count = iter(range(9))
    change_after(monkeypatch, ArchiveWriter, "add", lambda: grow(Path("run/y.npy")) if next(count) == 1 else None)
    run("compress", "run", "--json", code=1)
    [result] = json.loads(capsys.readouterr().out)
    [problem] = result["problems"]
    assert "run/y.npy: grew" in problem


@pytest.mark.parametrize("change", CHANGES)
def test_an_input_that_changes_before_it_is_removed_is_kept(change, monkeypatch, capsys):
    write(**{"x.npy": X})
    change_after(monkeypatch, output, "sync_to_disk", lambda: None)
    from gcodec.cli import compress

    change_after(monkeypatch, compress, "sync_to_disk", lambda: change(Path("x.npy")))
    run("compress", "x.npy", "--rm", code=1)
    assert "x.npy: " in capsys.readouterr().err and Path("x.npy").exists() is (change is not remove)


@pytest.mark.parametrize("data", [X, npz({"a": np.arange(300, dtype=np.float32)}, compressed=True)], ids=["npy", "npz"])
def test_an_archive_is_compared_with_its_input_before_that_is_removed(data, monkeypatch, capsys):
    write(x=data)

    def differ() -> None:  # with its old time and size: only its bytes tell
        before = Path("x").stat()
        other = npz({"a": np.arange(1, 301, dtype=np.float32)}, compressed=True) if data != X else X[:-1] + b"!"
        Path("x").write_bytes(other)
        os.truncate("x", before.st_size)
        os.utime("x", ns=(before.st_atime_ns, before.st_mtime_ns))

    change_after(monkeypatch, ArchiveWriter, "add", differ)
    run("compress", "x", "--rm", code=1)
    assert "differs" in capsys.readouterr().err or data != X
    assert Path("x").exists()


def test_an_archive_that_was_replaced_while_it_was_read_is_kept(monkeypatch, capsys):
    write(**{"x.gc": archive_of(x=X)})
    from gcodec.cli import decompress

    change_after(monkeypatch, decompress, "sync_to_disk", lambda: replace(Path("x.gc")))
    run("decompress", "x.gc", "--rm", code=1)
    assert "x.gc: was replaced by another file" in capsys.readouterr().err
    assert Path("x.gc").exists() and Path("x").read_bytes() == X


@POSIX
@pytest.mark.parametrize("verb", ["compress", "decompress"])
def test_what_was_written_is_on_the_disk_before_an_input_is_removed(verb, monkeypatch, folder):
    write(**({"x": X} if verb == "compress" else {"x.gc": archive_of(x=X)}))
    source, target = ("x", "x.gc") if verb == "compress" else ("x.gc", "x")
    synced: list[tuple[int, int]] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        assert Path(source).exists()
        found = os.fstat(descriptor)
        synced.append((found.st_dev, found.st_ino))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    run(verb, source)
    assert not synced  # only a removal is worth the wait
    Path(target).unlink()
    run(verb, source, "--rm")
    assert {(found.st_dev, found.st_ino) for found in (Path(target).stat(), folder.stat())} <= set(synced)
    assert not Path(source).exists()


@POSIX
@pytest.mark.parametrize("verb", ["compress", "decompress"])
def test_an_input_is_kept_if_the_name_of_what_was_written_does_not_reach_the_disk(verb, monkeypatch, folder, capsys):
    write(**({"x": X} if verb == "compress" else {"x.gc": archive_of(x=X)}))
    source = "x" if verb == "compress" else "x.gc"
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    run(verb, source, "--rm", code=1)
    assert f"{folder}: Input/output error" in capsys.readouterr().err
    assert Path(source).exists()


# ------------------------------------------------------------------------------------------- Permissions and times


def mode(path: str | Path) -> int:
    return Path(path).stat().st_mode & 0o7777


@POSIX
@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o644, 0o666, 0o444, 0o755])
def test_permissions_and_time_of_a_single_file_are_kept_both_ways(permissions):
    write(x=X)
    Path("x").chmod(permissions)
    os.utime("x", ns=(10**18, 10**18 + 123_456_789))
    run("compress", "x")
    assert mode("x.gc") == permissions and Path("x.gc").stat().st_mtime_ns == 10**18 + 123_456_789
    run("decompress", "x.gc", "-o", "y")
    assert mode("y") == permissions and Path("y").stat().st_mtime_ns == 10**18 + 123_456_789


@POSIX
def test_an_archive_of_several_files_is_for_those_who_may_read_all():
    Path("run").mkdir()
    write(**{"run/x": X, "run/secret": X, "t.npy": X})
    Path("run/secret").chmod(0o600)
    run("compress", "run")
    run("compress", "run/x", "t.npy", "-o", "open.gc")
    Path("plain").touch()
    assert mode("run.gc") == mode("plain") & 0o700 and mode("open.gc") == mode("plain")
    run("decompress", "run.gc", "-o", "out/")
    assert {mode("out/run/x"), mode("out/run/secret")} == {mode("plain") & 0o700}
    Path("open.gc").chmod(0o600)
    run("decompress", "open.gc", "--only", "t", "-o", "tensor.npy")
    assert mode("tensor.npy") == mode("plain") & 0o700


@POSIX
def test_no_one_else_can_read_a_file_before_it_has_its_permissions(monkeypatch):
    write(x=X)
    Path("x").chmod(0o600)
    modes: list[int] = []
    change_after(monkeypatch, ArchiveWriter, "add", lambda: modes.extend(map(mode, Path().glob(".*"))))
    run("compress", "x")
    assert modes == [0o600]


@needs_root
def test_a_file_whose_owner_cannot_be_kept_gets_no_wider_permissions(folder):
    write(x=X, **{"y.npy": X})
    Path("x").chmod(0o640)
    os.chown("x", 4002, 4003)
    run("compress", "x")
    found = Path("x.gc").stat()
    assert (found.st_uid, found.st_gid, mode("x.gc")) == (4002, 4003, 0o640)
    folder.chmod(0o777)
    attributes = output.Attributes.like(Path("x").stat())
    Path("x.gc").chmod(0o600)
    os.chown("x.gc", 4001, 4001)
    as_another_user(lambda: attributes.give_to(Path("x.gc")))
    assert mode("x.gc") == 0o600  # its group is another, which had no rights


# ------------------------------------------------------------------------------------------- Closed standard streams


def process(*arguments: str, redirect: str = "", stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command in a shell with a redirection."""
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    command = ["sh", "-c", f'exec "$0" -m gcodec "$@" {redirect}', sys.executable, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, env=environment)


@POSIX
@pytest.mark.parametrize(
    ("redirect", "code", "error"),
    [
        (">&-", 0, b""),
        ("<&-", 0, b""),
        ("2>&-", 0, b""),
        (">&- 2>&- <&-", 0, b""),
        ("2>/dev/full", 0, b""),
        (">/dev/full", 1, b"gcodec: error: No space left on device\n"),
    ],
)
def test_work_on_files_is_done_without_standard_streams(redirect, code, error):
    write(x=X)
    done = process("compress", "x", redirect=redirect)
    assert (done.returncode, done.stderr) == (code, error)
    with ArchiveReader("x.gc") as archive:
        assert archive.files[0].size == len(X)


@POSIX
@pytest.mark.parametrize("arguments", ["decompress {}/x.gc --only x", "inspect x.gc", "decompress {}/x.gc -o y"])
def test_a_working_folder_that_is_gone_is_named(arguments, folder):
    write(**{"x.gc": archive_of(**{"x.npy": X})})
    (folder / "gone").mkdir()
    command = f'cd gone && rmdir ../gone && "$0" -m gcodec {arguments.format(folder)}'
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1]), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, check=False, env=environment)
    said = b"gcodec: error: the working folder has been removed: change to another\n"
    assert (done.returncode, done.stderr) == (1, said)


@POSIX
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["with a buffer", "without a buffer"])
@pytest.mark.parametrize("arguments", ["decompress x.gc -o -", "compress x -o -", "inspect x.gc --json --chunks"])
def test_a_result_that_is_cut_off_is_an_error(arguments, unbuffered, monkeypatch):
    import resource

    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    write(x=Random(1).randbytes(1 << 16), **{"x.gc": archive_of(x=Random(1).randbytes(1 << 16))})
    assert process(*arguments.split(), redirect="> out").returncode == 0
    limit = (Path("out").stat().st_size - 1,) * 2
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    with open("out", "wb") as out:  # which may have a byte less now, as on a full disk
        cut = subprocess.run(
            [sys.executable, "-m", "gcodec", *arguments.split()],
            stdout=out,
            stderr=subprocess.PIPE,
            check=False,
            env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        )
    assert cut.returncode == 1 and cut.stderr.endswith(b"gcodec: error: File too large\n")


@POSIX
@pytest.mark.parametrize(
    ("arguments", "redirect", "error"),
    [
        (["decompress", "x.gc", "-o", "-"], ">&-", b"standard output is closed"),
        (["inspect", "x.gc"], ">&-", b"standard output is closed"),
        (["decompress", "--list", "x.gc", "--json"], ">&-", b"standard output is closed"),
        (["--help"], ">&-", b"standard output is closed"),
        (["compress", "-"], "<&-", b"standard input is closed"),
        (["inspect", "x.gc"], ">/dev/full", b"No space left on device"),
        (["inspect", "x.gc"], "1</dev/null", b"Bad file descriptor"),
        (["decompress", "nowhere.gc"], "2>&-", b""),
    ],
)
def test_a_result_that_nobody_can_read_is_an_error_in_one_line(arguments, redirect, error):
    write(**{"x.gc": archive_of(x=X)})
    done = process(*arguments, redirect=redirect)
    wanted = b"gcodec: error: " + error + b"\n" if error else b""
    assert (done.returncode, done.stderr, done.stdout) == (1, wanted, b"")


def test_a_missing_stream_is_no_traceback_where_the_command_line_is_called(monkeypatch):
    write(x=X)
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    run("compress", "x")
    run("compress", "x", code=1)
    run("compress", "-", "-o", "y.gc", code=1)
    sys.stderr.close()  # the one that it has opened
    assert set(contents()) == {"x", "x.gc"}


@pytest.mark.parametrize("options", [[], ["--rm"], ["--only", "x"]])
def test_archives_of_one_command_do_not_replace_what_another_restored(options, capsys):
    arrays = {"a": np.arange(9, dtype=np.float32), "b": np.ones(5, np.float32)}
    for folder_, array in arrays.items():
        Path(folder_).mkdir()
        write(**{f"{folder_}/x.npy": npy(array)})
        run("compress", f"{folder_}/x.npy", "--rm")
    before = contents()
    run("decompress", "a/x.npy.gc", "b/x.npy.gc", "-o", "out/", "-f", *options, code=2)
    assert "out/x.npy: a/x.npy.gc has just been restored to it" in capsys.readouterr().err
    after = contents()
    assert np.array_equal(np.load("out/x.npy"), arrays["a"]) and after["b/x.npy.gc"] == before["b/x.npy.gc"]
    assert after.keys() == before.keys() - ({"a/x.npy.gc"} if "--rm" in options else set()) | {"out/x.npy"}
    run("decompress", "b/x.npy.gc", "-o", "out/", "-f", *options)  # another command may
    assert np.array_equal(np.load("out/x.npy"), arrays["b"])
