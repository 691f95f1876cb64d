"""Bits per exponent and per mantissa under several strategies: the rows of the GComp paper's Figures 12 and 14.

Ours is measured from whole frames: headers, indices, codebooks and padding count as bits of exponents. All others are
ideal: the bits of their codes alone. Zeros cost their code and no mantissa; sign bits are left out everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...benchmark.bounds import head_symbols, joint_symbols, local_order0_bits
from ...benchmark.inputs import LADDERS, Input
from ...benchmark.settings import near_lossless_setting
from ...codec import encode
from ...format.codebook import huffman_lengths
from ...stream import Encoder

N_THETA = 11  #: longest native code that GComp's optimized table keeps, in bits; the paper's only example has 8


Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class HuffmanTable:
    """A Huffman code over symbols; ``lengths`` are in bits, 0 for a symbol without a code.

    What has none is sent as ``escape`` bits and the symbol itself, ``raw`` bits.
    """

    lengths: np.ndarray
    escape: int
    raw: int

    def bits(self, counts: np.ndarray) -> float:
        """Bits that symbols counted so cost."""
        width = max(len(counts), len(self.lengths))
        counts, lengths = (np.pad(a.astype(np.int64), (0, width - len(a))) for a in (counts, self.lengths))
        return float((counts * np.where(lengths > 0, lengths, self.escape + self.raw)).sum())


def native_table(counts: np.ndarray, raw: int) -> HuffmanTable:
    """Return Huffman's own code. A symbol that was not counted would be escaped, at a length no shorter than any
    code's."""
    lengths = np.zeros(len(counts), np.int64)
    lengths[counts > 0] = huffman_lengths(counts[counts > 0]) if np.count_nonzero(counts) > 1 else 1
    return HuffmanTable(lengths, int(lengths.max(initial=1)), raw)


def optimized_table(counts: np.ndarray, raw: int, n_theta: int = N_THETA) -> HuffmanTable:
    """Return GComp's code: symbols with a native code longer than ``n_theta`` bits, and all unseen ones, share an
    escape."""
    kept = (counts > 0) & (native_table(counts, raw).lengths <= n_theta)
    weights = np.append(counts[kept], max(1, int(counts[~kept].sum())))
    codes = huffman_lengths(weights) if len(weights) > 1 else np.ones(1, np.int64)
    lengths = np.zeros(len(counts), np.int64)
    lengths[kept] = codes[:-1]
    return HuffmanTable(lengths, int(codes[-1]), raw)


def exponent_rows(data: Sequence[Input]) -> Rows:
    """Figure 12 for the gradients of one model at rising steps."""
    rows: Rows = []
    before: Input | None = None
    stale: np.ndarray | None = None
    for part in data:
        heads = head_symbols(part.bits, part.type)
        counts, raw = np.bincount(heads), part.type.head_bits
        tails = np.count_nonzero(part.bits) * part.type.tail_bits
        frame, reused = 8 * len(encode(part.bits, dtype=part.dtype)), _reused(before, part)
        strategies: dict[str, float | None] = {
            "native Huffman, one table": native_table(counts, raw).bits(counts),
            "optimized (GComp), one table": optimized_table(counts, raw).bits(counts),
            "optimized, table of the step before": None if stale is None else optimized_table(stale, raw).bits(counts),
            "ours, whole frame": float(frame - tails),
            "ours, codebook of the step before": None if reused is None else float(reused - tails),
            "order-0 bound, blocks of 16 Ki": local_order0_bits(heads),
        }
        rows += _rows(part, {name: bits for name, bits in strategies.items() if bits is not None})
        before, stale = part, counts
    return rows


def _reused(before: Input | None, part: Input) -> float | None:
    """Bits of a frame of a stream that goes on using the codebook made for the step before, which it only names."""
    if before is None:
        return None
    encoder = Encoder(interval=1 << 30, trigger=1e9)
    encoder.encode(before.bits, dtype=before.dtype)
    return 8.0 * len(encoder.encode(part.bits, dtype=part.dtype))


def mantissa_rows(data: Sequence[Input]) -> Rows:
    """Figure 14 for the gradients of one model at rising steps."""
    rows: Rows = []
    for part in data:
        dtype, paper = part.type, LADDERS["paper"][part.dtype]
        normal = part.bits[head_symbols(part.bits, dtype) > 1]
        dropped = np.array(paper.drops)[part.levels["paper"][head_symbols(part.bits, dtype) > 1]]
        rows += _rows(
            part,
            {
                "native Huffman, per byte": _huffman_bytes(normal, dtype.mantissa_bits),
                "optimized (GComp): 4 levels, 2 bits each": float((2 + dtype.mantissa_bits - dropped).sum()),
                "ours, 4 levels, joint with exponent": _joint(part, "paper"),
                "ours, 8 levels, joint with exponent": _joint(part, "fine"),
            },
        )
    return rows


def _huffman_bytes(words: np.ndarray, mantissa_bits: int) -> float:
    """Bits of mantissas as bytes, from the lowest up, each place with its own Huffman code."""
    total = 0.0
    mantissa = words & words.dtype.type((1 << mantissa_bits) - 1)
    for shift in range(0, mantissa_bits, 8):
        counts = np.bincount((mantissa >> words.dtype.type(shift)).astype(np.uint8), minlength=1)
        total += native_table(counts, 8).bits(counts)
    return total


def _joint(part: Input, ladder: str) -> float:
    """Return the kept mantissa bits, and what the levels add to the local entropy of the exponents."""
    setting = near_lossless_setting(part, ladder)
    heads, joint = head_symbols(setting.result, part.type), joint_symbols(setting.result, part.type, setting.levels)
    nonzero = np.count_nonzero(setting.result)
    return setting.bound().kept - nonzero + local_order0_bits(joint) - local_order0_bits(heads)


def _rows(part: Input, bits: dict[str, float]) -> Rows:
    return [
        {"model": part.model, "step": part.step, "strategy": name, "bits_per_value": value / part.bits.size}
        for name, value in bits.items()
    ]
