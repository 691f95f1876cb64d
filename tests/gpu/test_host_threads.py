"""The host in a device's place (``host_threads.h``) finds faults that a device would show, in some order of turns."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.host_library import TRAPS, compiler

#: What is wrong, by the number of the kernel in ``faulty_kernels.cpp``.
FAULTS = (
    "nothing",
    "lanes do not wait",
    "warps do not wait",
    "a mask of some lanes",
    "a lane does not come",
    "a thread does not come",
    "a vector that is not aligned",
    "a shift by more than there is",
    "blocks do not wait",
    "nothing: blocks wait for those before them",
    "blocks wait for some that may not have begun",
)
ORDERS = range(6)  #: rising, falling, and some that are drawn


@pytest.fixture(scope="module")
def fails(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], bool]:
    """Return a function that runs a kernel in an order, and returns True if it is stopped or gives a wrong result."""
    program = tmp_path_factory.mktemp("faulty") / "kernels"
    source = Path(__file__).with_name("faulty_kernels.cpp")
    subprocess.run([compiler(), "-O1", "-std=c++17", *TRAPS, "-o", str(program), str(source)], check=True)

    def run(number: int, order: int) -> bool:
        return subprocess.run([program, str(number), str(order)], capture_output=True, check=False).returncode != 0

    return run


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=FAULTS)
def test_faults_are_found_and_nothing_else(number: int, fails: Callable[[int, int], bool]) -> None:
    assert any(fails(number, order) for order in ORDERS) == (not FAULTS[number].startswith("nothing"))
