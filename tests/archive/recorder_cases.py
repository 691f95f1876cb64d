"""A small model, its backward pass and its recorded step, for the laws of the recorder and of dumps."""

from __future__ import annotations

import pytest

from gcodec.recorder import Dump, Recorder, read_dump

pytest.importorskip("torch")

import torch
from torch import nn


def make_model() -> nn.Sequential:
    """Return a small network, the same at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False))


def backward(model: nn.Module, seed: int = 0, inputs: int = 6) -> None:
    """Give all parameters gradients, those of a batch that is drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    model.zero_grad()
    model(torch.randn(5, inputs, generator=generator)).square().sum().backward()


def gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient that a parameter must have."""
    assert parameter.grad is not None
    return parameter.grad


def make_sgd(model: nn.Module, **options) -> torch.optim.SGD:
    """Return SGD with momentum, so that there is a state to record."""
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **options})


def record(model: nn.Module, optimizer: torch.optim.Optimizer, folder, **options) -> Dump:
    """Record one step and read the dump back."""
    path = Recorder(model, optimizer, folder, steps=[1], **options).record()
    assert path
    return read_dump(path)
