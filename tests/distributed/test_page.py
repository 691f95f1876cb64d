"""The code on docs/training.md runs as it is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


def test_every_block_of_the_page_on_training_runs():
    done = subprocess.run([sys.executable, "-u", "-m", "tests.distributed.page_cases"], capture_output=True, text=True,
                          timeout=600, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "FAILED" not in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("ran: ") > 10
