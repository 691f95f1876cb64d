"""Where the time goes: encoding and decoding as a whole, and what each stage adds, in nanoseconds per value.

    python -m bench.stages [--data DIR] [--quick] [--out DIR]

writes ``bench/results/stages.csv``. One thread, into memory that exists. A stage's time is the difference between the
block loop stopped after it and the loop stopped before it, so that caches are as they are in earnest; what
Python adds is the call as a whole less its kernels. All of them take turns, and the quickest turn counts: noise only
adds, and these are differences. Beside them stands the floor: the bytes read and written at the speed at which this
machine copies.

What knows the codec's inside is in ``ENCODING``, ``DECODING`` and the two loops, which follow those of
``gcodec.kernels.block.encode`` and ``decode``. The arguments are those that gcodec itself passed, so that a new one
means a new name here and no more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, no_type_check
from unittest.mock import patch

import numpy as np

from bench.codec import RESULTS
from bench.data import DTYPES, default_folder, named_inputs, read_series
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.inputs import GRADIENTS, REPEATABLE, joined
from gcodec.benchmark.measure import MEGA
from gcodec.benchmark.settings import Setting, join_settings, lossless_setting, near_lossless_setting
from gcodec.benchmark.timing import CodecTask, copy_task
from gcodec.frame import coded_blocks
from gcodec.kernels.block import decode as decoder
from gcodec.kernels.block import encode as encoder
from gcodec.kernels.block import header
from gcodec.kernels.core.jit import kernel
from gcodec.kernels.core.unaligned import subarray, subarray_if_any
from gcodec.kernels.entropy.decode_streams import PrefixDecoder, decode_buffers, decode_streams
from gcodec.kernels.entropy.encode_streams import NextValues, encode_buffers, encode_streams, prefix_encoder
from gcodec.kernels.entropy.prefix_code import ESCAPE
from gcodec.kernels.heads.symbols import find_block_symbols, symbol_ranges
from gcodec.kernels.levels.rounding import round_values
from gcodec.kernels.planes import layouts
from gcodec.plan import plan as planning
from gcodec.plan import sampling

WHOLE, FLOOR, PYTHON = "whole", "floor", "Python"
#: Stages in the order in which the block loop comes to them; the last is what the loop itself still adds.
ENCODING = ("rounding", "references, symbols", "planes", "symbol coding", "checksum")
DECODING = ("checksum", "symbol decoding", "counting", "planes")
SAMPLE, CODEBOOKS = "sample", "codebooks"
SETTINGS = ((lossless_setting, "float32"), (near_lossless_setting, "float32"), (lossless_setting, "bfloat16"))
VALUES = 8 << 20


@kernel
@no_type_check
def encode_up_to(upto, coding, rounded, begin, end, scratch, out, at):
    """Return ``encode_blocks``, left in each block after so many of ``ENCODING``."""
    geometry, books, choices, float_bits = coding.geometry, coding.books, coding.choices, coding.float_bits
    stream_len = geometry.stream_len
    for b in range(begin, end):
        start = b * geometry.block
        n = min(geometry.block, geometry.n_values - start)
        values, following = subarray(coding.values, start, n), subarray(coding.values, start + n, n)
        levels = subarray_if_any(coding.levels, start, n)
        if rounded is not None:
            result = subarray(rounded, 0, n)
            round_values(values, levels, float_bits, coding.rounding, scratch.symbols, following, result)
            values = result
        c = choices.codebook[b]
        if upto == 1 or header.is_constant(values, n) or c < 0:
            continue
        find_block_symbols(
            values,
            levels,
            stream_len,
            float_bits,
            choices.base[b],
            choices.references,
            symbol_ranges(books, c),
            scratch,
        )
        if upto == 2:
            continue
        streams_at = layouts.split_planes(
            values,
            stream_len,
            float_bits,
            layouts.plane_tables(books, c),
            coding.planes,
            scratch,
            out,
            at + header.CODED_HEADER,
        )
        if upto == 3:
            continue
        encode_streams(
            values,
            stream_len,
            prefix_encoder(books, c, float_bits),
            NextValues(following, np.int64(64 if rounded is None else 128)),
            encode_buffers(scratch),
            out,
            streams_at,
        )


@kernel
@no_type_check
def decode_up_to(upto, blocks, begin, end, coding, scratch, out):
    """Return ``decode_blocks``, left in each block after so many of ``DECODING``."""
    data, geometry, books, float_bits = blocks.data, coding.geometry, coding.books, coding.float_bits
    bad, stream_len = 0, geometry.stream_len
    for b in range(begin, end):
        at, size = blocks.offsets[b], blocks.sizes[b]
        n = min(geometry.block, geometry.n_values - b * geometry.block)
        bad += header.check_block(data, at, size, b)
        if upto == 1 or data[at] != header.CODED:
            continue
        c, n_streams = data[at + header.CODEBOOK], (n + stream_len - 1) // stream_len
        fields = header.read_coded(data, at)
        streams_at = at + header.CODED_HEADER + fields.plane_bytes
        lengths_at = streams_at + fields.symbol_bytes
        decoder.locate_streams(
            data, streams_at, lengths_at, n_streams, fields.length_width, fields.min_stream_bytes, scratch
        )
        code = PrefixDecoder(
            books.table[c],
            books.lengths[c],
            np.int64(books.lengths[c, ESCAPE]),
            np.int64(float_bits.head_bits),
            fields.run_symbol,
        )
        decode_streams(data, stream_len, code, decode_buffers(scratch), subarray(out, b * geometry.block, n), at + size)
        if upto == 2:
            continue
        layouts.count_plane_items(n, stream_len, layouts.plane_tables(books, c), coding.planes, scratch)
    return bad


@dataclass(frozen=True)
class Run:
    """The calls timed in one direction: ``steps`` from nothing to everything the loop does, by the stage each adds."""

    whole: Callable[[], Any]
    before: Mapping[str, Callable[[], Any]]
    steps: Mapping[str, Callable[[], Any]]


def encoding_run(task: CodecTask, lossy: bool) -> Run:
    """Return the encoder's stages on what a task encodes."""
    with (
        patch(
            "gcodec.frame.smallest.encode_short", return_value=(None, None, None)
        ),  # which calls the kernels by itself
        patch.object(coded_blocks, "encode_coded_blocks", wraps=coded_blocks.encode_coded_blocks) as loop,
        patch.object(sampling, "take_sample", wraps=sampling.take_sample) as sample,
        patch("gcodec.frame.encode.make_plan", wraps=planning.make_plan) as plan,
    ):
        task.encode()
    result = max((call.args[1:] for call in loop.call_args_list), key=lambda args: args[3] - args[2])  # without a key
    steps = {
        stage: _bound(encode_up_to, upto, *result)
        for upto, stage in enumerate(ENCODING[:-1], 1)
        if lossy or stage != ENCODING[0]
    }
    steps[ENCODING[-1]] = _bound(encoder.encode_blocks, *result)
    before = {
        SAMPLE: lambda: [sampling.take_sample(*call.args, **call.kwargs) for call in sample.call_args_list],
        CODEBOOKS: _bound(planning.make_plan, *plan.call_args.args, **plan.call_args.kwargs),
    }
    return Run(task.encode, before, steps)


