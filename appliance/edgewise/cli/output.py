"""How commands print: data to standard output, words about it to standard error, JSON where asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import typer

_WIDE = 4096


def print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table as wide as the terminal, where the first column is never cut; one line a row where there is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))  # Text: no markup in our data
    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=_WIDE)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def say(message: str) -> None:
    """A sentence for the person at the terminal; goes to standard error, so that output stays data."""
    typer.echo(message, err=True)


def date_text(seconds: float | None) -> str:
    """UTC date of seconds since the epoch; empty for never."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
