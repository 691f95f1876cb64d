"""Read a torch optimizer, live or recorded, into what truncation needs, and choose levels for one parameter.

Only torch's own SGD, ASGD, Adagrad, Adadelta, RMSprop (not centered), Adam, AdamW, Adamax, NAdam and RAdam (not
capturable) have a rule (``gcodec.truncation.formulas``). For any other optimizer (Muon, Adafactor, Lion ...), and for
a subclass with a ``step`` of its own, the answer is :class:`Unsupported`: encode losslessly, or with a fixed number of
mantissa bits. Importing this module does not import torch; :func:`view_from_dump` and :func:`levels_for` on arrays
never do.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..dtypes import BY_NAME
from ..errors import InvalidArgument, Unsupported
from ..format.ladders import Array, Ladder, Levels
from ..tensors import as_plain_array, check_has_memory
from . import formulas
from .evaluate import Formula, Policy, dtype_name, run_formula
from .formulas import ADVICE

if TYPE_CHECKING:
    import torch

#: Keys of state that are one number for a parameter, not an array.
NUMBERS = ("step", "mu_product", "eta")
_PLAIN = {float, bool}  #: types of hyperparameters as :func:`hyper_from` returns them; betas are a pair of the first


@dataclass(frozen=True, eq=False)
class OptimizerView:
    """The facts about one parameter's next step that truncation needs.

    Attributes:
        name: torch's class name, a key of ``RULES``.
        hyper: Hyperparameters under torch's names; numbers are floats, flags bools, betas a pair. Tensors become those
            here, for formulas are kept by them, and a tensor whose value is changed in place is equal to itself.
        state: Arrays under torch's names (bfloat16 as uint16 bits), and ``NUMBERS``, such as ``"step"``, the number of
            steps done, as floats; before the first step some or all are absent. Arrays share memory with what they were
            read from.
    """

    name: str
    hyper: Mapping[str, Any]
    state: Mapping[str, Array | float]

    def __post_init__(self) -> None:
        if not all(type(value) in _PLAIN or _is_pair(value) for value in self.hyper.values()):
            object.__setattr__(self, "hyper", hyper_from(self.name, self.hyper))


def _is_pair(value: Any) -> bool:
    """Return True for a pair of floats that are Python's own."""
    return type(value) is tuple and [type(number) for number in value] == [float, float]


