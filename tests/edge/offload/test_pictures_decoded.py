"""Latents instead of finished pictures: chosen by bytes, decoded here, and an error where that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from edgewise.core.errors import EdgewiseError, EngineFault, QueueFull
from edgewise.edge.offload.follow import Road
from edgewise.edge.offload.parting import Parting
from edgewise.edge.offload.pictures import RemotePictures
from edgewise.edge.offload.pictures_decoded import DecodedPictures, PictureSizes
from edgewise.engine.api import EngineState
from edgewise.engine.pictures.request import (
    DiffuseChunk,
    DiffuseParams,
    DiffuseRequest,
    DiffuseStats,
    PictureInfo,
)
from edgewise.wire.messages import Capability, DiffuseWork
from tests.edge.offload.double import DIGEST, FakeTransport

SIDE = 64
LATENTS, PNG = b"l" * 2_304, b"p" * 5_000
INFO = PictureInfo(
    model="painter",
    digest=DIGEST,
    numeric_class="test",
    device="cpu",
    dtype="float32",
    pid=1,
    load_s=0.0,
    grid=8,
    sizes=(8, 128),
    sizes_best=(SIDE, SIDE),
    steps=4,
    guidance=1.0,
    max_steps=50,
    edits=False,
    negative=True,
    step_s=0.1,
    latent_bytes_per_pixel=0.5,
)


@dataclass
class Decoder:
    """A test double of this device's `PictureEngine`, and of its stream."""

    info: PictureInfo | None = INFO
    state: EngineState = "ready"
    picture: bytes = PNG
    refuse: EdgewiseError | None = None
    finish: Any = "done"
    hang: bool = False
    requests: list[DiffuseRequest] = field(default_factory=list)
    closed: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def submit(self, request: DiffuseRequest) -> Decoder:
        self.requests.append(request)
        self.asked.set()
        if self.refuse is not None:
            raise self.refuse
        return self

    def __aiter__(self) -> AsyncIterator[DiffuseChunk]:
        return self

    async def __anext__(self) -> DiffuseChunk:
        await asyncio.sleep(3600 if self.hang else 0)
        done = self.finish == "done"
        stats = DiffuseStats(
            queued_s=0.25, denoise_s=0, decode_s=0.5, steps=0, computed_steps=0, width=8, height=8, guidance=1
        )
        return DiffuseChunk(
            request_id=self.requests[-1].id,
            offset=0,
            count=0,
            total=0,
            finish=self.finish,
            picture=self.picture if done else None,
            stats=stats,
            error_code=None if done else EngineFault.code,
            error_message=None if done else "it died",
        )

    async def aclose(self) -> None:
        self.closed += 1


def drawn(work: DiffuseWork) -> bytes:
    return LATENTS if work.want == "latents" else PNG


def ask(name: str = "p", **params: Any) -> DiffuseRequest:
    return DiffuseRequest(id=name, params=DiffuseParams(prompt="a cat", **params))


