"""Levels of gradients on a device, by the rules of optimizers whose state is there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..dtypes import BY_NAME, DTYPES
from ..errors import InvalidArgument, Unsupported
from ..kernels.cuda import level_tables as columns
from ..kernels.cuda import native
from ..kernels.cuda.launch_tables import MAX_BLOCK_LOG2
from ..kernels.cuda.level_tables import THRESHOLDS, FloatKinds, RuleArrays
from ..truncation.evaluate import ACCUMULATOR, ADAM, DELTA, LINEAR, PEAK, Policy, float32_terms
from ..truncation.optimizers import OptimizerView, arrays_of, check_shapes, counted, formula_for, held_by, hyper_from
from .gpu_memory import Memory

if TYPE_CHECKING:
    import torch

_KINDS = {t.name: t.float_kind for t in DTYPES if t.float_kind is not None}
#: The device's kernel for each of the host's.
_KERNELS = {
    LINEAR: native.LINEAR_CHOOSER,
    ACCUMULATOR: native.ACCUMULATOR_CHOOSER,
    ADAM: native.ADAM_CHOOSER,
    DELTA: native.DELTA_CHOOSER,
    PEAK: native.PEAK_CHOOSER,
}
_ROLES = 5  #: gradient, parameter, three of state

Terms = tuple[tuple[Any, ...], tuple[int, ...]]


class LevelRequest(NamedTuple):
    """A gradient for which levels are asked.

    Attributes:
        grad: The gradient, on the device.
        param: Its parameter, on the device.
        known: How the optimizer holds the parameter; arrays of its state are on the device, too.
    """

    grad: Any
    param: Any
    known: OptimizerView


class _KernelArguments(NamedTuple):
    """A :class:`LevelRequest` as kernels take it.

    Attributes:
        rule: The host's kernel of the optimizer's rule.
        arrays: Array of each role (gradient, parameter, state), None where there is none.
        types: Name of each array's type.
        n: Number of values.
        terms: Constants and thresholds of the rule; None if all values have level 0.
    """

    rule: Any
    arrays: tuple[Any, ...]
    types: tuple[str, ...]
    n: int
    terms: Terms | None


def choose(memory: Memory, requests: Sequence[LevelRequest], policy: Policy) -> list[Any]:
    """Choose levels for each gradient, bit for bit those of ``gcodec.truncation.optimizers.levels_for``.

    Waits for nothing.

    Args:
        memory: The device.
        requests: The gradients, their parameters and state.
        policy: Ladder and bounds.

    Returns:
        Flat tensors of uint8, which lie one after another on the device.

    Raises:
        InvalidArgument: Sizes that differ, or tensors that lie elsewhere.
        Unsupported: There is no rule for the optimizer, or for a type.
    """
    seen = [_see(memory, request, policy) for request in requests]
    ends = np.cumsum([tensor.n for tensor in seen], dtype=np.int64)
    out = memory.empty(int(ends[-1]) if requests else 0, "uint8")
    groups: dict[Any, list[int]] = {}
    for number, tensor in enumerate(seen):
        if tensor.n:
            groups.setdefault((tensor.rule, tensor.types), []).append(number)
    for (rule, types), numbers in groups.items():
        starts = [int(ends[i]) - seen[i].n for i in numbers]
        _launch(memory, rule, types, [seen[i] for i in numbers], starts, out)
    return [memory.part(out, int(end) - tensor.n, int(end)) for tensor, end in zip(seen, ends, strict=True)]


def views_of(optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor]) -> list[OptimizerView]:
    """Return how an optimizer holds parameters, its state as it is.

    Waits for the device where the optimizer counts steps (``capturable``, ``fused``) or keeps hyperparameters there.

    Raises:
        InvalidArgument: The optimizer does not hold a parameter.
        Unsupported: There is no rule for the optimizer.
    """
    held = [held_by(optimizer, param) for param in params]
    hypers = {id(group): hyper_from(name, group) for name, group, _ in held}
    numbers = counted([state for _, _, state in held])
    return [
        OptimizerView(name, hypers[id(group)], {**state, **own})
        for (name, group, state), own in zip(held, numbers, strict=True)
    ]


def _see(memory: Memory, request: LevelRequest, policy: Policy) -> _KernelArguments:
    """Return a request as kernels take it. Raises InvalidArgument for sizes that differ, Unsupported for types."""
    grad, grad_type, shape = memory.see(request.grad, "grad")
    param, param_type, param_shape = memory.see(request.param, "param")
    n = math.prod(shape)
    check_shapes(shape, param_shape)
    roles: list[tuple[Any, str]] = [(grad, grad_type.name), (param, param_type.name)]
    sizes = [math.prod(param_shape), n]
    for key, initial in arrays_of(request.known):
        array: Any = request.known.state.get(key)
        if array is None:
            roles.append((None if initial is None else memory.full(n, initial), "float32"))
        else:
            state, state_type, state_shape = memory.see(array, f"state[{key!r}]")
            roles.append((state, state_type.name))
            sizes.append(math.prod(state_shape))
    roles += [(None, "float32")] * (_ROLES - len(roles))
    if any(size != n for size in sizes):
        raise InvalidArgument(f"param, grad and state differ in size: {sizes}")
    types = tuple(name for _, name in roles)
    other = next((name for name in types if name not in _KINDS), None)
    if other is not None:
        raise Unsupported(
            f"grad, param and state must be of {', '.join(_KINDS)} on CUDA devices, not {other}; "
            "choose levels on the host"
        )
    formula = formula_for(request.known, policy, types[0])
    arrays = tuple(array for array, _ in roles)
    held = [name for array, name in roles[2:] if array is not None]
    terms = float32_terms(formula, policy, types[1], types[0], held)
    return _KernelArguments(formula.kernel, arrays, types, n, terms)


def _launch(
    memory: Memory, rule: Any, types: tuple[str, ...], seen: Sequence[_KernelArguments], starts: Sequence[int], out: Any
) -> None:
    """Choose the levels of tensors of the same types by one rule, in one launch: from ``out[starts[i]]`` on each."""
    rows = np.full((len(seen), 10), -1, np.int64)
    arrays = []
    for role, name in enumerate(types):
        holders = [number for number, tensor in enumerate(seen) if tensor.arrays[role] is not None]
        if holders:
            width = BY_NAME[name].bits
            array, places = memory.span([seen[number].arrays[role] for number in holders], f"uint{width}")
            rows[holders, role] = places
        arrays.append(array if holders else memory.empty(1, "uint32"))
    counts = [-(-tensor.n >> MAX_BLOCK_LOG2) for tensor in seen]
    constants, thresholds, which = _tables([tensor.terms for tensor in seen], rule.n_constants)
    rows[:, columns.COUNT] = [tensor.n for tensor in seen]
    rows[:, columns.BLOCK_AT] = np.cumsum([0, *counts[:-1]])
    rows[:, columns.WHICH], rows[:, columns.OUT] = which, starts
    rows[:, columns.TOP] = [0 if tensor.terms is None else len(tensor.terms[1]) for tensor in seen]
    owner = np.repeat(np.arange(len(seen), dtype=np.int32), counts)
    tables = (memory.send(array) for array in (rows, owner, constants, thresholds))
    kinds = FloatKinds(*(np.uint32(_KINDS[name]) for name in types))
    memory.launch(_KERNELS[rule], len(owner), RuleArrays(*arrays), kinds, *tables, out)


def _tables(terms: Sequence[Terms | None], n_constants: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return the different constants and thresholds, a row each, and the number of the row of every tensor."""
    numbers: dict[Terms | None, int] = {}
    which = [numbers.setdefault(own, len(numbers)) for own in terms]
    constants = np.zeros((len(numbers), n_constants), np.float32)
    thresholds = np.full((len(numbers), THRESHOLDS), np.inf, np.float32)
    for distinct, number in numbers.items():
        if distinct is not None:
            k, exponents = distinct
            constants[number] = k
            thresholds[number, : len(exponents)] = [math.ldexp(1.0, exponent) for exponent in exponents]
    return constants, thresholds, which
