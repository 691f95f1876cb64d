"""The laws of weight sync: every version bit for bit, in order or not at all."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec import sync
from gcodec.sync import BrokenChain, Publisher, Subscriber, VersionFolder, version_message
from gcodec.sync import publisher as publishing
from gcodec.sync.tensor_bits import WritableTensor
from tests.support.children import forked
from tests.sync.states import FLOATS, TYPES, bits_of, equal, moved, some_state

State = dict[str, Any]


def chain(n_versions: int, **options: Any) -> Iterator[tuple[State, sync.WeightVersion]]:
    """Yield states that change a little, each with its version."""
    publisher, state = Publisher(**options), some_state()
    for number in range(n_versions):
        if number:
            state = moved(state, seed=number)
        yield state, publisher.publish(state)


def fail_at(patch: pytest.MonkeyPatch, nth: int, error: type[BaseException]) -> None:
    """Have the nth write of a tensor raise an error after it has been done."""
    write, n_calls = WritableTensor.write, 0

    def failing(self: WritableTensor, *arguments: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        write(self, *arguments)
        if n_calls == nth:
            raise error

    patch.setattr(WritableTensor, "write", failing)


# Every version, bit for bit

@pytest.mark.parametrize("like", ["torch", "numpy"])
def test_every_version_arrives_bit_for_bit(like):
    subscriber = Subscriber(like=like)
    for state, version in chain(5):
        stats = subscriber.apply(version.data)
        assert equal(subscriber.tensors, state)
        assert (subscriber.number, subscriber.state) == (version.number, version.state)
        assert stats.number == version.number
        assert stats.n_changed_values == version.stats.n_changed_values


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


def layers_in_training(steps: int) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the bfloat16 weights of some small layers, of which few change from step to step; in one, of matrices only.
    """
    random = torch.Generator().manual_seed(5)
    state = {f"layers.{number}.{name}": (torch.randn(shape, generator=random) / 32).bfloat16()
             for number in range(12) for name, shape in (("weight", (90, 70)), ("bias", (90,)), ("scale", ()))}
    for step in range(steps):
        yield state
        shares = {name: 0.01 if step != 1 or "weight" in name else 0 for name in state}
        state = {name: torch.where(torch.rand(tensor.shape, generator=random) < shares[name], tensor * 1.01, tensor)
                 for name, tensor in state.items()}


def test_small_tensors_of_one_type_travel_end_to_end(monkeypatch, tmp_path):
    sizes: dict[int, list[int]] = {}
    for below in (publishing.JOINED_BELOW, 9000, 0):      # all of them, some, and as messages of format 1 have it: none
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
        theirs[5:7 if sparse else 50, 11] += 1e-3
        subscriber.apply(publisher.publish({"w": theirs}).data)
        assert torch.equal(ours, theirs)


def test_tensors_on_a_device_are_read_and_written_through_the_host(monkeypatch):
    monkeypatch.setattr(WritableTensor, "_flat", None)      # as for tensors whose memory is not the host's
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
        assert before is None or equal(subscriber.tensors, before)      # nothing has been written yet
        pending.apply()
        before = state


# Anchors, and the order

def test_anchors_are_due_by_interval_and_on_demand():
    assert [version.is_anchor_due for _, version in chain(7, anchor_every=3)] == [True, False, False] * 2 + [True]
    assert [version.is_anchor_due for _, version in chain(4, anchor_every=None)] == [True, False, False, False]
    publisher, state = Publisher(anchor_every=None), some_state()
    publisher.publish(state)
    assert publisher.publish(state, anchor=True).is_anchor_due
    publisher.request_anchor()
    assert publisher.publish(state).is_anchor_due
    assert not publisher.publish(state).is_anchor_due


def test_an_anchor_is_an_archive_of_the_tensors_and_a_difference_one_with_a_base(tmp_path):
    (old, anchor), (new, difference) = chain(2)
    (tmp_path / "anchor.gc").write_bytes(anchor.data)
    (tmp_path / "difference.gc").write_bytes(difference.data)
    assert equal(gcodec.load_file(tmp_path / "anchor.gc", like="torch"), old)
    changed = gcodec.load_file(tmp_path / "difference.gc", like="torch", base=tmp_path / "anchor.gc")
    assert equal(changed, {name: new[name] for name in changed})


