"""`edgewise fleet`: run the fleet service, and work with the devices of a fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from edgewise.cli import fleet_devices, fleet_keys, fleet_login, fleet_work
from edgewise.cli.options import ConfigFile
from edgewise.core.collector import lasting
from edgewise.core.errors import ConfigError
from edgewise.core.settings import load_settings

app = typer.Typer(
    help="Run the fleet service with its console, and work with the devices of a fleet.", no_args_is_help=True
)
for commands in (fleet_login.app, fleet_devices.app, fleet_work.app, fleet_keys.app):
    app.add_typer(commands)  # without a name: its commands are this one's


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 takes a free one.")] = None,
    config: ConfigFile = None,
) -> None:
    """Run the fleet service until Ctrl-C or SIGTERM; devices go on without it."""
    try:
        with lasting():
            from edgewise.cloud.fleet.serve import serve as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("edgewise"):
            raise
        raise ConfigError(f"The fleet service needs {error.name}: pip install 'edgewise[fleet,broker]'.") from error

    raise typer.Exit(run(load_settings(config, {"fleet.host": host, "fleet.port": port})))
