"""Charts as inline SVG: lines over steps, columns over whole numbers, divided bars. Colors come from the page's style.

They are written by hand because the page must follow light and dark and stay small: an SVG of matplotlib carries its
own colors and glyphs, and matplotlib is no dependency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 18, 8, 34
MAX_POINTS = 160  #: of a curve; a longer one is shown as means
MAX_HITS = 60  #: points of a curve that tell their number under the mouse
MAX_DOTS = 24  #: points of a curve that are dotted; of a single one there is no line
N_COLORS = 8
REST = "others"  #: name of the parts for which there is no color
#: Smaller numbers are drawn as 0, and their inverses not at all.
SMALLEST = 1e-100


class Curve(NamedTuple):
    """A curve of a chart.

    Attributes:
        name: What the legend calls it.
        points: x and y, in ascending order of x.
    """

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(title: str, curves: Sequence[Curve], x_label: str, note: str = "", *, log: bool = False) -> str:
    """Return a chart of curves, with the numbers in a table that opens; several charts of more curves than colors.

    Args:
        title: Above the chart.
        curves: One or more; those without points are left out.
        x_label: What x counts.
        note: A line below the title.
        log: On a logarithmic scale.
    """
    shown = [Curve(curve.name, _thinned(_drawable(curve.points, log))) for curve in curves]
    shown = [curve for curve in shown if curve.points]
    charts = (shown[at : at + N_COLORS] for at in range(0, len(shown), N_COLORS))
    return "".join(_curves(title, chart, x_label, note, log) for chart in charts)


def _curves(title: str, shown: Sequence[Curve], x_label: str, note: str, log: bool) -> str:
    """Return one chart of curves that all have points and colors of their own."""
    xs = [x for curve in shown for x, _ in curve.points]
    ys = [y for curve in shown for _, y in curve.points]
    y_ticks = _log_ticks(min(ys), max(ys)) if log else _ticks(min(0.0, *ys), max(ys))
    first, last = (min(xs), max(xs)) if min(xs) < max(xs) else (min(xs) - 1, min(xs) + 1)
    x_ticks = [tick for tick in _ticks(min(xs), max(xs), 5) if min(xs) <= tick <= max(xs)] or [min(xs)]
    scale: Callable[[float], float] = math.log if log else float
    at_x = _axis(first, last, LEFT, WIDTH - RIGHT)
    at_y = _axis(scale(y_ticks[0]), scale(y_ticks[-1]), HEIGHT - BOTTOM, TOP)
    body = list(_frame(x_ticks, y_ticks, at_x, lambda y: at_y(scale(y)), x_label))
    for color, curve in enumerate(shown):
        spots = [(at_x(x), at_y(scale(y))) for x, y in curve.points]
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        body.append(f'<path class="curve s{color}" d="{path}"/>')
        dots = spots if len(spots) <= MAX_DOTS else ()
        body += [f'<circle class="dot s{color}" cx="{x:.1f}" cy="{y:.1f}" r="1.5"/>' for x, y in dots]
        told = slice(None, None, math.ceil(len(spots) / MAX_HITS))
        for (x, y), (left, top) in zip(curve.points[told], spots[told], strict=True):
            name = escape(f"{curve.name}, {x_label} {short_number(x)}: {short_number(y)}")
            body.append(f'<circle class="hit" cx="{left:.1f}" cy="{top:.1f}" r="4"><title>{name}</title></circle>')
    return _card(title, note, legend([curve.name for curve in shown]), _svg(title, body), _numbers(shown, x_label))


def column_chart(title: str, counts: Mapping[int, float], x_label: str, note: str = "") -> str:
    """Return a chart of columns over whole numbers, such as shares of values over their exponents.

    Args:
        title: Above the chart.
        counts: Height of the column at each number, in percent.
        note: A line below the title.
    """
    if not counts:
        return ""
    first, last = min(counts), max(counts)
    y_ticks = _ticks(0, max(counts.values()) or 1)
    at_x, at_y = _axis(first - 0.6, last + 0.6, LEFT, WIDTH - RIGHT), _axis(0, y_ticks[-1], HEIGHT - BOTTOM, TOP)
    x_ticks = [tick for tick in _ticks(first, last, 6) if tick == int(tick) and first <= tick <= last]
    body, half = list(_frame(x_ticks, y_ticks, at_x, at_y, x_label)), max((at_x(1) - at_x(0)) / 2 - 0.6, 0.4)
    for value, height in sorted(counts.items()):
        top = at_y(height)
        body.append(
            f'<rect class="column" x="{at_x(value) - half:.1f}" y="{top:.1f}" width="{2 * half:.1f}" '
            f'height="{at_y(0) - top:.1f}"><title>{escape(x_label)} {value}: {height:.3g} %</title></rect>'
        )
    rows = [[str(value), f"{height:.6g}"] for value, height in sorted(counts.items()) if height]
    return _card(title, note, "", _svg(title, body), _table([x_label, "%"], rows))


def divided_bars(title: str, rows: Mapping[str, Mapping[str, float]], unit: Callable[[float], str], note: str) -> str:
    """Return bars divided into parts, each bar as wide as the card.

    Args:
        title: Above the bars.
        rows: The parts of each bar by name; a color is a name's in all bars.
        unit: Writes a part's number.
        note: A line below the title.
    """
    names = list(dict.fromkeys(name for parts in rows.values() for name, value in parts.items() if value))
    columns = [""] if len(rows) == 1 else list(rows)
    cells = [[name, *(unit(parts.get(name, 0)) for parts in rows.values())] for name in names]
    if len(names) > N_COLORS:
        drawn = names[: N_COLORS - 1]
        rows = {label: _with_rest(parts, drawn) for label, parts in rows.items()}
        names = [*drawn, REST]
    body = []
    for label, parts in rows.items():
        total = sum(parts.values())
        body.append(f"<div>{escape(label)}</div><div class='bar'>")
        for color, name in enumerate(names):
            if value := parts.get(name, 0):
                text = escape(f"{name}: {unit(value)}, {100 * value / total:.3g} %")
                share = f"flex:{value / total:.5f}"
                body.append(f"<div class='s{color}' style='{share}' title='{text}'></div>")
        body.append("</div>")
    return _card(title, note, legend(names, always=True), "".join(body), _table(["", *columns], cells)) if names else ""


def _with_rest(parts: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Return the parts of these names, and the sum of all others."""
    rest = sum(value for name, value in parts.items() if name not in names)
    return {**{name: parts.get(name, 0) for name in names}, REST: rest}