def decoding_run(task: CodecTask) -> Run:
    """Return the decoder's stages on what a task decodes."""
    encoded = bytes(task.encode())
    with (
        patch("gcodec.codec.small_frame", return_value=None),  # likewise
        patch.object(coded_blocks, "decode_coded_blocks", wraps=coded_blocks.decode_coded_blocks) as loop,
    ):
        task.decode(encoded)
    result = loop.call_args_list[0].args[1:]  # a second call, for the end of the data, has the last block or two only
    steps = {stage: _bound(decode_up_to, upto, *result[:6]) for upto, stage in enumerate(DECODING[:-1], 1)}
    steps[DECODING[-1]] = _bound(decoder.decode_blocks, *result)
    return Run(lambda: task.decode(encoded), {}, steps)


def _bound(function: Callable[..., Any], *arguments: Any, **more: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **more)


def in_turn(tasks: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of the quickest turn of each, after one to compile."""
    for task in tasks.values():
        task()
    seconds = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            start = perf_counter()
            task()
            seconds[name] = min(seconds[name], perf_counter() - start)
    return seconds


def stages_of(run: Run, copy: CodecTask, moved: float, rounds: int) -> dict[str, float]:
    """Seconds of each stage, of the whole and of the floor: ``moved`` bytes for each that a copy reads or writes."""
    tasks = {WHOLE: run.whole, FLOOR: copy.encode, **run.before, **run.steps}
    times = in_turn(tasks, rounds)
    results: dict[str, float] = {}
    for group in (run.before, run.steps):
        done = 0.0
        for stage in group:
            results[stage] = times[stage] - done
            done = times[stage]
    results[PYTHON] = times[WHOLE] - sum(results.values())
    return {**results, WHOLE: times[WHOLE], FLOOR: moved * times[FLOOR]}


def rows_of(title: str, setting: Setting, rounds: int) -> Iterator[NamedRow]:
    """Yield the table's rows for a mode on an input, both directions."""
    task, data = setting.task(), setting.data
    moved = (data.nbytes + task.verify()) / (2 * data.nbytes)
    for direction, run in (("encode", encoding_run(task, bool(setting.key))), ("decode", decoding_run(task))):
        seconds = stages_of(run, copy_task(data.bits), moved, rounds)
        for stage, time in seconds.items():
            yield {
                "data": title,
                "mode": setting.mode,
                "direction": direction,
                "stage": stage,
                "values": data.bits.size,
                "ns_per_value": f"{1e9 * time / data.bits.size:.4f}",
                "share": f"{time / seconds[WHOLE]:.4f}",
            }


def inputs_of(folder: Path, values: int) -> Iterator[tuple[str, list[Setting]]]:
    """Yield (title, settings) of the gradients of every model, all steps end to end, about so many values."""
    for model, dumps in read_series(folder).items():
        for dtype in dict.fromkeys(dtype for _, dtype in SETTINGS):
            for _, parts in named_inputs({model: dumps}, (GRADIENTS,), (dtype,)):
                size = values * parts[0].bits.itemsize
                # There is no codec here that could find the repetitions of a few megabytes.
                parts *= -(-REPEATABLE // sum(part.nbytes for part in parts))
                # Of unknown shape, so that no block is predicted: these are the stages of coded ones.
                data = replace(joined(parts, f"{model} {DTYPES[dtype]}", size), shapes=())
                makers = [make for make, of in SETTINGS if of == dtype]
                yield data.name, [join_settings([make(part) for part in parts], data, size) for make in makers]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: what bench.record wrote)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="few values, 1 round")
    options = parser.parse_args(arguments)
    values, rounds = (MEGA // 4, 1) if options.quick else (VALUES, 9)
    rows = []
    for title, settings in inputs_of(options.data or default_folder(), values):
        for setting in settings:
            results = list(rows_of(title, setting, rounds))
            rows += results
            print(
                f"{title}, {setting.mode}: " + ", ".join(f"{row['stage']} {row['ns_per_value']}" for row in results),
                flush=True,
            )
    write_named(options.out / "stages.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
