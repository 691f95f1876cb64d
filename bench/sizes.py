"""Sizes of lossless gcodec and of every peer at all its levels, on every dump; exact, with the rate of each encoding.

    python -m bench.sizes [--data DIR] [--quick] [--out DIR]

writes ``bench/results/levels.csv``. A level *qualifies* on a dump where it encodes 0.1 GB a second on one core, that is
100 MB in a second; the others are there for reference. Rates are of CPU time, which busy neighbors disturb little, and
of a single encoding, or where that was a little too slow, of the fastest of three. A level that is out of reach
on one dump is not tried on others of the same model, kind and type.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time

from bench.codec import RESULTS
from bench.data import GROUPS, default_folder, named_inputs, read_series
from bench.levels import all_levels
from gcodec.benchmark.csv_tables import write_named
from gcodec.benchmark.inputs import GRADIENTS, Input
from gcodec.benchmark.measure import OURS
from gcodec.benchmark.peers import Peer, available
from gcodec.benchmark.settings import lossless_setting
from gcodec.benchmark.timing import GIGA, CodecTask

RATE = 0.1  #: GB/s of encoding from which a level qualifies
NEARLY = 0.5  #: of that rate: so much gets two more tries
HOPELESS = 0.3  #: of that rate: less is not tried again
TRIES = 3


def measure(part: Input, name: str, task: CodecTask) -> dict[str, object]:
    """Return a row of the table. Raises RoundTripError, and whatever a peer raises."""
    encoding = float("inf")
    for _ in range(TRIES):
        task.prepare()
        start = process_time()
        encoded = task.encode()
        encoding = min(encoding, process_time() - start)
        if not NEARLY * RATE <= _rate(part, encoding) < RATE:
            break
    start = process_time()
    decoded = task.decode(encoded)
    decoding = process_time() - start
    task.check(decoded)
    rate = _rate(part, encoding)
    return {
        "model": part.model,
        "step": part.step,
        "group": part.group,
        "dtype": part.dtype,
        "codec": name,
        "original_bytes": part.nbytes,
        "compressed_bytes": len(encoded),
        "encode_GBps": f"{rate:.3f}",
        "decode_GBps": f"{_rate(part, decoding):.3f}",
        "qualifies": int(rate >= RATE),
    }


def _rate(part: Input, seconds: float) -> float:
    return part.nbytes / max(seconds, 1e-7) / GIGA


def sweep(parts: Sequence[Input], peers: Sequence[Peer], notes: list[str]) -> Iterator[dict[str, object]]:
    """Rows for inputs that differ in their step only. Peers that fail are noted; a failure of ours is raised."""
    hopeless: set[str] = set()
    for part in parts:
        yield measure(part, OURS, lossless_setting(part).task())
        for peer in peers:
            if peer.name in hopeless:
                continue
            try:
                task = peer.bind(part)
                row = measure(part, peer.name, task) if task else None
            except Exception as error:  # a peer's own trouble must not end the measurement
                note = f"{peer.name} fails on {part.name} {part.dtype}: {str(error)[:200]}"
                notes += [note] if note not in notes else []
                continue
            if row:
                yield row
                if float(str(row["encode_GBps"])) < HOPELESS * RATE:
                    hopeless.add(peer.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: what bench.record wrote)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="gradients of the first and last step only, fp32, bf16")
    options = parser.parse_args(arguments)
    peers, missing = available(all_levels())
    series = read_series(options.data or default_folder(), ends_only=options.quick)
    groups, dtypes = (
        ((GRADIENTS,), ("float32", "bfloat16")) if options.quick else (GROUPS, ("float32", "bfloat16", "float16"))
    )
    rows: list[dict[str, object]] = []
    notes = [f"{package} is not installed and not measured" for package in missing]
    for title, parts in named_inputs(series, groups, dtypes, with_levels=False):
        print(f"{title}: {len(parts)} dumps, {sum(part.nbytes for part in parts) / 1e6:.1f} MB", flush=True)
        warm_up(parts[0], peers)
        rows += sweep(parts, peers, notes)
    write_named(options.out / "levels.csv", rows)
    print(*notes, sep="\n")
    return 0


def warm_up(part: Input, peers: Sequence[Peer]) -> None:
    """Imports and compiles everything for a type: otherwise the first dump would pay for it."""
    few = Input(part.name, part.dtype, part.bits[:4096].copy())
    lossless_setting(few).task().verify()
    for _ in sweep([few], peers, []):
        pass


if __name__ == "__main__":
    sys.exit(main())
