"""The laws of the DDP hook among real Gloo processes. In lossless mode it must train as a hook that sums in the order
of ranks does, bit for bit, whatever DDP is told to do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import gcodec
import gcodec.distributed as gd
from tests.distributed import ddp_cases as cases
from tests.support.rank_fixtures import ranks_of
from tests.support.ranks import Ranks, agreed

#: Options of DDP and of the training loop. Each has at least three buckets.
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True, "branch": True},
    "bucket_view": {"gradient_as_bucket_view": True},
    "no_sync": {"accumulate": 3},
    # Each micro-batch of a step uses other parameters.
    "no_sync of parts": {"accumulate": 2, "find_unused_parameters": True, "branch": True},
    "mixed_dtypes": {"narrow": True},
    "channels_last": {"images": True},
    "loss_scale": {"loss_scale": 1024.0},
    "nan": {"poison": True},
    "fresh_codebooks": {"state_options": {"refresh": None}},
    "small_buckets_dense": {"state_options": {"min_bytes": 1 << 16}},
    # The first backward pass then has no bucket that is the last one.
    "static_graph of mixed types": {"static_graph": True, "narrow": True},
    "static_graph of mixed types, dense": {
        "static_graph": True,
        "narrow": True,
        "state_options": {"min_bytes": 1 << 30},
    },
    "threads": {"state_options": {"threads": 2}},
}
pair = ranks_of(2)
others = ranks_of(1, 3, 4)
single = ranks_of(1)


_checksums: dict[tuple[Ranks, str | None, str], int] = {}


def trained(ranks: Ranks, mode: str | None, **options: Any) -> int:
    """Return the checksum of the parameters after training, the same on all ranks; a training is run once."""
    key = ranks, mode, repr(sorted(options.items()))
    if key not in _checksums:
        _checksums[key] = agreed([checksum for checksum, _ in ranks.run(cases.train, mode=mode, **options)])
    return _checksums[key]


@pytest.mark.parametrize("form", FORMS)
def test_lossless_training_is_training_in_rank_order(pair, form):
    without_our_hook = {name: value for name, value in FORMS[form].items() if name != "state_options"}
    assert trained(pair, "lossless", **FORMS[form]) == trained(pair, None, **without_our_hook)


@pytest.mark.parametrize("form", ["plain", "bucket_view"])
def test_lossless_training_on_one_to_four_ranks_is_training_in_rank_order(others, form):
    assert trained(others, "lossless", **FORMS[form]) == trained(others, None, **FORMS[form])


@pytest.mark.parametrize(
    "optimizer", ["SGD", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "ASGD", "Adamax", "Adadelta"]
)
def test_near_lossless_replicas_of_every_optimizer_stay_the_same(pair, optimizer):
    assert trained(pair, "near", optimizer_name=optimizer) != trained(pair, None, optimizer_name=optimizer)


# Fixed bits look at no parameter: in most forms they are lossless buckets, rounded.
@pytest.mark.parametrize(
    ("mode", "form"),
    [
        *(
            ("near", form)
            for form in (
                "static_graph",
                "find_unused_parameters",
                "no_sync",
                "mixed_dtypes",
                "channels_last",
                "loss_scale",
                "nan",
                "fresh_codebooks",
            )
        ),
        *(("fixed", form) for form in ("mixed_dtypes", "nan", "fresh_codebooks")),
    ],
)
def test_lossy_replicas_stay_the_same_in_every_form(pair, mode, form):
    trained(pair, mode, **FORMS[form])


@pytest.mark.parametrize("mode", ["near", "fixed"])
def test_lossy_replicas_stay_the_same_with_other_numbers_of_ranks(others, mode):
    alone = others.size == 1  # then nothing is rounded
    assert (trained(others, mode) == trained(others, None)) == alone


def check_accuracy(ranks: Ranks, name: str, mantissa_bits: int) -> None:
    """Check the bits of an accuracy, and that its errors are no greater than those of torch's hook of that name."""
    (torchs_rms, torchs_max), (rms, greatest) = agreed(
        ranks.run(cases.accuracy, name=name, mantissa_bits=mantissa_bits)
    )
    assert rms <= torchs_rms
    assert greatest <= torchs_max


@pytest.mark.parametrize(("name", "mantissa_bits"), [("bf16", 7), ("fp16", 10)])
def test_an_accuracy_rounds_once_and_errs_no_more_than_torchs_hook(pair, name, mantissa_bits):
    check_accuracy(pair, name, mantissa_bits)


@pytest.mark.parametrize("others", [3, 4], indirect=True)
@pytest.mark.parametrize(("name", "mantissa_bits"), [("bf16", 7), ("fp16", 10)])
def test_an_accuracy_rounds_the_sum_once_among_more_ranks(others, name, mantissa_bits):
    check_accuracy(others, name, mantissa_bits)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"mode": "int3"}, r"or one of 'exact', 'bf16', 'fp16', not 'int3'"),
        ({"mode": "int8"}, r"mode='int8' needs error feedback: .* CompressedGradients\(model, 'int8'\)"),
        ({"mode": "fp8"}, r"mode='fp8' needs error feedback: .* CompressedGradients\(model, 'fp8'\)"),
        ({"mode": "optimizer"}, r"optimizer must be given with mode='optimizer'"),
        ({"mode": "bf16", "optimizer": True}, r"optimizer and mode='bf16' must not both be given"),
    ],
)
def test_accuracies_that_contradict_an_optimizer_are_refused(arguments, text):
    if "optimizer" in arguments:
        arguments["optimizer"] = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
    with pytest.raises(gcodec.InvalidArgument, match=text):
        gd.CompressedAllreduce(**arguments)


