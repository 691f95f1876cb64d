"""The laws of DiLoCo's outer step among real processes, and the worked examples of low-communication training."""

from __future__ import annotations

import pytest

from tests.support.exits import NO_THREADS, counting_threads
from tests.support.paths import ROOT

pytest.importorskip("torch")

from examples import federated
from tests.distributed import diloco_cases as cases
from tests.support.rank_fixtures import ranks_of, with_sizes
from tests.support.ranks import agreed
from tests.support.torchrun import output_under_torchrun

ranks = ranks_of(1, 2, 3)


def test_an_outer_step_of_diloco_is_that_of_the_outer_optimizer(ranks):
    agreed(ranks.run(cases.law))


def test_parameters_of_any_strides_are_the_same_on_all_ranks_from_the_start(ranks):
    assert len(set(agreed(ranks.run(cases.strided)))) == 3


@pytest.mark.parametrize("mixing", [0.0, 0.5, 0.75])
def test_an_overlapped_exchange_is_of_the_parameters_at_its_beginning_and_applied_when_due(ranks, mixing):
    assert len(set(agreed(ranks.run(cases.overlapped_law, mixing=mixing)))) == 6


@with_sizes(2, 3)
def test_inner_steps_go_on_while_other_ranks_have_not_come_to_the_exchange(ranks):
    agreed(ranks.run(cases.ahead))


def test_a_flush_applies_the_exchange_that_has_begun_and_leaves_none(ranks):
    _, is_amid = agreed(ranks.run(cases.flushed_amid))
    assert not is_amid


@with_sizes(3)
def test_a_rank_that_never_comes_is_an_error_where_the_exchange_is_due(ranks):
    *heard, _ = ranks.run(cases.silent)
    assert all("rank" in text for text in heard)


@pytest.mark.parametrize("overlap_steps", [0, 1, 2])
@pytest.mark.parametrize("mode", ["visible", "visible, rounded", "2 bits", "topk"])
def test_what_was_sent_and_what_stays_in_the_residual_is_what_was_to_be_sent(ranks, mode, overlap_steps):
    results = ranks.run(cases.conservation, mode=mode, overlap_steps=overlap_steps)
    agreed([checksums for checksums, _ in results])
    for _, share in results:
        assert 0 < share < 0.9


@pytest.mark.parametrize("mode", ["visible", "topk"])
def test_a_flush_leads_to_the_parameters_of_the_lossless_mode(ranks, mode):
    assert all(ranks.run(cases.flushed, name=mode))


@pytest.mark.parametrize("mode", ["lossless", "2 bits"])
def test_parts_take_turns(ranks, mode):
    assert len(agreed(ranks.run(cases.in_turns, mode=mode))) == 14


@with_sizes(2, 3)
def test_a_flush_on_one_rank_only_is_an_error_on_all(ranks):
    assert all("flush" in heard for heard in ranks.run(cases.half_flushed))


def test_a_state_with_a_residual_is_refused_where_it_does_not_belong(ranks):
    ranks.run(cases.refused_states)


#: One rank sends nothing, in whatever mode.
TRAININGS = [
    (1, "lossless", False),
    (2, "lossless", False),
    (2, "fixed", False),
    (2, "near", True),
    (2, "visible", False),
    (3, "near", False),
    (3, "visible, rounded", False),
    (2, "int4", True),
    (3, "2 bits", False),
    (2, "fading", False),
    *(
        pytest.param(*training, marks=pytest.mark.slow)
        for training in ((2, "near", False), (3, "lossless", False), (3, "fixed", False), (3, "near", True))
    ),
]


@pytest.mark.parametrize(("ranks", "mode", "narrow"), TRAININGS, indirect=["ranks"])
def test_replicas_under_diloco_learn_and_stay_the_same(ranks, mode, narrow):
    result = ranks.run(cases.train, mode=mode, narrow=narrow)
    agreed([checksum for checksum, *_ in result])
    for _, first, last, ratio in result:
        assert last < 0.8 * first
        assert ratio > 1 or ranks.size == 1


@pytest.mark.parametrize("mode", ["lossless", "near", "visible", "2 bits", "qsgd", "powersgd"])
def test_a_resumed_run_of_diloco_is_the_uninterrupted_run(ranks, mode):
    assert all(ranks.run(cases.resume, mode=mode))


@pytest.mark.parametrize("mode", ["lossless", "2 bits"])
def test_a_run_of_diloco_resumed_between_the_turns_of_parts_is_the_uninterrupted_run(ranks, mode):
    assert all(ranks.run(cases.resume, mode=mode, parts=3))


@pytest.mark.parametrize("mode", ["lossless", "2 bits", "qsgd"])
@pytest.mark.parametrize("options", [{"every": 9, "parts": 3}, {"every": 3}])
def test_a_run_of_diloco_resumed_in_the_middle_of_an_exchange_is_the_uninterrupted_run(ranks, mode, options):
    assert all(ranks.run(cases.resume, mode=mode, overlap_steps=2, **options))


@pytest.mark.parametrize("overlap_steps", [0, 2])
def test_an_exchange_that_a_state_holds_is_applied_before_the_next_one_begins(ranks, overlap_steps):
    assert agreed(ranks.run(cases.resumed_otherwise, overlap_steps=overlap_steps))[1]


@pytest.mark.parametrize("mode", ["lossless", "visible", "2 bits", "qsgd"])
@with_sizes(3)
def test_ranks_go_on_after_one_has_left(ranks, mode):
    *stayed, gone = ranks.run(cases.left, mode=mode)
    assert len(agreed(stayed)) == 2 and not gone


@pytest.mark.parametrize("mode", ["lossless", "2 bits"])
@with_sizes(2, 3)
def test_a_rank_that_joins_takes_turns_with_the_others(ranks, mode):
    assert len(agreed(ranks.run(cases.joined, mode=mode))) == 9


@pytest.mark.parametrize("overlap_steps", [0, 1])
@pytest.mark.parametrize("mode", ["lossless", "visible", "2 bits"])
@with_sizes(2, 3)
def test_a_fault_during_an_outer_step_leaves_the_last_one(ranks, mode, overlap_steps):
    case = {"culprit": ranks.size - 1, "mode": mode, "overlap_steps": overlap_steps}
    for heard, unchanged in ranks.run(cases.corrupted, **case):
        assert "rank" in heard
        assert unchanged


def test_an_outer_step_refuses_parameters_that_the_optimizer_has_got_since(ranks):
    assert "make a new DiLoCo" in agreed(ranks.run(cases.grown))


def test_diloco_refuses_senseless_arguments(ranks):
    ranks.run(cases.refusals)


# Worked examples


@pytest.mark.slow
def test_the_example_of_diloco_runs_under_torchrun(tmp_path):
    program = [str(ROOT / "examples/diloco.py"), "--steps", "20", "--every", "5", "--mode", "fixed"]
    *lines, first, second = output_under_torchrun(2, program, counting_threads(tmp_path / "site"))
    assert first == second == NO_THREADS
    losses = [float(line.split()[-1]) for line in lines if line.startswith("step ")]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert "times less" in lines[-1]


def test_federated_averaging_learns_from_bytes_alone():
    losses, sent, dense = federated.run(rounds=2, n_clients=2)
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
