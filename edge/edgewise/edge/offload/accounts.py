"""What a request cost, as its receipt tells it: the cloud's own account where it gives one, else what was measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from edgewise.engine.request import GenerateRequest, LinkUse, RequestStats

_STATS = TypeAdapter(RequestStats)
_WARNINGS, _WARNING_CHARS = 20, 500


def told_stats(facts: Mapping[str, Any] | None) -> RequestStats | None:
    """The engine's account as it crossed the wire; None where there is none of this version."""
    if facts is None:
        return None
    try:
        return replace(_STATS.validate_python({**facts, "segments": (), "link": None}), segments=(), link=None)
    except (ValidationError, TypeError):
        return None


def told_warnings(facts: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What the cloud says of a request that it could not honour whole; also where its account has no figures."""
    told = (facts or {}).get("warnings")
    if not isinstance(told, list | tuple):
        return ()
    return tuple(text[:_WARNING_CHARS] for text in told[:_WARNINGS] if isinstance(text, str))


def measured_stats(request: GenerateRequest, count: int, first_s: float, rest_s: float) -> RequestStats:
    """For a back end that gives no account: seconds to the first token, and from there on, as they passed here."""
    return RequestStats(
        prompt_tokens=len(request.prompt),
        cached_tokens=0,
        completion_tokens=count,
        queued_s=0.0,
        prefill_s=first_s,
        decode_s=rest_s,
    )


def together(first: LinkUse | None, second: LinkUse | None, *, hedged: bool = False) -> LinkUse | None:
    """Both costs as one; None where neither crossed the link."""
    both = [use for use in (first, second) if use is not None]
    if not both:
        return None
    return LinkUse(
        up_bytes=sum(use.up_bytes for use in both),
        down_bytes=sum(use.down_bytes for use in both),
        price=sum(use.price for use in both),
        hedged=hedged or any(use.hedged for use in both),
    )
