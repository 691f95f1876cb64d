"""The near-lossless bound against the real steps of torch's optimizers, in the parameters' own precision.

A setting is an optimizer, the way in which torch runs its step, a type, hyperparameters, and how the gradient gets
there: alone (``in_group=False``) or averaged with others, scaled with the loss or not, rounded or truncated. One step
is taken with the exact gradient and one with what the codec's frame decodes to, both from the same state, and
they may differ by the bound of docs/algorithms/near-lossless.md ("What is guaranteed") and no more: half an ulp of N,
and for torch's own arithmetic one ulp of the result and twelve roundings of the update's parts in each step.

The bound is checked where torch's arithmetic in that type computes the formula: not where decay all but cancels the
gradient, and not where a square or a denominator leaves the type's normal range, as float16's do early.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import gcodec
from gcodec.format.ladders import FINE_LADDER, MANTISSA_BITS, PAPER_LADDER, Ladder
from gcodec.truncation.optimizers import levels_for
from tests.support.reliability import record
from tests.truncation.gradient_terms import LINEAR, SINGLE, gradient_term

torch: Any = pytest.importorskip("torch")

N = 512
ROUNDING = gcodec.EncoderOptions(exact_if_smaller=False)  #: values are rounded although that may save nothing
OPTIMIZERS = (
    "SGD",
    "Momentum",
    "Nesterov",
    "Adagrad",
    "RMSprop",
    "Adam",
    "AdamW",
    "NAdam",
    "RAdam",
    "ASGD",
    "Adamax",
    "Adadelta",
)
TYPES = ("float32", "float64", "bfloat16", "float16")
#: Ways in which torch runs a step, as arguments of its optimizers.
WAYS: dict[str, dict[str, bool]] = {
    "single": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "differentiable": {"differentiable": True},
    "capturable": {"capturable": True, "foreach": False},
    "capturable foreach": {"capturable": True, "foreach": True},
}


def is_there(name: str, way: str, dtype: str) -> bool:
    """Return whether torch's optimizer can run in this way, and does."""
    if way == "fused" and dtype in ("bfloat16", "float16") and name in ("SGD", "Momentum", "Nesterov"):
        return False  # on a CPU, torch 2.13's leaves most of such a parameter as it is, whatever the gradient
    if way == "fused":
        return name not in ("RMSprop", "NAdam", "RAdam", "ASGD", "Adamax", "Adadelta")
    return "capturable" not in way or name not in ("SGD", "Momentum", "Nesterov", "Adagrad", "RAdam")


class Setting(NamedTuple):
    """What is tried.

    Attributes:
        name: The optimizer, one of ``OPTIMIZERS``.
        way: One of ``WAYS``.
        dtype: Type of parameter and gradient.
        hyper: Hyperparameters under torch's names.
        in_group: Whether other gradients are added.
        others: How many gradients are averaged with this one.
        loss_scale: Factor on the gradient until the step.
        rounding: "nearest" or "truncate".
        ladder: The ladder.
        exponents: Ranges of the exponents of parameters and gradients.
        n_steps: Steps that are taken before.
        arbitrary: Whether the state is then replaced by an arbitrary one.
    """

    name: str
    way: str
    dtype: str
    hyper: dict[str, Any]
    in_group: bool
    others: int
    loss_scale: float
    rounding: str
    ladder: Ladder
    exponents: tuple[tuple[float, float], tuple[float, float]]
    n_steps: int
    arbitrary: bool

    @property
    def torch_name(self) -> str:
        """The name of torch's class."""
        return "SGD" if self.name in ("Momentum", "Nesterov") else self.name


