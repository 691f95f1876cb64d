"""The modes of a compressed all-reduce, which say how it may change the values: small frozen objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..averaging.averager import NAMED_PLANS
from ..dtypes import DType
from ..errors import InvalidArgument, Unsupported, check_field_types, check_int
from ..format import modes as bit_layouts
from ..format.ladders import FINE_LADDER, Ladder
from ..format.modes import BitLayout
from ..truncation.evaluate import Policy
from ..truncation.formulas import ADVICE
from ..truncation.optimizers import check_has_rule

#: The 16-bit types whose accuracy may be asked for, by their mantissa bits.
_BITS_OF = {7: "bf16", 10: "fp16"}
_ADVICE = "use mode=Lossless() or mode=FixedBits(k) instead"


@dataclass(frozen=True)
class Lossless:
    """The result is the sum of all ranks' values in the order of ranks, bit for bit."""

    def bit_layout(self, dtype: DType) -> BitLayout:
        """Return which bits frames of this type keep."""
        return bit_layouts.lossless(dtype)

    @property
    def terms(self) -> tuple[Any, ...]:
        """The facts of this mode that must be equal on all ranks."""
        return ("lossless",)

    @property
    def accuracy(self) -> str:
        """The accuracy in a user's words."""
        return "exact"


@dataclass(frozen=True)
class FixedBits:
    """Every encoding rounds values to ``mantissa_bits`` mantissa bits, to nearest even.

    A value is encoded once between two ranks, twice among more; each time it moves by at most 2**-(mantissa_bits + 1)
    of itself. A type with no more mantissa bits than that stays lossless.

    Attributes:
        mantissa_bits: Explicit mantissa bits that are kept, at least 1.

    Raises:
        InvalidArgument: ``mantissa_bits`` is not a positive integer.
    """

    mantissa_bits: int

    def __post_init__(self) -> None:
        check_int("mantissa_bits", self.mantissa_bits, 1)

    def bit_layout(self, dtype: DType) -> BitLayout:
        """Return which bits frames of this type keep."""
        return bit_layouts.fixed(dtype, min(self.mantissa_bits, dtype.mantissa_bits))

    @property
    def terms(self) -> tuple[Any, ...]:
        """The facts of this mode that must be equal on all ranks."""
        return ("fixed", self.mantissa_bits)

    @property
    def accuracy(self) -> str:
        """The accuracy in a user's words: that of a 16-bit type, or a number of bits."""
        return _BITS_OF.get(self.mantissa_bits, f"{self.mantissa_bits} mantissa bits")


@dataclass(frozen=True, eq=False)
class NearLossless:
    """Bits that cannot change the optimizer's next step are rounded away (GComp, Table 2).

    docs/algorithms/near-lossless.md has the rule and the bound.

    Attributes:
        optimizer: The live torch optimizer that will take the step, or several; their hyperparameters and state are
            read anew at every step. Parameters that none of them holds keep all bits of normal values.
        ladder: Drops per level; one for all types, or by type name; default ``FINE_LADDER``. Level 0 must drop nothing.
        loss_scale: The factor on the loss that is still in the gradients, or a function that returns it, such as a
            gradient scaler's ``get_scale``.
        scale: Stretches the rule: 1 (default) promises the codec's bound once for all ranks' contributions together
            and, among more than two ranks, once for the sum; 2 promises it once for both; 0.5 twice for each.

    Raises:
        Unsupported: The optimizer has no rule.
        InvalidArgument: There is no optimizer, level 0 of a ladder drops bits, or a scale is not positive and finite.
    """

    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
    ladder: Ladder | Mapping[str, Ladder] | None = None
    loss_scale: float | Callable[[], float] = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.optimizers or not all(hasattr(each, "param_groups") for each in self.optimizers):
            raise InvalidArgument(
                f"optimizer must be the optimizer that takes the step, or a list of them, not {self.optimizer!r:.80}"
            )
        for optimizer in self.optimizers:
            try:
                check_has_rule(optimizer)
            except Unsupported as error:  # its advice is in the words of gcodec.encode
                raise Unsupported(str(error).replace(ADVICE, _ADVICE)) from None
        check_field_types(self)
        Policy(scale=self.scale, loss_scale=1.0 if callable(self.loss_scale) else self.loss_scale)  # checks them
        ladders = [self.ladder] if isinstance(self.ladder, Ladder) else list((self.ladder or {}).values())
        for ladder in ladders:
            if not isinstance(ladder, Ladder):
                raise InvalidArgument(f"ladder must map names of types to gcodec.Ladder, not to {ladder!r:.80}")
        if any(ladder.drops[0] for ladder in ladders):
            raise InvalidArgument("level 0 of a ladder must drop 0 bits, as it is for values that need all of them")

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizers, also where there is only one."""
        return tuple(self.optimizer) if isinstance(self.optimizer, Sequence) else (self.optimizer,)

    @property
    def params(self) -> list[torch.Tensor]:
        """The parameters that the optimizers hold."""
        return [param for optimizer in self.optimizers for group in optimizer.param_groups for param in group["params"]]

    def ladder_of(self, dtype: DType) -> Ladder:
        """Return the ladder for gradients of a type. Raises InvalidArgument where there is none."""
        if isinstance(self.ladder, Ladder):
            return self.ladder
        ladders = self.ladder or FINE_LADDER
        if dtype.name not in ladders:
            raise InvalidArgument(f"ladder must have an entry for {dtype.name}; it has only {sorted(ladders)}")
        return ladders[dtype.name]

    def bit_layout(self, dtype: DType) -> BitLayout:
        """Return which bits frames of this type keep."""
        return bit_layouts.ladder(dtype, self.ladder_of(dtype))

    @property
    def terms(self) -> tuple[Any, ...]:
        """The facts of this mode that must be equal on all ranks. Levels may differ: each frame tells its own."""
        return ("near", repr(self.ladder))

    @property
    def accuracy(self) -> str:
        """The accuracy in a user's words."""
        return "optimizer"


