"""The laws of weight sync: every version arrives bit for bit."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec import sync
from gcodec.sync import Publisher, Subscriber, version_message
from gcodec.sync import publisher as publishing
from gcodec.sync.tensor_bits import WritableTensor
from tests.sync.states import FLOATS, TYPES, bits_of, chain, equal, fail_at, moved, some_state


@pytest.mark.parametrize("like", ["torch", "numpy"])
def test_every_version_arrives_bit_for_bit(like):
    subscriber = Subscriber(like=like)
    for state, version in chain(5):
        stats = subscriber.apply(version.data)
        assert equal(subscriber.tensors, state)
        assert (subscriber.number, subscriber.state) == (version.number, version.state)
        assert stats.number == version.number
        assert stats.n_changed_values == version.stats.n_changed_values


def test_without_torch_a_subscriber_says_how_to_get_numpy_arrays(monkeypatch):
    data = Publisher().publish({"a": np.ones(3)}).data
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gcodec.GcodecError, match=r"tensor 'a' .*like='numpy'"):
        Subscriber().apply(data)
    subscriber = Subscriber(like="numpy")
    subscriber.apply(data)
    assert subscriber.tensors["a"].tolist() == [1, 1, 1]


def test_a_difference_holds_only_what_changed():
    publisher, state = Publisher(), some_state()
    first = publisher.publish(state)
    changed = {**state, "bfloat16": moved(state, 1)["bfloat16"]}
    second = publisher.publish(changed)
    assert list(sync.read_version_info(second.data).tensors) == ["bfloat16"]
    assert second.stats.n_changed_tensors == 1
    assert len(second.data) < len(first.data) / 4
    nothing = publisher.publish(changed)
    info = sync.read_version_info(nothing.data)
    assert (info.tensors, info.base, info.state) == ({}, second.state, second.state)
    subscriber = Subscriber()
    for version in (first, second, nothing):
        subscriber.apply(version.data)
    assert equal(subscriber.tensors, changed)


def test_equal_tensors_are_once_in_an_anchor_and_part_ways_later():
    publisher, subscriber = Publisher(), Subscriber()
    weights = torch.randn(200, 300).bfloat16()
    alone = len(Publisher().publish({"a": weights}).data)
    state = {"a": weights, "b": weights.clone(), "c": weights.clone()}
    first = publisher.publish(state)
    assert len(first.data) < alone + 1000
    subscriber.apply(first.data)
    assert equal(subscriber.tensors, state)
    changed = {
        name: torch.where(torch.rand(weights.shape) < 0.1 * number, tensor * 1.5, tensor)
        for number, (name, tensor) in enumerate(state.items())
    }
    for version in (publisher.publish(changed), publisher.publish({**changed, "b": changed["c"].clone()})):
        subscriber.apply(version.data)
    assert equal(subscriber.tensors, {**changed, "b": changed["c"]})


def layers_in_training(steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the bfloat16 weights of some small layers, of which few change at each step; in one, of matrices only."""
    random = torch.Generator().manual_seed(5)
    state = {
        f"layers.{number}.{name}": (torch.randn(shape, generator=random) / 32).bfloat16()
        for number in range(12)
        for name, shape in (("weight", (90, 70)), ("bias", (90,)), ("scale", ()))
    }
    for step in range(steps):
        yield state
        shares = {name: 0.01 if step != 1 or "weight" in name else 0 for name in state}
        state = {
            name: torch.where(torch.rand(tensor.shape, generator=random) < shares[name], tensor * 1.01, tensor)
            for name, tensor in state.items()
        }


