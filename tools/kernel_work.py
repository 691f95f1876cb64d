"""What kernels are compiled ahead: of float32, bfloat16 and float16, of training with them, and of plain float64.

The parts are in the order in which users meet what they use, and each of them is worth having without the later ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

import gcodec
from gcodec.dtypes import BY_NAME
from gcodec.format import modes
from gcodec.format.ladders import FINE_LADDER
from gcodec.kernels.quantize.scaled_blocks import Integers
from gcodec.kernels.sample.repeated_words import share_repeated
from gcodec.options import EncoderOptions
from gcodec.plan.finding import differing_values

if TYPE_CHECKING:
    from gcodec.distributed.reduction.precompile import StepRules
    from gcodec.format.modes import BitLayout

#: Types of gradients, weights and checkpoints: others compile on their first use.
DTYPES = ("float32", "bfloat16", "float16")
_VALUES = 1 << 17
GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
#: Names of golden frames, whose decoding is compiled while others compile encoding: frames without options, and others.
_PLAIN = "lossless-coded", "two-blocks", "constant", "raw"
_OTHER = "half-the-mantissa-coded", "columns", "template", "base", "sparse-base", "sparse-zeros-lossless"


def encode_differences(name: str) -> None:
    """Encode values of which few differ from a base: with as many classes of magnitude as there may be, or fewer."""
    dtype, random = BY_NAME[name], np.random.default_rng(0)
    base = random.integers(0, 1 << 8 * dtype.uint.itemsize, _VALUES, dtype=dtype.uint)
    magnitudes = (base & dtype.uint.type((1 << 8 * dtype.uint.itemsize - 1) - 1)).astype(np.float64)
    ranks = magnitudes / magnitudes.max()
    for shares in (np.full(_VALUES, 0.01), np.where(ranks < 0.2, 0.2, 0.001), 0.4 * 0.5 ** (12 * ranks)):
        values = base ^ (random.random(_VALUES) < shares).astype(dtype.uint)
        frame = gcodec.encode(values, base=base, dtype=name)
        held = gcodec.decode(gcodec.encode(base, dtype=name))
        gcodec.decode(frame, base=base)
        gcodec.decode(frame, base=held, out=held)
        differing_values(values, base)
    zeros = np.where(random.random(_VALUES) < 0.01, base, dtype.uint.type(0))
    gcodec.decode(gcodec.encode(zeros, dtype=name))


def use_in_training(name: str, *, own_codebooks: bool = False) -> None:
    """Use what hooks use, in all modes, with SGD and AdamW: with shared codebooks, which is the default, or without."""
    # A package without what it imports at once: torch, which is not there while gcodec is installed.
    package = sys.modules["gcodec.distributed"] = ModuleType("gcodec.distributed")
    package.__path__ = [str(Path(gcodec.__path__[0]) / "distributed")]
    from gcodec.distributed.reduction.precompile import StepRules, precompile_layout
    from gcodec.distributed.reduction.shared_codebooks import Refresh

    optimizers = [("SGD", {"lr": 0.1, "momentum": 0.9}), ("AdamW", {"lr": 0.001})]
    dtype, rules = BY_NAME[name], StepRules(FINE_LADDER[name], optimizers)
    lossless, lossy, near = modes.lossless(dtype), modes.fixed(dtype, 7), modes.ladder(dtype, rules.ladder)
    layouts: list[tuple[BitLayout, StepRules | None]] = [(lossless, None), (lossy, None), (near, rules)]
    for layout, its_rules in layouts:
        precompile_layout(dtype, layout, its_rules, None if own_codebooks else Refresh())


def use_integers(name: str) -> None:
    """Quantize and dequantize as the modes "int8" and "int4" do, and code integers and scales."""
    from gcodec.compressors.bit_packing import pack_bits, unpack_bits
    from gcodec.compressors.block_integers import dequantize_in_blocks, quantize_in_blocks

    values, decoded = _values(name, _VALUES), np.empty(_VALUES, np.float32)
    for bits in (8, 4):
        integers = Integers(128, (1 << bits - 1) - 1, fitted=False, signed=False)
        codes, scales = quantize_in_blocks(values, integers, decoded)
        for data, dtype in ((codes, "float8_e4m3fn"), (scales, "bfloat16")):
            gcodec.decode(gcodec.encode(data, dtype=dtype, options=EncoderOptions(prediction=False)))
        dequantize_in_blocks(unpack_bits(pack_bits(codes, bits), _VALUES, bits), scales, integers, decoded, add=True)


def encode_plain(name: str) -> None:
    """Encode as a first call without options does: a matrix, whose rows may be alike, a few values, and many."""
    gcodec.encode(_values(name, 40_000).reshape(200, 200), dtype=name)
    for n_values in (1000, 300_000):
        gcodec.encode(_values(name, n_values), dtype=name)
    share_repeated(_values(name, 1000).view(np.uint8), 4)  # as archives do


def use_other_arrays(name: str) -> None:
    """Encode and decode what a first checkpoint has beside plain weights: columns of different scales, second moments,
    zeros, constants and, in a type that holds them, integers."""
    rng = np.random.default_rng(2)
    rows, scales = rng.standard_normal((300, 160)), np.exp2(-np.arange(160) % 20)
    moments = np.square(rows * rng.standard_normal((300, 1)) * rng.standard_normal(160))
    zeros = np.where(rng.random(_VALUES) < 0.03, 1.0 + np.arange(_VALUES) % 97, 0.0)
    arrays = [rows * scales, moments, zeros, np.ones(8 * _VALUES)]
    if BY_NAME[name].mantissa_bits > 10:
        arrays.append(np.arange(40_000) % 1999)
    for values in arrays:
        gcodec.decode(gcodec.encode(_of_type(name, values), dtype=name))


def decode_frames(kinds: tuple[str, ...], name: str) -> None:
    """Decode golden frames, for which nothing need be encoded."""
    manifest, dtype = json.loads((GOLDEN / "manifest.json").read_text()), BY_NAME[name]
    for frame in (f"{name}-{kind}" for kind in kinds):
        described, base = manifest[frame], None
        if "base" in described:
            bits = np.frombuffer((GOLDEN / described["base"][0]).read_bytes(), dtype.uint).reshape(described["shape"])
            base = bits.view(name) if dtype.in_numpy else bits
        gcodec.decode((GOLDEN / f"{frame}.frame").read_bytes(), base=base)


def use_lossy(name: str) -> None:
    """Encode with fewer mantissa bits, and decode that: as many as bfloat16 has where there are more, which make planes
    of a kind of their own, and three."""
    for kept in {min(BY_NAME[name].mantissa_bits - 1, 7), 3}:
        gcodec.decode(gcodec.encode(_values(name, 40_000), dtype=name, mantissa_bits=kept))


def encode_against_a_base(name: str) -> None:
    """Encode a matrix against itself, and against one that differs from it a little everywhere."""
    dtype, rows = BY_NAME[name], _values(name, 40_000).reshape(200, 200)
    step = max((1 << dtype.mantissa_bits) >> 8, 2)
    moved = rows.view(dtype.uint) + np.random.default_rng(1).integers(0, step, rows.shape).astype(dtype.uint)
    for base in (rows, moved.view(rows.dtype)):
        gcodec.encode(rows, dtype=name, base=base)


def use_all(name: str) -> None:
    """Use what all modes use, and what training without shared codebooks does, which may be any of it."""
    gcodec.warmup(name)
    encode_differences(name)
    use_in_training(name, own_codebooks=True)


def _values(name: str, n_values: int) -> np.ndarray:
    return _of_type(name, np.random.default_rng(0).standard_normal(n_values))  # of all bits that float64 has


def _of_type(name: str, values: np.ndarray) -> np.ndarray:
    if name == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(name)


Use = Callable[[str], None]
_WORK: tuple[tuple[str, Use, str], ...] = (
    ("encode", encode_plain, "float32"),
    ("decode", partial(decode_frames, _PLAIN), "float32"),
    ("decode", partial(decode_frames, _PLAIN), "bfloat16"),
    ("encode", encode_plain, "bfloat16"),
    ("lossy", use_lossy, "float32"),
    ("training with", use_in_training, "float32"),
    ("encode against a base", encode_against_a_base, "float32"),
    ("decode others of", partial(decode_frames, _OTHER), "float32"),
    ("other arrays of", use_other_arrays, "float32"),
    ("other arrays of", use_other_arrays, "bfloat16"),
    ("decode others of", partial(decode_frames, _OTHER), "bfloat16"),
    ("lossy", use_lossy, "bfloat16"),
    ("training with", use_in_training, "bfloat16"),
    ("encode against a base", encode_against_a_base, "bfloat16"),
    ("training with integers from", use_integers, "float32"),
    ("encode", encode_plain, "float64"),
    ("decode", partial(decode_frames, _PLAIN), "float64"),
    ("differences of", encode_differences, "float32"),
    ("differences of", encode_differences, "bfloat16"),
    *(("all of", use_all, name) for name in DTYPES),
)
#: What is done, in this order: parts that processes do at the same time have hardly a kernel in common.
PARTS: dict[str, Callable[[], None]] = {f"{what} {name}": partial(use, name) for what, use, name in _WORK}
