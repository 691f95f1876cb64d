"""Make arrays of other kinds than gradients and weights: of a small model, of photographs, computed, synthetic.

The model is a language model that is trained on the spot, each of whose layers has another activation. Everything comes
from fixed seeds, so that a machine makes the same arrays again. Other processors, versions of torch and numbers of its
threads round a training differently, and other versions of Python bring another text to train on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bench.checkpoints import CONTEXT, WIDTH, Training
from bench.integrations import field_of
from gcodec.benchmark.inputs import Input, cast
from gcodec.demo.models import DecoderLayer, decay_groups
from gcodec.dtypes import BY_NAME

MODEL, PHOTOGRAPHS, COMPUTED, SYNTHETIC = "model", "photographs", "computed", "synthetic"  #: where values come from
#: Groups of arrays, in the order of the tables.
ACTIVATIONS, ATTENTION, CACHES, VECTORS, MOMENTS, DEQUANTIZED, GRIDS, MASKED, WIDER, FIELDS = (
    "outputs of activations",
    "attention and logits",
    "keys, values and positions",
    "norms and embeddings",
    "moments of AdamW",
    "dequantized weights",
    "values on a grid",
    "masked and missing values",
    "values of a shorter type",
    "fields and sorted values",
)
SINGLE, HALVES, DOUBLE = "float32", ("bfloat16", "float16"), "float64"
FLOATS = (SINGLE, *HALVES)
HEADS, WINDOWS, STEPS = 4, 64, 200
N_SYNTHETIC = 1 << 20
SHORT_GROUP, QUANTIZED_GROUP, QUANTIZED_SIDE = 32, 64, 128  #: values that share a scale, and the side of their squares
#: The levels of NF4 (Dettmers et al., QLoRA, appendix E).
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)


@dataclass(frozen=True, eq=False)
class ArrayKind:
    """Tensors that are measured end to end as one array, in each of some types.

    Attributes:
        group: One of the groups above.
        name: As the table shows it.
        source: ``MODEL``, ``PHOTOGRAPHS``, ``COMPUTED`` or ``SYNTHETIC``.
        tensors: float32 values, or float64 where that is the only type.
        dtypes: Names of the types that the values are rounded to.
    """

    group: str
    name: str
    source: str
    tensors: Sequence[np.ndarray]
    dtypes: Sequence[str] = FLOATS

    def inputs(self) -> Iterator[Input]:
        """Yield the values in each type."""
        shapes = tuple(tensor.shape for tensor in self.tensors)
        for dtype in self.dtypes:
            bits = [_bits_of(tensor.reshape(-1), dtype) for tensor in self.tensors]
            yield Input(f"{self.name} {dtype}", dtype, np.concatenate(bits), shapes=shapes)


def _bits_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return flat values, rounded to a type, as bits: uintW[n]."""
    if dtype == DOUBLE:
        return np.ascontiguousarray(values, np.float64).view(BY_NAME[dtype].uint)
    return cast(values, dtype)


class GatedLayer(DecoderLayer):
    """A decoder layer with any activation between the two matrices of its network, as a gate where that is usual."""

    def __init__(self, width: int, activation: nn.Module, is_gated: bool) -> None:
        super().__init__(width, HEADS)
        self.activation = activation
        self.gate = nn.Linear(width, 4 * width) if is_gated else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply attention and network, (batch, length, width) to the same shape."""
        hidden = hidden + self._attend(self.attention_norm(hidden))
        normed = self.feed_forward_norm(hidden)
        expanded = self.expand(normed)
        inner = self.activation(expanded) if self.gate is None else self.activation(self.gate(normed)) * expanded
        return hidden + self.contract(inner)


#: By name in the table: the activation, and whether it is a gate: a factor of another matrix's outputs.
ACTIVATION_LAYERS: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "outputs of ReLU": (nn.ReLU, False),
    "outputs of GELU": (nn.GELU, False),
    "outputs of SiLU": (nn.SiLU, True),
    "outputs of sigmoid": (nn.Sigmoid, True),
}


class GatedTraining(Training):
    """The training of :mod:`bench.checkpoints`, of a model with a layer for each activation."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 0)
        for make, is_gated in ACTIVATION_LAYERS.values():
            layer = GatedLayer(width, make(), is_gated)
            for module in layer.modules():
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=0.02)
                    nn.init.zeros_(module.bias)
            self.model.layers.append(layer)
        self.optimizer = torch.optim.AdamW(decay_groups(self.model, 0.01), lr=1e-3, betas=(0.9, 0.95))

    def outputs(self, n_windows: int) -> dict[str, Tensor]:
        """Return the outputs of the activations, of ``norm`` and ``head``, and of ``0.qkv`` and so on, by name, in a
        forward pass over windows of the text."""
        taken: dict[str, Tensor] = {}

        def take(name: str, module: nn.Module) -> None:
            module.register_forward_hook(lambda module, given, output: taken.update({name: output}))

        for number, (name, layer) in enumerate(zip(ACTIVATION_LAYERS, self.model.layers, strict=True)):
            assert isinstance(layer, GatedLayer)
            take(name, layer.activation)
            take(f"{number}.qkv", layer.qkv)
        take("norm", self.model.norm)
        take("head", self.model.head)
        starts = np.random.default_rng(2).integers(len(self.tokens) - CONTEXT, size=n_windows)
        with torch.no_grad():
            self.model(torch.stack([self.tokens[start : start + CONTEXT] for start in starts]))
        return taken


