"""The laws of DiLoCo's outer step among real processes, and the worked examples of low-communication training."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

pytest.importorskip("torch")

from examples import federated
from tests.distributed import diloco_cases as cases
from tests.support.rank_fixtures import ranks_of, with_sizes
from tests.support.ranks import agreed

EXAMPLES = ROOT / "examples"
ranks = ranks_of(1, 2, 3)


def test_an_outer_step_of_diloco_is_that_of_the_outer_optimizer(ranks):
    agreed(ranks.run(cases.law))


#: One rank sends nothing, in whatever mode.
TRAININGS = [(1, "lossless", False), *((size, mode, narrow) for size in (2, 3) for mode, narrow in (
    ("lossless", False), ("fixed", False), ("near", False), ("near", True)))]


@pytest.mark.parametrize(("ranks", "mode", "narrow"), TRAININGS, indirect=["ranks"])
def test_replicas_under_diloco_learn_and_stay_the_same(ranks, mode, narrow):
    result = ranks.run(cases.train, mode=mode, narrow=narrow)
    agreed([checksum for checksum, *_ in result])
    for _, first, last, ratio in result:
        assert last < 0.8 * first
        assert ratio > 1 or ranks.size == 1


@pytest.mark.parametrize("mode", ["lossless", "near"])
def test_a_resumed_run_of_diloco_is_the_uninterrupted_run(ranks, mode):
    assert all(ranks.run(cases.resume, mode=mode))


@with_sizes(2, 3)
def test_a_fault_during_an_outer_step_leaves_the_last_one(ranks):
    for heard, unchanged in ranks.run(cases.corrupted, by=ranks.size - 1):
        assert "rank" in heard
        assert unchanged


def test_diloco_refuses_senseless_arguments(ranks):
    ranks.run(cases.refusals)


# Worked examples

def test_the_example_of_diloco_runs_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               str(EXAMPLES / "diloco.py"), "--steps", "20", "--every", "5", "--mode", "fixed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=EXAMPLES.parent)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step ")]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert "times less" in lines[-1]


def test_federated_averaging_learns_from_bytes_alone():
    losses, sent, dense = federated.run(rounds=4, n_clients=2)
    assert losses[-1] < losses[0]
    assert sent < 0.8 * dense


def test_a_federated_model_arrives_bit_for_bit():
    state = federated.network().state_dict()
    first = federated.unpack(federated.pack(state, None), None)
    assert all(first[name].equal(tensor) for name, tensor in state.items())
    moved = {name: tensor * 1.0001 for name, tensor in state.items()}
    data = federated.pack(moved, state)
    assert len(data) < len(federated.pack(moved, None))
    second = federated.unpack(data, first)
    assert all(second[name].equal(tensor) for name, tensor in moved.items())
