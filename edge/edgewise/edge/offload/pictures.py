"""The cloud's picture engine with the interface of the local one. Media travel as blobs beside the messages, both ways.

A picture is a pure function of model, numeric class, parameters and seed: one that is lost with its cloud is drawn anew here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from edgewise.core.errors import Cancelled, EdgewiseError, EngineFault
from edgewise.core.log import get_logger
from edgewise.core.priority import Priority
from edgewise.edge.offload.accounts import together
from edgewise.edge.offload.continuation import Side, may_continue
from edgewise.edge.offload.follow import JobFollower, Patience, Road
from edgewise.edge.offload.jobs import job_key, ttl_ms
from edgewise.edge.offload.stream import JobStream, failure
from edgewise.edge.offload.waiting import Deadline
from edgewise.engine.api import EngineState
from edgewise.engine.pictures.request import (
    DiffuseChunk,
    DiffuseParams,
    DiffuseRequest,
    DiffuseStats,
    PictureEngine,
    PictureForm,
    PictureInfo,
    PictureStream,
)
from edgewise.engine.request import LinkUse, Segment, link_of
from edgewise.pipeline.plan import Outside
from edgewise.wire.messages import Blob, Capability, Chunk, DiffuseWork, Final, JobRequest
from edgewise.wire.stream_log import Place

log = get_logger(__name__)

_MEDIA = frozenset({"image", "mask", "latents"})
_STATS = TypeAdapter(DiffuseStats)


class RemotePictures:
    """Implements `engine.pictures.request.PictureEngine`.

    Args:
        road: The way there.
        capability: What the cloud said of the model.
        patience: How long a lost link is waited for.
    """

    def __init__(self, road: Road, capability: Capability, *, patience: Patience | None = None) -> None:
        self.road = road
        self.capability = capability
        self.patience = patience or Patience()

    def __repr__(self) -> str:
        return f"RemotePictures({self.capability.model})"

    @property
    def state(self) -> EngineState:
        """An engine elsewhere is always there to be asked; whether the link is up, its health says."""
        return "ready"

    @property
    def info(self) -> PictureInfo | None:
        """The wire does not tell grid and sizes; the model's own engine on this device does."""
        return None

    async def submit(self, request: DiffuseRequest) -> RemotePictureStream:
        """See `PictureEngine.submit`; media go up first.

        Raises:
            LinkLost: The cloud was not reached within `patience.submit_s`.
            EdgewiseError: What the cloud answers.
        """
        follower = JobFollower(self.road, self.patience, request.deadline_s)
        image, mask = [await _up(follower, media) for media in (request.params.image, request.params.mask)]
        job = self._job(request, image, mask)
        if image is None and mask is None:  # blobs are where they were sent
            follower.again = lambda: job
        await follower.submit(job)
        return RemotePictureStream(request, follower, self.patience.stream_s, self.road.place)

    def _job(self, request: DiffuseRequest, image: Blob | None, mask: Blob | None) -> JobRequest:
        params = request.params
        return JobRequest(
            key=job_key(request.id),
            device=self.road.device,
            work=DiffuseWork(
                model=self.capability.model,
                digest=self.capability.digest,
                params=_told(params),
                image=image,
                mask=mask,
                want="latents" if params.latents else "png",
            ),
            priority=Priority(request.priority).label,
            privacy=self.road.privacy,
            ttl_ms=ttl_ms(request.deadline_s),
        )


class RemotePictureStream(JobStream[DiffuseChunk]):
    """Implements `PictureStream`; a read that is cancelled cancels the request."""

    CANCELS = frozenset({"error", "cancelled"})

    def __init__(self, request: DiffuseRequest, follower: JobFollower, patience_s: float, place: Outside) -> None:
        super().__init__(follower)
        self._request = request
        self._patience_s = patience_s
        self._where = place
        self._place = Place(0, 0)
        self._total = request.params.steps or 0
        self._came = 0
        self._price = 0.0

    @property
    def _reached(self) -> Place:
        return self._place

    async def _run(self) -> AsyncGenerator[DiffuseChunk, None]:
        """Steps and previews, then the picture; an end without one is a chunk too, as the local engine's."""
        try:
            items: AsyncGenerator[Chunk | Final, None] = self._follower.items(lambda: self._place, self._take)
            async for item in items:
                yield await (self._last(item) if isinstance(item, Final) else self._progress(item))
        except EdgewiseError as error:
            log.warning("cloud_picture_ended", request_id=self._request.id, code=error.code)
            yield self._failed(error.code, error.message)

    def _take(self, event: Chunk | Final) -> Chunk | Final | None:
        """Steps that were told before are left out, also where another attempt begins the picture anew."""
        if isinstance(event, Final):
            return event
        total = (event.facts or {}).get("total")
        self._total = total if isinstance(total, int) else self._total
        known = max(0, self._place.offset - event.offset)
        if known >= event.count and event.preview is None:
            return None
        self._place = Place(max(self._place.attempt, event.attempt), event.offset + max(event.count, known))
        return event.model_copy(update={"offset": event.offset + known, "count": max(0, event.count - known)})

    async def _progress(self, chunk: Chunk) -> DiffuseChunk:
        return DiffuseChunk(
            request_id=self._request.id,
            offset=chunk.offset,
            count=chunk.count,
            total=self._total,
            preview=None if chunk.preview is None else await self._down(chunk.preview),
        )

    async def _last(self, final: Final) -> DiffuseChunk:
        if final.state != "succeeded":
            return self._failed(*failure(final))
        if not final.blobs:
            raise EngineFault("The cloud ended a picture without one.")
        self._price = final.usage.price
        content = await self._down(final.blobs[0])
        latents = self._request.params.latents
        return DiffuseChunk(
            request_id=self._request.id,
            offset=self._place.offset,
            count=0,
            total=self._total or final.count,
            picture=None if latents else content,
            latents=content if latents else None,
            finish="done",
            stats=self._stats(final),
        )

    @property
    def link(self) -> LinkUse:
        """What it has cost so far, media included; the price of a picture is named with it."""
        up, down = self._follower.traffic
        params = self._request.params
        media = len(params.image or b"") + len(params.mask or b"")
        return LinkUse(up_bytes=up + media, down_bytes=down + self._came, price=self._price)

    def _stats(self, final: Final) -> DiffuseStats | None:
        """The cloud's account, with where it ran and what crossed the link."""
        try:
            stats = _STATS.validate_python({**(final.facts or {}), "segments": (), "link": None, "came_as": None})
        except ValidationError:
            return None
        segment = Segment(
            where=self._where, offset=0, numeric_class=final.numeric_class, why=f"The plan chose the {self._where}."
        )
        form: PictureForm = "latents" if self._request.params.latents else "png"
        return replace(stats, link=self.link, segments=(segment,), came_as=form, came_bytes=final.blobs[0].bytes)

    async def _down(self, blob: Blob) -> bytes:
        self._came += blob.bytes
        return await self._follower.trying(lambda transport: transport.get_blob(blob), patience_s=self._patience_s)

    def _failed(self, code: str, message: str) -> DiffuseChunk:
        return DiffuseChunk(
            request_id=self._request.id,
            offset=self._place.offset,
            count=0,
            total=self._total,
            finish="cancelled" if code == Cancelled.code else "error",
            error_code=code,
            error_message=message,
        )


