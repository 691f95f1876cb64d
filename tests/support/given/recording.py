"""What docs/recording.md leaves to its reader: a training loop."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.given.files import Model


def before_page(names: dict[str, Any]) -> None:
    """Make a model, its optimizer, and batches for a hundred steps."""
    model = Model()
    tokens = torch.arange(20)
    names.update(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        batches=[(tokens, tokens)] * 100,
        loss=torch.nn.functional.cross_entropy,
    )
