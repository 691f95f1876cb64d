"""Programs of several processes, started as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from tests.support.paths import ROOT


def output_under_torchrun(
    n_ranks: int, program: Sequence[str], environment: Mapping[str, str], timeout: float = 240
) -> list[str]:
    """Return the lines that a program writes under torchrun, which must succeed.

    Args:
        n_ranks: Its processes.
        program: A script or ``-m`` and a module, with its arguments.
        environment: Variables beside those of this process.
        timeout: Seconds that it may take.
    """
    run = "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)
    done = subprocess.run(
        [sys.executable, "-m", *run, *program],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=ROOT,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
