"""The laws of the ladder, of the choice of levels on plain arrays, and of the rounding."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcodec.errors import InvalidArgument, Unsupported
from gcodec.format.ladders import FINE_LADDER, LAYOUTS, MANTISSA_BITS, PAPER_LADDER, Ladder, Levels
from gcodec.kernels.levels.terms import AccumulatorConstants, Limits
from gcodec.truncation import evaluate
from gcodec.truncation.evaluate import DEFAULT, Policy, dtype_name, run_formula, terms_of
from gcodec.truncation.formulas import adagrad_formula, adam_formula, rmsprop_formula, sgd_formula
from gcodec.truncation.reference import round_to_levels, ulp_histogram

WORDS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16, "float64": np.uint64}
FLOATS = {"float32": np.float32, "bfloat16": np.uint16, "float16": np.float16, "float64": np.float64}


def from_bits(dtype, bits):
    """Return an array of type ``dtype`` with these bit patterns."""
    return np.array(bits, WORDS[dtype]).view(FLOATS[dtype])


def f32(*numbers):
    """Return a float32 array."""
    return np.array(numbers, np.float32)


def to_bits(x):
    """Return the bit patterns of an array, as Python integers."""
    return x.view(WORDS[dtype_name(x)]).tolist()


def wild(rng, n, low=-30, high=10):
    """Draw float32 values of both signs with exponents anywhere from ``low`` to ``high``; one in ten is zero."""
    x = rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(low, high, n)) * (rng.random(n) > 0.1)
    return x.astype(np.float32)


def sgd_levels(param, grad, buf=None, *, policy=DEFAULT, out=None, **hyper):
    """Return levels by SGD's formula; without momentum, ``buf`` does not count."""
    buf = buf if hyper.get("momentum") else None
    formula = sgd_formula(**hyper, policy=policy, started=buf is not None)
    return run_formula(formula, (param, grad, buf), policy, out)


def adagrad_levels(param, grad, square_sum, *, policy=DEFAULT, **hyper):
    """Return levels by AdaGrad's formula."""
    formula = adagrad_formula(**hyper, policy=policy, grad=dtype_name(grad))
    return run_formula(formula, (param, grad, square_sum), policy, None)


def rmsprop_levels(param, grad, square_avg, buf=None, *, policy=DEFAULT, **hyper):
    """Return levels by RMSProp's formula."""
    formula = rmsprop_formula(**hyper, policy=policy, grad=dtype_name(grad))
    return run_formula(formula, (param, grad, square_avg, buf if hyper.get("momentum") else None), policy, None)


def adam_levels(param, grad, *state, policy=DEFAULT, **hyper):
    """Return levels by Adam's formula; ``state``: mean, square average and, with amsgrad, its maximum."""
    return run_formula(adam_formula(**hyper, policy=policy, grad=dtype_name(grad)), (param, grad, *state), policy, None)


# The ladder


@given(st.floats(1e-6, 1.0), st.floats(0.1, 0.999), st.sampled_from([1e-10, 1e-8, 1e-6]), st.booleans())
def test_what_momentum_loses_is_never_denormal(lr, momentum, eps, in_group):
    """Times D, of which eps is the least: a processor takes a hundred cycles for each denormal product."""
    policy = Policy(in_group=in_group)
    terms = terms_of(rmsprop_formula(lr, eps=eps, momentum=momentum, policy=policy), policy)
    assert terms is not None
    constants = dict(zip((*AccumulatorConstants._fields, *Limits._fields), terms[0], strict=True))
    assert constants["lost"] * constants["eps"] >= np.finfo(np.float32).tiny
    assert 0 < constants["carry"] * constants["faint"] <= 2.0**-80  # and little: far below what parameters are


@pytest.mark.parametrize("drops", [(), (0, 0), (3, 2), (-1, 4), tuple(range(17)), (0, 1.5), ("a",), 7, (0, None)])
def test_a_ladder_whose_drops_do_not_increase_is_refused(drops):
    with pytest.raises(InvalidArgument):
        Ladder(drops)


