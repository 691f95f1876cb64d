"""Average 25 MB of gradients over 2 and 4 workers, at every rate of the bed, by every method, in turn.

    python -m bench.cluster.allreduce [--data DIR] [--model cnn] [--add] [--quick] [--out DIR]

writes ``cluster-allreduce.csv``: for each model, number of workers and rate a row for each method (docs/benchmarks.md
says what the columns mean). Gradients are those of ``bench.cluster.buffers``: computed at recorded parameters of a
model trained by SGD with momentum. Every method's result is checked on every rank before anything is timed; then all
methods take turns, round by round, in the same processes. A round's time is that of its slowest rank.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from bench.cluster import methods
from bench.cluster.bed import RATES, UNSHAPED, Bed, bits_per_second, clean_up_when_told_to_end, obstacle
from bench.cluster.buffers import dumps_of
from bench.cluster.coders import CODECS
from bench.cluster.rows import known, write_beside
from bench.cluster.team import Team
from bench.codec import RESULTS
from bench.data import default_folder
from gcodec.benchmark.csv_tables import NamedRow
from gcodec.errors import InvalidArgument

FILE = "cluster-allreduce.csv"
MODELS = ("cnn", "lstm")
WORKERS = (2, 4)
BYTES, QUICK_BYTES = 25_000_000, 2_500_000
ROUNDS = {"100mbit": 5, "500mbit": 7}  #: of the slow rates
MOST_ROUNDS = 15
NAMES = (
    methods.FP32,
    methods.FP16,
    methods.BF16,
    methods.LOSSLESS,
    methods.NEAR,
    methods.BF16_MODE,
    methods.NEAR + methods.OWN_BOOKS,
    *CODECS,
    methods.LOSSLESS + methods.WIRE,
    methods.NEAR + methods.WIRE,
    methods.SMALL,
)
Answers = list[dict[str, Any]]


@dataclass
class Series:
    """One method's rounds: of each, the slowest rank's seconds, and means over the ranks of the rest."""

    seconds: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    tallies: list[dict[str, float]] = field(default_factory=list)

    def add(self, ranks: Answers) -> None:
        """Add a round: the ranks' answers."""
        self.seconds.append(max(rank["seconds"] for rank in ranks))
        self.sent.append(mean(rank["sent"] for rank in ranks))
        self.processor.append(mean(rank["processor"] for rank in ranks))
        if "tally" in ranks[0]:
            names = ranks[0]["tally"]
            self.tallies.append({name: mean(rank["tally"][name] for rank in ranks) for name in names})

    def tally(self, name: str) -> float | None:
        """Return the median of one of the tally's numbers."""
        return median(tally[name] for tally in self.tallies) if self.tallies else None


def row_of(name: str, found: dict[str, Series], rate: str, values: int, workers: int) -> NamedRow:
    """Return the columns of what was measured."""
    series = found[name]
    seconds, sent = median(series.seconds), median(series.sent)
    low, _, high = quantiles(series.seconds, n=4) if len(series.seconds) > 1 else [seconds] * 3
    wire = wire_seconds(name, found)
    dense = 2 * (workers - 1) / workers * 4 * (1 if name == methods.SMALL else values)
    tally = [f"{part}_seconds" for part in ("encode", "level", "decode", "sum", "wait")]
    by_count = sent or series.tally("sent_bytes")
    return {
        "rounds": len(series.seconds),
        "seconds": f"{seconds:.5f}",
        "seconds_q1": f"{low:.5f}",
        "seconds_q3": f"{high:.5f}",
        "seconds_least": f"{min(series.seconds):.5f}",
        "normalized": f"{seconds / median(found[methods.FP32].seconds):.4f}" if methods.FP32 in found else "",
        "nic_bytes": f"{sent:.0f}",
        "sent_bytes": _number(series.tally("sent_bytes"), 0),
        "ratio": _number(by_count and dense / by_count, 4),
        "processor_seconds": f"{median(series.processor):.5f}",
        **{name: _number(series.tally(name), 5) for name in tally},
        "wire_seconds": _number(wire, 5),
        "line_share": line_share(sent, wire, rate),
        "whole_line_share": line_share(sent, seconds, rate),
    }


