"""Whether the service works again: it is ready, and a real token was answered."""

from __future__ import annotations

import asyncio
from typing import Any

from edgewise.api.deps import ApiDependencies
from edgewise.core.errors import EdgewiseError
from edgewise.core.log import get_logger

log = get_logger(__name__)

_AGAIN_S = 1.0


async def wait_answered(deps: ApiDependencies) -> dict[str, Any]:
    """Return when it does, with how it was seen; who waits sets the limit.

    Where no model is pinned, the first one that is installed is loaded for it. Where none is installed nothing could answer, and
    that the service is ready must do.
    """
    while True:
        report = await deps.readiness.check()
        if report.ready and report.token_age_s is not None:
            return {"answered": True, "token_age_s": report.token_age_s}
        if report.ready and (found := await _ask_first(deps)) is not None:
            return found
        await asyncio.sleep(_AGAIN_S)


async def _ask_first(deps: ApiDependencies) -> dict[str, Any] | None:
    """Make the model that is asked first answer a token; None if it does not (yet)."""
    names = [card.name for card in await deps.models.cards() if card.role == "llm" and card.where == "local"]
    if not names:
        return {"answered": False, "reason": "no model is installed"}
    try:
        reason = await deps.readiness.probe(await deps.models.open(names[0]))
    except EdgewiseError as error:
        reason = error.message
    if reason is not None:
        log.info("no_answer_yet", model=names[0], reason=reason)
        return None
    return {"answered": True, "token_age_s": 0.0}
