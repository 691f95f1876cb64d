"""Devices, pipes and unusual names on the command line: written to directly, or refused with a reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.cli import compress, main
from tests.archive.test_files import npy
from tests.cli.test_safety import (
    POSIX,
    X,
    archive_of,
    as_another_user,
    change_after,
    contents,
    needs_root,
    process,
    write,
)
from tests.support import commands
from tests.support.commands import run
from tests.support.special_files import no_waiting, put

folder = commands.folder


@POSIX
def test_nothing_is_written_through_a_link_to_a_pipe_or_device(capsys):
    write(x=X, **{"a.gc": archive_of(x=X)})
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    Path("link").symlink_to("pipe")
    Path("null").symlink_to("/dev/null")
    Path("out").mkdir()
    os.mkfifo("out/x")
    for command in (
        ["compress", "x", "-o", "link"],
        ["compress", "x", "-o", "null", "-f"],
        ["decompress", "a.gc", "-o", "link", "-f"],
        ["decompress", "a.gc", "-o", "out/", "-f"],
    ):
        run(*command, code=1)
        assert "not a regular file; refusing to write to it" in capsys.readouterr().err
    with pytest.raises(BlockingIOError):
        assert os.read(reader, 1) == b""  # without a writer: nothing; with one that wrote nothing: an error
        raise BlockingIOError
    os.close(reader)
    run("decompress", "a.gc", "-o", "/dev/null")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
@pytest.mark.parametrize("name", ["/dev/zero", "link", "-"])
def test_a_device_without_an_end_is_no_empty_file(name):
    Path("link").symlink_to("/dev/zero")
    lines = [["compress", name, "-o", "x.gc"], ["series", "add", "s", name, "--step", "1"]]
    for arguments in lines[:1] if name == "-" else lines:
        done = process(*arguments, redirect="< /dev/zero")
        assert done.returncode == 1 and done.stderr.count(b"\n") == 1 and b"is a device without an end" in done.stderr
    assert list(contents()) == [] and not Path("s").exists()
    run("compress", "/dev/null", "-o", "x.gc")
    run("decompress", "x.gc", "-o", "empty")
    assert Path("empty").read_bytes() == b""


@POSIX
def test_output_can_go_to_the_links_of_the_system_itself():
    write(**{"a.gc": archive_of(x=X)})
    assert process("decompress", "a.gc", "-o", "/dev/stdout", "-q").stdout == X
    assert process("decompress", "a.gc", "-o", "/dev/stdout", "-q", redirect="> file").returncode == 0
    assert Path("file").read_bytes() == X and Path("/dev/stdout").is_symlink()


@POSIX
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["compress", "x"], "/dev/stdout"),
        (["decompress", "a.gc"], "/dev/fd/1"),
        (["decompress", "n.npy.gc", "--only", "n"], "/proc/self/fd/1"),
        (["series", "restore", "s"], "/dev/stdout"),
    ],
)
def test_by_whatever_name_standard_output_has_the_bytes_alone(command, name):
    write(x=X, **{"a.gc": archive_of(x=X), "n.npy": npy(np.arange(9.0))})
    run("compress", "n.npy")
    run("series", "add", "s", "x", "--step", "1")
    expected = process(*command, "-o", "-")
    done = process(*command, "-o", name)
    assert expected.returncode == done.returncode == 0 and done.stdout == expected.stdout
    assert done.stderr.count(b"\n") == expected.stderr.count(b"\n")
    write(file=b"before")
    assert process(*command, "-o", name, redirect=">> file").returncode == 0
    assert Path("file").read_bytes() == b"before" + expected.stdout


@pytest.mark.parametrize("name", ["я" * 120, "日" * 80, "x" * 240, "é" * 10 + "日" * 70], ids=["2", "3", "1", "mixed"])
def test_names_of_240_bytes_work_in_every_script(name):
    write(**{name: X})
    run("compress", name)
    run("decompress", f"{name}.gc", "-f")
    assert contents() == {name: X, f"{name}.gc": Path(f"{name}.gc").read_bytes()}


ODD = [b"a\nb.npy", b"back\\slash", b"\xff\xfe.npy", b"bell\a", b"escape\x1b[31m"]


@POSIX
def test_files_with_odd_names_are_skipped_with_a_line_each(capsys, monkeypatch):
    for path in [b"run", *ODD[:3]]:
        os.makedirs(os.path.join(b"run", path))  # noqa: PTH118, PTH103 - of bytes
    places = [b"run/" + name for name in ODD] + [os.path.join(b"run", ODD[2], b"in.npy")]  # noqa: PTH118
    for place in places[3:]:
        Path(os.fsdecode(place)).write_bytes(X)
    Path("run/good.npy").write_bytes(X)
    run("compress", "run", "-o", "run.gc", code=1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6 and all(line.startswith("gcodec: error: ") and ": skipped: " in line for line in lines)
    assert all(line.isprintable() for line in lines)
    with ArchiveReader("run.gc") as archive:
        assert [entry.path for entry in archive.files] == ["run/good.npy"]
    run("compress", "run", "-o", "run.gc", "-f", "--json", code=1)
    assert len(json.loads(capsys.readouterr().out)[0]["problems"]) == 6
    monkeypatch.chdir("run")
    run("compress", os.fsdecode(ODD[3]), code=1)  # a file that is named itself: nothing is left to archive


@POSIX
@pytest.mark.parametrize("name", ["a:b.npy", "new\nline.npy", "back\\slash.npy"])
def test_a_named_file_whose_name_no_archive_can_hold_says_what_to_do(name, capsysbinary):
    Path(name).write_bytes(X)
    run("compress", name, code=1)
    error = capsysbinary.readouterr().err.decode()
    assert "its path in the archive " in error and "another name, or from standard input" in error
    with Path(name).open("rb") as file:
        archive = subprocess.run([sys.executable, "-m", "gcodec", "-q"], stdin=file, capture_output=True, check=True)
    Path("x.npy.gc").write_bytes(archive.stdout)
    run("decompress", "x.npy.gc", "-o", "x.npy")
    assert Path("x.npy").read_bytes() == X


@POSIX
def test_a_folder_named_like_a_drive_and_names_that_no_encoding_has_are_printed(capsys):
    Path("a:b").mkdir()
    Path("a:b/x.npy").write_bytes(X)
    run("compress", "a:b", "-o", "x.gc", code=1)
    assert not Path("x.gc").exists() and "skipped" in capsys.readouterr().err
    target = os.fsdecode(b"\xff.gc")
    run("compress", "a:b/x.npy", "-o", target)
    run("inspect", target)
    run("decompress", "--list", target)
    run("verify", target, "--json")
    printed = capsys.readouterr().out
    printed.encode()
    assert "\\udcff.gc" in printed


@needs_root
def test_unreadable_files_and_folders_are_skipped_with_a_line_each(monkeypatch, request):
    place = Path(tempfile.mkdtemp())  # pytest's own folders are closed to others
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o777)
    monkeypatch.chdir(place)
    Path("run/closed").mkdir(parents=True)
    write(**{"run/closed/x.npy": X, "run/secret.npy": X, "run/good.npy": X})
    Path("run/closed").chmod(0)
    Path("run/secret.npy").chmod(0)
    code, error = as_another_user(lambda: main(["compress", "run", "-q", "--threads", "1"]))
    assert code == 1
    assert "run/closed: skipped: Permission denied" in error and "run/secret.npy: skipped: Permission denied" in error
    with ArchiveReader("run.gc") as archive:
        assert [entry.path for entry in archive.files] == ["run/good.npy"]


def test_errors_of_decompress_name_the_archive(capsys):
    data = bytearray(archive_of(**{"x.npy": X}))
    data[len(data) // 3] ^= 1
    write(**{"bad.gc": bytes(data), "zeros.npy": npy(np.zeros(5000, np.float32))})
    for command in (["decompress", "bad.gc"], ["decompress", "bad.gc", "--only", "x"], ["verify", "bad.gc"]):
        run(*command, code=1)
        assert capsys.readouterr().err.startswith("gcodec: error: bad.gc: x.npy:")
    run("decompress", "bad.gc", "--only", "x", "--max-output-bytes", "100", code=1)
    assert capsys.readouterr().err.startswith("gcodec: error: bad.gc: x.npy:x: 8000 bytes")


def test_an_output_in_a_missing_folder_names_the_folder(capsys):
    write(**{"x.npy": X, "file": b""})
    for target, named in (("missing/x.gc", "missing"), ("missing/deep/x.gc", "missing/deep"), ("file/x.gc", "file")):
        run("compress", "x.npy", "-o", target, code=1)
        error = capsys.readouterr().err
        assert error.startswith(f"gcodec: error: {named}: ") and ".partial" not in error
    run("compress", "x.npy", "-o", "y" * 300, code=1)
    assert capsys.readouterr().err.startswith(f"gcodec: error: {'y' * 300}: File name too long")


@pytest.mark.parametrize("data", [b"", b"hello", bytes(100), b"\x80\x02 whatever"], ids=len)
def test_inspect_refuses_what_it_knows_nothing_about(data, capsys):
    write(**{"x.pt": data})
    run("inspect", "x.pt", code=1)
    printed = capsys.readouterr()
    assert "x.pt: neither an archive, nor a frame, nor a tensor file" in printed.err and not printed.out
    run("inspect", "x.pt", "--json", code=1)


@POSIX
def test_what_is_no_file_in_a_folder_is_skipped_with_a_line_each(capsys):
    for name in ("hf", "blobs", "lost"):
        Path(name).mkdir()
    write(**{"hf/config.json": b"{}", "blobs/good": X})
    Path("hf/model.safetensors").symlink_to("../blobs/abc")
    Path("hf/good.npy").symlink_to("../blobs/good")
    Path("hf/chain").symlink_to("model.safetensors")
    Path("hf/loop").symlink_to("loop")
    Path("hf/folder").symlink_to("../blobs")  # links to folders are not followed, but named
    os.mkfifo("hf/pipe")
    run("compress", "hf", code=1)
    here = Path.cwd()
    assert capsys.readouterr().err.splitlines() == [
        f"gcodec: error: {here}/hf/{line}"
        for line in (
            "folder: skipped: is a link to a folder",
            f"chain: skipped: is a link to {here}/blobs/abc, which is not there",
            "loop: skipped: is a link that leads back to itself",
            "model.safetensors: skipped: is a link to ../blobs/abc, which is not there",
            "pipe: skipped: is not a regular file",
        )
    ]
    with ArchiveReader("hf.gc") as archive:
        assert [entry.path for entry in archive.files] == ["hf/config.json", "hf/good.npy"]
    Path("lost/x").symlink_to("gone")
    run("compress", "lost", code=1)
    assert "lost: no files in this folder" in capsys.readouterr().err and not Path("lost.gc").exists()


@POSIX
def test_a_link_to_nothing_that_is_named_is_called_one(capsys):
    for name, target in (("model.npy", "../blobs/abc"), ("old.gc", "older.gc"), ("loop.gc", "loop.gc")):
        Path(name).symlink_to(target)
    missing = "is a link to {}, which is not there"
    for command, what in (
        (["compress", "model.npy"], f"model.npy: {missing.format('../blobs/abc')}"),
        (["compress", "model.np[y]"], f"model.npy: {missing.format('../blobs/abc')}"),
        (["decompress", "old.gc"], f"old.gc: {missing.format('older.gc')}"),
        (["verify", "old.gc"], f"old.gc: {missing.format('older.gc')}"),
        (["inspect", "old.gc"], f"old.gc: {missing.format('older.gc')}"),
        (["compress", "loop.gc"], "loop.gc: is a link that leads back to itself"),
        (["decompress", "loop.gc"], "loop.gc: is a link that leads back to itself"),
    ):
        run(*command, code=1)
        assert capsys.readouterr().err == f"gcodec: error: {what}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="files as of Linux")
@pytest.mark.parametrize("name", ["/proc/version", "/proc/self/environ", "/sys/devices/system/cpu/online"])
def test_files_that_the_system_writes_as_they_are_read_are_archived_whole(name, capsys):
    """Such a file says that it is empty, or 4096 bytes long, whatever it holds."""
    Path("run").mkdir()
    Path("run/link").symlink_to(name)
    run("compress", name, "run", "-o", "all.gc")
    run("decompress", "all.gc", "-o", "back/")
    content = Path(name).read_bytes()
    assert content and {path.read_bytes() for path in Path("back").rglob("*") if path.is_file()} == {content}
    run("inspect", name, code=1)
    assert f"{name}: neither an archive" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_a_file_to_be_replaced_that_cannot_be_read_is_named(capsys):
    Path("run").mkdir()
    Path("run/all.gc").symlink_to("/proc/self/mem")
    run("compress", "run", "-o", "run/all.gc", "-f", code=1)
    assert capsys.readouterr().err == f"gcodec: error: {Path.cwd()}/run/all.gc: Input/output error\n"


@POSIX
def test_a_stream_that_does_not_wait_for_its_bytes_is_no_empty_one():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with open(reading, "rb") as stream, pytest.raises(BlockingIOError, match="no more bytes for now"):
        gcodec.compress_file(stream, "x.gc")
    os.close(writing)
    assert not Path("x.gc").exists()


@POSIX
def test_a_pipe_that_nobody_named_is_not_waited_for(monkeypatch, capsys):
    for name in ("run", "run/deep"):
        Path(name).mkdir()
    write(**{"run/x": X, "run/deep/y": X})
    os.mkfifo("run/pipe")
    with no_waiting():
        run("compress", "run/*", "-o", "all.gc", code=1)
        assert capsys.readouterr().err.startswith("gcodec: error: run/pipe: is not a regular file; name it")
        change_after(monkeypatch, compress, "_check_names", lambda: put("pipe", Path("run/deep/y")))
        run("compress", "run", "-o", "all.gc", code=1)
    errors = capsys.readouterr().err.splitlines()
    assert [line.partition("run/")[2] for line in errors] == [
        "pipe: skipped: is not a regular file",
        "deep/y: skipped: is not a regular file",
    ]
    with ArchiveReader("all.gc") as archive:
        assert [entry.path for entry in archive.files] == ["run/x"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["decompress", "x.gc", "--only=--"], "argument --only: must not be --"),
        (["decompress", "x.gc", "--output=--"], "argument -o/--output: must not be --"),
        (["compress", "x", "--rm", "-o", "-"], "--rm needs files that are compressed losslessly, not"),
    ],
)
def test_what_no_option_can_mean_is_refused(line, words, capsys):
    write(x=X)
    run("compress", "x")
    run(*line, code=2)
    assert words in capsys.readouterr().err
    assert Path("x").read_bytes() == X


@POSIX
def test_a_file_of_a_series_whose_name_no_archive_can_hold_is_named(capsys):
    name = "back\\slash-1"
    Path(name).write_bytes(X)
    run("series", "add", "s", name, code=1)
    assert capsys.readouterr().err.startswith("gcodec: error: back\\slash-1: its path in the archive has a backslash")


def test_damaged_steps_of_a_series_have_a_line_beside_json(capsys):
    write(**{"x-1": X})
    run("series", "add", "s", "x-1")
    write(**{"s/step-00000001.gc": b"damaged"})
    capsys.readouterr()
    run("series", "list", "s", "--json", code=1)
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)
    assert printed.err == f"gcodec: error: {row['problem']}\n"