def test_small_tensors_of_one_type_travel_end_to_end(monkeypatch, tmp_path):
    sizes: dict[int, list[int]] = {}
    for below in (publishing.JOINED_BELOW, 9000, 0):  # all of them, some, and as messages of format 1 have it: none
        monkeypatch.setattr(publishing, "JOINED_BELOW", below)
        publisher, subscriber = Publisher(), Subscriber()
        held: dict[str, torch.Tensor] = {}
        for state in layers_in_training(4):
            version = publisher.publish(state)
            sizes.setdefault(below, []).append(len(version.data))
            pending = subscriber.read(version.data)
            if held:
                patched = {name: tensor.clone().reshape(-1) for name, tensor in held.items()}
                for name, indices, values in pending.iter_changes():
                    patched[name][indices] = values
                assert equal({name: tensor.reshape(state[name].shape) for name, tensor in patched.items()}, state)
                (tmp_path / "difference.gc").write_bytes(version.data)
                changed = gcodec.load_file(tmp_path / "difference.gc", like="torch", base=held)
                assert equal(changed, {name: state[name] for name in changed})
                assert changed.keys() == {name for name in state if not torch.equal(state[name], held[name])}
            pending.apply()
            assert equal(subscriber.tensors, state)
            held = {name: tensor.clone() for name, tensor in state.items()}
    assert all(2 * joined < alone for joined, alone in zip(*(sizes[n][1:] for n in (1 << 22, 0)), strict=True))


def test_tensors_that_share_a_segment_in_another_way_are_refused(monkeypatch):
    state = {"a": torch.ones(4000), "b": torch.ones(3000), "h": torch.ones(2000).bfloat16()}
    publisher, subscriber = Publisher(start=state), Subscriber(state)
    after = {name: tensor * 1.5 for name, tensor in state.items()}
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "to_metadata", lambda info, **_: version_message.to_metadata(info, are_joined=False))
        of_format_1 = publisher.publish(after).data
    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_groups", lambda tensors: [list(tensors)])
        of_two_types = Publisher(start=state).publish(after).data
    for data in (of_format_1, of_two_types):
        with pytest.raises(gcodec.Corruption, match="share a segment"):
            subscriber.apply(data)
    assert equal(subscriber.tensors, state)


def test_versions_are_applied_in_place():
    state = some_state()
    publisher = Publisher(start=state)
    ours = {name: tensor.clone() for name, tensor in state.items()}
    memory = {name: tensor.data_ptr() for name, tensor in ours.items()}
    subscriber = Subscriber(ours)
    for seed in range(1, 4):
        state = moved(state, seed)
        subscriber.apply(publisher.publish(state).data)
        assert equal(ours, state)
    assert memory == {name: tensor.data_ptr() for name, tensor in subscriber.tensors.items()}


def test_a_backward_pass_that_saved_weights_that_a_version_replaces_says_so():
    publisher, weight = Publisher(), torch.ones(1000, requires_grad=True)
    first, second = (publisher.publish({"weight": torch.full((1000,), value)}) for value in (3.0, 2.0))
    subscriber = Subscriber({"weight": weight})
    for version in (first, second):
        loss = (weight * weight).sum()
        subscriber.apply(version.data)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_subscriber_without_tensors_of_its_own_follows_to_a_state_without_any():
    publisher, subscriber, state = Publisher(), Subscriber(), some_state()
    for published in (state, {}, {}, {"w": torch.ones(3)}, {"empty": torch.ones(0)}, {}, state):
        pending = subscriber.read(publisher.publish(published).data)
        pending.apply()
        assert equal(subscriber.tensors, published)
        subscriber.verify()


def test_a_matrix_of_numpy_is_written_in_place():
    matrix, state = np.zeros((30, 40), np.float32).view(np.matrix), {"w": np.ones((30, 40), np.float32)}
    publisher, subscriber = Publisher(), Subscriber({"w": matrix})
    for place in (3, 5):
        subscriber.apply(publisher.publish(state).data)
        assert np.array_equal(np.asarray(matrix), state["w"])
        state["w"][place, 7] = 2


