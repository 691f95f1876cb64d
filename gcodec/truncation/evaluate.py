"""Evaluate a formula of :mod:`gcodec.truncation.formulas` on arrays: the binding of the kernels of rules.

Narrow types are widened in pieces that stay in cache. Constants outside of the range in which the kernels' margins hold
move the work to float64, and beyond that leave level 0.

Arrays have any shape; param, grad and state have equal sizes and each float32, float64, float16 or, as uint16 bits,
bfloat16. Level 0 stands where anything is not finite (but a second moment of -inf, which amsgrad's maximum hides from
the step as well), and everywhere when lr is 0, since the optimizer's state still takes the gradient in; the highest
level stands where the gradient is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidArgument, Unsupported
from ..format.ladders import FINE_LADDER, LAYOUTS, MANTISSA_BITS, Array, Ladder, Levels
from ..kernels.core.floats import widen_bfloat16, widen_half
from ..kernels.core.specialized import Specialized
from ..kernels.levels import rules as kernels
from ..kernels.levels.rules import NO_THRESHOLDS, PASS, UNEVEN, UNIT, Thresholds
from ..kernels.levels.terms import (
    N_ACCUMULATOR,
    N_ADAM,
    N_DELTA,
    N_LINEAR,
    N_MARGIN,
    N_PEAK,
    U_MARGIN,
    AccumulatorConstants,
    AdamConstants,
    DeltaConstants,
    Limits,
    LinearConstants,
    PeakConstants,
)
from ..memory import Borrowed

#: Sizes of constants for which the kernels' margins hold: from the reciprocal of this to this.
_RANGE = {np.float32: 2.0**100, np.float64: 2.0**900}
#: Momentum that adds less to the parameter than so many times the smallest number in that range is left out. Times the
#: least D, which is an eps such as 1e-10, that is no denormal number, which would slow down every value by RMSprop.
_FAINT = 2.0**10
#: Beyond half of this, a sum of squares may be beyond the range of the type that keeps it.
_MAX_SQUARE = {"float16": 65504.0, "float64": 2.0**1023}
_PIECE = 1 << 14  #: values that are widened at a time

Constants = LinearConstants | AccumulatorConstants | AdamConstants | DeltaConstants | PeakConstants


@dataclass(frozen=True)
class Policy:
    """The assumptions that a rule may make about the gradient it is shown.

    Attributes:
        ladder: Drops per level; None for ``FINE_LADDER`` of the gradient's type.
        in_group: Other workers' gradients will join this one before the step. An adaptive method's new second moment is
            then unknown, and bounded below by the old one. False says that this is the gradient the optimizer will see.
        scale: The rule counts |grad| * scale / loss_scale as this worker's gradient. 1 suits a mean over W workers,
            where each shows its own *undivided* gradient: their errors enter divided by W, and so add up to the bound
            once. W suits a sum over W workers, and a mean whose terms were divided by W before they came here.
        loss_scale: The factor on the loss (mixed precision) that is still in ``grad`` and that the step divides by.

    Raises:
        InvalidArgument: Scales that are not positive and finite numbers, or a field of another type.
    """

    ladder: Ladder | None = None
    in_group: bool = True
    scale: float = 1.0
    loss_scale: float = 1.0

    def __post_init__(self) -> None:
        # Formulas are kept by their policy, and a tensor whose value is changed in place is equal to itself.
        for name, value in (("scale", self.scale), ("loss_scale", self.loss_scale)):
            if type(value) is not float or not 0 < value < math.inf:
                object.__setattr__(self, name, _number(name, value))
        if not 0 < self.gain < math.inf:
            raise InvalidArgument(f"scale / loss_scale must be positive and finite, not {self.gain}")
        if not isinstance(self.in_group, (bool, np.bool_)):
            raise InvalidArgument(f"in_group must be True or False, not {self.in_group!r:.80}")
        if not (self.ladder is None or isinstance(self.ladder, Ladder)):
            raise InvalidArgument(f"ladder must be a gcodec.Ladder, not {self.ladder!r:.80}")

    @property
    def gain(self) -> float:
        """Return scale / loss_scale."""
        return self.scale / self.loss_scale

    def ladder_for(self, name: str) -> Ladder:
        """Return the ladder for gradients of this type. Raises InvalidArgument if it drops more bits than there are."""
        ladder = FINE_LADDER[name] if self.ladder is None else self.ladder
        ladder.check_fits(name)
        return ladder


def _number(name: str, value: Any) -> float:
    """Return a positive, finite number as a float, that of a tensor of one value, too. Raises InvalidArgument for
    anything else."""
    try:
        if not isinstance(value, (str, bytes)) and 0 < (number := float(value)) < math.inf:
            return number
    except (TypeError, ValueError, OverflowError, RuntimeError, NotImplementedError):
        pass
    raise InvalidArgument(f"{name} must be a positive, finite number, not {value!r:.80}")


DEFAULT = Policy()


class RuleKernel(NamedTuple):
    """The kernels of one kind of rule: an optimizer whose rule has these terms needs a formula, and no kernel.

    Attributes:
        of_one: Levels of one tensor, float32 or float64; known by their type, which arrays there are, and whether
            thresholds are evenly spaced.
        of_many: Levels of many float32 tensors that lie in one buffer.
        n_constants: The length of ``k``, see :mod:`gcodec.kernels.levels.terms`.
        n_arrays: The arrays that ``of_one`` takes: param, grad and state; the last of the state may be missing.
    """

    of_one: Specialized
    of_many: Callable[..., None]
    n_constants: int
    n_arrays: int


LINEAR = RuleKernel(Specialized(kernels.linear), kernels.linear_of_many, N_LINEAR, 3)
ACCUMULATOR = RuleKernel(Specialized(kernels.accumulator), kernels.accumulator_of_many, N_ACCUMULATOR, 4)
ADAM = RuleKernel(Specialized(kernels.adam), kernels.adam_of_many, N_ADAM, 5)
DELTA = RuleKernel(Specialized(kernels.delta), kernels.delta_of_many, N_DELTA, 4)
PEAK = RuleKernel(Specialized(kernels.peak), kernels.peak_of_many, N_PEAK, 4)


class Formula(NamedTuple):
    """A rule with its hyperparameters filled in.

    Attributes:
        kernel: The terms that it has.
        rate: The learning rate; where it is 0, all levels are 0.
        constants: The rule's own constants, in float64.
    """

    kernel: RuleKernel
    rate: float
    constants: Constants


def dtype_name(array: Array) -> str:
    """Return the key of ``LAYOUTS`` for an array; numpy has no bfloat16, so uint16 stands for its bits.

    Raises:
        InvalidArgument: It is no numpy array, or one of another type, or not in native byte order.
    """
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(f"need a numpy array, not a {type(array).__name__}")
    return _name_of(array.dtype)


@lru_cache(16)
def _name_of(dtype: np.dtype[Any]) -> str:
    name = "bfloat16" if dtype == np.uint16 else dtype.name
    if name not in LAYOUTS or not dtype.isnative:
        raise InvalidArgument(f"need float32, float64, float16 or uint16 (bfloat16's bits), not {dtype!r}")
    return name


def run_formula(formula: Formula, arrays: Sequence[Array | None], policy: Policy, out: Levels | None) -> Levels:
    """Choose levels by a formula.

    Args:
        formula: Made by one of the functions of :mod:`gcodec.truncation.formulas`.
        arrays: (param, grad, state ...) as its kernel takes them; the last of the state may be missing or None.
        policy: What the rule may assume.
        out: Where to write the levels, uint8[grad.size]; a new array if None.

    Returns:
        Level indices, uint8, in the gradient's shape.

    Raises:
        InvalidArgument: Arrays of different sizes, of a type without a ladder, or an ``out`` that does not fit.
    """
    kernel, rate, constants = formula
    arrays = (*arrays, *(None,) * (kernel.n_arrays - len(arrays)))
    param, grad = arrays[0], arrays[1]
    assert param is not None and grad is not None
    out = _checked_out(arrays, grad, out)
    names = [dtype_name(a) for a in arrays if a is not None]
    work = _working_type("float64" in names, constants)
    if rate == 0 or work is None:
        out.fill(0)
        return out
    k, exponents = _prepared(work, constants, policy.ladder_for(names[1]), names[0], names[1], _narrowest(names))
    flat, levels = [None if a is None else _flat(a) for a in arrays], _flat(out)
    if all(a is None or a.dtype == work for a in flat):
        _count_levels(kernel.of_one, levels, flat, k, exponents, work)
        return out
    scratch = Borrowed()
    for start in range(0, grad.size, _PIECE):
        part = [
            None if a is None else _widened(a[start : start + _PIECE], work, i, scratch) for i, a in enumerate(flat)
        ]
        _count_levels(kernel.of_one, levels[start : start + _PIECE], part, k, exponents, work)
    scratch.give_back()
    return out


def terms_of(formula: Formula, policy: Policy) -> tuple[tuple[Any, ...], Any, Any] | None:
    """Return a formula's arguments for its kernel for many tensors.

    Returns:
        A row of ``constants``, ``even`` and ``top`` of :mod:`gcodec.kernels.levels.rules`. None where that kernel will
        not do: unevenly spaced thresholds, constants beyond float32's range, a learning rate of 0.
    """
    if formula.rate == 0 or _working_type(False, formula.constants) is not np.float32:
        return None
    k, exponents = _prepared(np.float32, formula.constants, policy.ladder_for("float32"), *("float32",) * 3)
    even = _evenly(exponents)
    return None if even is None else (k, even, np.uint8(len(exponents)))


def float32_terms(
    formula: Formula, policy: Policy, param: str, grad: str, state: Sequence[str]
) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """Return a formula's constants in float32 and the exponents of its thresholds.

    Args:
        formula: Made by one of the functions of :mod:`gcodec.truncation.formulas`.
        policy: What the rule may assume.
        param: Name of the parameter's type.
        grad: Name of the gradient's type.
        state: Names of the types of its state.

    Returns:
        ``k`` and the exponents; None where all levels are 0.

    Raises:
        Unsupported: Constants beyond float32's range.
    """
    if formula.rate == 0 or _working_type(False, formula.constants) is None:
        return None
    if _working_type(False, formula.constants) is not np.float32:
        raise Unsupported(f"constants beyond float32's range, {formula.constants}: choose the levels on the host")
    ladder = policy.ladder_for(grad)
    return _prepared(np.float32, formula.constants, ladder, param, grad, _narrowest([param, grad, *state]))


def _narrowest(names: Sequence[str]) -> str:
    """Return which of the types of parameter and state has the smallest range, of those of parameter, gradient and
    state; state that is missing will be of the parameter's."""
    held = (names[0], *names[2:])
    return "float16" if "float16" in held else "float64" if set(held) == {"float64"} else "float32"


