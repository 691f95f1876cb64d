"""Versions that are damaged or meant for others, updates that are interrupted, and wrong arguments: nothing changes."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.testing._internal.two_tensor import TwoTensor

import gcodec
from gcodec.sync import BrokenChain, Publisher, Subscriber, VersionFolder
from gcodec.sync.tensor_bits import WritableTensor
from tests.support.children import forked
from tests.sync.states import chain, equal, fail_at, moved, some_state

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
            else:  # a bit that Zstandard has no meaning for
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
    for wrong in (
        torch.ones(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.ones(2, dtype=torch.complex128),
        np.array(["text"]),
        np.array([None]),
        np.ma.masked_array([1.0], [True]),
    ):
        with pytest.raises(gcodec.InvalidArgument, match="wrong"):
            publisher.publish({**state, "wrong": wrong})
    with pytest.raises(gcodec.InvalidArgument, match=r"'model' must be .* not a dict of Python objects"):
        publisher.publish({"model": state})
    assert before == (publisher.number, publisher.state)
    state = moved(state, 3)
    subscriber.apply(publisher.publish(state).data)
    assert equal(subscriber.tensors, state)


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

        WritableTensor.write = killing  # type: ignore[assignment, method-assign]
        pending.apply()
        return 0

    assert forked(killed_between_two_writes).wait()[0] == -signal.SIGKILL
    assert equal({"a": weights["a"]}, {"a": after["a"]}) and equal({"b": weights["b"]}, {"b": before["b"]})
    with pytest.raises(BrokenChain, match=r"changed the weights.*'a'"):
        subscriber.verify()
    again = Subscriber(weights)
    with pytest.raises(BrokenChain, match="an anchor is needed"):
        again.apply(folder.message(2, anchor=False))
    assert again.catch_up(folder) == 2  # the anchor, and the difference
    assert equal(weights, after)


# Tensors that share memory


def tied(how: str) -> tuple[dict[str, Any], Any]:
    """Return tensors that share memory, and all of that memory."""
    w: Any = torch.zeros(100, 60) if how.startswith("torch") else np.zeros((100, 60), np.float32)
    return {
        "torch": lambda: {"embed": w, "head": w},
        "torch parameters": lambda: {"embed": torch.nn.Parameter(w), "head": w},
        "numpy": lambda: {"embed": w, "head": w},
        "views of numpy": lambda: {"embed": w[:], "head": w[:]},
        "numpy and torch": lambda: {"embed": w, "head": torch.from_numpy(w)},
        "numpy, turned": lambda: {"embed": w, "head": w.T},
        "torch, turned": lambda: {"embed": w, "head": w.t()},
        "numpy, backwards": lambda: {"embed": w, "head": w[::-1]},
        "torch, in part": lambda: {"embed": w, "head": w[50:]},
        "numpy, in part": lambda: {"embed": w[:60], "head": w[50:]},
        "torch, columns": lambda: {"embed": w[:, :40], "head": w[:, 20:]},
        "numpy, columns": lambda: {"embed": w[:, ::2], "head": w[:, 2:4]},
    }[how](), w


TIED = [
    "torch",
    "torch parameters",
    "numpy",
    "views of numpy",
    "numpy and torch",
    "numpy, turned",
    "torch, turned",
    "numpy, backwards",
    "torch, in part",
    "numpy, in part",
    "torch, columns",
    "numpy, columns",
]


def apart(state: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return a copy in which no tensors share memory, as numpy arrays."""
    return {name: (x.detach().numpy() if isinstance(x, torch.Tensor) else x).copy() for name, x in state.items()}


@pytest.mark.parametrize("how", TIED)
def test_different_values_for_shared_memory_are_refused(how):
    ours, _ = tied(how)
    before, publisher, subscriber = apart(ours), Publisher(start=apart(ours)), Subscriber(ours)
    state = subscriber.state
    different = {name: np.full_like(x, 1 + k) for k, (name, x) in enumerate(before.items())}
    one = {**before, "embed": different["embed"]}
    for version in (Publisher().publish(different), publisher.publish(different), Publisher(start=before).publish(one)):
        with pytest.raises(gcodec.InvalidArgument, match=r"'embed' and 'head'|'head' and 'embed'"):
            subscriber.apply(version.data)
        assert equal(apart(ours), before)
        assert (subscriber.number, subscriber.state) == (0, state)
        subscriber.verify()


