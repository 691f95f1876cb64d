"""The CUDA path on the host: its laws (:mod:`tests.cuda_cases`), compiled for one thread and in numba's simulator."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import gcodec
from tests.cuda_cases import LAWS

ROOT = Path(__file__).resolve().parents[1]
MODES: dict[str, dict[str, str]] = {"one-thread": {}, "simulator": {"NUMBA_ENABLE_CUDASIM": "1"}}


@cache
def problems(mode: str) -> dict[str, str]:
    """What went wrong with each law, in one process for all of them."""
    done = subprocess.run([sys.executable, "-m", "tests.cuda_cases", mode], capture_output=True, text=True, check=False,
                          cwd=ROOT, env={**os.environ, **MODES[mode]}, timeout=900)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("law", LAWS)
def test_law(mode, law):
    problem = problems(mode)[law]
    assert not problem, problem


def test_no_law_is_left_out():
    assert sorted(problems("simulator")) == sorted(LAWS)


def test_nothing_else_loads_the_cuda_target():
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