def test_an_anchor_brings_any_subscriber_up_to_date():
    states = list(chain(4))
    publisher, state = Publisher(), some_state()
    publisher.publish(state)
    for late in (Subscriber(), Subscriber({name: torch.zeros_like(tensor) for name, tensor in state.items()})):
        late.apply(states[0][1].data)
        anchor = states[3][1].anchor()
        assert sync.read_version_info(anchor).is_anchor
        late.apply(anchor)
        assert equal(late.tensors, states[3][0])


def test_an_anchor_of_weights_that_are_no_longer_held_is_refused():
    (_, first), (_, second), (_, third) = chain(3)
    assert first.anchor() == first.data         # was made with the version
    with pytest.raises(gcodec.InvalidArgument, match="before the next version"):
        second.anchor()
    assert third.anchor()


def test_a_publisher_that_starts_from_common_weights_begins_with_a_difference():
    state = some_state()
    publisher, subscriber = Publisher(start=state, first=8), Subscriber({name: x.clone() for name, x in state.items()})
    state = moved(state, 1)
    version = publisher.publish(state)
    assert version.number == 8
    assert version.difference is not None
    subscriber.apply(version.data)
    assert equal(subscriber.tensors, state)
    stranger = Subscriber({name: torch.zeros_like(x) for name, x in state.items()})
    with pytest.raises(BrokenChain, match="an anchor is needed"):
        stranger.apply(version.data)


def test_another_layout_makes_an_anchor():
    publisher, subscriber = Publisher(), Subscriber()
    short, a, b = torch.ones(3), torch.ones(4), torch.ones(2)
    for state in ({"a": short}, {"a": a}, {"a": a, "b": b}, {"a": a}, {"c": a}, {"c": a.half()}):
        version = publisher.publish(state)
        assert version.difference is None
        assert version.is_anchor_due
        subscriber.apply(version.data)
        assert equal(subscriber.tensors, state)


def test_a_missing_version_is_named_and_nothing_changes():
    states = list(chain(5))
    subscriber = Subscriber()
    with pytest.raises(BrokenChain, match="anchor first"):
        subscriber.apply(states[1][1].data)
    subscriber.apply(states[0][1].data)
    for number, missing in ((2, "version 2 must"), (4, "versions 2 to 4 must")):
        with pytest.raises(BrokenChain, match=missing):
            subscriber.apply(states[number][1].data)
        assert equal(subscriber.tensors, states[0][0])
    for state, version in states[1:]:
        subscriber.apply(version.data)
        assert equal(subscriber.tensors, state)
    for version in (states[4][1], states[2][1]):
        with pytest.raises(BrokenChain, match="does not come after version 5"):
            subscriber.apply(version.data)
    subscriber.reset()
    subscriber.apply(states[0][1].data)
    assert equal(subscriber.tensors, states[0][0])


def test_weights_of_another_run_are_refused():
    ours, theirs = Publisher(), Publisher()
    state = some_state()
    subscriber = Subscriber()
    subscriber.apply(ours.publish(state).data)
    theirs.publish(moved(state, 9))
    with pytest.raises(BrokenChain, match="applies to the weights"):
        subscriber.apply(theirs.publish(state).data)
    assert equal(subscriber.tensors, state)


def test_weights_that_something_else_changed_are_noticed():
    states = list(chain(3))
    subscriber = Subscriber()
    subscriber.apply(states[0][1].data)
    subscriber.verify()
    subscriber.tensors["bfloat16"].view(-1)[17] += 1
    changed = {name: tensor.clone() for name, tensor in subscriber.tensors.items()}
    with pytest.raises(BrokenChain, match="'bfloat16'"):
        subscriber.verify()
    with pytest.raises(BrokenChain, match=r"'bfloat16'.*an anchor is needed"):
        subscriber.apply(states[1][1].data)
    assert equal(subscriber.tensors, changed)
    subscriber.apply(states[2][1].anchor())
    assert equal(subscriber.tensors, states[2][0])
    subscriber.verify()


def test_a_version_that_was_read_before_another_was_applied_is_refused():
    (_, first), (state, second) = chain(2)
    subscriber = Subscriber()
    subscriber.apply(first.data)
    pending, again = subscriber.read(second.data), subscriber.read(second.data)
    pending.apply()
    with pytest.raises(BrokenChain, match="read it again"):
        again.apply()
    assert equal(subscriber.tensors, state)


