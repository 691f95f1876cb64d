"""The tables of what arrays take that are no gradients, weights or optimizer states, from ``other_arrays.csv``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bench.markdown import markdown, rounded, source
from bench.sections import TIE
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import OURS

FILE = "other_arrays.csv"
#: What the page about gcodec's limits shows: a prefix of an array's name, and a type that it often has.
SHOWN = (
    ("outputs of ReLU", "bfloat16"),
    ("outputs of GELU", "bfloat16"),
    ("outputs of GELU", "float32"),
    ("outputs of SiLU", "bfloat16"),
    ("outputs of sigmoid", "bfloat16"),
    ("scores", "bfloat16"),
    ("softmax", "bfloat16"),
    ("logits", "bfloat16"),
    ("weights of norms", "bfloat16"),
    ("normal values, a third NaN", "float32"),
    ("weights from int8", "float32"),
    ("weights from int8", "bfloat16"),
    ("weights from int4", "float16"),
    ("weights from NF4", "bfloat16"),
    ("normal values with two decimals", "float32"),
    ("images", "float32"),
    ("audio", "float32"),
    ("keys, repeated", "bfloat16"),
    ("rotary tables", "float32"),
    ("smooth field", "float32"),
    ("field with noise", "float32"),
    ("sorted", "float32"),
)
Row = dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """The rows of one array in one type.

    Attributes:
        ours: gcodec's row.
        peers: Rows of the others, by codec.
    """

    ours: Row
    peers: dict[str, Row]

    @property
    def best(self) -> Row:
        """The row of the smallest peer."""
        return min(self.peers.values(), key=lambda row: int(row["compressed_bytes"]))

    @property
    def margin(self) -> float:
        """Percent by which gcodec is larger than the smallest peer."""
        return 100 * (int(self.ours["compressed_bytes"]) / int(self.best["compressed_bytes"]) - 1)


def outcomes(results: Path) -> tuple[list[str], list[Outcome]]:
    """Return the comment lines of the CSV file, and an outcome for each array and type."""
    comments, rows = read_table(results / FILE)
    found = []
    for _, group in groupby(rows, key=lambda row: (row["array"], row["dtype"])):
        codecs = {row["codec"]: row for row in group}
        found.append(Outcome(codecs.pop(OURS), codecs))
    return comments, found


def other_arrays_table(results: Path) -> list[str]:
    """Return every array's sizes by gcodec and by the smallest peer, type by type, a table for each group."""
    comments, found = outcomes(results)
    n_smaller, n_larger = (sum(sign * outcome.margin > TIE for outcome in found) for sign in (-1, 1))
    counted = (
        f"Of {len(found)} arrays, each type counted, gcodec is within {TIE} % of the smallest peer on "
        f"{len(found) - n_smaller - n_larger}, smaller than that on {n_smaller}, and larger on {n_larger}."
    )
    lines = [
        f"{counted} A cell has gcodec's size and the smallest peer's, in percent of the array's bytes, the smaller one "
        f"in bold. Measured on {source(comments)}"
    ]
    for group in dict.fromkeys(outcome.ours["group"] for outcome in found):
        by_array: dict[tuple[str, str], dict[str, str]] = {}
        for outcome in found:
            if outcome.ours["group"] == group:
                ours = outcome.ours
                by_array.setdefault((ours["array"], ours["source"]), {})[ours["dtype"]] = sizes_of(outcome)
        dtypes = list(dict.fromkeys(dtype for cells in by_array.values() for dtype in cells))
        rows = [[*names, *(cells.get(dtype, "") for dtype in dtypes)] for names, cells in by_array.items()]
        lines += ["", f"**{group}**", "", *markdown(["array", "from", *dtypes], rows)]
    return lines


def sizes_of(outcome: Outcome) -> str:
    """Return gcodec's size and the smallest peer's with its name, the smaller one in bold."""
    ours, best = percent(outcome.ours), percent(outcome.best)
    if outcome.margin <= 0:
        ours = f"**{ours}**"
    if outcome.margin >= 0:
        best = f"**{best}**"
    return f"{ours} / {best} {outcome.best['codec']}"


def percent(row: Row) -> str:
    """Return a size in percent, with enough digits to tell small ones apart."""
    return f"{float(row['percent']):.{1 if float(row['percent']) >= 1 else 2}f}"


def when_not_table(results: Path) -> list[str]:
    """Return the arrays of ``SHOWN`` on which a peer is smaller than gcodec by more than ``TIE`` percent."""
    comments, found = outcomes(results)
    table = []
    for outcome in chosen(found):
        if outcome.margin > TIE:
            ours, best = outcome.ours, outcome.best
            speeds = [f"{rounded(row['encode_GBps'])} / {rounded(row['decode_GBps'])}" for row in (ours, best)]
            table.append(
                [ours["array"], ours["dtype"], percent(ours), speeds[0], best["codec"], percent(best), speeds[1]]
            )
    columns = ["array", "type", ">gcodec, %", ">encode / decode, GB/s", "smallest peer", ">%", ">encode / decode, GB/s"]
    return [
        *markdown(columns, table),
        "",
        f"Percent of the array's bytes; speeds in CPU time of one thread; from {source(comments)}",
    ]


def chosen(found: list[Outcome]) -> Iterator[Outcome]:
    """Yield the outcomes that ``SHOWN`` names, in its order."""
    for prefix, dtype in SHOWN:
        yield from (
            outcome for outcome in found if outcome.ours["array"].startswith(prefix) and outcome.ours["dtype"] == dtype
        )


#: Name of a marked place to what fills it, and the file in bench/results that this reads.
PLACES = {"other-arrays-table": (other_arrays_table, FILE), "when-not-table": (when_not_table, FILE)}
