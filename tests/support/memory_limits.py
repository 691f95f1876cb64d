"""Calls of public functions at limits of memory, each in a process of its own that has no other memory left.

``python -m tests.support.memory_limits FOLDER N_LIMITS NUMBER N_PARTS`` prints a line of JSON for each limit that was
tried. The calls are made once before, and the process then is forked: the kernels are loaded there, and what the calls
need anew is counted from the size that the process has. It has one thread, so that forking is safe.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import json
import os
import resource
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tests.support.paths import ROOT

PATIENCE = 60  #: seconds after which a call hangs, which takes milliseconds
N_KEPT = 1 << 20  #: at most so many Python objects take what memory there is left
SMALLEST, LARGEST = 16, 1 << 26  #: bytes of what the system's allocator is asked for, to leave nothing
N_PAGES = 1 << 15  #: as a call may take at most: 128 MB
N_SPARE = 64  #: of each size, so many objects fit into what is left: without any, CPython itself fails
NONE = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
M_TOP_PAD, M_ARENA_MAX = -2, -8  #: of glibc's mallopt: by how much more the heap grows than is needed; heaps of threads


class Prepared(NamedTuple):
    """A call that has been made once.

    Attributes:
        name: What it is called.
        call: Makes it.
        wanted: What it returns.
        folder: Where it writes; None: nowhere.
    """

    name: str
    call: Callable[[], bytes]
    wanted: bytes
    folder: Path | None


class Outcome(NamedTuple):
    """What a call came to at a limit.

    Attributes:
        case: Its name.
        pages: How many pages of memory there were.
        what: ``"success"``, ``"another result"``, ``"hang"``, ``"signal N"``, or the names of an error's classes.
        text: The error's text.
    """

    case: str
    pages: int
    what: str
    text: str = ""


def outcomes_of(case: Prepared, rest: Rest, n_limits: int) -> Iterator[Outcome]:
    """Yield what a call comes to with 0, 1, 2, 4 ... pages until it succeeds, and with some numbers of pages from the
    last at which it did not to the first at which it did."""
    last, pages = 0, 0
    while pages <= N_PAGES:
        outcome = outcome_at(case, rest, pages)
        yield outcome
        if outcome.what in ("success", "hang"):
            break
        last, pages = pages, max(1, 2 * pages)
    for number in range(1, n_limits + 1):
        between = last + number * (pages - last) // (n_limits + 1)
        if last < between < pages:
            yield outcome_at(case, rest, between)


def outcome_at(case: Prepared, rest: Rest, pages: int) -> Outcome:
    """Return what a call comes to in a process that has some pages of memory left."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        os.close(ours)
        _report(theirs, case, rest, pages)
    os.close(theirs)
    is_over = bool(select.select([ours], [], [], PATIENCE)[0])
    if not is_over:
        os.kill(child, signal.SIGABRT)  # with a traceback
    report = os.read(ours, 1 << 16)
    os.close(ours)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for path in case.folder.rglob("*") if case.folder else ():
        if path.is_file():
            path.unlink()
    if not is_over:
        return Outcome(case.name, pages, "hang")
    return Outcome(case.name, pages, *json.loads(report)) if report else Outcome(case.name, pages, f"exit code {code}")


def _report(place: int, case: Prepared, rest: Rest, pages: int) -> NoReturn:
    """Call a function with some pages of memory more than there are, write to a pipe what it came to, and end."""
    code = 1
    try:
        raised: BaseException | None = None
        result: bytes | None = None
        rest.take()
        limit = resource.getrlimit(resource.RLIMIT_AS)[0] + pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            result = case.call()
        except BaseException as error:
            raised = error
        resource.setrlimit(resource.RLIMIT_AS, NONE)
        of_ranks = getattr(raised, "failures", {})  # as torch.distributed.checkpoint collects errors
        for of_rank, _ in of_ranks.values():
            raised = of_rank
        what, text = ("success" if result == case.wanted else "another result"), ""
        if raised is not None:
            what = " ".join(kind.__name__ for kind in type(raised).__mro__)
            text = f"{_place_of(raised)}: {raised}"[:500]
        os.write(place, json.dumps([what, text]).encode())
        code = 0
    finally:
        os._exit(code)


def _place_of(error: BaseException) -> str:
    """Return the innermost place of gcodec or of the tests that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.removeprefix(str(ROOT))}:{frame.lineno}" for frame in frames]
    return next((place for place in reversed(places) if place.startswith(("/gcodec", "/tests"))), "")


class Rest:
    """Takes all memory that this process has and does not use, so that what follows needs new memory."""

    def __init__(self) -> None:
        self._kept: list[Any] = [None] * N_KEPT
        self._at = 0
        self._spares: list[list[bytes]] = []
        self._counts = tuple(
            range(464, 0, -16)
        )  # with 33 bytes of CPython's, up to what it does not ask the system for
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p
        self._libc.mallopt(M_TOP_PAD, 0)

    def take(self) -> None:
        """Take what there is now, but for some small objects of each size; then no page is left of the limit."""
        spare = [bytes(count) for count in self._counts for _ in range(2 * N_SPARE)]
        self._spares.append(spare[::2])  # between those that will be free, so that Python gives back no memory for them
        size = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (size * resource.getpagesize(), resource.RLIM_INFINITY))
        room = LARGEST
        while room >= SMALLEST:
            while self._libc.malloc(ctypes.c_size_t(room)):
                pass
            room //= 2
        for count in self._counts:
            with suppress(MemoryError):
                while True:
                    self._kept[self._at] = bytes(count)
                    self._at += 1
        spare.clear()


def grow_stack(depth: int = 900) -> None:
    """Use much of the stack: where it cannot grow any more, the system ends the process, whatever runs in it."""
    if depth:
        list(map(grow_stack, [depth - 1]))


def main(folder: Path, n_limits: int, number: int, n_parts: int) -> None:
    """Print the outcomes of every ``n_parts``-th call, from ``number`` on."""
    faulthandler.enable()
    grow_stack()
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # before there are threads, whose arenas nobody would fill
    import torch

    from tests.errors import fault_cases

    for name in ("some_values", "some_state", "weights"):  # what the tests make takes no memory
        setattr(fault_cases, name, functools.cache(getattr(fault_cases, name)))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    cases: list[Prepared] = []
    for make in (fault_cases.reading, fault_cases.writing):
        (folder / make.__name__).mkdir()
        for name, case in make(folder / make.__name__):
            case.call()
            cases.append(Prepared(name, case.call, case.call(), case.folder))
    gc.collect()
    gc.freeze()  # or the first collection in each process would copy all pages with objects
    rest = Rest()
    rest.take()
    resource.setrlimit(resource.RLIMIT_AS, NONE)
    for prepared in cases[number::n_parts]:
        for outcome in outcomes_of(prepared, rest, n_limits):
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
