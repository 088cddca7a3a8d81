"""`edgewise models gate`: which formats are good enough for a model, measured and kept beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Column

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.errors import InvalidRequest
from edgewise.core.settings import load_settings
from edgewise.models.gate_record import FormatRecord, GateRecord, write_record
from edgewise.models.store import Store

if TYPE_CHECKING:
    from edgewise.engine.gate import GateProgress

LENGTHS = (256, 1024, 2048)


def gate_command(
    name: Annotated[str, typer.Argument(help="A model in the store.")],
    text: Annotated[Path | None, typer.Option(help="UTF-8 text to read; a built-in English one if left out.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the text to read.", min=32)] = 4096,
    needle: Annotated[
        list[int] | None, typer.Option(help="Prompt length of the needle test; repeatable.", min=64)
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare KV and weight formats with float32, and 8 and 4 bits with llama.cpp's: divergence, agreement, perplexity, hidden
    facts. `auto` goes by the result."""
    from edgewise.cli.gate_measure import measure

    store = Store(load_settings(config).settings.home / "models")
    content = None if text is None else read_text(text)
    with gate_progress(show=not as_json) as progress:
        record = measure(store, name, content, tokens, tuple(needle or LENGTHS), progress)
    path = write_record(store.root, record)
    if as_json:
        print_json({"file": str(path), **asdict(record)})
        return
    columns = ("FORMAT", "KL", "LARGEST", "SAME TOKEN", "PERPLEXITY", "NEEDLES", "BITS", "CAPACITY", "BOUND", "")
    print_table(columns, [_reference(record), *(_row(it, record) for it in record.formats)])
    say(f"{record.positions} positions read; kept in {path}.")


def read_text(path: Path) -> str:
    """Raises InvalidRequest where there is no UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read as UTF-8 text: {error}", param="text") from error


def _reference(record: GateRecord) -> tuple[object, ...]:
    needles = f"{record.needles_found} of {record.needles}"
    return "float32", "", "", "", f"{record.perplexity:.4f}", needles, "32", "", "", ""


def _row(it: FormatRecord, record: GateRecord) -> tuple[object, ...]:
    return (
        f"llama.cpp {it.name}" if it.kind == "peer" else f"{it.kind} {it.name}",
        f"{it.mean_kl:.6f}",
        f"{it.max_kl:.4f}",
        f"{it.agreement:.2%}",
        f"{it.perplexity:.4f}",
        "" if it.needles is None else f"{it.needles} of {record.needles}",
        "" if it.bits is None else f"{it.bits:.2f}",
        "" if it.capacity is None else f"{it.capacity:.2f} x bfloat16",
        "" if it.kind == "peer" else f"{it.bound:.4f}",
        "" if it.kind == "peer" else "ok" if it.passed else "NOT GOOD ENOUGH",
    )


@contextmanager
def gate_progress(*, show: bool, out: TextIO | None = None) -> Iterator[GateProgress | None]:
    """On standard error: a bar on a terminal, a line for each step elsewhere. Nothing where not to show."""
    stream = sys.stderr if out is None else out
    if not show:
        yield None
    elif stream.isatty():
        name = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        with Progress(
            name, BarColumn(bar_width=20), TaskProgressColumn(), console=Console(file=stream), expand=True
        ) as bars:
            task = bars.add_task("loading", total=1.0)
            yield lambda what, share: bars.update(task, description=what, completed=share)
    else:
        yield _Lines(stream)


class _Lines:
    """A line when another step begins."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._step = ""

    def __call__(self, what: str, share: float) -> None:
        if what != self._step:
            self._step = what
            self._stream.write(f"{share:4.0%} {what}\n")
            self._stream.flush()
