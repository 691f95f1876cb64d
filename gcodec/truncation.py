"""Optimizer-aware truncation: how many mantissa bits of a gradient the next optimizer step cannot feel.

GComp (SoCC '24, mantissa compression and Table 2) sorts gradient values into a few *levels*, each dropping a fixed
number of mantissa bits, by how many times over the parameter outweighs the gradient's term in its update. Here are
one formula per optimizer on plain arrays; ``gcodec.optimizers`` reads them out of a live ``torch.optim`` object.

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
from typing import Any

import numpy as np

from gcodec.errors import InvalidArgument, Unsupported
from gcodec.kernels.jit import kernel
from gcodec.kernels.memory import bits_of
from gcodec.kernels.scalar import U32
from gcodec.ladders import FINE_LADDER, LAYOUTS, MANTISSA_BITS, Array, Ladder, Levels, dtype_name


@dataclass(frozen=True)
class Policy:
    """What the rule may assume about the gradient it is shown.

    ladder: drops per level; None for ``FINE_LADDER`` of the gradient's type.
    in_group: other workers' gradients will join this one before the step. An adaptive method's new second moment is
        then unknown, and bounded below by the old one. False says that this is the gradient the optimizer will see.
    scale: the rule counts |grad| * scale / loss_scale as this worker's gradient. 1 suits a mean over W workers where
        each shows its own *undivided* gradient: their errors enter divided by W, and so add up to the bound once.
        W suits a sum over W workers, and a mean whose terms were divided by W before they came here.
    loss_scale: the factor on the loss (mixed precision) that is still in ``grad`` and that the step divides by.
    """

    ladder: Ladder | None = None
    in_group: bool = True
    scale: float = 1.0
    loss_scale: float = 1.0

    @property
    def gain(self) -> float:
        """scale / loss_scale; InvalidArgument unless both are positive and finite."""
        if not (0 < self.scale < math.inf and 0 < self.loss_scale < math.inf):
            raise InvalidArgument(f"scale and loss_scale must be positive: {self.scale}, {self.loss_scale}")
        return self.scale / self.loss_scale

    def ladder_for(self, grad: Array) -> Ladder:
        """The ladder for this gradient; InvalidArgument when it drops more bits than there are."""
        name = dtype_name(grad)
        ladder = FINE_LADDER[name] if self.ladder is None else self.ladder
        ladder.check_fits(name)
        return ladder


DEFAULT = Policy()


# Kernels: one fused pass each, without a branch, so that LLVM makes vectors of it. `k` are constants of the working
# type (float32 or float64); `t` are thresholds 2**(n_l + p_param - p_grad), seven at a time and padded with infinity,
# or `even` stands for them where they are evenly spaced; `top` of them are real. The rule is multiplied through by the
# denominators.
#
# The kernels' own rounding. A U below `floor` (2**-100 in float32) counts as `floor` and a second moment below it as
# 0, which keeps whatever decides far from underflow, with flush-to-zero too. U and D are then sums and products of
# positive terms, right to a few units of 2**-24; U is inflated by 2**-18. N may cancel, so its error is measured by
# its parts and subtracted: 2**-20 of their sum is 16 units of 2**-24, for the roundings of the terms and of the D in
# them. That subtraction also turns every infinity into a NaN, and a NaN fails all comparisons: level 0.
#
# Many CPUs take a hundred cycles for a product that is denormal or has a denormal factor, and dead parameters have such
# gradients (zeros) and such momentum all the time. So a gradient counts as `least` at least, whose U is about `floor`,
# and momentum below `faint` as 0 in N, which its product with the learning rate, `lost`, makes up for.
_U_MARGIN = 1 + 2.0**-18
_N_MARGIN = 2.0**-20
_PASS = 7
_UNIT = 1 << 16  #: of a reciprocal: exact for all exponents that float32 has
_UNEVEN, _NO_THRESHOLDS = (np.int32(0), np.int32(0)), (np.float32(0),)
_bits_of: Any = bits_of  # numba's intrinsics are not typed


@kernel
def _count(u: Any, n: Any, t: Any) -> Any:
    """How many thresholds u passes."""
    level = np.uint8(0)
    for j in range(len(t)):
        level += np.uint8(t[j] * u <= n)
    return level


@kernel
def _level(u: Any, n: Any, t: Any, even: Any, number: Any) -> Any:
    """How many thresholds u passes, of ``number`` in all. Where ``t`` has but one element, float32's thresholds are
    2**first, 2**(first + d) ..., and a division counts them: ``even`` is ``(first - d, 1 / d)``. The difference of two
    positive numbers' bits, above the mantissa, is the logarithm of their ratio, rounded down."""
    if len(t) > 1:
        return _count(u, n, t)
    before, reciprocal = even
    size, term = _bits_of(np.float32(n if n > 0 else 0)), _bits_of(np.float32(u))  # a NaN is not greater than 0
    steps = np.int32(np.int32(np.int32(size) - np.int32(term & U32(0x7FFFFFFF))) >> np.int32(23))
    steps = np.int32(steps - before)
    steps = steps if steps > np.int32(0) else np.int32(0)
    steps = np.int32(np.int32(steps * reciprocal) >> np.int32(16))
    return np.uint8(steps if steps < np.int32(number) else np.int32(number))


