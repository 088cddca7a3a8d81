"""`edgewise models encoders`: every candidate of each encoder, with its time, its error and why it lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from importlib.resources import files as package_files
from pathlib import Path
from typing import Annotated, Any

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.settings import Settings, load_settings
from edgewise.engine.numerics import cpu_family
from edgewise.models.encoders.record import CandidateRecord, LadderRecord, read_ladders
from edgewise.models.manifest import Manifest
from edgewise.models.store import Store


def encoders_command(
    name: Annotated[str | None, typer.Argument(help="One encoder; all of the store if left out.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Build, judge and time the candidates now; without NAME of all encoders.")
    ] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show the candidates of each encoder of texts: time, error, and why it lost."""
    settings = load_settings(config).settings
    store = Store(settings.home / "models")
    shown: list[tuple[Manifest, list[LadderRecord]]] = []
    for manifest in _encoders(store, name):
        if measure:
            _measure(settings, store, manifest)
        shown.append((manifest, read_ladders(store.root, manifest.digest)))
    if as_json:
        print_json({"encoders": [_document(manifest, records) for manifest, records in shown]})
        return
    for manifest, records in shown:
        _print(manifest, records)
    if not shown:
        say("No encoder of texts is installed: `edgewise models pull minilm` installs one.")


def _encoders(store: Store, name: str | None) -> Iterator[Manifest]:
    if name is not None:
        store.resolve(name, "embeddings")  # says what is wrong with it
        yield store.manifest(name)
        return
    yield from (it for it in store.manifests() if it.info.role == "embeddings")


def _measure(settings: Settings, store: Store, manifest: Manifest) -> None:
    # Here: it brings ONNX Runtime along.
    from edgewise.models.encoders.build import Order, climb
    from edgewise.models.encoders.record import ladder_folder, place_name
    from edgewise.models.onnx_session import RUNTIME

    threads = settings.engine.threads or len(os.sched_getaffinity(0))
    place = place_name(RUNTIME, cpu_family(), threads)
    climb(
        Order(
            files=store.resolve(manifest.name, "embeddings"),
            text=Path(str(package_files("edgewise.pipeline") / "gate_text.txt")),
            folder=ladder_folder(store.root, manifest.digest) / place,
            device=cpu_family(),
            threads=threads,
        ),
        lambda stage, share: say(f"{share:4.0%} {stage}"),
    )


def _document(manifest: Manifest, records: list[LadderRecord]) -> dict[str, Any]:
    return {"name": manifest.name, "digest": manifest.digest, "places": [asdict(record) for record in records]}


def _print(manifest: Manifest, records: list[LadderRecord]) -> None:
    if not records:
        say(
            f"{manifest.name}: not measured yet; float32 serves. It is measured when it is first asked, or with --measure."
        )
    for record in records:
        say(f"{record.model} on {record.runtime}, {record.device}, {record.threads} threads, {record.measured_at}")
        columns = ("CANDIDATE", "COSINE", "ONE", f"{record.many} TOGETHER", "SIZE", "")
        print_table(columns, [_row(it) for it in record.candidates])


def _row(it: CandidateRecord) -> tuple[object, ...]:
    if it.cosine_min is None:
        return it.name, "", "", "", "", it.why
    times = (f"{it.ms_one:.2f} ms", f"{it.ms_many:.1f} ms")
    return it.name, f"{it.cosine_min:.5f}", *times, f"{it.bytes / 1e6:.1f} MB", "in use" if it.chosen else it.why
