"""The choice of a level for each value of a buffer, by the optimizers' rules, read anew at every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ...dtypes import DType
from ...truncation.evaluate import Policy, terms_of
from ...truncation.optimizers import (
    NUMBERS,
    RULES,
    OptimizerView,
    arrays_of,
    formula_for,
    hyper_from,
    levels_for,
    stock_name,
)
from ..gradients import Addressed, Gradients, GradientSegment, flat_array
from ..modes import NearLossless

_MAX_STATES = 3  #: state arrays that a rule reads


class OptimizerEntry(NamedTuple):
    """The optimizer's hold on one parameter.

    Attributes:
        name: The optimizer's name.
        group: Identity of the parameter group.
        hyper: The group's hyperparameters.
        keys: State arrays that the rule reads; True for those that may be absent.
        numbers: Likewise numbers.
        state: The parameter's state, under torch's names.
    """

    name: str
    group: int
    hyper: Mapping[str, Any]
    keys: Sequence[tuple[str, bool]]
    numbers: Sequence[str]
    state: Mapping[str, Any]


class TensorBatch(NamedTuple):
    """Tensors whose levels one call of a kernel's ``of_many`` finds.

    Attributes:
        kernel: The ``of_many``.
        table: int64, a row of begin, end, constants' number and addresses per tensor, in the order of the buffer.
        ends: Where each tensor ends in the buffer.
        terms: The kernel's other arguments, by kind, as in :meth:`LevelChooser.levels`.
    """

    kernel: Any
    table: np.ndarray
    ends: np.ndarray
    terms: tuple[tuple[np.ndarray, Any, Any], ...]


class LevelChooser:
    """Chooses the levels of a near-lossless all-reduce, from the optimizers as they are now.

    Most tensors lie in memory as their gradients do: kernels find the levels of all of these in one call, from a table
    of addresses. The others are copied into the gradient's order, and done one by one.

    Args:
        gradients: The parameters whose gradients the buffer holds.
        dtype: Type of the buffer.
        ranks_share: Weight of one rank's gradient in the step, against the result of the all-reduce: 1 for a mean
            (errors enter divided by the number of ranks, and so add up to the bound once), the number of ranks for a
            sum.
    """

    def __init__(self, mode: NearLossless, gradients: Gradients, dtype: DType, ranks_share: float) -> None:
        self.mode, self.gradients = mode, gradients
        ladder = mode.ladder_of(dtype)
        loss_scale = mode.loss_scale() if callable(mode.loss_scale) else mode.loss_scale
        self.policies = [Policy(ladder, True, scale, loss_scale) for scale in (ranks_share * mode.scale, mode.scale)]
        self._groups = {
            id(param): (name, group, optimizer.state)
            for name, optimizer in ((stock_name(optimizer), optimizer) for optimizer in mode.optimizers)
            for group in optimizer.param_groups
            for param in group["params"]
        }
        self._hypers: dict[int, tuple[Mapping[str, Any], Sequence[tuple[str, bool]], Sequence[str]]] = {}
        self._referenced: list[Any] = []  #: the tensors whose addresses are in tables, which must live as long
        self._views: dict[int, tuple[OptimizerView, np.ndarray]] = {}
        self._batches, self._others = self._sorted(dtype.name == "float32")

    def levels(self, begin: int, values: np.ndarray, kind: int, out: np.ndarray) -> None:
        """Write the levels of a range of the buffer.

        Args:
            begin: Position of the first value in the buffer.
            values: The values, bfloat16 as bits.
            kind: 0 for a rank's own gradient, 1 for the result.
            out: uint8, as many.
        """
        end = begin + len(values)
        for batch in self._batches:
            first = int(np.searchsorted(batch.ends, begin, side="right"))
            batch.kernel(out, values, begin, batch.table[first:], *batch.terms[kind])
        for segment, entry in self._others:
            low, high = max(segment.begin, begin), min(segment.end, end)
            if low < high:
                part, here = slice(low - segment.begin, high - segment.begin), slice(low - begin, high - begin)
                self._levels(segment, entry, part, values[here], kind, out[here])

    def _levels(
        self,
        segment: GradientSegment,
        entry: OptimizerEntry | None,
        part: slice,
        values: np.ndarray,
        kind: int,
        out: np.ndarray,
    ) -> None:
        """Write the levels of the values of a part of one tensor; 0 where no optimizer holds it."""
        if entry is None:
            out[:] = 0
            return
        if segment.begin not in self._views:
            self._views[segment.begin] = _view(segment, entry)
        whole, param = self._views[segment.begin]
        state = {key: value[part] if isinstance(value, np.ndarray) else value for key, value in whole.state.items()}
        view, policy = OptimizerView(whole.name, whole.hyper, state), self.policies[kind]
        ladder, scale, loss_scale = policy.ladder, policy.scale, policy.loss_scale
        levels_for(view, param[part], values, ladder=ladder, scale=scale, loss_scale=loss_scale, out=out)

    def _sorted(self, plain: bool) -> tuple[list[TensorBatch], list[tuple[GradientSegment, OptimizerEntry | None]]]:
        """Return the tensors that kernels for many can take, in batches, and all others.

        Args:
            plain: True if the buffer is float32, for which there are such kernels.
        """
        rows: dict[Any, list[list[int]]] = {}
        terms: dict[Any, list[list[Any]]] = {}  # by kernel, then by kind
        numbers: dict[Any, tuple[Any, int] | None] = {}
        others = []
        for segment in self.gradients.segments:
            entry = self._entry(segment.param)
            addressed = self._addressed(segment, entry) if plain and entry is not None else None
            if entry is None or addressed is None:
                others.append((segment, entry))
                continue
            addresses, tensors = addressed
            # Parameters of one group, as many steps old, with the same states share the constants of their rule.
            held = tuple((key, float(entry.state[key])) for key in entry.numbers if key in entry.state)
            key = (entry.group, held, len(tensors))
            if key not in numbers:
                numbers[key] = self._number(entry, held, terms)
            number = numbers[key]
            if number is None:
                others.append((segment, entry))
                continue
            self._referenced.append(tensors)
            rows.setdefault(number[0], []).append([segment.begin, segment.end, number[1], *addresses])
        return [_batch(kernel, rows[kernel], terms[kernel]) for kernel in rows], others

    def _addressed(self, segment: GradientSegment, entry: OptimizerEntry) -> Addressed | None:
        """Return :func:`_addresses`, which are kept with the layout as long as all tensors are where they were."""
        sources = [id(entry.state.get(key)) for key, _ in entry.keys]  # of tensors that the kept result holds on to
        known, result = self.gradients.addressed.get(segment.begin, (None, None))
        if result is None or known != sources or not _stand(*result):
            result = _addresses(segment, entry)
            self.gradients.addressed[segment.begin] = sources, result
        return result

    def _number(
        self, entry: OptimizerEntry, held: tuple[tuple[str, float], ...], terms: dict[Any, list[list[Any]]]
    ) -> tuple[Any, int] | None:
        """Return the kernel for a parameter's rule, and the number of its constants among those of that kernel.

        Returns None where no kernel for many tensors will do.
        """
        started = entry.state.get("momentum_buffer") is not None
        known = _rule_terms(entry.name, tuple(entry.hyper.items()), held, started, tuple(self.policies))
        if known is None:
            return None
        kernel, by_kind = known
        of_kernel = terms.setdefault(kernel, [[], []])
        for of_kind, arguments in zip(of_kernel, by_kind, strict=True):
            of_kind.append(arguments)
        return kernel, len(of_kernel[0]) - 1

    def _entry(self, param: torch.Tensor) -> OptimizerEntry | None:
        if id(param) not in self._groups:
            return None
        name, group, states = self._groups[id(param)]
        if id(group) not in self._hypers:  # read once
            hyper = hyper_from(name, group)
            keys = [(key, initial is None) for key, initial in arrays_of(OptimizerView(name, hyper, {}))]
            self._hypers[id(group)] = hyper, keys, [key for key in RULES[name].state if key in NUMBERS]
        return OptimizerEntry(name, id(group), *self._hypers[id(group)], states.get(param, {}))


@lru_cache(64)
def _rule_terms(
    name: str,
    hyper: tuple[tuple[str, Any], ...],
    held: tuple[tuple[str, float], ...],
    started: bool,
    policies: tuple[Policy, ...],
) -> tuple[Any, list[Any]] | None:
    """Return the kernel for many tensors of an optimizer's rule and, for each policy, what :func:`terms_of` says.

    Returns None where no such kernel will do. The last are kept, as all buckets of a step ask for the same.

    Args:
        hyper: The hyperparameters, by name.
        held: The numbers of the state, such as the steps done, by name.
        started: True if there is a momentum buffer.
        policies: What the rule may assume, for each kind of values.
    """
    view = OptimizerView(name, dict(hyper), dict(held) | ({"momentum_buffer": 1.0} if started else {}))
    formulas = [formula_for(view, policy, "float32") for policy in policies]
    by_kind = [terms_of(formula, policy) for formula, policy in zip(formulas, policies, strict=True)]
    return None if None in by_kind else (formulas[0].kernel, by_kind)


def _addresses(segment: GradientSegment, entry: OptimizerEntry) -> Addressed | None:
    """Return the addresses of a parameter and its state, and the tensors.

    Returns None unless all are float32 in the gradient's order.
    """
    tensors = [segment.param]
    addresses = [tensors[0].data_ptr()]
    for key, optional in entry.keys:
        tensor = entry.state.get(key)
        if tensor is None and not optional:
            return None
        addresses.append(0 if tensor is None else tensor.data_ptr())
        if tensor is not None:
            tensors.append(tensor)
    for tensor in tensors:
        fit = tensor.dtype == torch.float32 and tensor.is_cpu and tensor.shape == segment.param.shape
        if not fit or tensor.stride() != segment.stride or tensor.numel() != segment.end - segment.begin:
            return None
    return [*addresses, *[0] * (1 + _MAX_STATES - len(addresses))], tensors


def _stand(addresses: list[int], tensors: list[torch.Tensor]) -> bool:
    """Return True if tensors lie at these addresses, 0 standing for one that is absent."""
    return [address for address in addresses if address] == [tensor.data_ptr() for tensor in tensors]


def _batch(kernel: Any, rows: list[list[int]], terms: list[list[Any]]) -> TensorBatch:
    table = np.array(rows, np.int64)
    by_kind = [(np.array([k for k, *_ in kind], np.float32), *kind[0][1:]) for kind in terms]
    return TensorBatch(kernel.of_many, table, table[:, 1].copy(), tuple(by_kind))


def _view(segment: GradientSegment, entry: OptimizerEntry) -> tuple[OptimizerView, np.ndarray]:
    """Return the optimizer's view of a tensor, and the parameter, in the order of the gradient's memory."""
    known = {key: entry.state[key] for key in RULES[entry.name].state if entry.state.get(key) is not None}
    stride = segment.stride
    state = {key: float(value) if key in NUMBERS else flat_array(value, stride) for key, value in known.items()}
    return OptimizerView(entry.name, entry.hyper, state), flat_array(segment.param, stride)
