"""The process that runs the laws of :mod:`tests.gpu.cuda_cases`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

from tests.support.paths import ROOT


@cache
def problems(mode: str, **environment: str) -> dict[str, str]:
    """Return what went wrong with each law, in one process for all of them.

    Args:
        mode: "one-thread" or "simulator".
        environment: Variables of the process besides its parent's.
    """
    done = subprocess.run([sys.executable, "-m", "tests.gpu.cuda_cases", mode], capture_output=True, text=True,
                          check=False, cwd=ROOT, env={**os.environ, **environment}, timeout=900)
    results = dict(json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0, done.stderr
    return results
