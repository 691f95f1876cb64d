"""Runs laws in a process of their own: ``python -m tests.gpu.cuda_laws one-thread`` or ``simulator``."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from tests.gpu.cuda_laws import LAWS
from tests.gpu.cuda_memory import HostMemory

THREADS = 16


@contextmanager
def _never_restored(function: Any, fake: Any) -> Iterator[None]:
    """The simulator gives a function its ``cuda`` and takes it away again when a call returns, though other threads may
    still be inside; here it stays."""
    function.__globals__["cuda"] = fake
    yield


def start(mode: str) -> HostMemory:
    """Make this process one of those that the package's first lines describe."""
    names = {"uint16": "bfloat16", "uint32": "float32"}
    if mode == "one-thread":
        from tests.gpu import cuda_one_thread

        cuda_one_thread.install()
        return HostMemory(lambda array: array, names)
    np.seterr(over="ignore")      # integers wrap, as they shall
    import numba.cuda.simulator.kernel as simulator
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    from gcodec.kernels.cuda import grid

    setattr(simulator, "swapped_cuda_module", _never_restored)  # noqa: B010 - it is not exported
    grid.set_threads(THREADS)
    for module in ("batches", "hashing", "level_choice"):
        import_module(f"gcodec.gpu.{module}")  # and so every kernel, before the first is launched
    return HostMemory(FakeCUDAArray, names)


def main(mode: str, *wanted: str) -> None:
    """Run all laws, or those named."""
    memory = start(mode)
    for name, item in LAWS.items():
        if wanted and name not in wanted:
            continue
        try:
            item(memory, mode == "one-thread")
            problem = ""
        except Exception:
            problem = traceback.format_exc()
        print(json.dumps([name, problem]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
