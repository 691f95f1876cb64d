"""Memory from step to step around a compressor: residuals, momentum, and densities that fall during warm-up."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch

from ..compressors.contract import Compressor, Conversation, Memory, Outcome, Place, check_whole, wide
from ..compressors.outcome import is_finite
from ..errors import InvalidArgument, check_field_types


class Carried(NamedTuple):
    """A gradient with what earlier steps have left of theirs.

    Attributes:
        corrected: The tensor to compress, in the dtype in which sums are made.
        buffer: Memory of the same shape and dtype that the next residual may take, if there is any.
        momentum: The momentum that it came from, if any.
    """

    corrected: torch.Tensor
    buffer: torch.Tensor | None = None
    momentum: torch.Tensor | None = None


def narrowed(corrected: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return what is compressed of a corrected gradient, in the gradient's own type.

    A residual or momentum in float32 may take values of finite gradients beyond the range of float16. These count as
    the greatest number of that range, and what is above it stays in the residual: as infinity they would make this
    average and all later ones NaN, since a residual only shrinks in steps whose average is finite.
    """
    narrow = corrected.to(dtype)
    if corrected.dtype == dtype or is_finite(narrow) or not is_finite(corrected):
        return narrow
    end = torch.finfo(dtype).max
    return corrected.clamp(-end, end).to(dtype)


class Feedback(ABC):
    """A rule for what to compress in a gradient's place, and what to keep for later steps.

    ``before`` changes nothing that is kept, so that a step whose average is not finite can be left out.

    Attributes:
        needs_optimizer: True if :meth:`check` must be called with the optimizer.
    """

    needs_optimizer: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_field_types(self)

    @abstractmethod
    def before(self, gradient: torch.Tensor, memory: Memory, place: Place, in_place: bool = False) -> Carried:
        """Return the tensor to compress in a gradient's place.

        Args:
            gradient: The gradient.
            memory: What is kept of it.
            place: The tensor's name, the rank and the number of ranks.
            in_place: Use the gradient's memory, where that saves some.
        """

    @abstractmethod
    def after(self, carried: Carried, outcome: Outcome, memory: Memory) -> None:
        """Keep what was not sent.

        Args:
            carried: What :meth:`before` returned.
            outcome: What the compressor returned.
            memory: What is kept of the tensor, to be changed.
        """

    def check(self, optimizer: Any) -> None:  # noqa: B027 - most go with any
        """Raise InvalidArgument for an optimizer that this must not be combined with."""


@dataclass(frozen=True)
class ErrorFeedback(Feedback):
    """The residual: what was left out of a gradient is added to the next one.

    It telescopes: on every rank the sum of contributions plus the residual is the sum of gradients, but for rounding,
    whatever the compressor and however often it is changed. Sources: Seide et al., 2014; Karimireddy et al., ICML 2019.

    Attributes:
        decay: The factor of the residual before it is added; less than 1 forgets, and gives up that the sum telescopes.

    Raises:
        InvalidArgument: ``decay`` is out of its range.
    """

    decay: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.decay <= 1:
            raise InvalidArgument(f"decay must be more than 0 and at most 1, not {self.decay}")

    def before(self, gradient: torch.Tensor, memory: Memory, place: Place, in_place: bool = False) -> Carried:
        residual = memory.get("residual")
        if residual is None:
            return Carried(gradient)
        return _added(gradient, residual, self.decay, gradient if in_place else None)

    def after(self, carried: Carried, outcome: Outcome, memory: Memory) -> None:
        _keep_residual(carried, outcome, memory)


