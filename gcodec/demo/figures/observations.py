"""Counts for the GComp paper's Figures 2 and 3: gradients, exponents, |gradient| / |parameter|, zeros."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

OBSERVATIONS_FILE = "observations.json"
EXPONENTS = 256
EXPONENT_BIAS = 127
VALUE_BINS = 120
VALUE_RANGE = 3.0
RATIO_EDGES = np.linspace(-12.0, 4.0, 129)


@dataclass(frozen=True)
class Observation:
    """The distributions of all of a model's gradients at one step.

    Attributes:
        step: The iteration, counted from 1.
        loss: The loss of the step's batch.
        count: Number of gradient values.
        zeros: How many of them are exactly zero.
        exponents: Counts by biased float32 exponent, 256 of them; zeros are under 0.
        values: Counts of non-zero gradients in ``VALUE_BINS`` equal bins from -value_limit to value_limit.
        value_limit: In gradient units, the same at every step of a run.
        ratios: Counts by log10(|gradient| / |parameter|) between ``RATIO_EDGES``, outliers in the outermost
            bins; pairs with a zero on either side are left out.
    """

    step: int
    loss: float
    count: int
    zeros: int
    exponents: list[int]
    values: list[int]
    value_limit: float
    ratios: list[int]


class Observer:
    """Takes one :class:`Observation` per call; the first one fixes the range of the value histogram."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self._limit = 0.0

    def observe(self, step: int, loss: float, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> Observation:
        """Counts over ``pairs`` of (gradient, parameter), float32 arrays of equal size."""
        split = [(np.ravel(g), np.ravel(p)) for g, p in pairs]
        gradient = np.concatenate([g for g, _ in split])
        parameter = np.concatenate([p for _, p in split])
        nonzero = gradient[gradient != 0]
        self._limit = self._limit or VALUE_RANGE * float(np.median(np.abs(nonzero)) if nonzero.size else 1.0)
        limit = self._limit
        observation = Observation(
            step=step,
            loss=loss,
            count=gradient.size,
            zeros=gradient.size - nonzero.size,
            exponents=exponent_counts(gradient).tolist(),
            values=np.histogram(nonzero, VALUE_BINS, (-limit, limit))[0].tolist(),
            value_limit=limit,
            ratios=ratio_counts(gradient, parameter).tolist(),
        )
        self.observations.append(observation)
        return observation


def exponent_counts(gradient: np.ndarray) -> np.ndarray:
    """Counts by the 8 exponent bits of float32 values, shape (256,)."""
    bits = np.ascontiguousarray(gradient, dtype=np.float32).view(np.uint32)
    return np.bincount((bits >> 23) & 0xFF, minlength=EXPONENTS)


def ratio_counts(gradient: np.ndarray, parameter: np.ndarray) -> np.ndarray:
    """Counts of log10(|gradient| / |parameter|) between ``RATIO_EDGES``, shape (len(RATIO_EDGES) - 1,)."""
    both = (gradient != 0) & (parameter != 0)
    logs = np.log10(np.abs(gradient[both])) - np.log10(np.abs(parameter[both]))
    return np.histogram(np.clip(logs, RATIO_EDGES[0], RATIO_EDGES[-1]), RATIO_EDGES)[0]


def write_observations(observations: Iterable[Observation], path: Path) -> None:
    """Writes them as a JSON list, one object per step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(observation) for observation in observations]))


def read_observations(path: Path) -> list[Observation]:
    """Reads what :func:`write_observations` wrote."""
    return [Observation(**entry) for entry in json.loads(path.read_text())]
