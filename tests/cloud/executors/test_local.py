from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import EngineUnavailable
from edgewise.engine.api import EngineState
from edgewise.engine.pictures.request import (
    DiffuseChunk,
    DiffuseRequest,
    DiffuseStats,
    PictureInfo,
)
from edgewise.pipeline.model import ModelCard, Models, ServedPictures
from edgewise.wire.http import BLOBS, JOBS
from tests.api.harness import error_of
from tests.cloud.service import Cloud, cloud_engine

STEPS = 6
DIGEST = "sha256:" + "cd" * 32
STATS = DiffuseStats(
    queued_s=0.0, denoise_s=1.0, decode_s=0.1, steps=STEPS, computed_steps=STEPS, width=64, height=64, guidance=1.0
)


@dataclass
class FakePictures:
    """A test double of `PictureEngine`: six steps, a preview after the third, a "picture" that tells the seed."""

    break_at: int | None = None
    requests: list[DiffuseRequest] = field(default_factory=list)
    closed: int = 0
    state: EngineState = "ready"
    info: PictureInfo = field(
        default_factory=lambda: PictureInfo(
            model="paint",
            digest=DIGEST,
            numeric_class="fake",
            device="cpu",
            dtype="float32",
            pid=1,
            load_s=0.0,
            grid=8,
            sizes=(8, 128),
            sizes_best=(64, 64),
            steps=STEPS,
            guidance=1.0,
            max_steps=50,
            edits=True,
            negative=True,
            step_s=0.25,
            latent_bytes_per_pixel=6.0,
        )
    )

    async def submit(self, request: DiffuseRequest) -> Drawing:
        self.requests.append(request)
        return Drawing(self, request, break_at=self.break_at if len(self.requests) == 1 else None)


class Drawing:
    def __init__(self, engine: FakePictures, request: DiffuseRequest, break_at: int | None) -> None:
        self._engine = engine
        self._request = request
        self._break_at = break_at
        self._step = 0

    def __aiter__(self) -> AsyncIterator[DiffuseChunk]:
        return self

    async def __anext__(self) -> DiffuseChunk:
        step = self._step
        self._step += 1
        if step == self._break_at:
            raise EngineUnavailable("The engine is gone.")
        last: dict[str, Any] = {}
        if step == STEPS - 1:
            params = self._request.params
            content = b"picture %d of %b" % (params.seed, params.image or b"noise")
            last = {"finish": "done", "stats": STATS, "latents" if params.latents else "picture": content}
        preview = b"half" if step == 2 else None
        return DiffuseChunk(request_id=self._request.id, offset=step, count=1, total=STEPS, preview=preview, **last)

    async def aclose(self) -> None:
        self._engine.closed += 1


class PictureModels(Models):
    """Lists its picture models, as a service with a store does."""

    async def cards(self) -> tuple[ModelCard, ...]:
        card = ModelCard(
            name="paint",
            aliases=(),
            context=None,
            digest=DIGEST,
            created=0,
            owned_by="edgewise",
            chat=None,
            loaded=True,
            role="diffusion",
        )
        return (*await super().cards(), card)


def work(key: str = "p", **fields: Any) -> dict[str, Any]:
    params = {"prompt": "a red apple", "seed": 3, "previews": 1}
    return {"key": key, "device": "d", "work": {"kind": "diffuse", "model": "paint", "params": params, **fields}}


@pytest.fixture
def engine() -> FakePictures:
    return FakePictures()


@pytest.fixture
async def cloud(tmp_path: Path, engine: FakePictures) -> AsyncIterator[Cloud]:
    served = ServedPictures(name="paint", engine=engine, digest=DIGEST, created=0)
    async with cloud_engine(tmp_path, models=PictureModels(pictures=[served])) as made:
        yield made


async def test_a_picture(cloud: Cloud, engine: FakePictures) -> None:
    *steps, final = [event for _, event in await cloud.stream(await cloud.submit(work()))]
    assert [step["offset"] for step in steps] == [*range(STEPS)]
    assert (await cloud.get(f"{BLOBS}/{steps[2]['preview']['sha256']}")).content == b"half"
    assert (final["unit"], final["finish"], final["count"]) == ("steps", "done", STEPS)
    assert (final["usage"]["steps"], final["usage"]["completion_tokens"]) == (STEPS, 0)
    (blob,) = final["blobs"]
    assert blob["media"] == "image/png"
    assert (await cloud.get(f"{BLOBS}/{blob['sha256']}")).content == b"picture 3 of noise"
    assert final["facts"]["computed_steps"] == STEPS
    assert engine.requests[0].key == "(anonymous)"


async def test_media_come_as_blobs_and_go_with_the_acknowledgement(cloud: Cloud) -> None:
    image = b"a photograph"
    sha256 = hashlib.sha256(image).hexdigest()
    job = work(image={"sha256": sha256, "bytes": len(image), "media": "image/png"}, want="latents")
    missing = await cloud.post(JOBS, job)
    assert (missing.status_code, "PUT it" in error_of(missing)["message"]) == (400, True)
    await cloud.put(sha256, image)
    id = await cloud.submit(job)
    final = (await cloud.stream(id))[-1][1]
    (blob,) = final["blobs"]
    assert blob["media"] == "application/x-safetensors"
    assert (await cloud.get(f"{BLOBS}/{blob['sha256']}")).content == b"picture 3 of a photograph"
    await cloud.post(f"{JOBS}/{id}/ack", {"after": f"1.{STEPS}", "done": True})
    for name in (sha256, blob["sha256"]):
        assert (await cloud.get(f"{BLOBS}/{name}")).status_code == 404
    assert [path for path in (cloud.home / "cloud-blobs").glob("*/*") if path.is_file()] == []


async def test_a_picture_that_is_begun_anew_repeats_no_step(cloud: Cloud, engine: FakePictures) -> None:
    engine.break_at = 4
    *steps, final = [event for _, event in await cloud.stream(await cloud.submit(work()))]
    items = [step["offset"] for step in steps if step["count"]]
    assert items == [*range(STEPS)]
    assert (final["attempt"], final["usage"]["steps"], len(final["blobs"])) == (2, STEPS, 1)
    assert engine.closed == 2


async def test_what_cannot_be_drawn(cloud: Cloud) -> None:
    for fields, status in (
        ({"params": {}}, 400),
        ({"params": {"prompt": "x", "image": "aGk="}}, 400),
        ({"params": {"prompt": "x", "colour": "red"}}, 400),
        ({"model": "other"}, 404),
        ({"digest": "sha256:" + "0" * 64}, 404),
    ):
        response = await cloud.post(JOBS, work(**fields))
        assert response.status_code == status, response.text


async def test_how_fast_it_draws_is_known_after_the_first(cloud: Cloud) -> None:
    await cloud.stream(await cloud.submit(work()))
    (capability,) = await cloud.capabilities()
    assert (capability.kind, capability.speed, capability.numeric_class) == ("diffuse", 4.0, "fake")
