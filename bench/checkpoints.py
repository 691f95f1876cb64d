"""Ten checkpoints of a small transformer's training, as a series of differences, each whole, and by torch.save.

    python -m bench.checkpoints [--quick] [--out DIR]

writes ``bench/results/checkpoints.csv``, in about five minutes on two cores. The model is trained for a while, then
goes on with AdamW in four runs: at the same learning rate, at one for fine-tuning with float32 weights, the same with
bfloat16 weights beside their float32 masters, and for a smaller one the bfloat16 weights alone. Each step that was
saved is loaded and compared before anything is reported. Seconds are medians for one checkpoint, with the files in
memory: ``gcodec`` waits for the disk, ``torch.save`` does not.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from bench.codec import RESULTS
from gcodec.archive import ArchiveReader
from gcodec.archive.structure import flatten
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.timing import RoundTripError
from gcodec.checkpoints import Checkpointer
from gcodec.demo.data import build_vocabulary, read_standard_library
from gcodec.demo.models import Transformer, decay_groups

SERIES, WHOLE, TORCH = "gcodec series", "gcodec, each whole", "torch.save"
CONTEXT, BATCH, WIDTH, LAYERS, VOCABULARY = 64, 4, 256, 4, 4096
N_CHECKPOINTS = 10
#: The moments of AdamW, whose tensors are parts of their own in the table.
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Run:
    """A training run.

    Attributes:
        name: In the table.
        learning_rate: Of AdamW.
        weights: Type of the weights that are saved.
        is_complete: Masters, if there are any, and the optimizer's state are saved too.
    """

    name: str
    learning_rate: float
    weights: torch.dtype = torch.float32
    is_complete: bool = True


RUNS = (
    Run("training, float32", 1e-3),
    Run("fine-tuning, float32", 1e-5),
    Run("fine-tuning, bfloat16 and masters", 1e-5, torch.bfloat16),
    Run("bfloat16 weights alone", 1e-6, torch.bfloat16, is_complete=False),
)
#: What differs between the ways of gcodec.
METHODS: dict[str, dict[str, Any]] = {
    SERIES: {"full_every": N_CHECKPOINTS},
    f"{SERIES}, copy in memory": {"full_every": N_CHECKPOINTS, "copy_in_memory": True},
    WHOLE: {"full_every": 1},
}


class Training:
    """A language model on the text of Python's standard library."""

    def __init__(self, width: int, layers: int) -> None:
        torch.manual_seed(1)
        text = read_standard_library(1_000_000)
        vocabulary = build_vocabulary(text, VOCABULARY)
        self.tokens = torch.from_numpy(vocabulary.encode(text))
        self.model = Transformer(len(vocabulary), width=width, layers=layers, context=CONTEXT)
        self.optimizer = torch.optim.AdamW(decay_groups(self.model, 0.01), lr=1e-3, betas=(0.9, 0.95))
        self._random = np.random.default_rng(1)

    def take_steps(self, count: int, learning_rate: float) -> None:
        """Take ``count`` steps of AdamW."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        for _ in range(count):
            starts = self._random.integers(len(self.tokens) - CONTEXT - 1, size=BATCH)
            windows = torch.stack([self.tokens[start : start + CONTEXT + 1] for start in starts])
            self.optimizer.zero_grad()
            logits = self.model(windows[:, :-1])
            functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).backward()
            self.optimizer.step()

    def state(self, run: Run) -> dict[str, Any]:
        """Return a copy of what the run saves."""
        model = self.model.state_dict()
        state: dict[str, Any] = {"weights": {name: tensor.to(run.weights) for name, tensor in model.items()}}
        if run.is_complete:
            state["optimizer"] = self.optimizer.state_dict()
            if run.weights != torch.float32:
                state["masters"] = model
        return copy.deepcopy(state)


def part_of(name: str) -> str:
    """Return the part of the state that a tensor belongs to."""
    return next((moment for moment in MOMENTS if name.endswith(f"/{moment}")), name.split("/")[0])


def check(found: Any, expected: Any) -> None:
    """Raise RoundTripError unless two states have the same structure and bits."""
    one, other = flatten(found), flatten(expected)
    pairs = zip(one.leaves.values(), other.leaves.values(), strict=True)
    if one.text != other.text or not all(
        torch.equal(a.value.view(torch.uint8), b.value.view(torch.uint8)) if a.value.ndim else bool(a.value == b.value)
        for a, b in pairs
    ):
        raise RoundTripError("a checkpoint was not loaded as it was saved")


def parts_of(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of all checkpoints in a folder, with the bytes of their tensors and those stored of them."""
    sizes: dict[str, list[Any]] = defaultdict(lambda: [0, 0.0])
    for path in folder.glob("*.gc"):
        with ArchiveReader(path) as archive:
            for entry, tensor in archive.tensors():
                segment, part = entry.segments[tensor.segment], sizes[part_of(tensor.name)]
                part[0] += tensor.n_bytes  # of a group of small ones, its share, and not all of it
                part[1] += segment.stored * tensor.n_bytes / max(segment.bytes, 1)
    yield from ((part, before, round(after)) for part, (before, after) in sizes.items() if before > 1 << 20)


