"""The page of a report: sections, tiles and tables in one HTML file that loads nothing and runs from a disk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

#: Nothing is loaded, from wherever; the page's own style and script stand in it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

#: A longer text in a table is cut in its middle where there is no room; so many characters of its end stay.
LONG_TEXT, SHOWN_END = 16, 10
#: A table of so many columns has room for whole names, in several lines if need be.
FEW_COLUMNS = 6

UNSOUND = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Cell(NamedTuple):
    """A cell of a table.

    Attributes:
        text: What is shown.
        value: What is sorted by; None for text, which is sorted as it is shown.
        html: Shown in place of the text, already HTML.
    """

    text: str
    value: float | None = None
    html: str = ""


class Page:
    """A page that is written from top to bottom.

    Args:
        title: Of the page, shown at its top.
        lines: Shown below it.
    """

    def __init__(self, title: str, lines: Iterable[str] = ()) -> None:
        self.title = title
        self._parts = [f"<h1>{escape(_sound(title))}</h1>", *(f"<p>{escape(_sound(line))}</p>" for line in lines)]
        self._n_tables = 0

    def heading(self, text: str, note: str = "") -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{escape(_sound(text))}</h2>" + (f"<p>{escape(_sound(note))}</p>" if note else ""))

    def opening(self, text: str, *, is_open: bool) -> None:
        """Begin a part that opens and closes by a click on its title; :meth:`closing` ends it."""
        state = ' open="open"' if is_open else ""
        self._parts.append(f"<details{state}><summary><h3>{escape(_sound(text))}</h3></summary>")

    def closing(self) -> None:
        """End the part that was begun last."""
        self._parts.append("</details>")

    def note(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(_sound(text))}</p>")

    def tiles(self, tiles: Iterable[tuple[str, str]]) -> None:
        """Add large numbers, each with what it counts."""
        body = "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(_sound(label))}</span></div>'
            for label, value in tiles
        )
        self._parts.append(f'<div class="tiles">{body}</div>')

    def charts(self, charts: Iterable[str]) -> None:
        """Add charts side by side, as far as there is room; empty ones are left out."""
        if body := "".join(chart for chart in charts if chart):
            self._parts.append(f'<div class="charts">{_sound(body)}</div>')

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        """Add a table that is sorted by a click on a column, and searched where it is long.

        Args:
            columns: Their names; that of a column of numbers begins with ``>``.
            rows: The rows.
        """
        self._n_tables += 1
        table = f"table{self._n_tables}"
        if len(rows) > 12:
            self._parts.append(
                f'<input type="search" data-table="{table}" placeholder="find a row" aria-label="find a row"/>'
            )
        head = "".join(
            f'<th{_class(name)}><button type="button">{escape(name.lstrip(">"))}</button></th>' for name in columns
        )
        body = "".join(f"<tr>{''.join(map(_cell, columns, row))}</tr>\n" for row in rows)
        few = " few" if len(columns) <= FEW_COLUMNS else ""
        self._parts.append(
            f'<div class="scroll"><table class="sortable{few}" id="{table}"><thead><tr>{head}</tr></thead>\n'
            f"<tbody>{_sound(body)}</tbody></table></div>"
        )

    def html(self) -> str:
        """Return the page, which is well-formed XML, too."""
        style, script = ((resources.files(__package__) / name).read_text("utf-8") for name in ("page.css", "page.js"))
        body = "\n".join(self._parts)
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
            f"<title>{escape(_sound(self.title))}</title>\n<style>\n{style}</style>\n</head>\n"
            f"<body>\n{body}\n<script>\n{script}</script>\n</body>\n</html>\n"
        )


def _class(column: str) -> str:
    return ' class="n"' if column.startswith(">") else ""


def _cell(column: str, cell: Cell) -> str:
    value = "" if cell.value is None else f' data-v="{cell.value!r}"'
    return f"<td{_class(column)}{value}>{cell.html or _cut_where_narrow(cell.text)}</td>"


def _cut_where_narrow(text: str) -> str:
    """Return a text as HTML that hides its middle where it is wider than a column may be, and tells all of it under
    the mouse."""
    if len(text) <= LONG_TEXT:
        return escape(text)
    start, end = escape(text[:-SHOWN_END]), escape(text[-SHOWN_END:])
    return f'<div class="long" title="{escape(text)}"><span>{start}</span>{end}</div>'


def _sound(text: str) -> str:
    """Return a text without characters that HTML cannot hold: control characters, and bytes that are no UTF-8."""
    return UNSOUND.sub("\N{REPLACEMENT CHARACTER}", text)
