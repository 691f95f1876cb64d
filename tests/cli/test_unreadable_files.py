"""Files of a folder that cannot be read to their end: named, left out of the archive whole, and the rest is there."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from gcodec.archive import ArchiveReader, ArchiveWriter, writer
from gcodec.archive.whole_files import add_file
from gcodec.cli import display
from gcodec.errors import GcodecError, InvalidArgument
from tests.archive.test_files import npy
from tests.support import commands
from tests.support.commands import run

folder = commands.folder

#: Two files have the same tensor, which is stored once: with the first of them that can be read.
TENSOR = npy(np.random.default_rng(0).standard_normal(30_000).astype(np.float32))
FILES = {
    "run/a.npy": TENSOR,
    "run/b.bin": bytes(range(256)) * 1000,
    "run/c.npy": npy(np.random.default_rng(1).standard_normal(20_000).astype(np.float32)),
    "run/d.npy": TENSOR,
    "run/e.txt": b"words\n" * 10,
}

needs_preadv = pytest.mark.skipif(not hasattr(os, "preadv"), reason="files are read in another way here")


@pytest.fixture
def failing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, int], None]:
    """Write the files, cut into small parts; return what lets reads of one of them fail from some byte on."""
    (folder / "run").mkdir()
    for name, data in FILES.items():
        Path(name).write_bytes(data)
    defaults = cast(dict[str, Any], ArchiveWriter.__init__.__kwdefaults__)
    monkeypatch.setattr(ArchiveWriter.__init__, "__kwdefaults__", defaults | {"part_bytes": 1 << 14})
    read, failures = os.preadv, dict[tuple[int, int], tuple[int, int]]()

    def preadv(file: int, buffers: Any, at: int, *more: Any) -> int:
        found = os.fstat(file)
        limit, number = failures.get((found.st_dev, found.st_ino), (sys.maxsize, 0))
        if at + sum(len(buffer) for buffer in buffers) > limit:
            raise OSError(number, os.strerror(number))
        return read(file, buffers, at, *more)

    def fail(name: str, limit: int, number: int) -> None:
        found = Path(name).stat()
        failures.clear()
        failures[found.st_dev, found.st_ino] = limit, number

    monkeypatch.setattr(os, "preadv", preadv)
    return fail


def restored(archive: str) -> dict[str, bytes]:
    """Return the files of an archive, which are put into a folder of their own."""
    run("decompress", archive, "-o", "restored/", "-f", "-q")
    with ArchiveReader(archive) as reader:
        return {entry.path: Path("restored", entry.path).read_bytes() for entry in reader.files}


@needs_preadv
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_archived(failing, capsys, name, part, number):
    failing(name, int(part * len(FILES[name])), number)
    run("compress", "run", "-o", "run.gc", "-q", code=1)
    line = capsys.readouterr().err
    assert line.startswith("gcodec: error: ") and line.endswith(f"{name}: skipped: {os.strerror(number)}\n")
    assert line.count("\n") == 1
    run("verify", "run.gc", "-q")
    assert restored("run.gc") == {other: data for other, data in FILES.items() if other != name}
    capsys.readouterr()
    run("verify", "run.gc", "--against", "run", code=1)
    assert name in capsys.readouterr().err


@needs_preadv
def test_nothing_of_a_file_that_cannot_be_read_takes_room(failing):
    failing("run/c.npy", 70_000, errno.EIO)
    run("compress", "run", "-o", "run.gc", "-q", code=1)
    Path("run/c.npy").unlink()
    run("compress", "run", "-o", "without.gc", "-q")
    assert Path("run.gc").read_bytes() == Path("without.gc").read_bytes()


@needs_preadv
def test_a_file_that_is_named_and_one_whose_part_went_to_a_stream_are_errors(failing, capsys, monkeypatch):
    failing("run/c.npy", 70_000, errno.EIO)
    run("compress", "run/a.npy", "run/c.npy", "-o", "all.gc", code=1)
    assert "run/c.npy" in capsys.readouterr().err and not Path("all.gc").exists()
    stream = io.BytesIO()
    monkeypatch.setattr(display, "binary_stdout", lambda: stream)
    run("compress", "run", "-o", "-", code=1)
    assert "run/c.npy" in capsys.readouterr().err
    with pytest.raises(GcodecError), ArchiveReader(io.BytesIO(stream.getvalue())):
        pass
    failing("run/a.npy", 0, errno.EIO)  # nothing of it has been written
    run("compress", "run", "-o", "-", code=1)
    assert "run/a.npy: skipped: " in capsys.readouterr().err


@needs_preadv
def test_where_no_file_can_be_read_there_is_no_archive(failing, capsys):
    for name in FILES:
        if name != "run/c.npy":
            Path(name).unlink()
    failing("run/c.npy", 70_000, errno.EIO)
    run("compress", "run", "-o", "run.gc", code=1)
    assert "run/c.npy: skipped: Input/output error" in capsys.readouterr().err and not Path("run.gc").exists()


def test_a_file_that_becomes_shorter_is_named_and_left_out(failing, capsys, monkeypatch):
    add = ArchiveWriter.add

    def add_shortened(self: ArchiveWriter, plan: Any, *arguments: Any, **options: Any) -> Any:
        if plan.path == "run/c.npy":
            os.truncate("run/c.npy", 40_000)
        return add(self, plan, *arguments, **options)

    monkeypatch.setattr(ArchiveWriter, "add", add_shortened)
    run("compress", "run", "-o", "run.gc", code=1)
    size = len(FILES["run/c.npy"])
    assert f"run/c.npy: skipped: shrank from {size} to 40000 bytes while it was read" in capsys.readouterr().err
    assert restored("run.gc") == {other: data for other, data in FILES.items() if other != "run/c.npy"}


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here fails to be read from its beginning")
def test_a_file_of_the_system_that_fails_at_its_first_byte_is_named(folder, capsys):
    (folder / "run").mkdir()
    Path("run/mem").symlink_to("/proc/self/mem")
    Path("run/good").write_bytes(b"good")
    run("compress", "run", "-o", "run.gc", code=1)
    assert "run/mem: skipped: Input/output error" in capsys.readouterr().err
    assert restored("run.gc") == {"run/good": b"good"}


def test_errors_of_the_archives_own_disk_are_none_of_the_files(failing, capsys, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writer, "write_whole", full)
    run("compress", "run", "-o", "run.gc", code=1)
    error = capsys.readouterr().err
    assert "run.gc: No space left on device" in error and "skipped" not in error and not Path("run.gc").exists()


def test_a_writer_goes_on_after_a_file_that_could_not_be_added(failing):
    """In Python, at a path and in a stream, under the same name, too."""

    def add(target: ArchiveWriter, name: str) -> None:
        with open(name, "rb") as file:
            add_file(target, file, name)

    failing("run/a.npy", 70_000, errno.EIO)
    with ArchiveWriter("all.gc") as target:
        for name in FILES:
            if name == "run/a.npy":
                with pytest.raises(OSError, match="Input/output"):
                    add(target, name)
                failing("run/e.txt", sys.maxsize, errno.EIO)
            add(target, name)
    assert restored("all.gc") == FILES
    failing("run/c.npy", 70_000, errno.EIO)
    target = ArchiveWriter(io.BytesIO())
    add(target, "run/b.bin")
    with pytest.raises(OSError, match="Input/output"):
        add(target, "run/c.npy")
    assert not target.can_go_on
    for call in (lambda: add(target, "run/e.txt"), target.close):
        with pytest.raises(InvalidArgument, match="takes nothing back"):
            call()
    target.abort()
