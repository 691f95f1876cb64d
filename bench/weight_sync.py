"""Weight sync: how much of a training's weights changes, and what versions take of bytes, seconds and memory.

    python -m bench.weight_sync [--quick] [--values N] [--out DIR]

writes ``bench/results/weight-sync.csv``, in about five minutes on two cores. The model of ``bench.checkpoints`` goes on
training with AdamW at several learning rates; every step is published as float32, bfloat16 and float8 (without scales),
sent to a folder, applied in place by a subscriber, and compared. The last rows are of a large state of random bfloat16
weights, of which each changes by one unit in the last place with the probability that AdamW's first step, of the size
of the learning rate, takes a float32 master over a rounding boundary. Seconds are medians; the folder waits for the
disk.
"""

from __future__ import annotations

import argparse
import copy
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

from bench.checkpoints import LAYERS, WIDTH, Training
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.timing import RoundTripError
from gcodec.sync import Publisher, Subscriber, VersionFolder

RATES = (1e-6, 3e-6, 1e-5, 1e-4)
TYPES = ("float32", "bfloat16", "float8_e4m3fn")
TRAINED, LARGE = "transformer in training", "large state"
N_VERSIONS, N_LARGE = 10, 3
ROWS, COLUMNS = 8192, 8192  #: shape of a tensor of the large state


class Tally:
    """Versions that were published, sent and applied, and what they took.

    Args:
        start: Weights that both sides hold before the first version.
        dtype: Type that the weights are cast to.
    """

    def __init__(self, start: Mapping[str, Any], dtype: str) -> None:
        self.dtype = dtype
        self._folder = TemporaryDirectory()
        self._versions = VersionFolder(self._folder.name)
        self._publisher = Publisher(start, dtype=dtype, anchor_every=None)
        self._subscriber = Subscriber({name: _as_type(value, dtype).clone() for name, value in start.items()})
        self._subscriber.verify()
        self._subscriber.position  # noqa: B018 - reads the weights, as a worker has before its first version
        self.seconds: dict[str, list[float]] = {"publish": [], "send": [], "apply": []}
        self.changed: list[float] = []
        self.sizes: list[int] = []
        self.anchor_bytes = self.raw_bytes = self.n_values = 0

    def step(self, state: Mapping[str, Any]) -> None:
        """Publish, send, apply and compare a state."""
        start = perf_counter()
        version = self._publisher.publish(state)
        published = perf_counter()
        self._versions.send(version)
        sent = perf_counter()
        self._subscriber.catch_up(self._versions)
        applied = perf_counter()
        for name, value in state.items():
            if not torch.equal(_bits(self._subscriber.tensors[name]), _bits(_as_type(value, self.dtype))):
                raise RoundTripError(f"version {version.number}: {name} did not arrive as it was published")
        for key, seconds in (("publish", published - start), ("send", sent - published), ("apply", applied - sent)):
            self.seconds[key].append(seconds)
        self.changed.append(version.stats.changed_share)
        self.sizes.append(len(version.data))
        self.raw_bytes, self.n_values = version.stats.raw_bytes, version.stats.n_values
        self._last = version

    def row(self, weights: str, rate: float) -> NamedRow:
        """Return the row of all steps, after an anchor has been made of the last."""
        self.anchor_bytes = len(self._last.anchor())
        size, peak = median(self.sizes), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._folder.cleanup()
        return {
            "weights": weights,
            "type": self.dtype,
            "learning_rate": f"{rate:g}",
            "values": self.n_values,
            "versions": len(self.sizes),
            "changed_percent": f"{100 * median(self.changed):.3f}",
            "raw_bytes": self.raw_bytes,
            "anchor_bytes": self.anchor_bytes,
            "difference_bytes": round(size),
            "percent": f"{100 * size / self.raw_bytes:.3f}",
            **{f"{what}_seconds": f"{median(seconds):.3f}" for what, seconds in self.seconds.items()},
            "peak_bytes": peak if weights == LARGE else "",
        }


def trained_rows(n_warmup: int, n_versions: int, width: int, layers: int) -> Iterator[NamedRow]:
    """Yield the rows of a training that goes on at each learning rate."""
    trained = Training(width, layers)
    trained.take_steps(n_warmup, 1e-3)
    for rate in RATES:
        training = copy.deepcopy(trained)
        training.take_steps(n_versions, rate)  # the optimizer's state is of the other rate before
        tallies = [Tally(training.model.state_dict(), dtype) for dtype in TYPES]
        for _ in range(n_versions):
            training.take_steps(1, rate)
            for tally in tallies:
                tally.step(training.model.state_dict())
        for tally in tallies:
            yield tally.row(TRAINED, rate)


def large_row(n_values: int, rate: float, n_versions: int) -> NamedRow:
    """Return the row of a large state of bfloat16 weights."""
    random, generator = np.random.default_rng(1), torch.Generator().manual_seed(1)
    shape = (max(min(ROWS, n_values // 1024), 1), min(COLUMNS, n_values))
    n_tensors = max(n_values // (shape[0] * shape[1]), 1)
    state = {f"layers.{number}.weight": torch.empty(shape, dtype=torch.bfloat16) for number in range(n_tensors)}
    for tensor in state.values():
        tensor.copy_(torch.randn(shape, generator=generator) * 0.02)
    tally = Tally(state, "bfloat16")
    for _ in range(n_versions):
        for tensor in state.values():
            nudge(tensor.view(torch.int16).numpy().view(np.uint16), rate, random)
        tally.step(state)
    return tally.row(LARGE, rate)


def nudge(bits: np.ndarray, rate: float, random: np.random.Generator) -> None:
    """Move bfloat16 weights, in place, as a step of one size moves those whose masters it takes over a boundary."""
    for row in np.array_split(bits, max(bits.size >> 22, 1)):
        ulps = np.exp2((row >> 7 & 255).astype(np.float32) - (127 + 7))
        moved = random.random(row.shape, np.float32) < np.minimum(rate / ulps, 1)
        signs = random.integers(0, 2, int(moved.sum()), np.uint16) * np.uint16(2) - np.uint16(1)
        row[moved] += signs


def _as_type(value: torch.Tensor, dtype: str) -> torch.Tensor:
    return value.detach().to(getattr(torch, dtype))


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.reshape(-1).view(torch.uint8)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.weight_sync", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps")
    parser.add_argument("--values", type=int, default=1_000_000_000, help="weights of the large state, 2 bytes each")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # for training alone; it is not measured
    rows = []
    if options.quick:
        work = trained_rows(3, 2, 64, 1)
        rows.append(large_row(200_000, 1e-6, 2))
    else:
        work = trained_rows(100, N_VERSIONS, WIDTH, LAYERS)
        rows.append(large_row(options.values, 1e-6, N_LARGE))
    print(*rows[0].values(), flush=True)
    for row in work:
        rows.append(row)
        print(*row.values(), flush=True)
    write_named(options.out / "weight-sync.csv", [*rows[1:], rows[0]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
