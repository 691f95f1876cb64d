"""``--mode gcomp``: levels for the gradients of a dump, from the optimizer and the state in the same dump."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..archive.encoding_policy import Part
from ..errors import Corruption, GcodecError, InvalidArgument, Unsupported
from ..files import FilePlan, TensorView
from ..files.elements import numpy_dtype, width
from ..files.source import Bytes
from ..format.ladders import FINE_LADDER, PAPER_LADDER
from ..options import LITERAL_GCOMP
from ..recorder import FORMAT, GRAD, PARAM
from ..truncation.optimizers import NUMBERS, RULES, OptimizerView, levels_for, view_from_dump

NEEDS_DUMP = (
    "no optimizer metadata: --mode gcomp needs a dump as gcodec's Recorder writes it (gcodec record shows how); "
    "for other files leave the mode lossless, or use --mantissa-bits"
)


class DumpPolicy:
    """Drops the bits of gradients that cannot change the recorded optimizer's next step.

    Levels are found part by part from the same part of parameter and state, so memory does not grow with the tensors.

    Args:
        plan: A ``.safetensors`` dump.
        ladder: ``"fine"`` or ``"paper"``.
        rounding: ``"nearest"`` or ``"truncate"``.
        literal: GComp as published, whatever ``ladder`` and ``rounding`` say.

    Raises:
        InvalidArgument: The file is no dump.
        Unsupported: A dump of another version, or of an optimizer without a rule.
        Corruption: Its metadata is malformed.
    """

    def __init__(self, plan: FilePlan, ladder: str = "fine", rounding: str = "nearest", literal: bool = False) -> None:
        self._plan = plan
        self._views = {view.name: view for view in plan.tensors}
        self._name, groups = _dump_metadata(plan)
        self._hyper = {name: group for group in groups for name in group["params"]}
        self._ladders = PAPER_LADDER if literal or ladder == "paper" else FINE_LADDER
        self._more: dict[str, Any] = {"rounding": "truncate" if literal else rounding}
        if literal:
            self._more["options"] = LITERAL_GCOMP
        for hyper in groups:
            try:
                view_from_dump(self._name, hyper, {})
            except GcodecError as error:
                raise type(error)(f"{plan.path}: {error}") from error
        self._grads = {view.segment: name for name, view in self._gradients().items()}

    @classmethod
    def for_plan(cls, plan: FilePlan, ladder: str, rounding: str, literal: bool) -> DumpPolicy | None:
        """Return the policy of a file; None for a file without tensors, which has nothing to lose."""
        return None if plan.format == "bytes" else cls(plan, ladder, rounding, literal)

    def options(self, part: Part, data: Bytes) -> dict[str, Any]:
        """Levels for a part of a gradient; nothing, so lossless, for any other tensor."""
        name = self._grads.get(part.segment)
        if name is None:
            return {}
        grad = self._views[f"{GRAD}/{name}"]
        size = width(grad.dtype) or 1
        first, last = part.start // size, part.stop // size
        ladder = self._ladders[grad.dtype]
        param = self._slice(f"{PARAM}/{name}", first, last)
        levels = levels_for(self._view(name, first, last), param, _values(data, grad.dtype), ladder=ladder)
        return {"levels": levels, "ladder": ladder, **self._more}

    def _gradients(self) -> dict[str, TensorView]:
        """Return the gradients that an optimizer will use and that are of a type with a ladder."""
        gradients = {}
        for name in self._hyper:
            grad, param = self._views.get(f"{GRAD}/{name}"), self._views.get(f"{PARAM}/{name}")
            if grad is None or param is None:
                raise Corruption(f"{self._plan.path}: parameter {name!r} lacks its gradient or its value")
            for kind, view in {GRAD: grad, **self._state(name)}.items():
                tensor, shape = f"{self._plan.path}: {kind}/{name}", () if kind in NUMBERS else tuple(param.shape)
                if tuple(view.shape) != shape:
                    raise Corruption(f"{tensor} must have the shape {shape}, not {tuple(view.shape)}")
                if kind in NUMBERS and view.dtype != np.dtype(numpy_dtype(view.dtype) or "V").name:  # that has its bits
                    raise Unsupported(f"{tensor} must be of a type that numpy has, not {view.dtype}")
            if grad.dtype in self._ladders and param.dtype in self._ladders:
                gradients[name] = grad
        return gradients

    def _view(self, name: str, first: int, last: int) -> OptimizerView:
        """Return the optimizer's view of values ``first`` to ``last`` of a parameter."""
        state: dict[str, Any] = {}
        for kind in self._state(name):
            key = f"{kind}/{name}"
            state[kind] = float(self._slice(key, 0, 1)[0]) if kind in NUMBERS else self._slice(key, first, last)
        return view_from_dump(self._name, self._hyper[name], state)

    def _state(self, name: str) -> dict[str, TensorView]:
        """Return what the optimizer's rule reads of the state of a parameter, by kind."""
        found = {kind: self._views.get(f"{kind}/{name}") for kind in RULES[self._name].state}
        return {kind: view for kind, view in found.items() if view is not None}

    def _slice(self, key: str, first: int, last: int) -> np.ndarray:
        view = self._views[key]
        start, size = self._plan.segments[view.segment].start, width(view.dtype) or 1
        return _values(self._plan.source.read(start + first * size, start + last * size), view.dtype)


def _values(data: Bytes, dtype: str) -> np.ndarray:
    numpy_type = numpy_dtype(dtype)
    if numpy_type is None:
        raise Unsupported(f"gradients must be of a type with truncation rules, not {dtype}")
    return data.view(numpy_type)


def _dump_metadata(plan: FilePlan) -> tuple[str, list[dict[str, Any]]]:
    """Return the optimizer's class name and its parameter groups."""
    layout = plan.metadata.get("format", "")
    if not layout.startswith("gcodec-dump-"):
        raise InvalidArgument(f"{plan.path}: {NEEDS_DUMP}")
    if layout != FORMAT:
        raise Unsupported(f"{plan.path}: is a dump of format {layout!r}; this version reads {FORMAT!r}")
    try:
        groups = json.loads(plan.metadata["groups"])
        if not all(isinstance(name, str) for group in groups for name in group["params"]):
            raise TypeError("a parameter's name is not a string")
        return plan.metadata["optimizer"], groups
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Corruption(f"{plan.path}: malformed dump metadata: {error}") from error
