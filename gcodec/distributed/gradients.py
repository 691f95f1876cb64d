"""A flat buffer seen as the gradients of parameters: which values are whose."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..errors import InvalidArgument

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket

Addressed = tuple[list[int], list[torch.Tensor]]  #: addresses of a parameter and its state, and the tensors
_LAYER = 1 << 14  #: values per block of a frame


class GradientSegment(NamedTuple):
    """A part of a buffer that is the gradient of one parameter.

    Attributes:
        begin: Position of its first value in the buffer.
        end: Position behind its last value.
        param: The parameter.
        stride: The order of the gradient's memory.
    """

    begin: int
    end: int
    param: torch.Tensor
    stride: tuple[int, ...]


class Gradients:
    """A buffer's segments, in order and without gaps between those that follow each other.

    Args:
        segments: The segments, in any order.

    Attributes:
        segments: The segments, by position.
        ends: The position behind each segment, int64.
        addressed: What a level chooser keeps about where the optimizer's state lies, by position of the segment.
    """

    def __init__(self, segments: Sequence[GradientSegment]) -> None:
        self.segments = sorted(segments, key=lambda segment: segment.begin)
        self.ends = np.array([segment.end for segment in self.segments], np.int64)
        self.addressed: dict[int, tuple[list[int], Addressed | None]] = {}

    @classmethod
    def of(cls, params: Sequence[torch.Tensor], n_values: int) -> Gradients:
        """Make the segments of parameters whose gradients lie end to end in row-major order.

        Args:
            n_values: Values of the buffer.

        Raises:
            InvalidArgument: The parameters have more or fewer values, or are no tensors.
        """
        for param in params:
            if not isinstance(param, torch.Tensor):
                raise InvalidArgument(f"params must be tensors, not a {type(param).__name__}")
        ends = np.cumsum([param.numel() for param in params], dtype=np.int64)
        if not params or ends[-1] != n_values:
            raise InvalidArgument(
                f"params must have as many values as the tensor, {n_values}, not {int(ends[-1]) if params else 0}"
            )
        strides = [torch.empty(param.shape, device="meta").stride() for param in params]
        return cls(
            [
                GradientSegment(int(end) - param.numel(), int(end), param, stride)
                for end, param, stride in zip(ends, params, strides, strict=True)
            ]
        )

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tensors as they lie in memory; those in another order than row-major count as flat."""
        return [
            tuple(segment.param.shape)
            if torch.empty(segment.param.shape, device="meta").stride() == segment.stride
            else (segment.end - segment.begin,)
            for segment in self.segments
        ]

    def owners(self, begin: int, end: int) -> np.ndarray:
        """Return the segment that counts each block of a frame, by its number: int64[n_blocks].

        Args:
            begin: The position of the frame's first value in the buffer.
            end: The position behind its last value.
        """
        middles = np.minimum(np.arange(begin, end, _LAYER) + _LAYER // 2, end - 1)
        return np.searchsorted(self.ends, middles, side="right")


def gradients_of(bucket: GradBucket) -> Gradients:
    """Return the segments of a bucket: which part belongs to which parameter, in which order of memory."""
    buffer, segments = bucket.buffer(), []
    for param, view in gradient_views(bucket):
        if view.numel():
            begin = (view.data_ptr() - buffer.data_ptr()) // buffer.element_size()
            segments.append(GradientSegment(begin, begin + view.numel(), param, view.stride()))
    return Gradients(segments)


def gradient_views(bucket: GradBucket) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the parameters of a bucket, each with its gradient, a view of the bucket's buffer.

    DDP lays a gradient out as its parameter if that is dense, else row by row. ``bucket.gradients()`` takes all of them
    to lie row by row, so that values of other ones are not at their places.
    """
    views = []
    for param, view in zip(bucket.parameters(), bucket.gradients(), strict=True):
        dense = torch.empty_like(param, device="meta").stride() == param.stride()
        if dense and view.stride() != param.stride():
            view = view.as_strided(param.shape, param.stride())
        views.append((param, view))
    return views


def holds_complex(bucket: GradBucket) -> bool:
    """Return whether a bucket holds gradients of complex parameters, which are only averaged by Gloo.

    DDP gives the buffer of such a bucket as floats, two for each value, but as gradients only the first half of it.
    """
    return any(param.is_complex() for param in bucket.parameters())


def flat_array(tensor: torch.Tensor, stride: Sequence[int]) -> np.ndarray:
    """Return a tensor's values in another order of memory, as an array [n]; bfloat16 as bits.

    Args:
        tensor: The tensor, whose memory the array shares where it has this order already.
    """
    return bits_or_floats(flat_tensor(tensor, stride))


def flat_tensor(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Return a tensor's values in another order of memory, as a flat tensor on its device.

    Args:
        tensor: The tensor, whose memory the result shares where it has this order already.
    """
    tensor = tensor.detach()
    if tensor.stride() != tuple(stride):
        other = torch.empty_strided(tensor.shape, tuple(stride), dtype=tensor.dtype, device=tensor.device)
        tensor = other.copy_(tensor)
    return torch.as_strided(tensor, (tensor.numel(),), (1,))


def bits_or_floats(flat: torch.Tensor) -> np.ndarray:
    """Return the memory of a flat tensor as numpy has it; bfloat16 as uint16."""
    array: Any = flat.view(torch.int16).numpy().view(np.uint16) if flat.dtype == torch.bfloat16 else flat.numpy()
    return array