def view_from_optimizer(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> OptimizerView:
    """Return the view of a parameter before its optimizer's next step.

    Args:
        optimizer: One of torch's own, live.
        param: One of its parameters.

    Raises:
        Unsupported: An optimizer without a rule, or state that is not in this process's CPU memory.
        InvalidArgument: The optimizer does not hold ``param``.
    """
    return view_from_dump(*held_by(optimizer, param))


def held_by(optimizer: torch.optim.Optimizer, param: torch.Tensor) -> tuple[str, dict[str, Any], Mapping[str, Any]]:
    """Return the optimizer's name, and ``param``'s group and state in it, as they are.

    Raises:
        Unsupported: An optimizer without a rule.
        InvalidArgument: The optimizer does not hold ``param``.
    """
    name = stock_name(optimizer)
    for group in optimizer.param_groups:
        if any(param is member for member in group["params"]):
            return name, group, optimizer.state.get(param, {})
    raise InvalidArgument("the parameter is not in any of the optimizer's groups")


def counted(states: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the ``NUMBERS`` of states, as floats. Waits once for all that are on a CUDA device (``fused``,
    ``capturable``, ASGD)."""
    found = [{key: state[key] for key in NUMBERS if state.get(key) is not None} for state in states]
    on_device = [
        (numbers, key) for numbers in found for key, value in numbers.items() if getattr(value, "is_cuda", False)
    ]
    if on_device:
        import torch

        copies = torch.stack([numbers[key].reshape(()).double() for numbers, key in on_device]).tolist()
        for (numbers, key), value in zip(on_device, copies, strict=True):
            numbers[key] = value
    return [{key: float(value) for key, value in numbers.items()} for numbers in found]


def view_from_dump(name: str, hyper: Mapping[str, Any], state: Mapping[str, Any]) -> OptimizerView:
    """Return the view for an optimizer's name, hyperparameters and state, a dump's or anyone's.

    Args:
        name: torch's class name.
        hyper: Under torch's names; ``lr`` is required, others default as in torch, unknown ones are ignored.
        state: Under torch's names, arrays or tensors or numbers, as they were before the step; absent or None before
            the first step; unknown ones are ignored.

    Raises:
        Unsupported: An optimizer without a rule, or state that is not in this process's CPU memory.
        InvalidArgument: No ``lr``, or values of the wrong type.
    """
    hyperparameters = hyper_from(name, hyper)
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"state must map names to arrays and numbers, not be a {type(state).__name__}")
    values = {key: state[key] for key in RULES[name].state if state.get(key) is not None}
    arrays = {key: _number_of(key, value) if key in NUMBERS else _array(value, key) for key, value in values.items()}
    return OptimizerView(name, hyperparameters, arrays)


def _number_of(key: str, value: Any) -> float:
    """Return a number that a state holds, as a float. Raises InvalidArgument if it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = -1.0
    if not 0 <= number < math.inf:
        name = "step, the number of steps done," if key == "step" else f"{key} of the state"
        raise InvalidArgument(f"{name} must be finite and not negative, not {value!r:.80}")
    return number


def hyper_from(name: str, hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of a view.

    Args:
        name: torch's class name.
        hyper: A dump's or an optimizer's parameter group.

    Raises:
        Unsupported: An optimizer without a rule.
        InvalidArgument: No ``lr``, or values of the wrong type.
    """
    if name not in RULES:
        raise Unsupported(f"no truncation rule for the optimizer {name}: {ADVICE}")
    if not isinstance(hyper, Mapping):
        raise InvalidArgument(f"hyper must map names to hyperparameters, not be a {type(hyper).__name__}")
    if "lr" not in hyper:
        raise InvalidArgument("hyper must have lr, the learning rate")
    defaults = {"lr": 0.0, **RULES[name].hyper}
    return {key: _like(default, hyper.get(key, default), key) for key, default in defaults.items()}


def levels_for(
    source: OptimizerView | torch.optim.Optimizer,
    param: Any,
    grad: Any,
    *,
    ladder: Ladder | None = None,
    loss_scale: float = 1.0,
    in_group: bool = True,
    scale: float = 1.0,
    out: Levels | None = None,
) -> Levels:
    """Return the level of every value of ``grad``, for the step that ``source`` will take on ``param`` next.

    Args:
        source: A view, or the live optimizer that holds ``param``.
        param: The parameter before the step, tensor or array, float32, bfloat16 (arrays: uint16 bits), float16 or
            float64: the one the optimizer updates, so the master weight where there is one.
        grad: As many values, of any of these types, in the shape of ``param``, or either of them flat: element i in
            row-major order belongs to element i of ``param``.
        ladder: Drops per level; None for ``FINE_LADDER`` of the gradient's type.
        loss_scale: The factor on the loss that is still in ``grad``.
        in_group: False promises that the step will see this very gradient: not clipped, not added to.
        scale: What this gradient counts for in the sum or mean, see :class:`gcodec.truncation.evaluate.Policy`. Choose
            levels from the undivided gradient.
        out: uint8, C-contiguous, the size of ``grad``; allocated if None.

    Returns:
        Level indices into the ladder, uint8, in the shape of ``grad`` (``out`` itself, if given).

    Raises:
        Unsupported: No rule for this optimizer (centered RMSprop too), or a tensor that is not dense CPU memory.
        InvalidArgument: Sizes, types or ranges that have no meaning.
    """
    view = source if isinstance(source, OptimizerView) else view_from_optimizer(source, param)
    policy = Policy(ladder, in_group, scale, loss_scale)
    param, grad = _array(param, "param"), _array(grad, "grad")
    check_shapes(grad.shape, param.shape)
    formula = formula_for(view, policy, dtype_name(grad))
    state = [_state_or(initial, view, key, param) for key, initial in arrays_of(view)]
    return run_formula(formula, (param, grad, *state), policy, out)


def check_shapes(grad: Sequence[int], param: Sequence[int]) -> None:
    """Raise InvalidArgument for a gradient of another shape than its parameter's, such as that of its transpose, where
    each value would be another one's; not where either of them is flat. Their sizes are compared elsewhere."""
    if len(grad) > 1 and len(param) > 1 and tuple(grad) != tuple(param):
        raise InvalidArgument(f"grad must have the shape of param, {tuple(param)}, or be flat, not {tuple(grad)}")


def formula_for(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    """Return the formula of a view for gradients of the type ``grad`` (a name). Raises as :func:`levels_for`."""
    if view.name not in RULES:
        raise Unsupported(f"no truncation rule for the optimizer {view.name}: {ADVICE}")
    return RULES[view.name].formula(view, policy, grad)


def arrays_of(view: OptimizerView) -> list[tuple[str, float | None]]:
    """Return the state arrays that a view's rule reads, in order, and what they are before the first step (None: the
    rule does without them)."""
    return RULES[view.name].arrays(view.hyper)


def _sgd(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    hyper = _only(view, "lr", "momentum", "dampening", "weight_decay", "nesterov")
    started = view.state.get("momentum_buffer") is not None
    return formulas.sgd_formula(**hyper, policy=policy, started=started)


def _adagrad(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    hyper = _only(view, "lr", "lr_decay", "eps", "weight_decay", "maximize")
    return formulas.adagrad_formula(_next_step(view), **hyper, policy=policy, grad=grad)


def _rmsprop(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    if view.hyper["centered"]:
        raise Unsupported(f"centered RMSprop has no bound per element: {ADVICE}")
    hyper = _only(view, "lr", "alpha", "eps", "weight_decay", "momentum", "maximize")
    return formulas.rmsprop_formula(**hyper, policy=policy, grad=grad)


def _adam(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    hyper = _only(view, "lr", "betas", "eps", "weight_decay", "maximize")
    decoupled = view.hyper["decoupled_weight_decay"]
    return formulas.adam_formula(_next_step(view), **hyper, decoupled=decoupled, policy=policy, grad=grad)


def _nadam(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    product: Any = view.state.get("mu_product", 1.0)
    decay = view.hyper["momentum_decay"]
    return formulas.nadam_formula(_next_step(view), product, _adam_options(view), decay, policy=policy, grad=grad)


def _radam(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    if view.hyper["capturable"]:
        raise Unsupported(f"capturable RAdam, which computes its rectification in float32, has no bound: {ADVICE}")
    kind = BY_NAME[grad]
    if view.hyper["eps"] < 2.0 ** (2 - (1 << kind.exponent_bits - 1) - kind.mantissa_bits):
        # Until rectification begins, torch's steps of several tensors at once divide eps + sqrt(v) by zero, which is
        # NaN where that is zero, too, and forget it where it is not.
        raise Unsupported(f"RAdam whose eps is 0 in {grad} has no bound: {ADVICE}")
    return formulas.radam_formula(_next_step(view), _adam_options(view), policy=policy, grad=grad)


def _adam_options(view: OptimizerView) -> formulas.AdamOptions:
    hyper = _only(view, "lr", "betas", "eps", "weight_decay", "maximize")
    return formulas.AdamOptions(**hyper, decoupled=view.hyper["decoupled_weight_decay"])


def _adamax(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    hyper = _only(view, "lr", "betas", "eps", "weight_decay", "maximize")
    return formulas.adamax_formula(_next_step(view), **hyper, policy=policy, grad=grad)


def _adadelta(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    hyper = _only(view, "lr", "rho", "eps", "weight_decay", "maximize")
    return formulas.adadelta_formula(**hyper, policy=policy, grad=grad)


def _asgd(view: OptimizerView, policy: Policy, grad: str) -> Formula:
    eta: Any = view.state.get("eta", view.hyper["lr"])
    return formulas.asgd_formula(eta, **_only(view, "lambd", "weight_decay"), policy=policy)


def _momentum(hyper: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    """Return the momentum buffer's row of ``arrays``, if there is momentum."""
    return [("momentum_buffer", None)] if hyper["momentum"] else []


def _adam_arrays(hyper: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    """Return ``arrays`` of Adam and what is like it: its means, and their maximum with amsgrad."""
    names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if hyper.get("amsgrad") else ()))
    return [(name, 0.0) for name in names]


class OptimizerRule(NamedTuple):
    """A row of ``RULES``: what is read of one of torch's optimizers, and by which formula.

    Attributes:
        hyper: The hyperparameters, besides lr, that a step's arithmetic depends on, with torch's defaults. The rest of
            a parameter group (foreach, fused, differentiable, initial_lr ...) does not matter here.
        state: The keys of its state that are read.
        arrays: From hyperparameters, what :func:`arrays_of` returns.
        formula: From (view, policy, name of the gradient's type), the formula.
    """

    hyper: Mapping[str, Any]
    state: tuple[str, ...]
    arrays: Callable[[Mapping[str, Any]], list[tuple[str, float | None]]]
    formula: Callable[[OptimizerView, Policy, str], Formula]


_ADAM = OptimizerRule(
    {
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
        "amsgrad": False,
        "maximize": False,
        "decoupled_weight_decay": False,
    },
    ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"),
    _adam_arrays,
    _adam,
)
_LIKE_ADAM = {key: value for key, value in _ADAM.hyper.items() if key != "amsgrad"}
#: By torch's class name; AdamW before Adam, its base. A new optimizer whose rule has the terms of one of the kernels is
#: a formula in :mod:`gcodec.truncation.formulas` and a row here.
RULES: dict[str, OptimizerRule] = {
    "SGD": OptimizerRule(
        {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False},
        ("momentum_buffer",),
        _momentum,
        _sgd,
    ),
    "Adagrad": OptimizerRule(
        {"lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-10, "initial_accumulator_value": 0.0, "maximize": False},
        ("step", "sum"),
        lambda hyper: [("sum", hyper["initial_accumulator_value"])],
        _adagrad,
    ),
    "RMSprop": OptimizerRule(
        {"alpha": 0.99, "eps": 1e-8, "weight_decay": 0.0, "momentum": 0.0, "centered": False, "maximize": False},
        ("step", "square_avg", "momentum_buffer"),
        lambda hyper: [("square_avg", 0.0), *_momentum(hyper)],
        _rmsprop,
    ),
    "AdamW": _ADAM._replace(hyper={**_ADAM.hyper, "weight_decay": 0.01, "decoupled_weight_decay": True}),
    "Adam": _ADAM,
    "NAdam": OptimizerRule(
        {**_LIKE_ADAM, "momentum_decay": 4e-3},
        ("step", "mu_product", "exp_avg", "exp_avg_sq"),
        _adam_arrays,
        _nadam,
    ),
    "RAdam": OptimizerRule(
        {**_LIKE_ADAM, "capturable": False}, ("step", "exp_avg", "exp_avg_sq"), _adam_arrays, _radam
    ),
    "Adamax": OptimizerRule(
        {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "maximize": False},
        ("step", "exp_avg", "exp_inf"),
        lambda hyper: [("exp_avg", 0.0), ("exp_inf", 0.0)],
        _adamax,
    ),
    "Adadelta": OptimizerRule(
        {"rho": 0.9, "eps": 1e-6, "weight_decay": 0.0, "maximize": False},
        ("square_avg", "acc_delta"),
        lambda hyper: [("square_avg", 0.0), ("acc_delta", 0.0)],
        _adadelta,
    ),
    "ASGD": OptimizerRule({"lambd": 1e-4, "weight_decay": 0.0, "maximize": False}, ("eta",), lambda hyper: [], _asgd),
}


def _only(view: OptimizerView, *names: str) -> dict[str, Any]:
    """Return the hyperparameters of these names."""
    return {name: view.hyper[name] for name in names}


def _next_step(view: OptimizerView) -> int:
    """Return the number of the step that comes next, from 1."""
    return int(view.state.get("step", 0)) + 1


def _state_or(initial: float | None, view: OptimizerView, key: str, param: Array) -> Array | None:
    """Return a state array, or what torch will make of it in the first step."""
    array: Any = view.state.get(key)
    return np.full(param.shape, initial, np.float32) if array is None and initial is not None else array


def _like(default: Any, value: Any, key: str) -> Any:
    """Return a hyperparameter (a tensor, perhaps) in the type of its default."""
    try:
        if isinstance(default, tuple):
            first, second = value
            return float(first), float(second)
        return type(default)(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"hyperparameter {key} cannot be {value!r}") from error


def stock_name(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of torch's own class whose step ``optimizer`` runs, wrapped (schedulers, profiler) or not. Raises
    Unsupported if it has no rule."""
    import torch

    for name in RULES:
        stock: Any = getattr(torch.optim, name)
        if isinstance(optimizer, stock):
            step = optimizer.step
            if getattr(step, "__func__", None) is stock.step or _unwrapped(step) is _unwrapped(stock.step):
                return name
    raise Unsupported(f"no truncation rule for the optimizer {type(optimizer).__name__}: {ADVICE}")


def check_has_rule(optimizer: torch.optim.Optimizer) -> None:
    """Raise Unsupported unless the optimizer has a rule with the settings of each of its groups, InvalidArgument for
    settings without a meaning."""
    name = stock_name(optimizer)
    for group in optimizer.param_groups:
        formula_for(OptimizerView(name, hyper_from(name, group), {}), Policy(), "float32")


def check_takes_averages(optimizer: Any) -> None:
    """Raise InvalidArgument for a torch optimizer that cannot step with averaged gradients: one that asks for a closure
    (LBFGS), or for sparse gradients (SparseAdam)."""
    name = type(optimizer).__name__
    try:
        parameters = inspect.signature(optimizer.step).parameters.values()
    except (AttributeError, TypeError, ValueError):  # it has none that could be looked at
        return
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if needed:
        raise InvalidArgument(
            f"optimizer must be one whose step() needs no {needed[0]}, but {name} takes its gradients from it, within "
            "the step, where they are not averaged"
        )
    if any(kind.__name__ == "SparseAdam" for kind in type(optimizer).__mro__):
        raise InvalidArgument(f"optimizer must take dense gradients, as averages are; {name} takes only sparse ones")


def _unwrapped(function: Any) -> Any:
    """Return a method's function without what wraps it."""
    return inspect.unwrap(getattr(function, "__func__", function))


def _array(values: Any, argument: str) -> Array:
    """Return a numpy array over the memory of an array or tensor; bfloat16 as its uint16 bits. ``argument`` is what it
    is called in errors."""
    if type(values) is np.ndarray:
        return values
    if isinstance(values, np.ndarray):
        return as_plain_array(values, argument)
    if not hasattr(values, "detach"):
        raise InvalidArgument(f"{argument} must be an array or a tensor, not {type(values).__name__}")
    import torch

    if hasattr(values, "to_local") or values.layout != torch.strided or values.device.type != "cpu":
        raise Unsupported(
            "levels_for takes dense tensors in CPU memory: pass the local part, on the CPU; gcodec.gpu.levels_batch "
            "takes CUDA tensors"
        )
    if values.is_complex():
        raise Unsupported(f"no truncation rule for complex numbers: {ADVICE}")
    if not values.is_floating_point() or values.itemsize == 1:
        raise InvalidArgument(f"{argument} must be float32, float64, float16 or bfloat16, not {values.dtype}")
    check_has_memory(values, argument)
    values = values.detach().resolve_neg()
    if values.dtype == torch.bfloat16:
        bits: Array = values.view(torch.int16).numpy()
        return bits.view(np.uint16)
    array: Array = values.numpy()
    return array
