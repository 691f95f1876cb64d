"""Try several settings on one tensor, each on what the one before it has kept (GraVAC, section IV-C).

A choice of values is made once and refined: the second setting reads the values that the first has chosen, a tenth or a
hundredth of all, and what is sent in the end needs no third choice. Compressors that choose no values are tried on the
tensor as it is, and compress it again when it is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..compressors import Compressor, Dense, RandomK, Sparsifier
from ..compressors.contract import Conversation, Memory, Outcome, Place, all_reduce_mean, key_of, n_kept, tick
from ..compressors.outcome import SparseValues
from ..compressors.randomk import random_subset
from .losses import loss, square


class ProbeResult(NamedTuple):
    """A setting that was tried on a tensor.

    Attributes:
        compressor: Sends the tensor, should this setting be chosen.
        kept: The squared norm of what the setting keeps (``contract.Measured``).
    """

    compressor: Compressor
    kept: float


@dataclass(frozen=True, eq=False)
class Chosen(Compressor):
    """Sends chosen values as a setting would if it had chosen them; for a single step.

    Attributes:
        setting: The setting.
        indices: int64[k], ascending, the chosen values.
    """

    setting: Sparsifier | RandomK
    indices: torch.Tensor

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        if isinstance(self.setting, Sparsifier):
            return (yield from self.setting.send(gradient, self.indices, place))
        flat = gradient.reshape(-1)
        values = flat[self.indices]
        mean = yield from all_reduce_mean(values.clone(), place.size)
        average = torch.zeros_like(flat)
        average[self.indices] = mean
        return Outcome(average.view(gradient.shape), SparseValues(self.indices, values), values.numel())

    def floats(self, shape: Sequence[int]) -> float:
        return self.setting.floats(shape)


def probe_settings(
    fed: torch.Tensor, settings: Sequence[Compressor], memory: Memory, place: Place, nested: bool = True
) -> list[ProbeResult]:
    """Try settings on a tensor, from mild to harsh, and return what each keeps of it.

    Args:
        fed: The tensor, with error feedback.
        memory: Counts the random draws; nothing else in it changes.
        place: The rank and the tensor's name.
        nested: Let each setting choose among the values that the one before has chosen; otherwise among all.
    """
    results: list[ProbeResult] = []
    chosen: SparseValues | None = None
    flat = fed.reshape(-1)
    for setting in settings:
        if isinstance(setting, Dense):
            results.append(ProbeResult(setting, square(fed)))
        elif isinstance(setting, Sparsifier | RandomK) and chooses(setting):
            chosen = _choice(setting, flat, chosen if nested else None, memory, place)
            results.append(ProbeResult(Chosen(setting, chosen.indices), square(chosen.values)))
        else:
            whole = square(fed)
            lost = loss(setting, fed, memory)
            results.append(ProbeResult(setting, whole - lost if lost < whole or math.isnan(lost) else 0.0))
    return results


def chooses(setting: Sparsifier | RandomK) -> bool:
    """Tell whether a setting sends some of the tensor's values as they are."""
    return not getattr(setting, "unbiased" if isinstance(setting, RandomK) else "same_sign", False)


def _choice(
    setting: Sparsifier | RandomK, flat: torch.Tensor, among: SparseValues | None, memory: Memory, place: Place
) -> SparseValues:
    """Return the values that a setting keeps, among those of a milder one, or among all values of the tensor."""
    if isinstance(setting, Sparsifier) and among is not None:
        return setting.refine(among, flat.numel(), memory, place)
    if isinstance(setting, Sparsifier):
        indices = setting.chosen(flat, memory, place)
        return SparseValues(indices, flat[indices])
    return _random_choice(setting, flat, among, memory, place)


def _random_choice(
    setting: RandomK, flat: torch.Tensor, among: SparseValues | None, memory: Memory, place: Place
) -> SparseValues:
    k = n_kept(flat.numel(), setting.density) if flat.numel() else 0
    key = key_of("random-k", setting.seed, place.name, tick(memory))
    if among is None:
        indices = random_subset(flat.numel(), k, key).to(flat.device)
        return SparseValues(indices, flat[indices])
    n = among.indices.numel()
    at = random_subset(n, min(k, n), key).to(flat.device)
    return SparseValues(among.indices[at], among.values[at])
