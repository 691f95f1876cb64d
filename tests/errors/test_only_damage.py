"""The law of errors: what the machine, a driver or a store raises below a public function comes out as it is.

A program that sees Corruption goes back to an earlier checkpoint, and one that sees another error of gcodec's mends
what it passed. Neither helps where memory is lacking or a disk fails.
"""

from __future__ import annotations

import errno
import gc
import io
import random
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint.api import CheckpointException

import gcodec
from gcodec import codec
from gcodec.archive.part_memory import PartMemory
from gcodec.checkpoints import chain, step_folder
from gcodec.errors import CheckpointWarning, Corruption
from gcodec.files.npy import MAGIC, NpyHeader
from gcodec.files.source import ArraySource
from gcodec.memory import BytesBuilder
from tests.errors.fault_cases import Case, content_of, reading, writing
from tests.support.faults import Site, outcome_of, sites_below

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "ignore::ResourceWarning",
        "ignore:torch.distributed is (disabled|unavailable)",
    ),
]

#: So many faults are tried of each case, drawn with a fixed seed; all of them with `make slow`.
N_DRAWN = 40


class StoreError(Exception):
    """An error of a store's own kind."""


FAULTS: dict[str, Callable[[], BaseException]] = {
    "memory": lambda: MemoryError("no memory"),
    "disk": lambda: OSError(errno.EIO, "Input/output error"),
    "thread": lambda: RuntimeError("can't start new thread"),
    "device": lambda: torch.OutOfMemoryError("out of memory"),
    "interrupt": lambda: KeyboardInterrupt(),
    "store": lambda: StoreError("denied"),
}
#: What a store may raise at.
OF_STORES = ("read", "write", "open", "seek", "tell", "close", "flush", "Read", "Write")
#: What has such a word in its name, but asks no store.
OF_NONE = re.compile("Zip|seekable|readable")
#: Ends of what Python's own library makes, in functions of Python: an interrupt there is lost, whoever uses it.
ENDS = (
    "WeakSet.__init__.<locals>._remove",
    "weakref_cb",
    "finalize.__call__",
    "ZipFile.__del__",
    "_TemporaryFileCloser.__del__",
)
#: Files that give up a stand-in: a fault there may leave it.
GIVING_UP = ("archive/output.py", "archive/folders.py", "files/all_or_nothing.py")


def came_out_as_it_is(error: BaseException, raised: BaseException) -> bool:
    """Tell whether what a function raised is the error that was raised below it, under no other name."""
    if isinstance(raised, CheckpointException):  # torch.distributed.checkpoint collects the errors of ranks
        raised = next(iter(raised.failures.values()))[0]
    if raised is error:
        return True
    if isinstance(error, KeyboardInterrupt):
        return False
    if isinstance(raised, AssertionError) and f"read failed: {error}" in str(raised):  # torch's, in later calls
        return True
    if isinstance(raised, OSError):  # with the name of the file, or of the URL whose store had an error of its own
        of_store = "://" in str(raised.filename) and raised.__cause__ is error
        return of_store or (isinstance(error, OSError) and raised.errno == error.errno) or str(error) in str(raised)
    if isinstance(raised, CheckpointWarning):  # the step is saved, but not what follows
        return isinstance(error, Exception)
    return isinstance(raised, MemoryError) and isinstance(error, MemoryError | torch.OutOfMemoryError)


def what_is_wrong(case: Case, wanted: bytes, site: Site, error: BaseException, lost: list[Any]) -> str:
    """Raise an error at a site of a call, and return what is wrong with what comes out; nothing, if all is well."""
    before = content_of(case.folder) if case.folder else {}
    with nothing_collected() if isinstance(error, KeyboardInterrupt) else nullcontext():
        result, raised, came_by = outcome_of(case.call, site, error)
    has_gradients = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    if not (has_gradients or site.callee.startswith("no_grad.__exit__")):  # an error before it leaves torch's mode
        return "left gradients turned off"
    after = content_of(case.folder) if case.folder else {}
    for name in after.keys() - before.keys():
        (case.folder or Path()).joinpath(name).unlink()
    if not came_by:
        return ""
    is_left = any(name.endswith((".partial", ".replaced")) for name in after)
    if is_left and not site.place.startswith(GIVING_UP) and "__exit__" not in site.callee:
        return f"left {list(after)}"
    if raised is not None:
        return "" if came_out_as_it_is(error, raised) else f"came out as {type(raised).__name__}: {raised}"
    is_of_library = site.callee.endswith(ENDS) or any(isinstance(what, weakref.finalize) for what in lost)
    if isinstance(error, KeyboardInterrupt) and not is_of_library:
        return f"was lost, in {lost}"
    return "" if result == wanted else "gave another result"


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Free what earlier errors left in cycles before the block, and nothing of that kind in it: Python loses an
    interrupt that arrives while it ends a generator that is garbage, in whosever function that is."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def close_files_below(folder: Path) -> None:
    """Close the files that faults have left open, between opening and their ``with``: a later test would be warned."""
    for left in gc.get_objects():
        # Not isinstance, which asks what weak references refer to.
        if type(left) in (io.BufferedReader, io.BufferedWriter) and str(folder) in str(getattr(left, "name", "")):
            left.close()


