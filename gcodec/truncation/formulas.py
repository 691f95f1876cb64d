"""Optimizer-aware truncation: how many mantissa bits of a gradient the next optimizer step cannot feel.

GComp (SoCC '24, mantissa compression and Table 2) sorts gradient values into a few *levels*, each dropping a fixed
number of mantissa bits, by how many times over the parameter outweighs the gradient's term in its update. Here are
one formula per optimizer on plain arrays; ``gcodec.truncation.optimizers`` reads them out of a live ``torch.optim``
object.

The rule. Let N be the parameter after the step but for this gradient's term, and U the size of that term (for the
adaptive methods: |g| times a bound on the update's slope). With p the mantissa bits of the parameter's and of the
gradient's type, a value gets the highest level l whose drop n_l satisfies, without a division,

    2**(n_l + p_param - p_grad) * U <= |N|

Rounding to nearest at bit n moves a normal g by at most 2**(n - p_grad - 1) |g|, hence the parameter by at most
2**-(p_param + 1) |N|; plain truncation by at most twice that. Level 0 is the answer where no level satisfies the
rule, so a ladder whose level 0 drops bits does not carry the bound there. Source and deviations from Table 2:
docs/algorithms.md, "Optimizer-aware truncation".

Arrays have any shape; param, grad and state have equal sizes and each float32, float64, float16 or, as uint16 bits,
bfloat16. Hyperparameters are named as in ``torch.optim``. ``out`` is an optional uint8 array; the result has the
gradient's shape. Level 0 stands where anything is not finite, and everywhere when lr is 0, since the optimizer's
state still takes the gradient in; the highest level stands where the gradient is zero.
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
from ..format.ladders import FINE_LADDER, LAYOUTS, MANTISSA_BITS, Array, Ladder, Levels, dtype_name
from ..kernels.levels import rules as kernels
from ..kernels.levels.rules import NO_THRESHOLDS, PASS, UNEVEN, UNIT, Thresholds
from ..kernels.levels.terms import (
    N_ACCUMULATOR,
    N_ADAM,
    N_LINEAR,
    N_MARGIN,
    U_MARGIN,
    AccumulatorConstants,
    AdamConstants,
    Limits,
    LinearConstants,
)


@dataclass(frozen=True)
class Policy:
    """The assumptions that a rule may make about the gradient it is shown.

    Attributes:
        ladder: drops per level; None for ``FINE_LADDER`` of the gradient's type.
        in_group: other workers' gradients will join this one before the step. An adaptive method's new second moment is
            then unknown, and bounded below by the old one. False says that this is the gradient the optimizer will see.
        scale: the rule counts |grad| * scale / loss_scale as this worker's gradient. 1 suits a mean over W workers,
            where each shows its own *undivided* gradient: their errors enter divided by W, and so add up to the bound
            once. W suits a sum over W workers, and a mean whose terms were divided by W before they came here.
        loss_scale: the factor on the loss (mixed precision) that is still in ``grad`` and that the step divides by.
    """

    ladder: Ladder | None = None
    in_group: bool = True
    scale: float = 1.0
    loss_scale: float = 1.0

    @property
    def gain(self) -> float:
        """Return scale / loss_scale. Raises InvalidArgument unless both are positive and finite."""
        if not (0 < self.scale < math.inf and 0 < self.loss_scale < math.inf):
            raise InvalidArgument(f"scale and loss_scale must be positive: {self.scale}, {self.loss_scale}")
        return self.scale / self.loss_scale

    def ladder_for(self, name: str) -> Ladder:
        """Return the ladder for gradients of this type. Raises InvalidArgument if it drops more bits than there are."""
        ladder = FINE_LADDER[name] if self.ladder is None else self.ladder
        ladder.check_fits(name)
        return ladder


DEFAULT = Policy()


# The binding of the kernels. Narrow types are widened in pieces that stay in cache; constants outside of the range in
# which the kernels' margins hold move the work to float64, and beyond that leave level 0.
_RANGE = {np.float32: 2.0**100, np.float64: 2.0**900}
_FAINT = 2.0**-20  #: of the smallest number in that range: what momentum adds to the parameter and is left out
_PIECE = 1 << 16  #: values that are widened at a time

Constants = LinearConstants | AccumulatorConstants | AdamConstants


class RuleKernel(NamedTuple):
    """The kernels of one kind of rule: an optimizer whose rule has these terms needs a formula, and no kernel.

    Attributes:
        of_one: levels of one tensor, float32 or float64.
        of_many: levels of many float32 tensors that lie in one buffer.
        n_constants: the length of ``k``, see :mod:`gcodec.kernels.levels.terms`.
        n_arrays: the arrays that ``of_one`` takes: param, grad and state; the last of the state may be missing.
    """

    of_one: Callable[..., None]
    of_many: Callable[..., None]
    n_constants: int
    n_arrays: int


LINEAR = RuleKernel(kernels.linear, kernels.linear_of_many, N_LINEAR, 3)
ACCUMULATOR = RuleKernel(kernels.accumulator, kernels.accumulator_of_many, N_ACCUMULATOR, 4)
ADAM = RuleKernel(kernels.adam, kernels.adam_of_many, N_ADAM, 5)


class Formula(NamedTuple):
    """A rule with its hyperparameters filled in.

    Attributes:
        kernel: the terms that it has.
        rate: the learning rate; where it is 0, all levels are 0.
        constants: the rule's own constants, in float64.
    """

    kernel: RuleKernel
    rate: float
    constants: Constants


def run_formula(formula: Formula, arrays: Sequence[Array | None], policy: Policy, out: Levels | None) -> Levels:
    """Choose levels by a formula.

    Args:
        formula: of one of the functions below.
        arrays: (param, grad, state ...) as its kernel takes them; the last of the state may be missing or None.
        policy: what the rule may assume.
        out: see the top of this file.

    Returns:
        Level indices, uint8, in the gradient's shape.

    Raises:
        InvalidArgument: arrays of different sizes, of a type without a ladder, or an ``out`` that does not fit.
    """
    kernel, rate, constants = formula
    arrays = (*arrays, *(None,) * (kernel.n_arrays - len(arrays)))
    param, grad = arrays[0], arrays[1]
    assert param is not None and grad is not None
    out = _checked_out(arrays, grad, out)
    wide = "float64" in [dtype_name(a) for a in arrays if a is not None]
    work = _working_type(wide, constants)
    if rate == 0 or work is None:
        out.fill(0)
        return out
    types = (dtype_name(param), dtype_name(grad))
    k, exponents = _prepared(work, constants, policy.ladder_for(types[1]), *types)
    flat = [None if a is None else _readonly(a) for a in arrays]
    piece = _PIECE if any(a is not None and a.dtype != work for a in flat) else max(grad.size, 1)
    for start in range(0, grad.size, piece):
        part = [None if a is None else _widened(a[start : start + piece], work) for a in flat]
        _count_levels(kernel.of_one, out.reshape(-1)[start : start + piece], part, k, exponents, work)
    return out


def terms_of(formula: Formula, policy: Policy) -> tuple[tuple[Any, ...], Any, Any] | None:
    """Return a formula's arguments for its kernel for many tensors.

    Returns:
        A row of ``constants``, ``even`` and ``top`` of :mod:`gcodec.kernels.levels.rules`. None where that kernel will
        not do: unevenly spaced thresholds, constants beyond float32's range, a learning rate of 0.
    """
    if formula.rate == 0 or _working_type(False, formula.constants) is not np.float32:
        return None
    k, exponents = _prepared(np.float32, formula.constants, policy.ladder_for("float32"), "float32", "float32")
    even = _evenly(exponents)
    return None if even is None else (k, even, np.uint8(len(exponents)))


def float32_terms(
    formula: Formula, policy: Policy, param: str, grad: str
) -> tuple[tuple[Any, ...], tuple[int, ...]] | None:
    """Return a formula's constants in float32 and the exponents of its thresholds.

    Args:
        formula: of one of the functions below.
        policy: what the rule may assume.
        param: name of the parameter's type.
        grad: name of the gradient's type.

    Returns:
        ``k`` and the exponents; None where all levels are 0.

    Raises:
        Unsupported: constants beyond float32's range.
    """
    if formula.rate == 0 or _working_type(False, formula.constants) is None:
        return None
    if _working_type(False, formula.constants) is not np.float32:
        raise Unsupported(f"constants beyond float32's range, {formula.constants}: choose the levels on the host")
    ladder = policy.ladder_for(grad)
    return _prepared(np.float32, formula.constants, ladder, param, grad)


@lru_cache(256)
def _prepared(
    work: Any, constants: Constants, ladder: Ladder, param: str, grad: str
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return a kernel's ``k`` and the exponents of the thresholds for types by name. Cached: a step has many tensors of
    few rules."""
    shift, floor = MANTISSA_BITS[param] - MANTISSA_BITS[grad], 1 / _RANGE[work]
    carry, slope = constants.carry, constants.slope
    normal, tiny = float(np.finfo(work).tiny), LAYOUTS[grad].smallest_normal
    felt = floor / slope * U_MARGIN if slope else 0.0
    faint = max(_FAINT * floor / carry, normal) if carry else normal
    limits = Limits(
        floor=floor,
        least=max(tiny, felt),
        double=max(2 * tiny, felt),
        faint=faint,
        lost=abs(carry) * faint * U_MARGIN,
        margin=N_MARGIN,
        zero=0.0,
        one=1.0,
    )
    k = tuple(work(c) for c in (*constants, *limits))
    return k, tuple(n + shift for n in ladder.drops[1:])


