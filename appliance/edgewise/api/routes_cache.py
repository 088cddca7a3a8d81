"""/edgewise/v1/cache: what the KV cache's tiers hold, and making them forget it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from fastapi import APIRouter
from fastapi.responses import Response

from edgewise.api.deps import ApiDependencies
from edgewise.api.observed import in_time
from edgewise.api.responses import json_response
from edgewise.core.errors import EdgewiseError, InvalidRequest, ModelNotFound
from edgewise.core.files import translate_os_errors
from edgewise.engine.api import CacheTier, EngineStats
from edgewise.engine.tiers import folder
from edgewise.pipeline.model import Observed


def cache_router(deps: ApiDependencies) -> APIRouter:
    router = APIRouter()

    @router.get("/edgewise/v1/cache")
    async def show() -> Response:
        """Pages, bytes and counters per tier of every model that is loaded, and what lies on disk."""
        engines = deps.models.engines()
        models = [{"model": name, "tiers": await tiers_of(engine)} for name, engine in engines.items()]
        stored = await asyncio.to_thread(_stored, deps.cache_folder)
        return json_response({"models": models, "disk": stored})

    @router.delete("/edgewise/v1/cache")
    async def clear(tier: str | None = None, model: str | None = None) -> Response:
        """Forget cached pages of one tier or all, of one model or all. Pages that running answers use stay until they end."""
        wanted = _tier(tier)
        engines = deps.models.engines()
        if model is not None and model not in engines and not await asyncio.to_thread(_has, deps.cache_folder, model):
            raise ModelNotFound(f"The model '{model[:100]}' has no cache here.", param="model")
        names = [name for name in engines if model in (None, name)]
        cleared = {name: await engines[name].clear_cache(wanted) for name in names}
        files, size = 0, 0
        # Last, so that nothing that an engine had still to write is left behind.
        if wanted in (None, "disk") and deps.cache_folder is not None:
            files, size = await asyncio.to_thread(_clear, deps.cache_folder, model)
        deps.events.emit("cache_cleared", "The KV cache was cleared.", tier=tier, model=model, bytes=size)
        return json_response({"pages": cleared, "disk_files": files, "disk_bytes": size})

    return router


async def tiers_of(engine: Observed) -> dict[str, dict[str, int]] | None:
    """Sizes and counters by tier; None if the engine does not tell now."""
    try:
        stats = await in_time(engine.stats())
    except EdgewiseError:
        return None
    return tiers_in(stats)


def tiers_in(stats: EngineStats) -> dict[str, dict[str, int]]:
    fields = asdict(stats)
    device = {"pages": stats.pages_cached, "pages_total": stats.pages_total}
    lower = {
        tier: {name.removeprefix(f"{tier}_"): value for name, value in fields.items() if name.startswith(f"{tier}_")}
        for tier in ("host", "disk")
    }
    return {"device": device, **lower}


def _tier(tier: str | None) -> CacheTier | None:
    for known in get_args(CacheTier):
        if tier == known:
            return known  # type: ignore[no-any-return]
    if tier is None:
        return None
    raise InvalidRequest(
        f"'tier' is '{tier[:40]}': use {', '.join(get_args(CacheTier))}, or leave it out.", param="tier"
    )


def _stored(root: Path | None) -> list[dict[str, Any]]:
    return [] if root is None else [asdict(item) for item in folder.stored(root)]


def _has(root: Path | None, model: str) -> bool:
    return root is not None and any(item.model == model for item in folder.stored(root))


def _clear(root: Path, model: str | None) -> tuple[int, int]:
    with translate_os_errors("clear", root):
        return folder.clear(root, model)