def rows_of(run: Run, states: Sequence[dict[str, Any]], between: int) -> Iterator[NamedRow]:
    """Yield the rows of a run, method by method."""
    begin: NamedRow = {"run": run.name, "learning_rate": f"{run.learning_rate:g}", "steps_between": between}

    def row_of(method: str, part: str, *taken: Any) -> NamedRow:
        return begin | {"method": method, "part": part, "checkpoints": len(states)} | _sizes(*taken)

    for method, options in METHODS.items():
        with TemporaryDirectory() as folder:
            checkpoints, saving, loading, stored = Checkpointer(folder, **options), [], [], 0
            for step, state in enumerate(states):
                start = perf_counter()
                stored += checkpoints.save(step, state).file_bytes
                saving.append(perf_counter() - start)
            for step, state in enumerate(states):
                start = perf_counter()
                loaded = checkpoints.load(step)
                loading.append(perf_counter() - start)
                check(loaded, state)
            total = sum(info.state_bytes for info in checkpoints.overview())
            yield row_of(method, "all", total, stored, saving, loading)
            if "copy_in_memory" not in options:
                for part, before, after in parts_of(Path(folder)):
                    yield row_of(method, part, before, after)
    with TemporaryDirectory() as folder:
        saving, loading, stored = [], [], 0
        for step, state in enumerate(states):
            path, start = Path(folder, f"{step}.pt"), perf_counter()
            torch.save(state, path)
            saving.append(perf_counter() - start)
            stored += path.stat().st_size
            start = perf_counter()
            loaded = torch.load(path, weights_only=True)
            loading.append(perf_counter() - start)
            check(loaded, state)
        yield row_of(TORCH, "all", total, stored, saving, loading)


def _sizes(before: int, after: int, saving: Sequence[float] = (), loading: Sequence[float] = ()) -> NamedRow:
    seconds = {
        "save_seconds": f"{median(saving):.3f}" if saving else "",
        "load_seconds": f"{median(loading):.3f}" if saving else "",
        "load_last_seconds": f"{loading[-1]:.3f}" if saving else "",
    }
    return {"state_bytes": before, "stored_bytes": after, "percent": f"{100 * after / before:.2f}", **seconds}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoints", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, few steps")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    n_steps, between, n_checkpoints = (2, 1, 3) if options.quick else (100, 10, N_CHECKPOINTS)
    width, layers = (64, 1) if options.quick else (WIDTH, LAYERS)
    torch.set_num_threads(1)  # for training alone; it is not measured
    trained = Training(width, layers)
    trained.take_steps(n_steps, 1e-3)
    rows: list[NamedRow] = []
    for run in RUNS:
        training, states = copy.deepcopy(trained), []
        for _ in range(n_checkpoints):
            training.take_steps(between, run.learning_rate)
            states.append(training.state(run))
        for row in rows_of(run, states, between):
            rows.append(row)
            print(*row.values(), flush=True)
    write_named(options.out / "checkpoints.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