def _count_levels(
    function: Callable[..., None],
    out: Levels,
    part: Sequence[Array | None],
    k: tuple[Any, ...],
    exponents: tuple[int, ...],
    work: Any,
) -> None:
    """Fill ``out`` with the number of thresholds passed: by a division where they are evenly spaced, else counted seven
    at a time, ladders of 9 to 16 levels in two or three passes."""
    even = _evenly(exponents) if work is np.float32 else None
    if even is not None:
        function(out, *part, k, Thresholds(NO_THRESHOLDS, even, np.uint8(len(exponents))))
        return
    for first in range(0, max(len(exponents), 1), PASS):
        real = [math.ldexp(1.0, e) for e in exponents[first : first + PASS]]
        t = tuple(work(x) for x in (*real, *(math.inf,) * (PASS - len(real))))
        target = np.empty_like(out) if first else out
        function(target, *part, k, Thresholds(t, UNEVEN, np.uint8(len(real))))
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


def _checked_out(arrays: Sequence[Array | None], grad: Array, out: Levels | None) -> Levels:
    """Return ``out``, or a new array in its place. Raises InvalidArgument unless all sizes agree."""
    if any(a is not None and a.size != grad.size for a in arrays):
        raise InvalidArgument(f"param, grad and state differ in size: {[a.size for a in arrays if a is not None]}")
    if out is None:
        return np.empty(grad.shape, np.uint8)
    if out.dtype != np.uint8 or out.size != grad.size or not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidArgument("out must be a writable, C-contiguous uint8 array of the gradient's size")
    return out


