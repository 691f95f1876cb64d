"""What settings lose of a tensor: squared L2 norms, and settings by the compression factor they come to."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch

from ..compressors import Compressor, Dense, Frames
from ..compressors.contract import Memory, wide
from ..errors import InvalidArgument
from .passes import cut, flat_values

_SLACK = 1 + 1e-9


def square(tensor: torch.Tensor) -> float:
    """The squared L2 norm, added up in float64."""
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2


def loss(setting: Compressor, tensor: torch.Tensor, memory: Memory | None = None) -> float:
    """The squared L2 norm of what a setting loses of a tensor on a single rank. ``memory``: what its factors start
    from; stays as it is."""
    if isinstance(setting, Frames) and setting.optimizer is None:
        if setting.bits is None:
            return 0.0
        if tensor.dtype == torch.float32:
            return float(cut(flat_values(tensor), [setting.bits])[0])
        return square(tensor - rounded_to_bits(tensor, setting.bits))
    outcome = setting.decompressed(tensor, memory=copy.copy(memory))
    return square(tensor - outcome.contribution)


def rounded_to_bits(tensor: torch.Tensor, bits: int) -> torch.Tensor:
    """A tensor with ``bits`` mantissa bits of each value, to nearest, ties to even: what :class:`Frames` sends, but for
    denormals and a second rounding of the average."""
    mantissa, exponent = torch.frexp(tensor.to(wide(tensor.dtype)))
    unit = 2.0 ** (bits + 1)  # frexp's mantissa is in [0.5, 1): the leading bit is one of these
    return torch.ldexp(torch.round(mantissa * unit) / unit, exponent).to(tensor.dtype)


def at_factor(
    compressor: Compressor, factor: float, shape: Sequence[int], dense: Compressor | None = None
) -> Compressor:
    """The setting of a compressor that sends 1 / ``factor`` of a tensor's floats; ``dense``: what that is for a factor
    of 1 or less.

    A density is exactly that; of whole-numbered knobs it is the greatest that sends no more, or the least there is.
    Raises InvalidArgument for a compressor without a knob.
    """
    if factor <= 1:
        return Dense() if dense is None else dense
    if compressor.knob == "density":
        return compressor.at(1 / factor)
    limit, best = math.prod(shape) / factor * _SLACK, None
    for value in whole_values(compressor, shape):
        setting = compressor.at(value)
        if best is None or setting.floats(shape) <= limit:
            best = setting
        else:
            break
    if best is None:
        raise InvalidArgument(f"{compressor!r} has no setting for a factor of {factor}")
    return best


def whole_values(compressor: Compressor, shape: Sequence[int], least: int = 1, most: int = 64) -> list[int]:
    """The values that a whole-numbered knob can have, from ``least`` to ``most`` (or a matrix's own rank)."""
    if compressor.knob == "rank":
        rows = shape[0] if shape else 1
        most = max(min(rows, math.prod(shape[1:])), 1)
    found = []
    for value in range(max(least, 1), most + 1):
        try:
            compressor.at(value)
        except InvalidArgument:
            continue
        found.append(value)
    return found
