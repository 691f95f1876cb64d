"""The models that are trained here: a residual convolutional network, a transformer and an LSTM."""

from __future__ import annotations

from ..errors import missing_package

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise missing_package("torch") from error


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions with batch norm and ReLU, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        hidden = functional.relu(self.norm1(self.conv1(images)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


class DigitNet(nn.Module):
    """A small ResNet for 8 x 8 gray images: (n, 1, 8, 8) float32 to (n, 10) logits. 0.74 M parameters.

    Its hidden ReLU layer is where zero gradients come from: a unit that no image of the batch excites leaves
    a row of them there and a column in the head.
    """

    def __init__(self, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width // 2, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width // 2)
        self.blocks = nn.Sequential(
            ResidualBlock(width // 2, width // 2),
            ResidualBlock(width // 2, width, stride=2),
            ResidualBlock(width, 2 * width, stride=2),
            ResidualBlock(2 * width, 2 * width),
        )
        self.hidden = nn.Linear(4 * 2 * width, hidden)
        self.head = nn.Linear(hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(functional.relu(self.norm(self.stem(images)))).flatten(1)
        return self.head(functional.relu(self.hidden(features)))


class DecoderLayer(nn.Module):
    """Causal self-attention and a GELU network of four times the width, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self._attend(self.attention_norm(hidden))
        return hidden + self.contract(functional.gelu(self.expand(self.feed_forward_norm(hidden))))

    def _attend(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        split = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(hidden).view(split).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.projection(mixed.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    """A decoder-only language model: (n, length) int64 tokens to (n, length, vocabulary) logits.

    The embedding and the output head are separate tensors, so that both kinds of large gradient are recorded:
    the embedding's, with a row of zeros for each token absent from the batch, and the head's, dense.
    """

    def __init__(
        self, vocabulary: int, *, width: int = 128, layers: int = 3, heads: int = 4, context: int = 64
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(_initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(self.norm(hidden))


class RecurrentModel(nn.Module):
    """A language model of two LSTM layers: (n, length) int64 tokens to (n, length, vocabulary) logits."""

    def __init__(self, vocabulary: int, *, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        torch.nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(tokens))
        return self.head(hidden)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return parameter groups for AdamW: matrices decay; biases and norm scales do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def _initialize(module: nn.Module) -> None:
    """Set the weights that GPT-2 starts from: normal weights of standard deviation 0.02, zero biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        torch.nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)