def _working_type(wide: bool, constants: Sequence[float]) -> Any:
    """Return the narrowest float type whose margins hold for these constants; None if float64's do not. ``wide``: an
    array is float64."""
    for work in (np.float64,) if wide else (np.float32, np.float64):
        if all(c == 0 or 1 / _RANGE[work] <= abs(c) <= _RANGE[work] for c in constants):
            return work
    return None


def _readonly(array: Array) -> Array:
    """Return an array flat, aligned and read-only, without a copy where possible: one numba type, so one
    compilation."""
    fit = array.ndim == 1 and array.flags.c_contiguous and array.flags.aligned
    flat = array[:] if fit else np.require(array, requirements=["C", "A"]).reshape(-1)[:]
    flat.setflags(write=False)
    return flat


def _widened(array: Array, work: Any) -> Array:
    """Return an array in the working type, its exact values."""
    if array.dtype == work:
        return array
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signaling NaN
        wide = array.astype(work, copy=False)
    wide.setflags(write=False)
    return wide


def sgd_levels(
    param: Array,
    grad: Array,
    buf: Array | None = None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    policy: Policy = DEFAULT,
    out: Levels | None = None,
) -> Levels:
    """Return levels for SGD, SGD with momentum and with Nesterov momentum.

    With h = g + wd * theta (``maximize`` flips g, which no size here depends on), mu and tau:

        plain       theta -= lr * h
        momentum    b' = mu * b + (1 - tau) * h;  theta -= lr * b'          in the first step b' = h, undampened
        Nesterov    b' as before;                 theta -= lr * (h + mu * b')

    that is, theta -= lr * (c * h + e * b) with c = 1, 1 - tau, 1 + mu * (1 - tau) and e = 0, mu, mu**2. Exactly,
    then, U = lr * |c| * |g| and N = (1 - lr * c * wd) * theta - lr * e * b.

    Args:
        param: theta, before the step.
        grad: g, the gradient.
        buf: b, the momentum buffer before the step; None before the first step.
        lr, momentum, dampening, weight_decay, nesterov: torch's hyperparameters.
        policy: what the rule may assume.
        out: where to write the levels; a new array if None.

    Returns:
        Level indices, uint8, in the gradient's shape.

    Raises:
        InvalidArgument: arrays, hyperparameters or a ladder that have no meaning.
    """
    buf = buf if momentum else None
    hyper = (lr, momentum, dampening, weight_decay, nesterov)
    return run_formula(sgd_formula(*hyper, policy=policy, started=buf is not None), (param, grad, buf), policy, out)


