"""Tables and numbers as Markdown has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table; columns whose names begin with ``>`` are set to the right."""
    rule = ["---:" if column.startswith(">") else "---" for column in columns]
    cells = [[column.lstrip(">") for column in columns], rule, *rows]
    return [f"| {' | '.join(row)} |" for row in cells]


def records(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a table of rows, whose cells are named by their columns as :func:`markdown` takes them."""
    return markdown(list(rows[0]), (list(row.values()) for row in rows))


def source(comments: Sequence[str]) -> str:
    """Where numbers come from, in a sentence."""
    facts = dict(line.split(": ", 1) for line in comments)
    return f"{facts['machine']}; `{facts['command']}`."


def trained_on(comments: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    """Where trainings come from, in a sentence: the processors that rows name, with how many rows each has if there are
    several, and the last sitting's command."""
    counts = Counter(row["processor"] for row in rows)
    names = [f"{name} ({count} training runs)" if len(counts) > 1 else name for name, count in counts.most_common()]
    facts = dict(line.split(": ", 1) for line in comments)
    return f"Trained on {' and '.join(names)}, {facts['machine'].partition(', ')[2]}; `{facts['command']}`."


def rounded(text: str) -> str:
    """Return a number with two digits after the point; an empty text stays empty."""
    return f"{float(text):.2f}" if text else ""


def signed(text: str) -> str:
    """Return a number with two digits after the point and its sign."""
    return f"{float(text):+.2f}"


def filled(page: str, name: str, lines: Sequence[str]) -> str:
    """Return the page with ``lines`` in the place called ``name``, if it has one."""
    name = re.escape(name)
    pattern = re.compile(rf"(<!-- begin {name}(?![\w-])[^>]*-->\n).*?(<!-- end {name} -->)", re.DOTALL)
    text = "\n".join(lines)
    return pattern.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)
