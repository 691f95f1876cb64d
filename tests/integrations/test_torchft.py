"""The process group for torchft: real replicas, of which one is killed and comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest

pytest.importorskip("torchft")

from torchft.coordination import LighthouseServer

import gcodec
from gcodec.integrations.torchft import ProcessGroupGcodec
from tests.support.paths import ROOT

PATIENCE = 240  #: seconds


@pytest.fixture
def lighthouse() -> Iterator[LighthouseServer]:
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=1000)
    yield server
    server.shutdown()


def replica(lighthouse: LighthouseServer, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integrations.torchft_replica", *map(str, arguments)]
    environment = os.environ | {"TORCHFT_LIGHTHOUSE": lighthouse.address(), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def steps_and_stats(process: subprocess.Popen[str], code: int) -> tuple[dict[int, tuple[int, int]], dict[str, float]]:
    """Return what a replica printed: by step how many took part and the checksum; and the counts of its group."""
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, errors
    words = [line.split(" ", 1) for line in out.splitlines()]
    steps = [tuple(map(int, rest.split())) for word, rest in words if word == "step"]
    stats = [json.loads(rest) for word, rest in words if word == "stats"]
    return {step: (n, checksum) for step, n, checksum in steps}, next(iter(stats), {})


@pytest.mark.parametrize("kind", ["ddp", "diloco"])
def test_replicas_go_on_after_one_was_killed_and_are_the_same_when_it_is_back(lighthouse, kind):
    first, second = replica(lighthouse, kind, 0, 8), replica(lighthouse, kind, 1, 8, 3)
    killed, _ = steps_and_stats(second, 7)
    back, counts_of_back = steps_and_stats(replica(lighthouse, kind, 1, 5), 0)
    survived, counts = steps_and_stats(first, 0)
    together = {step for step, (n, _) in survived.items() if n == 2}
    assert len(together) == 8
    for other in killed, back:
        common = together & other.keys()
        assert len(common) >= 3
        assert all(survived[step] == other[step] for step in common)
    for each in counts, counts_of_back:
        assert each["calls"] > 0
        assert each["sent_bytes"] < each["dense_bytes"]


def test_options_of_another_kind_are_refused():
    with pytest.raises(gcodec.InvalidArgument, match="options must be a GroupOptions"):
        ProcessGroupGcodec(cast(Any, "exact"))
    assert ProcessGroupGcodec().stats() == {}