def wire_seconds(name: str, found: dict[str, Series]) -> float | None:
    """Return the seconds that a method's messages take without its codec, where that has been measured."""
    alone = name + methods.WIRE
    if alone in found:
        return median(found[alone].seconds)
    own = name in (methods.FP32, methods.FP16, methods.BF16, "no codec") or name.endswith(methods.WIRE)
    return median(found[name].seconds) if own else None


def line_share(sent: float, seconds: float | None, rate: str) -> str:
    """Bits sent over bits that the line could have carried in this time; empty where it has no rate."""
    if not seconds or rate == UNSHAPED:
        return ""
    return f"{8 * sent / seconds / bits_per_second(rate):.4f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def measured(team: Team, names: Sequence[str], rates: Sequence[str], most: int) -> Iterator[NamedRow]:
    """Rows of one team; rate after rate, all methods in turn."""
    team.bed.shape(UNSHAPED)
    checks = team.ask(command="check", names=names)
    deviations = {name: max(check["deviations"].get(name, 0.0) for check in checks) for name in names}
    values, origin = checks[0]["values"], checks[0]["origin"]
    for rate in rates:
        team.bed.shape(rate)
        results = {name: Series() for name in names}
        for number in range(-1, min(ROUNDS.get(rate, MOST_ROUNDS), most)):
            answers = team.ask(command="measure", names=names, number=max(0, number))
            for name, series in results.items() if number >= 0 else ():  # the first round is for connections
                series.add([answer[name] for answer in answers])
        for name in names:
            deviation = f"{deviations[name]:.4f}" if deviations[name] else ""
            yield {
                "workers": team.bed.size,
                "rate": rate,
                "method": name,
                "values": values,
                **row_of(name, results, rate, values, team.bed.size),
                "deviation": deviation,
                "load": _load(),
                "gradients": origin,
            }


def _load() -> str:
    return Path("/proc/loadavg").read_text().split()[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.allreduce", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: what bench.record wrote)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--model", action="append", choices=MODELS, help="of these only")
    parser.add_argument("--workers", action="append", type=int, help="of so many only (2 and 4)")
    parser.add_argument("--rate", action="append", help="at these only (" + ", ".join(RATES) + ")")
    parser.add_argument("--method", action="append", choices=NAMES, help="these only")
    parser.add_argument("--rounds", type=int, default=MOST_ROUNDS, help=f"at most ({MOST_ROUNDS})")
    parser.add_argument("--add", action="store_true", help="keep the file's rows that are not measured anew")
    parser.add_argument("--quick", action="store_true", help="2.5 MB, 2 workers, 3 rounds, the CNN")
    options = parser.parse_args(arguments)
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    data, path, rows = (options.data or default_folder()).absolute(), options.out / FILE, list[NamedRow]()
    before = known(path) if options.add else []
    models = options.model or (MODELS[:1] if options.quick else MODELS)
    try:
        for model in models:
            dumps_of(data, model, options.quick)
    except InvalidArgument as error:
        print(error, file=sys.stderr)
        return 2
    for model in models:
        for workers in options.workers or (WORKERS[:1] if options.quick else WORKERS):
            for row in _of_bed(options, data, model, workers):
                print(*list(row.values())[:12], sep=", ", flush=True)
                rows.append(row)
                write_beside(before, path, rows, ("model", "workers", "rate", "method"))  # each, should it be cut off
    return 0


def _of_bed(options: argparse.Namespace, data: Path, model: str, workers: int) -> Iterator[NamedRow]:
    size = QUICK_BYTES if options.quick else BYTES
    command = ["--data", str(data), "--model", model, "--bytes", str(size), *(["--quick"] if options.quick else [])]
    rates = options.rate or (("1gbit", UNSHAPED) if options.quick else RATES)
    with Bed(workers) as bed, Team(bed, "bench.cluster.allreduce_worker", command) as team:
        for row in measured(team, options.method or NAMES, rates, 3 if options.quick else options.rounds):
            yield {"model": model, **row}


if __name__ == "__main__":
    sys.exit(main())