def array_kinds(quick: bool = False) -> Iterator[ArrayKind]:
    """Yield all arrays, group by group.

    Args:
        quick: Of few steps of a small training, and of few synthetic values.
    """
    training = GatedTraining(64 if quick else WIDTH)
    training.take_steps(2 if quick else STEPS, 1e-3)
    n_values = 1 << 14 if quick else N_SYNTHETIC
    yield from of_forward_pass(training, 4 if quick else WINDOWS)
    yield from of_weights(training)
    yield from of_positions(n_values)
    yield from on_grids(n_values)
    yield from of_distributions(n_values)


def of_forward_pass(training: GatedTraining, n_windows: int) -> Iterator[ArrayKind]:
    """Yield what a forward pass leaves: activations, attention, logits, keys and values, embeddings."""
    outputs = training.outputs(n_windows)
    few = n_windows // 4  # windows, where each has so many values that a quarter of them are enough
    for name in ACTIVATION_LAYERS:
        yield ArrayKind(ACTIVATIONS, name, MODEL, [outputs[name][:few].numpy()])
    qkv = torch.stack([outputs[f"{number}.qkv"] for number in range(len(ACTIVATION_LAYERS))])
    n_layers, _, length, width = qkv.shape
    depth = width // 3 // HEADS
    query, key, value = qkv.view(n_layers, n_windows, length, 3, HEADS, depth).permute(3, 0, 1, 4, 2, 5)
    is_later = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (query[0] @ key[0].transpose(-1, -2) / math.sqrt(depth)).masked_fill(is_later, -math.inf)
    yield ArrayKind(ATTENTION, "scores under a causal mask", MODEL, [scores.numpy()])
    yield ArrayKind(ATTENTION, "softmax under a causal mask", MODEL, [scores.softmax(-1).numpy()])
    mask = torch.zeros(1024, 1024).masked_fill(torch.ones(1024, 1024, dtype=torch.bool).triu(1), -math.inf)
    yield ArrayKind(ATTENTION, "causal mask, 0 and -inf", COMPUTED, [mask.numpy()])
    yield ArrayKind(ATTENTION, "logits", MODEL, [outputs["head"][: n_windows // 16 or 1].numpy()])
    for name, cached in (("keys", key), ("values", value)):
        yield ArrayKind(CACHES, f"{name} of a cache", MODEL, [cached[:, :few].contiguous().numpy()])
    repeated = key[:, : n_windows // 16 or 1].repeat_interleave(4, dim=2)
    yield ArrayKind(CACHES, "keys, repeated for 4 queries", MODEL, [repeated.numpy()])
    norms = outputs["norm"].norm(dim=-1, keepdim=True)
    yield ArrayKind(VECTORS, "embeddings of length 1", MODEL, [(outputs["norm"] / norms).numpy()])


def of_weights(training: GatedTraining) -> Iterator[ArrayKind]:
    """Yield what is made of two layers' matrices: moments, and weights after some quantization or mask."""
    matrices = [p for layer in training.model.layers[-2:] for p in layer.parameters() if p.ndim == 2]
    for moment, title in (("exp_avg", "first moments"), ("exp_avg_sq", "second moments")):
        tensors = [training.optimizer.state[p][moment].numpy() for p in matrices]
        yield ArrayKind(MOMENTS, title, MODEL, tensors, (SINGLE, "bfloat16"))
    weights = [p.detach().numpy() for p in matrices]
    quantizations: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "weights from int8, a scale for each row": by_rows,
        f"weights from int8, a scale for {SHORT_GROUP} values": by_short_groups,
        f"weights from uint8, a scale and a zero point for {QUANTIZED_GROUP} values": by_zero_points,
        f"weights from 4 bits, a scale and a minimum for {SHORT_GROUP} values": by_minima,
        f"weights from int4, a scale for {QUANTIZED_GROUP} values": by_groups,
        f"weights from NF4, a scale for {QUANTIZED_GROUP} values": by_levels,
        f"weights from fp8, a scale for {QUANTIZED_SIDE} x {QUANTIZED_SIDE} values": by_squares,
    }
    for name, quantize in quantizations.items():
        yield ArrayKind(DEQUANTIZED, name, MODEL, [quantize(matrix) for matrix in weights])
    random = np.random.default_rng(3)
    masks = [random.random(matrix.shape) < 0.5 for matrix in weights]
    products = [matrix * mask.astype(np.float32) for matrix, mask in zip(weights, masks, strict=True)]
    yield ArrayKind(MASKED, "weights times a mask, half of it 0", MODEL, products)
    unsigned = [product + np.float32(0) for product in products]  # -0 + 0 is +0
    yield ArrayKind(MASKED, "weights times a mask, zeros without a sign", MODEL, unsigned)
    rounded = [p.detach().bfloat16().float().numpy() for p in matrices]
    yield ArrayKind(WIDER, "weights that were bfloat16", MODEL, rounded, (SINGLE,))
    widened = [matrix.astype(np.float64) for matrix in weights]
    yield ArrayKind(WIDER, "weights that were float32", MODEL, widened, (DOUBLE,))


def by_rows(matrix: np.ndarray) -> np.ndarray:
    """Return a float32 matrix rounded to 255 multiples of a scale, which is that of its row."""
    scale = np.abs(matrix).max(axis=1, keepdims=True) / np.float32(127)
    return np.rint(matrix / scale) * scale


def by_short_groups(matrix: np.ndarray) -> np.ndarray:
    """Return a float32 matrix as :func:`by_groups` does, but to 255 multiples of a short group's scale."""
    return by_groups(matrix, SHORT_GROUP, 127)


def by_groups(matrix: np.ndarray, group: int = QUANTIZED_GROUP, largest: int = 7) -> np.ndarray:
    """Return a float32 matrix rounded to 15 multiples of a float16 scale, which is that of a group in its row."""
    groups = matrix.reshape(-1, group)
    scale = (np.abs(groups).max(axis=1, keepdims=True) / largest).astype(np.float16).astype(np.float32)
    return (np.clip(np.rint(groups / scale), -largest, largest) * scale).reshape(matrix.shape)


def by_zero_points(matrix: np.ndarray) -> np.ndarray:
    """Return a float32 matrix rounded to 256 steps between the least and the largest value of a group in its row, which
    are multiples of a scale."""
    groups = matrix.reshape(-1, QUANTIZED_GROUP)
    least, largest = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    scale = (largest - least) / np.float32(255)
    zero_point = np.rint(-least / scale)
    return (np.clip(np.rint(groups / scale), -zero_point, 255 - zero_point) * scale).reshape(matrix.shape)


def by_minima(matrix: np.ndarray) -> np.ndarray:
    """Return a float32 matrix rounded to 16 steps from the least value of a short group in its row on, which is a
    float16 beside the float16 scale, as llama.cpp's Q4_1 has them."""
    groups = matrix.reshape(-1, SHORT_GROUP)
    least = groups.min(axis=1, keepdims=True)
    scale = ((groups.max(axis=1, keepdims=True) - least) / 15).astype(np.float16).astype(np.float32)
    least = least.astype(np.float16).astype(np.float32)
    return (np.clip(np.rint((groups - least) / scale), 0, 15) * scale + least).reshape(matrix.shape)


def by_levels(matrix: np.ndarray) -> np.ndarray:
    """Return a float32 matrix rounded to the levels of NF4 times a scale, which is that of a group in its row."""
    groups, levels = matrix.reshape(-1, QUANTIZED_GROUP), np.array(NF4, np.float32)
    scale = np.abs(groups).max(axis=1, keepdims=True)
    nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, groups / scale)
    return (levels[nearest] * scale).reshape(matrix.shape)


def by_squares(matrix: np.ndarray) -> np.ndarray:
    """Return a float32 matrix rounded to fp8 (e4m3) times a scale, which is that of a square of it."""
    side = min(QUANTIZED_SIDE, *matrix.shape)
    squares = torch.from_numpy(matrix).reshape(matrix.shape[0] // side, side, matrix.shape[1] // side, side)
    scale = squares.abs().amax(dim=(1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return ((squares / scale).to(torch.float8_e4m3fn).float() * scale).reshape(matrix.shape).numpy()


def of_positions(n_values: int) -> Iterator[ArrayKind]:
    """Yield the tables of rotary positions as models keep them: each angle's cosine and sine twice in a row."""
    width = 128
    angles = np.outer(np.arange(n_values // 2 // width), 1e4 ** (-np.arange(0, width, 2) / width))
    angles = np.concatenate([angles, angles], axis=1)
    tables = np.stack([np.cos(angles), np.sin(angles)]).astype(np.float32)
    yield ArrayKind(CACHES, "rotary tables", COMPUTED, [tables])


def on_grids(n_values: int) -> Iterator[ArrayKind]:
    """Yield values that are few decimals or integers times a scale."""
    random = np.random.default_rng(4)
    decimals = np.round(random.normal(20, 8, n_values), 2)
    yield ArrayKind(GRIDS, "normal values with two decimals", SYNTHETIC, [decimals.astype(np.float32)], (SINGLE,))
    yield ArrayKind(GRIDS, "normal values with two decimals", SYNTHETIC, [decimals], (DOUBLE,))
    yield ArrayKind(GRIDS, "images, bytes / 255", PHOTOGRAPHS, [photographs()])
    yield ArrayKind(GRIDS, "audio, int16 / 32768", SYNTHETIC, [sound(n_values, random)])


def photographs() -> np.ndarray:
    """Return the photographs that scikit-learn brings, between 0 and 1, channels first: float32[2, 3, 427, 640]."""
    from sklearn.datasets import load_sample_images

    return np.stack([image.transpose(2, 0, 1) for image in load_sample_images().images]).astype(np.float32) / 255


def sound(n_values: int, random: np.random.Generator) -> np.ndarray:
    """Return notes that fade, with overtones and a little noise, as 16 bits at 44100 Hz have them: float32[n]."""
    note = 11025  # a quarter of a second
    time = np.arange(note) / 44100
    waves = np.zeros(-(-n_values // note) * note)
    for start in range(0, len(waves), note):
        pitch = 220 * 2 ** (random.integers(0, 25) / 12)
        for overtone in range(1, 6):
            fading = np.exp(-time * 4 * overtone) / overtone
            waves[start : start + note] += fading * np.sin(2 * np.pi * pitch * overtone * time)
    waves = 0.3 * waves[:n_values] + 1e-3 * random.normal(size=n_values)
    return (np.rint(np.clip(waves, -1, 1) * 32767) / 32768).astype(np.float32)


def of_distributions(n_values: int) -> Iterator[ArrayKind]:
    """Yield synthetic values that stand for kinds of which there are none here, and fields."""
    random = np.random.default_rng(5)

    def normal() -> np.ndarray:
        return random.normal(size=n_values)

    yield ArrayKind(VECTORS, "weights of norms, near 1", SYNTHETIC, [(1 + 0.05 * normal()).astype(np.float32)])
    yield ArrayKind(VECTORS, "biases, near 0", SYNTHETIC, [(0.01 * normal()).astype(np.float32)])
    missing = np.where(random.random(n_values) < 1 / 3, np.nan, normal())
    yield ArrayKind(MASKED, "normal values, a third NaN", SYNTHETIC, [missing.astype(np.float32)], (SINGLE,))
    yield ArrayKind(MASKED, "normal values, a third NaN", SYNTHETIC, [missing], (DOUBLE,))
    for noise, name in ((0.0, "smooth field"), (0.05, "field with noise")):
        field = field_of(noise, np.random.default_rng(4))
        yield ArrayKind(FIELDS, name, SYNTHETIC, [field if n_values == N_SYNTHETIC else field[:64, :256]], (SINGLE,))
    ordered = np.sort(normal())
    yield ArrayKind(FIELDS, "sorted normal values", SYNTHETIC, [ordered.astype(np.float32)], (SINGLE,))
    yield ArrayKind(FIELDS, "sorted normal values", SYNTHETIC, [ordered], (DOUBLE,))
