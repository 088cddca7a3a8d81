"""`edgewise jobs`: deferred jobs of the running service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import date_text, print_json, print_table, say
from edgewise.cli.service_client import CallerKey, Url, connect

app = typer.Typer(name="jobs", help="Show, fetch and cancel deferred jobs.", no_args_is_help=True)
JOBS = "/edgewise/v1/jobs"
Id = Annotated[str, typer.Argument(help="Id of a job, as `edgewise jobs list` shows it.")]


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, max=100, help="Jobs shown, the latest first.")] = 20,
    url: Url = None,
    key: CallerKey = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Jobs of this key, or of callers without one, the latest first."""
    with connect(url, key, config) as client:
        report = client.get(f"{JOBS}?limit={limit}")
    if as_json:
        print_json(report)
        return
    print_table(("JOB", "STATE", "LEFT AT", "TRIES", "DELIVERY", "WAITS FOR"), [row(job) for job in report["data"]])
    if report["has_more"]:
        say("There are more: raise --limit.")


@app.command()
def show(id: Id, url: Url = None, key: CallerKey = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """One job with its result, as JSON; without --json only the text of an answer, if there is one."""
    with connect(url, key, config) as client:
        job = client.get(_path(id))
    text = None if as_json else text_of(job)
    if text is None:
        print_json(job)
    else:
        typer.echo(text)


@app.command()
def cancel(id: Id, url: Url = None, key: CallerKey = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """End a job; says in which state it is then."""
    with connect(url, key, config) as client:
        job = client.post(f"{_path(id)}/cancel")
    if as_json:
        print_json(job)
    else:
        say(f"{job['id']}: {job['state']}")


@app.command()
def delete(id: Id, url: Url = None, key: CallerKey = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Forget a job that has ended, and its result."""
    with connect(url, key, config) as client:
        report = client.delete(_path(id))
    if as_json:
        print_json(report)


def row(job: Mapping[str, Any]) -> tuple[object, ...]:
    """One line of the table."""
    delivery = job["delivery"]
    told = "poll" if delivery["state"] == "none" else f"{delivery['state']} ({delivery['tries']})"
    waits = job["waiting"] or delivery["error"] or ""
    return job["id"], job["state"], date_text(job["created_at"]), job["tries"], told, waits


def text_of(job: Mapping[str, Any]) -> str | None:
    """The text of the only answer of a job that succeeded; None where there is no such thing."""
    return text_of_answer((job["response"] or {}).get("body") or {})


def text_of_answer(body: Mapping[str, Any]) -> str | None:
    """The same of a body as the routes of `/v1` answer it."""
    choices = body.get("choices") or []
    if len(choices) != 1:
        return None
    choice = choices[0]
    text = choice.get("text") if "text" in choice else (choice.get("message") or {}).get("content")
    return text if isinstance(text, str) else None


def _path(id: str) -> str:
    return f"{JOBS}/{quote(id, safe='')}"
