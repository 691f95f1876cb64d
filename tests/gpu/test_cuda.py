"""Loading CUDA kernels and launching them, on a host without a device."""

from __future__ import annotations

import builtins
import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

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
    launch, hashes = (importlib.import_module(f"gcodec.kernels.cuda.{name}") for name in ("launch", "xxh3"))
    with ThreadPoolExecutor(8) as threads:
        for made in threads.map(lambda blocks: launch.configured(hashes.sum_hash_blocks, blocks, 0), range(1, 128)):
            assert made.griddim[0] < 128
    assert launch.cuda_settings().CUDA_LOW_OCCUPANCY_WARNINGS == 1
