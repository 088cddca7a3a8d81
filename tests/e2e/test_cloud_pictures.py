"""A picture through a real cloud engine: drawn, killed in the middle, cancelled; and as latents that a real device decodes."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from edgewise.models.diffusion.pictures import encode
from edgewise.models.diffusion.starter.tiny import TINY, make_tiny_pictures
from edgewise.wire.http import BLOBS, JOBS, job_path
from scripts.service import CloudService
from tests.e2e.pair import paired
from tests.e2e.service import edgewise, import_model, import_tiny, new_home, suite_limits

SIZES = replace(TINY, size=32, width=64, depth=3)  # steps that are long enough to be interrupted
STEPS = 60


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home(starter=False) as made:
        source = make_tiny_pictures(made / "pictures-source", config=SIZES)
        import_model(made, source, "pictures", "diffusion")
        yield made


@pytest.fixture(scope="module")
def service(home: Path) -> Iterator[CloudService]:
    model = import_tiny(home)
    with CloudService(home, ["--model", model], environment=suite_limits()) as made:
        yield made


class Drawing:
    """A job for one picture, and what came of it."""

    def __init__(self, service: CloudService, key: str, steps: int = STEPS) -> None:
        self.service = service
        params = {"prompt": "a red cat", "seed": 7, "steps": steps}
        work = {"kind": "diffuse", "model": "pictures", "params": params}
        answer = httpx.post(service.url + JOBS, json={"key": key, "device": "d", "work": work}, timeout=60)
        assert answer.status_code == 202, answer.text
        self.id = answer.json()["id"]
        self.place = "0.0"
        self.steps: list[int] = []
        self.final: dict[str, Any] = {}

    def read(self, until: int | None = None) -> None:
        """Up to so many steps, or to the final record."""
        url = f"{self.service.url}{job_path(self.id, 'stream')}?from={self.place}"
        with httpx.stream("GET", url, timeout=60) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("id: "):
                    self.place = line.removeprefix("id: ")
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if event["type"] == "final":
                    self.final = event
                    return
                self.steps += range(event["offset"], event["offset"] + event["count"])
                if until is not None and len(self.steps) >= until:
                    return

    def png(self) -> bytes:
        (blob,) = self.final["blobs"]
        answer = httpx.get(f"{self.service.url}{BLOBS}/{blob['sha256']}", timeout=60).raise_for_status()
        assert (answer.headers["content-type"], len(answer.content)) == ("image/png", blob["bytes"])
        assert hashlib.sha256(answer.content).hexdigest() == blob["sha256"]
        return answer.content

    def say(self, word: str, **fields: Any) -> None:
        httpx.post(f"{self.service.url}{job_path(self.id, word)}", json=fields, timeout=60).raise_for_status()


@pytest.fixture(scope="module")
def undisturbed(service: CloudService) -> bytes:
    drawing = Drawing(service, "undisturbed")
    drawing.read()
    assert drawing.final["state"] == "succeeded"
    assert drawing.steps == [*range(STEPS)]
    return drawing.png()


def billed(home: Path) -> tuple[int, int]:
    """Jobs and steps of pictures."""
    bills = [bill for bill in json.loads(edgewise(home, "cloud", "usage", "--json")) if bill["model"] == "pictures"]
    return sum(bill["jobs"] for bill in bills), sum(bill["steps"] for bill in bills)


def test_a_picture_is_a_png_and_goes_with_its_acknowledgement(
    home: Path, service: CloudService, undisturbed: bytes
) -> None:
    with Image.open(io.BytesIO(undisturbed)) as image:
        assert image.size == (SIZES.size, SIZES.size)
        assert len(image.convert("RGB").getcolors(2**24) or ()) > 100
    drawing = Drawing(service, "acknowledged")
    drawing.read()
    assert drawing.png() == undisturbed
    drawing.say("ack", after=drawing.place, done=True)  # "undisturbed" has the same bytes, which stay
    assert drawing.png() == undisturbed
    Drawing(service, "undisturbed").say("ack", after=drawing.place, done=True)
    assert [*(home / "cloud-blobs").glob("*/*")] == []


def test_a_cloud_killed_in_the_middle_draws_the_same_picture_and_bills_it_once(
    home: Path, service: CloudService, undisturbed: bytes
) -> None:
    jobs, steps = billed(home)
    drawing = Drawing(service, "killed")
    drawing.read(until=5)
    assert not drawing.final
    service.kill()
    service.start()
    service.wait_ready()
    drawing.read()
    assert (drawing.final["state"], drawing.final["attempt"]) == ("succeeded", 2)
    assert drawing.steps == [*range(STEPS)]
    assert drawing.png() == undisturbed
    assert billed(home) == (jobs + 1, steps + STEPS)


def test_a_cancelled_picture_costs_its_steps_and_the_engine_is_free(
    home: Path, service: CloudService, undisturbed: bytes
) -> None:
    many = 200  # it must not be over before it is cancelled
    jobs, steps = billed(home)
    drawing = Drawing(service, "cancelled", many)
    drawing.read(until=3)
    drawing.say("cancel")
    drawing.read()
    assert (drawing.final["state"], drawing.final.get("blobs", [])) == ("cancelled", [])
    assert 3 <= len(drawing.steps) < many
    assert billed(home) == (jobs + 1, steps + len(drawing.steps))
    after = Drawing(service, "after")
    after.read()
    assert after.png() == undisturbed


def _pipeline(folder: Path) -> Path:
    """In the shape of Stable Diffusion XL: latents are an eighth of a picture in width and height."""
    from tests.fakes import tiny_pipelines  # diffusers takes seconds to import

    tiny_pipelines.sdxl(folder, levels=4)
    return folder / "pipe"


def _drawn(url: str, privacy: str, image: bytes | None = None) -> tuple[np.ndarray[Any, Any], int, Any]:
    """Pixels, bytes of the PNG, receipt; of an edit where an `image` is given."""
    body = {"model": "pictures", "prompt": "cat", "seed": 3, "steps": 4}
    headers = {"x-edgewise-privacy": privacy}
    if image is None:
        answer = httpx.post(f"{url}/v1/images/generations", json=body, headers=headers, timeout=120)
    else:
        form = {name: str(value) for name, value in body.items()}
        files = {"image": ("image.png", image, "image/png")}
        answer = httpx.post(f"{url}/v1/images/edits", data=form, files=files, headers=headers, timeout=120)
    assert answer.status_code == 200, answer.text
    png = base64.b64decode(answer.json()["data"][0]["b64_json"])
    with Image.open(io.BytesIO(png)) as drawn:
        return np.asarray(drawn.convert("RGB")).astype(int), len(png), answer.json()["edgewise"]


def test_latents_come_down_and_are_decoded_here_once_the_model_is_loaded() -> None:
    with paired(pictures=True, make_pictures=_pipeline) as pair:
        finished, size, receipt = _drawn(pair.device.url, "any")  # nothing is loaded here that could decode
        (stage,) = receipt["stages"]
        assert (stage["where"], stage["came_as"], stage["came_bytes"]) == ("cloud", "png", size)
        here, _, receipt = _drawn(pair.device.url, "private")  # which loads it
        assert (receipt["stages"][0]["where"], receipt["stages"][0]["came_as"]) == ("local", None)
        decoded, _, receipt = _drawn(pair.device.url, "any")
        (stage,) = receipt["stages"]
        assert (stage["where"], stage["came_as"]) == ("cloud", "latents")
        assert 4 * 16 * 16 * 2 < stage["came_bytes"] < size / 4
        assert stage["came_bytes"] <= receipt["costs"]["down_bytes"] < size
        assert "decoded here" in stage["segments"][0]["why"]
        assert finished.std() > 1
        assert np.abs(decoded - finished).max() <= 2
        assert np.abs(decoded - here).max() <= 2

        image = encode(np.full((128, 128, 3), 90, np.uint8))
        edited, _, receipt = _drawn(pair.device.url, "any", image)
        assert (receipt["stages"][0]["came_as"], receipt["stages"][0]["steps"]) == (
            "latents",
            3,
        )  # of 4, at strength 0.8
        assert np.abs(edited - _drawn(pair.device.url, "private", image)[0]).max() <= 2
        assert np.abs(edited - decoded).max() > 10
