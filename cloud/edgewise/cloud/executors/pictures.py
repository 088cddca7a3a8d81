"""Draws pictures of jobs on the picture engines of this service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import asdict

from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.work import diffuse_params
from edgewise.core.errors import EngineFault, is_retryable
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseRequest, PictureEngine, PictureInfo
from edgewise.wire.messages import DiffuseWork

PNG = "image/png"
LATENTS = "application/x-safetensors"


async def draw(engine: PictureEngine, work: DiffuseWork, order: Order) -> AsyncGenerator[Produced, None]:
    """Steps as they are done, the result with the last one. A picture is begun anew in every attempt, also where the engine
    restarts in the middle: only steps beyond those that were told already count."""
    image, mask = (None if blob is None else order.media[blob.sha256] for blob in (work.image, work.mask))
    request = DiffuseRequest(
        id=f"{order.job}.{order.attempt}",
        params=diffuse_params(work, image, mask),
        key=order.tenant,
        priority=order.priority,
        deadline_s=order.deadline_s,
    )
    stream = await engine.submit(request)
    done = 0
    async with contextlib.aclosing(stream):
        async for chunk in stream:
            count = max(0, chunk.offset + chunk.count - done)
            done += count
            yield _produced(chunk, count, engine.info)
            if chunk.finish is not None:
                return
    raise EngineFault("The engine's stream ended without saying why.")


def _produced(chunk: DiffuseChunk, count: int, info: PictureInfo | None) -> Produced:
    results = ((PNG, chunk.picture), (LATENTS, chunk.latents))
    facts = {"total": chunk.total} | ({} if chunk.stats is None else asdict(chunk.stats))
    return Produced(
        count=count,
        preview=chunk.preview,
        pictures=tuple((media, content) for media, content in results if content is not None),
        finish=chunk.finish,
        facts=facts,
        numeric_class=None if info is None else info.numeric_class,
        precision=None if info is None else {"dtype": info.dtype},
        error_code=chunk.error_code,
        error_message=chunk.error_message,
        retryable=is_retryable(chunk.error_code),
    )
