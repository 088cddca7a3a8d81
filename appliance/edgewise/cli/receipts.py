"""`edgewise receipts`: what was decided for requests and what came of it, the latest first."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import date_text, print_json, print_table, say
from edgewise.cli.plan import seconds
from edgewise.cli.service_client import Key, Url, connect
from edgewise.core.clock import parse_duration

RECEIPTS = "/edgewise/v1/receipts"
COLUMNS = ("REQUEST", "AT", "MODEL", "WHERE", "STATE", "EXPECTED", "REAL", "ERROR", "BYTES", "PRICE", "WHY")


def receipts(
    request: Annotated[str | None, typer.Argument(help="Id of one request: show all that is known of it.")] = None,
    of: Annotated[
        str | None, typer.Option(help="Only those of the request with this id: the parts of a pipeline.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    where: Annotated[str | None, typer.Option(help="Only those that ran there at least in part: local, cloud.")] = None,
    caller: Annotated[str | None, typer.Option(help="Only of the API key with this id.")] = None,
    since: Annotated[str | None, typer.Option(help="Only those of the last, e.g. 2h or 7d.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many, the latest ones.")] = 20,
    url: Url = None,
    key: Key = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show where requests ran, why, what was predicted, and what came of it."""
    ago = _ago(since)
    asked = {"request": of, "model": model, "where": where, "key": caller, "since": ago, "limit": limit}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    with connect(url, key, config) as client:
        report = client.get(f"{RECEIPTS}/{quote(request, safe='')}" if request else f"{RECEIPTS}?{query}")
    if as_json or request:
        print_json(report)
        return
    print_table(COLUMNS, [row(one) for one in report["data"]])
    told = summary(report["data"])
    if told:
        say(told)


def row(one: Mapping[str, Any]) -> tuple[object, ...]:
    """One line of the table."""
    stages = one["plan"]["stages"]
    parts = [segment for stage in (one["receipt"] or {}).get("stages", ()) for segment in stage.get("segments", ())]
    where = "; ".join(part["reads"] for part in parts) if len(parts) > 1 else one["where"]
    return (
        one["id"],
        date_text(one["at"]),
        one["model"],
        where,
        one["state"],
        seconds(one["predicted_ms"]),
        "" if one["real_ms"] is None else seconds(one["real_ms"]),
        "" if one["error"] is None else f"{one['error']:.0%}",
        one["bytes"] or "",
        f"{one['price']:.6g}" if one["price"] else "",
        stages[0]["why"] if stages else "",
    )


def summary(found: Sequence[Mapping[str, Any]]) -> str | None:
    """How good the predictions were; None where there were none."""
    errors = [one["error"] for one in found if one["error"] is not None]
    if not errors:
        return None
    within = sum(error <= 0.25 for error in errors)
    return (
        f"{len(errors)} predictions: the median differs from the real time by {statistics.median(errors):.0%}, "
        f"{within} of them by at most 25%."
    )


def _ago(since: str | None) -> float | None:
    try:
        return None if since is None else -parse_duration(since)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--since") from error
