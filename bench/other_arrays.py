"""Measure arrays other than gradients, weights and optimizer states: what gcodec and its peers make of them, how fast.

    python -m bench.other_arrays [--quick] [--out DIR]

writes ``bench/results/other_arrays.csv``, in little more than a minute on two cores; ``python -m bench.report`` then
renews the tables. The arrays are those of ``bench/array_kinds.py``: gcodec is told their shapes. Every codec gives
each array back, bit for bit, which is checked before it is timed. Speeds are medians of rounds in which all codecs
take turns on one thread, in CPU time, which busy neighbors disturb little.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time

import torch

from bench.array_kinds import ArrayKind, array_kinds
from bench.array_tables import FILE
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.inputs import Input
from gcodec.benchmark.measure import COPY, MeasurementPlan, Result, compete
from gcodec.benchmark.peers import PEERS, available
from gcodec.benchmark.settings import Setting, lossless_setting

#: The peers of the table: what the page about gcodec's limits advises instead, and the one that is made for weights.
NAMES = ("pcodec-8", "shuffle+zstd-3", "zstd-3", "ZipNN")
SHOWN = ("array", "source", "dtype", "values", "codec", "percent", "encode_GBps", "decode_GBps")  #: while it runs
ROUNDS, BUDGET = 5, 0.3
AS_IT_IS = 1  #: byte that a turn has to have: each array is timed once in a turn, whole


def only_lossless(data: Input) -> list[Setting]:
    """Return the only mode that is measured."""
    return [lossless_setting(data)]


def ratio(speed: float | None, other: float | None = 1.0) -> str:
    """Return a speed in GB/s, or as a share of another one; an empty text for one that was not measured."""
    return f"{speed / other:.4f}" if speed and other else ""


def rows_of(kind: ArrayKind, plan: MeasurementPlan, result: Result) -> Iterator[NamedRow]:
    """Yield a row for each type and codec; failures and notes are added to ``result``."""
    for data in kind.inputs():
        outcome = compete(data.name, [data], plan)
        copied = next(row for row in outcome.rows if row.codec == COPY)
        for row in outcome.rows:
            if row is not copied:
                yield {
                    "group": kind.group,
                    "array": kind.name,
                    "source": kind.source,
                    "dtype": data.dtype,
                    "values": data.bits.size,
                    "codec": row.codec,
                    "original_bytes": row.original_bytes,
                    "compressed_bytes": row.compressed_bytes,
                    "percent": f"{row.percent:.3f}",
                    "encode_GBps": ratio(row.encode_speed),
                    "decode_GBps": ratio(row.decode_speed),
                    "encode_of_copy": ratio(row.encode_speed, copied.encode_speed),
                    "decode_of_copy": ratio(row.decode_speed, copied.decode_speed),
                }
        result.extend(outcome)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1, and write nothing, if a round trip of gcodec failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.other_arrays", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, small arrays, one round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    peers, missing = available(peer for peer in PEERS if peer.name in NAMES)
    plan = MeasurementPlan(
        peers,
        at_least=AS_IT_IS,
        rounds=1 if options.quick else ROUNDS,
        budget=BUDGET,
        threads=(),
        settings=only_lossless,
        clock=process_time,
    )
    torch.set_num_threads(1)  # for training: sums of several threads are added up in another order
    result, rows = Result(notes=[f"{package} is not installed and not measured" for package in missing]), []
    for kind in array_kinds(options.quick):
        for row in rows_of(kind, plan, result):
            rows.append(row)
            print(*(row[name] for name in SHOWN), flush=True)
    print(*result.notes, *(f"ROUND TRIP FAILED: {text}" for text in result.failures), sep="\n")
    if result.failures:
        return 1
    write_named(options.out / FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
