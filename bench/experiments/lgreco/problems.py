"""The problem that L-GreCo's experiments train beside the common problems: a transformer of more layers.

In the common one of two layers embedding and head are more than half of what is sent, which leaves little to choose.
"""

from __future__ import annotations

from dataclasses import replace

from bench.experiments import problems
from bench.experiments.problems import CONTEXT, Problem, tokens
from gcodec.demo.models import Transformer

LAYERS, WIDTH = 6, 64


def deep() -> Transformer:
    """Return a problem of 430 thousand parameters, of which embedding and head are 30 %."""
    return Transformer(tokens()[2], width=WIDTH, layers=LAYERS, context=CONTEXT)


SMALL = problems.PROBLEMS["transformer"]
PROBLEMS: dict[str, Problem] = {
    **problems.PROBLEMS,
    "transformer": replace(SMALL, model=deep, rate=0.06, steps=240),
    "small transformer": SMALL,
}
