"""The tables of docs/benchmarks/codecs.md, from ``codec.csv``: all codecs, then gcodec's modes, models together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.front_page import Total, totals
from bench.markdown import markdown, source
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import OURS
from gcodec.benchmark.settings import LOSSLESS

#: Groups of data in the file, and what they are called.
GROUPS = {"parameters": "weights", "gradients": "gradients", "state": "optimizer state"}
TYPES = ("fp32", "bf16", "fp16")
#: What each table of lossless codecs shows.
MEASURES: dict[str, Callable[[Total], str]] = {
    "Size, % of the original": lambda total: f"{100 / total.ratio:.1f}",
    "Encode, GB/s": lambda total: f"{total.encode:.2f}",
    "Decode, GB/s": lambda total: f"{total.decode:.2f}",
}


def kinds(types: Sequence[str] = TYPES) -> dict[str, str]:
    """Return how kinds of data end in the file, of these types, and what they are called."""
    return {f"{group} {dtype}": f"{name}, {dtype}" for group, name in GROUPS.items() for dtype in types}


def codec_table(results: Path) -> list[str]:
    """Return a table each of the sizes and speeds of all codecs, lossless, and one of gcodec's other modes."""
    comments, rows = read_table(results / "codec.csv")
    names = kinds()
    found = {name: totals(rows, kind) for kind, name in names.items()}
    codecs = dict.fromkeys(row["codec"] for row in rows if row["mode"] == LOSSLESS)
    lines = [f"Measured on {source(comments)}"]
    for title, cell in MEASURES.items():
        table = [
            [codec, *(cell(of_kind[codec]) if codec in of_kind else "" for of_kind in found.values())]
            for codec in codecs
            if codec == OURS or not codec.startswith(OURS)
        ]
        lines += ["", f"**{title}**", "", *markdown(["codec", *(f">{name}" for name in found)], table)]
    modes = [mode for mode in dict.fromkeys(row["mode"] for row in rows) if mode != LOSSLESS]
    table = [
        [name, mode, *(cell(total) for cell in MEASURES.values())]
        for kind, name in names.items()
        for mode in modes
        for codec, total in totals(rows, kind, mode).items()
        if codec == OURS
    ]
    columns = ["data", "mode", *(f">{measure.lower().replace('gb/s', 'GB/s')}" for measure in MEASURES)]
    return [*lines, "", "**gcodec's other modes**", "", *markdown(columns, table)]