def test_an_accuracy_is_a_mode():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))])
    assert gd.CompressedAllreduce(mode="exact").mode == gd.Lossless()
    assert gd.CompressedAllreduce(mode="bf16").mode == gd.FixedBits(7)
    mode = gd.CompressedAllreduce(mode="optimizer", optimizer=optimizer).mode
    assert isinstance(mode, gd.NearLossless)
    assert mode.optimizer is optimizer


def test_loss_scaling_does_not_change_the_levels(pair):
    """Powers of two go in and come out, so the bits are the same."""
    assert trained(pair, "near", loss_scale=1024.0) == trained(pair, "near")


def test_sparse_gradients_are_reduced_by_gloo(pair):
    agreed(pair.run(cases.sparse))


@pytest.mark.parametrize("kind", ["lossless", "compressor", "controller"])
def test_a_sparse_gradient_is_averaged_apart_from_the_memory_that_it_shares(pair, kind):
    assert max(pair.run(cases.sparse_of_shared_memory, kind=kind)) < 1e-6


def test_models_that_share_a_state_in_one_backward_pass_get_their_own_averages(pair):
    assert agreed(pair.run(cases.shared_state, mode="bf16")) < 0.01


@pytest.mark.parametrize("kind", ["exact", "near", "compressor", "controller"])
def test_gradients_of_complex_parameters_are_averaged_by_gloo(pair, kind):
    found = agreed(pair.run(cases.complex_parameters, kind=kind))
    if found is None:
        pytest.skip("this torch refuses complex parameters on Gloo")
    assert found[1] > 0


@pytest.mark.parametrize("mode", ["lossless", "near"])
def test_the_hook_works_under_join(pair, mode):
    result = agreed(pair.run(cases.join, mode=mode))
    if mode == "lossless":
        assert result == agreed(pair.run(cases.join, mode=None))


@pytest.mark.parametrize(("mode", "first"), [("near", 3), ("lossless", 5), ("near", 6)])
def test_a_resumed_run_is_the_uninterrupted_run_codebooks_included(pair, mode, first):
    for whole, resumed in pair.run(cases.resume, mode=mode, first=first, second=6):
        assert [checksum for checksum, _ in whole] == [checksum for checksum, _ in resumed]
        assert whole[0] == resumed[0]  # the codebooks, too


def test_a_distributed_checkpoint_restores_every_ranks_codebooks(pair, tmp_path):
    assert all(pair.run(cases.distributed_checkpoint, folder=str(tmp_path)))


def test_torchs_profiler_shows_the_all_reduce_of_every_bucket(pair):
    assert agreed(pair.run(cases.profiled)) >= 3


def test_every_byte_that_the_hook_sends_is_counted(pair):
    result = pair.run(cases.conservation)
    for item, other in (result, reversed(result)):
        assert item["sent_bytes"] == item["handed"] == item["by_bucket"] == other["received_bytes"]
        assert item["raw_bytes"] > item["sent_bytes"] > 0
        assert item["buckets"] >= 3


@pytest.mark.parametrize("slow", ["dense", "coded"])
def test_the_hook_leaves_compression_of_buckets_where_it_is_slower(pair, slow):
    *counts, buckets, _ = agreed(pair.run(cases.bypass, slow=slow))
    always = counts[0]  # below 64 KiB, or so
    assert buckets >= 3
    assert [count > always for count in counts[3:11]] == [False, False, True, True] * 2  # a trial
    assert [count > always for count in counts[12:20]] == [slow == "coded"] * 8
    assert [count > always for count in counts[20:24]] == [False, False, True, True]  # the next one


def test_a_single_rank_has_nothing_to_bypass(single):
    single.run(cases.bypass_of_one_rank)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_the_bypass_takes_torchs_cast_where_it_is_fastest(pair, name):
    agreed(pair.run(cases.cast_by_bypass, name=name))


# Codebooks


def test_a_refresh_takes_effect_at_the_same_step_everywhere(others):
    traces = others.run(cases.refresh, steps=14, interval=5, change_at=None)
    used = agreed([[digest for digest, *_ in trace] for trace in traces])
    if others.size > 1:
        changes = [step for step, (before, after) in enumerate(pairwise(used), 1) if before != after]
        assert changes == [2, 7, 12]


def test_stale_codebooks_are_renewed_early_and_bytes_fall(pair):
    traces = pair.run(cases.refresh, steps=30, interval=20, change_at=10, trigger=0.05)
    used = agreed([[digest for digest, *_ in trace] for trace in traces])
    changes = [step for step, (before, after) in enumerate(pairwise(used), 1) if before != after]
    assert len(changes) == 2
    assert 10 < changes[1] < 16  # not 22, when the interval ends
    for trace in traces:
        assert trace[changes[1] + 1][1] < trace[10][1]
        _, _, bits, entropy = trace[-1]
        assert entropy < bits < entropy + 0.15
