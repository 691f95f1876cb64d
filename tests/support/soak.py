"""Use of gcodec on many threads and in many processes at once, for as long as one likes.

``python -m tests.support.soak threads N SECONDS SEED``, ``... pool METHOD`` and ``... loader METHOD`` print numbers: of
calls, of calls with another result than a process alone has, and of MiB after a third of the time and at the end.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gcodec
from gcodec import FINE_LADDER

N_CASES = 60
LARGE = 300_000  #: values, so that calls with threads use several


class Work:
    """Arrays and options to encode them with, and what a process alone makes of them."""

    def __init__(self) -> None:
        self.cases = [self._case(number) for number in range(N_CASES)]
        self.frames = [gcodec.encode(array, **options) for array, options in self.cases]
        self.decoded = [gcodec.decode(frame).tobytes() for frame in self.frames]

    @staticmethod
    def _case(number: int) -> tuple[np.ndarray, dict[str, Any]]:
        rng, dtype = np.random.default_rng(number), ("float32", "float16", "float64")[number % 3]
        n = LARGE if number % 20 == 0 else int(rng.integers(0, 5000))
        array = (rng.standard_normal(n) * 2.0 ** rng.integers(-9, 9)).astype(dtype)
        levels = rng.integers(0, len(FINE_LADDER[dtype].drops), n).astype(np.uint8)
        return array, ({}, {"mantissa_bits": 4}, {"levels": levels, "ladder": FINE_LADDER[dtype]})[number // 3 % 3]

    def failures(self, number: int) -> int:
        """Encode, decode and decode a part of case ``number``; return how many of the three results are others."""
        array, options = self.cases[number]
        frame, before, n = self.frames[number], self.decoded[number], len(array)
        begin, end = n // 3, n // 2
        part = gcodec.decode_range(frame, begin, end).tobytes()
        return (
            (gcodec.encode(array, threads=2, **options) != frame)
            + (gcodec.decode(frame, threads=2).tobytes() != before)
            + (part != before[begin * array.itemsize : end * array.itemsize])
        )


def resident_mib() -> int:
    """Return the memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20


def soak(n_threads: int, seconds: float, seed: int) -> Sequence[int]:
    """Work on several threads until the time is over; return calls, failures and both memories."""
    work, counts, errors = Work(), [0] * n_threads, [0] * n_threads
    begin = time.monotonic()

    def use(thread: int) -> None:
        rng = np.random.default_rng((seed, thread))
        while time.monotonic() < begin + seconds:
            try:
                errors[thread] += work.failures(int(rng.integers(N_CASES)))
            except Exception:
                traceback.print_exc()
                errors[thread] += 1
            counts[thread] += 3

    threads = [threading.Thread(target=use, args=(number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 3)
    third = resident_mib()
    for thread in threads:
        thread.join()
    return sum(counts), sum(errors), third, resident_mib()


def use_in_child(number: int) -> int:
    """Work on a case in a process that has made its own work, or has it from a fork; return failures."""
    global _work
    _work = _work or Work()
    return _work.failures(number)


_work: Work | None = None


def pool(method: str) -> Sequence[int]:
    """Work in processes that were started by a method, after this one has used its threads."""
    global _work
    _work = Work()
    failures = sum(_work.failures(number) for number in range(N_CASES))
    with mp.get_context(method).Pool(4) as processes:
        failures += sum(processes.map(use_in_child, list(range(N_CASES)) * 4, chunksize=5))
    failures += sum(_work.failures(number) for number in range(N_CASES))
    return 3 * N_CASES * 6, failures, 0, 0


class Frames:
    """A dataset of frames, decoded where they are asked for."""

    def __init__(self) -> None:
        self.frames = [gcodec.encode(np.full(1000 + 300 * number, number, np.float32)) for number in range(N_CASES)]

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, number: int) -> tuple[int, int, bytes]:
        array = gcodec.decode(self.frames[number], threads=2)
        return number, len(array), gcodec.encode(array, threads=2)


def loader(method: str) -> Sequence[int]:
    """Decode and encode in the workers of torch's DataLoader."""
    from torch.utils.data import DataLoader

    dataset: Any = Frames()
    batches = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=method, collate_fn=list)
    found = [item for batch in batches for item in batch]
    wanted = [(number, 1000 + 300 * number, frame) for number, frame in enumerate(dataset.frames)]
    return 2 * N_CASES, sum(item != one for item, one in zip(found, wanted, strict=True)), 0, 0


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "threads":
        print(*soak(int(arguments[0]), float(arguments[1]), int(arguments[2])))
    else:
        print(*{"pool": pool, "loader": loader}[what](arguments[0]))
