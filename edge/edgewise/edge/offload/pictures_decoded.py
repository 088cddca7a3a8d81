"""Pictures that are drawn on the cloud and decoded here: their latents cross the link where those are fewer bytes.

A device whose own engine has loaded the same model has its decoder. Latents of a usual model are a tenth of a finished picture
(1024 x 1024 pixels: 131 kB against about 1.5 MB); those of a model that works on pixels are more, and stay there.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from edgewise.core.errors import EdgewiseError, EngineFault
from edgewise.core.log import get_logger
from edgewise.edge.offload.pictures import RemotePictures
from edgewise.edge.offload.waiting import Deadline
from edgewise.engine.api import EngineState
from edgewise.engine.messages import error_from
from edgewise.engine.pictures.request import (
    DiffuseChunk,
    DiffuseRequest,
    DiffuseStats,
    PictureEngine,
    PictureInfo,
    PictureStream,
)
from edgewise.engine.request import LinkUse, link_of

log = get_logger(__name__)

_PNG_BYTES_PER_PIXEL = 1.5
"""Before a picture of the model was seen."""
_HEADER_BYTES = 256
_NEWS = 0.3


@dataclass(slots=True)
class PictureSizes:
    """How large finished pictures of each model are, learned from those that were seen."""

    _per_pixel: dict[str, float] = field(default_factory=dict)

    def expected(self, digest: str, pixels: int) -> int:
        return round(self._per_pixel.get(digest, _PNG_BYTES_PER_PIXEL) * pixels)

    def seen(self, digest: str, pixels: int, size: int) -> None:
        now, before = size / max(1, pixels), self._per_pixel.get(digest)
        self._per_pixel[digest] = now if before is None else before + _NEWS * (now - before)


class DecodedPictures:
    """Implements `engine.pictures.request.PictureEngine`.

    Args:
        remote: Draws.
        local: This device's engine of the model. It is not loaded for the sake of decoding: while it is not, or is of other
            files, finished pictures come.
        sizes: What finished pictures take.
    """

    def __init__(self, remote: RemotePictures, local: PictureEngine, sizes: PictureSizes) -> None:
        self.remote = remote
        self._local = local
        self._sizes = sizes

    def __repr__(self) -> str:
        return f"DecodedPictures({self.remote!r})"

    @property
    def state(self) -> EngineState:
        return self.remote.state

    @property
    def info(self) -> PictureInfo | None:
        return self.remote.info

    async def submit(self, request: DiffuseRequest) -> PictureStream:
        """See `RemotePictures.submit`."""
        decoder = self._local.info if self._local.state == "ready" else None
        if request.params.latents or decoder is None or decoder.digest != self.remote.capability.digest:
            return await self.remote.submit(request)
        width, height = decoder.sizes_best
        pixels = (request.params.width or width) * (request.params.height or height)
        finished = self._sizes.expected(decoder.digest, pixels)
        latents = _HEADER_BYTES + round(decoder.latent_bytes_per_pixel * pixels)
        asked = replace(request, params=replace(request.params, latents=latents < finished))
        return _DecodedStream(request, await self.remote.submit(asked), self, finished)

    async def decode(self, request: DiffuseRequest) -> DiffuseChunk:
        """The last chunk of a request to decode; raises `EdgewiseError` where it cannot be had."""
        async with contextlib.aclosing(await self._local.submit(request)) as stream:
            async for chunk in stream:
                if chunk.finish == "done" and chunk.picture is not None:
                    return chunk
                if chunk.finish is not None:
                    raise error_from(chunk.error_code or "", chunk.error_message or "")
        raise EngineFault("The engine's stream ended without a picture.")

    def seen(self, chunk: DiffuseChunk) -> None:
        """Learn from a finished picture."""
        if chunk.picture is not None and chunk.stats is not None:
            pixels = chunk.stats.width * chunk.stats.height
            self._sizes.seen(self.remote.capability.digest or "", pixels, len(chunk.picture))


class _DecodedStream:
    """Implements `PictureStream`: what the cloud tells of its steps, then the picture, made here if latents came."""

    def __init__(self, request: DiffuseRequest, stream: PictureStream, engine: DecodedPictures, finished: int) -> None:
        self._request = request
        self._stream = stream
        self._engine = engine
        self._finished = finished
        self._deadline = Deadline(request.deadline_s)

    def __aiter__(self) -> AsyncIterator[DiffuseChunk]:
        return self

    async def __anext__(self) -> DiffuseChunk:
        chunk = await self._stream.__anext__()
        if chunk.latents is not None:
            chunk = await self._decoded(chunk, chunk.latents)
        self._engine.seen(chunk)
        return chunk

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def link(self) -> LinkUse | None:
        return link_of(self._stream)

    async def _decoded(self, chunk: DiffuseChunk, latents: bytes) -> DiffuseChunk:
        request = replace(
            self._request,
            id=f"{self._request.id}/decode",
            params=replace(self._request.params, image=None, mask=None),
            decode=latents,
            deadline_s=self._deadline.left(),
        )
        try:
            own = await self._engine.decode(request)
        except EdgewiseError as error:
            log.warning("latents_not_decoded", request_id=self._request.id, code=error.code)
            message = (
                f"The picture was drawn on the cloud, but could not be decoded here: {error.message} Set cloud.latents = "
                '"never" to have finished pictures.'
            )
            return replace(chunk, latents=None, finish="error", error_code=error.code, error_message=message)
        stats = self._told(chunk.stats, own.stats, len(latents))
        return replace(chunk, latents=None, picture=own.picture, stats=stats)

    def _told(self, stats: DiffuseStats | None, own: DiffuseStats | None, came: int) -> DiffuseStats | None:
        if stats is None or own is None:
            return stats
        why = f"Latents of {came} bytes came and were decoded here: a finished picture would have been about {self._finished}."
        segments = tuple(replace(one, why=f"{one.why} {why}") for one in stats.segments)
        return replace(stats, decode_s=own.queued_s + own.decode_s, segments=segments)
