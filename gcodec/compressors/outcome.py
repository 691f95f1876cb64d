"""Results of conversations: the average, and what a rank's messages amount to, in the form in which they are known.

A tensor is made only where somebody wants one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch


class SparseValues(NamedTuple):
    """Some values of a tensor.

    Attributes:
        indices: int64[k], into the flat tensor.
        values: k of them, or one for all.
    """

    indices: torch.Tensor
    values: torch.Tensor


class Summed(NamedTuple):
    """The sum of what ranks have sent of a tensor, in their order and in ``dtype``, divided by ``size``."""

    parts: Sequence[SparseValues]
    size: int
    dtype: torch.dtype

    def put_into(self, flat: torch.Tensor) -> None:
        """Write it into a flat tensor of that dtype."""
        flat.zero_()
        for indices, values in self.parts:
            flat[indices] += values.to(self.dtype)
        flat.div_(self.size)

    @property
    def bound(self) -> float:
        """No value is greater than this; infinity or NaN where one is that."""
        return sum(float(values.abs().max()) for _, values in self.parts if values.numel())


class Product(NamedTuple):
    """A matrix of low rank: ``left`` [m, k] times the transpose of ``right`` [n, k]."""

    left: torch.Tensor
    right: torch.Tensor


class Narrow(NamedTuple):
    """A tensor in a narrower dtype than the gradient's."""

    values: torch.Tensor


class Rounded(NamedTuple):
    """``size`` times what a ``size``-th of ``values`` is in the narrower ``dtype``. Where that is not ``known``, it is
    rounded anew whenever it is wanted, a ``_RUN`` at a time, which takes less than keeping a large one."""

    values: torch.Tensor
    dtype: torch.dtype
    size: int
    known: torch.Tensor | None = None

    def cached(self) -> Rounded:
        """With the narrow values where they are few enough to stay in a cache."""
        return self if self.values.numel() > _KEPT else self._replace(known=self.narrow())

    def narrow(self) -> torch.Tensor:
        """Return a ``size``-th of the values in the narrower dtype."""
        if self.known is not None:
            return self.known
        if self.size == 1:
            return self.values.to(self.dtype)
        found = torch.empty_like(self.values, dtype=self.dtype, memory_format=torch.contiguous_format)
        room, flat, out = self._room(self.values.dtype), self.values.reshape(-1), found.view(-1)
        for begin in range(0, flat.numel(), _RUN):
            part = flat[begin : begin + _RUN]
            out[begin : begin + _RUN].copy_(torch.div(part, self.size, out=room[: part.numel()]))
        return found

    def taken_from(self, flat: torch.Tensor, out: torch.Tensor) -> None:
        """``flat`` less this, both flat, into ``out``, which may be ``flat``."""
        if self.known is not None:
            torch.sub(flat, self.known.view(-1), alpha=self.size, out=out)
            return
        values, room, narrow = self.values.reshape(-1), self._room(self.values.dtype), self._room(self.dtype)
        for begin in range(0, flat.numel(), _RUN):
            part = values[begin : begin + _RUN]
            wide, small = room[: part.numel()], narrow[: part.numel()]
            small.copy_(part if self.size == 1 else torch.div(part, self.size, out=wide))
            whole, rest = flat[begin : begin + _RUN], out[begin : begin + _RUN]
            torch.sub(whole, wide.copy_(small), alpha=self.size, out=rest)

    def _room(self, dtype: torch.dtype) -> torch.Tensor:
        return self.values.new_empty(min(_RUN, self.values.numel()), dtype=dtype)


