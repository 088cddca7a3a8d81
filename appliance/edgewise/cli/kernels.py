"""`edgewise kernels`: measure how Triton's kernels are best launched on this card, and show what was found."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from edgewise.cli.models_gate import gate_progress
from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table, say
from edgewise.core.settings import load_settings
from edgewise.kernels.tuned import Place, Tuned, records, source_digest
from edgewise.models.gate_record import read_record
from edgewise.models.store import Store

app = typer.Typer(name="kernels", help="Measure and show how kernels are launched on this GPU.", no_args_is_help=True)


@app.command()
def tune(
    model: Annotated[
        str | None, typer.Argument(help="A model of the store; the one that is served if left out.")
    ] = None,
    config: ConfigFile = None,
    again: Annotated[bool, typer.Option("--again", help="Try those candidates too that processes died of.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check and time every candidate on this card for a model's shapes, and keep the best. Takes minutes; stop the service
    first, which would disturb the times. Weights are not read."""
    settings = load_settings(config).settings
    store = Store(settings.home / "models")
    files = store.resolve(model or settings.model)
    # Here: they bring torch along.
    from edgewise.engine.kernel_plan import tune_model
    from edgewise.engine.networks import describe
    from edgewise.serving.served import engine_config

    gate = read_record(store.root, files.digest)
    measured = None if gate is None else tuple(sorted(gate.passed("kv")))
    own = replace(engine_config(settings, files), measured_kv=measured)
    with gate_progress(show=not as_json) as tell:
        found = tune_model(
            own,
            describe(files, max_context=own.max_context),
            lambda share, what: tell and tell(what, share),
            again=again,
        )
    if as_json:
        print_json(asdict(found))
    else:
        _print(found, found.place, all_trials=False)


@app.command()
def show(
    trials: Annotated[bool, typer.Option("--trials", help="Every candidate, not the refused ones alone.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """What was measured here: times, what is in use, and what was refused and why."""
    folder = load_settings(config).settings.home / "kernels"
    found = list(records(folder))
    if as_json:
        print_json({"sources": source_digest(), "records": [asdict(record) for record in found]})
        return
    # Torch, Triton and the driver are asked by a process of their own: importing them may end this one.
    from edgewise.cli.doctor_checks import probe_torch  # brings most of the service along

    devices = probe_torch().get("cuda", {"devices": []})["devices"] if found else []
    here = Place(**devices[0]["place"]) if devices and devices[0]["place"] is not None else None
    for record in found:
        _print(record, here, all_trials=trials)
    if not found:
        say("Nothing was measured here: kernels are launched by defaults. `edgewise kernels tune` measures.")


def _print(record: Tuned, here: Place | None, *, all_trials: bool) -> None:
    """`here` is the card and software at hand, None where there is no card."""
    place = record.place
    differ = place.differs(here or replace(place, sources=source_digest()))
    stale = f" - not in use, of another {', '.join(differ)}" if differ else ""
    versions = f"driver {place.driver}, torch {place.torch}, triton {place.triton}"
    say(f"{place.card}, capability {place.capability}, {versions}, {record.when}{stale}")
    if record.failed:
        say(f"  failed, so defaults serve, which may be wrong: {record.failed}")
    say(f"  {record.shape}")
    for rows, figures in record.figures.items():
        parts = ", ".join(f"{name} {us} us" for name, us in figures.items())
        say(f"  two layers, {rows} rows: {parts}")
    shown = record.trials if all_trials else record.refused
    say(f"  {len(record.trials)} candidates in {record.seconds:.0f} s, {len(record.refused)} refused")
    rows_of = [
        (
            trial.site,
            _words(trial.candidate),
            "" if trial.us is None else f"{trial.us:.1f} us",
            trial.why_not or "used" * trial.chosen,
        )
        for trial in shown
    ]
    if rows_of:
        print_table(("WHAT", "HOW", "TIME", ""), rows_of)


def _words(candidate: object) -> str:
    assert isinstance(candidate, dict)
    return " ".join(f"{name}={value}" for name, value in candidate.items() if value not in (0, False, "plain"))