@kernel
def _least(a: Any, b: Any) -> Any:
    """The least |x| over x from a to b, not positive if 0 lies between. NaN if b is."""
    low = a if a < b else b
    high = b if a < b else a
    return low if low > -high else -high


@kernel
def _least_square(g: Any, size: Any, decay: Any, sign: Any, reach: Any, margin: Any, zero: Any) -> Any:
    """A lower bound of (sign * x + decay)**2 over all x within ``reach * size`` of g."""
    low = abs(sign * g + decay) - (reach * size + margin * abs(decay))
    low = zero if low < zero else low
    return low * low


@kernel
def _linear_kernel(
    out: Any, theta: Any, grad: Any, buf: Any, k: Any, t: Any, even: Any, top: Any
) -> None:
    """N = keep * theta - carry * buf, U = slope * |g|: ``sgd_levels``."""
    keep, carry, slope, floor, least, _, faint, lost, margin, zero, _ = k
    for i in range(out.size):
        x = keep * theta[i]
        n = abs(x) - margin * abs(x)
        if buf is not None:
            b = buf[i]
            y = carry * (zero if abs(b) < faint else b)
            n = abs(x - y) - (margin * (abs(x) + abs(y)) + lost)
        a = abs(grad[i])
        u = slope * (least if a < least else a)
        u = floor if u < floor else u
        level = _level(u, n, t, even, top)
        out[i] = top if a == 0 else level


@kernel
def _accumulator_kernel(
    out: Any, theta: Any, grad: Any, square: Any, buf: Any, k: Any, t: Any, even: Any, top: Any
) -> None:
    """N = theta - carry * buf - drift * theta / D, U = slope * |g| / D, both times D: ``adagrad_levels``."""
    carry, drift, slope, sign, decay, reach, old, new, eps, floor, least, double, faint, lost, margin, zero, _ = k
    for i in range(out.size):
        a = abs(grad[i])
        size = double if a < least else a
        v = old * square[i] + new * _least_square(grad[i], size, decay * theta[i], sign, reach, margin, zero)
        v = zero if abs(v) < floor else v
        d = math.sqrt(v) + eps
        x = theta[i]
        parts = abs(x)
        if buf is not None:
            b = buf[i]
            y = carry * (zero if abs(b) < faint else b)
            x = x - y
            parts = parts + abs(y)
        x = x * d
        z = drift * theta[i]
        n = _least(x, x - z) - (margin * (parts * d + abs(z)) + lost * d)
        u = slope * size
        u = floor if u < floor else u
        level = _level(u, n, t, even, top)
        out[i] = top if a == 0 else level