_RUN = 1 << 16  #: values that stay in the nearest caches while they are rounded
_KEPT = 1 << 18  #: values whose rounded ones are kept


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a conversation.

    ``mean``: the estimate of the mean over ranks, the same on all of them: a tensor of the gradient's shape and dtype,
    or what makes one, and then ``shape`` and ``dtype`` are those. ``sent``: what this rank's messages amount to: a
    tensor, or what makes one. ``floats``: what this rank sent, counted as papers do: values, without their indices; a
    value of b bits is b / 32 of one. ``bound``: no value of the mean is greater, where the compressor knows.
    """

    mean: torch.Tensor | Summed | Product | Narrow
    sent: torch.Tensor | SparseValues | Product | Rounded
    floats: float
    shape: Sequence[int] = ()
    dtype: torch.dtype = torch.float32
    bound: float = math.inf

    @cached_property
    def average(self) -> torch.Tensor:
        """The mean as a tensor."""
        match self.mean:
            case Summed():
                total = self.mean.parts[0].values.new_empty(math.prod(self.shape), dtype=self.mean.dtype)
                self.mean.put_into(total)
                return total.to(self.dtype).view(tuple(self.shape))
            case Product():
                return self._made(self.mean)
            case Narrow(values):
                return values.to(self.dtype)
            case tensor:
                return tensor

    def put_into(self, out: torch.Tensor) -> None:
        """Write the average into a tensor of its shape and dtype, without making another one first where that is not
        needed."""
        mean = self.mean
        if isinstance(mean, Narrow):
            out.copy_(mean.values)
        elif isinstance(mean, Summed) and out.is_contiguous() and out.dtype == mean.dtype:
            mean.put_into(out.view(-1))
        elif isinstance(mean, Product) and out.is_contiguous() and out.dtype == mean.left.dtype:
            torch.mm(mean.left, mean.right.T, out=out.view(len(mean.left), -1))
        else:
            out.copy_(self.average)

    @cached_property
    def finite(self) -> bool:
        """No value of the average is NaN or infinite."""
        bound = self.mean.bound if isinstance(self.mean, Summed) else self.bound
        if bound < torch.finfo(self.dtype).max / 2:
            return True
        return is_finite(self.mean.values if isinstance(self.mean, Narrow) else self.average)

    @property
    def indices(self) -> torch.Tensor | None:
        """int64[k], where the contribution may differ from zero; None: anywhere."""
        return self.sent.indices if isinstance(self.sent, SparseValues) else None

    @cached_property
    def contribution(self) -> torch.Tensor:
        """The tensor that this rank's messages amount to, of the gradient's shape and dtype."""
        match self.sent:
            case SparseValues(indices, values):
                flat = torch.zeros_like(self.average, memory_format=torch.contiguous_format).view(-1)
                flat[indices] = values
                return flat.view(self.average.shape)
            case Product():
                return self._made(self.sent)
            case Rounded(values, _, size):
                return self.sent.narrow().to(values.dtype, copy=True).mul_(size)
            case tensor:
                return tensor

    def _made(self, product: Product) -> torch.Tensor:
        return (product.left @ product.right.T).to(self.dtype).view(tuple(self.shape))

    def rest(self, corrected: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``corrected`` less the contribution, without making one where that is not needed. ``out``: where to, of the
        same shape, dtype and strides; it may be ``corrected`` itself."""
        if isinstance(self.sent, torch.Tensor) or not corrected.is_contiguous():
            return torch.sub(corrected, self.contribution, out=out)
        left = torch.empty_like(corrected) if out is None else out
        if isinstance(self.sent, SparseValues):
            if left is not corrected:
                left.copy_(corrected)
            left.view(-1)[self.sent.indices] -= self.sent.values.to(left.dtype)
        elif isinstance(self.sent, Rounded):
            self.sent.taken_from(corrected.view(-1), left.view(-1))
        else:
            factors = self.sent.left.to(corrected.dtype), self.sent.right.T.to(corrected.dtype)
            torch.addmm(corrected.view(len(factors[0]), -1), *factors, alpha=-1, out=left.view(len(factors[0]), -1))
        return left


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether no value is NaN or infinite: by one sum, unless that overflows."""
    if math.isfinite(float(tensor.sum())):
        return True
    if tensor.element_size() == 2:
        return all(math.isfinite(float(end)) for end in tensor.aminmax())
    return bool(torch.isfinite(tensor).all())
