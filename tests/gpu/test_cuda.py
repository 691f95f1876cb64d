"""Loading CUDA kernels and launching them, on a host without a device."""

from __future__ import annotations

import builtins
import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import config

import gcodec
from tests.support.paths import ROOT


def test_the_cuda_target_is_loaded_only_when_used():
    program = ("import sys, gcodec, numpy as np; gcodec.decode(gcodec.encode(np.ones(9))); import gcodec.gpu; "
               "print([m for m in sys.modules if m.startswith(('numba.cuda', 'gcodec.kernels.cuda'))])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_a_broken_cuda_target_is_unsupported(monkeypatch):
    real = builtins.__import__

    def broken(name, globals=None, locals=None, fromlist=(), level=0):
        if name == "numba" and fromlist and "cuda" in fromlist:
            raise OSError("libcudart is missing")
        return real(name, globals, locals, fromlist, level)

    for module in [name for name in sys.modules if name.startswith("gcodec.kernels.cuda")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(gcodec.Unsupported, match="libcudart"):
        importlib.import_module("gcodec.kernels.cuda")


def test_small_launches_raise_no_warning():
    """numba warns of few blocks, and a warning is an error here. Its switch is the process's, and stays as it was."""
    launch, assemble = (importlib.import_module(f"gcodec.kernels.cuda.{name}") for name in ("launch", "assemble"))
    with ThreadPoolExecutor(8) as threads:
        for made in threads.map(lambda blocks: launch.configured(assemble.seal_frames, blocks, 0), range(1, 128)):
            assert made.griddim[0] < 128
    assert launch.cuda_settings().CUDA_LOW_OCCUPANCY_WARNINGS == 1
    assert launch.stream_of(0) == 0


def test_a_default_stream_of_each_threads_own_is_refused(monkeypatch):
    launch = importlib.import_module("gcodec.kernels.cuda.launch")
    monkeypatch.setattr(launch.cuda, "current_context", lambda: None)
    launch.check_gpu()
    monkeypatch.setattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 1, raising=False)
    with pytest.raises(gcodec.Unsupported, match="PER_THREAD"):
        launch.check_gpu()


def test_kernels_are_compiled_once_for_arguments_of_a_kind(monkeypatch):
    launch = importlib.import_module("gcodec.kernels.cuda.launch")
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr(launch.cuda, "get_current_device", lambda: device)
    monkeypatch.setattr(launch, "_specializations", {})

    class Kernel:
        def specialize(self, *args):
            return args

    class Pair(NamedTuple):
        a: Any
        b: Any

    kernel, words = Kernel(), np.zeros(4, np.uint32)
    first = launch.specialized(kernel, (Pair(words, words), np.uint32(1)))
    assert launch.specialized(kernel, (Pair(words[1:], words), np.uint32(2))) is first
    for other in [(Pair(words.astype(np.uint16), words), np.uint32(1)), ((words, words), np.uint32(1)),
                  (Pair(words.reshape(2, 2), words), np.uint32(1)), (Pair(words, words), np.uint8(1)),
                  (words, words, np.uint32(1))]:
        assert launch.specialized(kernel, other) is not first
    assert launch.specialized(Kernel(), (Pair(words, words), np.uint32(1))) is not first
    device.compute_capability = (8, 0)
    assert launch.specialized(kernel, (Pair(words, words), np.uint32(1))) is not first
