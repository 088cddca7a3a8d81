"""Health, metrics and /edgewise/v1: what OpenAI has no word for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import Response

from edgewise.api.deps import ApiDependencies
from edgewise.api.observed import in_time
from edgewise.api.readiness import FAILING
from edgewise.api.responses import json_response
from edgewise.api.routes_cache import cache_router, tiers_of
from edgewise.api.sse import EventStream, kept_alive, sse
from edgewise.core.errors import EdgewiseError, InvalidRequest
from edgewise.pipeline.model import Observed


def service_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter(tags=["Service"])

    @router.head("/healthz", include_in_schema=False)
    @router.get("/healthz")
    async def healthz() -> Response:
        """Alive: the service answers and no engine keeps failing."""
        failed = [name for name, engine in deps.models.observed().items() if engine.state == "failed"]
        if failed:
            reason = f"the engine of {', '.join(failed)} keeps failing: {FAILING}"
            return _json({"status": "failed", "reason": reason}, 503)
        return _json({"status": "ok", "version": deps.version})

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz")
    async def readyz() -> Response:
        """Ready: every pinned model has answered a real token recently."""
        if deps.draining:
            return _json({"ready": False, "reason": "the service is shutting down"}, 503)
        report = await deps.readiness.check()
        body = {"ready": report.ready, "reason": report.reason, "token_age_s": report.token_age_s}
        return _json(body | deps.readiness.shown, 200 if report.ready else 503)

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        await deps.metrics.scrape(deps.models)
        deps.metrics.in_flight.set(deps.requests.open)
        body, content_type = deps.metrics.registry.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @router.get("/edgewise/v1/memory")
    async def memory() -> Response:
        loaded = {name: engine for name, engine in deps.models.observed().items() if engine.state != "stopped"}
        held = deps.media.held
        media = {"limit_bytes": held.limit, "booked_bytes": held.used, "peak_bytes": held.peak}
        return _json({"models": [await _memory(name, engine) for name, engine in loaded.items()], "media": media})

    @router.get("/edgewise/v1/models")
    async def models() -> Response:
        """What is loaded, by whom it is used, and until when."""
        return _json(asdict(deps.models.status()))

    @router.post("/edgewise/v1/models/{name}/load")
    async def load(name: str) -> Response:
        """Load a model; answers when it can be asked."""
        await deps.requests.until_cut(deps.models.load(name))
        return _json(asdict(deps.models.status()))

    @router.post("/edgewise/v1/models/{name}/unload")
    async def unload(name: str) -> Response:
        """Unload a model as soon as it is idle; answers at once."""
        await deps.models.unload(name)
        return _json(asdict(deps.models.status()))

    @router.get("/edgewise/v1/requests")
    async def requests() -> Response:
        return _json(deps.requests.show())

    @router.get("/edgewise/v1/events")
    async def events(
        request: Request, after: str = "0", last_event_id: Annotated[str | None, Header()] = None
    ) -> Response:
        """The ring as JSON, or with `Accept: text/event-stream` a live feed that resumes at Last-Event-ID."""
        start = _event_number(after if last_event_id is None else last_event_id)
        if "text/event-stream" in request.headers.get("accept", ""):
            feed = kept_alive(_feed(deps, start), silence_s=deps.limits.keepalive_s, until=deps.requests.wait_drain())
            return EventStream(feed, send_timeout_s=deps.limits.send_timeout_s)
        return _json({"events": [event.to_dict() for event in deps.events.since(start)]})

    router.include_router(cache_router(deps))
    return router


def _json(value: Any, status: int = 200) -> Response:
    return json_response(value, status, headers={"retry-after": "1"} if status == 503 else None)


def _event_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidRequest("'after' must be the number of an event.", param="after")
    return int(text)


async def _memory(name: str, engine: Observed) -> dict[str, Any]:
    """A model's ledger, or why it cannot be read now."""
    try:
        report = await in_time(engine.memory())
    except EdgewiseError as error:
        return {"model": name, "error": {"code": error.code, "message": error.message}}
    booked = dict(report.booked)
    return {
        "model": name,
        "budget_bytes": report.budget_bytes,
        "available_bytes": report.available_bytes,
        "booked_bytes": sum(booked.values()),
        "booked": booked,
        "tiers": await tiers_of(engine),
    }


async def _feed(deps: ApiDependencies, after: int) -> AsyncGenerator[bytes, None]:
    async for event in deps.events.follow(after):
        yield sse(event.to_dict(), event=event.kind, id=event.id)
