"""Errors raised within gcodec, at a call or a bytecode of one's choice, as a machine or a signal raises them."""

from __future__ import annotations

import dis
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tests.support.paths import ROOT

PACKAGE = str(ROOT / "gcodec")


class Site(NamedTuple):
    """A place in gcodec that calls something, or a function of gcodec that something else calls.

    Attributes:
        place: File and line of the call.
        callee: Name of what is called.
    """

    place: str
    callee: str

    def __str__(self) -> str:
        return f"{self.place} calls {self.callee}"


def sites_below(function: Callable[[], Any]) -> list[Site]:
    """Return the sites that a function comes by in this thread, in order, each once."""
    found: dict[Site, None] = {}
    with _watching_calls(lambda site: found.setdefault(site, None)):
        function()
    return list(found)


def outcome_of(function: Callable[[], Any], site: Site, error: BaseException) -> tuple[Any, BaseException | None, bool]:
    """Call a function, and raise an error in it where it first comes by a site.

    Returns:
        What it returned, what it raised, and whether it came by the site.
    """
    came_by = False

    def watch(found: Site) -> None:
        nonlocal came_by
        if found == site and not came_by:
            came_by = True
            raise error

    result, raised = None, None
    try:
        with _watching_calls(watch):
            result = function()
    except BaseException as caught:
        raised = caught
    return result, raised, came_by


@contextmanager
def _watching_calls(watch: Callable[[Site], Any]) -> Iterator[None]:
    """Tell a function of every call that gcodec makes, or that is made of it, in this thread, before it is made."""

    def note(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            if _is_ours(frame):
                watch(Site(_place(frame), getattr(called, "__qualname__", str(called))))
        elif event == "call":
            caller = frame.f_back
            if caller is not None and (_is_ours(caller) or _is_ours(frame)):
                watch(Site(_place(caller if _is_ours(caller) else frame), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename.removeprefix(PACKAGE)[1:]}:{frame.f_lineno}"


class Step(NamedTuple):
    """A bytecode that is carried out.

    Attributes:
        code: The function.
        offset: The place in it.
        time: The how many-th time that it is carried out, from 1.
    """

    code: CodeType
    offset: int
    time: int

    def __str__(self) -> str:
        return f"{self.code.co_qualname}, byte {self.offset}, time {self.time}"


#: Bytecodes that only move values about: they cannot fail, and Python heeds no signal at them.
_QUIET = frozenset(
    (
        "CACHE",
        "COPY",
        "LOAD_CLOSURE",
        "LOAD_CONST",
        "LOAD_FAST",
        "MAKE_CELL",
        "NOP",
        "POP_EXCEPT",
        "POP_TOP",
        "PRECALL",
        "PUSH_EXC_INFO",
        "PUSH_NULL",
        "RETURN_CONST",
        "RETURN_VALUE",
        "STORE_FAST",
        "SWAP",
    )
)


def steps_of(function: Callable[[], Any], is_traced: Callable[[CodeType], bool]) -> list[Step]:
    """Return the bytecodes of some functions that a call comes by, each at its first time and its last.

    Args:
        function: Makes the call.
        is_traced: Chooses the functions.
    """
    times = Counter[tuple[CodeType, int]]()

    def count(code: CodeType, offset: int) -> None:
        times[code, offset] += 1

    with _watching_bytecodes(count, is_traced):
        function()
    quiet = {code: _quiet_places(code) for code, _ in times}
    return [
        Step(code, offset, time)
        for (code, offset), count in times.items()
        if offset not in quiet[code]
        for time in sorted({1, count})
    ]


def _quiet_places(code: CodeType) -> set[int]:
    """Return the places in a function at which nothing is raised: of quiet bytecodes, and of the call that ends a
    ``with`` block, before which no signal is heeded."""
    found = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL")]
    ends = {
        step.offset
        for number, step in enumerate(found)
        if step.opname == "CALL"
        and number > 2
        and all(before.opname == "LOAD_CONST" and before.argval is None for before in found[number - 3 : number])
    }
    return ends | {step.offset for step in dis.get_instructions(code) if step.opname in _QUIET}


def raised_at(function: Callable[[], Any], step: Step, error: BaseException) -> bool:
    """Call a function, and raise an error just before a bytecode; return whether it came by, and let the error pass."""
    n_times, came_by = 0, False

    def watch(code: CodeType, offset: int) -> None:
        nonlocal n_times, came_by
        n_times += (code, offset) == step[:2]
        if n_times == step.time and not came_by:
            came_by = True
            raise error

    try:
        with _watching_bytecodes(watch, lambda code: code is step.code):
            function()
    except BaseException as caught:
        if caught is not error:
            raise
    return came_by


@contextmanager
def _watching_bytecodes(watch: Callable[[CodeType, int], Any], is_traced: Callable[[CodeType], bool]) -> Iterator[None]:
    """Tell a function of every bytecode of some functions in this thread, before it is carried out."""

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not is_traced(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            watch(frame.f_code, frame.f_lasti)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def code_in(*files: str) -> Callable[[CodeType], bool]:
    """Return the choice of all functions in some files of gcodec."""
    names = {f"{PACKAGE}/{file}" for file in files}
    return lambda code: code.co_filename in names