Mode = Lossless | FixedBits | NearLossless


def option_of(mode: Any) -> object:
    """Return what ranks compare of a mode before the first all-reduce; its repr is what a user would write.

    Args:
        mode: The mode, one of DiLoCo's included.
    """
    if not isinstance(mode, NearLossless):
        return mode
    # What else there is may differ: each frame tells its levels.
    return f"NearLossless(optimizer{'' if mode.ladder is None else f', ladder={mode.ladder!r}'})"


def cast_of(mode: Any) -> str | None:
    """Return the name in torch of the 16-bit type whose accuracy is asked for by its word, "bf16" or "fp16"; or None.

    Args:
        mode: What a user gave for a mode.
    """
    return {"bf16": "bfloat16", "fp16": "float16"}.get(mode) if isinstance(mode, str) else None


def mode_of(mode: Any, besides: str = "", names: Iterable[str] = ()) -> Mode:
    """Return a mode, given itself, by an accuracy in a user's words, or as None for lossless mode.

    The accuracies are "exact", which loses nothing, and "bf16" and "fp16", which lose no more than torch's compression
    hooks of these names: each rank's values are rounded once, and their sum, in float32, once.

    Args:
        besides: What the caller also takes, for the error.

    Raises:
        InvalidArgument: Anything else.
    """
    named: dict[str, Mode] = {"exact": Lossless(), **{name: FixedBits(bits) for bits, name in _BITS_OF.items()}}
    if mode is None:
        return Lossless()
    if isinstance(mode, str) and mode in named:
        return named[mode]
    if isinstance(mode, str) and mode in NAMED_PLANS:
        raise InvalidArgument(
            f"mode={mode!r} needs error feedback: make the hook's state by CompressedGradients(model, {mode!r})"
        )
    if not isinstance(mode, Mode):
        raise InvalidArgument(
            f"mode must be Lossless(), FixedBits(k), NearLossless(optimizer){besides and f', {besides}'} or one of "
            f"{', '.join(map(repr, [*named, *names]))}, not {mode!r:.80}"
        )
    return mode


def mode_by_optimizer(mode: Any, optimizer: Any) -> Mode:
    """Return near-lossless mode by an optimizer if there is one, else ``mode_of(mode)``.

    Args:
        mode: As for :func:`mode_of`; "optimizer" means near-lossless mode.
        optimizer: The torch optimizer (or several) that takes the step, or None.

    Raises:
        InvalidArgument: The arguments contradict each other.
        Unsupported: The optimizer has no rule.
    """
    by_optimizer = isinstance(mode, str) and mode == "optimizer"
    if optimizer is None:
        if by_optimizer:
            raise InvalidArgument("optimizer must be given with mode='optimizer': it is the one that takes the step")
        return mode_of(mode)
    if mode is not None and not by_optimizer:
        raise InvalidArgument(
            f"optimizer and mode={mode!r:.80} must not both be given: optimizer=o means mode=NearLossless(o)"
        )
    return NearLossless(optimizer)
