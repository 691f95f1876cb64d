"""The bypass: ranks try out whether compressing pays, measure it, and decide together.

For a few steps three kinds take turns: compressed ones, dense ones whose all-reduces run side by side as they will, and
dense ones whose all-reduces wait for each other, so that each can be timed. Then the ranks add up what buckets of each
size took either way, and whole steps; buckets of a size that compression did not make faster are sent as they are from
then on, and all are if it did not make steps faster. From time to time it is tried again.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ...errors import InvalidArgument
from ..stats import Counters
from ..transport.lane import Lane
from .refresh import AsyncSum

_log = logging.getLogger("gcodec.distributed")
_FIRST = 3  #: steps before the first trial: buckets are rebuilt, codebooks made
_KINDS = COMPRESSED, DENSE, DENSE_TIMED = range(3)  #: kinds of steps in a trial
#: What a trial finds, averaged over the ranks: speed of the link and of the codec; milliseconds of steps; dense ones
#: over compressed ones; 1 if anything is compressed from then on, or 0. NaN before the first.
NUMBERS = (
    "bypass_link_gbit_per_s",
    "bypass_codec_gb_per_s",
    "bypass_dense_ms",
    "bypass_compressed_ms",
    "bypass_gain",
    "bypass_compressing",
)


@dataclass(frozen=True)
class Bypass:
    """Policy that measures whether compression pays, per bucket size.

    Attributes:
        steps: steps of each of three kinds in a trial.
        every: steps from one trial to the next.
        margin: share of the dense time that compressing must save.

    Raises:
        InvalidArgument: an attribute is out of its range.
    """

    steps: int = 4
    every: int = 500
    margin: float = 0.02

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise InvalidArgument(f"steps must be at least 1, not {self.steps}")
        if self.every < 4 * self.steps:
            raise InvalidArgument(f"every must be at least 4 * steps = {4 * self.steps}, not {self.every}")
        if not 0 <= self.margin < 1:
            raise InvalidArgument(f"margin must be at least 0 and less than 1, not {self.margin}")

    @property
    def trial(self) -> int:
        """Steps of a trial."""
        return len(_KINDS) * self.steps


class BypassController:
    """Decides for each bucket, from steps and sums that all ranks have in common. It runs on the lane's thread.

    ::

        steps    0 1 2 | C D T  C D T  C D T  C D T | as decided ... | C D T ...
                   | trial: compressed, dense,  |                | next trial, ``every`` steps later
                   | dense and timed            |

    Args:
        config: the policy.
        label: begins what is logged.

    Attributes:
        step: steps ended.
        start: the first step of the trial under way, or of the next one.
        verdicts: True where buckets are compressed, by the bit length of their number of bytes.
        numbers: results of the last trial, by the names in ``NUMBERS``.
    """

    def __init__(self, config: Bypass, label: str = "") -> None:
        self.config, self.label = config, label
        self.step, self.start = 0, _FIRST
        self.verdicts: dict[int, bool] = {}
        self._forget()
        self.numbers: dict[str, float] = dict.fromkeys(NUMBERS, math.nan)
        self._sum, self._sizes = AsyncSum(), list[int]()
        self._ended = math.nan

    def _forget(self) -> None:
        self._seconds: dict[tuple[int, bool], list[float]] = {}
        self._steps: dict[int, list[float]] = {kind: [] for kind in _KINDS}
        self._dense, self._coded = Counters(), Counters()

    @property
    def trying(self) -> bool:
        """True if this step is one of a trial."""
        return self.start <= self.step < self.start + self.config.trial

    @property
    def kind(self) -> int | None:
        """The kind of this step: COMPRESSED, DENSE or DENSE_TIMED in a trial, else None."""
        return (self.step - self.start) % len(_KINDS) if self.trying else None

    def compresses(self, n_bytes: int) -> bool:
        """Return True if a bucket of this size is to be compressed in this step."""
        if self.trying:
            return self.kind == COMPRESSED
        return self.verdicts.get(n_bytes.bit_length(), True)

    def add(self, n_bytes: int, counters: Counters) -> None:
        """Record that a bucket has been reduced.

        Args:
            n_bytes: its bytes.
            counters: its counters.
        """
        if self.kind in (COMPRESSED, DENSE_TIMED):
            self._seconds.setdefault((n_bytes.bit_length(), not counters.dense), []).append(counters.seconds)
            (self._dense if counters.dense else self._coded).add(counters)

    def end_step(self, lane: Lane) -> None:
        """End a step: all of its buckets have been reduced. At the end of a trial the ranks sum their measurements."""
        now = perf_counter()
        if self.kind is not None:
            self._steps[self.kind].append(now - self._ended)
        self._ended = now
        self.step += 1
        sums = self._sum.finish()
        if sums is not None:
            self._decide((sums / lane.size).tolist(), lane.rank == 0)
        elif self.step == self.start + self.config.trial:
            # Sizes of which there are buckets of both sorts. All ranks have the same ones, as they make the same steps.
            self._sizes = sorted({size for size, coded in self._seconds if (size, not coded) in self._seconds})
            self._sum.begin(lane, torch.tensor(self._measured(), dtype=torch.float64))

    def _measured(self) -> list[float]:
        """Return what this rank measured in a trial, to be summed over the ranks.

        These are the seconds of steps, dense and compressed; bits per second of the link; bytes per second of the
        codec; then seconds of buckets of each size, dense and compressed.
        """
        link = 8 * self._dense.sent_bytes / max(self._dense.seconds, 1e-9)
        codec = self._coded.encoded_bytes / max(self._coded.encode_seconds, 1e-9)
        numbers = [median(self._steps[DENSE]), median(self._steps[COMPRESSED]), link, codec]
        for size in self._sizes:
            numbers += [median(self._seconds[size, False]), median(self._seconds[size, True])]
        return numbers

    def _decide(self, measured: list[float], logs: bool) -> None:
        """Decide from the averages of what all ranks have measured; ``logs``: this rank writes the log."""
        dense_step, coded_step, link, codec, *buckets = measured
        max_share = 1 - self.config.margin
        pays = coded_step < dense_step
        self.verdicts = {
            size: pays and coded < max_share * dense
            for size, dense, coded in zip(self._sizes, buckets[::2], buckets[1::2], strict=True)
        }
        chosen = [f"{1 << size - 1}" for size, good in self.verdicts.items() if good]
        gain = dense_step / max(coded_step, 1e-9)
        numbers = link / 1e9, codec / 1e9, 1e3 * dense_step, 1e3 * coded_step, gain
        self.numbers = dict(zip(NUMBERS, (*numbers, float(bool(chosen))), strict=True))
        if logs:
            _log.info(
                "%sdense at %.3g Gb/s, encoding at %.3g GB/s; steps of %.4g ms dense, %.4g ms compressed, "
                "%.3g times as fast: %s",
                f"{self.label}: " if self.label else "",
                *numbers,
                f"compressing buckets of {', '.join(chosen)} bytes or up to twice that"
                if chosen
                else "not compressing",
            )
        self.start = self.step + self.config.every
        self._forget()

    def restart(self) -> None:
        """Begin the trial anew, as steps are no longer those that were measured."""
        self.start = self.step + _FIRST
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as numbers and arrays; a trial under way begins anew after loading."""
        sizes = list(self.verdicts)
        return {
            "step": self.step,
            "start": self.start,
            "sizes": np.array(sizes, np.int64),
            "verdicts": np.array([self.verdicts[size] for size in sizes], np.int64),
            "numbers": np.array([self.numbers[name] for name in NUMBERS]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.step, self.start = int(state["step"]), int(state["start"])
        if self.step >= self.start:
            self.start = self.step + _FIRST
        pairs = zip(state["sizes"].tolist(), state["verdicts"].tolist(), strict=True)
        self.verdicts = {int(size): bool(verdict) for size, verdict in pairs}
        self.numbers = dict(zip(NUMBERS, state["numbers"].tolist(), strict=True))
