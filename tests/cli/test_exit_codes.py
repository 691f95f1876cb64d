"""Errors of the command line: what is said, with which exit code, and that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcodec.cli import display
from tests.archive.test_files import npy
from tests.cli.test_cli import FLOATS, RNG, environment, kinds, names, write
from tests.support import commands
from tests.support.commands import run

folder = commands.folder


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["compress"],
        ["compress", "a.npy", "--mode", "magic"],
        ["compress", "a.npy", "--ladder", "fine"],
        ["compress", "a.npy", "--mode", "gcomp", "--mantissa-bits", "3"],
        ["compress", "a.npy", "--mantissa-bits", "99"],
        ["compress", "a.npy", "--rounding", "nearest"],
        ["compress", "a.npy", "--threads", "0"],
        ["compress", "-", "-"],
        ["compress", "a.npy", "-o", "-", "--json"],
        ["compress", "folder", "--rm"],
        ["compress", "folder", "--dtype", "float32"],
        ["compress", "a.npy", "--rm", "--mantissa-bits", "3"],
        ["compress", "a.npy", "--mode", "gcomp", "--literal", "--ladder", "fine"],
        ["decompress", "--list", "--only", "a", "a.npy"],
        ["decompress", "a.npy", "--max-output-bytes", "many"],
        ["decompress", "a.npy", "b.npy", "-o", "x"],
        ["verify", "a", "b", "--against", "c"],
        ["record", "--steps", "0"],
        ["record", "--every", "0"],
        ["record", "--json"],
        ["inspect", "-", "-"],
        ["compress", "a.npy", "--threads", "abc"],
        ["decompress", "a.npy", "--max-output-bytes", "10XB"],
        ["series"],
        ["series", "prune", "folder"],
        ["completion", "tcsh"],
        ["completion"],
        ["--quick"],
        ["a.npy", "--frobnicate"],
        # A variable of the shell that is not set: it is not this folder, which would be compressed as a whole.
        [""],
        ["compress", ""],
        ["compress", "a.npy", ""],
        ["compress", "a.npy", "-o", ""],
        ["-d", ""],
        ["series", "list", ""],
        ["compress", "a.npy", "--base", ""],
        ["series", "add", "", "a.npy", "--step", "1"],
        ["report", ""],
        ["verify", "a.npy", "--against", ""],
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments, capsys):
    write({"a.npy": npy(FLOATS), "folder/b.npy": npy(FLOATS)})
    run(*arguments, code=2)
    printed = capsys.readouterr()
    assert printed.err.startswith("gcodec: error: ") and printed.err.count("\n") == 1 and not printed.out
    assert names() == ["a.npy", "folder/b.npy"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["compress", "a.npy", "--threads", "abc"],
            "argument --threads: invalid int value: 'abc' (gcodec compress --help)",
        ),
        (
            ["series", "prune", "folder"],
            "the following arguments are required: --keep-last (gcodec series prune --help)",
        ),
        (["decompress", "--only"], "argument --only: expected one argument (gcodec decompress --help)"),
    ],
)
def test_errors_of_the_command_line_name_the_help_to_read(arguments, line, capsys):
    run(*arguments, code=2)
    assert capsys.readouterr().err == f"gcodec: error: {line}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["compress", "--help"], ["--version"], ["completion", "bash"]])
def test_text_that_cannot_be_written_is_an_error(arguments):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gcodec", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            env=environment(),
        )
    assert done.returncode == 1 and done.stderr == b"gcodec: error: No space left on device\n"


def test_data_at_fault_exits_with_1_and_one_line(capsys):
    write({"bad.npy": npy(FLOATS)[:1000], "cut.gc": b"\x89GCA\x01", "other.gc": b"something else", "old.gc": b""})
    Path("empty").mkdir()
    for arguments, message in (
        (["compress", "bad.npy"], "bad.npy: "),
        (["compress", "nowhere.npy"], "nowhere.npy: no such"),
        (["compress", "none/*.npy"], "none/*.npy: no such"),
        (["compress", "empty"], "empty: no files"),
        (["decompress", "cut.gc"], "cut.gc: an archive has at least"),
        (["decompress", "old.gc"], "old.gc: the file is empty: an archive has at least"),
        (["decompress", "other.gc"], "other.gc: not a gcodec archive"),
        (["inspect", "nowhere"], "nowhere: "),
        (["verify", "nowhere.gc"], "nowhere.gc: No such file"),
        (["decompress", "empty"], "empty: Is a directory"),
    ):
        run(*arguments, code=1)
        printed = capsys.readouterr()
        assert printed.err.startswith(f"gcodec: error: {message}") and printed.err.count("\n") == 1 and not printed.out
    assert names() == ["bad.npy", "cut.gc", "old.gc", "other.gc"]


def test_existing_files_are_replaced_only_by_force(capsys):
    write({"a.npy": npy(FLOATS), "a.npy.gc": b"precious"})
    run("compress", "a.npy", code=1)
    assert "exists already" in capsys.readouterr().err and Path("a.npy.gc").read_bytes() == b"precious"
    run("compress", "a.npy", "-f")
    run("decompress", "a.npy.gc", code=1)
    run("decompress", "a.npy.gc", "-f")
    assert Path("a.npy").read_bytes() == npy(FLOATS)


def test_damaged_archives_are_found_and_not_restored(capsys):
    write({f"run/{name}": data for name, data in kinds().items()})
    run("compress", "run", "-q")
    data = bytearray(Path("run.gc").read_bytes())
    data[len(data) // 2] ^= 4
    write({"bad.gc": bytes(data)})
    run("verify", "run.gc", "bad.gc", code=1)
    printed = capsys.readouterr()
    assert "run.gc: good" in printed.out and "bad.gc: run/c.safetensors:" in printed.err
    run("decompress", "bad.gc", "-o", "out/", code=1)
    assert not Path("out").exists()


def test_decompressing_writes_nothing_through_symbolic_links(capsys, folder):
    write({"run/sub/a.npy": npy(FLOATS), "elsewhere/keep": b""})
    run("compress", "run")
    shutil.rmtree("run")
    Path("run").symlink_to(folder / "elsewhere")
    run("decompress", "run.gc", code=1)
    assert "symbolic link" in capsys.readouterr().err
    assert names() == ["elsewhere/keep", "run.gc"]


def test_decompressing_keeps_the_output_limit(capsys):
    write({"zeros.npy": npy(np.zeros(1 << 20, np.float32))})
    run("compress", "zeros.npy")
    assert Path("zeros.npy.gc").stat().st_size < 4000
    Path("zeros.npy").unlink()
    run("decompress", "zeros.npy.gc", "--max-output-bytes", "4MB", code=1)
    assert "above the limit of 4000000 bytes" in capsys.readouterr().err
    run("decompress", "zeros.npy.gc", "--max-output-bytes", "5 MiB")


def test_inputs_are_kept_unless_told_otherwise():
    write({"a.npy": npy(FLOATS), "b.npy": npy(FLOATS)})
    run("compress", "a.npy")
    assert Path("a.npy").exists()
    run("compress", "b.npy", "--rm")
    assert not Path("b.npy").exists()
    run("decompress", "b.npy.gc", "--rm")
    assert names() == ["a.npy", "a.npy.gc", "b.npy"]


def test_unreadable_files_of_a_folder_are_kept_as_plain_bytes(capsys):
    files = {"run/bad.npy": npy(FLOATS)[:1000], "run/good.npy": npy(FLOATS), "run/old.pt": b"\x80\x02 whatever"}
    write(files)
    run("compress", "run")
    notes = capsys.readouterr().err
    assert "note: run/bad.npy: kept as plain bytes" in notes
    assert "note: run/old.pt: its tensors are not told apart" in notes
    run("decompress", "run.gc", "-f")
    assert {path: Path(path).read_bytes() for path in files} == files


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError, OSError])
def test_interruptions_leave_no_partial_files(interruption, monkeypatch, capsys):
    write({"a.npy": npy(FLOATS), "b.npy": npy(FLOATS)})
    run("compress", "a.npy", "b.npy", "-o", "both.gc")
    before = names()
    calls: list[int] = []

    def fail(*arguments: object) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise interruption

    monkeypatch.setattr(display, "progress", lambda *a, **k: Interrupter(fail))
    code = 130 if interruption is KeyboardInterrupt else 1
    run("compress", "a.npy", "b.npy", "-o", "x.gc", code=code)
    calls.clear()
    run("decompress", "both.gc", "-o", "out/", code=code)
    assert names() == before and not Path("out").exists()
    assert "Traceback" not in capsys.readouterr().err


class Interrupter:
    """A stand-in for a progress bar during which something happens."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __enter__(self) -> Any:
        return self._function

    def __exit__(self, *arguments: object) -> None:
        pass