def sgd_formula(
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    *,
    policy: Policy = DEFAULT,
    started: bool = True,
) -> Formula:
    """Return the formula of :func:`sgd_levels`, for the arrays (param, grad, momentum or None). ``started``: there is
    momentum already."""
    _check(lr=lr, momentum=momentum, weight_decay=weight_decay, dampening=abs(dampening))
    fresh = 1.0 - dampening if started and momentum else 1.0
    c, e = (1 + momentum * fresh, momentum**2) if nesterov else (fresh, momentum)
    c = c if momentum else 1.0
    keep, slope = 1 - lr * c * weight_decay, lr * abs(c) * policy.gain * U_MARGIN
    return Formula(LINEAR, lr, LinearConstants(keep, carry=lr * e, slope=slope))


def adagrad_levels(
    param: Array,
    grad: Array,
    square_sum: Array,
    *,
    step: int,
    lr: float,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    maximize: bool = False,
    policy: Policy = DEFAULT,
    out: Levels | None = None,
) -> Levels:
    """Return levels for a step of AdaGrad.

    theta -= clr * h / D with h = +-g + wd * theta, D = s + eps, s = sqrt(r + h**2) and
    clr = lr / (1 + (step - 1) * lr_decay). As D grows with |h|, h / D has a slope of (1 - h**2 / (s * D)) / D, which is
    at least 0 and at most 1 / D. An error dg in g thus moves theta by at most clr * |dg| / D_low, where D_low is the
    least D on the way, at the least |h| that rounding g can lead to; in a group, where h may become anything,
    D_low = sqrt(r) + eps. So U = clr * |g| / D_low. And N = theta - clr * wd * theta / D for some D >= D_low: the rule
    takes the least |N| over all of them.

    Args:
        param: theta, before the step.
        grad: g, the gradient.
        square_sum: r, the accumulator before the step.
        step: the step's number, from 1.
        lr, lr_decay, eps, weight_decay, maximize: torch's hyperparameters.
        policy, out: as of :func:`sgd_levels`, and so are the result and the errors.
    """
    formula = adagrad_formula(step, lr, lr_decay, eps, weight_decay, maximize, policy=policy, grad=dtype_name(grad))
    return run_formula(formula, (param, grad, square_sum), policy, out)


