"""The contract of controllers, which turn sums over ranks into settings.

A controller decides how much is sent of which tensor. It sees nothing but numbers that are the same on all ranks, so
every rank comes to the same settings at the same step, whichever rank it is; it knows neither how ranks are connected
nor what a compressor does inside. There are three kinds, by when they decide:

    Selector    within a step: of settings tried on the step's own gradients, which one is sent (GraVAC)
    Planner     between steps: from gradients added up over a period, the settings of the next one (Accordion, L-GreCo)
    Controller  before a step: from the step's number and the learning rate alone, without a look at gradients

What a planner decides takes two halves. :meth:`Planner.decide` looks at tensors, on one rank only, and returns numbers;
:meth:`Planner.apply` gets these numbers on all ranks, and changes what the controller knows. ``driver`` connects them.

A complete controller, a file beside this one: it sends tensors by one setting, and from a step on by another one.

    '''Stepped sends tensors by one setting until a step, and by another one from it on.'''

    from __future__ import annotations

    from dataclasses import dataclass
    from typing import ClassVar

    from ..compressors.contract import Compressor, check_whole
    from .contract import Controller, Settings


    @dataclass
    class Stepped(Controller):
        '''Sends all tensors by the same setting, which changes once.

        Attributes:
            before: Setting of the steps below ``at``.
            after: Setting of the other steps.
            at: Number of the first step that is sent by ``after``, from 0.
        '''

        kind: ClassVar[str] = "Stepped"
        before: Compressor
        after: Compressor
        at: int = 1000

        def __post_init__(self) -> None:
            super().__post_init__()
            check_whole("at", self.at, 0)

        def settings(self, step: int, rate: float | None) -> Settings:
            return dict.fromkeys(self.shapes, self.before if step < self.at else self.after)
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import torch

from ..compressors.contract import Compressor
from ..errors import InvalidArgument, check_choice, check_field_types, check_state

Settings = dict[str, Compressor]  #: what compresses each tensor, by name
Shapes = Mapping[str, tuple[int, ...]]  #: of the tensors that are to be compressed, in one order on all ranks


class Controller(ABC):
    """A dataclass of knobs, whose repr is the call, and of what changes in training.

    Attributes:
        kind: Name of the controller in saved states, which must not change; by default the class's name.
        changing: Names of the attributes that change in training: tensors, numbers, strings, or lists and dicts of
            these.
        shapes: Shape of each tensor, once started.
        size: Number of ranks, once started.
    """

    kind: ClassVar[str]
    changing: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):  # never a base's, or two controllers would load each other's states
            cls.kind = cls.__name__

    def __post_init__(self) -> None:
        check_field_types(self)

    def start(self, shapes: Shapes, size: int) -> None:
        """Start training; called once, before the first step or :meth:`load_state_dict`.

        Args:
            shapes: Shapes of the tensors that are to be compressed, by name.
            size: Number of ranks.
        """
        self.shapes = dict(shapes)
        self.size = size

    def possible(self) -> list[Compressor]:
        """Return the settings that may be chosen, as far as they are known once training has started."""
        each = [value for knob in vars(self).values() for value in (knob if isinstance(knob, tuple) else (knob,))]
        return [value for value in each if isinstance(value, Compressor)]

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
        """Go on from a state, with the same decisions from the same numbers.

        Args:
            state: What :meth:`state_dict` returned.

        Raises:
            InvalidArgument: The state is another controller's.
        """
        check_state(state)
        if state.get("kind") != self.kind:
            raise InvalidArgument(f"the state must be one of {self.kind}, not of {state.get('kind')}")
        missing = [name for name in self.changing if name not in state]
        if missing:
            raise InvalidArgument(f"the state of {self.kind} lacks {', '.join(missing)}")
        for name in self.changing:
            ours, theirs = getattr(self, name), state[name]
            if ours is not None and theirs is not None and _kind_of(theirs) != _kind_of(ours):
                raise InvalidArgument(
                    f"the state of {self.kind} must have a {_kind_of(ours)} for {name}, not a {type(theirs).__name__}"
                )
        for name in self.changing:
            setattr(self, name, copy.deepcopy(state[name]))


def _kind_of(value: Any) -> str:
    """Return what a value of a state is as far as JSON keeps it, which makes lists of tuples."""
    kinds = {"number": Real, "dictionary": Mapping, "list": list | tuple}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), type(value).__name__)


class Measured(NamedTuple):
    """Measurements of a step: sums over ranks and tensors of squared L2 norms, and times of the step before.

    Attributes:
        raw: Squared norm of the gradients.
        fed: Squared norm of the gradients with error feedback, as they are compressed.
        kept: Squared norm of what each probe keeps of these: |fed|^2 - |fed - compressed|^2, which for a choice of
            values is |compressed|^2.
        seconds: Seconds that the step *before* took, the mean over ranks; 0 where unknown.
        measuring: Seconds of these that went into probes; 0 where unknown.
        samples: Samples of that step, on all ranks; 0 where unknown.
    """

    raw: float
    fed: float
    kept: tuple[float, ...]
    seconds: float = 0.0
    measuring: float = 0.0
    samples: float = 0.0


class Selector(Controller):
    """A controller that decides within a step.

    Attributes:
        nested: Each probe compresses what the one before it has kept, rather than the gradient anew.
    """

    nested: bool = True

    def settings(self, step: int, rate: float | None) -> Settings:
        return {}

    @abstractmethod
    def probes(self) -> Sequence[Settings]:
        """Return the settings to try on the step's gradients, from mild to harsh."""

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
    """A controller that decides at the end of every period.

    Attributes:
        period: Steps between decisions.
        source: Gradients that are added up meanwhile. "average": the averages as they come back, compressed; "own": the
            deciding rank's gradients before compression and without error feedback; "reduced": these of all ranks, at
            the price of one dense all-reduce per period.
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


def choices_state(choices: Sequence[int], options: Sequence[Sequence[Compressor]]) -> dict[str, Any]:
    """Return the entry of a state that tells what the choices in it stand for: numbers alone would be other settings
    where the options have changed.

    Args:
        choices: The number of each tensor's option; empty before the first decision.
        options: Each tensor's options.
    """
    if not choices:
        return {}
    return {"chosen": [repr(own[number]) for own, number in zip(options, choices, strict=True)]}


def choices_from(state: Mapping[str, Any], options: Mapping[str, Sequence[Compressor]]) -> list[int]:
    """Return the choices of a state as numbers of these options, which may be others than when it was saved.

    Args:
        state: A state with ``choices``, and with what :func:`choices_state` adds; without that, numbers are taken as
            they are.
        options: Each tensor's options, by name.

    Raises:
        InvalidArgument: The state has a setting that is not among a tensor's options, or is of other tensors.
    """
    choices, counts = list(state["choices"]), [len(own) for own in options.values()]
    if not choices:
        return choices
    chosen = state.get("chosen")
    if chosen is None:
        if len(choices) != len(counts) or not all(0 <= n < count for n, count in zip(choices, counts, strict=True)):
            raise InvalidArgument(
                f"the state must be for the same settings and tensors: it chooses the options {choices!r:.80}, "
                f"and the tensors have {counts!r:.80} options"
            )
        return choices
    if not isinstance(chosen, list) or len(chosen) != len(options):
        raise InvalidArgument(f"the state must be for the same {len(options)} tensors, but it chose {chosen!r:.80}")
    numbers = []
    for (name, own), setting in zip(options.items(), chosen, strict=True):
        texts = list(map(repr, own))
        if setting not in texts:
            raise InvalidArgument(
                f"the state has chosen {setting} for {name!r}, which is none of the settings from {texts[0]} to "
                f"{texts[-1]} that this controller has for it: make the controller as it was when the state was "
                "saved, or load no state"
            )
        numbers.append(texts.index(setting))
    return numbers


def check_settings(name: str, settings: Sequence[Compressor]) -> None:
    """Raise InvalidArgument unless a field ``name`` holds nothing but compressors."""
    for setting in settings:
        if not isinstance(setting, Compressor):
            raise InvalidArgument(f"{name} must be a tuple of compressors, such as PowerSGD(4), not of {setting!r:.80}")


def check_source(source: str) -> None:
    """Raise InvalidArgument for anything but one of ``SOURCES``."""
    check_choice("source", source, SOURCES)
