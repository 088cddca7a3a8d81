"""The table of docs/benchmarks.md that is made from a report of `python -m tests.bench.gpu --json`."""

from __future__ import annotations

from typing import Any


def markdown(report: dict[str, Any]) -> str:
    """A paragraph that says what was measured, and a row for each line of the report.

    A line's `state`, where it has one, is the commit of the kernels that it was measured with.
    """
    rows = [_row(line) for line in report["lines"]]
    made = f"{report['time'][:10]}, {report['card']}, torch {report['torch']}, `python -m tests.bench.gpu`"
    head = (
        f"{made}: medians of whole engines over random weights, greedy. Floor: weights and\n"
        "cache read once at the bandwidth measured in the same run. vLLM: 0.23.0 on such a card, in the faster of its two\n"
        "modes, measured before and not in the same run. Ratio: how many times as fast ours is.\n"
    )
    titles = "| work | ours | floor | vLLM | ratio | goal | | kernels of |\n|---|---|---|---|---|---|---|---|\n"
    return head + "\n" + titles + "".join(rows)


def _row(line: dict[str, Any]) -> str:
    prefill = line["line"].startswith("prefill")

    def shown(value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:,.0f} tokens/s" if prefill else f"{value:.2f} ms"

    met = {None: "", True: "met", False: "not met"}[line["met"]]
    goal = "" if line["goal"] is None else ("at least " if prefill else "at most ") + shown(line["goal"])
    ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}"
    numbers = (shown(line["value"]), shown(line["floor"]), shown(line["peer"]), ratio, goal, met)
    cells = (line["line"], *numbers, line.get("state", ""))
    return f"| {' | '.join(cells)} |\n"
