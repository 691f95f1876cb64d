"""The laws of controllers among real Gloo processes, alone and under DDP: they decide as simulated ranks do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

from gcodec.adaptive import Selector
from tests.distributed import adaptive_cases as cases
from tests.support.controller_settings import CONTROLLERS
from tests.support.rank_fixtures import DDP_FORMS, ranks_of
from tests.support.ranks import Members, Ranks, agreed

BETWEEN = [name for name, controller in CONTROLLERS.items() if not isinstance(controller, Selector)]  # steps
ranks = ranks_of(4)


@pytest.fixture
def pair(ranks: Ranks) -> Members:
    return Members(ranks, 2)


#: Other numbers of ranks, each with a controller of another family.
others = pytest.mark.parametrize(("size", "name"), [(3, "gravac"), (4, "lgreco")])


@pytest.fixture(scope="module")
def under_ddp(ranks: Ranks) -> Callable[..., list[Any]]:
    """Return a function that runs a controller under DDP on two ranks, once for each set of arguments."""

    @cache
    def run(name: str, **options: Any) -> list[Any]:
        return Members(ranks, 2).run(cases.under_ddp, name=name, **options)

    return run


@pytest.mark.parametrize("name", ["gravac", "gravac random-k", "lgreco", "accordion"])
def test_controllers_on_real_ranks_decide_as_on_simulated_ranks(pair, name):
    result = pair.run(cases.follows, name=name)
    _, changes = agreed([item[:2] for item in result])
    assert changes > 1
    assert all(sent > 0 for *_, sent in result)


def test_an_adaptive_optimizer_trains_replicas_that_stay_the_same(pair):
    result = pair.run(cases.trains)
    agreed([crc for crc, *_ in result])
    assert all(last < 0.2 * first for _, first, last in result)


@pytest.mark.parametrize("fused", [False, True])
def test_all_ranks_leave_out_a_step_in_which_one_ranks_scaled_gradients_overflow(pair, fused):
    result = pair.run(cases.trains_scaled, fused=fused, overflow=3)
    seen = agreed([crcs for crcs, _ in result])
    assert seen[3] == seen[2]
    assert len(set(seen)) == len(seen) - 1
    assert [scale for _, scale in result] == [2.0**10, 2.0**9]


def test_an_adaptive_optimizer_leaves_alone_what_no_rank_has_a_gradient_of(pair):
    """A gradient of zeros on one rank is one, with which momentum and weight decay go on, on all ranks."""
    moved, with_gradients, _ = agreed(pair.run(cases.trains_with_unused))
    assert moved == {"used": True, "on rank 0": True, "never": False}
    assert with_gradients == ["used"]


@others
def test_a_distributed_checkpoint_restores_an_adaptive_optimizer(ranks, size, name, tmp_path):
    agreed(Members(ranks, size).run(cases.optimizer_checkpoint, name=name, folder=str(tmp_path)))


# Under DDP


@pytest.mark.parametrize("name", CONTROLLERS)
def test_the_hook_decides_as_simulated_ranks_do(under_ddp, name):
    _, changes, buckets = agreed(under_ddp(name))
    assert changes > 1
    assert buckets >= 3


@others
def test_the_hook_on_three_and_four_ranks_decides_as_simulated_ranks_do(ranks, size, name):
    _, changes, buckets = agreed(Members(ranks, size).run(cases.under_ddp, name=name))
    assert changes > 1
    assert buckets >= 3


@pytest.mark.parametrize("name", BETWEEN)
def test_held_buckets_are_averaged_as_overlapped_ones(under_ddp, name):
    assert under_ddp(name, overlap=False) == under_ddp(name)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_resumed_run_with_a_controller_is_the_uninterrupted_run(pair, name):
    agreed(pair.run(cases.resume, name=name, first=3, second=4))


@others
def test_a_resumed_run_with_other_buckets_is_the_uninterrupted_run(ranks, size, name):
    agreed(Members(ranks, size).run(cases.resume, name=name, first=3, second=3))


@pytest.mark.parametrize("name", ["gravac", "lgreco"])
def test_a_distributed_checkpoint_restores_every_ranks_controller(pair, name, tmp_path):
    assert all(pair.run(cases.distributed_checkpoint, name=name, folder=str(tmp_path)))


# Accordion waits for all buckets of a step, GraVAC for none: to both it matters which buckets there are.
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *(("gravac", form) for form in DDP_FORMS),
        *(("accordion", form) for form in DDP_FORMS if form.startswith(("static_graph", "find_unused", "no_sync"))),
    ],
)
def test_controllers_train_in_every_form_of_ddp(pair, name, form):
    result = pair.run(cases.train, name=name, **DDP_FORMS[form])
    agreed([same for same, *_ in result])
    assert all(last < first for _, first, last in result)


@pytest.mark.parametrize("name", ["gravac", "accordion"])
def test_controllers_work_under_join(pair, name):
    agreed(pair.run(cases.join, name=name))


@pytest.mark.parametrize("name", ["gravac", "accordion"])
@pytest.mark.parametrize("kind", ["controller", "rate", "raise"])
def test_a_fault_under_a_controller_is_an_error_on_all_ranks(pair, name, kind):
    first, second = pair.run(cases.fault, name=name, kind=kind)
    assert len(first) == len(second)
    if kind == "raise":
        assert "MemoryError: no memory" in first[-1]
        assert "no memory" in second[-1]
    else:
        assert "rank 1" in first[-1]
        assert "rank 0" in second[-1]


@pytest.mark.parametrize("name", ["gravac", "accordion"])
def test_tensors_that_change_between_steps_are_refused_on_all_ranks(pair, name):
    assert all("must be compressed once in each step" in item for item in pair.run(cases.changing, name=name))


@pytest.mark.parametrize("name", ["gravac", "accordion"])
def test_a_compressor_set_by_an_unknown_name_is_refused_in_the_first_step(pair, name):
    assert "'module.parts.0' is none of them" in agreed(pair.run(cases.unknown_name, name=name))
