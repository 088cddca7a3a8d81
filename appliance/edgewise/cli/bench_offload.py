"""`edgewise bench offload`: work made here, on the cloud, or wherever the device chooses, over several links."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from edgewise.bench.offload_shown import COLUMNS, elsewhere, line, markdown, plot
from edgewise.cli.exit_codes import ExitCode
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.cli.service_client import CallerKey
from edgewise.core.errors import InvalidRequest
from edgewise.core.files import translate_os_errors
from edgewise.core.settings import load_settings

Notify = Callable[[str, int, int], None]


def offload(
    device: Annotated[
        str | None, typer.Option(help="Base URL of a device that runs; by default one is started, with a cloud engine.")
    ] = None,
    key: CallerKey = None,
    model: Annotated[str, typer.Option(help="Language model that both have.")] = "starter",
    picture_model: Annotated[
        str, typer.Option(help='Picture model that both have; "" draws none.')
    ] = "starter-pictures",
    answers: Annotated[int, typer.Option(min=1, help="Answers of each line of the table.")] = 5,
    pictures: Annotated[int, typer.Option(min=0, help="Pictures of each line.")] = 3,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 128,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 48,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    figure: Annotated[Path | None, typer.Option("--plot", help="Also draw the times, as SVG, to this file.")] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Time to first token, whole time and bytes of work made here, on the cloud, or wherever the device chooses (hybrid).

    By default device and cloud are started on this machine, on loopback, and the link between them is narrowed and delayed:
    10 Mbit/s with 60 ms, 100 Mbit/s with 10 ms, 1 Gbit/s with 1 ms. Both compute on this machine then, so cloud minus local
    is what the link costs. With --device the link is as it is.
    """
    from edgewise.bench.offload import OffloadBench, OffloadPlan

    for flag, file in (("--out", out), ("--plot", figure)):
        if file is not None and (file.is_dir() or not file.parent.is_dir()):
            raise InvalidRequest(f"{flag} {file} is not a file in a folder that exists.")
    plan = OffloadPlan(
        model=model,
        picture_model=picture_model if pictures else "",
        answers=answers,
        pictures=pictures,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        seed=seed,
    )
    began, load = datetime.now(timezone.utc).isoformat(timespec="seconds"), round(os.getloadavg()[0], 2)
    interrupted, rows = False, []
    with ExitStack() as stack:
        notify = stack.enter_context(_progress(show=not as_json))
        try:
            url, link = stack.enter_context(_machines(load_settings(config).settings.home, model, notify, device))
            bench = OffloadBench(plan, url, link, key=key, notify=notify)
            rows = bench.rows
            asyncio.run(bench.run())
        except KeyboardInterrupt:
            interrupted = True
    result = {
        **asdict(plan),
        "measured_at": began,
        "load_before": load,
        "device": device,
        "interrupted": interrupted,
        "rows": rows,
    }
    for file, text in ((out, json.dumps(result, indent=2) + "\n"), (figure, plot(rows))):
        if file is not None:
            with translate_os_errors("write", file):
                file.write_text(text, "utf-8")
    if as_json:
        print_json(result)
    elif as_markdown:
        typer.echo(markdown(rows), nl=False)
        _remarks(rows)
    else:
        print_table(COLUMNS, [line(row) for row in rows])
        _remarks(rows)
    if interrupted:
        say("Interrupted: the lines are those that were complete.")
        raise typer.Exit(ExitCode.INTERRUPTED)
    if any(row["errors"] for row in rows) or elsewhere(rows):
        raise typer.Exit(ExitCode.FAILURE)


@contextmanager
def _machines(home: Path, model: str, notify: Notify, device: str | None) -> Iterator[tuple[str, Any]]:
    """The device's address and the link, if it is ours. What is started has state of its own and this machine's models."""
    from edgewise.bench.machines import end_as_interrupt, linked, sharing_home

    if device is not None:
        yield device, None
        return
    end_as_interrupt()
    with tempfile.TemporaryDirectory(prefix="edgewise-bench-") as name:
        near, far = (sharing_home(Path(name) / side, home / "models") for side in ("device", "cloud"))
        notify("starting a device and a cloud engine", 0, 0)
        with linked(near, far, model) as (machine, link):
            yield machine.url, link


@contextmanager
def _progress(*, show: bool) -> Iterator[Notify]:
    """A bar on a terminal, a line for each line of the table elsewhere, nothing where not to show."""
    if not show:
        yield lambda _what, _done, _total: None
    elif sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=sys.stderr)) as bars:
            task = bars.add_task("starting", total=None)

            def move(what: str, done: int, total: int) -> None:
                bars.update(task, completed=done, total=total or None, description=what or None)

            yield move
    else:
        told = ""

        def tell(what: str, done: int, total: int) -> None:
            nonlocal told
            if what and what != told:
                told = what
                say(f"{what} ({done} of {total} requests have ended)" if total else what)

        yield tell


def _remarks(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        for error, count in row["errors"].items():
            say(f"{count} failed: {error} ({row['work']}, {row['mode']}, {row['link'] or 'any link'})")
    for text in elsewhere(rows):
        say(f"Not made where it was asked for: {text}.")
