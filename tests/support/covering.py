"""A few of many combinations, in which any two values that ever meet still meet.

A law over a full product, of value types, arrays and modes, say, runs on these with every commit, and on the whole
product with ``make slow``: most faults show with one value of one factor, or with two of different factors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from random import Random
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def covering(
    every: Iterable[T], factors: Callable[[T], Sequence[Hashable]] | None = None, together: int = 2
) -> list[T]:
    """Return some of ``every``, in their order, and the same ones each time.

    Args:
        every: All combinations of values of some factors that have a meaning.
        factors: Returns the values of a combination; None where it is the tuple of them.
        together: How many factors are looked at together: values of so many of them that occur in one of ``every`` also
            occur in one of those returned.
    """
    values: Callable[[Any], Sequence[Hashable]] = factors or tuple
    left = [(place, one, set(combinations(enumerate(values(one)), together))) for place, one in enumerate(every)]
    Random(len(left)).shuffle(left)
    seen: set[Hashable] = set()
    chosen: list[tuple[int, T]] = []
    for least in range(max((len(met) for *_, met in left), default=0), 0, -1):
        rest = []
        for place, one, met in left:
            new = met - seen
            if len(new) >= least:
                seen |= new
                chosen.append((place, one))
            elif new:
                rest.append((place, one, new))
        left = rest
    return [one for _, one in sorted(chosen, key=lambda pair: pair[0])]


def each_pair(**factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a law by arguments of these names: by values of which any two of different arguments meet, and by the
    rest of the product among the slow tests."""
    return _parametrized(factors, together=2)


def each_value(**factors: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a law by arguments of these names: by each value once, and by the rest of the product among the slow
    tests."""
    return _parametrized(factors, together=1)


def _parametrized(factors: Mapping[str, Iterable[Any]], together: int) -> pytest.MarkDecorator:
    every = list(product(*factors.values()))
    few = set(map(every.index, covering(every, together=together)))
    cases = [one if number in few else pytest.param(*one, marks=pytest.mark.slow) for number, one in enumerate(every)]
    return pytest.mark.parametrize(tuple(factors), cases)
