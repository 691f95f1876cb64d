"""Compressed all-reduces of CUDA tensors, among real Gloo processes without a device
(:mod:`tests.distributed.gpu_allreduce_cases`): their laws are those of tensors in CPU memory, and so are their bits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.distributed import allreduce_cases, ddp_cases, diloco_cases, fsdp_cases
from tests.distributed import gpu_allreduce_cases as cases
from tests.support.rank_fixtures import ranks_of
from tests.support.ranks import agreed

CULPRIT = 1
ranks = ranks_of(2, 3)
four = ranks_of(4)


@pytest.mark.parametrize(("by", "dtype"), [("staged", "float32"), ("group", "bfloat16")])
def test_a_lossless_allreduce_on_devices_is_the_sum_in_the_order_of_ranks(ranks, by, dtype):
    agreed(
        ranks.run(
            cases.on_devices,
            what=allreduce_cases.exact,
            by=by,
            dtype=dtype,
            sizes=(1, 2, 70_001),
            kinds=("sparse", "special"),
            min_bytes=0,
        )
    )


def test_float64_and_small_tensors_on_devices_are_reduced_uncompressed(ranks):
    if ranks.size == 2:  # a sum of two has one order
        for by, dtype, min_bytes in (("staged", "float64", 0), ("group", "float32", 1 << 30)):
            agreed(
                ranks.run(
                    cases.on_devices,
                    what=allreduce_cases.exact,
                    by=by,
                    dtype=dtype,
                    sizes=(0, 999),
                    kinds=("normal",),
                    min_bytes=min_bytes,
                )
            )


def test_tensors_on_devices_of_any_layout_are_reduced_several_at_a_time(ranks):
    agreed(ranks.run(cases.on_devices, what=allreduce_cases.layouts, by="staged"))


@pytest.mark.parametrize(("mode", "dtype"), [("near", "float32"), ("near", "bfloat16"), ("fixed", "float32")])
def test_terms_and_result_on_devices_are_rounded_as_encode_does(ranks, mode, dtype):
    agreed(ranks.run(cases.on_devices, what=allreduce_cases.lossy_law, by="group", mode=mode, dtype=dtype))


def test_a_near_lossless_allreduce_on_devices_keeps_its_bound(ranks):
    result = agreed(ranks.run(cases.on_devices, what=allreduce_cases.near_bound, by="staged", op="sum", scale=1.0))
    assert result[1] > 0.01  # it does round


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("near", {"optimizer_name": "AdamW"}),
        ("near", {"images": True}),  # channels-last parameters
        ("lossless", {"narrow": True}),  # two types
    ],
)
def test_training_on_devices_has_the_bits_of_training_on_the_host(ranks, mode, options):
    result = ranks.run(cases.on_devices, what=ddp_cases.train, by="group", mode=mode, steps=4, **options)
    plain = ranks.run(cases.on_host, what=ddp_cases.train, mode=mode, steps=4, **options)
    assert agreed([checksum for checksum, _ in result]) == agreed([checksum for checksum, _ in plain])
    for _, numbers in result:
        assert len(numbers["buckets"]) >= 3
        assert 0 < numbers["sent_bytes"] < numbers["dense_bytes"]


@pytest.mark.parametrize("mode", ["lossless", "fixed", "near"])
def test_every_value_on_a_device_is_encoded_twice(ranks, mode):
    """A sum that is rounded is encoded once more by the rank that made it."""
    wanted = (1, 1) if ranks.size == 2 else (2, ranks.size + (mode != "lossless"))
    assert ranks.run(cases.encodings, mode=mode) == [wanted] * ranks.size


def test_codebooks_of_devices_are_renewed_by_the_interval_only(ranks):
    assert all(0 < 2 * fresh < encoded for fresh, encoded in ranks.run(cases.refreshes))


def test_sums_on_devices_have_the_bits_of_sums_on_the_host(ranks):
    assert all(ranks.run(cases.sums_as_on_the_host))


@pytest.mark.parametrize(
    ("kind", "by", "error", "text"),
    [
        ("exception", "group", "PeerError", "aborted: ZeroDivisionError: a fault on purpose"),
        ("result", "group", "PeerError", "aborted: ZeroDivisionError: a fault on purpose"),
        ("payload", "staged", "Corruption", "checksum"),
        ("size", "staged", "Corruption", "a frame of"),
        ("other values", "group", "Corruption", "values of"),
        ("prelude", "staged", "Corruption", "checksum"),
        ("host", "staged", "PeerError", f"rank {CULPRIT} (all-reduce 0): no answer within 2 s"),
    ],
)
def test_a_fault_of_one_device_is_an_error_on_all_ranks(ranks, kind, by, error, text):
    if ranks.size == 2 and kind == "result":  # there is none
        return
    outcomes = ranks.run(cases.fault, kind=kind, culprit=CULPRIT, by=by)
    for rank, (name, message, untouched, following) in enumerate(outcomes):
        assert name, f"rank {rank} has noticed nothing"
        assert untouched
        assert "has failed" in following
        if rank != CULPRIT:
            assert f"rank {CULPRIT} " in message or "aborted" in message, message
            assert (name == error and text in message) or "aborted" in message, (name, message)


def test_a_rank_that_is_silent_is_named(ranks):
    for rank, text in enumerate(ranks.run(cases.silent, culprit=CULPRIT)):
        assert rank == CULPRIT or text.startswith(f"rank {CULPRIT} (all-reduce 0): no answer within 2 s"), (rank, text)


@pytest.mark.parametrize(("bucket", "by"), [(0, "group"), (1, "staged"), (2, "group")])
def test_damage_that_devices_find_late_fails_the_step_on_all_ranks(ranks, bucket, by):
    """No rank has an optimizer step of values that are wrong, whichever bucket they are in."""
    outcomes = ranks.run(cases.damaged_bucket, culprit=CULPRIT, bucket=bucket, by=by, what="payload")
    for rank, (step, text) in enumerate(outcomes):
        assert step == 2, (rank, step, text)
        assert "checksum" in text, (rank, text)  # found here, or told by one that has found it
        assert f"rank {CULPRIT} " in text or rank == CULPRIT, (rank, text)


@pytest.mark.parametrize(("bucket", "by"), [(0, "group"), (1, "staged"), (2, "group")])
def test_damage_to_sums_that_travel_with_the_next_bucket_fails_the_step_on_all_ranks(ranks, bucket, by):
    """And the error names the bucket that they are of."""
    if ranks.size == 2:  # there are none
        return
    outcomes = ranks.run(cases.damaged_bucket, culprit=CULPRIT, bucket=bucket, by=by, what="sums")
    for rank, (step, text) in enumerate(outcomes):
        assert step == 2, (rank, step, text)
        assert "checksum" in text and f"rank {CULPRIT} (step 2, bucket {bucket}, " in text, (rank, text)


def test_sums_on_devices_that_were_put_off_do_not_wait_for_another_bucket(ranks):
    assert all(ranks.run(cases.followed_by_the_host))


@pytest.mark.parametrize(("by", "compressed"), [("group", True), ("staged", True), ("group", False), ("staged", False)])
def test_a_failed_collective_of_devices_is_an_error_that_says_where(ranks, by, compressed):
    where = "all-reduce 0, frames: " if compressed else "all-reduce, uncompressed: "
    unknown = "some rank, it is not known which: "  # unless messages of our own have timed out
    for rank, (name, message) in enumerate(ranks.run(cases.lost, culprit=CULPRIT, by=by, compressed=compressed)):
        assert name == "PeerError" and message.startswith(where), (rank, name, message)
        assert unknown in message or "rank " in message
        assert rank != CULPRIT or message == where + unknown + "the device's network is gone"


def test_the_private_group_of_devices_ends_with_its_lane(ranks):
    assert ranks.run(cases.ends_of_private_groups, culprit=CULPRIT) == [(["shutdown"], ["abort"])] * ranks.size


@pytest.mark.parametrize("by", ["group", "staged"])
def test_a_warm_up_loads_kernels_and_connects_devices_and_the_first_all_reduce_does_not(ranks, by):
    n_private, n_swaps = int(by == "group"), 1 if ranks.size == 2 else 2
    wanted = [(1, n_private, 1), (1, n_private, 1 + n_swaps)]
    assert ranks.run(cases.warmed, by=by) == [wanted] * ranks.size


def test_the_host_waits_for_uncompressed_buckets_of_devices_only_where_the_bypass_measures(ranks):
    waits, buckets = agreed(ranks.run(cases.waits_for_dense_buckets))
    assert min(buckets[3:]) >= 2
    assert waits == [0, 0, 0, *buckets[3:]]


@pytest.mark.parametrize(("by", "coded"), [("group", False), ("group", True), ("staged", False)])
def test_buckets_that_the_bypass_leaves_uncompressed_take_no_way_by_the_lane(ranks, by, coded):
    """But the lane ends each step, and has what it compresses. The group that training has reduces them at once."""
    found = agreed(ranks.run(cases.decided_by_the_bypass, by=by, coded=coded))
    first, *_, last = found
    assert sum(first[1:]) >= 1 and last[1:] == ((2, 1) if coded else (0, 3))
    assert last[0] == (3 if by == "staged" else 2 if coded else 1)


def test_kernels_for_the_cpu_are_compiled_at_the_first_bucket_there(ranks):
    assert ranks.run(cases.compiled_for_buckets) == [([], [], ["float32"])] * ranks.size


@pytest.mark.parametrize(
    ("by", "mode", "narrow"), [("group", "lossless", False), ("staged", "near", True), ("group", "visible", False)]
)
def test_replicas_under_diloco_on_devices_end_with_the_bits_of_those_on_the_host(ranks, by, mode, narrow):
    result = ranks.run(cases.on_devices, what=diloco_cases.train, by=by, mode=mode, narrow=narrow, steps=9)
    plain = ranks.run(cases.on_host, what=diloco_cases.train, mode=mode, narrow=narrow, steps=9)
    assert agreed([checksum for checksum, *_ in result]) == agreed([checksum for checksum, *_ in plain])


def test_diloco_on_devices_goes_on_from_a_state_and_refuses_damage(ranks):
    for mode in ("lossless", "visible"):
        assert all(ranks.run(cases.on_devices, what=diloco_cases.resume, by="group", mode=mode))
    for heard, unchanged in ranks.run(
        cases.on_devices, what=diloco_cases.corrupted, by="staged", mode="visible", culprit=CULPRIT
    ):
        assert "rank" in heard and unchanged


def test_fsdp_on_devices_ends_with_the_bits_of_fsdp_on_the_host(ranks):
    """Of two ranks, too, each keeps the sum of its own part, unlike in an all-reduce, where both sum everything."""
    for by, options in (("group", {}), ("staged", {"mode": "fixed"}), ("group", {"narrow": True})):
        result = ranks.run(cases.on_devices, what=fsdp_cases.train, by=by, how="shard_ours", **options)
        plain = ranks.run(cases.on_host, what=fsdp_cases.train, how="shard_ours", **options)
        assert agreed([found["crc"] for found in result]) == agreed([found["crc"] for found in plain]), options
        for found in result:
            assert 0 < found["stats"]["sent_bytes"] < found["stats"]["dense_bytes"] and not found["stats"]["dense"]


def test_autograd_on_devices_goes_on_while_gradients_are_reduced(ranks):
    for happened, same in ranks.run(cases.on_devices, what=fsdp_cases.beside_backward, by="group"):
        assert happened == ["backward of another unit", "goes on"] and same


def test_replicas_of_shards_on_devices_are_averaged_compressed(four):
    result = four.run(cases.on_devices, what=fsdp_cases.train, by="staged", how="hsdp_hook")
    plain = four.run(cases.on_host, what=fsdp_cases.train, how="hsdp_hook")
    assert agreed([found["crc"] for found in result]) == agreed([found["crc"] for found in plain])


@pytest.mark.parametrize(("by", "slow"), [("group", "coded"), ("staged", "dense")])
def test_fsdp_on_devices_leaves_compression_where_it_is_slower(ranks, by, slow):
    if ranks.size == 2:
        dense, _ = agreed(ranks.run(cases.on_devices, what=fsdp_cases.bypass, by=by, slow=slow, parameters=False))
        assert sum(dense[:13]) == 0 and 0 < sum(dense[13:22]) < 27
        assert dense[22:28] == [3 * (slow == "coded")] * 6


def test_collectives_of_a_group_that_wait_find_what_those_before_have_written(ranks):
    assert all(ranks.run(cases.in_place_again))


def test_plain_all_reduces_that_wait_find_what_those_before_have_written(ranks):
    assert all(ranks.run(cases.plain_in_place_again))


@pytest.mark.parametrize(
    ("number", "by", "plain"), [(0, "group", False), (1, "staged", False), (2, "group", False), (1, "group", True)]
)
def test_damage_to_one_of_several_collectives_of_a_group_is_an_error_of_all_on_all_ranks(ranks, number, by, plain):
    """No value is given out, nor written to a tensor, of what is confirmed with it."""
    where = f"rank {CULPRIT} ({'' if plain else 'group, '}all-reduce {number})"
    of_ranks = ranks.run(cases.damaged_collective, culprit=CULPRIT, number=number, by=by, plain=plain)
    for rank, found in enumerate(of_ranks):
        for text, is_untouched in found:
            assert "checksum" in text and where in text, (rank, found)
            assert is_untouched


@pytest.mark.parametrize(("unit", "is_read"), [(0, False), (1, False), (2, False), (1, True)])
def test_damage_to_gradients_of_fsdp_that_devices_find_late_is_an_error_of_the_same_backward(ranks, unit, is_read):
    """On all ranks, and it names the gradients."""
    outcomes = ranks.run(cases.damaged_fsdp, culprit=CULPRIT, unit=unit, is_read=is_read)
    for rank, (step, text) in enumerate(outcomes):
        assert step == 2, (rank, step, text)
        assert "checksum" in text and f"rank {CULPRIT} (FSDP" in text, (rank, text)
        assert is_read or "(FSDP, gradients of " in text, (rank, text)


def test_gradients_that_one_rank_reads_at_once_are_there_on_all(ranks):
    assert all(ranks.run(cases.on_devices, what=fsdp_cases.read_in_backward, by="group", reader=CULPRIT))
