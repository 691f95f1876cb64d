"""A log of statistics in JSON lines, from which ``gcodec report`` draws a run."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch.distributed as dist

from ..errors import InvalidArgument


class HasStats(Protocol):
    """A state of the hook, a process group, DiLoCo: whatever has ``stats()``."""

    def stats(self) -> Mapping[str, Any]:
        """Return statistics by name."""
        ...


class StatsLog:
    """Appends a line to a file for each step that is logged, on rank 0; on other ranks it does nothing.

        log = gcodec.distributed.StatsLog("run/stats.jsonl", state)
        ...
        log.write(step, loss=loss.item())       # every 10 steps or so, between steps

    A line holds ``step``, ``elapsed`` seconds, ``stats`` (what ``state.stats()`` returned, without buckets), what
    :meth:`write` was given, and of a controller the ``factor`` of the step and, when they change, the ``settings`` of
    each tensor. Numbers that are not finite are left out, so that every line is JSON. A line is in the file when
    :meth:`write` returns; a run that is resumed goes on in the same file.

    Args:
        path: The file; folders on the way are made.
        state: Whatever has ``stats()``.

    Raises:
        InvalidArgument: The state has no ``stats()``, or ``path`` is none.
        OSError: The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], state: HasStats) -> None:
        if not callable(getattr(state, "stats", None)):
            raise InvalidArgument(f"state must have stats(), as the hook's states do; {type(state).__name__} has none")
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"path must be that of a file, not a {type(path).__name__}")
        self.path, self._state, self._start = Path(path), state, time.monotonic()
        self._settings: dict[str, Any] = {}
        self._file = None
        if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = _ends_within_a_line(self.path)
            self._file = self.path.open("a", encoding="utf-8")
            self._file.write("\n" if torn else "")

    def write(self, step: int, **numbers: Any) -> None:
        """Log a step. Call it between steps.

        Args:
            step: Its number.
            numbers: Anything else to log, such as the loss: numbers, also as tensors of one value.

        Raises:
            InvalidArgument: One of them is not a number.
        """
        if self._file is None:
            return
        stats = {name: value for name, value in self._state.stats().items() if name not in ("buckets", "last_step")}
        elapsed = time.monotonic() - self._start
        plain = {name: _plain(name, value) for name, value in numbers.items()}
        line = {"step": _plain("step", step), "elapsed": elapsed, **plain, "stats": stats, **self._controlled()}
        self._file.write(json.dumps(_finite(line), allow_nan=False) + "\n")
        self._file.flush()

    def _controlled(self) -> dict[str, Any]:
        """Return what a controller has chosen; settings only if they have changed since they were logged last."""
        controller = getattr(self._state, "controller", None)
        if controller is None:
            return {}
        chosen: dict[str, Any] = {}
        if factors := getattr(controller, "log", None):
            chosen["factor"] = factors[-1]
        compressors = self._state.averager.compressors  # type: ignore[attr-defined]
        settings = {
            name: {"kind": type(one).__name__, **({one.knob: one.value} if one.knob else {})}
            for name, one in compressors.items()
        }
        if settings != self._settings:
            self._settings = chosen["settings"] = settings
        return chosen

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> StatsLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plain(name: str, value: Any) -> Any:
    """Return a value as JSON has it: a tensor's as Python's. Raises InvalidArgument for what is no number."""
    try:
        plain = value.item() if hasattr(value, "item") else value
        json.dumps(plain)
    except (TypeError, ValueError, RuntimeError):
        kind = f"{type(value).__name__} of shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
        raise InvalidArgument(f"{name} must be a number, such as loss.item(), not {kind:.80}") from None
    return plain


def _ends_within_a_line(path: Path) -> bool:
    """Return True for a log whose last line a process that was killed did not finish."""
    if not path.exists() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _finite(value: Any) -> Any:
    """Return a value without numbers that JSON lacks."""
    if isinstance(value, Mapping):
        return {str(name): _finite(entry) for name, entry in value.items() if _has_json(entry)}
    return value


def _has_json(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)
