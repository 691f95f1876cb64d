"""Steps of ranks that are simulated in one process, under a controller and with a clock of the test's own."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gcodec.adaptive import Adaptive
from gcodec.averaging.simulate import run_conversations
from tests.support.compressor_settings import gradients_at, same


def of(group: Sequence[Adaptive]) -> Any:
    """Return the controller of the first rank; all decide alike (:func:`advance`)."""
    return group[0].controller


def counter(step=1.0):
    """Return a clock on which every reading is ``step`` seconds after the last."""
    return itertools.count(0.0, step).__next__


def advance(group, step, rate=None, **options):
    """Run one step of simulated ranks, and assert that all have the same averages and make the same decisions."""
    gradients = gradients_at(step, len(group), **options)
    averages = run_conversations([rank.average(own, rate=rate) for rank, own in zip(group, gradients, strict=True)])
    for other, state in zip(averages, (rank.controller.state_dict() for rank in group), strict=True):
        assert all(same(other[name], averages[0][name]) for name in other)
        assert state == of(group).state_dict()
    return averages[0]
