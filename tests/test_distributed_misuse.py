"""Training as it should not be, among real processes: a clear error on every rank, and never a hang."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from tests.ranks import Ranks, one_of

CASES = "tests.misuse_cases"
CULPRIT = 1


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(3, CASES)
    yield group
    group.close()


# Lanes that are closed

@pytest.mark.parametrize("state", ["near", "top"])
def test_training_goes_on_after_lanes_are_closed(ranks, state):
    assert one_of(ranks.run("closed", state=state))


def test_a_broken_lane_stays_broken_when_it_is_closed(ranks):
    for first, *later in ranks.run("closed_when_broken", culprit=CULPRIT):
        assert "checksum is wrong" in first or "given up" in first
        assert all("an earlier all-reduce of this group has failed" in text for text in later), later


def test_what_comes_too_late_is_an_error(ranks):
    for first, *others in ranks.run("late"):
        assert first == "True"
        assert all(text == "done" or "closed" in text for text in others)


def test_lanes_of_destroyed_groups_are_closed(ranks):
    for error, left in ranks.run("destroyed"):
        assert "has been destroyed" in error
        assert left == 1
