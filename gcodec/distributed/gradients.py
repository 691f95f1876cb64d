"""A flat buffer seen as the gradients of parameters: which values are whose, and at what level each may be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..errors import InvalidArgument
from ..optimizers import STATE, OptimizerView, hyper_from, levels_for, stock_name
from ..valuetypes import ValueType
from .modes import NearLossless

_LAYER = 1 << 14  #: values per block of a frame


class Segment(NamedTuple):
    """Values ``begin ... end`` of a buffer are the gradient of ``param``, in the order of its memory: ``stride``."""

    begin: int
    end: int
    param: torch.Tensor
    stride: tuple[int, ...]


class Gradients:
    """The segments of a buffer, in order and without gaps between those that follow each other."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = sorted(segments, key=lambda segment: segment.begin)
        self.ends = np.array([segment.end for segment in self.segments], np.int64)

    @classmethod
    def of(cls, params: Sequence[torch.Tensor], n_values: int) -> Gradients:
        """Of parameters whose gradients lie end to end in row-major order. Raises InvalidArgument."""
        ends = np.cumsum([param.numel() for param in params], dtype=np.int64)
        if not params or ends[-1] != n_values:
            raise InvalidArgument(f"the parameters do not have {n_values} values in all")
        strides = [torch.empty(param.shape, device="meta").stride() for param in params]
        return cls(
            [
                Segment(int(end) - param.numel(), int(end), param, stride)
                for end, param, stride in zip(ends, params, strides, strict=True)
            ]
        )

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the tensors as they lie in memory: those in another order than row-major count as flat."""
        return [
            tuple(segment.param.shape)
            if torch.empty(segment.param.shape, device="meta").stride() == segment.stride
            else (segment.end - segment.begin,)
            for segment in self.segments
        ]

    def owners(self, begin: int, end: int) -> np.ndarray:
        """The segment that each block of a frame with values ``begin ... end`` is counted for: int64[n_blocks]."""
        middles = np.minimum(np.arange(begin, end, _LAYER) + _LAYER // 2, end - 1)
        return np.searchsorted(self.ends, middles, side="right")


class Rule:
    """The levels of a near-lossless all-reduce, from the optimizers as they are now.

    ``ranks_share``: what one rank's gradient counts for in the step, against the result of the all-reduce: 1 for a mean
    (errors enter divided by the number of ranks, and so add up to the bound once), the number of ranks for a sum.
    """

    def __init__(self, mode: NearLossless, gradients: Gradients, dtype: ValueType, ranks_share: float) -> None:
        self.mode, self.gradients = mode, gradients
        self.ladder = mode.ladder_of(dtype)
        self.loss_scale = float(mode.loss_scale() if callable(mode.loss_scale) else mode.loss_scale)
        self.scales = (ranks_share * mode.scale, mode.scale)
        named = [(stock_name(optimizer), optimizer) for optimizer in mode.optimizers]
        self._groups = {
            id(param): (name, group, optimizer.state)
            for name, optimizer in named
            for group in optimizer.param_groups
            for param in group["params"]
        }
        self._views: dict[int, tuple[OptimizerView, np.ndarray] | None] = {}
        self._hypers: dict[int, dict[str, Any]] = {}

    def levels(self, begin: int, values: np.ndarray, kind: int, out: np.ndarray) -> None:
        """Of ``values``, which are the buffer's from ``begin`` on (bfloat16 as bits), into ``out``, uint8. ``kind``: 0
        for a rank's own gradient, 1 for the result."""
        end = begin + len(values)
        first = int(np.searchsorted(self.gradients.ends, begin, side="right"))
        for index in range(first, len(self.gradients.segments)):
            segment = self.gradients.segments[index]
            if segment.begin >= end:
                break
            low, high = max(segment.begin, begin), min(segment.end, end)
            seen = self._view(index)
            if seen is None:
                out[low - begin : high - begin] = 0
            elif low < high:
                known, param = seen
                part = slice(low - segment.begin, high - segment.begin)
                state = {
                    key: value[part] if isinstance(value, np.ndarray) else value for key, value in known.state.items()
                }
                levels_for(
                    OptimizerView(known.name, known.hyper, state),
                    param[part],
                    values[low - begin : high - begin],
                    ladder=self.ladder,
                    loss_scale=self.loss_scale,
                    scale=self.scales[kind],
                    out=out[low - begin : high - begin],
                )

    def _view(self, index: int) -> tuple[OptimizerView, np.ndarray] | None:
        """What a segment's optimizer knows, in the order of the gradient's memory; None where there is no optimizer."""
        if index not in self._views:
            _, _, param, stride = self.gradients.segments[index]
            found = self._groups.get(id(param))
            seen = None
            if found is not None:
                name, group, states = found
                known, own = STATE[name], states.get(param, {})
                state = {key: _number_or_array(own[key], stride) for key in known if own.get(key) is not None}
                seen = OptimizerView(name, self._hyper(name, group), state), flat_array(param, stride)
            self._views[index] = seen
        return self._views[index]

    def _hyper(self, name: str, group: dict[str, Any]) -> dict[str, Any]:
        """A parameter group's hyperparameters, read once."""
        if id(group) not in self._hypers:
            self._hypers[id(group)] = hyper_from(name, group)
        return self._hypers[id(group)]


def _number_or_array(value: Any, stride: Sequence[int]) -> Any:
    """State as a view has it."""
    return flat_array(value, stride) if torch.is_tensor(value) and value.ndim else float(value)


def flat_array(tensor: torch.Tensor, stride: Sequence[int]) -> np.ndarray:
    """A tensor's values in the order of memory that ``stride`` has: an array [n], bfloat16 as bits; its own memory
    where it has that order itself."""
    tensor = tensor.detach()
    if tensor.stride() != tuple(stride):
        tensor = torch.empty_strided(tensor.shape, tuple(stride), dtype=tensor.dtype).copy_(tensor)
    return bits_or_floats(torch.as_strided(tensor, (tensor.numel(),), (1,)))


def bits_or_floats(flat: torch.Tensor) -> np.ndarray:
    """The memory of a flat tensor as numpy has it; bfloat16 as uint16."""
    array: Any = flat.view(torch.int16).numpy().view(np.uint16) if flat.dtype == torch.bfloat16 else flat.numpy()
    return array
