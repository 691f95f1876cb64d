"""The laws of kernels before they are called: nothing of numba's is made for them, and then it is made once."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from gcodec.kernels.core.jit import Kernel

COUNTED = """
import gcodec.codec
from gcodec.kernels.core.jit import Kernel
import gc
kernels = [thing for thing in gc.get_objects() if isinstance(thing, Kernel)]
print(len(kernels) > 300, sum("dispatcher" in vars(kernel) for kernel in kernels))
"""


def test_importing_makes_no_dispatcher():
    done = subprocess.run([sys.executable, "-c", COUNTED], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True 0\n"


def test_threads_that_ask_at_the_same_time_have_the_same_dispatcher():
    made, barrier = list[object](), Barrier(4)

    def make() -> object:
        barrier.wait(60)
        made.append(object())
        return made[-1]

    def add_one(n: int) -> int:
        """Add one."""
        return n + 1

    kernel = Kernel(add_one, {}, make)
    assert (kernel.__name__, kernel.__doc__, kernel.py_func) == ("add_one", "Add one.", add_one)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: kernel.dispatcher, range(4)))
    assert len(made) == 4 and found == {kernel.dispatcher}
