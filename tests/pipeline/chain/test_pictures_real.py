"""Text to picture on a real service: a tiny language model writes, a tiny picture model draws; also as a deferred job."""

from __future__ import annotations

import base64
import io
import time
from typing import Any

import httpx
from PIL import Image

from edgewise.models.diffusion.starter.tiny import make_tiny_pictures
from tests.api.harness import parse_events
from tests.e2e.service import import_model, import_tiny, new_home, running

BODY = {"input": {"idea": "a red cat", "model": "tiny", "picture_model": "pictures"}, "seed": 5}


def picture(shown: dict[str, Any]) -> bytes:
    return base64.b64decode(shown["b64_json"])


def test_a_text_becomes_a_picture_at_once_as_a_stream_and_later() -> None:
    with new_home(starter=False) as home:
        name = import_tiny(home, context=256)
        source = make_tiny_pictures(home / "source")
        import_model(home, source, "pictures", "diffusion")
        with running(model=name, home=home) as service:
            url = f"{service.url}/edgewise/v1/pipelines/illustrate"
            told = httpx.post(url, json=BODY, timeout=120)
            assert told.status_code == 200, told.text
            answer = told.json()
            png = picture(answer["output"]["draw"]["pictures"][0])
            with Image.open(io.BytesIO(png)) as image:
                assert image.format == "PNG"
            assert answer["output"]["write"]["text"]
            assert [(stage["name"], stage["kind"]) for stage in answer["edgewise"]["stages"]] == [
                ("write", "generate"),
                ("draw", "diffuse"),
            ]
            events = parse_events(httpx.post(url, json={**BODY, "stream": True}, timeout=120).text)
            chunks = [one for one in events if isinstance(one, dict) and one["object"] == "edgewise.pipeline.chunk"]
            drawn = [one for one in chunks if one["stage"] == "draw"]
            assert [one["offset"] for one in drawn] == sorted(one["offset"] for one in drawn)
            assert picture(drawn[-1]["picture"]) == png
            assert deferred(service.url, png)


def deferred(url: str, png: bytes) -> bool:
    """The same pipeline, and a picture of its own, as jobs."""
    asked = [
        {"url": "/edgewise/v1/pipelines/illustrate", "body": BODY},
        {"url": "/v1/images/generations", "body": {"model": "pictures", "prompt": "a red cat", "seed": 5}},
    ]
    ids = [httpx.post(f"{url}/edgewise/v1/jobs", json=one, timeout=60).json()["id"] for one in asked]
    limit = time.monotonic() + 120
    while True:
        jobs = [httpx.get(f"{url}/edgewise/v1/jobs/{id}", timeout=60).json() for id in ids]
        if all(job["response"] for job in jobs):
            break
        assert time.monotonic() < limit, jobs
        time.sleep(0.1)
    assert [job["state"] for job in jobs] == ["succeeded", "succeeded"], jobs
    chain, alone = (job["response"]["body"] for job in jobs)
    with Image.open(io.BytesIO(picture(alone["data"][0]))) as image:
        image.load()
    return picture(chain["output"]["draw"]["pictures"][0]) == png