def test_types_of_ml_dtypes_are_cast_like_others():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wide = torch.linspace(-2, 2, 300)
    ours, theirs = (Publisher(dtype="float8_e4m3fn") for _ in range(2))
    version = ours.publish({"w": wide.numpy().astype(ml_dtypes.bfloat16)})
    assert version.data == theirs.publish({"w": wide.bfloat16()}).data
    other = Publisher(dtype="bfloat16").publish({"h": wide.numpy().astype(ml_dtypes.bfloat16)})
    assert other.state == Publisher().publish({"h": wide.bfloat16()}).state


STRIDES: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every other row": lambda x: torch.cat([x, x], 1).view(2 * x.shape[0], -1)[::2],
    "a part of a larger one": lambda x: torch.nn.functional.pad(x.float(), (3, 1)).to(x.dtype)[:, 3:-1],
}


@pytest.mark.parametrize("how", STRIDES)
@pytest.mark.parametrize("numpy", [False, True])
def test_strides_do_not_matter(how, numpy):
    dense = torch.linspace(-1, 1, 60 * 70).reshape(60, 70)
    ours, theirs = STRIDES[how](dense), STRIDES[how](dense)
    assert not ours.is_contiguous()
    publisher = Publisher(start={"w": theirs})
    subscriber = Subscriber({"w": ours.numpy() if numpy else ours})
    for sparse in (True, False):
        theirs[5 : 7 if sparse else 50, 11] += 1e-3
        subscriber.apply(publisher.publish({"w": theirs}).data)
        assert torch.equal(ours, theirs)


def test_tensors_on_a_device_are_read_and_written_through_the_host(monkeypatch):
    monkeypatch.setattr(WritableTensor, "_flat", None)  # as for tensors whose memory is not the host's
    ours = {name: torch.zeros_like(tensor) for name, tensor in some_state().items()}
    subscriber = Subscriber(ours)
    for state, version in chain(4):
        pending = subscriber.read(version.data)
        before = {name: tensor.clone() for name, tensor in ours.items()}
        with monkeypatch.context() as patch:
            fail_at(patch, 3, RuntimeError)
            with pytest.raises(RuntimeError):
                pending.apply()
        assert equal(ours, before)
        subscriber.apply(version.data)
        assert equal(ours, state)


