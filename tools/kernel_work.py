"""Use the kernels that wheels ship: those of float32, bfloat16 and float16, and of training with them."""

from __future__ import annotations

import numpy as np
import torch

import gcodec
from gcodec.distributed.modes import FixedBits, Lossless, Mode, NearLossless
from gcodec.distributed.reduction.precompile import precompile_kernels
from gcodec.distributed.reduction.shared_codebooks import Refresh
from gcodec.dtypes import BY_NAME
from gcodec.plan.finding import differing_values

#: Types of gradients, weights and checkpoints: others compile on their first use.
DTYPES = ("float32", "bfloat16", "float16")
_VALUES = 1 << 17


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


def main() -> None:
    """Use all of them once."""
    gcodec.warmup(DTYPES)
    for name in DTYPES:
        encode_differences(name)
    parameters = [torch.nn.Parameter(torch.zeros(8))]
    optimizers = torch.optim.SGD(parameters, momentum=0.9), torch.optim.AdamW(parameters)
    modes: list[Mode] = [Lossless(), FixedBits(7), *map(NearLossless, optimizers)]
    for name in DTYPES[:2]:
        for mode in modes:
            for refresh in (None, Refresh()):
                precompile_kernels(BY_NAME[name], mode, refresh)


if __name__ == "__main__":
    main()