@pytest.mark.parametrize("how", TIED)
def test_tied_tensors_follow_those_of_a_publisher_that_are_tied_as_well(how):
    (theirs, whole), (ours, _) = tied(how), tied(how)
    publisher, subscriber = Publisher(), Subscriber(ours)
    for step in range(4):
        whole[5 * step : 5 * step + 60, 7:30] += 1 + step
        version = publisher.publish(theirs, anchor=step == 2)
        pending = subscriber.read(version.anchor() if step == 2 else version.data)
        engine = {name: x.reshape(-1) for name, x in apart(ours).items()}
        for name, indices, values in pending.iter_changes(like="numpy"):
            engine[name][indices] = values
        pending.apply()
        assert equal(apart(ours), apart(theirs))
        assert all(np.array_equal(engine[name], x.reshape(-1)) for name, x in apart(theirs).items())
        assert subscriber.state == publisher.state
        subscriber.verify()


@pytest.mark.parametrize("how", ["torch", "numpy", "numpy and torch"])
def test_different_values_for_the_same_memory_are_refused_when_they_are_read(how):
    ours, _ = tied(how)
    version = Publisher().publish({name: np.full_like(x, 1 + k) for k, (name, x) in enumerate(apart(ours).items())})
    with pytest.raises(gcodec.InvalidArgument, match=r"version 1 .* 'embed' and 'head', which share memory"):
        Subscriber(ours).read(version.data)


# Limits and arguments


def test_a_subscriber_refuses_what_is_not_for_it():
    state = some_state()
    version = Publisher(part="0-of-2").publish(state)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    for subscriber, why in (
        (Subscriber(), "part '0-of-2'"),
        (Subscriber({**zeros, "more": torch.ones(1)}, part="0-of-2"), "has no tensor 'more'"),
        (Subscriber({"bfloat16": zeros["bfloat16"]}, part="0-of-2"), "which the subscriber lacks"),
        (Subscriber({}, part="0-of-2"), "which the subscriber lacks"),
        (Subscriber({**zeros, "bfloat16": torch.zeros(2)}, part="0-of-2"), "the subscriber's is float32 of shape"),
    ):
        with pytest.raises(gcodec.InvalidArgument, match=why):
            subscriber.apply(version.data)
    with pytest.raises(gcodec.LimitExceeded):
        Subscriber(part="0-of-2", max_output_bytes=10_000).apply(version.data)


def test_what_is_no_version_is_refused(tmp_path):
    gcodec.save_file({"w": np.ones(9, np.float32)}, tmp_path / "plain.gc")
    with pytest.raises(gcodec.errors.WrongKind, match="not a version"):
        Subscriber().apply(tmp_path / "plain.gc")
    first = {"gcodec-sync": "1", "gcodec-sync.version": "1", "gcodec-sync.state": "0" * 16}
    for metadata, kind in (
        ({"gcodec-sync": "3"}, gcodec.Unsupported),
        ({"gcodec-sync": "1"}, gcodec.Corruption),
        ({**first, "gcodec-sync.version": "0"}, gcodec.Corruption),
        ({**first, "gcodec-sync.version": "1.0"}, gcodec.Corruption),
        ({**first, "gcodec-sync.state": "no hash"}, gcodec.Corruption),
        ({**first, "gcodec-sync.x": ""}, gcodec.Unsupported),
        (first, gcodec.Corruption),  # of other weights
    ):
        gcodec.save_file({"w": np.ones(9, np.float32)}, tmp_path / "other.gc", metadata=metadata)
        with pytest.raises(kind):
            Subscriber().apply(tmp_path / "other.gc")
    for wrong in (None, 3, ["x"]):
        with pytest.raises(gcodec.InvalidArgument):
            Subscriber().apply(wrong)  # type: ignore[arg-type]


def test_a_tensor_that_gets_other_memory_is_noticed():
    state = {"w": torch.ones(900), "n": torch.zeros(3)}
    publisher, model = Publisher(start=state), {name: torch.nn.Parameter(x.clone()) for name, x in state.items()}
    subscriber = Subscriber(model)
    subscriber.apply(publisher.publish({**state, "n": torch.ones(3)}).data)
    model["w"].data = torch.ones(900)
    with pytest.raises(gcodec.InvalidArgument, match="'w' has other memory"):
        subscriber.apply(publisher.publish(state).data)


