"""Statistics of versions: what changed, how many bytes it took, where the time went; and the log's lines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

from ..errors import check_function

#: One line for each version that is made or applied.
LOG = logging.getLogger("gcodec.sync")
#: Called with the name of a stage, the bytes of weights done, and all of them.
Progress = Callable[[str, int, int], None]


def checked_progress(progress: Progress | None) -> Progress:
    """Return a caller's function, one that does nothing in place of None. Raises InvalidArgument for anything else."""
    check_function("progress", progress)
    return progress or (lambda stage, done, total: None)


class StageClock:
    """Seconds by stage, in the order in which stages begin."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Add the time until the end of the block to a stage."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - start


@dataclass(frozen=True)
class PublishStats:
    """Counts of one version as its publisher made it.

    Attributes:
        n_values: Values in all tensors.
        n_changed_values: Those whose bits differ from the version before; all of them in a first version.
        n_tensors: tensors.
        n_changed_tensors: Those in which any value changed.
        raw_bytes: Bytes of all tensors.
        message_bytes: Bytes of the difference, or of the anchor where there is no difference.
        seconds: Seconds by stage: "read" (from the device, cast), "compare", "encode", "keep".
    """

    n_values: int
    n_changed_values: int
    n_tensors: int
    n_changed_tensors: int
    raw_bytes: int
    message_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def changed_share(self) -> float:
        """Return the share of the values that changed, 0 to 1."""
        return self.n_changed_values / max(self.n_values, 1)

    def __str__(self) -> str:
        return (
            f"{in_bytes(self.message_bytes)}, {100 * self.message_bytes / max(self.raw_bytes, 1):.3g} % of "
            f"{in_bytes(self.raw_bytes)}; {100 * self.changed_share:.3g} % of the values changed, in "
            f"{self.n_changed_tensors} of {self.n_tensors} tensors; {in_seconds(self.seconds)}"
        )


@dataclass(frozen=True)
class UpdateStats:
    """Counts of one version as a subscriber applied it.

    Attributes:
        number: Number of the version.
        is_anchor: It held all weights.
        n_changed_values: Values whose bits were replaced by others.
        raw_bytes: Bytes of the tensors that the message held.
        message_bytes: Bytes of the message.
        seconds: Seconds by stage: "check" (read, decode and verify) and "write".
    """

    number: int
    is_anchor: bool
    n_changed_values: int
    raw_bytes: int
    message_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        kind = "anchor" if self.is_anchor else "difference"
        return (
            f"{kind} of {in_bytes(self.message_bytes)}, {self.n_changed_values} values of "
            f"{in_bytes(self.raw_bytes)} replaced; {in_seconds(self.seconds)}"
        )


def in_bytes(size: int) -> str:
    """Return a number of bytes with its unit."""
    for unit, step in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= step:
            return f"{size / step:.3g} {unit}"
    return f"{size} bytes"


def in_seconds(seconds: dict[str, float]) -> str:
    """Return seconds by stage as text."""
    return ", ".join(f"{stage} {value:.3f} s" for stage, value in seconds.items())
