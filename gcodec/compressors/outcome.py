"""What a conversation comes to: the average, and what a rank's messages amount to; in the form in which it is known,
for a tensor is made only where somebody wants one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch


class Values(NamedTuple):
    """Some values of a tensor: at ``indices``, int64[k], of its flat form; ``values``: k of them, or one for all."""

    indices: torch.Tensor
    values: torch.Tensor


class Product(NamedTuple):
    """A matrix of low rank: ``left`` [m, k] times the transpose of ``right`` [n, k]."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a conversation comes to.

    ``mean``: the estimate of the mean over ranks, the same on all of them: a tensor of the gradient's shape and dtype,
    or what makes one, and then ``shape`` and ``dtype`` are those. ``sent``: what this rank's messages amount to: a
    tensor, or what makes one. ``floats``: what this rank sent, counted as papers do: values, without their indices; a
    value of b bits is b / 32 of one.
    """

    mean: torch.Tensor | Product
    sent: torch.Tensor | Values | Product
    floats: float
    shape: Sequence[int] = ()
    dtype: torch.dtype = torch.float32

    @cached_property
    def average(self) -> torch.Tensor:
        """The mean as a tensor."""
        return self._made(self.mean) if isinstance(self.mean, Product) else self.mean

    def put_into(self, out: torch.Tensor) -> None:
        """Write the average into a tensor of its shape and dtype: a product without making another one first."""
        mean = self.mean
        if isinstance(mean, Product) and out.is_contiguous() and out.dtype == mean.left.dtype:
            torch.mm(mean.left, mean.right.T, out=out.view(len(mean.left), -1))
        else:
            out.copy_(self.average)

    @cached_property
    def finite(self) -> bool:
        """Whether no value of the average is NaN or infinite."""
        if isinstance(self.mean, Product):
            sizes = [factor.abs().amax(0).double() for factor in self.mean]
            if float((sizes[0] * sizes[1]).sum()) < torch.finfo(self.dtype).max / 2:  # no value exceeds this sum
                return True
        return is_finite(self.average)

    @property
    def indices(self) -> torch.Tensor | None:
        """int64[k], where the contribution may differ from zero; None: anywhere."""
        return self.sent.indices if isinstance(self.sent, Values) else None

    @cached_property
    def contribution(self) -> torch.Tensor:
        """What this rank's messages amount to, shape and dtype of the gradient."""
        match self.sent:
            case Values(indices, values):
                flat = torch.zeros_like(self.average, memory_format=torch.contiguous_format).view(-1)
                flat[indices] = values
                return flat.view(self.average.shape)
            case Product():
                return self._made(self.sent)
            case tensor:
                return tensor

    def _made(self, product: Product) -> torch.Tensor:
        return (product.left @ product.right.T).to(self.dtype).view(tuple(self.shape))

    def rest(self, corrected: torch.Tensor, own: bool) -> torch.Tensor:
        """``corrected`` less the contribution, without making one where that is not needed; ``own``: in its place."""
        if isinstance(self.sent, torch.Tensor) or not corrected.is_contiguous():
            return torch.sub(corrected, self.contribution, out=corrected if own else None)
        if isinstance(self.sent, Values):
            left = corrected if own else corrected.clone()
            left.view(-1)[self.sent.indices] -= self.sent.values.to(left.dtype)
            return left
        factors = self.sent.left.to(corrected.dtype), self.sent.right.T.to(corrected.dtype)
        matrix = corrected.view(len(factors[0]), -1)
        return torch.addmm(matrix, *factors, alpha=-1, out=matrix if own else None).view(corrected.shape)


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether no value is NaN or infinite: one sum, unless that overflows."""
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())
