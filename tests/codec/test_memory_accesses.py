"""No access leaves its array: the machine checks that, in a process of its own (:mod:`tests.codec.guarded_memory`)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


def run_guarded(side: str, many: str, **environment: str) -> str:
    """Return what :func:`~tests.codec.guarded_memory.read_guarded` prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.codec.guarded_memory", side, many],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize("side", ["after", "before"])
def test_coding_touches_no_memory_outside_of_the_arrays(side):
    assert "refused" in run_guarded(side, "few")


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("side", ["after", "before"])
def test_coding_many_frames_touches_no_memory_outside_of_the_arrays(side):
    assert "refused" in run_guarded(side, "many")


@pytest.mark.slow
@linux_only
def test_no_index_of_a_kernel_is_out_of_bounds(tmp_path):
    """The frames are read under numba's own checks, which see a row that runs into the next. Kernels compile anew."""
    assert "refused" in run_guarded("after", "few", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))


@linux_only
def test_the_guard_page_catches_accesses_outside_of_an_array():
    program = """
from tests.codec.guarded_memory import guarded_bytes
array = guarded_bytes(100, "{side}")
array[0] = array[99] = 1
import ctypes
ctypes.c_uint8.from_address(array.ctypes.data + {offset}).value
"""
    for side, offset in (("after", 100), ("before", -1)):
        for shift, survives in ((0, False), (1 if offset < 0 else -1, True)):
            done = subprocess.run(
                [sys.executable, "-c", program.format(side=side, offset=offset + shift)],
                cwd=ROOT,
                capture_output=True,
                check=False,
            )
            assert (done.returncode == 0) == survives
