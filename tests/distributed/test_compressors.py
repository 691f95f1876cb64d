"""The laws of compressors under DDP among real Gloo processes: what the simulator says of them holds there, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch

from tests.distributed import compressor_cases as cases
from tests.distributed import compressor_gpu_cases as gpu_cases
from tests.support.compressor_settings import PROMISES
from tests.support.rank_fixtures import DDP_FORMS, ranks_of
from tests.support.ranks import Members, Ranks, agreed

#: Settings that speak with other ranks as another one does: a new one does not stand here, and is tried.
LIKE_ANOTHER = {
    "bfloat16",
    "topk rounded",
    "dgc",
    "dgc raising",
    "redsync trimmed",
    "qsgd l2",
    "qsgd nearest",
    "powersgd twice",
    "gradzip",
    "gradzip moving",
    "gradna",
    "sparcml dense sums",
    "lossless frames",
    "int4",
    "blockwise 3 bits",
}
PAIR = [name for name in PROMISES if name not in LIKE_ANOTHER]
OTHERS = ["topk sampled", "float16", "random-k", "powersgd", "gradzip float16", "sparcml dense sums", "fp8", "int4"]
ranks = ranks_of(4)


@pytest.fixture(scope="module")
def on_devices() -> Iterator[Members]:
    group = Ranks(2)
    yield Members(group, 2)
    group.close()


@pytest.fixture
def pair(ranks: Ranks) -> Members:
    return Members(ranks, 2)


def on_other_sizes(names: list[str]) -> pytest.MarkDecorator:
    """Parametrize a test with compressors, on three and on four ranks in turn."""
    return pytest.mark.parametrize(("size", "name"), [(3 + place % 2, name) for place, name in enumerate(names)])


@pytest.mark.parametrize("name", PAIR)
def test_compressors_on_real_ranks_average_as_on_simulated_ranks(pair, name):
    _, buckets = agreed(pair.run(cases.follows, name=name))
    assert buckets >= 3


@on_other_sizes(OTHERS)
def test_compressors_on_three_and_four_ranks_average_as_on_simulated_ranks(ranks, size, name):
    _, buckets = agreed(Members(ranks, size).run(cases.follows, name=name))
    assert buckets >= 3


@pytest.mark.parametrize("name", ["float16", "powersgd"])
def test_compressors_average_as_simulated_where_two_ranks_leave_sums_to_gloo(pair, name):
    _, buckets = agreed(pair.run(cases.follows, name=name, paired=0))
    assert buckets >= 3


@pytest.mark.parametrize("name", ["topk", "random-k", "powersgd", "fp8", "int4"])
def test_gradients_that_do_not_lie_row_by_row_are_averaged_as_simulated(pair, name):
    agreed(pair.run(cases.follows_in_other_orders, name=name))


@pytest.mark.parametrize(
    "name", ["topk", "float16", "dgc warming up", "qsgd", "powersgd", "gradzip float16", "sparcml", "fp8", "int4"]
)
def test_buckets_on_a_device_are_averaged_on_that_device(on_devices, name):
    on_devices.run(gpu_cases.follows_there, name=name)


@pytest.mark.parametrize("name", ["gravac", "l-greco", "accordion"])
def test_controllers_of_buckets_on_a_device_decide_as_on_the_host(on_devices, name):
    result = agreed(on_devices.run(gpu_cases.decides_there, name=name))
    assert any(floats != result[0] for floats in result)  # it has decided something


def test_types_that_are_not_averaged_on_a_device_are_refused(on_devices):
    on_devices.run(gpu_cases.refused_there)


@pytest.mark.parametrize("form", ["plain", *DDP_FORMS])
def test_replicas_under_dgc_stay_the_same_in_every_form_of_ddp(pair, form):
    _, first, last, _ = agreed(
        [(crc, 0, 0, 0) for crc, *_ in pair.run(cases.train, plan_name="dgc", **DDP_FORMS.get(form, {}))]
    )
    assert first == last


@pytest.mark.parametrize(
    "options", [{"told": True}, {"told": False}, {"told": False, "gradient_as_bucket_view": True}], ids=str
)
@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_parameters_that_no_rank_uses_lose_no_residual(pair, name, options):
    """DDP throws away the average of a parameter that no rank has used in a step, so nothing of it is sent then."""
    result = pair.run(cases.unused, name=name, **options)
    for there, (total, _) in result:
        assert there == [True, False, True, False, True]
        assert torch.equal(total, result[0][1][0])
    owed = sum(owed for _, (_, owed) in result) / len(result)  # what was sent plus what is left is what there was
    torch.testing.assert_close(result[0][1][0], -owed, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["dgc", "gradzip", "qsgd"])
def test_training_with_compressors_lowers_the_loss(pair, name):
    for _, first, last, dropped in pair.run(cases.train, plan_name=name, steps=15, rate=0.1):
        assert last < 0.9 * first
        assert dropped == 0


@pytest.mark.parametrize("name", ["dgc", "gradzip", "random-k"])
def test_nan_reaches_all_ranks_and_leaves_residuals_alone(pair, name):
    result = pair.run(cases.train, plan_name=name, poison=True)
    agreed([crc for crc, *_ in result])
    assert all(dropped > 0 for *_, dropped in result)


@pytest.mark.parametrize("name", ["dgc warming up", "gradzip", "powersgd", "fp8"])
def test_a_resumed_run_with_a_compressor_is_the_uninterrupted_run(pair, name):
    pair.run(cases.resume, name=name, first=3, second=3)


@on_other_sizes(["powersgd", "random-k"])
def test_buckets_that_differ_after_a_resume_change_no_bit(ranks, size, name):
    Members(ranks, size).run(cases.resume, name=name, first=3, second=3)


@pytest.mark.parametrize("name", ["dgc warming up", "gradzip float16"])
def test_a_distributed_checkpoint_restores_every_ranks_residuals(pair, name, tmp_path):
    assert all(pair.run(cases.distributed_checkpoint, name=name, folder=str(tmp_path)))


def test_a_compressor_set_by_an_unknown_name_is_refused(pair):
    assert "'module.parts.0' is none of them" in agreed(pair.run(cases.unknown_name))


def test_a_parameter_that_the_state_does_not_know_is_refused_with_what_to_do(pair):
    assert "after adding parameters make a new state" in agreed(pair.run(cases.added_parameter))


@pytest.mark.parametrize("controlled", [False, True])
def test_a_state_of_a_model_with_other_names_or_shapes_is_refused(pair, controlled):
    names, shapes = agreed(pair.run(cases.foreign_states, controlled=controlled))
    assert "it has values for '0.weight', and there are '_orig_mod.0.weight'" in names
    assert "the residual of '0.weight' has shape (64, 64), and the parameter (32, 64)" in shapes


@pytest.mark.parametrize("name", ["topk", "powersgd"])
def test_compressors_work_under_join(pair, name):
    agreed(pair.run(cases.join, name=name))


@pytest.mark.parametrize("paired", [0, 1 << 20])
def test_every_byte_that_compressors_send_is_counted(pair, paired):
    item, other = pair.run(cases.accounts, name="topk", paired=paired)
    for mine, theirs in ((item, other), (other, item)):
        assert mine["sent_bytes"] == mine["handed"] + mine["reduced"] == theirs["received_bytes"]
        assert mine["payload_payload_bytes"] < mine["sent_bytes"] < mine["payload_payload_bytes"] + 20_000
        assert mine["payload_ratio"] > 5


def test_the_hook_of_compressors_refuses_senseless_arguments(pair):
    pair.run(cases.refusals)


def test_a_checkpoint_of_another_kind_of_state_is_refused(pair):
    pair.run(cases.states_of_other_kinds)


def test_making_a_state_draws_no_random_number(pair):
    assert agreed(pair.run(cases.drawn))


@pytest.mark.parametrize("kind", ["setting", "damage", "raise"])
def test_a_fault_under_a_compressor_is_an_error_on_all_ranks(pair, kind):
    first, second = pair.run(cases.fault, kind=kind)
    assert first[-1]
    assert second[-1]
    if kind == "setting":
        assert "PeerError" in first[-1]
        assert "rank 1" in first[-1]
        assert "rank 0" in second[-1]
    elif kind == "damage":
        assert "rank 1: the payload's checksum is wrong" in first[-1]
        assert "aborted" in second[-1]
    else:
        assert "MemoryError: no memory" in first[-1]
        assert "no memory" in second[-1]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_message_larger_than_expected_is_an_error_on_all_ranks(ranks, size):
    """Gloo would end the process at a message that is larger than its buffer."""
    errors = [raised[-1] for raised in Members(ranks, size).run(cases.fault, kind="larger")]
    assert all("PeerError" in error for error in errors)
    assert all("rank 1" in error for rank, error in enumerate(errors) if rank != 1)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_fault_between_two_sums_is_an_error_on_all_ranks(ranks, size):
    errors = [raised[-1] for raised in Members(ranks, size).run(cases.fault, kind="between reduces")]
    assert all("MemoryError: no memory" in error for error in errors)
    assert all("rank 1" in error for rank, error in enumerate(errors) if rank != 1)
