"""`edgewise config`: what is in force, and the reference of what can be set."""

from __future__ import annotations

import json

import typer

from edgewise.cli.options import AsJson, ConfigFile
from edgewise.cli.output import print_json, print_table
from edgewise.core.settings import load_settings

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)


@app.command("show")
def show(
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Print every effective value of the device service and where it came from."""
    from edgewise.edge.enrol.folder import with_enrolment

    loaded = with_enrolment(load_settings(config))
    if as_json:
        values = {key: {"value": value, "origin": origin} for key, value, origin in loaded.rows()}
        print_json({"file": loaded.file, "settings": values})
        return
    rows = [(key, "unset" if value is None else json.dumps(value), origin) for key, value, origin in loaded.rows()]
    print_table(("SETTING", "VALUE", "FROM"), rows)


@app.command("reference")
def reference() -> None:
    """Print the reference of all settings (Markdown)."""
    from edgewise.core.settings_reference import markdown_reference

    typer.echo(markdown_reference(), nl=False)


@app.command("example")
def example() -> None:
    """Print a configuration file with every setting explained and commented out."""
    from edgewise.core.settings_reference import example_toml

    typer.echo(example_toml(), nl=False)
