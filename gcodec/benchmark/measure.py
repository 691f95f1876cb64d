"""Measure sizes and speeds of gcodec in each mode beside the peers, for benchmarks and demo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from .inputs import Input, joined
from .peers import PEERS, Peer
from .report import Row
from .settings import LOSSLESS, NEAR_LOSSLESS, Setting, join_settings, paper_bound, settings_for
from .timing import GIGA, CodecTask, RoundTripError, copy_task, interleave

OURS, COPY, NO_MODE = "gcodec", "memory copy", "raw"
MEGA = 1 << 20
MAX_CALLS = 2048  #: in a turn: of arrays of some bytes, the bytes that a turn is to have are far too many calls
Key = tuple[str, str]  #: mode and codec


@dataclass(frozen=True)
class Size:
    """The size that a codec reached on one input.

    Attributes:
        data: Name of the input.
        model, step, group: Where the input was recorded.
        dtype: Type of its values.
        mode: Mode of the codec.
        codec: Name of the codec.
        values: Number of values.
        original_bytes: Size before.
        compressed_bytes: Size after, every header counted.
        bound: Bytes of the local order-0 bound (docs/benchmarks.md), for gcodec's own rows, else None.
        paper: Bytes of the GComp paper's layout, likewise.
    """

    data: str
    model: str
    step: int
    group: str
    dtype: str
    mode: str
    codec: str
    values: int
    original_bytes: int
    compressed_bytes: int
    bound: float | None = None
    paper: float | None = None

    @property
    def ratio(self) -> float:
        """The ratio of bytes before to bytes after."""
        return self.original_bytes / self.compressed_bytes

    @property
    def overhead(self) -> float | None:
        """Size in percent above the bound."""
        return None if not self.bound else 100 * (self.compressed_bytes / self.bound - 1)

    @property
    def saving(self) -> float | None:
        """Size in percent below the paper's layout."""
        return None if not self.paper else 100 * (1 - self.compressed_bytes / self.paper)


@dataclass(frozen=True)
class MeasurementPlan:
    """The extent of a measurement.

    Attributes:
        peers: The other codecs, all installed.
        at_least: Bytes that are timed in a turn: the inputs end to end as one array, repeated or thinned out, or, below
            8 MiB, in several calls; 0: no timing.
        rounds, budget: See :func:`gcodec.benchmark.timing.interleave`.
        threads: Rows of gcodec on several threads beside the one on one, lossless and near-lossless.
        fresh: A row of lossless gcodec that allocates its results, too.
        settings: gcodec's modes on an input.
        advance: Called after each step with what was done.
        clock: See :func:`gcodec.benchmark.timing.interleave`.
    """

    peers: Sequence[Peer] = PEERS
    at_least: int = 32 * MEGA
    rounds: int = 7
    budget: float = 2.0
    threads: Sequence[int] = (2,)
    fresh: bool = False
    settings: Callable[[Input], list[Setting]] = settings_for
    advance: Callable[[str], None] = lambda what: None
    clock: Callable[[], float] = perf_counter

    def steps(self, parts: int) -> int:
        """Estimate how often ``advance`` will be called for so many inputs."""
        timed = len(self.peers) + 5 + 2 * len(self.threads)
        return parts * (len(self.peers) + 3) + (self.rounds * timed if self.at_least else 0)


@dataclass
class Result:
    """The results of a measurement.

    Attributes:
        rows: Rows for the table, with inputs added up.
        sizes: Sizes of each input.
        failures: Failures of gcodec.
        notes: Remarks on peers.
        level_speed: GB/s at which the fine ladder's levels were chosen, on one core; 0 if none were.
    """

    rows: list[Row] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    level_speed: float = 0.0

    def extend(self, other: Result) -> None:
        """Adds another result's entries."""
        self.rows += other.rows
        self.sizes += other.sizes
        self.failures += other.failures
        self.notes += [note for note in other.notes if note not in self.notes]


def compete(title: str, parts: Sequence[Input], plan: MeasurementPlan) -> Result:
    """Compresses each of ``parts`` (of one type) with everything, and times everything on all of them end to end.

    Every round trip is verified, both on the inputs and on what is timed. A peer that fails is noted and left out.
    """
    result = Result()
    settings: dict[str, list[Setting]] = {}
    for part in parts:
        for setting in plan.settings(part):
            settings.setdefault(setting.mode, []).append(setting)
            result.sizes += _our_size(setting, result)
            plan.advance(f"{part.name}: {OURS}")
        for peer in plan.peers:
            result.sizes += _peer_size(peer, part, result)
            plan.advance(f"{part.name}: {peer.name}")
    seconds = _times(joined(parts, title, plan.at_least), settings, len(parts), plan, result) if plan.at_least else {}
    result.rows = _rows(title, parts, result.sizes, seconds)
    level_seconds = sum(part.level_seconds for part in parts)
    result.level_speed = sum(part.nbytes for part in parts) / level_seconds / GIGA if level_seconds else 0.0
    return result


