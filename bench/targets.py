"""What gcodec is meant to reach, beside what was measured: the first table of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench.markdown import markdown
from bench.sections import MIB, TIE, contests
from gcodec.demo.inputs import PARAMETERS
from gcodec.demo.measure import OURS
from gcodec.demo.tables import read_table

OVERHEAD = 30  #: microseconds per call
LARGE = 16 * MIB  #: bytes from which two threads are meant to help fully
DIRECTIONS = ("encode", "decode")


def targets(results: Path) -> list[str]:
    """The table: of files that are there."""
    table = [[target, found] for rows, file in PARTS if (results / file).exists() for target, found in rows(results)]
    return markdown(["target", "measured"], table)


def _sizes(results: Path) -> Iterator[tuple[str, str]]:
    found = list(contests(results))
    smallest = sum(contest.margin < 0 for contest in found)
    ties = sum(0 <= contest.margin <= TIE and contest.group == PARAMETERS for contest in found)
    yield (f"smaller than every peer at any level up to a second per 100 MB, on every dump (on parameters a tie within "
           f"{TIE} % counts)",
           f"{smallest} of {len(found)} dumps smaller, {ties} of parameters tied, {len(found) - smallest - ties} not")


def _scaling(results: Path) -> Iterator[tuple[str, str]]:
    rows = [row for row in read_table(results / "scaling.csv")[1] if row["memory"] == "existing"]
    for direction in DIRECTIONS:
        one, two = ({int(row["bytes"]): float(row[f"{direction}_GBps"]) for row in rows
                     if row["codec"] == OURS and row["threads"] == threads and int(row["bytes"]) >= MIB}
                    for threads in ("1", "2"))
        yield (f"{direction}: the rate holds from 1 MiB to 1 GiB",
               f"{min(one.values()):.2f} to {max(one.values()):.2f} GB/s")
        gains = [two[size] / one[size] for size in one if size >= LARGE] or [two[max(two)] / one[max(one)]]
        yield (f"{direction}: two threads at least 1.8 times one",
               f"{min(gains):.2f} to {max(gains):.2f} times from {LARGE // MIB} MiB on")


def _calls(results: Path) -> Iterator[tuple[str, str]]:
    rows = read_table(results / "calls.csv")[1]
    for direction in DIRECTIONS:
        times = [float(row[f"{direction}_us"]) for row in rows if row["values"] == "1"]
        yield f"{direction}: a call costs less than {OVERHEAD} µs beside its values", f"{min(times):.1f} µs"


def _memory(results: Path) -> Iterator[tuple[str, str]]:
    for row in read_table(results / "memory.csv")[1]:
        if row["codec"] == OURS:
            encoded, extra = int(row["encoded_bytes"]), int(row["encode_extra_bytes"])
            share = 100 * int(row["decode_extra_bytes"]) / int(row["bytes"])
            yield "decode: extra memory under 10 % of the output and a constant", f"{share:.1f} %"
            yield ("encode: extra memory one buffer of the encoded size, and the same",
                   f"{100 * extra / encoded:.0f} % of the encoded size")
            yield (f"nothing leaks over {row['round_trips']} round trips",
                   f"{int(row['growth_bytes']) / 1024:.0f} KiB more")


PARTS: tuple[tuple[Callable[[Path], Iterator[tuple[str, str]]], str], ...] = (
    (_sizes, "levels.csv"), (_scaling, "scaling.csv"), (_calls, "calls.csv"), (_memory, "memory.csv"),
)
