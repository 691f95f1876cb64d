"""The bypass: ranks try out which way of reducing buckets makes the fastest steps, measure, and decide together.

For a few rounds all ways that keep the mode's promise (``ways``) take turns, a step each; in the first trial also steps
whose uncompressed all-reduces wait for each other, so that each can be timed. Then the ranks add up their measurements.
Whole steps decide about the way. Where that is one of the codec's, buckets of a size that compression did not make
faster are sent without it all the same.

A decision is tried again when it is old; soon, where the rounds did not agree which way is faster; and early, where
steps have become slower than those of another way were.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ...errors import InvalidArgument, check_field_types
from ..stats import Counters
from ..transport.lane import Lane
from .refresh import AsyncSum
from .ways import CAST, CODED, CODING, DENSE, UNPREDICTED, WAY_NAMES, WayTimes

_log = logging.getLogger("gcodec.distributed")
_FIRST = 3  #: steps before the first trial: buckets are rebuilt, codebooks made
TIMED = -1  #: in a trial, the kind of steps in which uncompressed buckets wait for each other; other kinds are ways
_MAX_TRIALS = 4  #: trials in a row where rounds do not agree
_SOON = 24  #: steps from such a trial to the next; then twice as many, and so on
_WATCHED = 32  #: steps whose median is compared with what a trial promised
_SAME_RATIO = 0.005  #: share by which frames with and without predicted rows differ at most, where none is predicted
_NO_SECONDS = 1e-9  #: what stands for no time at all in a divisor
#: What a trial finds, averaged over the ranks: speed of the link and of the codec; milliseconds of steps, uncompressed
#: and in the codec's fastest way; the one over the other; 1 if anything is compressed from then on, or 0. All are NaN
#: before the first.
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
        steps: Steps of each way in a trial.
        every: Steps from one trial to the next, where the first was clear.
        margin: Share of the uncompressed time of a bucket that compressing must save.

    Raises:
        InvalidArgument: An attribute is out of its range.
    """

    steps: int = 4
    every: int = 500
    margin: float = 0.02

    def __post_init__(self) -> None:
        check_field_types(self)
        if self.steps < 1:
            raise InvalidArgument(f"steps must be at least 1, not {self.steps}")
        if self.every < 4 * self.steps:
            raise InvalidArgument(f"every must be at least 4 * steps = {4 * self.steps}, not {self.every}")
        if not 0 <= self.margin < 1:
            raise InvalidArgument(f"margin must be at least 0 and less than 1, not {self.margin}")