@pytest.mark.parametrize("is_read", [False, True], ids=["before it is read", "before it is applied"])
@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.half(),
        lambda model: model.to(torch.bfloat16),
        lambda model: setattr(model.bias, "data", torch.ones(5)),
    ],
    ids=["half", "to", "data"],
)
def test_a_version_is_refused_after_a_module_was_moved(move, is_read):
    model = torch.nn.Linear(3, 5)
    state = {name: x.clone() for name, x in model.state_dict().items()}
    publisher, subscriber = Publisher(start=state), Subscriber(model.state_dict(keep_vars=True))
    version = publisher.publish({name: x + 1 for name, x in state.items()})
    pending = subscriber.read(version.data)
    move(model)
    with pytest.raises(gcodec.InvalidArgument, match=r"'bias'.* has other memory"):
        if is_read:
            pending.apply()
        else:
            subscriber.apply(version.data)
    assert subscriber.number == 0


def test_senseless_arguments_are_refused():
    w: Any = torch.ones(4)
    names: Any = {1: w}
    number: Any = 1
    for call in (
        lambda: Publisher(anchor_every=0),
        lambda: Publisher(first=0),
        lambda: Publisher(dtype="int8"),
        lambda: Publisher(threads=0),
        lambda: Publisher(start=w),
        lambda: Publisher().publish(names),
        lambda: Publisher().publish({"__metadata__": w}),
        lambda: Publisher().publish({"\ud800": w}),
        lambda: Publisher().publish({"w": w}, metadata={"gcodec-sync.x": "1"}),
        lambda: Publisher().publish({"w": w}, metadata={"x": number}),
        lambda: Publisher().publish({"w": w}, metadata={"x": "\ud800"}),
        lambda: Publisher().publish({"w": w}, metadata={"\ud800": "x"}),
        lambda: Publisher().publish({"w": w}, metadata=number),
        lambda: Publisher().publish({"w": TwoTensor(w, w)}),
        lambda: Publisher(part=number),
        lambda: Publisher(part="\ud800"),
        lambda: Subscriber(part=number),
        lambda: Subscriber({"w": TwoTensor(w, w)}),
        lambda: Subscriber(w),
        lambda: Subscriber(like="jax"),
        lambda: Subscriber({"w": [1.0]}),
        lambda: Subscriber({"w": w.expand(3, 4)}),
        lambda: Subscriber({"w": np.broadcast_to(np.ones(3), (2, 3))}),
        lambda: Subscriber({"w": w.to_sparse()}),
        lambda: Subscriber({"w": np.ones(3, ">f4")}),
    ):
        with pytest.raises(gcodec.InvalidArgument):
            call()


def test_tensors_of_a_lazy_module_are_refused_by_name(tmp_path):
    lazy = torch.nn.LazyBatchNorm1d()
    for value in (lazy.weight, lazy.running_mean):
        for call in (
            lambda w: Publisher().publish({"w": w}),
            lambda w: Publisher(dtype="bfloat16").publish({"w": w}),
            lambda w: Subscriber({"w": w}),
            lambda w: gcodec.save({"w": w}, tmp_path / "w.gc"),
            lambda w: gcodec.save_file({"w": w}, tmp_path / "w.gc"),
        ):
            with pytest.raises(gcodec.InvalidArgument, match=rf"w\b.*{type(value).__name__}"):
                call(value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("like", ["torch", "numpy"])
def test_tensors_of_which_values_share_memory_are_refused_and_no_others(like):
    flat = torch.arange(24.0)
    apart = [flat.view(4, 6).t(), flat[::2], flat.view(2, 3, 4)[:, 1:, ::2], flat[3:4].expand(1, 1)]
    for value in (flat.as_strided((4, 4), (1, 1)), flat.unfold(0, 3, 2), flat.as_strided((3, 2), (0, 1)), *apart):
        given = value if like == "torch" else value.numpy()
        if any(value is own for own in apart):
            tensors, wanted = {"w": given, "turned": np.ones((4, 5))[::-1, ::-2]}, value + 1
            Subscriber(tensors).apply(Publisher().publish({"w": wanted, "turned": np.zeros((4, 3))}).data)
            assert torch.equal(value, wanted) and not tensors["turned"].any()
        else:
            with pytest.raises(gcodec.InvalidArgument, match="'w' must have memory for each value"):
                Subscriber({"w": given})
