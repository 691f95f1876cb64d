"""The laws of weights sent over real process groups: all ranks have the version, or none."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")

import torch

import gcodec
from tests.support.rank_fixtures import ranks_of
from tests.sync import broadcast_cases as cases

ranks = ranks_of(3)


def test_all_ranks_have_every_version_bit_for_bit(ranks):
    sizes, *_ = ranks.run(cases.follow)
    assert all(size < 0.7 * sizes[0] for size in sizes[1:])


def test_a_rank_that_joins_late_gets_an_anchor(ranks):
    (anchor, second, late, *after), *_ = ranks.run(cases.join_late, by=2)
    assert late > 0.8 * anchor
    assert all(size < 0.7 * anchor for size in (second, *after))


def test_a_rank_that_cannot_use_a_version_is_named_and_none_applies_it(ranks):
    answers = ranks.run(cases.fail_on, by=1)
    assert all(kept for _, kept in answers)
    (source, _), (failing, _), (third, _) = answers
    assert failing[0].startswith("BrokenChain") and "'bfloat16'" in failing[0]
    for heard in (source, third):
        assert heard[0].startswith("PeerError") and "rank 1 could not use it: BrokenChain" in heard[0]
    assert not any(heard[1] for heard, _ in answers)


def test_a_rank_whose_tensors_overlap_refuses_before_another_rank_applies_the_version(ranks):
    (source, _), (failing, kept), (third, kept_elsewhere) = ranks.run(cases.overlap_on, by=1)
    assert failing.startswith("InvalidArgument") and "share memory" in failing
    assert all(heard.startswith("PeerError") and "rank 1 could not use it" in heard for heard in (source, third))
    assert kept and kept_elsewhere


def test_a_message_that_arrives_damaged_is_named(ranks):
    source, second, third = ranks.run(cases.damaged, by=2)
    assert third.startswith("Corruption") and "arrived damaged" in third
    assert "rank 2 could not use it: Corruption" in source and "rank 2 could not use it: Corruption" in second


def test_an_anchor_that_is_gone_is_an_error_on_all_ranks(ranks):
    (source, *others) = ranks.run(cases.stale)
    assert "before the next version" in source[0]
    assert all("could not make its message" in heard[0] for heard in others)


def test_wrong_roles_are_refused(ranks):
    for *roles, mixed in ranks.run(cases.misuse):
        assert all(heard.startswith("InvalidArgument") for heard in roles)
        assert mixed.startswith("PeerError: on rank 2 the source is rank 1")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_shards_are_followed_by_workers_of_the_same_layout(ranks, tmp_path, dtype):
    for rank, heard in enumerate(ranks.run(cases.shards, path=str(tmp_path), dtype=dtype)):
        assert "local_shards" in heard["whole"]
        assert heard["other layout"].startswith(("InvalidArgument", "PeerError"))
        for name, text in (
            ("no folder", "InvalidArgument: folder must be"),
            ("no subscriber", "InvalidArgument: subscriber must be"),
        ):
            assert heard[name].startswith(text if rank == 1 else "PeerError"), heard[name]
        assert heard["damaged"].startswith("Corruption" if rank == 1 else "PeerError")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"w": torch.ones(2), "norm._extra_state": None}, "'norm._extra_state' to a NoneType"),
        ({"model": {"w": torch.ones(2)}}, "'model' to a dict"),
        ({1: torch.ones(2)}, "1 to a"),
        ([torch.ones(2)], "not be a list"),
    ],
)
def test_what_is_no_state_of_tensors_is_refused_by_name_before_it_is_sharded(state, words):
    for call in (gcodec.distributed.shard_part, gcodec.distributed.local_shards):
        with pytest.raises(gcodec.InvalidArgument, match=re.escape(words)):
            call(state)


def test_a_rank_that_dies_is_an_error_elsewhere():
    from tests.support.ranks import Ranks

    heard = Ranks(3).run_with_deaths(cases.die, by=2)
    assert all(text.startswith("PeerError") for text in heard[:2])
