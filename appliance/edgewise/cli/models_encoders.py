"""`edgewise models encoders`: every candidate of each encoder, with its time, its error and why it lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.errors import InvalidRequest
from edgewise.core.settings import Settings, load_settings
from edgewise.engine.machine import look
from edgewise.models.encoders.record import (
    CARD_ROLES,
    HEARING_ROLES,
    LADDER_ROLES,
    REMEDY,
    CandidateRecord,
    LadderRecord,
    read_ladders,
)
from edgewise.models.encoders.voices import voices_of
from edgewise.models.manifest import Manifest
from edgewise.models.store import Store


def encoders_command(
    name: Annotated[str | None, typer.Argument(help="One encoder; all of the store if left out.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Build, judge and time the candidates now; without NAME of all encoders.")
    ] = False,
    samples: Annotated[
        Path | None,
        typer.Option(
            help="Folder of recordings of speech: what an encoder that hears is judged by; without it a voice of the device "
            "reads aloud.",
            file_okay=False,
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the candidates of each encoder: time, error, and why it lost."""
    settings = load_settings(config).settings
    store = Store(settings.home / "models")
    shown: list[tuple[Manifest, list[LadderRecord]]] = []
    for manifest in _encoders(store, name):
        if measure and (name is not None or not _judged_better(store, manifest, samples)):
            _measure(settings, store, manifest, samples)
        shown.append((manifest, read_ladders(store.root, manifest.digest)))
    if as_json:
        print_json({"encoders": [_document(manifest, records) for manifest, records in shown]})
        return
    for manifest, records in shown:
        _print(manifest, records)
    if not shown:
        say("No encoder with a ladder is installed: `edgewise models pull minilm` installs one.")


def _encoders(store: Store, name: str | None) -> Iterator[Manifest]:
    if name is None:
        yield from (it for it in store.manifests() if it.info.role in LADDER_ROLES)
        return
    manifest = store.manifest(name)
    if manifest.info.role not in LADDER_ROLES:
        raise InvalidRequest(
            f"'{name}' is a model for {manifest.info.role}; those for {', '.join(LADDER_ROLES)} have a ladder.",
            param="name",
        )
    store.resolve(name, manifest.info.role)  # says what is wrong with it
    yield manifest


def _judged_better(store: Store, manifest: Manifest, samples: Path | None) -> bool:
    """Whether recordings judged already, and only a voice would now: said, and asked for by name."""
    judges = [it.judge for it in read_ladders(store.root, manifest.digest) if it.judge is not None]
    better = [judge for judge in judges if judge.kind == "recordings"]
    if samples is not None or not better:
        return False
    say(f"{manifest.name} was judged by {better[0]}: left as it is. Name it, or give --samples, to measure it anew.")
    return True


def _measure(settings: Settings, store: Store, manifest: Manifest, samples: Path | None) -> None:
    if manifest.info.role in HEARING_ROLES and samples is None and not voices_of(store):
        say(f"{manifest.name} is not measured: nothing judges it. To have it measured {REMEDY.format(manifest.name)}.")
        return
    # Here: it brings ONNX Runtime along.
    from edgewise.models.encoders.build import climb
    from edgewise.models.encoders.rung import place_of
    from edgewise.serving.encoders import encoder_dtype, ladder_options

    threads = settings.engine.threads or len(os.sched_getaffinity(0))
    card = manifest.info.role in CARD_ROLES and asyncio.run(look(settings.engine.device)).cuda
    options = {**ladder_options(store, manifest, samples), "card": "yes" if card else "no"}
    if manifest.info.role in HEARING_ROLES:
        options["dtype"] = encoder_dtype(settings)
    place = place_of(threads, options)
    files = store.resolve(manifest.name, manifest.info.role)
    climb(place.order(files, manifest.info.role), lambda stage, share: say(f"{share:4.0%} {stage}"))


def _document(manifest: Manifest, records: list[LadderRecord]) -> dict[str, Any]:
    return {"name": manifest.name, "digest": manifest.digest, "places": [asdict(record) for record in records]}


def _print(manifest: Manifest, records: list[LadderRecord]) -> None:
    if not records and manifest.info.role in HEARING_ROLES:
        say(
            f"{manifest.name}: not measured yet; torch serves. `edgewise models show {manifest.name}` says what it waits for."
        )
    elif not records:
        say(
            f"{manifest.name}: not measured yet; float32 serves. It is measured when it is first asked, or with --measure."
        )
    for record in records:
        judged = "" if record.judge is None else f"; judged by {record.judge}"
        say(
            f"{record.model} on {record.runtime}, {record.device}, {record.threads} threads, {record.measured_at}{judged}"
        )
        columns = ("CANDIDATE", "COSINE", "ONE", f"{record.many} TOGETHER", "SIZE", "")
        print_table(columns, [_row(it) for it in record.candidates])


def _row(it: CandidateRecord) -> tuple[object, ...]:
    if it.cosine_min is None:
        return it.name, "", "", "", "", it.why
    times = (f"{it.ms_one:.2f} ms", f"{it.ms_many:.1f} ms")
    return it.name, f"{it.cosine_min:.5f}", *times, f"{it.bytes / 1e6:.1f} MB", "in use" if it.chosen else it.why
