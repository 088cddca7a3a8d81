"""Pictures over a link that breaks: steps are told once, media arrive whole, a lost picture is drawn anew."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from edgewise.core.errors import LinkLost
from edgewise.edge.offload.follow import Patience, Road
from edgewise.edge.offload.parting import Parting
from edgewise.edge.offload.pictures import BackedPictures, RemotePictures
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseParams, DiffuseRequest, PictureEngine
from edgewise.wire.messages import Capability, DiffuseWork
from tests.edge.offload.double import CLASS, DIGEST, FakeTransport

CAPABILITY = Capability(model="painter", digest=DIGEST, kind="diffuse")


def pictures(transport: FakeTransport, patience_s: float = 5.0) -> RemotePictures:
    patience = Patience(submit_s=patience_s, stream_s=patience_s)
    return RemotePictures(Road(lambda: transport, Parting(), "test"), CAPABILITY, patience=patience)


def ask(name: str = "p", **params: object) -> DiffuseRequest:
    return DiffuseRequest(id=name, params=DiffuseParams(prompt="a cat", seed=3, **params))  # type: ignore[arg-type]


async def draw(
    engine: PictureEngine, *remotes: RemotePictures, request: DiffuseRequest | None = None
) -> list[DiffuseChunk]:
    chunks = [chunk async for chunk in await engine.submit(request or ask())]
    for one in remotes:
        await one.road.parting.close()
    return chunks


@pytest.mark.parametrize("cuts", [[], [1], [2, 3, 0]])
def test_steps_come_once_and_the_picture_whole(cuts: list[int]) -> None:
    transport = FakeTransport(cuts=cuts)
    remote = pictures(transport)
    chunks = asyncio.run(draw(remote, remote))
    assert sum(chunk.count for chunk in chunks) == 4
    assert [chunk.offset for chunk in chunks if chunk.count] == [0, 1, 2, 3]
    assert {chunk.total for chunk in chunks} == {4}
    assert b"preview" in [chunk.preview for chunk in chunks]
    assert (chunks[-1].finish, chunks[-1].picture, chunks[-1].latents) == ("done", b"picture", None)
    assert [control.op for control in transport.said] == ["ack"]
    stats = chunks[-1].stats
    assert stats is not None
    assert stats.link is not None
    assert [(one.where, one.numeric_class) for one in stats.segments] == [("cloud", CLASS)]
    assert stats.link.down_bytes >= len(b"preview") + len(b"picture")


def test_media_go_up_as_blobs_and_latents_come_down_where_they_are_wanted() -> None:
    transport = FakeTransport(losses=2)
    remote = pictures(transport)
    request = ask(image=b"before", mask=b"where", latents=True, steps=4)
    chunks = asyncio.run(draw(remote, remote, request=request))
    assert (chunks[-1].picture, chunks[-1].latents) == (None, b"picture")
    work = next(iter(transport.jobs.values())).work
    assert isinstance(work, DiffuseWork)
    assert work.want == "latents"
    assert work.image is not None
    assert work.image.sha256 == hashlib.sha256(b"before").hexdigest()
    assert work.params == {"prompt": "a cat", "seed": 3, "steps": 4}
    assert transport.blobs[work.mask.sha256] == b"where"  # type: ignore[union-attr]


def test_a_picture_that_is_lost_is_drawn_by_the_other_engine() -> None:
    gone, here = pictures(FakeTransport(cuts=[2] + [0] * 1000), 0.1), pictures(FakeTransport(draw=lambda work: b"here"))
    chunks = asyncio.run(draw(BackedPictures(gone, "cloud", here), gone, here))
    assert (chunks[-1].finish, chunks[-1].picture) == ("done", b"here")
    stats = chunks[-1].stats
    assert stats is not None
    assert [(one.where, one.numeric_class) for one in stats.segments] == [("local", CLASS)]
    assert "link_lost" in stats.segments[0].why
    assert stats.link is not None
    assert stats.link.up_bytes > 0  # what the lost one had cost
    down = pictures(FakeTransport(losses=10_000), 0.05)
    chunks = asyncio.run(draw(BackedPictures(down, "cloud", here), here))
    assert chunks[-1].picture == b"here"
    with pytest.raises(LinkLost):
        asyncio.run(draw(down))


def test_leaving_cancels() -> None:
    async def leave() -> list[str]:
        transport = FakeTransport()
        remote = pictures(transport)
        stream = await remote.submit(ask())
        await stream.__anext__()
        await stream.aclose()
        await remote.road.parting.close()
        return [control.op for control in transport.said]

    assert asyncio.run(leave()) == ["cancel"]


def test_a_picture_that_is_being_read_can_be_cancelled() -> None:
    async def run() -> list[str]:
        transport = FakeTransport(hang=True)
        remote = pictures(transport)
        stream = await remote.submit(ask())
        reader = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)
        reader.cancel()  # delivered only after the next line, as where a client leaves
        await stream.aclose()
        await asyncio.gather(reader, return_exceptions=True)
        await remote.road.parting.close()
        return [control.op for control in transport.said]

    assert asyncio.run(run()) == ["cancel"]
