"""Compile the kernels that tests run, before tests start: ``python -m tests.support.precompile [TYPE ...]``.

Test processes would otherwise compile the same kernels at the same time: what one compiles, another finds on disk only
if it comes later. Here as many processes as there are cores share the work by tasks that have hardly a kernel in
common: encoding against decoding, and one width of values against another.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

import gcodec
from gcodec.dtypes import BY_NAME
from tests.support import laws
from tests.support.base_pairs import PAIRS
from tests.support.bit_patterns import KINDS, from_floats, typed
from tests.support.cases import MULTIPLES, Case
from tests.support.encode_modes import modes
from tests.support.layouts import general_layout
from tests.support.make_golden import as_base, as_known, read_manifest
from tests.support.paths import GOLDEN

Types = tuple[str, ...]
#: Types of one width, whose kernels are the same.
WIDTHS: tuple[Types, ...] = (("float32",), ("bfloat16", "float16"), ("float64",), ("float8_e4m3fn", "float8_e5m2"))


def encode_in_all_modes(types: Types) -> None:
    """Encode arrays of several blocks in every mode, and values that have a wide head or the sign in the head."""
    for dtype in types:
        for name in ("three blocks and a bit", "scale by row"):
            for mode in modes(dtype):
                case = Case(dtype, name)
                gcodec.encode(case.array(), **mode.arguments(case))
                if KINDS[dtype].predicted:  # tests compare the layouts of such types with the general one
                    with general_layout():
                        gcodec.encode(case.array(), **mode.arguments(case))
        uniform = from_floats(KINDS[dtype], np.random.default_rng(0).uniform(-0.75, 0.75, 5000))
        for values in (uniform, uniform & KINDS[dtype].container.type((1 << KINDS[dtype].W - 1) - 1)):
            gcodec.encode(typed(dtype, values), dtype=dtype)


def encode_predicted(types: Types) -> None:
    """Encode rows that are multiples of one another, and arrays against a base."""
    for case in MULTIPLES:
        if case.dtype in types:
            gcodec.encode(case.array(), **case.options)
    for pair in PAIRS:
        if pair.dtype in types:
            gcodec.encode(pair.array(), base=pair.earlier(), dtype=pair.dtype)


def decode_golden_frames(types: Types) -> None:
    """Decode the golden frames, which hold every kind of block in every layout of planes."""
    for name, described in read_manifest(GOLDEN).items():
        if described["dtype"] in types:
            frame = (GOLDEN / f"{name}.frame").read_bytes()
            laws.decode_known(frame, as_known(described.get("codebooks", [])), base=as_base(GOLDEN, described))


def reduce_near_lossless(types: Types) -> None:
    """Run what ranks run that choose levels by an optimizer's rule, and that wait for each other only so long."""
    if "float32" in types:
        import torch

        from gcodec.distributed import NearLossless
        from gcodec.distributed.reduction.precompile import precompile_kernels

        parameters = [torch.nn.Parameter(torch.ones(8))]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            torch.optim.Adagrad(parameters),
            torch.optim.AdamW(parameters),
        ]
        precompile_kernels(BY_NAME["float32"], NearLossless(optimizers), None)


def use_integers(types: Types) -> None:
    """Quantize and dequantize in blocks, whose kernels are the same for every number of bits."""
    if "float32" in types:
        from gcodec.compressors.block_integers import dequantize_in_blocks, quantize_in_blocks
        from gcodec.kernels.quantize.scaled_blocks import Integers

        integers = Integers(128, 7, fitted=False, signed=False)
        for kind in (np.float32, np.float64):
            out = np.empty(1000, kind)
            codes, scales = quantize_in_blocks(np.ones(1000, np.float32), integers, out)
            dequantize_in_blocks(codes, scales, integers, out)


Task = tuple[Callable[[Types], None], Types]


def tasks_for(widths: Sequence[Types]) -> Iterator[Task]:
    """Yield tasks such that of any that run at the same time, no two compile the same kernel."""
    first, *others = widths
    yield encode_in_all_modes, first  # also compiles what types share, while others decode
    yield from ((decode_golden_frames, types) for types in widths)
    for before, types in zip(widths, others, strict=False):
        yield encode_in_all_modes, types
        yield encode_predicted, before  # of a width that has been encoded in all modes
    yield encode_predicted, widths[-1]
    yield reduce_near_lossless, first  # whose frames have been encoded in all modes
    yield use_integers, first


def run_task(task: Task) -> None:
    """Run a task in a process of the pool."""
    function, types = task
    function(types)


def main(arguments: Sequence[str]) -> int:
    """Compile the kernels of some value types; of all if none are named."""
    widths = [tuple(dtype for dtype in types if not arguments or dtype in arguments) for types in WIDTHS]
    tasks = list(tasks_for([types for types in widths if types]))
    # A compiler's objects live as long as their kernel: to look for cycles among them takes a seventh of the time.
    with mp.get_context("spawn").Pool(min(os.cpu_count() or 1, len(tasks)), gc.disable) as pool:
        for _ in pool.imap_unordered(run_task, tasks):
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
