"""Files that pages on the command line take for granted: dumps, checkpoints, arrays, and archives of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

import gcodec
from gcodec.cli import main


class Model(torch.nn.Module):
    """A small model, whose parameters have the names that pages use."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.fc = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of tokens."""
        result: torch.Tensor = self.head(self.fc(self.embedding(tokens)))
        return result


def record(folder: str, *steps: int) -> None:
    """Train a small model for an iteration per step, and write a dump and a checkpoint for each."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = gcodec.Recorder(model, optimizer, folder, steps=steps)
    for step in (0, *steps):  # the first makes the optimizer's state
        optimizer.zero_grad()
        model(torch.arange(20)).square().mean().backward()
        if step:
            recorder.record(step)
        optimizer.step()
        if step:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/step-{step}.pt")


def arrays(*names: str) -> None:
    """Write array files of these names, each of its kind."""
    values = np.random.default_rng(0).standard_normal((30, 40)).astype(np.float32)
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npy"):
            np.save(name, values)
        elif name.endswith(".npz"):
            np.savez(name, a=values, b=values[0])
        elif name.endswith(".safetensors"):
            save_file({"head.weight": values, "fc.weight": values.T.copy()}, name)
        else:
            torch.save({"weight": torch.from_numpy(values)}, name)


def compress(*arguments: str) -> None:
    """Run ``gcodec compress`` quietly."""
    assert main(["compress", "-q", *arguments]) == 0
