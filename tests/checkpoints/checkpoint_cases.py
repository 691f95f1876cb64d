"""States of a made-up training, and folders of checkpoints filled with them and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gcodec.checkpoints import Checkpointer
from gcodec.checkpoints.chain import MAX_CHAIN
from gcodec.checkpoints.step_files import step_name
from tests.support.same import assert_same

SIZE = 3000


def state_of(step: int, seed: int = 0) -> dict[str, Any]:
    """Return the state of a made-up training: weights that change little, moments that change more, a count."""
    start, change = np.random.default_rng(seed), np.random.default_rng((seed, step))
    weights = start.standard_normal(SIZE).astype(np.float32) * 0.05
    moments = start.standard_normal((30, 50)).astype(np.float32) * 1e-3
    changed = change.random(SIZE) < 0.05
    return {
        "model": {"w": weights * np.where(changed, 1 + 1e-6 * step, 1).astype(np.float32)},
        "optimizer": {"state": {0: {"exp_avg": moments * np.float32(1 + 1e-5 * step), "step": step}}, "lr": 1e-3},
        "ids": np.arange(step, step + 9),
    }


def assert_folder(checkpoints: Checkpointer, expected: dict[int, int], full_every: int = MAX_CHAIN) -> None:
    """Every step comes back, no chain is too long, and nothing else lies in the folder but the lock."""
    assert checkpoints.steps() == sorted(expected)
    bases = {info.step: info.base for info in checkpoints.overview()}
    for step, seed in expected.items():
        assert_same(checkpoints.load(step), state_of(step, seed))
        length, at = 1, bases[step]
        while at is not None:
            length, at = length + 1, bases[at]
        assert length <= full_every
    assert {path.name for path in Path(checkpoints.folder).iterdir()} <= {".lock", *map(step_name, expected)}


def filled(folder: Path, n_steps: int = 6, **options: Any) -> Checkpointer:
    """Return a folder with the first steps of the training, saved whole every four."""
    checkpoints = Checkpointer(folder / "steps", **{"full_every": 4, "threads": 1} | options)
    for step in range(n_steps):
        checkpoints.save(step, state_of(step))
    return checkpoints
