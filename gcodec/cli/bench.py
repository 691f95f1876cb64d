"""``gcodec bench``: sizes and speeds on your own tensors, beside the other compressors that are installed."""

from __future__ import annotations

import argparse
import io
import json
import sys
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import printable
from ..files.urls import name_at
from . import UsageError, display

if TYPE_CHECKING:
    from ..benchmark.inputs import Input
    from ..benchmark.measure import MeasurementPlan, Result
    from ..benchmark.peers import Peer
    from ..benchmark.settings import Setting


EPILOG = """\
Every round trip is verified before anything is timed. Speeds are 1e9 bytes of uncompressed data per second, the median
of several rounds in which all codecs take turns, on one core unless a row says otherwise; "memory copy" tells how fast
memory was meanwhile. A dump of gcodec's Recorder is also compressed near-lossless, by the rule of its optimizer.
More codecs to compare with: pip install '.[bench]' in a checkout.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="paths or URLs of .npy, .npz, .safetensors, .pt, .gguf; floating-point tensors only",
    )
    parser.add_argument("--mantissa-bits", type=int, metavar="K", help="mantissa bits that the fixed-bits mode keeps")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of the second row (default: 2)")
    parser.add_argument(
        "--peers", metavar="NAMES", help="comma-separated: only codecs whose names contain one of these,\nor 'none'"
    )
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="rounds of timing (default: 7)")
    parser.add_argument(
        "--limit",
        type=int,
        default=256,
        metavar="MB",
        help="measure this much of a larger file: the first part of every tensor (default: 256)",
    )
    parser.add_argument("--sizes", action="store_true", help="sizes only, no timing")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table to FILE, too")
    parser.add_argument("--json", action="store_true", help="print JSON, no table")


def run(args: argparse.Namespace) -> int:
    """Measures; returns 1 if a round trip failed."""
    from ..benchmark import csv_tables, measure, sources

    for name in ("rounds", "limit"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name} must be at least 1, not {getattr(args, name)}")
    peers, missing = _peers(args.peers)
    at_least = 0 if args.sizes else 32 * measure.MEGA
    threads = (args.threads,) if args.threads > 1 else ()
    plan = measure.MeasurementPlan(
        peers, at_least, args.rounds, threads=threads, fresh=True, settings=partial(_settings, kept=args.mantissa_bits)
    )
    result = measure.Result()
    for path in args.files:
        for part in sources.read_file(path, args.limit * 10**6):
            with display.steps(part.name, plan.steps(1), quiet=args.json) as bar:

                def advance(what: str, bar: display.StepBar = bar) -> None:
                    bar.name(what)
                    bar.advance()

                result.extend(measure.compete(part.name, [part], replace(plan, advance=advance)))
    archives = [made for path in args.files if (made := _archive_of(path, args.limit * 10**6, args.threads))]
    if args.csv:
        csv_tables.write_rows(args.csv, result.rows)
    _show(result, archives, missing, plan, args.json)
    return 1 if result.failures else 0


class _Archive(NamedTuple):
    """Tells what ``gcodec compress`` makes of a file, in bytes."""

    file: str
    file_bytes: int
    archive_bytes: int

    def __str__(self) -> str:
        share = 100 * self.archive_bytes / max(self.file_bytes, 1)
        return f"{self.file}: gcodec compress makes {display.size(self.archive_bytes)} of the whole file, {share:.1f} %"


class _Sink(io.RawIOBase):
    """Takes an archive, of which only the size matters."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _archive_of(path: str, limit: int, threads: int) -> _Archive | None:
    """Compress a file into nowhere, if it has no more bytes than the limit, and is no archive already."""
    from ..archive.whole_files import compress_file
    from ..files import open_source

    with closing(open_source(path)) as source:
        if source.size > limit:
            return None
    sink: Any = _Sink()
    done = compress_file(path, sink, threads=threads)
    return _Archive(name_at(path), done.input_bytes, done.archive_bytes)


def _peers(names: str | None) -> tuple[list[Peer], list[str]]:
    from ..benchmark.peers import PEERS, available

    patterns = [name.strip().lower() for name in (names or "").split(",") if name.strip()]
    peers = [peer for peer in PEERS if not patterns or any(name in peer.name.lower() for name in patterns)]
    if patterns and not peers and patterns != ["none"]:
        raise UsageError(f"--peers must name one of {', '.join(peer.name for peer in PEERS)}, or be none, not {names}")
    return available(peers)


def _settings(data: Input, kept: int | None) -> list[Setting]:
    from ..benchmark.settings import fixed_bits_setting, settings_for

    settings = settings_for(data)
    if kept is None or not data.type.tail_bits:
        return settings
    if not 1 <= kept < data.type.mantissa_bits:
        raise UsageError(f"--mantissa-bits must be 1 to {data.type.mantissa_bits - 1} for {data.dtype}, not {kept}")
    others = [setting for setting in settings if "mantissa_bits" not in setting.options]
    return [*others, fixed_bits_setting(data, kept)]


def _show(result: Result, archives: list[_Archive], missing: list[str], plan: MeasurementPlan, as_json: bool) -> None:
    from ..benchmark.timing import machine

    notes = [*result.notes, *([f"not installed, so not measured: {', '.join(missing)}"] if missing else [])]
    if as_json:
        rows: list[dict[str, Any]] = [
            {**asdict(row), "encode_GBps": row.encode_speed, "decode_GBps": row.decode_speed} for row in result.rows
        ]
        found = {"rows": rows, "archives": [made._asdict() for made in archives], "failures": result.failures}
        print(json.dumps({"machine": machine(), **found, "notes": notes}, indent=2))
        return
    from rich.console import Console

    from ..benchmark.report import distance, summarize

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    for name, measured in groupby(result.rows, lambda row: row.dump):
        console.print(printable(name), markup=False, soft_wrap=True)
        console.print(summarize(measured, named=False))
    timed = f"Median of {plan.rounds} rounds." if plan.rounds > 1 else "Timed once."
    console.print(f"Machine: {machine()}. {timed if plan.at_least else 'Not timed.'}")
    for size in result.sizes:
        if size.overhead is not None:
            against = "" if size.saving is None else f", {distance(-size.saving, 1)} the GComp paper's layout"
            bound = f"{size.data}, {size.mode}: {distance(size.overhead)} the local order-0 bound{against}"
            console.print(printable(bound), markup=False)
    for made in archives:
        console.print(printable(str(made)), markup=False)
    for note in notes:
        console.print(printable(note), markup=False)
    for failure in result.failures:
        console.print(printable(f"ROUND TRIP FAILED: {failure}"), markup=False)
