"""Options that many commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Configuration file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
