"""The CUDA path on the host: its laws (:mod:`tests.gpu.cuda_cases`), compiled for one thread and in numba's
simulator."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from numba import config

import gcodec
from tests.gpu.cuda_cases import LAWS
from tests.support.paths import ROOT

MODES: dict[str, dict[str, str]] = {"one-thread": {}, "simulator": {"NUMBA_ENABLE_CUDASIM": "1"}}


@cache
def problems(mode: str) -> dict[str, str]:
    """Return what went wrong with each law, in one process for all of them."""
    done = subprocess.run([sys.executable, "-m", "tests.gpu.cuda_cases", mode], capture_output=True, text=True,
                          check=False, cwd=ROOT, env={**os.environ, **MODES[mode]}, timeout=900)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("law", LAWS)
def test_cuda_kernels_obey_every_law_on_the_host(mode, law):
    problem = problems(mode)[law]
    assert not problem, problem


def test_every_law_of_cuda_kernels_is_run():
    assert sorted(problems("simulator")) == sorted(LAWS)


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
    assert launch.settings().CUDA_LOW_OCCUPANCY_WARNINGS == 1
    assert launch.stream_of(0) == 0


def test_a_default_stream_of_each_threads_own_is_refused(monkeypatch):
    launch = importlib.import_module("gcodec.kernels.cuda.launch")
    monkeypatch.setattr(launch.cuda, "current_context", lambda: None)
    launch.check_gpu()
    monkeypatch.setattr(config, "CUDA_PER_THREAD_DEFAULT_STREAM", 1, raising=False)
    with pytest.raises(gcodec.Unsupported, match="PER_THREAD"):
        launch.check_gpu()
