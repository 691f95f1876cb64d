"""The results of conversations: the average, and what a rank's messages amount to.

They are kept in the form in which they are known; a tensor is made only where one is needed.
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
    """The mean of what ranks have sent of a tensor.

    Attributes:
        parts: What each rank has sent, in the order of ranks, in which it is added up.
        size: The number that the sum is divided by.
        dtype: The dtype in which it is added up.
    """

    parts: Sequence[SparseValues]
    size: int
    dtype: torch.dtype

    def put_into(self, flat: torch.Tensor) -> None:
        """Write the mean into a flat tensor of its dtype."""
        flat.zero_()
        for indices, values in self.parts:
            flat[indices] += values.to(self.dtype)
        flat.div_(self.size)

    @property
    def bound(self) -> float:
        """An upper bound of the magnitudes of the mean; infinity or NaN where a value is that."""
        return sum(float(values.abs().max()) for _, values in self.parts if values.numel())


class Product(NamedTuple):
    """A matrix of low rank, ``left`` times the transpose of ``right``.

    Attributes:
        left: Floats[m, k].
        right: Floats[n, k].
    """

    left: torch.Tensor
    right: torch.Tensor


class Narrow(NamedTuple):
    """A tensor in a narrower dtype than the gradient's."""

    values: torch.Tensor


class Rounded(NamedTuple):
    """A rank's contribution where it sends a ``size``-th of its values in a narrower dtype: ``size`` times that.

    Attributes:
        values: The values before they were divided and rounded.
        dtype: The narrower dtype.
        size: The number of ranks.
        known: The values as sent. None if they are to be rounded anew whenever they are needed, a ``_RUN`` at a time,
            which takes less time than keeping a large tensor does.
    """

    values: torch.Tensor
    dtype: torch.dtype
    size: int
    known: torch.Tensor | None = None

    def cached(self) -> Rounded:
        """Return this with the narrow values, where they are few enough to stay in a cache."""
        return self if self.values.numel() > _MAX_CACHED else self._replace(known=self.narrow())

    def narrow(self) -> torch.Tensor:
        """Return a ``size``-th of the values in the narrower dtype."""
        if self.known is not None:
            return self.known
        if self.size == 1:
            return self.values.to(self.dtype)
        result = torch.empty_like(self.values, dtype=self.dtype, memory_format=torch.contiguous_format)
        buffer, flat, out = self._buffer(self.values.dtype), self.values.reshape(-1), result.view(-1)
        for begin in range(0, flat.numel(), _RUN):
            part = flat[begin : begin + _RUN]
            out[begin : begin + _RUN].copy_(torch.div(part, self.size, out=buffer[: part.numel()]))
        return result

    def taken_from(self, flat: torch.Tensor, out: torch.Tensor) -> None:
        """Subtract this from ``flat`` and write the difference to ``out``, which may be ``flat``; both are flat."""
        if self.known is not None:
            torch.sub(flat, self.known.reshape(-1), alpha=self.size, out=out)
            return
        values, buffer, narrow = self.values.reshape(-1), self._buffer(self.values.dtype), self._buffer(self.dtype)
        for begin in range(0, flat.numel(), _RUN):
            part = values[begin : begin + _RUN]
            wide, small = buffer[: part.numel()], narrow[: part.numel()]
            small.copy_(part if self.size == 1 else torch.div(part, self.size, out=wide))
            whole, difference = flat[begin : begin + _RUN], out[begin : begin + _RUN]
            torch.sub(whole, wide.copy_(small), alpha=self.size, out=difference)

    def _buffer(self, dtype: torch.dtype) -> torch.Tensor:
        return self.values.new_empty(min(_RUN, self.values.numel()), dtype=dtype)


_RUN = 1 << 16  #: values that stay in the nearest caches while they are rounded
_MAX_CACHED = 1 << 18  #: up to so many values are kept as they were rounded


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a conversation.

    Attributes:
        mean: The estimate of the mean over ranks, the same on all of them: a tensor of the gradient's shape and dtype,
            or what makes one.
        sent: What this rank's messages amount to: a tensor, or what makes one.
        floats: The floats that this rank sent, counted as papers do: values, without their indices; a value of b bits
            is b / 32 of one.
        shape: Shape of the gradient, where ``mean`` or ``sent`` is no tensor.
        dtype: The gradient's dtype.
        bound: An upper bound of the mean's magnitudes, where the compressor knows one.
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
        """True if no value of the average is NaN or infinite."""
        bound = self.mean.bound if isinstance(self.mean, Summed) else self.bound
        if bound < torch.finfo(self.dtype).max / 2:
            return True
        return is_finite(self.mean.values if isinstance(self.mean, Narrow) else self.average)

    @property
    def indices(self) -> torch.Tensor | None:
        """The indices where the contribution may differ from zero, int64[k]; None for anywhere."""
        return self.sent.indices if isinstance(self.sent, SparseValues) else None

    @cached_property
    def contribution(self) -> torch.Tensor:
        """The tensor that this rank's messages amount to, of the gradient's shape, and its dtype or a wider one."""
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
        """Return ``corrected`` less the contribution, which is made a tensor only where that is needed.

        Args:
            corrected: The tensor that was compressed.
            out: Tensor for the result, of the same shape, dtype and strides; it may be ``corrected`` itself.
        """
        if isinstance(self.sent, torch.Tensor) or not corrected.is_contiguous():
            return torch.sub(corrected, self.contribution, out=out)
        result = torch.empty_like(corrected) if out is None else out
        if isinstance(self.sent, SparseValues):
            if result is not corrected:
                result.copy_(corrected)
            result.view(-1)[self.sent.indices] -= self.sent.values.to(result.dtype)
        elif isinstance(self.sent, Rounded):
            self.sent.taken_from(corrected.view(-1), result.view(-1))
        else:
            factors = self.sent.left.to(corrected.dtype), self.sent.right.T.to(corrected.dtype)
            torch.addmm(corrected.view(len(factors[0]), -1), *factors, alpha=-1, out=result.view(len(factors[0]), -1))
        return result


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether no value is NaN or infinite: by one sum, unless that overflows."""
    if math.isfinite(float(tensor.sum())):
        return True
    if tensor.element_size() == 2:
        return all(math.isfinite(float(end)) for end in tensor.aminmax())
    return bool(torch.isfinite(tensor).all())