def drawn(rng: np.random.Generator, name: str, way: str, dtype: str) -> Setting:
    """Draw a setting."""

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    hyper: dict[str, Any] = {
        "lr": one(1.0, 0.1, 1e-3, 3e-5),
        "weight_decay": one(0.0, 0.0, 1e-4, 0.1),
        "maximize": one(False, True),
    }
    eps = one(1e-8, 1e-8, 1e-15, 1e-2, 0.0)
    match name:
        case "Momentum":
            hyper |= {"momentum": one(0.9, 0.99, 0.5), "dampening": one(0.0, 0.4, 1.0)}
        case "Nesterov":
            hyper |= {"momentum": one(0.9, 0.5), "nesterov": True}
        case "Adagrad":
            hyper |= {"lr_decay": one(0.0, 0.2), "eps": eps, "initial_accumulator_value": one(0.0, 0.3)}
        case "RMSprop":
            hyper |= {"alpha": one(0.99, 0.5, 0.0), "eps": eps, "momentum": one(0.0, 0.9)}
        case "Adam" | "AdamW":
            betas = one(0.9, 0.5, 0.0), one(0.999, 0.99, 0.5, 0.0)
            hyper |= {"betas": betas, "eps": eps, "amsgrad": one(False, True)}
        case "NAdam" | "RAdam":
            betas = one(0.9, 0.5, 0.0), one(0.999, 0.99, 0.5, 0.0)
            hyper |= {"betas": betas, "eps": eps, "decoupled_weight_decay": one(False, True)}
            if name == "NAdam":
                hyper |= {"momentum_decay": one(4e-3, 0.0, 1.0)}
            else:  # without eps torch divides zero by zero
                hyper |= {"eps": max(eps, 1e-6 if dtype == "float16" else 1e-15)}
        case "Adamax":
            hyper |= {"betas": (one(0.9, 0.5, 0.0), one(0.999, 0.9, 0.0)), "eps": eps}
        case "Adadelta":
            hyper |= {"rho": one(0.9, 0.99, 0.5, 0.0), "eps": one(1e-6, 1e-3, 0.1)}
        case "ASGD":
            hyper |= {"lambd": one(0.0, 1e-4, 0.1), "t0": 1.0}
    exponents = [((-6, 0), (-14, -6)), ((-6, 0), (-6, 2)), ((0, 1), (-2, 3))]
    if dtype != "float16":
        exponents += [((-6, 0), (-30, -10)), ((-30, 30), (-45, 25))]
    in_group = one(False, True)
    fine = [FINE_LADDER[dtype], PAPER_LADDER.get(dtype, FINE_LADDER[dtype]), Ladder(tuple(range(0, 7)))]
    return Setting(
        name,
        way,
        dtype,
        hyper,
        in_group,
        one(0, 1, 3) if in_group else 0,
        one(1.0, 8.0, 1024.0, 1000.0),
        one("nearest", "nearest", "truncate"),
        one(*fine),
        one(*exponents),
        one(0, 1, 2),
        one(False, True),
    )


def wild(rng: np.random.Generator, exponents: tuple[float, float], dtype: str) -> Any:
    """Draw a tensor of both signs, exponents anywhere in a range, one in ten zero."""
    x = rng.choice([-1.0, 1.0], N) * np.exp2(rng.uniform(*exponents, N)) * (rng.random(N) > 0.1)
    return torch.from_numpy(x).to(getattr(torch, dtype))


def real_optimizer(setting: Setting, theta: Any, state: dict[str, Any], way: dict[str, bool]) -> tuple[Any, Any]:
    """Return (parameter, optimizer) of torch, in a given state (empty before the first step)."""
    param = theta.clone()
    optimizer = getattr(torch.optim, setting.torch_name)([param], **setting.hyper, **way)
    if state:
        optimizer.state[param] = {
            key: value.clone() if torch.is_tensor(value) else value for key, value in state.items()
        }
    return param, optimizer


def after_step(
    setting: Setting, theta: Any, state: dict[str, Any], grad: Any, way: dict[str, bool], scale: float = 1.0
) -> tuple[Any, dict[str, Any]]:
    """Return parameter and state after torch's own step with a gradient that still has the loss scale in it."""
    param, optimizer = real_optimizer(setting, theta, state, way)
    param.grad = grad.clone()
    if scale == 1.0:
        optimizer.step()
    elif grad.dtype == torch.float16:  # which torch's scaler refuses: it is for master weights
        param.grad.mul_(1.0 / scale)
        optimizer.step()
    else:
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(torch.zeros(()))
        scaler.step(optimizer)
    return param, optimizer.state[param]


