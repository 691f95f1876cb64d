"""Runs a target on mutated cases in child processes, with limits of time and memory for each case.

Case number n of a target follows from the seed and n alone, whatever has been run before: cases come in batches, each
with a generator of its own. A child writes every case into memory that it shares with its parent before it runs it, so
the parent can name the case that ended a child.
"""

from __future__ import annotations

import base64
import faulthandler
import gc
import json
import mmap
import os
import resource
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from gcodec.errors import GcodecError
from tests.fuzz.mutation import Dice

BATCH = 500  #: cases from one generator
MEMORY = 512 << 20  #: bytes of address space that a child may take in addition to what it has when it begins
PATIENCE = 120  #: seconds of silence, waiting included, after which a child counts as hung
ROOM = 1 << 21  #: bytes of the largest case


class Target(Protocol):
    """What is fuzzed: a function of some bytes.

    Attributes:
        seconds: CPU time that a case may take; more where a kernel may have to be loaded, or compiled, first.
        n_prefix: Bytes that every case begins with, before those that are read.
    """

    @property
    def seconds(self) -> float: ...

    @property
    def n_prefix(self) -> int: ...

    def cases(self) -> list[bytes]:
        """Return valid cases, from which the others are made."""
        ...

    def mutate(self, dice: Dice) -> bytes:
        """Return a new case."""
        ...

    def run(self, case: bytes) -> Any:
        """Run a case; returns anything, or raises a GcodecError. Everything else is a finding."""
        ...


@dataclass(frozen=True)
class Finding:
    """A case that ended in another way than it must.

    Attributes:
        target: Name of the target.
        what: The error and where it was raised, or how the child ended.
        case: The bytes.
    """

    target: str
    what: str
    case: bytes