def adagrad_formula(
    step: int,
    lr: float,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of :func:`adagrad_levels`, for the arrays (param, grad, square sum, None). ``grad``: name of
    the gradients' type."""
    _check(lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay, before=step - 1)
    rate = lr / (1 + (step - 1) * lr_decay)
    shared, new = _shared(rate, weight_decay, maximize, policy, grad), 0.0 if policy.in_group else 1.0
    constants = AccumulatorConstants(0.0, rate * weight_decay, *shared, 1.0, new, eps)
    return Formula(ACCUMULATOR, rate, constants)


def rmsprop_levels(
    param: Array,
    grad: Array,
    square_avg: Array,
    buf: Array | None = None,
    *,
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    maximize: bool = False,
    policy: Policy = DEFAULT,
    out: Levels | None = None,
) -> Levels:
    """Return levels for a step of RMSProp, not centered.

    AdaGrad's argument with v' = alpha * v + (1 - alpha) * h**2 for r + h**2. With momentum, b' = mu * b + h / D and
    theta -= lr * b': the same term, and N has lr * mu * b less. (Centered, D = sqrt(v' - mean'**2) + eps: however large
    v, rounding g may bring D near eps. No bound.)

    Args:
        param: theta, before the step.
        grad: g, the gradient.
        square_avg: v, before the step.
        buf: b, the momentum buffer before the step; None for zeros.
        lr, alpha, eps, weight_decay, momentum, maximize: torch's hyperparameters.
        policy, out: as of :func:`sgd_levels`, and so are the result and the errors.

    Raises:
        Unsupported: alpha > 1, where D shrinks as |h| grows.
    """
    hyper = (lr, alpha, eps, weight_decay, momentum, maximize)
    formula = rmsprop_formula(*hyper, policy=policy, grad=dtype_name(grad))
    return run_formula(formula, (param, grad, square_avg, buf if momentum else None), policy, out)


def rmsprop_formula(
    lr: float,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of :func:`rmsprop_levels`, for the arrays (param, grad, square average, momentum or None).
    ``grad``: name of the gradients' type."""
    _check(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
    if alpha > 1:
        raise Unsupported(f"no bound for RMSProp with alpha = {alpha} > 1: use lossless or mantissa_bits")
    shared, new = _shared(lr, weight_decay, maximize, policy, grad), 0.0 if policy.in_group else 1 - alpha
    constants = AccumulatorConstants(lr * momentum, lr * weight_decay, *shared, alpha, new, eps)
    return Formula(ACCUMULATOR, lr, constants)


def adam_levels(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    max_exp_avg_sq: Array | None = None,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    maximize: bool = False,
    policy: Policy = DEFAULT,
    out: Levels | None = None,
) -> Levels:
    """Return levels for a step of Adam, of AdamW (``decoupled``), and of both with amsgrad (``max_exp_avg_sq`` given).

    theta' = theta0 - c * (b + a * h) / D, where theta0 = theta, or (1 - lr * wd) * theta if decoupled; h = +-g, plus
    wd * theta if not; c = lr / (1 - b1**t); b = b1 * m; a = 1 - b1; D = s + eps; s = sqrt(V / (1 - b2**t));
    V = b2 * v + (1 - b2) * h**2, with amsgrad the greater of that and v_max. With q = sqrt((1 - b2) / (1 - b2**t)),
    w = (1 - b2) * h**2 / V in [0, 1] and B = q * |b| / D, differentiating gives

        |d theta' / d g| <= c / D * (a * (1 - w * s / D) + B * sqrt(w))           (where v_max rules: c * a / D)

    The bracket is at most a + B; as a parabola in sqrt(w), it is also at most a + B**2 / (4 * a * s / D). D, s and
    s / D grow with |h|, so their least values on the way (``adagrad_levels``; in a group those at h = 0) bound it all:

        U = c * |g| / D * (a + B * min(1, q * |b| / (4 * a * s)))

    N = theta0 - c * (b + a * wd * theta) / D, wd only if not decoupled; least |N| over all D >= D_low.

    Args:
        param: theta, before the step.
        grad: g, the gradient.
        exp_avg, exp_avg_sq, max_exp_avg_sq: m, v and v_max, before the step.
        step: t, the step's number, from 1.
        lr, betas, eps, weight_decay, maximize: torch's hyperparameters, betas as (b1, b2).
        decoupled: weight decay is AdamW's.
        policy, out: as of :func:`sgd_levels`, and so are the result and the errors.
    """
    hyper = (step, lr, betas, eps, weight_decay, decoupled, maximize)
    formula = adam_formula(*hyper, policy=policy, grad=dtype_name(grad))
    return run_formula(formula, (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq), policy, out)


def adam_formula(
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    maximize: bool = False,
    *,
    policy: Policy = DEFAULT,
    grad: str = "float32",
) -> Formula:
    """Return the formula of :func:`adam_levels`, for the arrays (param, grad, mean, square average, its maximum or
    None). ``grad``: name of the gradients' type."""
    b1, b2 = betas
    _check(lr=lr, beta1=b1, beta2=b2, eps=eps, weight_decay=weight_decay, before=step - 1)
    if b1 >= 1 or b2 >= 1:
        raise InvalidArgument(f"betas must be below 1: {betas}")
    c, a, bias2 = lr / (1 - b1**step), 1 - b1, 1 - b2**step
    keep, coupled = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    shared = _shared(c, coupled, maximize, policy, grad)
    constants = AdamConstants(
        keep=keep,
        carry=c * b1,
        drift=c * a * coupled,
        slope=shared.slope,
        share=a,
        spread=math.sqrt((1 - b2) / bias2) * b1,
        quarter=0.25 / a,
        sign=shared.sign,
        decay=shared.decay,
        reach=shared.reach,
        old=b2,
        new=0.0 if policy.in_group else 1 - b2,
        unbias=1 / math.sqrt(bias2),
        eps=eps,
    )
    return Formula(ADAM, lr, constants)


class _Shared(NamedTuple):
    """The constants that the adaptive kernels share, as of :class:`AccumulatorConstants`."""

    slope: float
    sign: float
    decay: float
    reach: float


def _shared(rate: float, decay: float, maximize: bool, policy: Policy, grad: str) -> _Shared:
    """Return the constants that the adaptive kernels share; ``reach`` is the farthest that rounding may move |g| = 1.

    Truncation at bit n takes less than q = 2**(n - p_grad) units from a mantissa that stays at least 1, so at most
    q / (1 + q) of the value; rounding to nearest moves it by q / 2. (A denormal loses up to q of the smallest normal
    value; the kernels count it as two of those.)
    """
    q = math.ldexp(1.0, policy.ladder_for(grad).drops[-1] - MANTISSA_BITS[grad])
    gain = policy.gain
    return _Shared(rate * gain * U_MARGIN, -gain if maximize else gain, decay, gain * (q / (1 + q) + N_MARGIN))


def _check(**numbers: float) -> None:
    """Raise InvalidArgument unless all are finite and not negative."""
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise InvalidArgument(f"{name} must be finite and not negative, not {value}")