def widened(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state in float64, steps excepted."""
    return {
        key: value.double() if torch.is_tensor(value) and key not in SINGLE else value for key, value in state.items()
    }


def states(setting: Setting, rng: np.random.Generator) -> tuple[Any, dict[str, Any]]:
    """Return a parameter and its state, of consecutive steps or arbitrary."""
    theta = wild(rng, setting.exponents[0], setting.dtype)
    state: dict[str, Any] = {}
    way = WAYS[setting.way]
    for _ in range(setting.n_steps):
        end, state = after_step(setting, theta, state, wild(rng, setting.exponents[1], setting.dtype), way)
        theta = torch.where(torch.isfinite(end), end, torch.ones_like(end))
    for key, value in state.items():
        if key == "step":
            state[key] = value if not setting.arbitrary else torch.full_like(value, float(rng.integers(2000)))
        elif key in SINGLE:  # both are at most their first value
            state[key] = value if not setting.arbitrary else value * float(rng.random())
        elif setting.arbitrary and torch.is_tensor(value):
            drawn_state = wild(rng, setting.exponents[1], setting.dtype)
            state[key] = drawn_state if key in ("exp_avg", "momentum_buffer") else drawn_state**2
    return theta, state


def arrays(state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with arrays for tensors."""
    return {key: value.numpy() if torch.is_tensor(value) else value for key, value in state.items()}


class Found(NamedTuple):
    """What a setting came to.

    Attributes:
        n_values: Values whose step was compared.
        n_rounded: How many of them were rounded.
        n_beyond: How many were beyond the bound.
        worst: The largest difference, as a share of what is allowed.
        example: Words for the first one beyond the bound.
    """

    n_values: int
    n_rounded: int
    n_beyond: int
    worst: float
    example: str


@np.errstate(all="ignore")
def compare(setting: Setting, rng: np.random.Generator) -> Found:
    """Take the two steps and compare them with the bound."""
    hyper, dtype, scale = setting.hyper, setting.dtype, setting.loss_scale
    theta, state = states(setting, rng)
    grad = wild(rng, setting.exponents[1], dtype) * scale
    others = [wild(rng, setting.exponents[1], dtype) * scale for _ in range(setting.others)]
    if others and rng.random() < 0.5:
        others[0] = grad * -1.25
    way = WAYS[setting.way]
    param, optimizer = real_optimizer(setting, theta, state, way)
    levels = levels_for(optimizer, param, grad, ladder=setting.ladder, loss_scale=scale, in_group=setting.in_group)
    coded = gcodec.decode(
        gcodec.encode(grad, levels=levels, ladder=setting.ladder, rounding=setting.rounding, options=ROUNDING)
    )

    means = [
        (sum((other.double() for other in others), x.double()) / (1 + len(others))).to(theta.dtype)
        for x in (grad, coded)
    ]
    (one, _), (two, _) = (after_step(setting, theta, state, mean, way, scale) for mean in means)
    plain, wide = {"foreach": False}, widened(state)
    exact = means[0].double() / scale
    end, end_state = after_step(setting, theta.double(), wide, exact, plain)
    first, second, th, g = (x.double().numpy() for x in (one, two, theta, exact))
    end64 = end.numpy()
    facts = setting.name, hyper, arrays(wide), arrays(end_state)
    if setting.torch_name in LINEAR:
        n = after_step(setting, theta.double(), wide, torch.zeros_like(exact), plain)[0].numpy()
    else:
        n = end64 - gradient_term(*facts, g)

    p = MANTISSA_BITS[dtype]
    unit, info = 2.0 ** -(p + 1), torch.finfo(theta.dtype)
    tiny, huge = info.smallest_normal, info.max
    # What torch's own arithmetic may add; a number below the normal range is as inexact as the smallest in it.
    decay = hyper["weight_decay"] + hyper.get("lambd", 0.0)
    past = np.abs(wide["momentum_buffer"].numpy()) if wide.get("momentum_buffer") is not None else 0.0
    inflow = np.abs(g) + decay * np.abs(th) + tiny
    if setting.torch_name in LINEAR:
        parts = hyper["lr"] * 3 * (inflow + 2 * past)
        squares = np.ones_like(g)
    else:
        moment = inflow
        if "betas" in hyper:
            moment = (np.abs(wide["exp_avg"].numpy() if wide else 0.0) + inflow) / (1 - hyper["betas"][0])
        parts = np.abs(gradient_term(*facts, np.ones_like(g))) * moment
        parts = parts + hyper["lr"] * (past + decay * np.abs(th))
        key = {"Adagrad": "sum", "RMSprop": "square_avg", "Adadelta": "square_avg", "Adamax": "exp_inf"}.get(
            setting.name, "exp_avg_sq"
        )
        squares = end_state[key].numpy()
    largest = np.maximum(np.maximum(np.abs(first), np.abs(second)), tiny)
    ulp = np.exp2(np.floor(np.log2(largest)) - p)
    if setting.name == "NAdam":  # which adds its terms one after the other
        ulp = 2 * ulp
    allowed = (2 if setting.rounding == "truncate" else 1) * unit * np.abs(n) * (1 + 2.0**-12) + ulp + 24 * unit * parts
    if setting.name == "Adagrad":  # foreach multiplies rate and gradient before it divides: that may be denormal
        allowed = allowed + 2 * unit * tiny / np.sqrt(squares)

    sent, h = grad.double().numpy(), (-1.0 if hyper["maximize"] else 1.0) * g
    is_decoupled = setting.name == "AdamW" or hyper.get("decoupled_weight_decay", False)
    coupled = 0.0 if setting.torch_name in LINEAR or is_decoupled else decay
    checked = np.isfinite(first) & np.isfinite(end64) & np.isfinite(parts)
    checked &= (np.abs(sent) >= tiny) & (np.abs(sent) <= huge / 2)  # not pruned, and not truncated near overflow
    checked &= np.abs(h + coupled * th) >= (np.abs(h) + coupled * np.abs(th)) / 8
    checked &= (squares >= 4 * tiny) & (squares <= huge)
    if setting.torch_name in LINEAR:
        checked &= 3 * (inflow + 2 * past) <= huge / 2
    else:  # torch's other denominators, with the learning rate in them
        root = np.sqrt(squares)
        if "betas" in hyper:
            (b1, b2), t = hyper["betas"], float(end_state["step"])
            root = root * np.maximum(1.0, (1 - b1**t) / np.sqrt(1 - b2**t))
        checked &= (root / hyper["lr"] <= huge / 8) & (root * np.minimum(1.0, 1 / hyper["lr"]) >= 4 * tiny)
        checked &= (np.abs(g) <= np.sqrt(huge)) & (parts <= huge / 8)
    apart = np.abs(first - second)
    beyond = checked & ~(apart <= allowed)
    rounded = checked & (coded != grad).numpy()
    example = ""
    if beyond.any():
        i = int(np.flatnonzero(beyond)[0])
        example = (
            f"{setting}: theta {th[i]!r}, gradient {sent[i]!r}, level {levels[i]}, ends {first[i]!r} and "
            f"{second[i]!r}, exactly {end64[i]!r}, N {n[i]!r}, parts {parts[i]!r}, squares {squares[i]!r}"
        )
    worst = float((apart[checked] / allowed[checked]).max()) if checked.any() else 0.0
    return Found(int(checked.sum()), int(rounded.sum()), int(beyond.sum()), worst, example)


@contextlib.contextmanager
def capturable_on_the_cpu() -> Iterator[None]:
    """A context in which torch's capturable steps, which it refuses on a CPU, run on one; they need no CUDA."""
    from torch.optim import adadelta, adam, adamax, adamw, asgd, nadam, rmsprop

    check = "_get_capturable_supported_devices"
    modules: list[Any] = [adadelta, adam, adamax, asgd, nadam, rmsprop]
    if hasattr(adamw, check):  # torch 2.6; later, AdamW's step is Adam's
        modules.append(adamw)
    before = getattr(adam, check, None)
    if before is None or not all(hasattr(module, check) for module in modules):
        pytest.skip("this torch checks the device of capturable steps in another way")
    for module in modules:
        setattr(module, check, lambda *_, **__: ["cpu"])
    try:
        yield
    finally:
        for module in modules:
            setattr(module, check, before)


def tried(name: str, way: str, dtype: str, seeds: range) -> list[Found]:
    """Return what settings of a kind came to."""
    context = capturable_on_the_cpu() if "capturable" in way else contextlib.nullcontext()
    found = []
    with context:
        for seed in seeds:
            rng = np.random.default_rng([seed, OPTIMIZERS.index(name), list(WAYS).index(way), TYPES.index(dtype)])
            found.append(compare(drawn(rng, name, way, dtype), rng))
    return found


KINDS = [(name, way, dtype) for name in OPTIMIZERS for way in WAYS for dtype in TYPES if is_there(name, way, dtype)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("way", WAYS)
def test_a_real_step_stays_within_the_bound(way, dtype):
    found = [one for kind in KINDS if kind[1:] == (way, dtype) for one in tried(*kind, range(6))]
    assert not any(one.n_beyond for one in found), [one.example for one in found if one.example]
    assert sum(one.n_rounded for one in found) > 100


@pytest.mark.parametrize("name", ["RMSprop", "Adam", "AdamW", "NAdam", "ASGD", "Adamax", "Adadelta"])
def test_capturable_steps_are_refused_on_a_cpu_by_torch(name):
    """Otherwise there is no need to replace torch's check."""
    param = torch.ones(3)
    param.grad = torch.ones(3)
    with pytest.raises((AssertionError, RuntimeError), match="capturable"):
        getattr(torch.optim, name)([param], capturable=True).step()


ADAPTIVE: list[tuple[str, dict[str, Any]]] = [
    ("Adagrad", {"lr_decay": 0.0, "initial_accumulator_value": 0.0}),
    ("RMSprop", {"alpha": 0.0, "momentum": 0.0}),
    ("RMSprop", {"alpha": 0.9, "momentum": 0.9}),
    ("Adam", {"betas": (0.0, 0.0), "amsgrad": False}),
    ("Adam", {"betas": (0.9, 0.999), "amsgrad": True}),
    ("AdamW", {"betas": (0.9, 0.99), "amsgrad": False}),
    ("NAdam", {"betas": (0.9, 0.99)}),
    ("RAdam", {"betas": (0.9, 0.9)}),
    ("Adadelta", {"rho": 0.9}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("name", "hyper"), ADAPTIVE)
def test_rounding_a_gradient_makes_no_square_of_it_infinite(name, hyper, dtype):
    """If g squared is just below the range, the square of g rounded up would be beyond it, and the state forever."""
    rng = np.random.default_rng(8)
    kind = getattr(torch, dtype)
    huge, p = torch.finfo(kind).max, MANTISSA_BITS[dtype]
    share = 1 - hyper["rho"] if name == "Adadelta" else 1.0
    share = 1 - hyper["alpha"] if name == "RMSprop" else 1 - hyper["betas"][1] if "Adam" in name else share
    n_saved = 0
    for decay in (0.0, 0.5):
        common = {"lr": 1e-3, "weight_decay": decay, "eps": 1e-6, "maximize": False}
        setting = Setting(
            name,
            "single",
            dtype,
            common | hyper,
            False,
            0,
            1.0,
            "nearest",
            FINE_LADDER[dtype],
            ((0, 0), (0, 0)),
            0,
            False,
        )
        theta = torch.full((N,), float(np.sqrt(huge)) * 1e-3, dtype=kind)
        for part in (0.0, 0.5, 0.999):  # of the range, which the squares of the past fill
            edge = np.sqrt(huge * (1 - part) / share) - decay * float(theta[0])
            if not edge < huge / 4:
                continue
            near = edge * (1 - rng.uniform(-1, 1, N) * np.exp2(-rng.uniform(1, p + 1, N)))
            grad = torch.from_numpy(near).to(kind)
            state: dict[str, Any] = {}
            if part:
                _, state = after_step(setting, theta, {}, grad * 0, WAYS["single"])
                for key in state.keys() & {"sum", "square_avg", "exp_avg_sq", "max_exp_avg_sq"}:
                    state[key] = torch.full((N,), huge * part, dtype=kind)
            param, optimizer = real_optimizer(setting, theta, state, WAYS["single"])
            levels = levels_for(optimizer, param, grad, in_group=False)
            coded = gcodec.decode(gcodec.encode(grad, levels=levels, options=ROUNDING))
            ends = [after_step(setting, theta, state, x, WAYS["single"])[1] for x in (grad, coded)]
            for key in ends[0].keys() - {"step"}:
                if torch.is_tensor(ends[0][key]):
                    finite = [torch.isfinite(end[key]) for end in ends]
                    spoilt = finite[0] & ~finite[1]
                    assert not spoilt.any(), (key, decay, part, grad[spoilt][:3])
                    n_saved += int(finite[0].sum())
    assert n_saved


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_real_steps_of_thousands_of_settings_stay_within_the_bound():
    n_each = int(os.environ.get("GCODEC_REAL_STEPS", "60"))
    found = [one for kind in KINDS for one in tried(*kind, range(100, 100 + n_each))]
    beyond = [one for one in found if one.n_beyond]
    n_values, n_rounded = sum(one.n_values for one in found), sum(one.n_rounded for one in found)
    record(
        "near-lossless bound: real steps of torch's optimizers (single, foreach, fused, differentiable, capturable; "
        "float32, float64, bfloat16, float16; loss scale; alone and in a group)",
        len(found),
        len(beyond),
        f"{n_values:,} values, {n_rounded:,} rounded, {sum(one.n_beyond for one in found)} beyond the bound; "
        f"the worst at {max(one.worst for one in found):.2f} of it",
    )
    assert not beyond, [one.example for one in beyond[:5]]
    assert n_rounded > 100 * len(found)
