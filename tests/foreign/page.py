"""The results part of docs/compatibility.md, between its two marks."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

from tests.foreign.suite import Report

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADINGS = ("suite", "version", "passed", "explained", "unexplained", "requests", "5xx")


def table_of(reports: Sequence[Report]) -> str:
    """A Markdown table, one line for each report."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(report.row() for report in reports)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def results(reports: Sequence[Report]) -> str:
    """The table with date and machine, and under it each reason with the number of cases that it explains."""
    head = (
        f"Run on {time.strftime('%Y-%m-%d', time.gmtime())}, {platform.machine()}, Python {platform.python_version()}."
    )
    parts = [head, table_of(reports)]
    for report in reports:
        if report.explained:
            reasons = [f"- {why} ({_cases(names)})" for why, names in report.explained.items()]
            parts.append("\n".join([f"{report.suite}:", "", *reasons]))
    return "\n\n".join(parts)


def write_page(reports: Sequence[Report]) -> None:
    """Put the results into the page; a run of some suites only replaces them all, so run all of them for the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{results(reports)}\n{END}{after}")


def _cases(names: Sequence[str]) -> str:
    """How many cases, and the functions that they are variants of."""
    functions = sorted({name.partition("[")[0].rpartition(".")[2] for name in names})
    shown = ", ".join(f"`{function}`" for function in functions[:6])
    more = f" and {len(functions) - 6} more" if len(functions) > 6 else ""
    return f"{len(names)} cases: {shown}{more}"