# Damage and interruptions

def test_damage_is_found_and_nothing_changes():
    publisher = Publisher()
    state = {"w": torch.randn(20, 30).bfloat16(), "n": torch.arange(9), "c": torch.ones(600).bfloat16()}
    anchor = publisher.publish(state)
    after = {"w": state["w"] * 1.01, "n": state["n"] + 1, "c": state["c"] * 1.01}
    difference = publisher.publish(after)
    n_harmless = 0
    for data, holds in ((anchor.data, None), (difference.data, state)):
        for at in range(0, len(data), 2):
            subscriber = Subscriber()
            if holds is not None:
                subscriber.apply(anchor.data)
            damaged = bytearray(data)
            damaged[at] ^= 1 << at % 8
            try:
                subscriber.apply(damaged)
            except (gcodec.Corruption, gcodec.Unsupported):
                assert subscriber.number == (holds is not None)
                assert equal(subscriber.tensors, holds or {})
            else:       # a bit that Zstandard has no meaning for
                n_harmless += 1
                assert equal(subscriber.tensors, state if holds is None else after)
    assert n_harmless < 10


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_message_that_is_cut_off_is_refused(share):
    (state, anchor), (_, difference) = chain(2)
    subscriber = Subscriber()
    subscriber.apply(anchor.data)
    for version in (anchor, difference):
        with pytest.raises(gcodec.Corruption):
            subscriber.apply(version.data[: int(share * len(version.data))])
    assert equal(subscriber.tensors, state)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("nth", [1, 3, 5])
def test_an_interrupted_update_is_undone(monkeypatch, error, nth):
    (state, first), (after, second) = chain(2)
    subscriber = Subscriber()
    subscriber.apply(first.data)
    pending = subscriber.read(second.data)
    with monkeypatch.context() as patch:
        fail_at(patch, nth, error)
        with pytest.raises(error):
            pending.apply()
    assert equal(subscriber.tensors, state)
    assert subscriber.number == 1
    subscriber.verify()
    subscriber.apply(second.data)
    assert equal(subscriber.tensors, after)


def test_a_version_that_cannot_be_made_leaves_the_publisher_as_it_was():
    publisher, subscriber, state = Publisher(), Subscriber(), some_state()
    subscriber.apply(publisher.publish(state).data)
    before = publisher.number, publisher.state
    for wrong in (torch.ones(3).to_sparse(), torch.empty(3, device="meta"), torch.ones(2, dtype=torch.complex128),
                  np.array(["text"]), np.array([None]), np.ma.masked_array([1.0], [True])):
        with pytest.raises(gcodec.InvalidArgument, match="wrong"):
            publisher.publish({**state, "wrong": wrong})
    assert before == (publisher.number, publisher.state)
    state = moved(state, 3)
    subscriber.apply(publisher.publish(state).data)
    assert equal(subscriber.tensors, state)


# Limits, arguments, reports

def test_a_subscriber_refuses_what_is_not_for_it():
    state = some_state()
    version = Publisher(part="0-of-2").publish(state)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for subscriber, why in (
        (Subscriber(), "part '0-of-2'"),
        (Subscriber({**zeros, "more": torch.ones(1)}, part="0-of-2"), "has no tensor 'more'"),
        (Subscriber({"bfloat16": zeros["bfloat16"]}, part="0-of-2"), "which the subscriber lacks"),
        (Subscriber({**zeros, "bfloat16": torch.zeros(2)}, part="0-of-2"), "the subscriber's is float32 of shape"),
    ):
        with pytest.raises(gcodec.InvalidArgument, match=why):
            subscriber.apply(version.data)
    with pytest.raises(gcodec.LimitExceeded):
        Subscriber(part="0-of-2", max_output_bytes=10_000).apply(version.data)


