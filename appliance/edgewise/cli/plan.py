"""`edgewise plan`: where a request would run and why, without running it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.cli.service_client import Key, Url, connect
from edgewise.core.errors import InvalidRequest

PLAN = "/edgewise/v1/plan"
COLUMNS = ("STAGE", "PLACE", "", "EXPECTED", "FIRST", "BYTES", "JOULES", "PRICE", "COST", "WHY")


def plan(
    task: Annotated[
        str,
        typer.Option(
            "--task",
            help='File with a request body, as it would be sent to the API, or with a pipeline\'s name and inputs; "-" reads it '
            "here.",
        ),
    ],
    explain: Annotated[bool, typer.Option("--explain", help="Show every place that was looked at.")] = False,
    policy: Annotated[str | None, typer.Option(help="Ask for this policy, as the header X-Edgewise-Policy.")] = None,
    privacy: Annotated[str | None, typer.Option(help="Label it, as the header X-Edgewise-Privacy.")] = None,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show where a request would run and why, without running it."""
    body = read_task(task)
    asked = {"X-Edgewise-Policy": policy, "X-Edgewise-Privacy": privacy}
    headers = {name: value for name, value in asked.items() if value is not None}
    with connect(url, key, config, headers) as client:
        report = client.post(PLAN, body)
    if as_json:
        print_json(report)
        return
    if explain:
        print_table(COLUMNS, [row for stage in report["stages"] for row in rows(stage)])
        if report["measured"]:
            say(measured(report["measured"]))
    for stage in report["stages"]:
        for line in told(report, stage):
            say(line)


def read_task(name: str) -> dict[str, Any]:
    """The body in a file, or on standard input for "-"."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        body = json.loads(text)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"--task {name}: {error}", param="task") from error
    if not isinstance(body, dict):
        raise InvalidRequest(f"--task {name}: a request body is a JSON object", param="task")
    return body


def told(report: Mapping[str, Any], stage: Mapping[str, Any]) -> Iterator[str]:
    """What was decided for a stage; of a pipeline's, how much of it is estimated."""
    own = {**report, **stage}
    pieces = f", {own['parts']} pieces" if own.get("parts", 1) > 1 else ""
    place = own["where"] or "nowhere"
    yield f"{_name(stage)} of '{own['model']}' ({own['privacy']}{pieces}): {place}. {own['why']}"
    yield from (f"  estimated: {sentence}" for sentence in own.get("estimates", ()))


def measured(facts: Mapping[str, Any]) -> str:
    """What link and device were like, in one line; what nobody could measure is said to be unknown."""
    told = (f"{name} {'unknown' if value is None else value}" for name, value in facts.items())
    return f"measured: {', '.join(told)}"


def rows(stage: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """One line for each place; of a service without another place, the one that is taken."""
    places = stage["candidates"] or [{**stage, "allowed": stage["where"] is not None, "score": None}]
    return [_row(stage, place) for place in places]


def _row(stage: Mapping[str, Any], place: Mapping[str, Any]) -> tuple[object, ...]:
    predicted = place["predicted"] or {}
    mark = "x" if not place["allowed"] else "*" if place["where"] == stage["where"] else ""
    moved = predicted.get("up_bytes", 0) + predicted.get("down_bytes", 0)
    return (
        _name(stage),
        place["where"] or "nowhere",
        mark,
        seconds(predicted.get("total_ms")),
        seconds(predicted.get("first_ms")),
        moved or "",
        "" if predicted.get("joules") is None else f"{predicted['joules']:.1f}",
        f"{predicted['price']:.6g}" if predicted.get("price") else "",
        "" if place["score"] is None else f"{place['score']:.4g}",
        place["why"],
    )


def _name(stage: Mapping[str, Any]) -> str:
    """A pipeline's stages have names of their own."""
    return str(stage.get("name", stage["stage"]))


def seconds(milliseconds: float | None) -> str:
    """A duration in words; "unknown" where nobody measured it."""
    return "unknown" if milliseconds is None else f"{milliseconds / 1000:.2f} s"