def test_parameters_and_integers_and_a_scalar_are_kept_up_to_date():
    model, engine = torch.nn.BatchNorm1d(9), torch.nn.BatchNorm1d(9)
    publisher, subscriber = Publisher(), Subscriber(engine.state_dict())
    for _ in range(3):
        model(torch.randn(20, 9)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        subscriber.apply(publisher.publish(model.state_dict()).data)
        assert equal(engine.state_dict(), model.state_dict())
    assert engine.num_batches_tracked == 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn"])
def test_masters_are_cast_and_only_what_that_changes_is_sent(dtype):
    masters = {"w": torch.randn(100, 50), "half": torch.randn(9).half(), "n": torch.arange(3)}
    publisher, subscriber = Publisher(dtype=dtype), Subscriber()
    subscriber.apply(publisher.publish(masters).data)
    masters["w"] *= 1 + 2.0**-20
    subscriber.apply(publisher.publish(masters).data)
    narrow = getattr(torch, dtype)
    wanted = {"w": masters["w"].to(narrow), "half": masters["half"], "n": masters["n"]}
    if narrow.itemsize < 2:
        wanted["half"] = masters["half"].to(narrow)
    assert equal(subscriber.tensors, wanted)


def test_numpy_arrays_are_published_and_cast():
    state = {"w": np.linspace(0, 1, 999, dtype=np.float32), "big": np.arange(5, dtype=">f4")}
    subscriber = Subscriber(like="numpy")
    subscriber.apply(Publisher(dtype="float16").publish(state).data)
    assert np.array_equal(subscriber.tensors["w"], state["w"].astype(np.float16))
    assert np.array_equal(subscriber.tensors["big"], np.arange(5, dtype=np.float16))


def test_the_publisher_keeps_a_copy():
    state = {"w": torch.ones(500, dtype=torch.bfloat16)}
    publisher, subscriber = Publisher(), Subscriber()
    subscriber.apply(publisher.publish(state).data)
    state["w"][7] = 2
    subscriber.apply(publisher.publish(state).data)
    assert torch.equal(subscriber.tensors["w"], state["w"])


@pytest.mark.parametrize("like", ["torch", "numpy"])
def test_changes_are_the_values_that_differ(like):
    subscriber, before = Subscriber(like="torch"), None
    for state, version in chain(3):
        pending = subscriber.read(version.data)
        found: dict[str, list[Any]] = {name: [] for name in state}
        for name, indices, values in pending.iter_changes(like=like):
            assert len(indices) == len(values)
            found[name].append((np.asarray(indices), bits_of(values)))
        for name, tensor in state.items():
            after = bits_of(tensor).reshape(-1)
            unequal = np.ones(len(after)) if before is None else bits_of(before[name]).reshape(-1) != after
            places = np.flatnonzero(unequal)
            indices = np.concatenate([np.zeros(0, np.int64), *(where for where, _ in found[name])])
            values = np.concatenate([after[:0], *(bits for _, bits in found[name])])
            few = 4 * len(places) < len(after) or before is None
            assert np.array_equal(indices, places) if few else np.isin(places, indices).all()
            assert np.array_equal(values, after[indices])
        assert before is None or equal(subscriber.tensors, before)  # nothing has been written yet
        pending.apply()
        before = state


def test_changes_of_the_anchor_that_made_the_tensors_are_its_own_or_refused():
    publisher, subscriber, state = Publisher(), Subscriber(), some_state()
    pending = subscriber.read(publisher.publish(state).data)
    wanted = [bits_of(values) for _, _, values in pending.iter_changes()]

    def is_its_own() -> bool:
        found = [bits_of(values) for _, _, values in pending.iter_changes()]
        return all(np.array_equal(*pair) for pair in zip(found, wanted, strict=True))

    assert is_its_own()
    pending.apply()
    assert is_its_own()
    subscriber.reset()  # which leaves the weights
    assert is_its_own()
    begun = pending.iter_changes()
    next(begun)
    subscriber.apply(publisher.publish(moved(state, seed=1)).data)
    for changes in (begun, pending.iter_changes()):
        with pytest.raises(gcodec.BrokenChain, match=r"version 1 \(anchor\) made .* those of version 2 by now"):
            list(changes)
    subscriber.apply(publisher.publish(some_state(), anchor=True).anchor())
    assert is_its_own()


def test_metadata_stats_progress_and_log(caplog):
    done: list[tuple[str, int, int]] = []
    publisher = Publisher(progress=lambda *call: done.append(call))
    subscriber = Subscriber(progress=lambda *call: done.append(call))
    state = some_state()
    with caplog.at_level(logging.INFO, "gcodec.sync"):
        subscriber.apply(publisher.publish(state, metadata={"step": "20"}).data)
        state = moved(state, 1)
        version = publisher.publish(state, metadata={"step": "30"})
        stats = subscriber.apply(version.data)
    assert sync.read_version_info(version.data).metadata == {"step": "30"}
    sizes = {name: tensor.numel() for name, tensor in state.items()}
    assert version.stats.n_values == sum(sizes.values())
    assert 0 < version.stats.changed_share < 0.2
    assert version.stats.message_bytes == len(version.data) == stats.message_bytes
    assert set(version.stats.seconds) == {"read", "compare", "encode", "keep"}
    assert set(stats.seconds) == {"check", "write"}
    assert {stage for stage, _, _ in done} == {"compare", "encode", "check"}
    assert all(0 <= part <= whole for _, part, whole in done)
    assert len(caplog.records) == 4
    assert "published version 2: difference of" in caplog.text
    assert "applied version 2: difference of" in caplog.text


def test_the_types_of_the_state_are_all_of_the_codecs_and_more():
    assert {str(tensor.dtype).removeprefix("torch.") for tensor in some_state().values()} >= {*FLOATS, *TYPES}