@kernel
def _adam_kernel(
    out: Any, theta: Any, grad: Any, mean: Any, square: Any, most: Any, k: Any, t: Any, even: Any, top: Any
) -> None:
    """N = keep * theta - (carry * m + drift * theta) / D and U of ``adam_levels``, both times D**2."""
    keep, carry, drift, slope, share, spread, quarter, sign, decay, reach, old, new, unbias, eps = k[:14]
    floor, least, double, faint, lost, margin, zero, one = k[14:]
    for i in range(out.size):
        a = abs(grad[i])
        size = double if a < least else a
        v = old * square[i] + new * _least_square(grad[i], size, decay * theta[i], sign, reach, margin, zero)
        if most is not None:
            v = (most[i] if v < most[i] else v) + zero * most[i]
        v = zero if abs(v) < floor else v
        s = unbias * math.sqrt(v)
        d = s + eps
        m = abs(mean[i])
        p = spread * (faint if m < faint else m)
        f = quarter * p / s
        f = f if f < one else one
        u = slope * size * (share * d + p * f)
        u = floor if u < floor else u
        x = keep * theta[i] * d
        y = carry * (zero if m < faint else mean[i])
        z = drift * theta[i]
        n = (_least(x, x - (y + z)) - (margin * (abs(x) + (abs(y) + abs(z))) + lost)) * d
        level = _level(u, n, t, even, top)
        out[i] = top if a == 0 else level


# The binding of the kernels. Narrow types are widened in pieces that stay in cache; constants outside of the range in
# which the margins above hold move the work to float64, and beyond that leave level 0.
_RANGE = {np.float32: 2.0**100, np.float64: 2.0**900}
_FAINT = 2.0**-20  #: of the smallest number in that range: what momentum adds to the parameter and is left out
_PLACES = {_linear_kernel: (1, 2), _accumulator_kernel: (0, 2), _adam_kernel: (1, 3)}  #: of carry and slope in `k`
_PIECE = 1 << 16


def _run(
    function: Callable[..., None],
    arrays: Sequence[Array | None],
    rate: float,
    constants: Sequence[float],
    policy: Policy,
    out: Levels | None,
) -> Levels:
    """Run a kernel over (param, grad, state ...) into ``out``; a learning rate of 0 means level 0."""
    param, grad = arrays[0], arrays[1]
    assert param is not None and grad is not None
    out = _checked_out(arrays, grad, out)
    work = _working_type(arrays, constants)
    if rate == 0 or work is None:
        out.fill(0)
        return out
    ladder, types = policy.ladder_for(grad), (dtype_name(param), dtype_name(grad))
    k, exponents = _prepared(work, tuple(constants), _PLACES[function], ladder, *types)
    flat = [None if a is None else _readonly(a) for a in arrays]
    piece = _PIECE if any(a is not None and a.dtype != work for a in flat) else max(grad.size, 1)
    for start in range(0, grad.size, piece):
        part = [None if a is None else _widened(a[start : start + piece], work) for a in flat]
        _count_levels(function, out.reshape(-1)[start : start + piece], part, k, exponents, work)
    return out


