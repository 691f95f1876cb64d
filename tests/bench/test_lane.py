"""The bench of the lane's processor time says of each mode what it promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

from bench.data import ROOT
from gcodec.benchmark.csv_tables import read_table

pytest.importorskip("torch")


@pytest.mark.slow
def test_the_bench_of_the_lane_writes_where_its_time_goes(tmp_path):
    command = [sys.executable, "-m", "bench.lane", "--quick", "--mode", "bf16", "--steps", "4", "--out", str(tmp_path)]
    subprocess.run(command, timeout=300, check=True, cwd=ROOT)
    (row,) = read_table(tmp_path / "lane.csv")[1]
    assert row["mode"] == "bf16"
    ratio, lane, codec, encode, decode = (
        float(row[name]) for name in ("ratio", "lane_ms", "codec_ms", "encode_ms", "decode_ms")
    )
    assert 0 < codec < lane
    assert codec == pytest.approx(encode + decode, abs=0.002)
    assert ratio == pytest.approx(lane / codec, rel=0.01)
