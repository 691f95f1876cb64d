"""Statistics of a process's all-reduces: bytes moved, and where time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument

if TYPE_CHECKING:
    import torch


def ring_bytes(n_bytes: int, size: int, passes: int = 2) -> float:
    """Return the bytes that a rank sends of tensors of ``n_bytes`` around a ring of ``size`` ranks, uncompressed."""
    return passes * (size - 1) / size * n_bytes


def moved_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; 0 of a sparse one, which Gloo sends in another way than around a ring."""
    return 0 if tensor.is_sparse else tensor.nbytes


@dataclass
class Counters:
    """Counts of all-reduces on this rank. Bytes and seconds add up, as the lane saw them.

    Attributes:
        calls: All-reduces.
        dense: All-reduces that were not compressed.
        raw_bytes: Bytes of values, as given in.
        dense_bytes: Bytes that a ring all-reduce would have sent.
        sent_bytes: Bytes sent, with every header; those of dense all-reduces taken as a ring's.
        received_bytes: Bytes received, likewise.
        encoded_bytes: Bytes of values that were encoded.
        decoded_bytes: Bytes of values that were decoded.
        encode_seconds: Seconds of encoding, levels included.
        level_seconds: Seconds of choosing levels.
        decode_seconds: Seconds of decoding.
        sum_seconds: Seconds of adding.
        wait_seconds: Seconds of waiting for the network or other ranks.
        seconds: Seconds in all.
    """

    calls: int = 0
    dense: int = 0
    raw_bytes: int = 0
    dense_bytes: float = 0.0
    sent_bytes: float = 0.0
    received_bytes: float = 0.0
    encoded_bytes: int = 0
    decoded_bytes: int = 0
    encode_seconds: float = 0.0
    level_seconds: float = 0.0
    decode_seconds: float = 0.0
    sum_seconds: float = 0.0
    wait_seconds: float = 0.0
    seconds: float = 0.0

    @classmethod
    def of(cls, n_bytes: int, size: int, passes: int = 2) -> Counters:
        """Return the counters of a collective before it is made; arguments as for :meth:`add_dense`."""
        return cls(calls=1, raw_bytes=n_bytes, dense_bytes=ring_bytes(n_bytes, size, passes))

    def add(self, other: Counters) -> None:
        """Add the counts of another object to those of this one."""
        counts = vars(self)
        for name, value in vars(other).items():
            counts[name] += value

    def add_dense(self, n_bytes: int, size: int, seconds: float, passes: int = 2) -> None:
        """Count an uncompressed collective as a ring's.

        Args:
            n_bytes: Bytes of its tensors.
            size: Ranks in the group.
            seconds: How long it took.
            passes: Passes around the ring: 2 for an all-reduce, 1 for half of it.
        """
        on_ring = ring_bytes(n_bytes, size, passes)
        self.sent_bytes += on_ring
        self.received_bytes += on_ring
        self.wait_seconds += seconds
        self.seconds += seconds
        self.dense += 1

    def numbers(self) -> dict[str, float]:
        """Return all counts by name, and ``ratio``: bytes that a dense ring would have sent over those sent."""
        counts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**counts, "ratio": self.dense_bytes / self.sent_bytes if self.sent_bytes else 1.0}


class Stats:
    """Adds up the counters of a hook's all-reduces.

    Attributes:
        total: Counters of all steps.
        step: Counters of the current step.
        last_step: Counters of the step that ended last.
        buckets: Counters of all steps, by bucket.
        steps: Steps ended.
        refreshes: Refreshes of shared codebooks.
        refresh_bytes: Bytes that the sums for these took.
        bits_per_symbol: Bits that a symbol took in the latest step that is known; NaN before the first with shared
            codebooks.
        entropy_per_symbol: Its entropy, likewise.
        own_codebooks: Frames of this rank that the shared codebooks did not suit, and that carried one of their own.
    """

    def __init__(self) -> None:
        self.total = Counters()
        self.step = Counters()
        self.last_step = Counters()
        self.buckets: dict[int, Counters] = {}
        self.steps = self.refreshes = self.refresh_bytes = self.own_codebooks = 0
        self.bits_per_symbol = self.entropy_per_symbol = float("nan")

    def add(self, bucket: int, counters: Counters) -> None:
        """Add the counters of an all-reduce that has ended.

        Args:
            bucket: The number of the bucket.
        """
        for sums in (self.total, self.step, self.buckets.setdefault(bucket, Counters())):
            sums.add(counters)

    def end_step(self) -> None:
        """End a step, of which every bucket has been reduced."""
        self.steps += 1
        self.last_step, self.step = self.step, Counters()

    def numbers(self) -> dict[str, Any]:
        """Return all statistics as plain numbers and dictionaries of them."""
        return {
            "steps": self.steps,
            "refreshes": self.refreshes,
            "refresh_bytes": self.refresh_bytes,
            "bits_per_symbol": self.bits_per_symbol,
            "entropy_per_symbol": self.entropy_per_symbol,
            "own_codebooks": self.own_codebooks,
            **self.total.numbers(),
            "last_step": self.last_step.numbers(),
            "buckets": {index: counters.numbers() for index, counters in self.buckets.items()},
        }


def log_to(writer: Any, numbers: Mapping[str, Any], step: int, prefix: str = "gcodec") -> None:
    """Write statistics to a TensorBoard ``SummaryWriter``, or anything with ``add_scalar(name, value, step)``.

    Args:
        writer: The writer.
        numbers: What ``stats()`` returned; of nested ones only those of ``last_step`` are written.
        step: Number of the training step.
        prefix: Begins the names.

    Raises:
        InvalidArgument: The writer has no ``add_scalar``, or the statistics are no mapping.
    """
    if not callable(getattr(writer, "add_scalar", None)):
        raise InvalidArgument(f"writer must have add_scalar(name, value, step), as a {type(writer).__name__} has not")
    if not isinstance(numbers, Mapping):
        raise InvalidArgument(f"numbers must be what stats() returned, not a {type(numbers).__name__}")
    for name, value in {**numbers, **{f"step/{k}": v for k, v in numbers.get("last_step", {}).items()}}.items():
        if isinstance(value, int | float) and value == value:
            writer.add_scalar(f"{prefix}/{name}", value, step)
