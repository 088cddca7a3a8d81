"""How commands reach the running service: its address and key as options, and a client of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.core.settings import load_settings

if TYPE_CHECKING:
    from edgewise.cli.chat_client import ChatClient

Url = Annotated[str | None, typer.Option(envvar="EDGEWISE_URL", help="Base URL of the service.")]
Key = Annotated[
    str | None, typer.Option(envvar="EDGEWISE_API_KEY", help="API key with the scope admin.", show_envvar=True)
]
CallerKey = Annotated[
    str | None, typer.Option(envvar="EDGEWISE_API_KEY", help="API key with the scope inference.", show_envvar=True)
]


def connect(
    url: str | None, key: str | None, config: Path | None, headers: Mapping[str, str] | None = None
) -> ChatClient:
    """A client of the service at `url`, by default of the one that the configuration describes. Nothing is sent yet.

    `headers` go with every request.
    """
    from edgewise.cli.chat_client import ChatClient

    settings = load_settings(config).settings
    trust = None if url else settings.tls.cert
    return ChatClient(url or settings.base_url, key=key, trust=trust, headers=headers)
