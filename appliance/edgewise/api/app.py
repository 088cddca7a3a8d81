"""Put the API together."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, FastAPI

from edgewise.api.audio.speech_routes import speech_router
from edgewise.api.audio.transcription_routes import transcription_router
from edgewise.api.auth import AuthMiddleware
from edgewise.api.batches.endpoints import ENDPOINTS
from edgewise.api.batches.routes import batches_router
from edgewise.api.deps import ApiDependencies
from edgewise.api.embeddings.routes import embeddings_router
from edgewise.api.errors import install_error_handlers
from edgewise.api.images.routes import images_router
from edgewise.api.messages_api.routes import messages_router
from edgewise.api.middleware import ContextMiddleware, CorsMiddleware
from edgewise.api.pipelines.routes import pipelines_router
from edgewise.api.realtime.routes import realtime_router
from edgewise.api.responses_api.routes import responses_router
from edgewise.api.routes_receipts import receipts_router
from edgewise.api.routes_service import service_router
from edgewise.api.routes_v1 import v1_router
from edgewise.api.vision.routes import vision_router


def create_app(deps: ApiDependencies, routers: Iterable[APIRouter] = ()) -> FastAPI:
    """The ASGI application, with further `routers` of the service around it. Building it starts nothing.

    There is no /docs page: it would load its scripts from the internet. /openapi.json describes every route.
    """
    app = FastAPI(
        title="Edgewise",
        version=deps.version,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    install_error_handlers(app)
    app.include_router(v1_router(deps))
    app.include_router(responses_router(deps))
    app.include_router(messages_router(deps))
    app.include_router(images_router(deps))
    app.include_router(embeddings_router(deps))
    app.include_router(speech_router(deps))
    app.include_router(transcription_router(deps))
    app.include_router(realtime_router(deps))
    app.include_router(vision_router(deps))
    app.include_router(batches_router(deps, ENDPOINTS))
    app.include_router(pipelines_router(deps))
    app.include_router(service_router(deps))
    app.include_router(receipts_router(deps))
    for router in routers:
        app.include_router(router)
    # The last one added is the outermost: context, then CORS (its preflights carry no key), then keys.
    app.add_middleware(AuthMiddleware, keys=deps.keys, access=deps.access)
    if deps.access.allowed_origins:
        app.add_middleware(CorsMiddleware, origins=deps.access.allowed_origins)
    app.add_middleware(ContextMiddleware, deps=deps)
    return app