def test_ladders_of_equal_drops_are_equal():
    numbers: Any = [np.int64(0), 6]
    assert Ladder(numbers) == Ladder((0, 6))
    assert eval(repr(Ladder((0, 6)))) == Ladder((0, 6))
    assert len({Ladder((0, 6)), Ladder((0, 6)), Ladder((0, 7))}) == 2


def test_the_paper_ladder_has_4_levels_and_the_fine_one_8():
    assert PAPER_LADDER["float32"].drops == (0, 6, 12, 18)
    assert FINE_LADDER["float32"].drops == tuple(range(0, 22, 3))
    for name in LAYOUTS:
        for ladder, n_levels in ((PAPER_LADDER[name], 4), (FINE_LADDER[name], 8)):
            ladder.check_fits(name)
            assert ladder.drops[0] == 0
            assert len(ladder.drops) == n_levels


def test_layouts_of_types_agree_with_numpy():
    for name in ("float32", "float16", "float64"):
        info = np.finfo(name)
        assert MANTISSA_BITS[name] == info.nmant
        assert LAYOUTS[name].smallest_normal == float(info.smallest_normal)
    assert LAYOUTS["bfloat16"].smallest_normal == LAYOUTS["float32"].smallest_normal


@pytest.mark.parametrize(("name", "drop"), [("float32", 24), ("bfloat16", 8), ("float16", 11), ("float64", 53)])
def test_a_ladder_drops_no_more_than_the_mantissa(name, drop):
    x = from_bits(name, [0])
    with pytest.raises(InvalidArgument):
        round_to_levels(x, 0, Ladder((drop,)))
    with pytest.raises(InvalidArgument):
        sgd_levels(np.ones(1, np.float32), x, lr=1.0, policy=Policy(Ladder((0, drop))))


# The rule, against exact arithmetic


def exact_level(ladder, shift, n, u, slack=Fraction(0)):
    """Return the highest level that satisfies the rule, by definition."""
    fits = [level for level, drop in enumerate(ladder.drops) if Fraction(2) ** (drop + shift) * u * (1 + slack) <= n]
    return max(fits, default=0)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(1e-6, 10),
    st.just(0.0) | st.floats(1e-3, 1.1),
    st.floats(0, 1.5),
    st.floats(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([FINE_LADDER["float32"], Ladder(tuple(range(2, 18)))]),
)
def test_sgd_levels_are_the_rule_up_to_their_margin(seed, lr, mu, tau, decay, nesterov, first, ladder):
    rng = np.random.default_rng(seed)
    theta, g, buf = wild(rng, 24), wild(rng, 24), wild(rng, 24)
    levels = sgd_levels(
        theta,
        g,
        None if first else buf,
        lr=lr,
        momentum=mu,
        dampening=tau,
        weight_decay=decay,
        nesterov=nesterov,
        policy=Policy(ladder),
    )
    lr, mu, tau, decay = (Fraction(x) for x in (lr, mu, tau, decay))
    for i, level in enumerate(levels):
        h_in_buffer = 1 if first or mu == 0 else 1 - tau
        c = 1 + mu * h_in_buffer if nesterov and mu else h_in_buffer
        e = 0 if first else mu**2 if nesterov else mu
        x, y = Fraction(float(theta[i])), Fraction(float(buf[i]))
        parts = abs(x) + lr * abs(c) * decay * abs(x) + lr * e * abs(y)
        n, u = abs(x - lr * (c * decay * x + e * y)), lr * abs(c) * abs(Fraction(float(g[i])))
        if u == 0:
            assert level == len(ladder.drops) - 1 or c == 0
        else:
            low = exact_level(ladder, 0, n - parts / 2**19, u, Fraction(1, 2**17))
            assert low <= level <= exact_level(ladder, 0, n, u)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["adagrad", "rmsprop", "adam"]),
    st.integers(1, 1000),
    st.sampled_from([0.0, 1e-3, 0.1]),
    st.booleans(),
)
def test_levels_of_adaptive_rules_are_no_safer_than_they_need_to_be(seed, rule, step, lr_decay, in_group):
    """Where the second moment is large beside a gradient's square, what rounding does to it hardly counts, and a level
    is that of Table 2's |N| / U, evaluated plainly, or one below."""
    rng = np.random.default_rng(seed)
    ladder, lr = Ladder(tuple(range(2, 18))), 0.05
    theta, second = wild(rng, 64, -3, 3), np.exp2(rng.uniform(-4, 4, 64)).astype(np.float32)
    g = (np.sqrt(second) * np.exp2(rng.uniform(-24, -9, 64))).astype(np.float32)
    policy, wide = Policy(ladder, in_group=in_group), second.astype(np.float64)
    if rule == "adagrad":
        levels = adagrad_levels(theta, g, second, lr=lr, step=step, lr_decay=lr_decay, policy=policy)
        slope = lr / (1 + (step - 1) * lr_decay) / (np.sqrt(wide) + 1e-10)
        n = np.abs(theta.astype(np.float64))
    elif rule == "rmsprop":
        levels = rmsprop_levels(theta, g, second, lr=lr, policy=policy)
        slope, n = lr / (np.sqrt(0.99 * wide) + 1e-8), np.abs(theta.astype(np.float64))
    else:
        mean = np.zeros_like(theta)
        levels = adam_levels(theta, g, mean, second, lr=lr, step=step, policy=policy)
        correction = math.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        slope, n = 0.1 * lr * correction / np.sqrt(0.999 * wide), np.abs(theta.astype(np.float64))
    with np.errstate(divide="ignore"):
        plain = np.clip(np.floor(np.log2(n / (slope * g))) - 2, 0, 15)
    assert (levels <= plain + 1).all()
    assert (levels >= plain - 1).all()
    assert (levels == plain).mean() > 0.9