class BypassController:
    """Decides for each bucket, from steps and sums that all ranks have in common. It runs on the lane's thread.

    ::

        steps    0 1 2 | C D T  C D T  C D T  C D T | as decided ... | C D T ...
                   | trial: compressed, dense,  |                | next trial, ``every`` steps later, or sooner
                   | dense and timed            |

    Args:
        config: The policy.
        label: Begins what is logged.
        ways: The ways to choose among, ``ways.DENSE`` being one.

    Attributes:
        step: Steps ended.
        start: The first step of the trial under way, or of the next one.
        ways: The ways to choose among.
        default: The way of buckets of whose size no trial has seen any.
        verdicts: The way of buckets, by the bit length of their number of bytes.
        numbers: Results of the last trial, by the names in ``NUMBERS``.
        way_ms: Milliseconds of steps in the last trial, by the name of the way.
        way_ratios: Bytes that uncompressed buckets take over those of each of the codec's ways that a trial took.
    """

    def __init__(self, config: Bypass, label: str = "", ways: tuple[int, ...] = (CODED, DENSE)) -> None:
        self.config, self.label, self.ways = config, label, ways
        self.step, self.start = 0, _FIRST
        self.default, self.verdicts = CODED, dict[int, int]()
        self.numbers: dict[str, float] = dict.fromkeys(NUMBERS, math.nan)
        self.way_ms, self.way_ratios = dict[str, float](), dict[str, float]()
        self._sum, self._sizes = AsyncSum(), list[int]()
        self._read: Callable[[list[float], bool], None] | None = None  #: reads the sum under way
        self._ended, self._patience = math.nan, 1
        self._forget()

    def _forget(self) -> None:
        """Forget what was measured, before the first trial of a series."""
        self._times, self._n_trials, self._settled = WayTimes(self.ways), 0, False
        self._contenders = self.ways
        self._bucket_seconds: list[float] = []
        self._speeds = [math.nan, math.nan]
        self._forget_steps()

    def _forget_steps(self) -> None:
        self._steps: list[float] = []
        self._watched: list[float] = []
        self._seconds: dict[tuple[int, int], list[float]] = {}
        self._timed, self._coded = Counters(), Counters()
        self._by_way: dict[int, Counters] = {way: Counters() for way in sorted(CODING.intersection(self.ways))}

    @property
    def _kinds(self) -> tuple[int, ...]:
        """The kinds of steps that take turns in the trial under way, or in the next one."""
        return (*self.ways, TIMED) if self._first else self._contenders

    @property
    def _first(self) -> bool:
        """True if the trial under way, or the next one, is the first of a series, in which all ways take part."""
        return self._settled or not self._n_trials

    @property
    def _end(self) -> int:
        """The step behind the trial under way, or behind the next one."""
        return self.start + len(self._kinds) * self.config.steps

    @property
    def trying(self) -> bool:
        """True if this step is one of a trial."""
        return self.start <= self.step < self._end

    @property
    def kind(self) -> int | None:
        """The kind of this step: a way or TIMED in a trial, else None."""
        return self._kinds[(self.step - self.start) % len(self._kinds)] if self.trying else None

    @property
    def plain_way(self) -> int:
        """The way of buckets for which the codec does not pay."""
        return CAST if CAST in self.ways else DENSE

    def way_for(self, n_bytes: int) -> int:
        """Return the way for a bucket of this size in this step."""
        kind = self.kind
        if kind is not None:
            return self.plain_way if kind == TIMED else kind
        return self.verdicts.get(n_bytes.bit_length(), self.default)

    @property
    def way_name(self) -> str:
        """The way in which most buckets are reduced, as users read it."""
        way = self.default
        if not self.numbers["bypass_compressing"] and way in CODING:  # a trial found that of no bucket
            way = self.plain_way if self.verdicts else DENSE
        return WAY_NAMES[way]

    def compresses(self, n_bytes: int) -> bool:
        """Return True if a bucket of this size is to be compressed in this step."""
        return self.way_for(n_bytes) in CODING

    def add(self, n_bytes: int, counters: Counters) -> None:
        """Record that a bucket has been reduced."""
        kind = self.kind
        if kind == TIMED or kind in CODING:
            self._seconds.setdefault((n_bytes.bit_length(), kind), []).append(counters.seconds)
            (self._timed if kind == TIMED else self._by_way[kind]).add(counters)

    def end_step(self, lane: Lane) -> None:
        """End a step: all of its buckets have been reduced. At the end of a trial the ranks sum their measurements."""
        now = perf_counter()
        seconds, self._ended = now - self._ended, now
        (self._steps if self.trying else self._watched).append(seconds)
        self.step += 1
        sums, read = self._sum.finish(), self._read
        if sums is not None:
            self._read = None
            if read is not None:
                read((sums / lane.size).tolist(), lane.rank == 0)
        elif self.step == self._end:
            self._begin_sum(lane, self._measured(), self._decide)
        elif self._watch_is_full:
            self._begin_sum(lane, [median(self._watched)], self._compare)
        if self.step == self.start and self._settled:
            self._patience = max(self._patience // 2, 1)
            self._forget()

    def _begin_sum(self, lane: Lane, numbers: list[float], read: Callable[[list[float], bool], None]) -> None:
        self._read = read
        self._sum.begin(lane, torch.tensor(numbers, dtype=torch.float64, device="cpu"))

    @property
    def communicates_next(self) -> bool:
        """True if the end of this step may begin or read a sum over the ranks."""
        return self.step + 1 >= self.start or self._sum.tensor is not None or len(self._watched) + 1 >= self._watch

    @property
    def _watch(self) -> int:
        return _WATCHED * self._patience

    @property
    def _watch_is_full(self) -> bool:
        """True if a decision can be compared with its trial; not where the next trial is about to begin."""
        return len(self._watched) >= self._watch and self._n_trials > 0 and self.step + 2 < self.start

    def _measured(self) -> list[float]:
        """Return what this rank measured in a trial, to be summed over the ranks.

        These are the seconds of all steps; and in a first trial, bits per second of the link, bytes per second of the
        codec and bytes that each of its ways sends for each uncompressed one; then, for each size of buckets, seconds
        without the codec and in each of its ways.
        """
        if not self._first:
            return self._steps
        coded = Counters()
        for counters in self._by_way.values():
            coded.add(counters)
        numbers = [
            8 * self._timed.sent_bytes / max(self._timed.seconds, _NO_SECONDS),
            coded.encoded_bytes / max(coded.encode_seconds, _NO_SECONDS),
            *(of_way.sent_bytes / max(of_way.dense_bytes, 1.0) for of_way in self._by_way.values()),
        ]
        # Sizes of which there are buckets of all kinds. All ranks have the same ones, as they make the same steps.
        kinds = (TIMED, *self._by_way)
        seen = {size for size, _ in self._seconds}
        self._sizes = sorted(size for size in seen if all((size, kind) in self._seconds for kind in kinds))
        buckets = [median(self._seconds[size, kind]) for size in self._sizes for kind in kinds]
        return [*self._steps, *numbers, *buckets]

    def _decide(self, means: list[float], logs: bool) -> None:
        """Decide from the averages of what all ranks have measured; ``logs``: this rank writes the log."""
        kinds, n_steps = self._kinds, len(self._kinds) * self.config.steps
        for at in range(0, n_steps, len(kinds)):
            of_round = dict(zip(kinds, means[at : at + len(kinds)], strict=True))
            of_round.pop(TIMED, None)
            self._times.add_round(of_round)
        if self._first:
            self._speeds, rest = means[n_steps : n_steps + 2], means[n_steps + 2 :]
            shares, self._bucket_seconds = rest[: len(self._by_way)], rest[len(self._by_way) :]
            self.way_ratios = {
                WAY_NAMES[way]: 1 / share for way, share in zip(self._by_way, shares, strict=True) if share > 0
            }
            if not self.way_ratios:
                self._find_nothing(logs)
                return
        self._n_trials += 1
        self._choose()
        self._contenders = tuple(way for way in self._times.contenders if way not in self._idle_ways)
        unclear = len(self._contenders) > 1 and self._n_trials < _MAX_TRIALS
        wait = min(_SOON << self._n_trials - 1, self.config.every) if unclear else self.config.every
        if logs:
            _log.info("%s", self._line(wait if unclear else None))
        self.start = self.step + wait
        self._settled = not unclear
        self._forget_steps()

    def _find_nothing(self, logs: bool) -> None:
        """End a trial in which nothing went through the codec, so that there is nothing to choose."""
        if logs:
            _log.info("%snot compressing: no bucket is of a type and size that are compressed", self._label_text)
        self.numbers = dict.fromkeys(NUMBERS, math.nan) | {"bypass_compressing": 0.0}
        self.verdicts, self.way_ms = {}, {}
        self.start, self._settled = self.step + self.config.every, True
        self._forget_steps()

    def _choose(self) -> None:
        """Choose the ways of buckets, and keep the results of the trial."""
        seconds = {way: self._times.seconds_of(way) for way in self.ways}
        former, best = self.default, self._times.best
        self.default = best = CODED if best in self._idle_ways else best
        if best != former:  # it was right to try again
            self._patience = 1
        self.verdicts = dict.fromkeys(self._sizes, best)
        n_kinds = 1 + len(self._by_way)
        if best in CODING:
            at = 1 + list(self._by_way).index(best)
            for number, size in enumerate(self._sizes):
                of_size = self._bucket_seconds[number * n_kinds : (number + 1) * n_kinds]
                if of_size[at] >= (1 - self.config.margin) * of_size[0]:
                    self.verdicts[size] = self.plain_way
        coded = min(seconds[way] for way in self._by_way)
        compressing = best in CODING and (best in self.verdicts.values() or not self.verdicts)
        link, codec = self._speeds
        values = link / 1e9, codec / 1e9, 1e3 * seconds[DENSE], 1e3 * coded, seconds[DENSE] / max(coded, _NO_SECONDS)
        self.numbers = dict(zip(NUMBERS, (*values, float(compressing)), strict=True))
        self.way_ms = {WAY_NAMES[way]: 1e3 * of_way for way, of_way in seconds.items()}

    @property
    def _idle_ways(self) -> tuple[int, ...]:
        """Ways that do the same as another: where nothing was predicted, frames are the same with and without."""
        ratios = [self.way_ratios.get(WAY_NAMES[way], math.nan) for way in (CODED, UNPREDICTED)]
        return (UNPREDICTED,) if math.isclose(*ratios, rel_tol=_SAME_RATIO) else ()

    def _line(self, again: int | None) -> str:
        """Return the line of a decision for the log; ``again``: steps until it is tried again, if that is soon."""
        sizes = [f"{1 << size - 1}" for size, way in self.verdicts.items() if way in CODING]
        steps = ", ".join(f"{ms:.4g} ms {name}{self._ratio_text(name)}" for name, ms in self.way_ms.items())
        outcome = "not compressing"
        if self.numbers["bypass_compressing"]:
            which = f" buckets of {', '.join(sizes)} bytes or up to twice that" if sizes else ""
            special = WAY_NAMES[self.default].removeprefix(WAY_NAMES[CODED])
            outcome = f"compressing{which}{special}"
        elif CAST in (self.default, *self.verdicts.values()):
            outcome = f"not compressing, but {WAY_NAMES[CAST]}"
        link, codec, _, _, gain, _ = self.numbers.values()
        return (
            f"{self._label_text}link at {link:.3g} Gb/s, encoding at {codec:.3g} GB/s; steps of {steps}; compressed "
            f"{gain:.3g} times as fast: {outcome}"
            + ("" if again is None else f"; not clear yet, tried again in {again} steps")
        )

    @property
    def _label_text(self) -> str:
        return f"{self.label}: " if self.label else ""

    def _ratio_text(self, name: str) -> str:
        return f" (ratio {self.way_ratios[name]:.3g})" if name in self.way_ratios else ""

    def _compare(self, means: list[float], logs: bool) -> None:
        """Compare steps as decided with what the trial found; where another way was faster, try all ways again."""
        self._watched = []
        (seconds,) = means
        others = [self._times.seconds_of(way) for way in self.ways if way not in (self.default, *self._idle_ways)]
        if min(others) * (1 + self.config.margin) < seconds:
            # Where the machine has become slower for all ways, the next trial finds the same: then watch for longer.
            self._patience *= 2
            self.start = self.step
            self._forget()

    def choose_among(self, ways: tuple[int, ...]) -> None:
        """Change the ways to choose among, and begin the next trial soon. Called between steps, on all ranks alike."""
        if ways != self.ways:
            self.ways, self.default, self.verdicts = ways, CODED, {}
            self.restart()

    def restart(self) -> None:
        """Begin the trial anew, as steps are no longer those that were measured."""
        self.start, self._read = self.step + _FIRST, None
        self._forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as numbers and arrays."""
        sizes = list(self.verdicts)
        return {
            "step": self.step,
            "start": self.start,
            "default": self.default,
            "sizes": np.array(sizes, np.int64),
            "verdicts": np.array([self.verdicts[size] for size in sizes], np.int64),
            "numbers": np.array([self.numbers[name] for name in NUMBERS]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned. The next trial comes soon, as the link may be another one."""
        self.step = int(state["step"])
        pairs = zip(state["sizes"].tolist(), state["verdicts"].tolist(), strict=True)
        self.default, self.verdicts = int(state["default"]), {int(size): int(way) for size, way in pairs}
        self.numbers = dict(zip(NUMBERS, state["numbers"].tolist(), strict=True))
        self.restart()
