"""A run of `edgewise bench offload` for people: the lines of its table, the same in Markdown, and a plot as SVG.

Everything is made from the rows of the result (`bench.offload.OffloadBench.rows`) and nothing else, so a page can be made again
from the JSON that was kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

Row = Mapping[str, Any]

COLUMNS: Final = ("WORK", "LINK", "MODE", "MADE", "FIRST TOKEN", "WHOLE", "UP", "DOWN")
COLOURS: Final[Mapping[str, str]] = {"local": "#4c78a8", "cloud": "#e08a3c", "hybrid": "#54a24b"}

_WIDTH, _LEFT, _BARS = 900, 200, 470
_LINE, _BAR, _PANEL = 22, 14, 44


def line(row: Row) -> tuple[str, ...]:
    """A row of the result as a line of the table: medians, with the largest in brackets."""
    made = ", ".join(f"{count} {place}" for place, count in row["made"].items())
    failed = sum(row["errors"].values())
    return (
        row["work"],
        row["link"] or "any",
        row["mode"],
        made + (f", {failed} failed" if failed else ""),
        _times(row["first_s"]),
        _times(row["total_s"]),
        _bytes(row["up_bytes"]),
        _bytes(row["down_bytes"]),
    )


def elsewhere(rows: Sequence[Row]) -> list[str]:
    """Lines whose work was not made where it was asked for."""
    return [
        f"{row['work']}, {row['mode']}, {row['link'] or 'any link'}: {dict(row['made'])}"
        for row in rows
        if row["mode"] != "hybrid" and set(row["made"]) - {row["mode"]}
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown, with a newline at its end."""
    lines = [[column.lower() for column in COLUMNS], ["---"] * len(COLUMNS), *map(line, rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def plot(rows: Sequence[Row]) -> str:
    """Medians as bars, as SVG. Each kind of work has a panel with a scale of its own; the dark part of a bar is the time to the
    first token."""
    panels = [
        (work, [row for row in rows if row["work"] == work]) for work in dict.fromkeys(row["work"] for row in rows)
    ]
    body: list[str] = []
    top = 10
    for work, lines in panels:
        body += _panel(work, lines, top)
        top += _PANEL + _LINE * len(lines)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top}" viewBox="0 0 {_WIDTH} {top}" '
        'font-family="sans-serif" font-size="12" fill="#222222">'
    )
    return "\n".join((head, f'<rect width="{_WIDTH}" height="{top}" fill="#ffffff"/>', *body, "</svg>")) + "\n"


def _panel(work: str, rows: Sequence[Row], top: int) -> list[str]:
    longest = max((row["total_s"]["p50"] for row in rows if row["total_s"]), default=0.0) or 1.0
    title = f"{work}: median time to the whole" + (
        ", to the first token dark" if any(r["first_s"] for r in rows) else ""
    )
    parts = [f'<text x="{_LEFT}" y="{top + 18}" font-weight="bold">{escape(title)}</text>']
    for number, row in enumerate(rows):
        y = top + 28 + _LINE * number
        where = ", ".join(filter(None, (row["mode"], row["link"])))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 11}" text-anchor="end">{escape(where)}</text>')
        parts += _bar(row, y, _BARS / longest)
    return parts


def _bar(row: Row, y: int, scale: float) -> list[str]:
    """Of a row, `scale` pixels a second; what crossed the link is written behind it."""
    if row["total_s"] is None:
        return [f'<text x="{_LEFT}" y="{y + 11}">all failed</text>']
    total = row["total_s"]["p50"]
    width, colour = total * scale, COLOURS[row["mode"]]
    parts = [f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{colour}" fill-opacity="0.55"/>']
    if row["first_s"] is not None:
        first = row["first_s"]["p50"] * scale
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{first:.1f}" height="{_BAR}" fill="{colour}"/>')
    said = f"{1000 * total:.0f} ms"
    if row["link"] is not None:
        said += f", {_bytes(row['up_bytes'])} up, {_bytes(row['down_bytes'])} down"
    parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 11}">{escape(said)}</text>')
    return parts


def _times(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{1000 * spread['p50']:.0f} ms ({1000 * spread['max']:.0f})"


def _bytes(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['p50']:.0f} B"
