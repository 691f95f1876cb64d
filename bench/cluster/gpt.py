"""A model like GPT that nothing here was tuned to: PyTorch's own layers, tied embeddings, and a large vocabulary."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gcodec.demo.data import build_vocabulary, read_standard_library
from gcodec.demo.train import TrainingPlan, TrainingTask

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 1 << 15, 64, 128, 4, 4  #: 5.0 million parameters, of which 4.2 are tied
PLAN = TrainingPlan(600, (), 10, batch=4, corpus=6_000_000, vocabulary=VOCABULARY)
QUICK_PLAN = TrainingPlan(3, (), 2, batch=2, corpus=200_000, vocabulary=1024)


class TiedTransformer(nn.Module):
    """A decoder whose logits are products with its token embeddings."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        length = tokens.shape[1]
        hidden = self.tokens(tokens) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        logits: torch.Tensor = self.layers(hidden, mask, is_causal=True) @ self.tokens.weight.T
        return logits


@cache
def _text(corpus: int | None, vocabulary: int) -> tuple[torch.Tensor, int]:
    """Return the tokens to learn, and the size of their vocabulary."""
    text = read_standard_library(corpus)
    words = build_vocabulary(text, vocabulary)
    return torch.from_numpy(words.encode(text)), len(words)


def gpt_task(plan: TrainingPlan) -> TrainingTask:
    """Return the model with AdamW, and the loss of the next token in the text of Python's library."""
    tokens, _ = _text(plan.corpus, plan.vocabulary)
    model = TiedTransformer(plan.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0.01)

    def loss(batch: int, random: np.random.Generator) -> torch.Tensor:
        starts = random.integers(len(tokens) - CONTEXT - 1, size=batch)
        windows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
        return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    return TrainingTask(model, optimizer, loss, warm_up=20)
