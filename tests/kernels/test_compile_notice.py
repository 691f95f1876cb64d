"""The line that says that kernels are being compiled: when it lasts, once, and where the user sees it."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from gcodec import compiling
from gcodec.compiling import COMPILE, TEXT, CompileNotice, numba_events


def event_of(module: str) -> Any:
    """Return an event as numba has it, about a function of a module."""
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=SimpleNamespace(__module__=module))})


OURS, OTHERS = event_of("gcodec.kernels.block.encode"), event_of("somebody.else")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is announced, and let timers fire when ``fire`` is called."""
    lines: list[str] = []
    monkeypatch.setattr(compiling, "announce", lambda: lines.append(TEXT))
    monkeypatch.setattr(compiling, "call_later", Timer.start)
    Timer.started.clear()
    return lines


class Timer:
    """A timer that ends when the test says so."""

    started: ClassVar[list[Timer]] = []

    def __init__(self, function: Any) -> None:
        self.function = function

    @classmethod
    def start(cls, seconds: float, function: Any) -> None:
        """Remember a timer."""
        cls.started.append(cls(function))

    @classmethod
    def fire(cls) -> int:
        """End all timers; return how many there were."""
        timers, cls.started[:] = list(cls.started), []
        for timer in timers:
            timer.function()
        return len(timers)


def test_compiling_that_lasts_is_announced_once(said):
    notice = CompileNotice()
    notice.begin(OURS)
    notice.begin(OURS)
    assert not said and Timer.fire() == 1 and said == [TEXT]
    notice.end(OURS)
    notice.end(OURS)
    notice.begin(OURS)
    assert Timer.fire() == 0 and said == [TEXT]


def test_what_is_soon_over_or_another_s_is_not_announced(said):
    notice = CompileNotice()
    notice.begin(OTHERS)
    assert Timer.fire() == 0
    notice.begin(OURS)
    notice.end(OURS)
    assert Timer.fire() == 1 and not said
    notice.begin(OURS)
    assert Timer.fire() == 1 and said == [TEXT]


def test_nothing_is_announced_to_programs_that_listen_to_numba_themselves(said):
    notice = CompileNotice()
    with numba_events(COMPILE, lambda event: None, lambda event: None):
        notice.begin(OURS)
        assert Timer.fire() == 1 and not said


ANNOUNCE = "from gcodec import compiling; compiling.announce()"
CONFIGURE = "import logging, sys; logging.basicConfig(stream=sys.stdout); "


@pytest.mark.parametrize("configure", ["", CONFIGURE])
def test_the_notice_goes_to_stderr_unless_logging_is_configured(configure):
    done = subprocess.run([sys.executable, "-c", configure + ANNOUNCE], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ((f"WARNING:gcodec:{TEXT}\n", "") if configure else ("", f"{TEXT}\n"))


def test_the_notice_is_seen_above_a_bar(monkeypatch):
    from rich.console import Console
    from rich.progress import Progress

    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    with Progress(console=Console(stderr=True, width=300)) as bar:
        bar.add_task("compressing", total=1)
        assert logging.lastResort is not None  # where nothing is configured; pytest has handlers of its own
        logging.lastResort.handle(logging.makeLogRecord({"msg": TEXT}))
    assert TEXT in terminal.getvalue()


def test_numba_tells_of_what_it_compiles():
    from numba import njit

    names: list[str] = []

    @njit
    def twice(x):
        return 2 * x

    def note(event: Any) -> None:
        names.append(event.data["dispatcher"].py_func.__name__)

    with numba_events(COMPILE, note, lambda event: None):
        assert twice(3) == 6 and twice(4) == 8
    assert twice(2.5) == 5.0 and names == ["twice"]


def test_compiling_goes_on_where_no_thread_can_be_started(said, monkeypatch):
    def refuse(*_):
        raise RuntimeError("can't start new thread")

    notice = CompileNotice()
    monkeypatch.setattr(compiling, "call_later", refuse)
    notice.begin(OURS)
    notice.end(OURS)
    assert Timer.fire() == 0 and not said
