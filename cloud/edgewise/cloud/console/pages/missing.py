"""For addresses that no page has. It is registered last, since it matches all."""

from __future__ import annotations

from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.core.errors import NotFound


@page("/{address:path}", "Not found")
async def missing(_: Visit, address: str) -> None:
    raise NotFound(f"There is no page /{address[:100]} in this console.")
