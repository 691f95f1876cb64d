"""The law of coverings: whatever values of so many factors meet in a full product meet in what is chosen of it."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.support.covering import covering, each_pair

FULL = [(a, b, c, d) for a, b, c, d in product("abcde", range(7), (False, True), range(3)) if (a, c) != ("a", True)]


@pytest.mark.parametrize("together", [1, 2, 3, 4])
def test_values_that_meet_in_the_product_meet_in_the_few(together):
    few = covering(FULL, together=together)
    for places in combinations(range(4), together):
        wanted = {tuple(one[place] for place in places) for one in FULL}
        assert {tuple(one[place] for place in places) for one in few} == wanted
    assert few == [one for one in FULL if one in few]
    assert few == covering(FULL, together=together)
    assert len(few) <= {1: 9, 2: 50, 3: 150, 4: len(FULL)}[together]


def test_factors_are_told_by_a_function():
    assert covering([]) == []
    few = covering(range(1000), lambda n: (n // 100, n // 10 % 10, n % 10))
    assert {n // 10 for n in few} == {n % 100 for n in few} == {n // 100 * 10 + n % 10 for n in few} == set(range(100))
    assert len(few) < 200


@each_pair(a=["x", "y"], b=range(3), c=[False, True])
def test_arguments_are_parametrized_by_their_names(a, b, c, request):
    marked = request.node.get_closest_marker("parametrize")
    assert len(marked.args[1]) == 12
    assert (a in "xy", b in range(3), isinstance(c, bool)) == (True, True, True)
