"""Records what the benchmarks measure: three trainings, and vocabulary layers at more steps and batch sizes.

    python -m bench.record OUT [--quick]

writes ``OUT/cnn``, ``OUT/transformer``, ``OUT/lstm`` as ``gcodec demo`` does (docs/recording.md), and for each language
model ``OUT/vocabulary/MODEL.safetensors``: the gradients of its embedding and its output layer, each under the name
``STEP/BATCH/LAYER``. All batch sizes of a step see the same parameters, those of the training at its own batch size, so
that nothing but the batch differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from gcodec.demo import train

VOCABULARY = "vocabulary"
LAYERS = {"embedding": "embedding.weight", "head": "head.weight"}
STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 400, 600)
BATCHES = (4, 16, 64)  #: sequences
PLANS = {
    "cnn": train.PLANS["cnn"],
    "transformer": train.TrainingPlan(600, train.PLANS["transformer"].recorded, 10, batch=16),
    "lstm": train.TrainingPlan(600, (1, 20, 100, 300, 600), 10, batch=16),
}
QUICK_PLANS = train.QUICK_PLANS | {
    "lstm": train.TrainingPlan(3, (1, 3), 2, batch=2, corpus=200_000, vocabulary=1024),
}


@dataclass
class Watcher:
    """Takes the vocabulary layers' gradients at ``steps``, for each of ``batches``, without touching the training."""

    steps: Sequence[int] = STEPS
    batches: Sequence[int] = BATCHES
    taken: dict[str, np.ndarray] = field(default_factory=dict)

    def __call__(self, step: int, task: train.TrainingTask) -> None:
        """Observe a step; :func:`gcodec.demo.train.train` calls this before each of the optimizer's steps."""
        if step not in self.steps:
            return
        named = dict(task.model.named_parameters())
        for batch in self.batches:
            loss = task.loss(batch, np.random.default_rng((train.SEED, step, batch)))
            result = torch.autograd.grad(loss, [named[name] for name in LAYERS.values()])
            for layer, gradient in zip(LAYERS, result, strict=True):
                self.taken[f"{step}/{batch}/{layer}"] = gradient.numpy()


def record(
    out: Path, plans: Mapping[str, train.TrainingPlan], watcher: Callable[[], Watcher] = Watcher, show: bool = True
) -> None:
    """Trains each of ``plans`` and writes its dumps, and a language model's vocabulary layers, under ``out``."""
    with train.progress_bars(show) as progress:
        for name, plan in plans.items():
            watch = watcher() if name != "cnn" else None
            train.train(name, out, plan, progress=progress, watch=watch)
            if watch:
                (out / VOCABULARY).mkdir(parents=True, exist_ok=True)
                save_file(watch.taken, out / VOCABULARY / f"{name}.safetensors")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.record", description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="where the dumps go")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to try it out")
    parser.add_argument("--missing", action="store_true", help="do nothing if OUT has been written before")
    options = parser.parse_args(arguments)
    if options.missing and options.out.is_dir():
        return 0
    partial = options.out.with_name(options.out.name + ".part")  # so that what is cut off does not count as written
    if options.quick:
        record(partial, QUICK_PLANS, lambda: Watcher((1, 3), (2, 4)))
    else:
        record(partial, PLANS)
    partial.rename(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