@lru_cache(256)
def _prepared(
    work: Any, constants: Constants, ladder: Ladder, param: str, grad: str, state: str
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return a kernel's ``k`` and the exponents of the thresholds for types by name. Cached: a step has many tensors of
    few rules. ``state``: the type of the state, or the parameter's if that has a smaller range."""
    shift, floor = MANTISSA_BITS[param] - MANTISSA_BITS[grad], 1 / _RANGE[work]
    carry, slope = constants.carry, constants.slope
    normal, tiny = float(np.finfo(work).tiny), LAYOUTS[grad].smallest_normal
    felt = floor / slope * U_MARGIN if slope else 0.0
    faint = max(_FAINT * floor / carry, normal) if carry else normal
    # Rounding at most doubles a gradient, and (2 * max_grad)**2 + max_past is within the range.
    largest = _MAX_SQUARE.get(state, 2.0**127)
    gain = 1.0 if isinstance(constants, LinearConstants) else abs(constants.sign)
    limits = Limits(
        floor=floor,
        min_grad=max(tiny, felt),
        raised=max(2 * tiny, felt),
        faint=faint,
        lost=abs(carry) * faint * U_MARGIN,
        max_grad=math.sqrt(largest) / 4 / gain,
        max_past=largest / 2,
        margin=N_MARGIN,
        zero=0.0,
        one=1.0,
    )
    with np.errstate(over="ignore"):  # a limit beyond the working type is none
        k = tuple(work(c) for c in (*constants, *limits))
    return k, tuple(n + shift for n in ladder.drops[1:])


def _count_levels(
    function: Specialized,
    out: Levels,
    part: Sequence[Array | None],
    k: tuple[Any, ...],
    exponents: tuple[int, ...],
    work: Any,
) -> None:
    """Fill ``out`` with the number of thresholds passed: by a division where they are evenly spaced, else counted seven
    at a time, ladders of 9 to 16 levels in two or three passes."""
    even = _evenly(exponents) if work is np.float32 else None
    key = work, even is None, *(a is None for a in part)
    if even is not None:
        function(key, out, *part, k, Thresholds(NO_THRESHOLDS, even, np.uint8(len(exponents))))
        return
    for first in range(0, max(len(exponents), 1), PASS):
        real = [math.ldexp(1.0, e) for e in exponents[first : first + PASS]]
        t = tuple(work(x) for x in (*real, *(math.inf,) * (PASS - len(real))))
        target = np.empty_like(out) if first else out
        function(key, target, *part, k, Thresholds(t, UNEVEN, np.uint8(len(real))))
        if first:
            out += target


@lru_cache(64)
def _evenly(exponents: tuple[int, ...]) -> tuple[np.int32, np.int32] | None:
    """Return ``even`` of :mod:`gcodec.kernels.levels.rules` for evenly spaced exponents, None for others. None, too,
    where one is negative, as a narrow parameter's are: infinity and NaN count as a little greater than all other
    numbers there, and must pass none."""
    spaces = {b - a for a, b in pairwise(exponents)} or {1}
    if not exponents or exponents[0] < 0 or len(spaces) > 1:
        return None
    (space,) = spaces
    return np.int32(exponents[0] - space), np.int32(UNIT // space + 1)


def _checked_out(arrays: Sequence[Array | None], grad: Array, out: Any) -> Levels:
    """Return ``out``, or a new array in its place. Raises InvalidArgument unless all sizes agree."""
    if any(a is not None and a.size != grad.size for a in arrays):
        raise InvalidArgument(f"param, grad and state differ in size: {[a.size for a in arrays if a is not None]}")
    if out is None:
        return np.empty(grad.shape, np.uint8)
    fits = isinstance(out, np.ndarray) and out.dtype == np.uint8 and out.size == grad.size
    if not (fits and out.flags.c_contiguous and out.flags.writeable):
        raise InvalidArgument(f"out must be a writable, C-contiguous uint8 array of {grad.size} values")
    levels: Levels = out
    return levels


@lru_cache(256)
def _working_type(wide: bool, constants: Constants) -> Any:
    """Return the narrowest float type whose margins hold for these constants; None if float64's do not. ``wide``: an
    array is float64."""
    for work in (np.float64,) if wide else (np.float32, np.float64):
        if all(c == 0 or 1 / _RANGE[work] <= abs(c) <= _RANGE[work] for c in constants):
            return work
    return None


def _flat(array: Array) -> Array:
    """Return an array flat and aligned, without a copy where possible; never one of a subclass: a numpy.matrix has two
    dimensions when it is flat, and kernels would read what is not theirs."""
    flags = array.flags
    fit = array.ndim == 1 and flags.c_contiguous and flags.aligned and type(array) is np.ndarray
    return array if fit else np.require(np.asarray(array), requirements=["C", "A"]).reshape(-1)


def _widened(array: Array, work: Any, number: int, scratch: Borrowed) -> Array:
    """Return at most _PIECE values of an array in the working type, exactly.

    Args:
        number: The array's, of those that are widened together.
        scratch: Where the memory is from, and stays.
    """
    if array.dtype == work:
        return array
    if array.dtype == np.float32:
        return _doubled(array)
    wide: Array = scratch.take(("widened", number), lambda: np.empty(_PIECE, np.float32))[: len(array)]
    is_half = array.dtype == np.float16
    (_widen_half if is_half else _widen_bfloat16)(None, array.view(np.uint16), wide)
    return wide if work is np.float32 else _doubled(wide)


def _doubled(array: Array) -> Array:
    """Return a float32 array as float64, without numpy's warning of signaling NaNs."""
    with np.errstate(invalid="ignore"):
        wide: Array = array.astype(np.float64)
    return wide


_widen_half, _widen_bfloat16 = Specialized(widen_half), Specialized(widen_bfloat16)
