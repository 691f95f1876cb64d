"""Controllers among real Gloo processes: they decide as simulated ranks do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

from tests.adaptive_cases import CONTROLLERS
from tests.ranks import Ranks, one_of


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    group = Ranks(2, "tests.adaptive_cases")
    yield group
    group.close()


@pytest.mark.parametrize("name", CONTROLLERS)
def test_real_ranks_decide_as_simulated_ones_do(ranks, name):
    found = ranks.run("follows", name=name)
    _, changes = one_of([one[:2] for one in found])
    assert changes > 1
    assert all(sent > 0 for *_, sent in found)


def test_an_optimizer_on_two_ranks(ranks):
    found = ranks.run("trains")
    one_of([crc for crc, *_ in found])
    assert all(last < 0.2 * first for _, first, last in found)
