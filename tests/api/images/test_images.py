"""The images API of a real device service, asked by OpenAI's own client."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from edgewise.models.diffusion.starter.tiny import make_tiny_pictures
from edgewise.pipeline.hooks.audit_log import verify_chain
from tests.e2e.service import import_model, import_tiny, new_home, running

SKETCH = """
name = "sketch"
[inputs.idea]
[[stages]]
name = "draw"
kind = "diffuse"
model = "pictures"
input = { prompt = "${idea}" }
"""


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, Path]]:
    """Its address, and the audit trail of its hooks."""
    with new_home(starter=False) as home:
        import_tiny(home)
        folder = make_tiny_pictures(home / "source")
        import_model(home, folder, "pictures", "diffusion")
        (home / "words.txt").write_text("zebra\n")
        (home / "pipelines").mkdir()
        (home / "pipelines" / "sketch.toml").write_text(SKETCH)
        hooks = {
            "EDGEWISE_HOOKS__ENABLED": "word-filter,audit-log",
            "EDGEWISE_HOOKS__OPTIONS": "word-filter.file=words.txt",
        }
        with running(model="tiny", home=home, environment=hooks) as device:
            yield device.url, home / "audit.jsonl"


@pytest.fixture(scope="module")
def url(service: tuple[str, Path]) -> str:
    return service[0]


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=120)


def picture(text: str | None) -> Image.Image:
    assert text is not None
    opened = Image.open(io.BytesIO(base64.b64decode(text)))
    opened.load()
    return opened


def png(colour: str = "red", size: tuple[int, int] = (20, 30)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def test_a_pictures_plan_is_told_and_its_receipt_stored(url: str) -> None:
    body = {"model": "pictures", "prompt": "a red cat", "size": "16x16", "n": 2}
    told = httpx.post(f"{url}/edgewise/v1/plan", json=body, timeout=60).json()
    assert [(stage["stage"], stage["where"]) for stage in told["stages"]] == [("diffuse", "local")]
    receipt = httpx.post(f"{url}/v1/images/generations", json=body, timeout=120).json()["edgewise"]
    stored = httpx.get(f"{url}/edgewise/v1/receipts/{receipt['request_id']}", timeout=60).json()
    assert stored["receipt"] == receipt
    assert (stored["state"], stored["real_ms"]) == ("done", receipt["total_ms"])
    assert receipt["total_ms"] > 0


def test_pictures_are_drawn_by_seed(client: openai.OpenAI) -> None:
    first = client.images.generate(model="pictures", prompt="a red cat", n=2, extra_body={"seed": 7})
    again = client.images.generate(prompt="a red cat", size="16x16", extra_body={"seed": 7})
    assert first.data is not None
    assert again.data is not None
    pictures = [picture(image.b64_json) for image in first.data]
    assert [one.size for one in pictures] == [(16, 16)] * 2
    near = np.asarray(pictures[0], int) - np.asarray(picture(again.data[0].b64_json), int)
    assert np.abs(near).max() <= 2
    assert first.model_extra is not None
    receipt = first.model_extra["edgewise"]
    (stage,) = receipt["stages"]
    assert (stage["where"], stage["steps"], stage["computed_steps"]) == ("local", 4, 8)
    assert receipt["seeds"][0] == 7
    second = client.images.generate(prompt="a red cat", extra_body={"seed": receipt["seeds"][1]})
    assert second.data is not None
    near = np.asarray(pictures[1], int) - np.asarray(picture(second.data[0].b64_json), int)
    assert np.abs(near).max() <= 2


@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
def test_formats(client: openai.OpenAI, form: str) -> None:
    answer = client.images.generate(prompt="a dog", output_format=form)
    assert picture(answer.data[0].b64_json).format == form.upper()


def test_a_stream_has_partial_pictures_and_ends_with_the_receipt(client: openai.OpenAI) -> None:
    events = list(client.images.generate(prompt="a dog", stream=True, partial_images=2))
    kinds = ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [event.type for event in events] == kinds
    assert all(picture(event.b64_json).size == (16, 16) for event in events)
    assert events[-1].model_extra is not None
    assert events[-1].model_extra["edgewise"]["stages"][0]["steps"] == 4


def test_an_edit_keeps_what_the_mask_keeps(client: openai.OpenAI) -> None:
    mask = Image.new("RGBA", (20, 20), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (0, 0, 10, 20))  # the left half is drawn anew
    out = io.BytesIO()
    mask.save(out, "PNG")
    answer = client.images.edit(
        image=("a.png", png("red", (20, 20))),
        mask=("m.png", out.getvalue()),
        prompt="a blue house",
        extra_body={"seed": 1},
    )
    assert answer.data is not None
    pixels = np.asarray(picture(answer.data[0].b64_json), int)
    assert np.abs(pixels[:, 9:] - np.array([255, 0, 0])).max() <= 2
    assert np.abs(pixels[:, :7] - np.array([255, 0, 0])).max() > 20


@pytest.mark.parametrize(
    ("fields", "named", "says"),
    [
        ({"size": "600x600"}, "size", "16x16"),
        ({"size": "large"}, "size", "WIDTHxHEIGHT"),
        ({"n": 11}, "n", "at most 10"),
        ({"quality": "hd"}, "quality", "steps"),
        ({"background": "transparent"}, "background", "transparent"),
        ({"response_format": "url"}, "response_format", "b64_json"),
        ({"style": "vivid"}, "style", "prompt"),
        ({"partial_images": 1}, "partial_images", "stream"),
        ({"output_compression": 50}, "output_compression", "jpeg"),
        ({"steps": 1000}, "steps", "200"),
        ({"prompt": ""}, "prompt", "refused"),
        ({"unknown": 1}, "unknown", "remove"),
        ({"model": "tiny"}, "model", "is for text"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(url: str, fields: dict[str, object], named: str, says: str) -> None:
    answer = httpx.post(f"{url}/v1/images/generations", json={"prompt": "x", **fields}, timeout=60)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, named)
    assert says in error["message"]


def test_a_text_model_is_asked_for_text_only(url: str) -> None:
    body = {"model": "pictures", "messages": [{"role": "user", "content": "hi"}]}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "is for drawing pictures" in answer.json()["error"]["message"]


def bomb() -> bytes:
    """A PNG of some 60 bytes that says it is 30,000 x 30,000."""
    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\x00" * 16


def broken_exif() -> bytes:
    whole = png()
    junk = b"\xff" * 40
    chunk = struct.pack(">I", len(junk)) + b"eXIf" + junk + struct.pack(">I", zlib.crc32(b"eXIf" + junk))
    return whole[:33] + chunk + whole[33:]


@pytest.mark.parametrize(
    ("image", "status"), [(bomb(), 400), (png()[:-60], 400), (b"hello", 400), (b"", 400), (broken_exif(), 200)]
)
def test_hostile_pictures(url: str, image: bytes, status: int) -> None:
    answer = httpx.post(f"{url}/v1/images/edits", data={"prompt": "x"}, files={"image": ("a.png", image)}, timeout=60)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["param"] == "image"


def test_the_engine_decodes_pictures_not_the_service(url: str) -> None:
    def named(size: str, image: bytes, mask: bytes) -> str:
        files = {"image": ("a.png", image), "mask": ("m.png", mask)}
        answer = httpx.post(f"{url}/v1/images/edits", data={"prompt": "x", "size": size}, files=files, timeout=60)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"]["param"])

    assert named("600x600", png()[:-60], png()) == "size", (
        "what only the engine knows is said before the picture is read"
    )
    assert named("16x16", png()[:-60], png()) == "image"
    assert named("16x16", png(), png()[:-60]) == "mask"


@pytest.mark.parametrize("way", ["words", "negative", "edit", "pipeline"])
def test_a_word_filter_sees_every_prompt(url: str, way: str) -> None:
    images, bad = f"{url}/v1/images", "a Zebra"
    if way == "edit":
        answer = httpx.post(f"{images}/edits", data={"prompt": bad}, files={"image": ("a.png", png())}, timeout=60)
    elif way == "pipeline":
        answer = httpx.post(f"{url}/edgewise/v1/pipelines/sketch", json={"input": {"idea": bad}}, timeout=60)
    else:
        body = {"prompt": bad} if way == "words" else {"prompt": "x", "negative_prompt": bad}
        answer = httpx.post(f"{images}/generations", json=body, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter"), answer.text


def test_a_word_filter_sees_the_prompts_of_jobs(url: str) -> None:
    job = {"url": "/v1/images/generations", "body": {"prompt": "a zebra"}}
    path = f"{url}/edgewise/v1/jobs/{httpx.post(f'{url}/edgewise/v1/jobs', json=job, timeout=60).json()['id']}"
    deadline = time.monotonic() + 60
    while (state := httpx.get(path).json())["state"] in ("queued", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert state["state"] == "rejected", state
    assert "content_filter" in json.dumps(state)


def test_the_audit_trail_tells_of_pictures(service: tuple[str, Path]) -> None:
    url, trail = service
    answer = httpx.post(f"{url}/v1/images/generations", json={"prompt": "a dog", "n": 2}, timeout=60).json()
    assert httpx.post(f"{url}/v1/images/generations", json={"prompt": "a zebra"}, timeout=60).status_code == 400
    assert verify_chain(trail) > 0
    *_, asked, answered, refused = (json.loads(line) for line in trail.read_text().splitlines())
    assert [asked["event"], answered["event"], refused["event"]] == ["asked", "answered", "refused"]
    assert asked["request_id"] == answered["request_id"] == answer["edgewise"]["request_id"]
    digests = [hashlib.sha256(base64.b64decode(one["b64_json"])).hexdigest() for one in answer["data"]]
    assert [(one["finish"], one["sha256"]) for one in answered["answers"]] == [("done", digest) for digest in digests]
    assert (answered["outcome"], refused["outcome"]) == ("completed", "content_filter")


def test_the_step_cache_computes_fewer_steps(url: str) -> None:
    body = {"prompt": "a dog", "steps": 50, "step_cache": 1}
    receipt = httpx.post(f"{url}/v1/images/generations", json=body, timeout=60).json()["edgewise"]
    assert receipt["stages"][0]["steps"] == 50
    assert receipt["stages"][0]["computed_steps"] < 40


def test_two_requests_at_once_are_both_answered(client: openai.OpenAI) -> None:
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda prompt: client.images.generate(prompt=prompt), ("a cat", "a dog")))
    assert all(answer.data for answer in answers)


def test_a_client_that_leaves_ends_its_picture(url: str, client: openai.OpenAI) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/images/generations", json={"prompt": "x", "steps": 200, "n": 10}, timeout=0.2)
    deadline = time.monotonic() + 120
    while any(model["active"] for model in httpx.get(f"{url}/edgewise/v1/models").json()["models"]):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert client.images.generate(prompt="after").data


def test_the_pool_shows_the_model(url: str, client: openai.OpenAI) -> None:
    assert "pictures" in {model.id for model in client.models.list()}
    states = {model["name"]: model["state"] for model in httpx.get(f"{url}/edgewise/v1/models").json()["models"]}
    assert states["pictures"] == "loaded"
