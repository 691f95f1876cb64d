"""The contract of controllers: sums over ranks in, settings out.

A controller decides how much is sent of which tensor. It sees nothing but numbers that are the same on all ranks, so
every rank comes to the same settings at the same step, whichever rank it is; it knows neither how ranks are connected
nor what a compressor does inside. There are two kinds, by when they decide:

    Selector    within a step: of settings tried on the step's own gradients, which one is sent (GraVAC)
    Planner     between steps: from gradients added up over a period, the settings of the next one (Accordion, L-GreCo)

What a planner decides takes two halves. :meth:`Planner.decide` looks at tensors, on one rank only, and returns numbers;
:meth:`Planner.apply` gets these numbers on all ranks, and changes what the controller knows. ``driver`` connects them.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from ..compressors.contract import Compressor
from ..errors import InvalidArgument

Settings = dict[str, Compressor]  #: what compresses each tensor, by name
Shapes = Mapping[str, tuple[int, ...]]  #: of the tensors that are to be compressed, in one order on all ranks


class Controller(ABC):
    """Knobs, as a dataclass whose repr is the call, and what changes in training: the attributes ``changing``, which
    are tensors, numbers, strings, or lists and dicts of these."""

    kind: ClassVar[str]  #: this controller's name in saved states, which must not change; by default the class's name
    changing: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):  # never a base's, or two controllers would load each other's states
            cls.kind = cls.__name__

    def start(self, shapes: Shapes, size: int) -> None:
        """Called once, before the first step or :meth:`load_state_dict`, with the number of ranks."""
        self.shapes = dict(shapes)
        self.size = size

    @abstractmethod
    def settings(self, step: int, rate: float | None) -> Settings:
        """Return the settings of a step, by tensor; others are compressed as the averager's plan says.

        Called once in each step.

        Args:
            step: The step's number, from 0.
            rate: The learning rate, if it is known.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs; the same on all ranks."""
        return {"kind": self.kind, **{name: copy.deepcopy(getattr(self, name)) for name in self.changing}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, with the same decisions from the same numbers. Raises InvalidArgument for another
        controller's."""
        missing = [name for name in self.changing if name not in state]
        if state.get("kind") != self.kind or missing:
            raise InvalidArgument(f"a state of {state.get('kind')} without {missing} for {self.kind}")
        for name in self.changing:
            setattr(self, name, copy.deepcopy(state[name]))


class Measured(NamedTuple):
    """Measurements of a step: sums over ranks and tensors of squared L2 norms, and times.

    ``raw``: of gradients; ``fed``: of gradients with error feedback, as they are compressed; ``kept``: of what each
    probe leaves of these: |fed|^2 - |fed - compressed|^2, which for a choice of values is |compressed|^2. ``seconds``:
    what the step *before* took, the mean over ranks, and ``measuring`` the part of it that went into probes; 0 where
    unknown. ``samples``: in that step, on all ranks.
    """

    raw: float
    fed: float
    kept: tuple[float, ...]
    seconds: float = 0.0
    measuring: float = 0.0
    samples: float = 0.0


class Selector(Controller):
    """Decides within a step."""

    nested: bool = True  #: each probe compresses what the one before it has left, rather than the gradient anew

    def settings(self, step: int, rate: float | None) -> Settings:
        return {}

    @abstractmethod
    def probes(self) -> Sequence[Settings]:
        """Settings to try on the step's gradients, from mild to harsh."""

    @abstractmethod
    def choose(self, measured: Measured) -> int | None:
        """Return the number of the probe to send, or None to send :attr:`fallback`.

        Called once in each step, after :meth:`probes`.
        """

    @property
    @abstractmethod
    def fallback(self) -> Compressor:
        """The setting to send if no probe is sent."""


SOURCES = ("average", "own", "reduced")


class Planner(Controller):
    """Decides at the end of every ``period`` steps.

    ``source`` of the gradients that are added up meanwhile: "average": the averages as they come back, compressed;
    "own": the deciding rank's gradients before compression, and without error feedback; "reduced": these of all ranks,
    for one dense all-reduce per period.
    """

    period: int
    source: str = "average"

    @property
    @abstractmethod
    def n_numbers(self) -> int:
        """The number of numbers that :meth:`decide` returns."""

    @abstractmethod
    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        """Return numbers that say what to do, from every tensor's mean gradient over the period.

        It runs on one rank, so it must change nothing.
        """

    @abstractmethod
    def apply(self, numbers: Sequence[float]) -> None:
        """Take over what :meth:`decide` returned, on all ranks."""


def check_source(source: str) -> None:
    """Raise InvalidArgument for anything but one of ``SOURCES``."""
    if source not in SOURCES:
        raise InvalidArgument(f"source must be one of {SOURCES}, not {source!r}")
