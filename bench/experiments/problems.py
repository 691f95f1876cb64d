"""The problems that the experiments train: small models on problems hard enough that careless compression shows.

Digits are turned, shifted, partly hidden and noised: as they come, even a thousandth of each gradient is enough for
them. The texts are Python's standard library. All of it is drawn from the seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from gcodec.demo.data import build_vocabulary, load_digits, read_standard_library
from gcodec.demo.models import RecurrentModel, Transformer

TURN, SHIFT = math.radians(12), 0.7  #: at most, radians and pixels, either way
HIDDEN = 2  #: side of the square that covers part of a digit, pixels
NOISE = 0.2  #: standard deviation, that of the digits' pixels being 1
LOOKS = 6  #: at every held-out digit
VOCABULARY, CHARACTERS, CONTEXT = 1024, 400_000, 32
HELD_OUT = 64  #: windows of text
WARM_UP, DROPS = 0.05, (0.7, 0.9)  #: shares of a run: in the first the rate rises, at the others it falls to a tenth


@dataclass(frozen=True)
class Problem:
    """A model, its data and its optimizer.

    ``model()``: new, from torch's generator; ``loss(model, size, random)``: of so many examples; ``quality(model)``: on
    held-out data, ``unit``, better if ``higher``; ``rate``: of the optimizer, SGD unless a subclass has another;
    ``batch``: examples of a rank; ``steps`` of a run; ``seconds``: about what a step's computation takes on one core.
    """

    name: str
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, int, np.random.Generator], Tensor]
    quality: Callable[[nn.Module], float]
    unit: str
    higher: bool
    rate: float
    batch: int
    steps: int
    momentum: float = 0.9
    clip: float | None = None
    seconds: float = 0.0

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer of a model."""
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=self.momentum)

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the learning rate at a step, counted from 0, of a run of so many."""
        part = step / steps
        return min(1.0, (step + 1) / max(WARM_UP * steps, 1.0)) * 0.1 ** sum(part >= drop for drop in DROPS)


class SmallNet(nn.Module):
    """Three 3 x 3 convolutions and two linear layers, for images (n, 1, 8, 8). 41 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))


class SmallVgg(nn.Module):
    """Pairs of convolutions, pooling, and wide linear layers, as VGG has them. 155 thousand parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 24), (24, 24), (24, 48), (48, 48)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if inputs == outputs else []
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(192, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))


def disguised(images: Tensor, random: np.random.Generator) -> Tensor:
    """Images (n, 1, 8, 8), each turned, shifted, partly hidden and noised."""
    n = len(images)
    angles = random.uniform(-TURN, TURN, n)
    shifts = random.uniform(-SHIFT, SHIFT, (n, 2)) / 4  # in halves of an image
    rows = [
        np.stack([np.cos(angles), -np.sin(angles), shifts[:, 0]], 1),
        np.stack([np.sin(angles), np.cos(angles), shifts[:, 1]], 1),
    ]
    theta = torch.from_numpy(np.stack(rows, 1).astype(np.float32))
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    background = images.min()
    moved = functional.grid_sample(images - background, grid, align_corners=False) + background
    corners = torch.from_numpy(random.integers(0, 8 - HIDDEN + 1, (n, 2)))
    places = torch.arange(8)
    inside = (places >= corners[..., None]) & (places < corners[..., None] + HIDDEN)
    moved = torch.where(inside[:, None, 0, :, None] & inside[:, None, 1, None, :], background, moved)
    return moved + NOISE * torch.from_numpy(random.standard_normal(moved.shape, dtype=np.float32))


digits_of = lru_cache(1)(load_digits)  #: to learn from, and held out


def digit_loss(model: nn.Module, size: int, random: np.random.Generator) -> Tensor:
    """Cross entropy of digits drawn at random."""
    digits = digits_of()[0]
    picked = random.integers(len(digits.images), size=size)
    images = disguised(torch.from_numpy(digits.images[picked]), random)
    return functional.cross_entropy(model(images), torch.from_numpy(digits.labels[picked]))


def digit_quality(model: nn.Module) -> float:
    """Return the percentage of held-out digits that are recognized, in ``LOOKS`` disguises each, always the same."""
    digits = digits_of()[1]
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    model.eval()
    with torch.no_grad():
        right = [
            (model(disguised(images, np.random.default_rng(look))).argmax(1) == labels).double().mean()
            for look in range(LOOKS)
        ]
    model.train()
    return 100 * float(torch.stack(right).mean())


@lru_cache(1)
def tokens() -> tuple[Tensor, Tensor, int]:
    """Return the text to learn, the text held out, and the size of the vocabulary."""
    text = read_standard_library(CHARACTERS)
    vocabulary = build_vocabulary(text, VOCABULARY)
    ids = torch.from_numpy(vocabulary.encode(text))
    split = len(ids) - HELD_OUT * (CONTEXT + 1)
    return ids[:split], ids[split:], len(vocabulary)


def _next_token(model: nn.Module, windows: Tensor) -> Tensor:
    return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def text_loss(model: nn.Module, size: int, random: np.random.Generator) -> Tensor:
    """Cross entropy, nats per token, of windows drawn at random."""
    text = tokens()[0]
    starts = random.integers(len(text) - CONTEXT - 1, size=size)
    return _next_token(model, torch.stack([text[start : start + CONTEXT + 1] for start in starts]))


def text_quality(model: nn.Module) -> float:
    """Nats per token of the held-out text."""
    with torch.no_grad():
        return float(_next_token(model, tokens()[1].view(HELD_OUT, CONTEXT + 1)))


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("cnn", SmallNet, digit_loss, digit_quality, "% right", True, 0.1, 16, 300, seconds=0.005),
        Problem("vgg", SmallVgg, digit_loss, digit_quality, "% right", True, 0.05, 16, 200, seconds=0.009),
        Problem(
            "lstm",
            lambda: RecurrentModel(tokens()[2], width=64, layers=1),
            text_loss,
            text_quality,
            "nats per token",
            False,
            2.0,
            8,
            200,
            clip=1.0,
            seconds=0.007,
        ),
        Problem(
            "transformer",
            lambda: Transformer(tokens()[2], width=64, layers=2, context=CONTEXT),
            text_loss,
            text_quality,
            "nats per token",
            False,
            0.2,
            8,
            200,
            clip=1.0,
            seconds=0.009,
        ),
    )
}
