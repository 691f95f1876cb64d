"""The laws of interrupts: Ctrl-C is a KeyboardInterrupt wherever it falls, and nothing is written to afterwards."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import load_file, save_file
from gcodec.threads import WorkPool, run_parallel
from tests.support.cases import CASES, MULTIPLES
from tests.support.encode_modes import modes
from tests.support.paths import ROOT
from tests.support.reliability import record


def test_kernels_run_no_python_in_which_an_interrupt_would_be_lost(tmp_path):
    """A compiled kernel goes on after an error of the Python that it calls, and returns a result with it."""
    seen: set[str] = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "numba" in frame.f_code.co_filename:
            seen.add(f"{frame.f_code.co_qualname}, called by {frame.f_back and frame.f_back.f_code.co_qualname}")

    def use_all() -> None:
        for case in (*CASES, *MULTIPLES):
            if case.dtype == "float32":
                for mode in modes(case.dtype):
                    gcodec.decode(gcodec.encode(case.array(), **mode.arguments(case)))
        save_file({"x": np.arange(1000, dtype=np.float32)}, tmp_path / "x.gc")
        load_file(tmp_path / "x.gc")

    use_all()  # what is not compiled yet runs Python, of course
    sys.setprofile(watch)
    try:
        use_all()
    finally:
        sys.setprofile(None)
    assert seen == set()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_an_interrupt_while_others_work_is_raised_when_they_have_ended():
    begun, interrupted, left, ended = threading.Event(), threading.Event(), threading.Event(), []
    main = threading.main_thread().ident or 0

    def interrupt(*_: Any) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def work() -> None:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(10)
        else:
            begun.set()
            signal.pthread_kill(main, signal.SIGINT)
            assert interrupted.wait(10)
            ended.append(not left.wait(0.1))

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_parallel(work, 2)
        left.set()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == [True]


def test_an_interrupt_while_threads_are_started_is_raised_when_they_have_ended(monkeypatch):
    begun, left, ended, add = threading.Event(), threading.Event(), [], WorkPool.add

    def add_interrupted(*arguments: Any) -> None:
        add(*arguments)
        assert begun.wait(10)
        raise KeyboardInterrupt

    def work() -> None:
        begun.set()
        ended.append(not left.wait(0.1))

    monkeypatch.setattr(WorkPool, "add", add_interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_parallel(work, 3)
    left.set()
    assert ended == [True]


def test_memory_that_a_thread_still_writes_to_is_not_freed():
    """After an interrupt, a thread of another's may hold the array when everybody else has forgotten it."""
    program = (
        "from gcodec.memory import BytesBuilder\n"
        "arrays = [BytesBuilder(1 << 22).array for _ in range(8)]\n"
        "for number, array in enumerate(arrays):\n"
        "    array[:] = number\n"
        "assert all(array[0] == array[-1] == number for number, array in enumerate(arrays))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=60).returncode == 0


EVERYWHERE = """
import faulthandler, sys
import numpy as np
from gcodec.threads import OrderedWriter, run_parallel
N_PARTS = 40
sys.setswitchinterval(1e-5)
faulthandler.dump_traceback_later(60, exit=True)

def write(watch):
    # What FrameWriter does, with parts of one byte and one buffer, for which the others wait.
    ordered, out, buffers = OrderedWriter(N_PARTS, [bytearray(1)], 0, 4), bytearray(N_PARTS), []
    def work():
        try:
            while (taken := ordered.next_part()) is not None:
                part, buffer, place = taken
                if buffer is None:
                    out[place] = part
                else:
                    buffer[0] = part
                for full, size, where in ordered.complete(part, buffer, 1):
                    out[where:where + size] = full
                    ordered.release(full)
        except BaseException:
            ordered.stop()
            raise
    sys.setprofile(watch)
    try:
        run_parallel(work, 4)
    finally:
        sys.setprofile(None)
    return bytes(out)

n_written = n_interrupted = 0
for at in range(400):
    left = at
    def interrupt(frame, event, _):
        # A signal is heeded where a call ends, in the functions that hold locks and tell others.
        global left
        if event == "c_return" and frame.f_code.co_filename.endswith("threads.py"):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
    for _ in range(8):
        left = at
        try:
            assert write(interrupt) == bytes(range(N_PARTS))
            n_written += 1
        except KeyboardInterrupt:
            n_interrupted += 1
assert write(None) == bytes(range(N_PARTS))
print(n_written, n_interrupted)
"""


def test_an_interrupt_after_any_call_leaves_no_thread_waiting():
    """Written by a profiler's hook, which runs where signals are heeded: a real signal seldom meets the worst place."""
    done = subprocess.run([sys.executable, "-c", EVERYWHERE], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    n_written, n_interrupted = map(int, done.stdout.split())
    assert n_written + n_interrupted == 8 * 400
    assert n_interrupted > 400


INTERRUPTED = """
import random, signal, sys
import numpy as np, gcodec
rng = np.random.default_rng(0)
small, large = rng.standard_normal(20_000, np.float32), rng.standard_normal(1 << 20, np.float32)
calls = []
for x, threads in ((small, 1), (large, 3)):
    frame = gcodec.encode(x, threads=threads)
    calls += [(lambda x=x, n=threads: gcodec.encode(x, threads=n), frame),
              (lambda f=frame, n=threads: gcodec.decode(f, threads=n).tobytes(), x.tobytes())]
armed = False   # a signal may come through another thread, and late
def interrupt(*_):
    if armed:
        raise KeyboardInterrupt
assert all(call() == wanted for call, wanted in calls)      # and all is compiled
signal.signal(signal.SIGALRM, interrupt)
kinds = {}
while sum(kinds.values()) < 1000:
    call, wanted = random.choice(calls)
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 3e-3))
        call()
        armed = False
    except BaseException as error:
        armed = False
        kinds[type(error).__name__] = kinds.get(type(error).__name__, 0) + 1
assert all(call() == wanted for call, wanted in calls)
print(kinds.pop("KeyboardInterrupt"), sum(kinds.values()))
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_a_thousand_interrupts_are_keyboard_interrupts_and_leave_everything_right():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        stderr=subprocess.DEVNULL,
        timeout=120,
    )
    right, others = map(int, done.stdout.split())
    record(
        "interrupts of encode and decode, on one thread and three",
        right + others,
        others,
        "each a KeyboardInterrupt; the same bytes afterwards",
    )
    assert others == 0


def test_no_interrupt_between_the_rounds_of_a_loop_passes_a_handler_by():
    """Python 3.13 heeds signals at the end of a ``while`` outside of the ``try`` or ``with`` that it stands in
    (github.com/python/cpython/issues/130279): a lock would stay locked, and a thread at work."""
    found = [
        f"{name}:{loop.lineno}"
        for name in (
            "threads.py",
            "memory.py",
            "frame/writer.py",
            "frame/decode.py",
            "archive/part_memory.py",
            "archive/base_files.py",
        )
        for block in ast.walk(ast.parse((ROOT / "gcodec" / name).read_text(encoding="utf-8")))
        if isinstance(block, ast.Try | ast.With)
        for loop in loops_in(block.body)
    ]
    assert not found, f"loops to put into functions of their own: {found}"


def loops_in(body: Sequence[ast.stmt]) -> Iterator[ast.While]:
    """Yield the loops among some statements that end where a condition is false, but those in functions."""
    for statement in body:
        if isinstance(statement, ast.While) and not isinstance(statement.test, ast.Constant):
            yield statement
        if not isinstance(statement, ast.FunctionDef):
            for inner in ("body", "orelse", "finalbody"):
                yield from loops_in(getattr(statement, inner, []))
