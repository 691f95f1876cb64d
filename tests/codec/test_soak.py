"""Soaks: the same bytes on many threads and in many processes at once, and memory that levels off.

They take the seconds that the environment variable GCODEC_SOAK_SECONDS names in all, or 20; 600 are for a release.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from tests.support.reliability import record

SECONDS = float(os.environ.get("GCODEC_SOAK_SECONDS", "20"))
SPARE_MIB = 48  #: by which memory may grow: what threads keep, and pieces of it that are free

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


def started(*arguments: object) -> subprocess.Popen[str]:
    """Start the program of :mod:`tests.support.soak`."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.soak", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def results(*processes: subprocess.Popen[str]) -> list[list[int]]:
    """Wait for processes, and return the numbers that each prints."""
    texts = [process.communicate(timeout=SECONDS + 900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [[int(number) for number in text.split()] for text in texts]


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize(("n_processes", "n_threads"), [(1, 16), (8, 1)])
def test_many_at_once_make_the_same_bytes_and_memory_levels_off(n_processes, n_threads):
    processes = [started("threads", n_threads, SECONDS / 2, seed) for seed in range(n_processes)]
    calls, failures, after_a_third, at_the_end = (sum(numbers) for numbers in zip(*results(*processes), strict=True))
    what = f"{n_processes} processes" if n_processes > 1 else f"{n_threads} threads"
    memory = f"{after_a_third} MiB after a third of {SECONDS / 2:g} s, {at_the_end} MiB at the end"
    record(f"{what} at once", calls, failures, f"the bytes of one alone; {memory}")
    assert calls > 1000
    assert failures == 0
    assert at_the_end <= after_a_third + n_processes * SPARE_MIB


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("what", ["pool", "loader"])
def test_processes_started_in_any_way_make_the_same_bytes(what, method):
    if what == "loader":
        pytest.importorskip("torch")
    if sys.platform == "win32" and method != "spawn":
        pytest.skip("no such method here")
    ((calls, failures, *_),) = results(started(what, method))
    users = "DataLoader workers" if what == "loader" else "pool of processes"
    record(f"{users}, {method}", calls, failures, "the bytes of one alone")
    assert failures == 0