def test_what_is_no_version_is_refused(tmp_path):
    gcodec.save_file({"w": np.ones(9, np.float32)}, tmp_path / "plain.gc")
    with pytest.raises(gcodec.Corruption, match="not a version"):
        Subscriber().apply(tmp_path / "plain.gc")
    first = {"gcodec-sync": "1", "gcodec-sync.version": "1", "gcodec-sync.state": "0" * 16}
    for metadata, kind in (
        ({"gcodec-sync": "3"}, gcodec.Unsupported),
        ({"gcodec-sync": "1"}, gcodec.Corruption),
        ({**first, "gcodec-sync.version": "0"}, gcodec.Corruption),
        ({**first, "gcodec-sync.version": "1.0"}, gcodec.Corruption),
        ({**first, "gcodec-sync.state": "no hash"}, gcodec.Corruption),
        ({**first, "gcodec-sync.x": ""}, gcodec.Unsupported),
        (first, gcodec.Corruption),     # of other weights
    ):
        gcodec.save_file({"w": np.ones(9, np.float32)}, tmp_path / "other.gc", metadata=metadata)
        with pytest.raises(kind):
            Subscriber().apply(tmp_path / "other.gc")
    for wrong in (None, 3, ["x"]):
        with pytest.raises(gcodec.InvalidArgument):
            Subscriber().apply(wrong)       # type: ignore[arg-type]


def test_a_tensor_that_gets_other_memory_is_noticed():
    state = {"w": torch.ones(900), "n": torch.zeros(3)}
    publisher, model = Publisher(start=state), {name: torch.nn.Parameter(x.clone()) for name, x in state.items()}
    subscriber = Subscriber(model)
    subscriber.apply(publisher.publish({**state, "n": torch.ones(3)}).data)
    model["w"].data = torch.ones(900)
    with pytest.raises(gcodec.InvalidArgument, match="'w' has other memory"):
        subscriber.apply(publisher.publish(state).data)


def test_a_subscriber_that_is_killed_while_it_writes_begins_with_an_anchor(tmp_path):
    folder, publisher = VersionFolder(tmp_path / "run"), Publisher()
    before = {"a": np.linspace(0, 1, 999, dtype=np.float32), "b": np.ones(99, np.float32)}
    after = {name: value * np.float32(1.5) for name, value in before.items()}
    # Weights that outlive their process, as in shared memory.
    weights = {name: np.memmap(tmp_path / name, np.float32, "w+", shape=x.shape) for name, x in before.items()}
    folder.send(publisher.publish(before))
    subscriber = Subscriber(weights)
    subscriber.catch_up(folder)
    folder.send(publisher.publish(after))

    def killed_between_two_writes() -> int:
        pending, write = subscriber.read(folder.message(2, anchor=False)), WritableTensor.write

        def killing(*arguments: Any) -> None:
            write(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        WritableTensor.write = killing      # type: ignore[assignment, method-assign]
        pending.apply()
        return 0

    assert forked(killed_between_two_writes).wait()[0] == -signal.SIGKILL
    assert equal({"a": weights["a"]}, {"a": after["a"]}) and equal({"b": weights["b"]}, {"b": before["b"]})
    with pytest.raises(BrokenChain, match=r"changed the weights.*'a'"):
        subscriber.verify()
    again = Subscriber(weights)
    with pytest.raises(BrokenChain, match="an anchor is needed"):
        again.apply(folder.message(2, anchor=False))
    assert again.catch_up(folder) == 2      # the anchor, and the difference
    assert equal(weights, after)


def test_senseless_arguments_are_refused():
    w: Any = torch.ones(4)
    names: Any = {1: w}
    number: Any = 1
    for call in (
        lambda: Publisher(anchor_every=0), lambda: Publisher(first=0), lambda: Publisher(dtype="int8"),
        lambda: Publisher(threads=0), lambda: Publisher(start=w), lambda: Publisher().publish(names),
        lambda: Publisher().publish({"__metadata__": w}), lambda: Publisher().publish({"\ud800": w}),
        lambda: Publisher().publish({"w": w}, metadata={"gcodec-sync.x": "1"}),
        lambda: Publisher().publish({"w": w}, metadata={"x": number}),
        lambda: Subscriber(w),
        lambda: Subscriber(like="jax"), lambda: Subscriber({"w": [1.0]}), lambda: Subscriber({"w": w.expand(3, 4)}),
        lambda: Subscriber({"w": np.broadcast_to(np.ones(3), (2, 3))}), lambda: Subscriber({"w": w.to_sparse()}),
        lambda: Subscriber({"w": np.ones(3, ">f4")}),
    ):
        with pytest.raises(gcodec.InvalidArgument):
            call()


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
