"""The laws of what the command line says while it works: progress, rates, tables."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gcodec import codec
from gcodec.benchmark import measure
from gcodec.cli import compile_time, display
from tests.archive.test_files import npy
from tests.support import commands
from tests.support.commands import run

X = np.random.default_rng(2).standard_normal((50, 60)).astype(np.float32)

folder = commands.folder


def be_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let standard error be taken for a terminal."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


def test_bench_counts_its_turns_and_names_them(capsys, monkeypatch):
    be_terminal(monkeypatch)
    monkeypatch.setattr(measure.MeasurementPlan, "steps", lambda self, parts: 4)
    Path("x.npy").write_bytes(npy(X))
    run("bench", "x.npy", "--peers", "zstd", "--sizes")
    shown = capsys.readouterr().err
    assert "/4" in shown and "bytes" not in shown and "B/s" not in shown


def test_bench_names_what_was_measured_above_its_table_in_one_line(capsys, monkeypatch):
    name = "a-rather-long-name-of-a-checkpoint-file-as-people-have-them.npy"
    Path(name).write_bytes(npy(np.tile(X, (400, 1))))
    run("bench", name, "--peers", "none", "--sizes", "--limit", "1")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{name} float32, 21 % of it" and lines[1].split()[:2] == ["%", "of"]


def test_bench_says_the_size_that_compress_makes(capsys):
    Path("x.npy").write_bytes(npy(np.tile(X, (400, 1))))
    run("compress", "-q", "x.npy")
    made = Path("x.npy.gc").stat().st_size
    capsys.readouterr()
    run("bench", "x.npy", "--peers", "none", "--sizes", "--json")
    (said,) = json.loads(capsys.readouterr().out)["archives"]
    assert said == {"file": "x.npy", "file_bytes": Path("x.npy").stat().st_size, "archive_bytes": made}
    run("bench", "x.npy", "--peers", "none", "--sizes")
    assert f"gcodec compress makes {display.size(made)} of the whole file" in capsys.readouterr().out


def compiling(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the compiler's clock stand at this many seconds at the end of every command."""
    monkeypatch.setattr(
        compile_time.CompileClock, "seconds", property(lambda self: seconds, lambda self, value: None), raising=False
    )


def test_compiling_is_not_counted_in_rates(monkeypatch, capsys):
    now = count(0.0, 5.0)
    monkeypatch.setattr("gcodec.cli.compress.time.perf_counter", lambda: next(now))
    compiling(monkeypatch, 4.0)
    Path("x.npy").write_bytes(npy(X))
    run("compress", "x.npy", "--json")
    [result] = json.loads(capsys.readouterr().out)
    assert result["compile_seconds"] == 4.0
    assert result["bytes_per_second"] == pytest.approx(result["input_bytes"] / (result["seconds"] - 4))
    run("compress", "x.npy", "-f")
    assert "(4.0 s of that to compile kernels, this once)" in capsys.readouterr().out
    for arguments in (("decompress", "x.npy.gc", "-f"), ("verify", "x.npy.gc")):
        run(*arguments)
        assert "(4.0 s of that to compile kernels, this once)" in capsys.readouterr().out
    assert display.speed(1e8, 1.0, 0.5) == "1.00 s, 200.00 MB/s" and display.speed(1e6, 1.0) == "1.00 s"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0, "1 ms"), (0.0042, "4 ms"), (0.0994, "99 ms"), (0.1, "0.10 s"), (61.234, "61.23 s")]
)
def test_a_time_is_never_nothing(seconds, words):
    assert display.duration(seconds) == words and display.speed(10, seconds) == words


def test_a_file_of_nothing_has_no_ratio(capsys):
    Path("empty").write_bytes(b"")
    for command in (["compress", "empty"], ["-l", "empty.gc"], ["inspect", "empty.gc"]):
        run(*command)
        assert ", ratio -" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_what_warmup_encodes_warns_of_nothing(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(codec._warmed_rows(name, np.random.default_rng(0)))) > 10


def test_a_bar_says_that_kernels_are_compiled_and_then_what_is_done_again(monkeypatch):
    events, seen = list[Callable[[Any], None]](), list[bool]()

    def listen(kind: str, *begin_and_end: Callable[[Any], None]) -> AbstractContextManager[None]:
        events.extend(begin_and_end)
        return nullcontext()

    monkeypatch.setattr(compile_time, "numba_events", listen)
    with compile_time.told_of_compiling(seen.append):
        for number in (0, 0, 1, 1, 0, 1):  # two threads begin and end, then one
            events[number](None)
    assert seen == [True, False, True, False]


def test_the_clock_of_the_compiler_counts_every_moment_once(monkeypatch):
    now = iter([10.0, 17.0, 20.0, 21.0])
    monkeypatch.setattr("gcodec.cli.compile_time.time.perf_counter", lambda: next(now))
    clock = compile_time.CompileClock()
    for step in (clock.enter, clock.enter, clock.leave, clock.leave, clock.enter, clock.leave):
        step(None)
    assert clock.seconds == 7.0 + 1.0


def test_the_compiler_is_heard_of():
    import numba

    helper = numba.njit(lambda x: x + 1)

    @numba.njit
    def _add_two(x):
        return helper(helper(x))

    names: list[str] = []
    with compile_time.compiled_names(names.append), compile_time.compile_clock() as clock:
        assert _add_two(1) == 3
    assert names == ["add_two"] and clock.seconds > 0


def test_warmup_names_types_line_by_line_and_kernels_on_a_terminal(capsys, monkeypatch):
    asked: list[list[str]] = []
    monkeypatch.setattr(codec, "warmup", asked.append)
    run("warmup", "float32", "bfloat16", "float32")
    printed = capsys.readouterr()
    assert asked == [["float32"], ["bfloat16"]] and not printed.err
    assert [line.split(":")[0].split()[0] for line in printed.out.splitlines()] == ["float32", "bfloat16", "kernels"]
    run("warmup", "--json")
    assert next(iter(json.loads(capsys.readouterr().out)["types"])) == "float32"
    run("warmup", "-q")
    assert capsys.readouterr() == ("", "")
    run("warmup", "float31", code=2)
    assert "float31: no such value type" in capsys.readouterr().err
    be_terminal(monkeypatch)
    run("warmup", "float32", "bfloat16")
    printed = capsys.readouterr()
    assert "2/2" in printed.err and "bfloat16" in printed.err and printed.out.startswith("kernels ready")


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_draws_no_line_anew_gets_lines_and_no_bars(term, monkeypatch, capsys):
    be_terminal(monkeypatch)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(codec, "warmup", lambda names: None)
    Path("x.npy").write_bytes(npy(X))
    run("compress", "x.npy")
    run("warmup", "float32", "float16")
    printed = capsys.readouterr()
    assert not printed.err and len(printed.out.splitlines()) == 4 and "float16: " in printed.out


def test_the_time_beside_a_bar_is_empty_until_there_is_one():
    task = SimpleNamespace(elapsed=None, time_remaining=0.4)
    elapsed = display._time_column(lambda task: task.elapsed)
    remaining = display._time_column(lambda task: task.time_remaining, " left")
    assert elapsed.render(task).plain == remaining.render(task).plain == ""
    task = SimpleNamespace(elapsed=61.9, time_remaining=3600.0)
    assert (elapsed.render(task).plain, remaining.render(task).plain) == ("0:01:01", "1:00:00 left")
