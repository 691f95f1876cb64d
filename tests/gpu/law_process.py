"""The process that runs the laws of :mod:`tests.gpu.cuda_laws`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.gpu.cuda_laws import LAWS
from tests.support.paths import ROOT

#: Laws that are quick, by mode. The others compile kernels for each type and rule, or simulate hundreds of arrays.
QUICK = {
    "one-thread": ("coders_of_all_reduces", "hashes"),
    "simulator": ("patches", "hashes"),
}


def marked(mode: str) -> list[Any]:
    """Return all laws as parameters of a test, those that take longest for the slow suite."""
    return [law if law in QUICK[mode] else pytest.param(law, marks=pytest.mark.slow) for law in LAWS]


def problem_of(law: str, mode: str, **environment: str) -> str:
    """Return what went wrong with a law, empty if nothing did; arguments as of :func:`problems`."""
    return problems(mode, law in QUICK[mode], **environment)[law]


@cache
def problems(mode: str, quick: bool, **environment: str) -> dict[str, str]:
    """Return what went wrong with each law, in one process for all of them.

    Args:
        mode: "one-thread" or "simulator".
        quick: The quick laws, or the others.
        environment: Variables of the process besides its parent's.
    """
    laws = [law for law in LAWS if (law in QUICK[mode]) == quick]
    done = subprocess.run([sys.executable, "-m", "tests.gpu.cuda_laws", mode, *laws], capture_output=True, text=True,
                          check=False, cwd=ROOT, env={**os.environ, **environment}, timeout=900)
    results = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    assert sorted(results) == sorted(laws)
    return results
