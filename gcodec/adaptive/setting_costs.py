"""The cost of a tensor's setting: bytes, floats, or seconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from ..compressors.contract import Compressor
from ..errors import InvalidArgument


class Cost(ABC):
    """A price, in any unit: only sums of them are compared. It must not depend on the rank."""

    @abstractmethod
    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        """The price of a setting for a tensor."""


@dataclass(frozen=True)
class Bytes(Cost):
    """Payload bytes, indices and all, for tensors of ``dtype``."""

    dtype: torch.dtype = torch.float32

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return setting.payload_bytes(shape, self.dtype)


@dataclass(frozen=True)
class Floats(Cost):
    """Floats as papers count them, without indices."""

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return setting.floats(shape)


@dataclass(frozen=True)
class Prioritized(Cost):
    """``cost`` times the number of the bucket that a tensor is in, from 1, in the order of transmission: what is sent
    last is waited for most (appendix B of L-GreCo's paper)."""

    cost: Cost
    buckets: Mapping[str, int]

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return self.cost.of(name, shape, setting) * self.buckets[name]


@dataclass(frozen=True)
class Seconds(Cost):
    """Transmission time: payload bytes times what a byte of the tensor's bucket takes, ``per_byte``, and what each
    tensor takes beside its bytes, ``fixed`` (seconds both; the same numbers on all ranks)."""

    per_byte: Mapping[str, float]
    fixed: float = 0.0
    dtype: torch.dtype = torch.float32

    def of(self, name: str, shape: Sequence[int], setting: Compressor) -> float:
        return setting.payload_bytes(shape, self.dtype) * self.per_byte[name] + self.fixed

    @classmethod
    def measured(
        cls, buckets: Mapping[str, int], seconds: Mapping[int, float], sent_bytes: Mapping[int, float]
    ) -> Self:
        """From what each bucket took: ``seconds`` that training waited for it, and ``sent_bytes``. A bucket that hides
        behind the backward pass has few of the former, so its bytes are cheap. ``buckets``: of each tensor."""
        wrong = [bucket for bucket in buckets.values() if not (seconds[bucket] >= 0 and sent_bytes[bucket] > 0)]
        if wrong:
            raise InvalidArgument(f"buckets {sorted(set(wrong))} took no bytes, or less than no time")
        return cls({name: seconds[bucket] / sent_bytes[bucket] for name, bucket in buckets.items()})
