"""Anchors, and the order of versions: each is applied to the weights that it was made for, or not at all."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec import sync
from gcodec.sync import BrokenChain, Publisher, Subscriber
from gcodec.sync.publisher import JOINED_BELOW
from tests.sync.states import chain, equal, moved, some_state


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
    assert first.anchor() == first.data  # was made with the version
    with pytest.raises(gcodec.InvalidArgument, match="before the next version"):
        second.anchor()
    assert third.anchor()


def test_an_anchor_has_its_own_weights_though_the_next_version_is_published_meanwhile():
    states = [{f"w{k}": torch.full((JOINED_BELOW // 4,), n + k / 8) for k in range(6)} for n in range(3)]
    to_publish, published = list[dict[str, torch.Tensor]](), list[sync.WeightVersion]()

    def publish_meanwhile(*_: object) -> None:
        if to_publish:
            published.append(publisher.publish(to_publish.pop()))

    publisher = Publisher(threads=1, progress=publish_meanwhile)
    publisher.publish(states[0])
    second = publisher.publish(states[1])
    to_publish.append(states[2])
    anchor, subscriber = second.anchor(), Subscriber()
    for data, state in ((anchor, states[1]), (published[0].data, states[2])):
        subscriber.apply(data)
        assert equal(subscriber.tensors, state)


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
