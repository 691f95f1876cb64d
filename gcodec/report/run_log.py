"""The log of a training run: JSON lines, each of them what ``state.stats()`` returned, or what ``StatsLog`` writes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import WrongKind

Points = list[tuple[float, float]]
#: Larger numbers are taken for damage.
LARGEST = 1e100
#: Counts that add up over a run; charts show what they gained from one line to the next.
SUMS = (
    "calls",
    "dense",
    "raw_bytes",
    "dense_bytes",
    "sent_bytes",
    "received_bytes",
    "encoded_bytes",
    "decoded_bytes",
    "encode_seconds",
    "level_seconds",
    "decode_seconds",
    "sum_seconds",
    "wait_seconds",
    "seconds",
    "refreshes",
)


@dataclass
class RunLog:
    """A run as its log tells it.

    Attributes:
        steps: The step of each line; strictly ascending.
        numbers: Each number by name, with the step it was logged at.
        settings: For each tensor, the knob of its compressor from each step at which that changed.
        knobs: What the numbers in ``settings`` are: rank, bits or density, by tensor.
        notes: Lines that could not be read.
    """

    steps: list[float] = field(default_factory=list)
    numbers: dict[str, Points] = field(default_factory=dict)
    settings: dict[str, Points] = field(default_factory=dict)
    knobs: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def gains(self, name: str) -> Points:
        """Return how much a sum grew up to each line since the one before; the first line counts from 0."""
        before, result = 0.0, []
        for step, value in self.numbers.get(name, ()):
            before = before if value >= before else 0.0  # a run that began anew
            result.append((step, value - before))
            before = value
        return result

    def quotient(self, upper: str, lower: str, scale: float = 1.0) -> Points:
        """Return the gains of one sum over those of another, where that is not 0."""
        below = dict(self.gains(lower))
        return [(step, scale * value / below[step]) for step, value in self.gains(upper) if below.get(step)]


def read_log(path: Path) -> RunLog:
    """Read a log; of lines for the same step, or of a run that was resumed at an earlier one, the later count.

    Raises:
        WrongKind: No line of it is JSON with a number.
        OSError: It cannot be read.
    """
    log = RunLog()
    lines: list[tuple[float, Mapping[str, Any]]] = []
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            step = _step(fields, len(lines) + 1)
        except (ValueError, RecursionError, TypeError):
            log.notes.append(f"line {number} is no JSON object, and was left out")
            continue
        while lines and lines[-1][0] >= step:
            lines.pop()
        lines.append((step, fields))
    for step, fields in lines:
        log.steps.append(step)
        for name, value in _numbers(fields):
            log.numbers.setdefault(name, []).append((step, value))
        for tensor, (knob, value) in _settings(fields.get("settings")):
            log.knobs[tensor] = knob
            log.settings.setdefault(tensor, []).append((step, value))
    if not log.numbers:
        raise WrongKind(f"{path}: no line is a JSON object with numbers, as json.dumps(state.stats()) writes")
    return log


def _step(fields: Any, default: int) -> float:
    if not isinstance(fields, dict):
        raise TypeError("not an object")
    stats = fields.get("stats")
    nested = stats if isinstance(stats, dict) else fields
    for value in (fields.get("step"), nested.get("steps")):
        if isinstance(value, int | float) and _is_number(value):
            return float(value)
    return float(default)


def _numbers(fields: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line by name, those of ``stats`` as if they stood at the top."""
    nested = fields.get("stats")
    for name, value in {**fields, **(nested if isinstance(nested, dict) else {})}.items():
        if _is_number(value) and name not in ("step", "steps"):
            yield name, float(value)
    counts = (nested if isinstance(nested, dict) else fields).get("compressor")
    for name, value in (counts if isinstance(counts, dict) else {}).items():
        if _is_number(value):
            yield f"compressor/{name}", float(value)


def _settings(settings: Any) -> Iterator[tuple[str, tuple[str, float]]]:
    for tensor, setting in (settings if isinstance(settings, dict) else {}).items():
        if not isinstance(setting, dict):
            continue
        for knob in ("rank", "bits", "density"):
            if _is_number(setting.get(knob)):
                yield str(tensor), (knob, float(setting[knob]))


def _is_number(value: Any) -> bool:
    """Return True for a number that a chart can show; JSON allows whole numbers beyond any float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
