"""What docs/report.md leaves to its reader: archives, the folder of a run, and a hook's state in training."""

from __future__ import annotations

import shutil
from typing import Any

import torch

from tests.support.given import training
from tests.support.given.files import arrays, compress, record


def before_page(names: dict[str, Any]) -> None:
    """Make the files, and a state."""
    arrays("model.safetensors", "model.pt")
    compress("model.safetensors")
    record("run", 100, 200)
    shutil.copy("run/step-100.pt", "old.pt")
    shutil.copy("run/step-200.pt", "new.pt")
    compress("new.pt", "--base", "old.pt")
    training.before_block(names, "")
    names.update(batches=[0, 1], loss=torch.tensor(1.0))
