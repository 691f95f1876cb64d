"""The cost of a tensor's setting: bytes, floats, or seconds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Self

import torch

from ..compressors.contract import Compressor
from ..errors import InvalidArgument, check_field_types


class Cost(ABC):
    """A price, in any unit, of which only sums are compared. It must not depend on the rank."""

    def __post_init__(self) -> None:
        check_field_types(self)

    @abstractmethod
    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        """Return the price of a setting for a tensor."""


def _of_tensor(values: Mapping[str, float], field: str, name: str) -> float:
    """Return a tensor's value in a field of a cost. Raises InvalidArgument if it has none, or none from 0 on."""
    if name not in values:
        raise InvalidArgument(f"{field} must have every tensor that is compressed, and lacks {name!r}")
    if not isinstance(values[name], Real) or not 0 <= values[name] < math.inf:
        raise InvalidArgument(f"{field} of {name!r} must be a finite number of at least 0, not {values[name]!r:.80}")
    return values[name]


@dataclass(frozen=True)
class Bytes(Cost):
    """Counts payload bytes, indices and all.

    Attributes:
        dtype: Dtype of the tensors.
    """

    dtype: torch.dtype = torch.float32

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return setting.payload_bytes(shape, self.dtype)


@dataclass(frozen=True)
class Floats(Cost):
    """Counts floats as papers do, without indices."""

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return setting.floats(shape)


@dataclass(frozen=True)
class Prioritized(Cost):
    """Multiplies a cost by the number of the tensor's bucket, for the last bucket is waited for longest.

    Appendix B of L-GreCo's paper.

    Attributes:
        cost: The cost.
        buckets: Number of each tensor's bucket, from 1, in the order of transmission.
    """

    cost: Cost
    buckets: Mapping[str, int]

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return self.cost.of(name, shape, setting) * _of_tensor(self.buckets, "buckets", name)


@dataclass(frozen=True)
class Seconds(Cost):
    """Estimates the time of transmission, from numbers that are the same on all ranks.

    Attributes:
        per_byte: Seconds that a byte of each tensor takes, by the tensor's name.
        fixed: Seconds that each tensor takes beside its bytes.
        dtype: Dtype of the tensors.
    """

    per_byte: Mapping[str, float]
    fixed: float = 0.0
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fixed < math.inf:
            raise InvalidArgument(f"fixed must be finite and at least 0, not {self.fixed}")

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return setting.payload_bytes(shape, self.dtype) * _of_tensor(self.per_byte, "per_byte", name) + self.fixed

    @classmethod
    def measured(
        cls, buckets: Mapping[str, int], seconds: Mapping[int, float], sent_bytes: Mapping[int, float]
    ) -> Self:
        """Return the cost that follows from measurements of buckets.

        Training hardly waits for a bucket that hides behind the backward pass, so its bytes are cheap.

        Args:
            buckets: Bucket of each tensor.
            seconds: Seconds that training waited for each bucket, at least 0.
            sent_bytes: Bytes that each bucket sent, above 0.

        Raises:
            InvalidArgument: A measurement is outside its range.
        """
        for bucket in buckets.values():
            if not seconds.get(bucket, math.nan) >= 0:
                raise InvalidArgument(f"seconds of bucket {bucket} must be at least 0, not {seconds.get(bucket)}")
            if not sent_bytes.get(bucket, math.nan) > 0:
                raise InvalidArgument(f"sent_bytes of bucket {bucket} must be above 0, not {sent_bytes.get(bucket)}")
        return cls({name: seconds[bucket] / sent_bytes[bucket] for name, bucket in buckets.items()})