def test_levels_stay_safe_where_rounding_noise_decides():
    rng = np.random.default_rng(5)
    n = 4000
    theta = wild(rng, n, -3, 3)
    cancels = rng.random(n) < 0.5
    buf = np.where(cancels, theta / 0.09 * (1 + rng.normal(0, 2**-23, n)), 0).astype(np.float32)
    close = np.abs(theta) / 0.1 / 2**16 * (1 + rng.integers(-3, 4, n) * 2.0**-24)
    g = np.where(cancels, np.abs(theta) * np.exp2(rng.uniform(-50, -30, n)), close).astype(np.float32)
    ladder = Ladder(tuple(range(8, 23)))
    levels = sgd_levels(theta, g, buf, lr=0.1, momentum=0.9, policy=Policy(ladder))
    lr, mu = Fraction(0.1), Fraction(0.9)
    for x, y, z, level in zip(theta.tolist(), buf.tolist(), g.tolist(), levels, strict=True):
        assert level <= exact_level(ladder, 0, abs(Fraction(x) - lr * mu * Fraction(y)), lr * Fraction(z)) or z == 0


@pytest.mark.parametrize("param_type", LAYOUTS)
@pytest.mark.parametrize("grad_type", LAYOUTS)
def test_the_rule_is_shifted_by_the_difference_of_precisions(param_type, grad_type):
    shift = MANTISSA_BITS[param_type] - MANTISSA_BITS[grad_type]
    ladder = FINE_LADDER[grad_type]
    for e in range(0, 70, 3):
        g = 2.0 ** -(e + 5)
        g_array = np.array([g if grad_type != "float16" else max(g, 2.0**-14)])
        array = g_array.astype(np.float32) if grad_type != "float64" else g_array
        x = (
            (array.view(np.uint32) >> 16).astype(np.uint16)
            if grad_type == "bfloat16"
            else array.astype(FLOATS[grad_type])
        )
        theta = from_bits("bfloat16", [0x3F80]) if param_type == "bfloat16" else np.ones(1, FLOATS[param_type])
        level = int(sgd_levels(theta, x, lr=0.9)[0])
        assert level == exact_level(ladder, shift, Fraction(1), Fraction(0.9) * Fraction(float(array[0])))


def test_every_rule_widens_narrow_types_exactly():
    rng = np.random.default_rng(1)
    n = (1 << 16) + 77  # more than one piece
    narrow = [(np.abs(wild(rng, n)).view(np.uint32) >> 16).astype(np.uint16) for _ in range(4)]
    wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in narrow]
    shifted = Policy(scale=2.0**-16)  # makes up for the 16 bits that the wider parameter has more
    for (rule, levels), other in zip(
        all_rules(*narrow).items(), all_rules(wide[0], narrow[1], *wide[2:], policy=shifted).values(), strict=True
    ):
        assert np.array_equal(levels, other), rule
        assert len(np.unique(levels)) == 8, rule