@lru_cache(256)
def _prepared(
    work: Any, constants: tuple[float, ...], places: tuple[int, int], ladder: Ladder, param: str, grad: str
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A kernel's ``k``, and the exponents of the thresholds, for types by name: kept, for a step has many tensors."""
    shift, floor = MANTISSA_BITS[param] - MANTISSA_BITS[grad], 1 / _RANGE[work]
    carry, slope = (constants[place] for place in places)
    normal, tiny = float(np.finfo(work).tiny), LAYOUTS[grad].smallest_normal
    felt = floor / slope * _U_MARGIN if slope else 0.0
    faint = max(_FAINT * floor / carry, normal) if carry else normal
    sizes = max(tiny, felt), max(2 * tiny, felt), faint, abs(carry) * faint * _U_MARGIN
    k = tuple(work(c) for c in (*constants, floor, *sizes, _N_MARGIN, 0.0, 1.0))
    return k, tuple(n + shift for n in ladder.drops[1:])


def _count_levels(
    function: Callable[..., None],
    out: Levels,
    part: Sequence[Array | None],
    k: tuple[Any, ...],
    exponents: tuple[int, ...],
    work: Any,
) -> None:
    """Level = thresholds passed: by a division where they are evenly spaced, else counted seven at a time, ladders of 9
    to 16 levels in two or three passes."""
    even = _evenly(exponents) if work is np.float32 else None
    if even is not None:
        function(out, *part, k, _NO_THRESHOLDS, even, np.uint8(len(exponents)))
        return
    for first in range(0, max(len(exponents), 1), _PASS):
        real = [math.ldexp(1.0, e) for e in exponents[first : first + _PASS]]
        t = tuple(work(x) for x in (*real, *(math.inf,) * (_PASS - len(real))))
        target = np.empty_like(out) if first else out
        function(target, *part, k, t, _UNEVEN, np.uint8(len(real)))
        if first:
            out += target


@lru_cache(64)
def _evenly(exponents: tuple[int, ...]) -> tuple[np.int32, np.int32] | None:
    """What :func:`_level` needs where exponents are evenly spaced, else None."""
    spaces = {b - a for a, b in pairwise(exponents)} or {1}
    if not exponents or len(spaces) > 1:
        return None
    (space,) = spaces
    return np.int32(exponents[0] - space), np.int32(_UNIT // space + 1)


def _checked_out(arrays: Sequence[Array | None], grad: Array, out: Levels | None) -> Levels:
    if any(a is not None and a.size != grad.size for a in arrays):
        raise InvalidArgument(f"param, grad and state differ in size: {[a.size for a in arrays if a is not None]}")
    if out is None:
        return np.empty(grad.shape, np.uint8)
    if out.dtype != np.uint8 or out.size != grad.size or not out.flags.c_contiguous or not out.flags.writeable:
        raise InvalidArgument("out must be a writable, C-contiguous uint8 array of the gradient's size")
    return out


def _working_type(arrays: Sequence[Array | None], constants: Sequence[float]) -> Any:
    wide = "float64" in [dtype_name(a) for a in arrays if a is not None]
    for work in (np.float64,) if wide else (np.float32, np.float64):
        if all(c == 0 or 1 / _RANGE[work] <= abs(c) <= _RANGE[work] for c in constants):
            return work
    return None


def _readonly(array: Array) -> Array:
    """Flat, aligned and read-only, without a copy where possible: one numba type, so one compilation."""
    fit = array.ndim == 1 and array.flags.c_contiguous and array.flags.aligned
    flat = array[:] if fit else np.require(array, requirements=["C", "A"]).reshape(-1)[:]
    flat.setflags(write=False)
    return flat


def _widened(array: Array, work: Any) -> Array:
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
    """Levels for SGD, SGD with momentum and with Nesterov momentum; ``buf`` is None before the first step.

    With h = g + wd * theta (``maximize`` flips g, which no size here depends on), mu and tau:

        plain       theta -= lr * h
        momentum    b' = mu * b + (1 - tau) * h;  theta -= lr * b'          in the first step b' = h, undampened
        Nesterov    b' as before;                 theta -= lr * (h + mu * b')

    that is, theta -= lr * (c * h + e * b) with c = 1, 1 - tau, 1 + mu * (1 - tau) and e = 0, mu, mu**2. Exactly,
    then, U = lr * |c| * |g| and N = (1 - lr * c * wd) * theta - lr * e * b.
    """
    _check(lr=lr, momentum=momentum, weight_decay=weight_decay, dampening=abs(dampening))
    if momentum == 0:
        buf = None
    fresh = 1.0 if buf is None else 1.0 - dampening
    c, e = (1 + momentum * fresh, momentum**2) if nesterov else (fresh, momentum)
    c = c if momentum else 1.0
    constants = [1 - lr * c * weight_decay, lr * e, lr * abs(c) * policy.gain * _U_MARGIN]
    return _run(_linear_kernel, (param, grad, buf), lr, constants, policy, out)


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
    """Levels for step number ``step`` (from 1) of AdaGrad; ``square_sum`` is the accumulator r before it.

    theta -= clr * h / D with h = +-g + wd * theta, D = s + eps, s = sqrt(r + h**2) and
    clr = lr / (1 + (step - 1) * lr_decay). As D grows with |h|, h / D has a slope of (1 - h**2 / (s * D)) / D, which is
    at least 0 and at most 1 / D. An error dg in g thus moves theta by at most clr * |dg| / D_low, where D_low is the
    least D on the way, at the least |h| that rounding g can lead to; in a group, where h may become anything,
    D_low = sqrt(r) + eps. So U = clr * |g| / D_low. And N = theta - clr * wd * theta / D for some D >= D_low: the rule
    takes the least |N| over all of them.
    """
    _check(lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay, before=step - 1)
    rate = lr / (1 + (step - 1) * lr_decay)
    shared = [rate * weight_decay, *_shared(rate, weight_decay, maximize, policy, grad)]
    constants = [0.0, *shared, 1.0, 0.0 if policy.in_group else 1.0, eps]
    return _run(_accumulator_kernel, (param, grad, square_sum, None), rate, constants, policy, out)


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
    """Levels for RMSProp, not centered; ``buf`` is its momentum buffer, None for zeros.

    AdaGrad's argument with v' = alpha * v + (1 - alpha) * h**2 for r + h**2. With momentum, b' = mu * b + h / D and
    theta -= lr * b': the same term, and N has lr * mu * b less. Unsupported for alpha > 1, where D shrinks as |h|
    grows. (Centered, D = sqrt(v' - mean'**2) + eps: however large v, rounding g may bring D near eps. No bound.)
    """
    _check(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
    if alpha > 1:
        raise Unsupported(f"no bound for RMSProp with alpha = {alpha} > 1: use lossless or mantissa_bits")
    buf = buf if momentum else None
    shared = [lr * weight_decay, *_shared(lr, weight_decay, maximize, policy, grad)]
    constants = [lr * momentum, *shared, alpha, 0.0 if policy.in_group else 1 - alpha, eps]
    return _run(_accumulator_kernel, (param, grad, square_avg, buf), lr, constants, policy, out)


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
    """Levels for step t = ``step`` (from 1) of Adam, of AdamW (``decoupled``), and of both with amsgrad
    (``max_exp_avg_sq`` given); the state is that before the step.

    theta' = theta0 - c * (b + a * h) / D, where theta0 = theta, or (1 - lr * wd) * theta if decoupled; h = +-g, plus
    wd * theta if not; c = lr / (1 - b1**t); b = b1 * m; a = 1 - b1; D = s + eps; s = sqrt(V / (1 - b2**t));
    V = b2 * v + (1 - b2) * h**2, with amsgrad the greater of that and v_max. With q = sqrt((1 - b2) / (1 - b2**t)),
    w = (1 - b2) * h**2 / V in [0, 1] and B = q * |b| / D, differentiating gives

        |d theta' / d g| <= c / D * (a * (1 - w * s / D) + B * sqrt(w))           (where v_max rules: c * a / D)

    The bracket is at most a + B; as a parabola in sqrt(w), it is also at most a + B**2 / (4 * a * s / D). D, s and
    s / D grow with |h|, so their least values on the way (``adagrad_levels``; in a group those at h = 0) bound it all:

        U = c * |g| / D * (a + B * min(1, q * |b| / (4 * a * s)))

    N = theta0 - c * (b + a * wd * theta) / D, wd only if not decoupled; least |N| over all D >= D_low.
    """
    b1, b2 = betas
    _check(lr=lr, beta1=b1, beta2=b2, eps=eps, weight_decay=weight_decay, before=step - 1)
    if b1 >= 1 or b2 >= 1:
        raise InvalidArgument(f"betas must be below 1: {betas}")
    c, a, bias2 = lr / (1 - b1**step), 1 - b1, 1 - b2**step
    keep, coupled = (1 - lr * weight_decay, 0.0) if decoupled else (1.0, weight_decay)
    slope, *signed = _shared(c, coupled, maximize, policy, grad)
    constants = [
        keep,
        c * b1,
        c * a * coupled,
        slope,
        a,
        math.sqrt((1 - b2) / bias2) * b1,
        0.25 / a,
        *signed,
        b2,
        0.0 if policy.in_group else 1 - b2,
        1 / math.sqrt(bias2),
        eps,
    ]
    arrays = (param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq)
    return _run(_adam_kernel, arrays, lr, constants, policy, out)


def _shared(rate: float, decay: float, maximize: bool, policy: Policy, grad: Array) -> list[float]:
    """What the adaptive kernels share: slope, sign, decay and reach, the farthest that rounding may move |g| = 1.

    Truncation at bit n takes less than q = 2**(n - p_grad) units from a mantissa that stays at least 1, so at most
    q / (1 + q) of the value; rounding to nearest moves it by q / 2. (A denormal loses up to q of the smallest normal
    value; the kernels count it as two of those.)
    """
    q = math.ldexp(1.0, policy.ladder_for(grad).drops[-1] - MANTISSA_BITS[dtype_name(grad)])
    gain = policy.gain
    return [rate * gain * _U_MARGIN, -gain if maximize else gain, decay, gain * (q / (1 + q) + _N_MARGIN)]


def _check(**numbers: float) -> None:
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise InvalidArgument(f"{name} must be finite and not negative, not {value}")