SLOW_COMPRESS = """
import signal
import sys
from gcodec import cli
from gcodec.archive import writer

for name in ("SIGINT", "SIGTERM", "SIGHUP"):    # also where the tests run with one ignored, as under nohup
    signal.signal(getattr(signal, name), signal.SIG_DFL)

def wait(plan, crcs):
    print("writing", flush=True)
    sys.stdin.read()
    raise AssertionError("was not interrupted")

writer._verbatim = wait
sys.exit(cli.main(["compress", "a.npy"]))
"""


@pytest.mark.skipif(os.name != "posix", reason="signals as on Unix")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_signals_leave_no_partial_files(number, code):
    write({"a.npy": npy(FLOATS)})
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_COMPRESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        assert running.stdout.readline() == b"writing\n"
        assert any(name.endswith(".partial") for name in names())
        running.send_signal(number)
        assert running.wait(60) == code
        assert running.stderr.read() == b""
    assert names() == ["a.npy"]


@pytest.mark.skipif(os.name != "posix", reason="pipes as on Unix")
def test_a_reader_that_goes_away_is_no_error():
    write({"a.npy": npy(RNG.standard_normal(200_000))})
    run("compress", "a.npy")
    with subprocess.Popen(
        [sys.executable, "-m", "gcodec", "decompress", "a.npy.gc", "-o", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        assert running.wait(60) == 141 and running.stderr.read() == b""
