"""The report of `tests.bench.cpu` as a table: one line a side, in brackets the ratio of our engine to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]


def rows_of(report: Mapping[str, Any]) -> Rows:
    """Heading and lines; medians over the rounds, tokens a second; a star: in fewer rounds, being far slower than a peer."""
    rows = []
    for name, facts in report["sides"].items():
        cells = []
        for row in report["figures"]:
            value, ratio = row["values"][name]["median"], row["ours_to"].get(name)
            star = "*" if row.get("times", {}).get(name, report["rounds"]) < report["rounds"] else ""
            cells.append(f"{value:g}{star}" if ratio is None else f"{value:g}{star} ({ratio['median']:.2f})")
        rows.append((name, *cells, str(facts.get("load_s", "-")), str(facts.get("peak_mib", "-"))))
    return ("side", *(row["figure"] for row in report["figures"]), "load s", "peak MiB"), rows


def plain(report: Mapping[str, Any]) -> list[str]:
    """Lines of text: a side each, its figures by name, the time to load and the greatest memory."""
    heading, rows = rows_of(report)
    return [
        f"{row[0]}: {', '.join(f'{name} {cell}' for name, cell in zip(heading[1:], row[1:], strict=True))}"
        for row in rows
    ]


def markdown(reports: Sequence[Mapping[str, Any]]) -> str:
    """Each report's table below what it was measured on; a sentence where there is none."""
    if not reports:
        return "Not measured yet on an idle machine.\n"
    return "\n".join(map(_section, reports))


def _section(report: Mapping[str, Any]) -> str:
    heading, rows = rows_of(report)
    what = "starter model" if report["model"] == "starter" else "a billion random weights"
    place = f"{report['cpu']}, {report['threads']} threads, load before {report['load_before']}"
    lines = [f"{report['time'][:10]}, {what}, {place}, {report['rounds']} rounds:", ""]
    lines += [f"| {' | '.join(cells)} |" for cells in (heading, ["---"] * len(heading), *rows)]
    return "\n".join(lines) + "\n"