@dataclass
class Tally:
    """What became of the cases of one target.

    Attributes:
        n_cases: How many were run.
        outcomes: How many returned a result, and how many raised each GcodecError, by name.
        findings: The shortest case of each kind of finding, by what it is.
        counts: How often each kind was found.
        slowest: CPU time of the slowest case, seconds.
        cpu_seconds: CPU time of all cases, with their making.
    """

    n_cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep its case if it is the shortest of its kind."""
        self.counts[finding.what] += 1
        known = self.findings.get(finding.what)
        if known is None or len(finding.case) < len(known.case):
            self.findings[finding.what] = finding


def fuzz(name: str, target: Target, seed: int, start: int, stop: int, tally: Tally | None = None) -> Tally:
    """Run cases ``start`` to ``stop`` of a target.

    Args:
        name: Name of the target.
        target: The target.
        seed: With another seed, cases are others.
        start: Number of the first case, a multiple of ``BATCH``.
        stop: Number after the last one.
        tally: What has been counted before, to which this is added.
    """
    tally, shared = tally or Tally(), mmap.mmap(-1, ROOM)
    number = start
    while number < stop:
        number = _run_child(name, target, seed, range(number, stop), shared, tally)
    shared.close()
    return tally


def replay(target: Target, case: bytes) -> str:
    """Run one case in a child; return what is wrong with it, nothing if all is well.

    Args:
        target: The target.
        case: The bytes.
    """
    tally, shared = Tally(), mmap.mmap(-1, ROOM)
    _run_child("replay", _Once(target, case), 0, range(1), shared, tally)
    shared.close()
    return next(iter(tally.findings), "")


@dataclass(frozen=True)
class _Once:
    """A target with a single case."""

    target: Target
    case: bytes

    @property
    def seconds(self) -> float:
        return self.target.seconds

    @property
    def n_prefix(self) -> int:
        return self.target.n_prefix

    def cases(self) -> list[bytes]:
        return [self.case]

    def mutate(self, dice: Dice) -> bytes:
        return self.case

    def run(self, case: bytes) -> Any:
        return self.target.run(case)


def _run_child(name: str, target: Target, seed: int, numbers: range, shared: mmap.mmap, tally: Tally) -> int:
    """Run cases in a child until it ends; return the number of the next case."""
    reading, writing = os.pipe()
    shared[:16] = bytes(16)
    child = os.fork()
    if not child:
        os.close(reading)
        _child(name, target, seed, numbers, shared, writing)
    os.close(writing)
    text, silent = b"", False
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            if not selector.select(PATIENCE):
                silent = True
                os.kill(child, signal.SIGKILL)
                break
            if not (some := os.read(reading, 1 << 16)):
                break
            text += some
            *lines, text = text.split(b"\n")
            for line in lines:
                _take(name, json.loads(line), tally)
    os.close(reading)
    _, status = os.waitpid(child, 0)
    n_done, size = int.from_bytes(shared[:8], "little"), int.from_bytes(shared[8:16], "little")
    tally.n_cases += n_done
    if not silent and status == 0:
        return numbers.stop
    if silent:
        what = f"no word for {PATIENCE} seconds"
    elif os.WIFEXITED(status):
        what = f"ended with status {os.WEXITSTATUS(status)}"
    elif os.WTERMSIG(status) == signal.SIGPROF:
        what = f"more than {target.seconds:g} seconds of CPU time"
    else:
        what = f"ended by {signal.Signals(os.WTERMSIG(status)).name}"
    tally.add(Finding(name, what, bytes(shared[16 : 16 + size])))
    return numbers.start + max(n_done, 1)


def _take(name: str, line: dict[str, Any], tally: Tally) -> None:
    """Add a line of a child to the tally."""
    if "what" in line:
        tally.add(Finding(name, line["what"], base64.b64decode(line["case"])))
        return
    tally.outcomes.update(line["outcomes"])
    tally.slowest = max(tally.slowest, line["slowest"])
    tally.cpu_seconds += line["cpu_seconds"]


def _child(name: str, target: Target, seed: int, numbers: range, shared: mmap.mmap, answers: int) -> NoReturn:
    """Run cases; never returns."""
    status = 1
    try:
        faulthandler.disable()
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _limit_memory()
        warnings.simplefilter("ignore")
        gc.freeze()
        _run_cases(name, target, seed, numbers, shared, answers)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _limit_memory() -> None:
    if sys.platform == "linux":
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))


def _run_cases(name: str, target: Target, seed: int, numbers: range, shared: mmap.mmap, answers: int) -> None:
    outcomes: Counter[str] = Counter()
    slowest, run, clock, n_done = 0.0, target.run, time.process_time, 0
    began = clock()
    first = numbers.start - numbers.start % BATCH
    dice = Dice()
    for number in range(first, numbers.stop):
        if number % BATCH == 0:
            dice = Dice(f"{name} {seed} {number // BATCH}")
            if n_done:
                _tell(answers, {"outcomes": outcomes, "slowest": slowest, "cpu_seconds": clock() - began})
                outcomes, slowest, began = Counter(), 0.0, clock()
        case = target.mutate(dice)[: ROOM - 16]
        if number < numbers.start:  # made again for the sake of the generator
            continue
        n_done += 1
        shared[16 : 16 + len(case)] = case
        shared[:16] = n_done.to_bytes(8, "little") + len(case).to_bytes(8, "little")
        begin = clock()
        signal.setitimer(signal.ITIMER_PROF, target.seconds)
        try:
            run(case)
            outcome = "result"
        except GcodecError as error:
            outcome = type(error).__name__
        except Exception as error:
            outcome = "finding"
            _tell(answers, {"what": _described(error), "case": base64.b64encode(case).decode()})
        outcomes[outcome] += 1
        slowest = max(slowest, clock() - begin)
    signal.setitimer(signal.ITIMER_PROF, 0)
    _tell(answers, {"outcomes": outcomes, "slowest": slowest, "cpu_seconds": clock() - began})


def _tell(answers: int, line: dict[str, Any]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(answers, data) :]


def _described(error: Exception) -> str:
    """Return the kind of an error and the innermost place of gcodec's on its way."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if "/gcodec/" in frame.filename]
    if isinstance(error, AssertionError) or not places:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return f"{type(error).__name__} in {places[-1].filename.rpartition('/gcodec/')[2]}, {places[-1].name}"
