"""Time candidates side by side: all in turn, several times over, and every round trip verified. Knows no codec."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from ..compiling import COMPILE, numba_events
from ..errors import GcodecError
from ..kernels.core.intrinsics import HAS_AVX2, HAS_AVX512, HAS_SSSE3

GIGA = 1e9  #: bytes in a "GB" of a rate


class RoundTripError(GcodecError):
    """A codec did not give back the values that were encoded."""


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class CodecTask:
    """A codec on one input.

    Attributes:
        encode: Gives the encoded bytes (bytes-like; may lie in a buffer that the next call overwrites).
        decode: Encoded bytes to the values (bytes-like).
        result: What ``decode`` must give, bit for bit.
        exact: The values as they were; ``decode`` may give any of these instead. None if it may not.
        prepare: Called before each ``encode``, never timed.
    """

    encode: Callable[[], Any]
    decode: Callable[[Any], Any]
    result: np.ndarray
    prepare: Callable[[], None] = _nothing
    exact: np.ndarray | None = None

    def verify(self) -> int:
        """Encodes and decodes once; the encoded size in bytes. Raises RoundTripError."""
        self.prepare()
        encoded = self.encode()
        size = len(encoded)
        self.check(self.decode(encoded))
        return size

    def check(self, decoded: Any) -> None:
        """Raises RoundTripError if ``decoded`` is not what it must be."""
        result = self.result
        if self.exact is not None and not same_bytes(decoded, result):
            found = np.frombuffer(decoded, np.uint8)
            if found.size == self.exact.nbytes:
                result = np.where(found.view(self.exact.dtype) == self.exact, self.exact, result)
        if not same_bytes(decoded, result):
            raise RoundTripError(f"decoding does not give the expected {self.result.nbytes} bytes")


@dataclass
class Timing:
    """The times of a codec on an input.

    Attributes:
        encode_seconds: Seconds of an encoding in each round.
        decode_seconds: Seconds of a decoding in each round.
    """

    encode_seconds: list[float] = field(default_factory=list)
    decode_seconds: list[float] = field(default_factory=list)

    @property
    def encode(self) -> float:
        """Median seconds of an encoding."""
        return median(self.encode_seconds)

    @property
    def decode(self) -> float:
        """Median seconds of a decoding."""
        return median(self.decode_seconds)


def same_bytes(decoded: Any, expected: np.ndarray) -> bool:
    """Return True if a bytes-like object or array holds exactly the bytes of ``expected``."""
    if isinstance(decoded, np.ndarray):
        decoded = np.ascontiguousarray(decoded).reshape(-1).view(np.uint8)
    raw = np.frombuffer(decoded, np.uint8)
    return raw.size == expected.nbytes and bool(np.array_equal(raw, expected.reshape(-1).view(np.uint8)))


def interleave(
    tasks: Mapping[str, CodecTask],
    rounds: int = 7,
    budget: float = 2.0,
    calls: int = 1,
    advance: Callable[[str], None] | None = None,
    clock: Callable[[], float] = perf_counter,
) -> tuple[dict[str, Timing], dict[str, Exception]]:
    """Times all tasks in turn, ``rounds`` times over. The first round verifies each result, outside the time taken.

    A turn in which numba compiled counts for nothing and is taken again: kernels may differ by what an array is like,
    so that no warm-up is sure to have compiled them all.

    Args:
        rounds: Passes over the whole set; neighbors in time see the same neighbors on the machine.
        budget: Seconds after which a task sits out the remaining rounds; each gets one at least.
        calls: Encodings and decodings in a turn, for small inputs.
        advance: Called with a task's name after each of its turns.
        clock: The seconds now; ``process_time``, of tasks on one thread, leaves out what other processes take.

    Returns:
        The timings, and what the tasks that failed raised; these are out from then on and have no timing.
    """
    timings = {name: Timing() for name in tasks}
    errors: dict[str, Exception] = {}
    spent = dict.fromkeys(tasks, 0.0)
    enabled = gc.isenabled()
    gc.disable()
    n_compiled = [0]

    def count(event: Any) -> None:
        n_compiled[0] += 1

    with ExitStack() as stack:
        stack.enter_context(numba_events(COMPILE, count, lambda event: None))
        stack.callback(gc.enable if enabled else _nothing)
        for number in range(rounds):
            for name, task in tasks.items():
                if spent[name] < budget and name not in errors:
                    try:
                        turn = partial(_turn, task, calls, number == 0, clock)
                        spent[name] += _turn_without_compiling(turn, timings[name], calls, n_compiled)
                    except Exception as error:
                        errors[name] = error
                if advance:
                    advance(name)
    return {name: timing for name, timing in timings.items() if name not in errors}, errors


_MOST_TURNS = 4  #: a second turn finds what the first compiled


def _turn_without_compiling(
    turn: Callable[[], tuple[float, float]], timing: Timing, calls: int, n_compiled: list[int]
) -> float:
    """Take a turn, again and again while ``n_compiled[0]`` grows, and return the seconds of the last one. Raises
    RoundTripError, and GcodecError if every turn compiled."""
    for _ in range(_MOST_TURNS):
        before = n_compiled[0]
        encoding, decoding = turn()
        if n_compiled[0] == before:
            timing.encode_seconds.append(encoding / calls)
            timing.decode_seconds.append(decoding / calls)
            return encoding + decoding
    raise GcodecError(f"numba compiled in each of {_MOST_TURNS} turns, so that none of them can be timed")


def _turn(task: CodecTask, calls: int, verify: bool, clock: Callable[[], float]) -> tuple[float, float]:
    """Encode and decode ``calls`` times; return the seconds that both took. Raises RoundTripError."""
    encoding = decoding = 0.0
    for _ in range(calls):
        task.prepare()
        start = clock()
        encoded = task.encode()
        middle = clock()
        decoded = task.decode(encoded)
        end = clock()
        encoding, decoding = encoding + middle - start, decoding + end - middle
    if verify:
        task.check(decoded)
    return encoding, decoding


def copy_task(values: np.ndarray) -> CodecTask:
    """Return the copy that every codec's speed is compared with: into memory that exists already, both ways."""
    target, back = (np.zeros(values.nbytes, np.uint8) for _ in range(2))
    source = values.reshape(-1).view(np.uint8)

    def encode() -> np.ndarray:
        np.copyto(target, source)
        return target

    def decode(encoded: np.ndarray) -> np.ndarray:
        np.copyto(back, encoded)
        return back

    return CodecTask(encode, decode, source)


def machine() -> str:
    """Return the processor, the vectors that kernels use, the cores this process may use, how busy they are, and the
    versions that matter to a speed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    load = f"load {os.getloadavg()[0]:.1f}, " if hasattr(os, "getloadavg") else ""
    name = f"{processor()}{next((f' with {name}' for name, has in VECTORS.items() if has), '')}"
    return f"{name}, {cores} cores, {load}{system}, Python {platform.python_version()}, numpy {np.__version__}"


#: Instructions that kernels may use, the fastest first, and whether they do.
VECTORS = {"AVX-512": HAS_AVX512, "AVX2": HAS_AVX2, "SSSE3": HAS_SSSE3}


def processor() -> str:
    """Return the processor's name."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
