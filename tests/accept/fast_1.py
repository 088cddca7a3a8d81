"""`make bench` on this processor: our engine beside llama.cpp at the same bits, and what its REST API loses."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tests.accept.line import Line, Verdict, main, progress
from tests.bench.cpu import parse_arguments, run
from tests.bench.cpu_shown import plain

# Ours to the faster of llama.cpp's two KV formats and, at 4 bits, of its two kinds of blocks; figure -> least ratio.
GOALS: Mapping[int, Mapping[str, float]] = {
    4: {
        "prefill 128": 1.6,
        "prefill 512": 1.6,
        "prefill 2048": 1.6,
        "decode at 128": 1.7,
        "decode at 2048": 2.5,
        "8 streams at 128": 2.0,
        "8 streams at 2048": 3.0,
    },
    8: {
        "prefill 128": 1.6,
        "prefill 512": 1.6,
        "prefill 2048": 1.6,
        "decode at 128": 1.5,
        "decode at 2048": 2.5,
        "8 streams at 128": 2.0,
        "8 streams at 2048": 3.0,
    },
}
BILLION = {"decode at 128": 1.15}
REST = 0.95
"""Least share of the engine's tokens a second that come through the REST API, where it decodes."""
NAMES = {4: "int4", 8: "int8"}


def options(*flags: str) -> argparse.Namespace:
    return parse_arguments(flags)


def least(row: Mapping[str, Any], bits: int) -> float | None:
    """Ours to the fastest llama.cpp of so many bits; None where there is none."""
    kinds = ("Q4_0", "Q4_1") if bits == 4 else ("Q8_0",)
    peers = [
        one["median"] for name, one in row["ours_to"].items() if name.startswith("llama.cpp") and name[10:14] in kinds
    ]
    return min(peers, default=None)


def judged(report: Mapping[str, Any], goals: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Each goal with what was measured."""
    found = []
    for row in report["figures"]:
        for bits, bars in goals.items():
            if row["figure"] in bars:
                found.append(
                    {"bits": bits, "figure": row["figure"], "bar": bars[row["figure"]], "ratio": least(row, bits)}
                )
    return found


def rest_shares(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of the engine's tokens a second, what comes through the REST API."""
    return [
        {"bits": bits, "figure": f"REST, {row['figure']}", "bar": REST, "ratio": 1.0 / ratio["median"]}
        for row in report["figures"]
        for bits, name in NAMES.items()
        if "prefill" not in row["figure"] and (ratio := row["ours_to"].get(f"edgewise REST {name}"))
    ]


def measure(count: int) -> Verdict:
    """`count`: rounds."""
    if count == 0:
        report = run(options("--quick", "--only", "edgewise"))
        tell(report)
        answered = [row for row in report["figures"] if all(one["low"] > 0 for one in row["values"].values())]
        right = len(answered) == len(report["figures"]) and len(report["sides"]) == 2
        return Verdict(figure=f"{len(answered)} figures", passed=False, correct=right, details=report)
    report = run(options("--rounds", str(count)))
    tell(report)
    progress("now a model of a billion weights")
    large = run(options("--rounds", str(count), "--model", "1b", "--figure", "decode"))
    tell(large)
    shares = rest_shares(report)
    for one in shares:
        progress(f"{one['bits']} bits, {one['figure']}: {1 - one['ratio']:.1%} of the tokens a second are lost")
    goals = [*judged(report, GOALS), *judged(large, {4: BILLION, 8: BILLION}), *shares]
    missed = [one for one in goals if one["ratio"] is None or one["ratio"] < one["bar"]]
    figure = f"{len(goals) - len(missed)} of {len(goals)} goals are met" + "".join(map(_told, missed))
    details = {"goals": goals, "starter": report, "1b": large}
    return Verdict(figure=figure, passed=not missed, details=details)


def tell(report: Mapping[str, Any]) -> None:
    """All that was measured, a side a line; in brackets ours to it."""
    for line in plain(report):
        progress(line)


def _told(goal: Mapping[str, Any]) -> str:
    ratio = "no peer" if goal["ratio"] is None else f"{goal['ratio']:.2f}"
    return f"; {goal['bits']} bits, {goal['figure']}: {ratio} instead of {goal['bar']}"


LINE = Line(
    number=1,
    title="Our engine beside llama.cpp's best at the same bits, interleaved; through REST at most 5 % less",
    bar="; ".join(f"{name} {bar:g}" for name, bar in GOALS[4].items())
    + "; 8 bits decode at 128 1.5; 1b 1.15; REST 0.95",
    count=3,
    small=0,
    measure=measure,
)

if __name__ == "__main__":
    main(LINE, "tests.accept.fast_1")
