"""The laws of the process group among real processes: every collective of torch.distributed gives what it gives on
Gloo, and floats are summed in the order of ranks. Errors are exceptions, by every road."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

import gcodec
import gcodec.distributed
from tests.distributed import gpu_allreduce_cases as gpu_cases
from tests.distributed import group_cases as cases
from tests.distributed import group_run_cases as run_cases
from tests.support.rank_fixtures import ranks_of, with_sizes
from tests.support.ranks import Ranks, agreed

SIZES = (1, 2, 3)
ranks = ranks_of(*SIZES, backend="gcodec")


@pytest.mark.parametrize(
    "case",
    [
        cases.all_reduces,
        cases.inference,
        cases.other_types,
        cases.asynchronous,
        cases.layouts,
        cases.coalesced,
        cases.data_movement,
        cases.objects,
        cases.point_to_point,
        cases.functional_collectives,
        cases.subgroups,
        cases.overlapping,
        cases.named_backend,
        cases.device_mesh,
    ],
    ids=lambda case: case.__name__,
)
def test_collectives_of_the_group_give_what_gloo_gives(ranks, case):
    agreed(ranks.run(case))


def test_a_torch_that_calls_process_groups_otherwise_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.1+cpu")
    with pytest.raises(gcodec.Unsupported, match=r"needs torch 2\.11 or later, and this is 2\.10\.1"):
        dist.init_process_group("gcodec", store=HashStore(), rank=0, world_size=1)


@with_sizes(2)
def test_expanded_tensors_are_refused_and_the_group_goes_on(ranks):
    heard, mean = agreed(ranks.run(cases.expanded))
    assert len(heard) == 4
    assert all("tensor must not be expanded" in text for text in heard)
    assert mean == ranks.size


def test_tensors_with_gaps_in_memory_are_reduced_on_gloo_too(ranks):
    ranks.run(cases.spaced_layouts)


def test_reduce_scatter_sums_in_the_order_of_ranks(ranks):
    ranks.run(cases.reduce_scatters)


def test_shared_codebooks_are_renewed_and_change_no_bit(ranks):
    ranks.run(cases.shared_codebooks)


def test_compressed_and_plain_collectives_interleave(ranks):
    agreed(ranks.run(cases.interleaved, rounds=8))


@pytest.mark.parametrize("silent", [None, 1])
def test_groups_that_torch_does_not_know_sum_and_make_room_for_the_next(ranks, silent):
    """As torchft has one after another, whatever becomes of ranks."""
    agreed(ranks.run(run_cases.by_hand, n_groups=3, silent=silent if ranks.size > 1 else None))


#: One rank sends nothing, in whatever form; it may join all the same.
FORMS = [
    (size, options)
    for size in SIZES
    for options in (
        {},
        {"find_unused_parameters": True},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"narrow": True},
        {"join": True},
        {"divide_by_initial": False, "join": True},
    )
    if size > 1 or options in ({}, {"join": True})
]


@pytest.mark.parametrize(
    ("ranks", "options"),
    FORMS,
    indirect=["ranks"],
    ids=lambda value: next(iter(value), "plain") if isinstance(value, dict) else str(value),
)
def test_ddp_over_the_group_trains_as_over_gloo(ranks, options):
    ours = ranks.run(run_cases.train_ddp, gloo=False, **options)
    gloos = ranks.run(run_cases.train_ddp, gloo=True, **options)
    checksum, sums = agreed(ours)
    assert sums == pytest.approx(gloos[0][1], rel=1e-3 if options.get("narrow") else 1e-5)
    if ranks.size <= 2 and not options.get("narrow"):  # a sum of two has one order, but Gloo rounds bfloat16 otherwise
        assert checksum == gloos[0][0]


def test_ddp_over_the_group_with_fixed_bits_trains_within_rounding(ranks):
    ours, gloos = ranks.run(run_cases.train_ddp, gloo=False, bits=8), ranks.run(run_cases.train_ddp, gloo=True)
    checksum, sums = agreed(ours)
    assert sums == pytest.approx(gloos[0][1], rel=1e-2)
    assert (checksum == gloos[0][0]) == (ranks.size == 1)


@with_sizes(3)
@pytest.mark.parametrize("slow", ["dense", "coded"])
def test_the_group_leaves_compression_where_it_is_slower(ranks, slow):
    dense, calls, _ = agreed(ranks.run(run_cases.bypass, slow=slow))
    assert calls[1:] == [3] * 35
    assert sum(dense[:13]) == 0  # while it learns what a step is
    assert 0 < sum(dense[13:22]) < 27  # a trial
    assert dense[22:28] == [3 * (slow == "coded")] * 6
    assert 0 < sum(dense[28:]) < 24  # the next one


@with_sizes(2)
def test_torchs_profiler_shows_the_groups_collectives(ranks):
    ranks.run(cases.profiled)


@with_sizes(2)
def test_the_group_tries_compression_anew_when_the_step_changes(ranks):
    before, after, _ = agreed(ranks.run(run_cases.changing))
    assert any(before)  # a trial had begun
    assert not any(after[2:9])
    assert after[-3:] == [True] * 3


@with_sizes(2, 3)
@pytest.mark.parametrize("how", ["payload", "header", "exception"])
def test_a_damaged_message_is_an_exception_on_all_ranks(ranks, how):
    heard = ranks.run(run_cases.corrupted, how=how, by=ranks.size - 1)
    for rank, texts in enumerate(heard):
        assert all(texts), f"rank {rank} has noticed nothing: {texts}"
        if rank != ranks.size - 1:
            assert all(f"rank {ranks.size - 1} " in text or "aborted" in text for text in texts), texts


def test_a_rank_of_the_group_that_dies_is_an_exception():
    ranks = Ranks(3, backend="gcodec")
    heard = ranks.run_with_deaths(run_cases.death, by=1)
    assert heard[1] is None
    assert all("rank 1 " in heard[rank] or "aborted" in heard[rank] for rank in (0, 2)), heard


def test_the_default_group_can_be_destroyed_and_made_again(ranks):
    ranks.run(run_cases.ended)


# On CUDA devices (tests/distributed/gpu_allreduce_cases.py)


@pytest.mark.parametrize("by", ["group", "staged"])
@pytest.mark.parametrize(
    "case",
    [
        cases.inference,
        cases.asynchronous,
        cases.layouts,
        cases.coalesced,
        cases.functional_collectives,
        cases.overlapping,
    ],
    ids=lambda case: case.__name__,
)
def test_collectives_of_tensors_on_devices_are_those_of_tensors_on_the_host(ranks, case, by):
    if ranks.size > 1:
        on_devices = ranks.run(gpu_cases.on_devices, what=case, by=by)
        assert on_devices == ranks.run(gpu_cases.on_host, what=case)


def test_where_torch_has_nccl_tensors_on_devices_go_through_it(ranks):
    ranks.run(gpu_cases.nccl_inside)
