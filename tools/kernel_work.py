"""Use the kernels that are compiled ahead: those of float32, bfloat16 and float16, and of training with them.

    python tools/kernel_work.py [PART ...]

does the named parts of that, or all of them. The parts are in the order in which users meet what they use, and each of
them is worth having without the later ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import numpy as np

import gcodec
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


def use_in_training() -> None:
    """Use what hooks use, where there is torch."""
    if find_spec("torch") is None:
        return
    import torch

    from gcodec.distributed.modes import FixedBits, Lossless, Mode, NearLossless
    from gcodec.distributed.reduction.precompile import precompile_kernels
    from gcodec.distributed.reduction.shared_codebooks import Refresh

    parameters = [torch.nn.Parameter(torch.zeros(8))]
    optimizers = torch.optim.SGD(parameters, momentum=0.9), torch.optim.AdamW(parameters)
    modes: list[Mode] = [Lossless(), FixedBits(7), *map(NearLossless, optimizers)]
    for name in DTYPES[:2]:
        for mode in modes:
            for refresh in (None, Refresh()):
                precompile_kernels(BY_NAME[name], mode, refresh)


def use_plain(name: str) -> None:
    """Use what a first call without options uses."""
    for n_values in (1000, 40_000, 300_000):
        gcodec.decode(gcodec.encode(_values(name, n_values), dtype=name))


def use_lossy(name: str) -> None:
    """Use what dropping mantissa bits uses."""
    gcodec.decode(gcodec.encode(_values(name, 40_000), dtype=name, mantissa_bits=3))


def use_rows(name: str) -> None:
    """Use what matrices use, whose rows may be alike, and a base."""
    rows = _values(name, 40_000).reshape(200, 200)
    for base in (None, rows):
        gcodec.decode(gcodec.encode(rows, dtype=name, base=base), base=base)


def use_all(name: str) -> None:
    """Use what all modes use."""
    gcodec.warmup(name)
    encode_differences(name)


def _values(name: str, n_values: int) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(n_values).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if name == "bfloat16" else values.astype(name)


#: What is done, in this order.
PARTS: dict[str, Callable[[], None]] = {
    **{f"plain {name}": partial(use_plain, name) for name in DTYPES},
    **{f"{what} {name}": partial(use, name) for name in DTYPES[:2]
       for what, use in (("rows", use_rows), ("lossy", use_lossy))},
    **{f"all {name}": partial(use_all, name) for name in DTYPES},
    "training": use_in_training,
}  # fmt: skip


def main() -> None:
    """Do the parts of the work that the command line names."""
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