@pytest.mark.parametrize("n_drawn", [N_DRAWN, pytest.param(10**6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cases", [reading, writing])
def test_what_is_raised_below_a_public_function_comes_out_as_it_is(
    cases: Callable[[Path], Iterator[tuple[str, Case]]],
    n_drawn: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong: list[str] = []
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.object))
    gc.freeze()  # the modules, at which each collection would look again
    for name, case in cases(tmp_path):
        wanted = case.call()
        assert case.call() == wanted
        faults = [
            (site, kind)
            for site in sites_below(case.call)
            for kind in FAULTS
            if kind != "store" or (any(word in site.callee for word in OF_STORES) and not OF_NONE.search(site.callee))
        ]
        for site, kind in faults if len(faults) <= n_drawn else random.Random(name).sample(faults, n_drawn):
            lost.clear()
            if problem := what_is_wrong(case, wanted, site, FAULTS[kind](), lost):
                wrong.append(f"{name}: {kind} where {site}: {problem}")
        assert case.call() == wanted, f"{name} is not what it was, after errors"
    caplog.clear()  # whose records hold what the errors came by: open files, too
    lost.clear()  # likewise
    gc.collect()
    gc.unfreeze()
    close_files_below(tmp_path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        b"-" * 50_000 + b"1",
        b"not " * 15_000 + b"1",
        b"{'descr': " + b"(" * 190 + b")" * 190,
    ],
)
def test_a_header_too_deep_for_the_parser_is_damage(text):
    """Python's parser raises MemoryError where it is only too deep."""
    header = MAGIC + bytes((1, 0)) + min(len(text), 65_535).to_bytes(2, "little") + text
    with pytest.raises(Corruption):
        NpyHeader.read_from(ArraySource([np.frombuffer(header, np.uint8)]), "x.npy")


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_stream_that_fails_where_its_size_is_asked_for_is_not_taken_for_an_empty_one(fault):
    error = fault()

    class Failing(io.BytesIO):
        def seek(self, offset: int, whence: int = 0) -> int:
            if whence == io.SEEK_END:
                raise error
            return super().seek(offset, whence)

    with pytest.raises(type(error)) as caught:
        gcodec.load(Failing(bytes(1000)))
    assert came_out_as_it_is(error, caught.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PartMemory(1).take(1 << 20),
        lambda: [PartMemory(0).take(1 << 20)],
        lambda: BytesBuilder(1 << 10),
        lambda: BytesBuilder(1 << 10).array,
    ],
)
def test_no_python_runs_where_memory_is_given_up_in_which_an_interrupt_would_be_lost(make):
    seen: list[str] = []
    held = [make()]
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert not seen


def test_less_memory_than_decoding_needs_is_a_limit_and_a_memory_error(monkeypatch):
    frame = gcodec.encode(np.arange(1000.0))

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(codec, "new_output", fail)
    for kind in (gcodec.LimitExceeded, MemoryError):
        with pytest.raises(kind):
            gcodec.decode(frame)


def test_a_state_on_a_device_that_fails_says_so(monkeypatch, tmp_path):
    """A fault of a driver is none of the name of the device."""
    gcodec.save({"w": torch.ones(3)}, tmp_path / "w.gc")
    error = RuntimeError("CUDA error: an illegal memory access was encountered")

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(RuntimeError) as caught:
        gcodec.load(tmp_path / "w.gc", device="cpu")
    assert caught.value is error


def test_a_base_that_cannot_be_closed_is_no_step_that_exists_already(monkeypatch, tmp_path):
    checkpoints = gcodec.Checkpointer(tmp_path, threads=1)
    checkpoints.save(0, {"w": torch.arange(5000.0)})
    error = OSError(errno.EIO, "Input/output error")

    @contextmanager
    def failing(*arguments: Any, **options: Any) -> Iterator[Any]:
        with chain.open_step(*arguments, **options) as opened:
            yield opened
        raise error

    monkeypatch.setattr(step_folder, "open_step", failing)
    with pytest.raises(OSError, match="Input/output") as caught:
        checkpoints.save(1, {"w": torch.arange(5000.0) + 1})
    assert caught.value is error
    monkeypatch.undo()
    assert torch.equal(checkpoints.load(1)["w"], torch.arange(5000.0) + 1)
