"""Controllers among real Gloo processes, alone and under DDP: they decide as simulated ranks do."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from tests.distributed import adaptive_cases as cases
from tests.distributed.adaptive_cases import CONTROLLERS
from tests.support.rank_fixtures import ranks_of
from tests.support.ranks import Members, Ranks, one_of

WITHIN = ["gravac", "gravac random-k", "gravac bits"]     # a step
BETWEEN = [name for name in CONTROLLERS if name not in WITHIN]
FORMS: dict[str, dict[str, Any]] = {
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True, "branch": True},
    "bucket_view": {"gradient_as_bucket_view": True},
    "no_sync": {"accumulate": 3},
    "mixed_dtypes": {"narrow": True},
    "channels_last": {"images": True},
}
ranks = ranks_of(4)


@pytest.fixture
def pair(ranks: Ranks) -> Members:
    return Members(ranks, 2)


@pytest.fixture(params=(3, 4))
def others(ranks: Ranks, request: pytest.FixtureRequest) -> Members:
    return Members(ranks, request.param)


@pytest.mark.parametrize("name", ["gravac", "gravac random-k", "lgreco", "accordion"])
def test_real_ranks_decide_as_simulated_ones_do(pair, name):
    found = pair.run(cases.follows, name=name)
    _, changes = one_of([one[:2] for one in found])
    assert changes > 1
    assert all(sent > 0 for *_, sent in found)


def test_an_optimizer_on_two_ranks(pair):
    found = pair.run(cases.trains)
    one_of([crc for crc, *_ in found])
    assert all(last < 0.2 * first for _, first, last in found)


@pytest.mark.parametrize("name", ["gravac", "lgreco"])
def test_an_optimizer_in_a_distributed_checkpoint(others, name, tmp_path):
    one_of(others.run(cases.optimizer_checkpoint, name=name, folder=str(tmp_path)))


# Under DDP

@pytest.mark.parametrize("name", CONTROLLERS)
def test_the_hook_decides_as_simulated_ranks_do(pair, name):
    _, changes, buckets = one_of(pair.run(cases.under_ddp, name=name))
    assert changes > 1
    assert buckets >= 3


@pytest.mark.parametrize("name", ["gravac", "lgreco"])
def test_the_same_with_other_numbers_of_ranks(others, name):
    _, changes, buckets = one_of(others.run(cases.under_ddp, name=name))
    assert changes > 1
    assert buckets >= 3


@pytest.mark.parametrize("name", BETWEEN)
def test_held_buckets_are_averaged_as_those_that_are_not(pair, name):
    assert pair.run(cases.under_ddp, name=name, overlap=False) == pair.run(cases.under_ddp, name=name)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_resumed_run_is_the_uninterrupted_run(pair, name):
    one_of(pair.run(cases.resume, name=name, first=3, second=4))


@pytest.mark.parametrize("name", ["gravac", "lgreco"])
def test_the_same_with_other_buckets_after_the_resume(others, name):
    one_of(others.run(cases.resume, name=name, first=3, second=3))


@pytest.mark.parametrize("name", ["gravac", "lgreco"])
def test_a_distributed_checkpoint_restores_every_ranks_state(pair, name, tmp_path):
    assert all(pair.run(cases.distributed_checkpoint, name=name, folder=str(tmp_path)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["gravac", "accordion"])
def test_training_in_every_form(pair, name, form):
    found = pair.run(cases.train, name=name, **FORMS[form])
    one_of([same for same, *_ in found])
    assert all(last < first for _, first, last in found)


@pytest.mark.parametrize("name", ["gravac", "accordion"])
def test_join(pair, name):
    one_of(pair.run(cases.join, name=name))


@pytest.mark.parametrize("name", ["gravac", "accordion"])
@pytest.mark.parametrize("kind", ["controller", "rate", "raise"])
def test_faults_are_told_to_all(pair, name, kind):
    first, second = pair.run(cases.fault, name=name, kind=kind)
    assert len(first) == len(second)
    if kind == "raise":
        assert "MemoryError: no memory" in first[-1]
        assert "no memory" in second[-1]
    else:
        assert "rank 1" in first[-1]
        assert "rank 0" in second[-1]


@pytest.mark.parametrize("name", ["gravac", "accordion"])
def test_what_is_compressed_must_not_change(pair, name):
    assert all("change from step to step" in one for one in pair.run(cases.changing, name=name))
