"""The bench of the lane's processor time says of each mode what it promises."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bench.data import ROOT

pytest.importorskip("torch")


@pytest.mark.slow
def test_the_bench_of_the_lane_prints_the_ratio_of_a_mode():
    command = [sys.executable, "-m", "bench.lane", "--quick", "--mode", "bf16", "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=ROOT)
    found = re.search(r"^bf16: ratio ([\d.]+), lane ([\d.]+) ms, codec ([\d.]+) ms \(encode", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    ratio, lane, codec = map(float, found.groups())
    assert 0 < codec < lane
    assert ratio == pytest.approx(lane / codec, rel=0.01)
