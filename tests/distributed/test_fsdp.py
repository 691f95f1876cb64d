"""The laws of FSDP2 and HSDP among real processes, compressed by hooks and by the process group."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch.distributed.fsdp")

import torch

from tests.distributed import fsdp_cases as cases
from tests.support.rank_fixtures import ranks_of
from tests.support.ranks import Ranks, agreed

pair = ranks_of(2)
four = ranks_of(4)


def trained(ranks: Ranks, how: str, **options: Any) -> dict[str, Any]:
    """Return what all ranks found; their replicas are the same, bit for bit."""
    outcome = ranks.run(cases.train, how=how, **options)
    assert all(item["crc"] == outcome[0]["crc"] for item in outcome)
    result: dict[str, Any] = outcome[0]
    return result


@pytest.mark.parametrize("how", ["shard_ours", "shard_group"])
@pytest.mark.parametrize("options", [{}, {"narrow": True}, {"accumulate": 2}], ids=["plain", "bfloat16", "accumulate"])
def test_lossless_fsdp_has_the_bits_of_uncompressed_fsdp(pair, how, options):
    """A sum of two terms has one order, so these are the same bits."""
    ours, plain = trained(pair, how, **options), trained(pair, "shard", **options)
    assert ours["stats"]["calls"] >= 12
    if options.get("narrow"):  # Gloo rounds an average in another place than the sum in float32 does
        assert ours["sums"] == pytest.approx(plain["sums"], rel=0.02)
    else:
        assert ours["crc"] == plain["crc"]
        assert ours["stats"]["sent_bytes"] < ours["stats"]["dense_bytes"]


@pytest.mark.parametrize("how", ["shard_ours", "shard_group"])
def test_lossless_fsdp_among_four_ranks_is_uncompressed_fsdp_within_rounding(four, how):
    assert trained(four, how)["sums"] == pytest.approx(trained(four, "shard")["sums"], rel=1e-4)


@pytest.mark.parametrize("how", ["hsdp_override", "hsdp_hook"])
@pytest.mark.parametrize("mode", ["lossless", "fixed"])
def test_hsdp_averages_replicas_compressed(four, how, mode):
    ours, plain = trained(four, how, mode=mode), trained(four, "hsdp")
    assert ours["stats"]["calls"] >= 12
    assert ours["sums"] == pytest.approx(plain["sums"], rel=1e-4 if mode == "lossless" else 0.02)
    if mode == "fixed":
        assert ours["crc"] != plain["crc"]
        assert ours["stats"]["ratio"] > 1.5


@pytest.mark.parametrize("slow", ["dense", "coded"])
def test_fsdp_leaves_compression_where_it_is_slower(pair, slow):
    dense, _ = agreed(pair.run(cases.bypass, slow=slow, parameters=False))
    assert sum(dense[:13]) == 0  # while it learns what a step is
    assert 0 < sum(dense[13:22]) < 27  # a trial
    assert dense[22:28] == [3 * (slow == "coded")] * 6
    assert 0 < sum(dense[28:]) < 24  # the next one


@pytest.mark.parametrize("slow", ["dense", "coded"])
def test_fsdp_leaves_compression_of_parameters_where_it_is_slower(pair, slow):
    dense, _ = agreed(pair.run(cases.bypass, slow=slow, parameters=True))
    assert dense[0] == 0  # while it learns what a step is
    assert any(dense[step : step + 4] == [8 * (slow == "coded")] * 4 for step in range(10, 32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_parameters_are_gathered_bit_for_bit(four, dtype):
    for stats in four.run(cases.gathered, dtype=dtype):
        assert stats["calls"] == 8  # all but those of one value
        assert stats["sent_bytes"] < (0.99 if dtype.itemsize == 8 else 0.9) * stats["dense_bytes"]


def test_autograd_goes_on_to_the_next_unit_while_gradients_are_reduced(pair):
    for happened, same in pair.run(cases.beside_backward):
        assert happened == ["backward of another unit", "goes on"] and same


def test_gradients_are_there_for_who_reads_them_in_the_backward_pass(pair):
    assert all(pair.run(cases.read_in_backward))


def test_damage_to_the_last_reduce_scatter_is_an_exception_of_backward(pair):
    heard = pair.run(cases.damaged_at_the_end, by=1)
    assert "rank 1" in heard[0]


def test_fsdp_refuses_senseless_arguments(pair):
    pair.run(cases.refusals)


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("replicate", "InvalidArgument", "model is replicated over 2 ranks and not sharded, .* backend_override"),
        (
            "shards of one rank",
            "InvalidArgument",
            "model is replicated over 2 ranks and not sharded, .* backend_override",
        ),
        (
            "several meshes",
            "Unsupported",
            "model has parameters that are sharded over several meshes, .* backend_override",
        ),
    ],
)
def test_a_model_of_which_a_part_would_not_be_compressed_is_refused_and_left_as_it_is(pair, how, error, text):
    if how != "shards of one rank":
        # of torch 2.13, as several meshes are
        pytest.importorskip("torch.distributed._composable.replicate_with_fsdp")
    for said in pair.run(cases.replicated, how=how):
        assert len(said) == 2
        assert all(re.fullmatch(f"{error}: {text} of init_device_mesh", one) for one in said), said


@pytest.mark.parametrize("during", ["forward", "backward"])
def test_a_damaged_message_of_fsdp_is_an_exception_of_the_pass_that_needs_it(pair, during):
    heard = pair.run(cases.corrupted, by=1, during=during)
    assert "rank 1" in heard[0]