def _size(
    part: Input, mode: str, codec: str, size: int, bound: float | None = None, paper: float | None = None
) -> Size:
    return Size(
        part.name,
        part.model,
        part.step,
        part.group,
        part.dtype,
        mode,
        codec,
        part.bits.size,
        part.nbytes,
        size,
        bound,
        paper,
    )


def _our_size(setting: Setting, result: Result) -> list[Size]:
    """Measure a mode of gcodec on one input; an empty list if it fails."""
    paper = paper_bound(setting)
    try:
        size = setting.task().verify()
    except RoundTripError as error:
        result.failures.append(f"{setting.data.name}, {setting.mode}: {error}")
        return []
    return [_size(setting.data, setting.mode, OURS, size, setting.bound().bytes, paper.bytes if paper else None)]


def _peer_size(peer: Peer, part: Input, result: Result) -> list[Size]:
    """Measure a peer on one input; an empty list if it fails or does not take the type."""
    task = _bind(peer, part, result)
    try:
        return [_size(part, LOSSLESS, peer.name, task.verify())] if task else []
    except Exception as error:  # a peer's own trouble must not end the measurement
        _note(result, f"{peer.name} fails on {part.name}: {type(error).__name__}: {str(error)[:200]}")
        return []


def _bind(peer: Peer, part: Input, result: Result) -> CodecTask | None:
    try:
        task = peer.bind(part)
    except Exception as error:
        _note(result, f"{peer.name} left out: {type(error).__name__}: {str(error)[:200]}")
        return None
    if task is None:
        _note(result, f"{peer.name} does not take {part.dtype}")
    return task


def _note(result: Result, text: str) -> None:
    if text not in result.notes:
        result.notes.append(text)


def _times(
    data: Input, settings: Mapping[str, Sequence[Setting]], n_parts: int, plan: MeasurementPlan, result: Result
) -> dict[Key, tuple[float, float]]:
    """Return the seconds per byte of encoding and decoding, for every codec that did all inputs."""
    tasks: dict[Key, CodecTask] = {(NO_MODE, COPY): copy_task(data.bits)}
    for mode, parts in settings.items():
        setting = join_settings(parts, data, plan.at_least)
        tasks[mode, OURS] = setting.task()
        for threads in plan.threads if mode in (LOSSLESS, NEAR_LOSSLESS) else ():
            tasks[mode, f"{OURS}, {threads} threads"] = setting.task(threads)
        if plan.fresh and mode == LOSSLESS:
            tasks[mode, f"{OURS}, new arrays"] = setting.task(reuse=False)
    passed = Counter(size.codec for size in result.sizes if size.mode == LOSSLESS)
    for peer in plan.peers:
        if passed[peer.name] == n_parts and (task := _bind(peer, data, result)):
            tasks[LOSSLESS, peer.name] = task
    names = {f"{mode}: {codec}": (mode, codec) for mode, codec in tasks}
    by_name = {name: tasks[key] for name, key in names.items()}
    calls = min(max(1, round(plan.at_least / data.nbytes)), MAX_CALLS)
    timings, errors = interleave(by_name, plan.rounds, plan.budget, calls, plan.advance, plan.clock)
    for name, error in errors.items():
        if names[name][1].startswith(OURS):
            result.failures.append(f"{data.name}, {name}: {error}")
        else:
            _note(result, f"{names[name][1]} fails on {data.name}: {type(error).__name__}: {str(error)[:200]}")
    n = data.nbytes
    return {names[name]: (timing.encode / n, timing.decode / n) for name, timing in timings.items()}


def _rows(
    title: str, parts: Sequence[Input], sizes: Iterable[Size], seconds: dict[Key, tuple[float, float]]
) -> list[Row]:
    """Return a row per mode and codec: the inputs' sizes added up, the seconds scaled to that size."""
    before, values = sum(part.nbytes for part in parts), sum(part.bits.size for part in parts)
    after: dict[Key, list[int]] = {}
    for size in sizes:
        after.setdefault((size.mode, size.codec), []).append(size.compressed_bytes)
    stored = {key: sum(part_bytes) for key, part_bytes in after.items() if len(part_bytes) == len(parts)}
    rows = []

    def add(key: Key, compressed: int) -> None:
        encode, decode = seconds.get(key, (0.0, 0.0))
        rows.append(Row(title, *key, before, compressed, values, encode * before or None, decode * before or None))

    if seconds:
        add((NO_MODE, COPY), before)
    for mode in dict.fromkeys(mode for mode, _ in stored):
        for key in [key for key in stored if key[0] == mode]:
            add(key, stored[key])
            for variant in seconds if key[1] == OURS else ():
                if variant[0] == mode and variant[1].startswith(f"{OURS},"):
                    add(variant, stored[key])
    return rows
