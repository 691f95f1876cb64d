"""Levels at which the values of a buffer on a CUDA device may be sent: :mod:`levels` for GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from ... import gpu
from ...truncation.optimizers import RULES, OptimizerView, counted
from ..gradients import GradientSegment, flat_tensor
from .level_chooser import LevelChooser, OptimizerEntry, TensorBatch


class GpuLevelChooser(LevelChooser):
    """Chooses the levels of a near-lossless all-reduce on a device, where parameters and optimizers' state are too.

    It waits for the device once, where an optimizer counts its steps there.
    """

    def graded(self, parts: Sequence[tuple[int, torch.Tensor]], kind: int) -> list[torch.Tensor]:
        """Return the levels of parts of the buffer, a uint8 tensor for each.

        Args:
            parts: for each part, the position of its first value in the buffer, and its values.
            kind: 0 for a rank's own gradient, 1 for the result.
        """
        policy = self.policies[kind]
        out = [torch.zeros(values.numel(), dtype=torch.uint8, device=values.device) for _, values in parts]
        found: list[tuple[torch.Tensor, OptimizerView, torch.Tensor, torch.Tensor]] = []
        for (begin, values), own in zip(parts, out, strict=True):
            end = begin + values.numel()
            for segment, held in self._others:
                low, high = max(segment.begin, begin), min(segment.end, end)
                if held is not None and low < high:
                    part, here = slice(low - segment.begin, high - segment.begin), slice(low - begin, high - begin)
                    param, view = self._seen(segment, held)
                    state: dict[str, Any] = dict(view.state)
                    kept = {key: one if key == "step" else one[part] for key, one in state.items()}
                    found.append((param[part], OptimizerView(view.name, view.hyper, kept), values[here], own[here]))
        if found:
            params, views, grads, targets = zip(*found, strict=True)
            options: dict[str, Any] = {"ladder": policy.ladder, "scale": policy.scale, "loss_scale": policy.loss_scale}
            chosen = gpu.levels_batch(views, params, grads, **options)
            for target, levels in zip(targets, chosen, strict=True):
                target.copy_(levels)
        return out

    @cached_property
    def _steps(self) -> dict[int, float]:
        """Return the steps an optimizer has taken for each parameter, by where the parameter's segment begins."""
        held = [(segment.begin, held.state.get("step", 0)) for segment, held in self._others if held is not None]
        return dict(zip([begin for begin, _ in held], counted([step for _, step in held]), strict=True))

    def _seen(self, segment: GradientSegment, held: OptimizerEntry) -> tuple[torch.Tensor, OptimizerView]:
        """Return a parameter and its optimizer's state, flat, in the order of the gradient's memory."""
        seen: Any = self._views.get(segment.begin)
        if seen is None:
            known = {key: held.state[key] for key in RULES[held.name].state if held.state.get(key) is not None}
            state: dict[str, Any] = {
                key: self._steps[segment.begin] if key == "step" else flat_tensor(one, segment.stride)
                for key, one in known.items()
            }
            seen = flat_tensor(segment.param, segment.stride), OptimizerView(held.name, held.hyper, state)
            self._views[segment.begin] = seen
        found: tuple[torch.Tensor, OptimizerView] = seen
        return found

    def _sorted(self, plain: bool) -> tuple[list[TensorBatch], list[tuple[GradientSegment, OptimizerEntry | None]]]:
        """Leave every tensor to itself: on the GPU one launch takes them all anyway."""
        return [], [(segment, self._held(segment.param)) for segment in self.gradients.segments]
