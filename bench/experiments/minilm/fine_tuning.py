"""How MiniLM is fine-tuned, wherever it is: its optimizer, the loss of sentences drawn at random, and how many are
classified rightly in the end."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.experiments.minilm.sentences import examples
from gcodec.demo.models import decay_groups

BATCH, RATE = 8, 5e-5  #: sentences of a rank and step; the learning rate where it neither rises nor has fallen
WEIGHT_DECAY = 0.01


def adamw(model: nn.Module, rate: float = RATE) -> torch.optim.AdamW:
    """Return the optimizer."""
    return torch.optim.AdamW(decay_groups(model, WEIGHT_DECAY), lr=rate, fused=True)


def sentence_loss(model: nn.Module, size: int, random: np.random.Generator) -> Tensor:
    """Cross entropy of sentences drawn at random."""
    tokens, labels = examples()[0]
    picked = torch.from_numpy(random.integers(len(tokens), size=size))
    return functional.cross_entropy(model(tokens[picked]), labels[picked])


def sentence_quality(model: nn.Module) -> float:
    """Return the percentage of held-out sentences that are classified rightly."""
    tokens, labels = examples()[1]
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in tokens.split(64)])
    model.train()
    return 100 * float((found == labels).double().mean())