def test_a_ladder_of_sixteen_levels_refines_one_of_four():
    rng = np.random.default_rng(2)
    arrays = [wild(rng, 1000) for _ in range(3)] + [np.abs(wild(rng, 1000))]
    fine = Ladder(tuple(range(2, 18)))
    coarse = Ladder((2, 7, 10, 17))

    def levels(ladder):
        return adam_levels(*arrays, step=3, lr=0.01, policy=Policy(ladder, in_group=False))

    steps = levels(fine)
    want = sum((steps >= fine.drops.index(drop)).astype(np.uint8) for drop in coarse.drops[1:])
    same = levels(coarse) == want  # the reach of the top level is the same
    assert same.all()
    assert len(np.unique(steps)) == 16


def all_rules(theta, g, s, m, *, policy=DEFAULT, lr=0.01):
    """Return levels by every rule, for state arrays s (squares) and m."""
    return {
        "sgd": sgd_levels(theta, g, lr=lr, policy=policy),
        "momentum": sgd_levels(theta, g, m, lr=lr, momentum=0.9, policy=policy),
        "adagrad": adagrad_levels(theta, g, s, lr=lr, step=3, policy=policy),
        "rmsprop": rmsprop_levels(theta, g, s, m, lr=lr, momentum=0.9, policy=policy),
        "adam": adam_levels(theta, g, m, s, lr=lr, step=3, policy=policy),
        "amsgrad": adam_levels(theta, g, m, np.zeros_like(s), s, lr=lr, step=3, policy=policy),
    }


@pytest.mark.parametrize("in_group", [True, False])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_levels_are_0_where_anything_is_not_finite(bad, in_group):
    one, policy = np.ones(4, np.float32), Policy(in_group=in_group)
    for place in range(4):
        arrays = [one, one * np.float32(1e-12), one, one]
        assert all((levels > 0).all() for levels in all_rules(*arrays, policy=policy).values())
        arrays[place] = np.full(4, bad, np.float32)
        for rule, levels in all_rules(*arrays, policy=policy).items():
            uses = {"sgd": (0, 1), "momentum": (0, 1, 3), "adagrad": (0, 1, 2)}.get(rule, (0, 1, 2, 3))
            assert place not in uses or not levels.any(), (rule, place)


@pytest.mark.parametrize("in_group", [True, False])
@pytest.mark.parametrize("ladder", [None, Ladder((0, 3, 5, 9))])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_second_moment_below_amsgrads_maximum_counts_for_nothing_but_a_nan_does(dtype, ladder, in_group):
    one, policy = np.ones(4, dtype), Policy(ladder, in_group=in_group)
    grad = one * dtype(1e-3)

    def levels(square: float, maximum: float) -> Levels:
        return adam_levels(one, grad, grad, one * dtype(square), one * dtype(maximum), lr=1e-4, step=9, policy=policy)

    for square in (-np.inf, -1, 0):  # as torch.maximum has it
        assert (levels(square, 0.5) == levels(0.25, 0.5)).all() and levels(square, 0.5).all()
    bad = (np.nan, 0.5), (0.5, np.nan), (np.inf, 0.5), (0.5, np.inf), (-np.inf, -np.inf), (0.5, -np.inf)
    for square, maximum in bad:
        assert not levels(square, maximum).any()


