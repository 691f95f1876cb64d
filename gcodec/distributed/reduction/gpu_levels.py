"""Levels at which the values of a buffer on a CUDA device may be sent: :mod:`level_chooser` for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from ... import gpu
from ...truncation.optimizers import NUMBERS, RULES, OptimizerView, counted
from ..gradients import GradientSegment, flat_tensor
from .level_chooser import LevelChooser, OptimizerEntry, TensorBatch


class GpuLevelChooser(LevelChooser):
    """Chooses the levels of a near-lossless all-reduce on a device, where parameters and optimizers' state are too.

    It waits for the device once, where an optimizer counts its steps there.
    """

    def graded(self, parts: Sequence[tuple[int, torch.Tensor]], kind: int) -> list[torch.Tensor]:
        """Return the levels of parts of the buffer, a uint8 tensor for each.

        Args:
            parts: For each part, the position of its first value in the buffer, and its values.
            kind: 0 for a rank's own gradient, 1 for the result.
        """
        policy = self.policies[kind]
        out = [torch.zeros(values.numel(), dtype=torch.uint8, device=values.device) for _, values in parts]
        # For all overlaps of a part with a parameter's segment: parameter, state, gradient, and where its levels go.
        overlaps: list[tuple[torch.Tensor, OptimizerView, torch.Tensor, torch.Tensor]] = []
        for (begin, values), levels in zip(parts, out, strict=True):
            end = begin + values.numel()
            for segment, entry in self._others:
                low, high = max(segment.begin, begin), min(segment.end, end)
                if entry is not None and low < high:
                    part, here = slice(low - segment.begin, high - segment.begin), slice(low - begin, high - begin)
                    param, view = self._view(segment, entry)
                    state: dict[str, Any] = dict(view.state)
                    of_part = {key: value if key in NUMBERS else value[part] for key, value in state.items()}
                    partial_view = OptimizerView(view.name, view.hyper, of_part)
                    overlaps.append((param[part], partial_view, values[here], levels[here]))
        if overlaps:
            params, views, grads, targets = zip(*overlaps, strict=True)
            options: dict[str, Any] = {"ladder": policy.ladder, "scale": policy.scale, "loss_scale": policy.loss_scale}
            chosen = gpu.levels_batch(views, params, grads, **options)
            for target, levels in zip(targets, chosen, strict=True):
                target.copy_(levels)
        return out

    @cached_property
    def _numbers(self) -> dict[int, dict[str, float]]:
        """Return the numbers that an optimizer's state holds of each parameter, by where the parameter's segment
        begins."""
        held = [(segment.begin, entry.state) for segment, entry in self._others if entry is not None]
        return dict(zip([begin for begin, _ in held], counted([state for _, state in held]), strict=True))

    def _view(self, segment: GradientSegment, entry: OptimizerEntry) -> tuple[torch.Tensor, OptimizerView]:
        """Return a parameter and its optimizer's state, flat, in the order of the gradient's memory."""
        kept: Any = self._views.get(segment.begin)
        if kept is None:
            known = {key: entry.state[key] for key in RULES[entry.name].state if entry.state.get(key) is not None}
            state: dict[str, Any] = {
                key: self._numbers[segment.begin][key] if key in NUMBERS else flat_tensor(value, segment.stride)
                for key, value in known.items()
            }
            kept = flat_tensor(segment.param, segment.stride), OptimizerView(entry.name, entry.hyper, state)
            self._views[segment.begin] = kept
        view: tuple[torch.Tensor, OptimizerView] = kept
        return view

    def _sorted(self, plain: bool) -> tuple[list[TensorBatch], list[tuple[GradientSegment, OptimizerEntry | None]]]:
        """Leave every tensor by itself: on the GPU one launch takes them all anyway."""
        return [], [(segment, self._entry(segment.param)) for segment in self.gradients.segments]