@dataclass(frozen=True)
class MomentumCorrection(Feedback):
    """DGC's recipe for SGD with momentum: each rank applies momentum before it accumulates and compresses.

    The optimizer must have no momentum of its own. Without masking and clipping, all that is sent plus the residual is
    the sum of momenta. Source: Lin et al., ICLR 2018. Deviation: gradients are clipped tensor by tensor, where the
    paper has one norm for the whole model, which a hook knows only when it is too late.

    Attributes:
        momentum: The factor of the momentum.
        nesterov: Use Nesterov's momentum.
        masking: Forget the momentum where values were sent.
        clip: A gradient whose L2 norm exceeds clip / sqrt(W) is scaled down to it before anything else; None for no
            clipping. Under DDP a gradient still has the factor of a gradient scaler, which ``clip`` must have, too.

    Raises:
        InvalidArgument: ``momentum`` or ``clip`` is out of its range.
    """

    needs_optimizer: ClassVar[bool] = True
    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.momentum < 1:
            raise InvalidArgument(f"momentum must be at least 0 and less than 1, not {self.momentum}")
        if self.clip is not None and not self.clip > 0:
            raise InvalidArgument(f"clip must be positive, or None, not {self.clip}")

    def before(self, gradient: torch.Tensor, memory: Memory, place: Place, in_place: bool = False) -> Carried:
        buffer = gradient if in_place else None
        gradient = self._clipped(gradient.to(wide(gradient.dtype)), place.size)
        momentum = memory.get("momentum")
        if self.nesterov:
            momentum = (gradient if momentum is None else momentum + gradient) * self.momentum
            step = momentum + gradient
        else:
            momentum = gradient.clone() if momentum is None else torch.add(gradient, momentum, alpha=self.momentum)
            step = momentum
        residual = memory.get("residual")
        if residual is None:
            return Carried(step, None, momentum)
        return _added(step, residual, 1.0, buffer)._replace(momentum=momentum)

    def _clipped(self, gradient: torch.Tensor, size: int) -> torch.Tensor:
        if self.clip is None:
            return gradient
        limit, norm = self.clip / math.sqrt(size), float(torch.linalg.vector_norm(gradient))
        if math.isinf(norm):  # by the sum of squares, perhaps: values from 2**64 on would be clipped to zero
            norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
        return gradient * (limit / norm) if norm > limit else gradient

    def after(self, carried: Carried, outcome: Outcome, memory: Memory) -> None:
        assert carried.momentum is not None
        _keep_residual(carried, outcome, memory)
        momentum = carried.momentum
        if self.masking and outcome.indices is not None:
            momentum = momentum.contiguous()  # indices count in rows, whatever the strides: channels-last ones, perhaps
            momentum.view(-1)[outcome.indices] = 0
        memory["momentum"] = momentum

    def check(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("momentum") or "betas" in group:
                kind = type(optimizer).__name__
                raise InvalidArgument(
                    f"optimizer must have no momentum, as SGD(momentum=0), but is {kind}: the plan applies momentum "
                    "before it compresses"
                )


def _added(step: torch.Tensor, residual: torch.Tensor, share: float, buffer: torch.Tensor | None) -> Carried:
    """Add a share of the residual to a step's gradient.

    The sum goes into ``buffer``, if there is one of the same layout: then the next residual may take the memory of this
    one, and no memory is new, which would cost as much as everything else.
    """
    if buffer is not None and _alike(buffer, residual) and _alike(step, residual):
        return Carried(torch.add(step, residual, alpha=share, out=buffer), residual)
    corrected = torch.add(step, residual.to(wide(step.dtype)), alpha=share)
    return Carried(corrected, corrected)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.stride() == b.stride()


def _keep_residual(carried: Carried, outcome: Outcome, memory: Memory) -> None:
    if outcome.sent is carried.corrected:  # nothing was left out
        memory.pop("residual", None)
    else:
        corrected = carried.corrected  # a first gradient is still of its own type, 16 bits perhaps
        memory["residual"] = outcome.rest(corrected.to(wide(corrected.dtype)), carried.buffer)


@dataclass(frozen=True)
class WarmUp(Compressor):
    """A compressor whose density falls exponentially to its own, in stages.

    With the defaults and a density of 0.1 %, these are 25, 6.3, 1.6 and 0.4 %. Source: Lin et al., ICLR 2018.

    Attributes:
        compressor: The compressor after the warm-up, which must have a density.
        steps: Steps of a stage.
        stages: The number of stages.

    Raises:
        InvalidArgument: An attribute is out of its range, or the compressor has no density.
    """

    compressor: Compressor
    steps: int
    stages: int = 4
    knob: ClassVar[str | None] = "density"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("steps", self.steps)
        check_whole("stages", self.stages, 0)
        if self.compressor.knob != "density":
            raise InvalidArgument(f"compressor must have a density to warm up, which {self.compressor!r} has not")

    def setting(self, step: int) -> Compressor:
        """Return the compressor of a step, counted from 0."""
        stage = step // self.steps
        if stage >= self.stages:
            return self.compressor
        final = self.compressor.value
        return self.compressor.at(final ** ((stage + 1) / (self.stages + 1)))

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        step = int(memory.get("warmup.step", 0))
        memory["warmup.step"] = step + 1
        return (yield from self.setting(step).compress(gradient, memory, place))

    def check_feedback(self) -> None:
        self.compressor.check_feedback()

    @property
    def value(self) -> float:
        return self.compressor.value

    def at(self, value: float) -> Self:
        return replace(self, compressor=self.compressor.at(value))

    def floats(self, shape: Sequence[int]) -> float:
        return self.compressor.floats(shape)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        return self.compressor.payload_bytes(shape, dtype)