def spark(counts: Sequence[float]) -> str:
    """Return a word-sized histogram; empty for no counts."""
    top = max(counts, default=0)
    if not top:
        return ""
    step = 84 / len(counts)
    path = "".join(f"L{n * step:.1f},{18 - 17 * count / top:.1f}" for n, count in enumerate(counts))
    body = f'<path class="column" d="M0,18{path}L84,18z"/>'
    return f'<svg class="spark" viewBox="0 0 84 18" aria-hidden="true">{body}</svg>'


def legend(names: Sequence[str], *, always: bool = False) -> str:
    """Return the names of colors; nothing for a single one, which the title names."""
    if len(names) < 2 and not always:
        return ""
    items = (f'<span><i class="s{n}"></i>{escape(name)}</span>' for n, name in enumerate(names))
    return f'<div class="legend">{"".join(items)}</div>'


def short_number(value: float) -> str:
    """Return a number with four digits, and a suffix for thousands, millions and billions."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / min(size, 1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{value:.4g}"


def _card(title: str, note: str, *parts: str) -> str:
    remark = f'<p class="note">{escape(note)}</p>' if note else ""
    return f'<section class="chart"><h3>{escape(title)}</h3>{remark}{"".join(parts)}</section>'


def _svg(title: str, body: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(body)}</svg>'


def _frame(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    at_x: Callable[[float], float],
    at_y: Callable[[float], float],
    x_label: str,
) -> Iterator[str]:
    for tick in y_ticks:
        y = at_y(tick)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4:.1f}" text-anchor="end">{short_number(tick)}</text>'
    floor = HEIGHT - BOTTOM
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>'
    for tick in x_ticks:
        yield f'<text x="{at_x(tick):.1f}" y="{floor + 14}" text-anchor="middle">{short_number(tick)}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 5}" text-anchor="middle">{escape(x_label)}</text>'


def _axis(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda value: start + (value - low) / span * (stop - start)


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return about so many round numbers from at most ``low`` to at least ``high``."""
    span = max(high - low, abs(high) * 1e-12) or 1.0
    size = 10 ** math.floor(math.log10(span / count))
    step = next(size * factor for factor in (1, 2, 5, 10) if span / (size * factor) <= count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [n * step for n in range(first, max(last, first + 1) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


def _drawable(points: Sequence[tuple[float, float]], log: bool) -> list[tuple[float, float]]:
    """Return the points that have a place: numbers of any use, and above 0 on a logarithmic scale."""
    return [
        (x, y if abs(y) > SMALLEST else 0.0)
        for x, y in points
        if abs(x) < 1 / SMALLEST and abs(y) < 1 / SMALLEST and (y > SMALLEST or not log)
    ]


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most ``MAX_POINTS`` points: means of as many neighbors."""
    if len(points) <= MAX_POINTS:
        return list(points)
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[at : at + size] for at in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _numbers(curves: Sequence[Curve], x_label: str) -> str:
    """Return the numbers of a chart as a table that opens."""
    by_x: dict[float, dict[int, float]] = {}
    for column, curve in enumerate(curves):
        for x, y in curve.points:
            by_x.setdefault(x, {})[column] = y
    rows = [
        [f"{x:.10g}", *(f"{values[n]:.6g}" if n in values else "" for n in range(len(curves)))]
        for x, values in sorted(by_x.items())
    ]
    return _table([x_label, *(curve.name for curve in curves)], rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that opens."""
    head = "".join(f'<th class="n">{escape(name)}</th>' for name in columns)
    body = ("".join(("<tr>", *(f'<td class="n">{escape(cell)}</td>' for cell in row), "</tr>")) for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    return f"<details><summary>Numbers</summary><div class='scroll'>{table}</div></details>"