@pytest.mark.parametrize("grad_type", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("param_type", ["float32", "bfloat16"])
def test_gradients_that_are_not_finite_have_level_0_at_any_parameter(param_type, grad_type):
    """The parameter may be ever so large, the gradient NaN of any payload and sign, signaling too, or infinite."""
    sizes = 2.0 ** np.arange(-100, 128, 3)
    wide = np.append(sizes, np.finfo(np.float32).max).astype(np.float32)
    theta = (wide.view(np.uint32) >> 16).astype(np.uint16) if param_type == "bfloat16" else wide
    patterns = {
        "float32": (0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF),
        "bfloat16": (0x7F80, 0x7F81, 0x7FC0, 0x7FFF),
        "float16": (0x7C00, 0x7C01, 0x7E00, 0x7FFF),
    }
    sign = 1 << (31 if grad_type == "float32" else 15)
    one, uneven = np.ones(len(theta), np.float32), Policy(Ladder((0, 3, 4, 7)))
    for pattern, policy in product(
        (bits | some for bits in patterns[grad_type] for some in (0, sign)), (DEFAULT, uneven)
    ):
        g = np.repeat(from_bits(grad_type, [pattern]), len(theta))
        with np.errstate(invalid="ignore"):
            for rule, levels in all_rules(theta, g, one, one, policy=policy).items():
                assert not levels.any(), (rule, hex(pattern), theta[levels > 0])


def test_zero_gradients_have_the_highest_level_and_lr_0_has_level_0():
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    for theta in (zero, one):
        assert all((levels == 7).all() for levels in all_rules(theta, -zero, one, one).values())
    assert not any(levels.any() for levels in all_rules(one, one * np.float32(1e-20), one, one, lr=0.0).values())


def test_only_zero_gradients_have_a_level_above_0_where_the_parameter_is_zero():
    zero, tiny = np.zeros(3, np.float32), np.full(3, 1e-45, np.float32)
    assert not any(levels.any() for levels in all_rules(zero, tiny, zero, zero).values())


def test_constants_outside_of_float32_still_decide():
    one, g = np.ones(2, np.float32), np.full(2, 1e10, np.float32)
    assert (sgd_levels(one, g, lr=1e-40) == 7).all()
    assert not sgd_levels(one, g, lr=1e-300, weight_decay=1e300).any()
    assert not sgd_levels(one, one, lr=1e-310).any()
    assert not sgd_levels(one, one, one, lr=1, momentum=1e200, nesterov=True).any()


def test_loss_scale_divides_and_scale_multiplies():
    rng = np.random.default_rng(3)
    theta, g, m, s = wild(rng, 500), wild(rng, 500), wild(rng, 500), np.abs(wild(rng, 500))
    for in_group in (True, False):
        plain = all_rules(theta, g, s, m, policy=Policy(in_group=in_group))
        scaled = all_rules(theta, g * np.float32(1024), s, m, policy=Policy(in_group=in_group, loss_scale=1024))
        summed = all_rules(theta, g / np.float32(4), s, m, policy=Policy(in_group=in_group, scale=4))
        assert all(np.array_equal(plain[rule], scaled[rule]) for rule in plain)
        assert all(np.array_equal(plain[rule], summed[rule]) for rule in plain)


ONE = np.ones(2, np.float32)
BAD: Any = {"level": 0.0, "rounding": "up", "levels": [0, 3]}


@pytest.mark.parametrize(
    "call",
    [
        lambda: sgd_levels(ONE, np.ones(3, np.float32), lr=1),
        lambda: sgd_levels(ONE, np.ones(2, np.int32), lr=1),
        lambda: sgd_levels(ONE, ONE.astype(">f4"), lr=1),
        lambda: sgd_levels(ONE, ONE, lr=-1),
        lambda: sgd_levels(ONE, ONE, lr=math.nan),
        lambda: sgd_levels(ONE, ONE, lr=1, out=np.empty(2, np.int8)),
        lambda: sgd_levels(ONE, ONE, lr=1, out=np.empty(4, np.uint8)[::2]),
        lambda: sgd_levels(ONE, ONE, lr=1, policy=Policy(scale=0)),
        lambda: sgd_levels(ONE, ONE, lr=1, policy=Policy(loss_scale=math.inf)),
        lambda: Policy(scale=1e-300, loss_scale=1e300),
        lambda: Policy(scale=1e300, loss_scale=1e-300),
        lambda: Policy(loss_scale=BAD["levels"]),
        lambda: Policy(in_group=BAD["levels"]),
        lambda: Policy(BAD["levels"]),
        lambda: adam_levels(ONE, ONE, ONE, ONE, step=0, lr=1),
        lambda: adam_levels(ONE, ONE, ONE, ONE, step=1, lr=1, betas=(0.9, 1.0)),
        lambda: adagrad_levels(ONE, ONE, ONE, step=1, lr=1, eps=-1),
        lambda: round_to_levels(ONE, 1, Ladder((3,))),
        lambda: round_to_levels(ONE, -1, Ladder((3,))),
        lambda: round_to_levels(ONE, BAD["level"], Ladder((3,))),
        lambda: round_to_levels(ONE, 0, Ladder((3,)), rounding=BAD["rounding"]),
        lambda: ulp_histogram(ONE, ONE.astype(np.float64)),
        lambda: ulp_histogram(ONE, ONE[:1]),
        lambda: ulp_histogram(ONE, ONE, limit=-1),
    ],
)
def test_formulas_and_rounding_refuse_senseless_arguments(call):
    with pytest.raises(InvalidArgument):
        call()


def test_rmsprop_with_a_growing_average_has_no_rule():
    with pytest.raises(Unsupported, match="lossless"):
        rmsprop_levels(ONE, ONE, ONE, lr=1, alpha=1.01)


# Rounding


def value_of(size, layout):
    """Return the number that a magnitude's bits stand for."""
    exponent, mantissa = size >> layout.mantissa_bits, size & ((1 << layout.mantissa_bits) - 1)
    if exponent:
        mantissa += 1 << layout.mantissa_bits
    return mantissa * Fraction(2) ** (max(exponent, 1) - (1 << (layout.exponent_bits - 1)) + 1 - layout.mantissa_bits)


def unit_of(size, drop, layout):
    """Return the distance between the values with ``drop`` low bits zero, at this magnitude."""
    return value_of(1, layout) * 2 ** (drop + max(size >> layout.mantissa_bits, 1) - 1)


@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_rounding_is_that_of_exact_arithmetic(name, data):
    layout = LAYOUTS[name]
    width = layout.exponent_bits + layout.mantissa_bits
    infinity = ((1 << layout.exponent_bits) - 1) << layout.mantissa_bits
    sizes = data.draw(
        st.lists(
            st.one_of(st.integers(0, infinity - 1), st.integers(infinity - 9, infinity - 1), st.integers(0, 1 << 9)),
            min_size=1,
            max_size=20,
        )
    )
    sign = data.draw(st.integers(0, 1)) << width
    drop = data.draw(st.integers(0, layout.mantissa_bits))
    x = from_bits(name, [size | sign for size in sizes])
    for rounding in ("nearest", "truncate"):
        result = to_bits(round_to_levels(x, 0, Ladder((drop,)), rounding, prune=False))
        pruned = to_bits(round_to_levels(x, 0, Ladder((drop,)), rounding))
        for size, bits, short in zip(sizes, result, pruned, strict=True):
            unit = unit_of(size, drop, layout)
            quotient = value_of(size, layout) / unit
            units = round(quotient)  # Python rounds halves to even
            exponent = size >> layout.mantissa_bits
            if drop == layout.mantissa_bits and quotient == Fraction(3, 2) and exponent % 2 == 0:
                units = 1  # the lowest bit that is left is the exponent's
            if rounding == "truncate" or units * unit > value_of(infinity - 1, layout):
                units = math.floor(quotient)
            assert value_of(bits ^ sign, layout) == units * unit
            assert bits & sign == sign
            assert short == (0 if size < 1 << layout.mantissa_bits else bits)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_rounding_makes_nothing_infinite_and_keeps_infinity_and_nan(name, rounding):
    layout = LAYOUTS[name]
    infinity, sign = (
        ((1 << layout.exponent_bits) - 1) << layout.mantissa_bits,
        1 << (layout.exponent_bits + layout.mantissa_bits),
    )
    for drop in range(layout.mantissa_bits + 1):
        nans = [infinity | 1, infinity | (1 << (layout.mantissa_bits - 1)), sign - 1]
        x = from_bits(name, [infinity - 1, infinity, *nans, infinity | sign, *(nan | sign for nan in nans)])
        bits = to_bits(round_to_levels(x, 0, Ladder((drop,)), rounding))
        low = (1 << drop) - 1
        assert bits[0] == (infinity - 1) & ~low
        assert bits[1] == infinity
        assert bits[5] == infinity | sign
        assert all(infinity < nan < sign for nan in bits[2:5])
        assert [nan | sign for nan in bits[2:5]] == bits[6:]
        if drop < layout.mantissa_bits:
            assert all(nan & low == 0 for nan in bits)
        if drop == 0:
            assert bits == to_bits(x)


def test_levels_choose_the_drop_of_each_value():
    x = f32(1 + 2**-23, 1.75, 1.25, -1.5, -0.0, 1e-40, 3.0)
    levels = np.array([0, 1, 1, 2, 1, 0, 0], np.uint8)
    result = round_to_levels(x, levels, Ladder((0, 22, 23)))
    assert result.tolist() == [1 + 2**-23, 2.0, 1.0, -2.0, 0.0, 0.0, 3.0]
    assert not np.signbit(result[4])
    grid = round_to_levels(np.asfortranarray(x[:6].reshape(2, 3)), levels[:6].reshape(2, 3), Ladder((0, 22, 23)))
    assert np.array_equal(grid.reshape(-1), result[:6])
    assert round_to_levels(f32(1.75).reshape(()), 1, Ladder((0, 22))).item() == 2.0


# The histogram


def test_ulps_are_steps_through_the_values():
    one = np.float32(1)
    up = np.nextafter(one, np.float32(2))
    tiny = np.float32(1e-45)
    a = f32(1, 1, 1, 0.0, -tiny, 1, np.nan, np.nan, np.inf, 5)
    b = f32(1, up, np.nextafter(up, np.float32(2)), -0.0, tiny, -1, np.nan, 1, np.inf, 6)
    assert ulp_histogram(a, b) == {0: 4, 1: 1, 2: 2, 3: 3}
    assert ulp_histogram(b, a, limit=0) == {0: 4, 1: 6}
    assert ulp_histogram(a[:0], b[:0]) == {0: 0, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize("name", LAYOUTS)
def test_ulps_are_counted_in_every_type(name):
    layout = LAYOUTS[name]
    top = 1 << (layout.exponent_bits + layout.mantissa_bits)
    infinity = ((1 << layout.exponent_bits) - 1) << layout.mantissa_bits
    a = from_bits(name, [5, 5, 5, infinity, infinity + 1])
    b = from_bits(name, [5, 6, 4 | top, infinity | top, 3])
    assert ulp_histogram(a, b, limit=9) == dict.fromkeys(range(11), 0) | {0: 1, 1: 1, 9: 1, 10: 2}


EVEN = [
    FINE_LADDER["float32"],
    PAPER_LADDER["float32"],
    Ladder((0, 1, 2)),
    Ladder((0, 23)),
    Ladder((2, 5, 12, 19)),
    Ladder(tuple(range(16))),
]


@pytest.mark.parametrize("ladder", EVEN, ids=str)
@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam"])
def test_evenly_spaced_thresholds_are_counted_by_a_division(monkeypatch, ladder, rule):
    """Levels are those of comparing threshold by threshold, at ties and at the ends of the range too."""
    rng, policy = np.random.default_rng(11), Policy(ladder)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 2.0**-126, 2.0**-100, 2.0**90, 1.0, -1.0, 2.0**-9, 3 * 2.0**-12]
    ends = f32(*[[a, b, c] for a in odd for b in odd for c in odd])
    theta, grad, state = (np.concatenate([wild(rng, 20_000), ends[:, i]]) for i in range(3))
    square = np.abs(state)

    def levels():
        if rule == "sgd":
            return sgd_levels(theta, grad, state, lr=0.25, momentum=0.5, weight_decay=1e-3, policy=policy)
        if rule == "adagrad":
            return adagrad_levels(theta, grad, square, step=3, lr=0.1, policy=policy)
        return adam_levels(theta, grad, state, square, step=7, lr=1e-2, policy=policy)

    divided = levels()
    monkeypatch.setattr(evaluate, "_evenly", lambda exponents: None)
    counted = levels()
    np.testing.assert_array_equal(divided, counted)
    assert len(np.unique(divided)) == len(ladder.drops)
