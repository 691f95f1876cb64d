"""Training as it should not be, among real processes, ends in a clear error on every rank, and never in a hang."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import gcodec.distributed
from tests.distributed import misuse_cases as cases
from tests.support.rank_fixtures import ranks_of
from tests.support.ranks import Ranks, agreed

CULPRIT = 1
ranks = ranks_of(3)


# Lanes that are closed


@pytest.mark.parametrize("state", ["near", "top"])
def test_training_goes_on_after_lanes_are_closed(ranks, state):
    assert agreed(ranks.run(cases.closed, state=state))


def test_a_broken_lane_stays_broken_when_it_is_closed(ranks):
    for first, *later in ranks.run(cases.closed_when_broken, culprit=CULPRIT):
        assert "checksum is wrong" in first or "aborted" in first
        assert all("an earlier all-reduce of this group has failed" in text for text in later), later


def test_allreduces_on_a_lane_that_is_closing_end_or_raise(ranks):
    for first, *others in ranks.run(cases.late):
        assert first == "True"
        assert all(text == "done" or "closed" in text for text in others)


def test_lanes_of_destroyed_groups_are_closed(ranks):
    for error, left in ranks.run(cases.destroyed):
        assert "has been destroyed" in error
        assert left == 0


def test_a_restarted_run_reads_nothing_of_the_attempt_before(ranks):
    assert agreed(ranks.run(cases.restarted)) == [None] * 3


def test_a_blocking_job_begins_after_jobs_that_have_begun(ranks):
    assert agreed(ranks.run(cases.between))


# The group and the file of a state


def test_a_state_of_another_group_than_DDPs_is_refused(ranks):
    for texts, takes_it_from_the_model in ranks.run(cases.other_group):
        assert all("give the state group=ddp.process_group" in text for text in texts), texts
        assert takes_it_from_the_model


@pytest.mark.parametrize("state", ["near", "top"])
def test_a_DDP_model_is_saved_with_the_state_of_its_hook_and_loaded_without_the_hook(ranks, state):
    assert agreed(ranks.run(cases.saved, state=state)) == (True, [0, 1])


def test_an_error_that_ends_a_rank_is_read_by_the_others(ranks):
    assert agreed(ranks.run(cases.raised, culprit=CULPRIT)) == "ZeroDivisionError: of its own"


def test_threads_of_gloo_end_with_the_lane(ranks):
    assert agreed(ranks.run(cases.group_of_a_closed_lane)) == (True, False)


# Options that differ


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("refresh", "refresh: Refresh(interval=50, trigger=0.1) on rank 0, Refresh(interval=5, trigger=0.1) on rank 1"),
        ("no refresh", "refresh: Refresh(interval=50, trigger=0.1) on rank 0, None on rank 1"),
        ("bypass", "bypass: None on rank 0, Bypass(steps=4, every=500, margin=0.02) on rank 1"),
        ("min_bytes", "min_bytes: 0 on rank 0, 1073741824 on rank 1"),
        ("mode", "mode: 'NearLossless(optimizer)' on rank 0, FixedBits(mantissa_bits=8) on rank 1"),
        ("accuracy", "mode: 'NearLossless(optimizer)' on rank 0, 'bf16' on rank 1"),
        ("state", "state: 'CompressedAllreduce' on rank 0, 'CompressedGradients' on rank 1"),
        ("loaded", "loaded state: None on rank 0, 'of step 4, checksum "),
    ],
)
def test_an_option_that_differs_is_named_on_every_rank(ranks, what, text):
    heard = agreed(ranks.run(cases.differing, what=what, culprit=CULPRIT))
    assert f"ranks differ in {text}" in heard
    assert ("loaded state" in heard) == (what in ("loaded", "state"))  # another kind of state has none


@pytest.mark.parametrize(
    "other", [{"refresh": None}, {"bypass": None}, {"min_bytes": 1 << 30}], ids=lambda other: next(iter(other))
)
def test_an_option_of_a_process_group_that_differs_is_named_on_every_rank(ranks, other):
    heard = agreed(ranks.run(cases.differing_groups, culprit=CULPRIT, **other))
    assert f"ranks differ in {next(iter(other))}: " in heard


def test_an_option_of_diloco_that_differs_is_named_on_every_rank(ranks):
    heard = agreed(ranks.run(cases.differing_diloco, culprit=CULPRIT))
    assert "ranks differ in every: 2 on rank 0, 3 on rank 1" in heard


def test_ranks_with_different_codebooks_raise_an_error_that_mentions_them(ranks):
    assert all(
        "codebooks (as after load_state_dict() on some ranks only)" in text or "aborted" in text
        for text in ranks.run(cases.changed, culprit=CULPRIT)
    )


def test_ranks_that_loaded_states_of_different_steps_raise_PeerError(ranks):
    assert all("differs in" in text or "aborted" in text for text in ranks.run(cases.torn, culprit=CULPRIT))
    heard = ranks.run(cases.torn_diloco, culprit=CULPRIT)
    assert all("ranks differ in steps: 4 on rank 0, 6 on rank 1" in text for text in heard)


def test_a_hook_without_a_state_says_what_is_right():
    nothing: Any = None
    with pytest.raises(gcodec.InvalidArgument, match=r"CompressedAllreduce\(\), hook\), not None"):
        gcodec.distributed.hook(nothing, nothing)


# Optimizers


def test_an_optimizer_without_a_rule_is_refused_in_the_words_of_the_hook():
    optimizer = torch.optim.Rprop([torch.nn.Parameter(torch.ones(3))])
    with pytest.raises(gcodec.Unsupported, match=r"Rprop: use mode=Lossless\(\) or mode=FixedBits\(k\) instead"):
        gcodec.distributed.CompressedAllreduce(optimizer=optimizer)


@pytest.mark.parametrize("held", [0, 2, 8])
def test_buckets_that_no_optimizer_holds_are_warned_of_once(ranks, held):
    warned = agreed(ranks.run(cases.strangers, held=held))
    assert len(warned) == (held < 8)
    assert all("no optimizer of the mode holds a parameter of bucket" in text for text in warned)


# Uncompressed buckets


def test_a_rank_that_dies_is_not_named_where_gloo_reduces():
    result = Ranks(3).run_with_deaths(cases.death, culprit=CULPRIT)
    for rank in (0, 2):
        first, later = result[rank]
        assert "bucket" in first
        assert "uncompressed: some rank, it is not known which: " in first or "sums between steps: some rank" in first
        assert "an earlier all-reduce of this group has failed" in later


def test_an_all_reduce_started_by_the_callback_of_another_is_refused(ranks):
    (text,) = agreed(ranks.run(cases.in_a_callback))
    assert "must not be started by the callback" in text
