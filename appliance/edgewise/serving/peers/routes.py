"""The giving side: /edgewise/v1/kv, for other appliances of the same network that hold a key of this one."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import ValidationError

from edgewise.api.body import read_bytes
from edgewise.api.context import context_of
from edgewise.api.deps import ApiDependencies
from edgewise.core.addresses import is_lan
from edgewise.core.errors import BadMessage, EngineUnavailable, NotPermitted, QueueFull
from edgewise.engine.client import EngineClient
from edgewise.engine.pool.pooled import PooledEngine
from edgewise.engine.prefix import chain_start
from edgewise.serving.peers.shown import ShownPages
from edgewise.wire.codec import decode, encode_cbor
from edgewise.wire.http import CBOR
from edgewise.wire.pages import (
    FORMS,
    LOOKUP,
    MAX_NAMES,
    NAME_BYTES,
    PAGES,
    PAGES_TYPE,
    PageOffer,
    PageQuery,
    fingerprint,
    pack_pages,
    split,
)

_AT_ONCE = 2  # answers with pages in the making, each of some megabytes
_BODY_BYTES = MAX_NAMES * NAME_BYTES + 4096


def pages_router(deps: ApiDependencies, shown: ShownPages) -> APIRouter:
    """
    Args:
        shown: What may be given away.
    """
    router = APIRouter(tags=["KV pages"])
    places = asyncio.Semaphore(_AT_ONCE)

    @router.post(LOOKUP)
    async def lookup(request: Request) -> Response:
        """How many of a prompt's pages this key may have from here. CBOR both ways."""
        query = await _query(request, deps)
        salt = context_of(request.scope).salt
        names = split(query.names)
        engine = _engine(deps, query.digest)
        same = engine is not None and _same(engine, query, salt)
        count = 0
        if engine is not None and same:
            known = names[: shown.known(query.digest, salt, names)]
            count = (await engine.pages("held", known)).count if known else 0
        offer = PageOffer(start=chain_start(salt), count=count, same=same, forms=FORMS)
        return Response(encode_cbor(offer.model_dump()), media_type=CBOR)

    @router.post(PAGES)
    async def pages(request: Request) -> Response:
        """As many of the pages asked for as one answer carries, from the first on."""
        query = await _query(request, deps)
        salt = context_of(request.scope).salt
        engine = _engine(deps, query.digest)
        if engine is None or not _same(engine, query, salt):
            raise EngineUnavailable("The model is not loaded here, or its pages are others than those asked for.")
        names = split(query.names)
        if places.locked():
            raise QueueFull("Other appliances are fetching KV pages: compute, or ask again.", retry_after_s=1.0)
        async with places:
            reply = await engine.pages("export", names[: shown.known(query.digest, salt, names)], form=query.form)
            body = await asyncio.to_thread(pack_pages, names[: reply.count], reply.contents)
        return Response(body, media_type=PAGES_TYPE)

    return router


async def _query(request: Request, deps: ApiDependencies) -> PageQuery:
    if request.client is None or not is_lan(request.client.host):
        raise NotPermitted("KV pages are given only to private addresses, never over the internet.")
    body = await read_bytes(request, max_bytes=_BODY_BYTES, timeout_s=deps.limits.body_timeout_s)
    try:
        return PageQuery.model_validate(decode(body))
    except ValidationError as error:
        raise BadMessage(f"The query for KV pages is refused: {error.errors()[0]['msg']}.") from error


def _engine(deps: ApiDependencies, digest: str) -> EngineClient | None:
    """That of the model, if it is loaded: nothing is loaded for a peer."""
    for engine in deps.models.engines().values():
        if isinstance(engine, PooledEngine):
            client = engine.client
            if client is not None and client.info is not None and client.info.digest == digest:
                return client
    return None


def _same(engine: EngineClient, query: PageQuery, salt: str) -> bool:
    info = engine.info
    return info is not None and query.fingerprint == fingerprint(info.kv_fingerprint, chain_start(salt))
