"""Weight sync of tensors that stay on a device. Here the host stands in for it: its memory, its codec and its XXH3.

The kernels themselves, in the device's place, take the same way in the law ``weight_sync`` of
:mod:`tests.gpu.test_pretended_device`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import xxhash

import gcodec
from gcodec import gpu, sync
from gcodec.sync import Publisher, Subscriber, device_bits, device_segments, publisher, tensor_bits, weight_changes
from gcodec.sync.device_bits import DeviceBits
from gcodec.sync.weight_changes import DeviceChange
from gcodec.tensors import is_torch
from tests.sync.states import equal, moved, some_state

WHERE = [(True, True), (True, False), (False, True)]
HASHED: list[int] = []


def device_hashes(tensors: Sequence[torch.Tensor]) -> list[str]:
    HASHED.append(len(tensors))
    assert all(x.dtype == torch.uint8 and x.ndim == 1 and x.is_contiguous() for x in tensors)
    return [xxhash.xxh3_64_hexdigest(x.numpy().tobytes()) for x in tensors]


@pytest.fixture(autouse=True)
def device(monkeypatch: Any) -> Any:
    """Have every tensor count as one on a device, and cut what is done there into small parts."""
    for module in (publisher, tensor_bits):
        monkeypatch.setattr(module, "is_on_device", is_torch)
    monkeypatch.setattr(gpu, "device_hashes", device_hashes)
    monkeypatch.setattr(device_segments, "LEAST_BYTES", 1)
    monkeypatch.setattr(device_segments, "PART_BYTES", 3200)
    monkeypatch.setattr(device_bits, "COMPARE_VALUES", 1000)
    monkeypatch.setattr(weight_changes, "DEVICE_PART", 900)
    HASHED.clear()
    return monkeypatch


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize(("publishes", "subscribes"), WHERE)
@pytest.mark.parametrize("below", [0, 4000, 1 << 22])
def test_every_version_arrives_bit_for_bit_whichever_side_works_on_a_device(publishes, subscribes, below, monkeypatch):
    monkeypatch.setattr(publisher, "JOINED_BELOW", below)
    state = some_state()
    ours, theirs = Publisher(start=state, on_device=publishes), Publisher(start=state)
    weights = copied(state)
    memory = {name: tensor.data_ptr() for name, tensor in weights.items()}
    subscriber = Subscriber(weights, on_device=subscribes)
    for seed in range(1, 5):
        given = copied(moved(state, seed) if seed != 3 else state)
        version, wanted = ours.publish(given), theirs.publish(given)
        state = copied(given)
        for tensor in given.values():
            tensor.zero_()  # it is the caller's again
        assert (version.state, version.stats.n_changed_values) == (wanted.state, wanted.stats.n_changed_values)
        stats = subscriber.apply(version.data)
        assert stats.n_changed_values == wanted.stats.n_changed_values
        assert equal(weights, state)
        subscriber.verify()
        anchor = Subscriber()
        anchor.apply(version.anchor())
        assert equal(anchor.tensors, state)
    assert memory == {name: tensor.data_ptr() for name, tensor in weights.items()}
    assert HASHED


def test_what_a_device_publishes_takes_as_many_bytes_as_what_the_host_publishes(monkeypatch):
    monkeypatch.setattr(device_segments, "PART_BYTES", 1 << 22)
    state = {name: tensor for name, tensor in some_state().items() if tensor.dim() == 2 and tensor.nbytes > 1 << 12}
    ours, theirs = Publisher(start=state, on_device=True), Publisher(start=state)
    for seed in range(1, 4):
        state = moved(state, seed)
        sizes = [len(one.publish(state).data) for one in (ours, theirs)]
        assert abs(sizes[0] - sizes[1]) <= 16  # frames say that torch's tensors are in them, and hashes differ


def test_a_publisher_keeps_tensors_where_they_are():
    state = some_state()
    there, here = Publisher(start=state, on_device=True), Publisher(start=state)
    for owner, kind in ((there, True), (here, False)):
        assert {isinstance(item.bits, DeviceBits) for item in (owner._held or {}).values()} == {kind}
    state = moved(state, 1)
    there.publish(state)
    memory = {name: item.bits.words.data_ptr() for name, item in (there._held or {}).items()}  # type: ignore[union-attr]
    assert not set(memory.values()) - {0} & {tensor.data_ptr() for tensor in state.values()}


@pytest.mark.parametrize("first", [True, False])
def test_tensors_may_move_between_host_and_device(first, monkeypatch):
    state, weights = some_state(), some_state()
    monkeypatch.setattr(publisher, "is_on_device", lambda value: is_torch(value) and first)
    ours, subscriber = Publisher(start=state, on_device=True), Subscriber(weights, on_device=True)
    for seed, there in ((1, not first), (2, first), (3, not first)):
        monkeypatch.setattr(publisher, "is_on_device", lambda value, there=there: is_torch(value) and there)
        state = moved(state, seed)
        subscriber.apply(ours.publish(state).data)
        assert equal(weights, state)


@pytest.mark.parametrize("like", [None, "torch", "numpy"])
def test_changes_on_a_device_can_be_iterated_over(like):
    state = some_state()
    after = moved(state, 1)
    subscriber = Subscriber(copied(state), on_device=True)
    pending = subscriber.read(Publisher(start=state, on_device=True).publish(after).data)
    patched = {name: tensor.clone().reshape(-1) for name, tensor in state.items()}
    n_changed = 0
    for name, indices, values in pending.iter_changes(like=like):
        own = patched[name].view(torch.uint8).view(-1, patched[name].element_size())
        if like == "numpy":
            indices, values = torch.from_numpy(indices), torch.from_numpy(values.view("u1"))
        assert indices.dtype == torch.int64
        own[indices] = values.view(torch.uint8).view(-1, own.shape[1])
        n_changed += len(indices)
    assert n_changed >= pending.n_changed_values
    assert equal({name: tensor.reshape(state[name].shape) for name, tensor in patched.items()}, after)
    assert equal(subscriber.tensors, state)
    pending.apply()
    assert equal(subscriber.tensors, after)


def test_damage_is_found_on_a_device_and_nothing_is_written():
    state = {name: tensor for name, tensor in some_state().items() if tensor.is_floating_point()}
    weights = copied(state)
    data = Publisher(start=state, on_device=True).publish(moved(state, 1)).data
    subscriber = Subscriber(weights, on_device=True)
    for place in range(0, len(data), 97):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(gcodec.GcodecError):
            subscriber.apply(bytes(damaged))
        assert equal(weights, state)
    for size in (0, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(gcodec.GcodecError):
            subscriber.apply(data[:size])
    assert equal(weights, state)
    subscriber.apply(data)


def test_frames_that_decode_to_other_values_are_refused_by_their_hash(monkeypatch):
    state = {"w": torch.linspace(-1, 1, 4000)}
    encode, weights = gcodec.codec.encode, copied(state)

    def other(x: torch.Tensor, **options: Any) -> Any:
        return encode(x * 1.5, **options)

    with monkeypatch.context() as patch:
        patch.setattr(gcodec.codec, "encode", other)
        data = Publisher(start=state, on_device=True).publish({"w": state["w"] * 2}).data
    with pytest.raises(gcodec.Corruption, match="w: the hash is"):
        Subscriber(weights, on_device=True).apply(data)
    assert equal(weights, state)


def test_other_weights_on_a_device_are_refused():
    state = some_state()
    ours = Publisher(start=state, on_device=True)
    versions = [ours.publish(moved(state, seed)) for seed in (1, 2)]
    weights = copied(state)
    subscriber = Subscriber(weights, on_device=True)
    with pytest.raises(gcodec.BrokenChain):
        subscriber.apply(versions[1].data)
    subscriber.apply(versions[0].data)
    weights["float32"][3, 4] += 1
    before = copied(weights)
    with pytest.raises(gcodec.BrokenChain, match="something else changed the weights of version 1: 'float32'"):
        subscriber.apply(versions[1].data)
    assert equal(weights, before)
    with pytest.raises(gcodec.BrokenChain, match="float32"):
        subscriber.verify()


@pytest.mark.parametrize("nth", [1, 4, 9])
def test_what_was_written_on_a_device_is_undone_after_an_interruption(nth, monkeypatch):
    state = some_state()
    weights = copied(state)
    data = Publisher(start=state).publish(moved(state, 1)).data
    subscriber = Subscriber(weights, on_device=True)
    write, n_calls = DeviceChange.write, 0

    def failing(self: DeviceChange) -> None:
        nonlocal n_calls
        n_calls += 1
        write(self)
        if n_calls == nth:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeviceChange, "write", failing)
        with pytest.raises(KeyboardInterrupt):
            subscriber.apply(data)
    assert n_calls > nth
    assert equal(weights, state)
    subscriber.apply(data)


def test_strides_do_not_matter_on_a_device():
    base = torch.linspace(-1, 1, 60 * 70).reshape(60, 70)
    state = {"turned": base.t(), "cut": torch.cat([base, base], 1)[:, 3:-9], "row": base[7]}
    ours, after = Publisher(start=state, on_device=True), {name: x * 1.25 for name, x in state.items()}
    weights = {name: torch.empty_strided(x.shape, x.stride()).copy_(x) for name, x in state.items()}
    assert not weights["turned"].is_contiguous()
    subscriber = Subscriber(weights, on_device=True)
    subscriber.apply(ours.publish(after).data)
    assert equal(weights, after)


def test_wider_tensors_are_cast_on_their_device():
    state = {"w": torch.linspace(-1, 1, 5000), "n": torch.arange(5)}
    ours = Publisher(start=state, dtype="bfloat16", on_device=True)
    weights = {"w": state["w"].bfloat16(), "n": state["n"].clone()}
    subscriber = Subscriber(weights, on_device=True)
    for factor in (1.001, 1.5):
        after = {"w": state["w"] * factor, "n": state["n"]}
        version = ours.publish(after)
        subscriber.apply(version.data)
        assert torch.equal(weights["w"], after["w"].bfloat16())
        assert sync.read_version_info(version.data).tensors.keys() == {"w"}


def test_a_publisher_that_runs_out_of_memory_goes_on_with_an_anchor(monkeypatch):
    monkeypatch.setattr(publisher, "JOINED_BELOW", 0)
    state = some_state()
    ours, subscriber = Publisher(start=state, on_device=True), Subscriber(copied(state), on_device=True)
    held_copy, n_calls = device_bits.held_copy, 0

    def failing(bits: Any, room: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 4:
            raise torch.OutOfMemoryError
        return held_copy(bits, room)

    with monkeypatch.context() as patch:
        patch.setattr(publisher, "held_copy", failing)
        with pytest.raises(torch.OutOfMemoryError):
            ours.publish(moved(state, 1))
    state = moved(state, 2)
    version = ours.publish(state)
    assert version.info.is_anchor and version.number == 1
    subscriber.apply(version.data)
    assert equal(subscriber.tensors, state)
    state = moved(state, 3)
    version = ours.publish(state)
    assert not version.info.is_anchor
    subscriber.apply(version.data)
    assert equal(subscriber.tensors, state)
