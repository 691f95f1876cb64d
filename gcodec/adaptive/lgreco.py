"""L-GreCo chooses settings layer by layer, at min cost for the error of a uniform setting.

Alimohammadi et al., MLSys 2024, Algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from ..compressors.casts import Dense
from ..compressors.contract import Compressor, check_whole
from ..errors import InvalidArgument, check_choice
from .accordion import Accordion
from .contract import Planner, Settings, Shapes, check_settings, check_source, choices_from, choices_state
from .families import METHODS, Range, errors_of
from .knapsack import discretized, solve
from .setting_costs import Bytes, Cost

METRICS = ("squared", "plain")


@dataclass
class LGreCo(Planner):
    """Chooses a setting for each tensor at the end of every period: the cheapest ones that meet an error budget.

    The budget is the sum of the errors that the reference settings make. Errors are measured on gradients accumulated
    over the period.

    Attributes:
        reference: A setting that is known to train well; all tensors have it before the first decision.
        range: Range of settings around the reference.
        others: Further families, given by a setting of each, with the same range around it: every tensor then gets the
            best of all (the paper's future work).
        cost: Cost of a setting.
        period: Steps between decisions.
        bins: Number of bins of the budget, the paper's D.
        metric: "squared" L2 errors, for which the paper has a theorem, or "plain" ones, as in its code.
        method: How errors of low ranks are found, see :func:`~gcodec.adaptive.families.errors_of`.
        steps: Steps of power iteration for that.
        warmup: Steps at the start in which gradients are sent dense.
        accordion: Decides tensor by tensor between two settings of the reference's family, which then are the
            references (section 5.3); its own period has no meaning here.
        source: Gradients to decide from, see :class:`~gcodec.adaptive.contract.Planner`.
        choices: Number of each tensor's setting among its options; empty before the first decision.
    """

    kind: ClassVar[str] = "LGreCo"
    reference: Compressor
    range: Range = Range()  # noqa: RUF009 - frozen
    others: tuple[Compressor, ...] = ()
    cost: Cost = Bytes()  # noqa: RUF009 - frozen
    period: int = 500
    bins: int = 10000
    metric: str = "squared"
    method: str = "auto"
    steps: int = 5
    warmup: int = 0
    accordion: Accordion | None = None
    source: str = "average"
    changing: ClassVar[tuple[str, ...]] = ("choices",)
    choices: list[int] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, minimum in (("period", 1), ("bins", 1), ("steps", 1), ("warmup", 0)):
            check_whole(name, getattr(self, name), minimum)
        check_source(self.source)
        check_choice("metric", self.metric, METRICS)
        check_choice("method", self.method, METHODS)
        check_settings("others", self.others)
        for family in (self.reference, *self.others):
            _ = family.value  # raises where there is no knob
        if self.accordion is not None:
            for setting in (self.accordion.mild, self.accordion.harsh):
                if setting != self.reference.at(_number(setting)):
                    raise InvalidArgument(
                        f"accordion's settings must differ from reference={self.reference!r} in the knob alone, "
                        f"unlike {setting!r}"
                    )

    def start(self, shapes: Shapes, size: int) -> None:
        super().start(shapes, size)
        if self.accordion is not None:
            self.accordion.start(shapes, size)
        self.options = {name: self._options(shape) for name, shape in shapes.items()}
        self._costs()  # raises now what it would raise in the first decision

    def _options(self, shape: Sequence[int]) -> list[Compressor]:
        """Return the settings that a tensor can have, the reference's family first."""
        options = self.range.settings(self.reference, shape)
        if self.accordion is not None:
            options += [setting for setting in (self.accordion.mild, self.accordion.harsh) if setting not in options]
        for other in self.others:
            options += [setting for setting in self.range.settings(other, shape) if setting not in options]
        return options

    def possible(self) -> list[Compressor]:
        return [setting for options in self.options.values() for setting in options]

    def settings(self, step: int, rate: float | None) -> Settings:
        references = self._references() if self.accordion is None else self.accordion.settings(step, rate)
        if step < self.warmup:
            return dict.fromkeys(self.shapes, Dense())
        if not self.choices or (self.accordion is not None and self.accordion.dropped):
            return references
        return {name: self.options[name][choice] for name, choice in zip(self.shapes, self.choices, strict=True)}

    def _references(self) -> Settings:
        return dict.fromkeys(self.shapes, self.reference)

    @property
    def n_numbers(self) -> int:
        return len(self.shapes) * (1 if self.accordion is None else 2)

    def decide(self, means: Mapping[str, torch.Tensor]) -> list[float]:
        """Return the number of each tensor's setting among its options; with Accordion its norms come first.

        Where a mean is not finite, the settings stay as they are.
        """
        references, norms = self._references(), list[float]()
        if self.accordion is not None:
            norms = self.accordion.decide(means)
            critical = self.accordion.regimes(norms)
            references = {name: self.accordion.mild if critical[name] else self.accordion.harsh for name in self.shapes}
        return [*norms, *self._decide(means, references)]

    def _decide(self, means: Mapping[str, torch.Tensor], references: Settings) -> list[int]:
        errors = [errors_of(self.options[name], means[name], self.method, self.steps) for name in self.shapes]
        if not all(bool(np.isfinite(error).all()) for error in errors):
            return self.choices or self._numbers(references)
        if self.metric == "plain":
            errors = [np.sqrt(error) for error in errors]
        bins, budget = discretized(errors, self._numbers(references), self.bins)
        return solve(bins, self._costs(), budget)

    def _costs(self) -> list[np.ndarray]:
        """Return the cost of each tensor's options, float64[n_options]."""
        return [
            np.array([self.cost.of(name, shape, setting) for setting in self.options[name]])
            for name, shape in self.shapes.items()
        ]

    def _numbers(self, settings: Settings) -> list[int]:
        return [self.options[name].index(settings[name]) for name in self.shapes]

    def apply(self, numbers: Sequence[float]) -> None:
        if self.accordion is not None:
            self.accordion.apply(numbers[: len(self.shapes)])
        self.choices = [int(number) for number in numbers[-len(self.shapes) :]]

    def state_dict(self) -> dict[str, object]:
        state = super().state_dict()
        if self.choices:
            state |= choices_state(self.choices, [self.options[name] for name in self.shapes])
        return state if self.accordion is None else {**state, "accordion": self.accordion.state_dict()}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        super().load_state_dict(state)
        if self.choices:
            self.choices = choices_from(state, {name: self.options[name] for name in self.shapes})
        if self.accordion is not None:
            accordion_state = state.get("accordion")
            self.accordion.load_state_dict(accordion_state if isinstance(accordion_state, dict) else {})


def _number(setting: Compressor) -> float:
    value = setting.value
    return value if setting.knob == "density" or not math.isfinite(value) else int(value)
