"""`edgewise models gate`: which formats are good enough for a model, measured and kept beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.errors import InvalidRequest
from edgewise.core.settings import load_settings
from edgewise.models.gate_record import FormatRecord, GateRecord, write_record
from edgewise.models.store import Store
from edgewise.models.tokenizer import load_tokenizer
from edgewise.models.weights.gguf import header_of
from edgewise.pipeline.gate_text import built_in_text, needle_prompts

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
    """Compare KV and weight formats with float32: divergence, agreement, perplexity, hidden facts. `auto` goes by the result."""
    store = Store(load_settings(config).settings.home / "models")
    content = built_in_text() if text is None else _read(text)
    with _progress(show=not as_json) as progress:
        record = measure(store, name, content, tokens, tuple(needle or LENGTHS), progress)
    path = write_record(store.root, record)
    if as_json:
        print_json({"file": str(path), **asdict(record)})
        return
    columns = ("FORMAT", "KL", "LARGEST", "SAME TOKEN", "PERPLEXITY", "NEEDLES", "CAPACITY", "BOUND", "")
    print_table(columns, [_reference(record), *(_row(it, record) for it in record.formats)])
    say(f"{record.positions} positions read; kept in {path}.")


def measure(
    store: Store, name: str, text: str, tokens: int, lengths: tuple[int, ...], progress: GateProgress | None
) -> GateRecord:
    """Run the gate of a model in the store.

    Raises:
        InvalidRequest: The text is too short.
        ModelNotFound, BadModelFile, UnsupportedModel, OutOfMemory: As their names say.
    """
    from edgewise.engine.gate import Needle, measure_formats
    from edgewise.engine.networks import describe

    files = store.resolve(name)
    tokenizer = load_tokenizer(files, header_of(files) if files.format == "gguf" else None)
    read = tokenizer.encode(text, parse_special=False)[:tokens]
    if len(read) < 32:
        raise InvalidRequest(f"The text has {len(read)} tokens: at least 32 are needed.", param="text")
    longest = describe(files).max_position - 16
    lengths = tuple(length for length in lengths if length <= longest)
    needles = [Needle(*it) for it in needle_prompts(tokenizer, read, lengths)]
    result = measure_formats(files, read, needles, progress=progress)
    return GateRecord(
        model=files.name,
        digest=files.digest,
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        text_sha256=hashlib.sha256(text.encode()).hexdigest(),
        positions=result.positions,
        needle_lengths=lengths,
        needles=len(needles),
        perplexity=result.perplexity,
        needles_found=result.needles_found,
        formats=result.formats,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} cannot be read as UTF-8 text: {error}", param="text") from error


def _reference(record: GateRecord) -> tuple[object, ...]:
    needles = f"{record.needles_found} of {record.needles}"
    return "float32", "", "", "", f"{record.perplexity:.4f}", needles, "", "", ""


def _row(it: FormatRecord, record: GateRecord) -> tuple[object, ...]:
    return (
        f"{it.kind} {it.name}",
        f"{it.mean_kl:.6f}",
        f"{it.max_kl:.4f}",
        f"{it.agreement:.2%}",
        f"{it.perplexity:.4f}",
        f"{it.needles} of {record.needles}",
        "" if it.capacity is None else f"{it.capacity:.2f} x bfloat16",
        it.bound,
        "ok" if it.passed else "NOT GOOD ENOUGH",
    )


@contextmanager
def _progress(*, show: bool) -> Iterator[GateProgress | None]:
    """A bar on standard error, or nothing."""
    if not show:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("loading", total=1.0)
        yield lambda what, share: bars.update(task, description=what, completed=share)