class BackedPictures:
    """A picture engine whose pictures are drawn by another one where they are lost. Implements `PictureEngine`.

    Args:
        first: Draws.
        side: Where that is.
        second: Draws anew what `first` does not finish.
        other: Where that is.
    """

    def __init__(self, first: PictureEngine, side: Side, second: PictureEngine, other: Side = "local") -> None:
        self._first = first
        self._side = side
        self._second = second
        self._other = other

    @property
    def state(self) -> EngineState:
        return self._first.state

    @property
    def info(self) -> PictureInfo | None:
        return self._first.info

    async def submit(self, request: DiffuseRequest) -> PictureStream:
        try:
            first = await self._first.submit(request)
        except EdgewiseError as error:
            if not may_continue(self._side, error.code):
                raise
            stream = _BackedStream(self._side, None, self._second, self._other, request)
            await stream.change(error.code, error.message)
            return stream
        return _BackedStream(self._side, first, self._second, self._other, request)


class _BackedStream:
    """Implements `PictureStream`: progress begins again where the picture does."""

    def __init__(
        self,
        side: Side,
        stream: PictureStream | None,
        second: PictureEngine,
        other: Side,
        request: DiffuseRequest,
    ) -> None:
        self._side = side
        self._stream = stream
        self._second = second
        self._other = other
        self._request = request
        self._lost: str | None = None
        self._deadline = Deadline(request.deadline_s)
        self._spent: LinkUse | None = None

    def __aiter__(self) -> AsyncIterator[DiffuseChunk]:
        return self

    async def __anext__(self) -> DiffuseChunk:
        assert self._stream is not None
        chunk = await self._stream.__anext__()
        code = chunk.error_code or ""
        if chunk.finish == "error" and self._lost is None and may_continue(self._side, code):
            await self._stream.aclose()
            self._spent = link_of(self._stream)
            await self.change(code, chunk.error_message or "")
            chunk = await self._stream.__anext__()
        return chunk if chunk.stats is None or self._lost is None else replace(chunk, stats=self._told(chunk.stats))

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()

    @property
    def link(self) -> LinkUse | None:
        return together(self._spent, link_of(self._stream))

    async def change(self, code: str, message: str) -> None:
        """Begin on the other side."""
        log.warning("picture_goes_elsewhere", request_id=self._request.id, lost=self._side, code=code)
        self._lost = f"The {self._side} engine was lost ({code}): {message}"
        self._stream = await self._second.submit(replace(self._request, deadline_s=self._deadline.left()))

    def _told(self, stats: DiffuseStats) -> DiffuseStats:
        info = self._second.info
        numeric_class = (
            stats.segments[-1].numeric_class if stats.segments else None if info is None else info.numeric_class
        )
        segment = Segment(where=self._other, offset=0, numeric_class=numeric_class, why=self._lost or "")
        return replace(stats, segments=(segment,), link=self.link)


async def _up(follower: JobFollower, media: bytes | None) -> Blob | None:
    if media is None:
        return None
    return await follower.trying(lambda transport: transport.put_blob(media, "application/octet-stream"))


def _told(params: DiffuseParams) -> dict[str, Any]:
    """Plain data; media are blobs, and what has its default is left out."""
    plain = asdict(DiffuseParams(prompt=params.prompt))
    fields = {name: value for name, value in asdict(params).items() if name not in _MEDIA}
    return {name: value for name, value in fields.items() if name == "prompt" or value != plain[name]}
