"""Fit the codebooks that come with gcodec to recorded dumps: ``python -m tools.fit_shipped DUMPS`` prints the rows
of ``gcodec/format/shipped.py``.

Small tensors are what these codebooks are for (large ones carry their own), so every tensor counts alike, whatever
its size.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gcodec.dtypes import BY_NAME
from gcodec.format.ladders import FINE_LADDER, PAPER_LADDER, Ladder
from gcodec.plan.codebooks import from_histogram, n_bins_of, window_of
from gcodec.plan.sampling import SampleSource, take_sample
from gcodec.recorder import Dump, read_dump
from gcodec.tensors import values_of
from gcodec.truncation.optimizers import levels_for, view_from_dump
from gcodec.truncation.reference import round_to_levels

#: id, value types, what is counted, ladder (None: lossless), type the values are converted to
PLAN: tuple[tuple[int, tuple[str, ...], str, dict[str, Ladder] | None, str], ...] = (
    (1, ("float32", "bfloat16"), "grad", None, "float32"),
    (2, ("float32", "bfloat16"), "param", None, "float32"),
    (3, ("float16",), "grad", None, "float16"),
    (4, ("float16",), "param", None, "float16"),
    (5, ("float32",), "grad", FINE_LADDER, "float32"),
    (6, ("float32",), "grad", PAPER_LADDER, "float32"),
)
_BLOCK, _STREAM = 1 << 14, 1 << 8


def _tensors(dump: Dump, what: str) -> Iterator[tuple[str, np.ndarray]]:
    for name in dump.names:
        yield name, np.asarray(dump.grad(name) if what == "grad" else dump.param(name))


def _histogram(dumps: list[Dump], what: str, ladders: dict[str, Ladder] | None, dtype: str) -> np.ndarray:
    """Shares of symbols, summed over tensors: int64[n_bins]."""
    steps = ladders[dtype] if ladders else None
    n_levels = len(steps.drops) if steps else 1
    total = np.zeros(n_bins_of(n_levels))
    for dump in dumps:
        for name, array in _tensors(dump, what):
            levels = np.zeros(0, np.uint8)
            values = array.astype(dtype)
            if steps is not None:
                view = view_from_dump(dump.optimizer, dump.hyper(name), dump.state(name))
                levels = levels_for(view, np.asarray(dump.param(name)), array, ladder=steps).reshape(-1)
                values = round_to_levels(values.reshape(-1), levels, steps)
            source = SampleSource(values_of(values).bits, levels, n_levels, _BLOCK)
            counts = take_sample(source, BY_NAME[dtype], _STREAM).by_block.sum(axis=0)
            total += counts / max(int(counts[1:].sum()), 1)
    return (total / total.sum() * (1 << 20)).astype(np.int64)


def main() -> None:
    """Print one row per codebook."""
    summary = "Fits the codebooks that come with gcodec to recorded dumps; prints the rows of gcodec/format/shipped.py."
    parser = argparse.ArgumentParser(prog="python -m tools.fit_shipped", description=summary)
    parser.add_argument("dumps", type=Path, help="a folder of dumps as gcodec.demo.train writes them")
    folder = parser.parse_args().dumps
    dumps = [read_dump(path) for path in sorted(folder.glob("*/step-*.safetensors"))]
    if not dumps:
        parser.error(f"{folder} holds no dumps (MODEL/step-000001.safetensors and so on)")
    for number, types, what, ladders, dtype in PLAN:
        n_levels = len(ladders[dtype].drops) if ladders else 1
        head_bits = BY_NAME[dtype].head_bits
        book = from_histogram(_histogram(dumps, what, ladders, dtype), head_bits, n_levels, window_of(n_levels)[1])
        lines = [book.record.hex()[i : i + 100] for i in range(0, len(book.record.hex()), 100)]
        print(f"    ({number}, {types!r}, {n_levels}, {head_bits},".replace("'", '"'))
        print("     " + "\n     ".join(f'"{line}"' for line in lines) + "),")


if __name__ == "__main__":
    main()