@dataclass
class Bench:
    """The engine under test between a cloud and a decoder."""

    decoder: Decoder = field(default_factory=Decoder)
    transport: FakeTransport = field(default_factory=lambda: FakeTransport(draw=drawn))
    sizes: PictureSizes = field(default_factory=PictureSizes)
    digest: str = DIGEST

    def draw(self, *requests: DiffuseRequest) -> list[DiffuseChunk]:
        """The last chunk of each."""

        async def run() -> list[DiffuseChunk]:
            road = Road(lambda: self.transport, Parting(), "test")
            capability = Capability(model="painter", digest=self.digest, kind="diffuse")
            engine = DecodedPictures(RemotePictures(road, capability), self.decoder, self.sizes)
            lasts = []
            for request in requests:
                chunks = [chunk async for chunk in await engine.submit(request)]
                assert [chunk.finish is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
                assert sum(chunk.count for chunk in chunks) == 4
                lasts.append(chunks[-1])
            await road.parting.close()
            return lasts

        return asyncio.run(run())

    @property
    def wanted(self) -> list[str]:
        return [job.work.want for job in self.transport.jobs.values() if isinstance(job.work, DiffuseWork)]


def test_latents_come_where_they_are_fewer_bytes_and_the_account_says_so() -> None:
    bench = Bench()
    (last,) = bench.draw(ask())
    assert (last.finish, last.picture, last.latents) == ("done", PNG, None)
    assert bench.wanted == ["latents"]
    (decoded,) = bench.decoder.requests
    assert decoded.decode == LATENTS
    assert decoded.params == ask().params
    assert last.stats is not None
    assert (last.stats.came_as, last.stats.came_bytes, last.stats.decode_s) == ("latents", len(LATENTS), 0.75)
    assert (last.stats.steps, [one.where for one in last.stats.segments]) == (4, ["cloud"])
    assert "a finished picture would have been about 6144" in last.stats.segments[0].why
    assert last.stats.link is not None
    assert len(LATENTS) <= last.stats.link.down_bytes < len(PNG)


def test_finished_pictures_come_where_latents_are_more_bytes() -> None:
    bench = Bench(Decoder(info=replace(INFO, latent_bytes_per_pixel=6.0)))
    (last,) = bench.draw(ask())
    assert (last.picture, bench.wanted, bench.decoder.requests) == (PNG, ["png"], [])
    assert last.stats is not None
    assert (last.stats.came_as, last.stats.came_bytes) == ("png", len(PNG))


def test_what_finished_pictures_take_is_learned() -> None:
    bench = Bench()
    size = {"width": 8, "height": 8}  # what the cloud's accounts say
    bench.draw(ask("a", **size), ask("b", **size))
    assert bench.wanted == ["png", "latents"]  # 288 bytes of latents against 96 as long as nothing is known
    sizes = PictureSizes()
    assert sizes.expected("m", 1000) == 1500
    sizes.seen("m", 1000, 100)
    assert sizes.expected("m", 1000) == 100
    sizes.seen("m", 1000, 200)
    assert (sizes.expected("m", 1000), sizes.expected("other", 1000)) == (130, 1500)


@pytest.mark.parametrize(
    "decoder", [Decoder(state="stopped"), Decoder(info=None), Decoder(info=replace(INFO, digest="sha256:" + "0" * 64))]
)
def test_without_the_decoder_of_the_same_files_finished_pictures_come(decoder: Decoder) -> None:
    bench = Bench(decoder)
    (last,) = bench.draw(ask())
    assert (last.picture, bench.wanted, decoder.requests) == (PNG, ["png"], [])


@pytest.mark.parametrize(
    ("decoder", "code", "words"),
    [
        (Decoder(refuse=QueueFull("64 wait.", retry_after_s=3.0)), QueueFull.code, "64 wait"),
        (Decoder(finish="error"), EngineFault.code, "it died"),
    ],
)
def test_what_cannot_be_decoded_is_an_error_that_names_the_setting(decoder: Decoder, code: str, words: str) -> None:
    (last,) = Bench(decoder).draw(ask())
    assert (last.finish, last.error_code, last.picture, last.latents) == ("error", code, None, None)
    assert words in (last.error_message or "")
    assert "cloud.latents" in (last.error_message or "")


def test_whoever_wants_latents_gets_them() -> None:
    bench = Bench()
    (last,) = bench.draw(ask(latents=True))
    assert (last.latents, last.picture, bench.decoder.requests) == (LATENTS, None, [])


def test_leaving_while_it_is_decoded_cancels_that() -> None:
    decoder = Decoder(hang=True)

    async def leave() -> None:
        transport = FakeTransport(draw=drawn)
        road = Road(lambda: transport, Parting(), "test")
        capability = Capability(model="painter", digest=DIGEST, kind="diffuse")
        stream = await DecodedPictures(RemotePictures(road, capability), decoder, PictureSizes()).submit(ask())
        reader = asyncio.ensure_future(_drain(stream))
        await decoder.asked.wait()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        await stream.aclose()
        await road.parting.close()

    asyncio.run(leave())
    assert decoder.closed == 1


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass
