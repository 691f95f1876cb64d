"""Measure how fast the symbol stage codes heads, beside other Huffman coders on the same heads.

    python -m bench.entropy [--data DIR] [--quick] [--out DIR]

writes ``bench/results/entropy.csv``. Ours is the stage of :mod:`bench.stages` within the loop over blocks, with what it
does beside symbols (memory fetched ahead), once for each level of CPUs that kernels are compiled for and this machine
has. OpenZL's Huffman coders, huf0 and PivCo-Huffman (arXiv 2606.05765), get the same heads as an array of bytes, in
pieces of ``PIECE``, with their frames and checksums, and choose for this CPU what is best. One thread; the quickest of
several turns.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, no_type_check

import numpy as np

from bench.codec import RESULTS
from bench.data import GROUPS, ROOT, default_folder, named_inputs, read_series
from bench.stages import DECODING, ENCODING, VALUES, decoding_run, encoding_run, in_turn
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.inputs import REPEATABLE, Input, joined
from gcodec.benchmark.measure import MEGA
from gcodec.benchmark.settings import Setting, join_settings, lossless_setting
from gcodec.dtypes import BY_NAME
from gcodec.frame.decode import FrameReader
from gcodec.kernels.block import header
from gcodec.kernels.core.cpu_levels import LEVELS, level_for
from gcodec.kernels.core.jit import kernel
from gcodec.kernels.core.numba_private import has_features

OURS = "gcodec"
#: OpenZL's graphs, by the names of the tables.
GRAPHS = {"huf0": "zl.huffman", "PivCo-Huffman": "zl.huffman_pivco"}
TYPES = ("float32", "bfloat16")
PIECE = 1 << 20  #: heads; OpenZL is fastest from here on


def settings_of(folder: Path, n_values: int) -> Iterator[Setting]:
    """Yield about so many gradients, weights and optimizer states of every model, in each type, end to end."""
    for model, dumps in read_series(folder).items():
        for group in GROUPS:
            for dtype in TYPES:
                for title, parts in named_inputs({model: dumps}, (group,), (dtype,), with_levels=False):
                    parts = [part for part in parts if part.nbytes]
                    parts *= -(-REPEATABLE // sum(part.nbytes for part in parts))
                    n_bytes = n_values * parts[0].bits.itemsize
                    data = replace(joined(parts, title, n_bytes), shapes=())  # so that all blocks are coded ones
                    yield join_settings([lossless_setting(part) for part in parts], data, n_bytes)


def heads_of(data: Input) -> np.ndarray:
    """Return the heads of values, uint8[n]: their exponents, which ours codes with the sign in some arrays."""
    dtype = BY_NAME[data.dtype]
    return (data.bits >> dtype.uint.type(dtype.tail_bits) & dtype.uint.type(0xFF)).astype(np.uint8)


def openzl_coder(graph: str, heads: np.ndarray) -> tuple[Callable[[], Any], Callable[[], Any], float]:
    """Return what encodes heads, what decodes them again, and the bits a head takes.

    Raises:
        AssertionError: They are not what they were.
    """
    import openzl.ext as zl

    compressor = zl.Compressor()
    compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
    compressor.select_starting_graph(compressor.get_graph(graph))
    context, decoder = zl.CCtx(), zl.DCtx()
    pieces = [heads[start : start + PIECE] for start in range(0, heads.size, PIECE)]

    def encode() -> list[bytes]:
        frames = []
        for piece in pieces:
            context.ref_compressor(compressor)
            context.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
            frames.append(context.compress([zl.Input(zl.Type.Serial, piece)]))
        return frames

    frames = [bytes(frame) for frame in encode()]

    def decode() -> list[Any]:
        return [decoder.decompress(frame)[0].content.as_nparray() for frame in frames]

    assert np.array_equal(np.concatenate(decode()), heads)
    return encode, decode, 8 * sum(map(len, frames)) / heads.size


@kernel
@no_type_check
def symbol_bytes(data, offsets):
    """Return the bytes of the symbols of a frame's coded blocks, whose others have none."""
    n_bytes = 0
    for at in offsets:
        if data[at] == header.CODED:
            n_bytes += header.read_coded(data, at).symbol_bytes
    return n_bytes


def ours_on(setting: Setting) -> tuple[dict[str, Callable[[], Any]], float]:
    """Return our block loops before and after their symbol stage, in both directions, and the bits of a symbol."""
    task = setting.task()
    task.verify()
    frame = FrameReader(bytes(task.encode()))
    encoding, decoding = encoding_run(task, False).steps, decoding_run(task).steps
    steps = {}
    for what, names, stages, stage in (
        ("encoding", ENCODING, encoding, "symbol coding"),
        ("decoding", DECODING, decoding, "symbol decoding"),
    ):
        steps[what], steps[f"before {what}"] = stages[stage], stages[names[names.index(stage) - 1]]
    return steps, 8 * symbol_bytes(frame.data, frame.offsets) / setting.data.bits.size


def rows_of(setting: Setting, cpu: str, rounds: int, with_peers: bool) -> Iterator[NamedRow]:
    """Yield the rows of an array: of ours, and of the others if asked for; all take turns."""
    tasks, our_bits = ours_on(setting)
    bits = {OURS: our_bits}
    if with_peers:
        heads = heads_of(setting.data)
        for name, graph in GRAPHS.items():
            tasks[f"{name} encoding"], tasks[f"{name} decoding"], bits[name] = openzl_coder(graph, heads)
    seconds, n_heads = in_turn(tasks, rounds), setting.data.bits.size
    for what in ("encoding", "decoding"):
        seconds[f"{OURS} {what}"] = seconds[what] - seconds[f"before {what}"]
    for name in bits:
        speeds = [f"{n_heads / seconds[f'{name} {what}'] / 1e9:.3f}" for what in ("encoding", "decoding")]
        yield {
            "data": setting.data.name,
            "coder": name,
            "cpu": cpu if name == OURS else "",
            "heads": n_heads,
            "bits_per_head": f"{bits[name]:.3f}",
            "encode_gheads_per_s": speeds[0],
            "decode_gheads_per_s": speeds[1],
        }


def rows_here(folder: Path, n_values: int, rounds: int, cpu: str, with_peers: bool) -> list[NamedRow]:
    """Return the rows of all arrays, of kernels that are compiled for what this process was started for."""
    return [row for setting in settings_of(folder, n_values) for row in rows_of(setting, cpu, rounds, with_peers)]


def rows_for(level: str, *arguments: object) -> list[NamedRow]:
    """Return what :func:`rows_here` returns in a process of its own, whose kernels are those for a level of CPUs."""
    call = ", ".join(map(repr, (*arguments, level, level == best_level())))
    program = (
        "import json; from pathlib import Path, PosixPath; from bench.entropy import rows_here; "
        f"print(json.dumps(rows_here({call})))"
    )
    found = next(one for one in LEVELS if one.name == level)
    names = {} if level == best_level() else {"NUMBA_CPU_NAME": found.cpu, "NUMBA_CPU_FEATURES": found.flags}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **names}, cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return list(json.loads(done.stdout))


def best_level() -> str | None:
    """Return the highest level of CPUs that this one is of; None on a CPU that is not x86-64."""
    level = level_for(has_features)
    return None if level is None else level.name


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.entropy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: what bench.record wrote)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="few values, 1 round, only this CPU's own level")
    options = parser.parse_args(arguments)
    n_values, rounds = (MEGA // 4, 1) if options.quick else (VALUES, 9)
    names, best, folder = [level.name for level in LEVELS], best_level(), options.data or default_folder()
    levels = names[names.index(best) :] if best else []
    if options.quick or not best:
        rows = rows_here(folder, n_values, rounds, best or "", True)
    else:
        rows = [row for level in levels for row in rows_for(level, folder, n_values, rounds)]
    for row in sorted(rows, key=lambda row: str(row["data"])):
        print(*row.values(), flush=True)
    write_named(options.out / "entropy.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
