"""What crosses the link of work that is not one plain text request: pictures, batches, deferred jobs, pipelines.

Each kind is asked twice, labelled private and not, with a marker in its prompt that is then looked for in all that has passed the
link (as `tests.accept.cloud_4` does for the text routes): none of the private ones is there, and all of the others.
"""

from __future__ import annotations

import base64
import io
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.accept.cloud_4 import draw, encoder, traffic
from tests.e2e.pair import Pair, paired

HEADER = "x-edgewise-privacy"
PIPELINE = """
name = "mixed"
[inputs.secret]
[inputs.open]

[[stages]]
name = "note"
kind = "generate"
model = "tiny"
privacy = "private"
input = { prompt = "the word ${secret} again" }
options = { max_tokens = 16, ignore_eos = true }

[[stages]]
name = "more"
kind = "generate"
model = "tiny"
input = { prompt = "${note} and ${open}" }
options = { max_tokens = 8, ignore_eos = true }

[[stages]]
name = "drawing"
kind = "diffuse"
model = "pictures"
input = { prompt = "${more}" }

[[stages]]
name = "free"
kind = "generate"
model = "tiny"
input = { prompt = "the word ${open} again" }
options = { max_tokens = 4, ignore_eos = true }
"""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with paired(pictures=True) as made:
        folder = made.device_home / "pipelines"
        folder.mkdir(exist_ok=True)
        (folder / "mixed.toml").write_text(PIPELINE)
        yield made


def post(pair: Pair, path: str, label: str, **content: Any) -> dict[str, Any]:
    answer = httpx.post(f"{pair.device.url}{path}", headers={HEADER: label}, timeout=120, **content)
    assert answer.status_code in (200, 202), answer.text
    told: dict[str, Any] = answer.json()
    return told


def until(pair: Pair, path: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    limit = time.monotonic() + 90
    while not condition(told := httpx.get(f"{pair.device.url}{path}", timeout=60).json()):
        assert time.monotonic() < limit, told
        time.sleep(0.05)
    return dict(told)


def completion(text: str) -> dict[str, Any]:
    return {"model": "tiny", "prompt": f"the word {text} again", "max_tokens": 2}


def ask_picture(pair: Pair, label: str, text: str) -> None:
    post(pair, "/v1/images/generations", label, json={"model": "pictures", "prompt": f"a {text} cat"})


def ask_edit(pair: Pair, label: str, text: str) -> None:
    out = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(out, "PNG")
    form = {"model": "pictures", "prompt": f"a {text} cat"}
    post(pair, "/v1/images/edits", label, data=form, files={"image": ("a.png", out.getvalue(), "image/png")})


def ask_batch(pair: Pair, label: str, text: str) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": completion(text)}
    upload = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", json.dumps(line).encode())}}
    file = post(pair, "/v1/files", label, **upload)["id"]
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = post(pair, "/v1/batches", label, json=body)["id"]
    done = until(pair, f"/v1/batches/{batch}", lambda told: told["status"] in ("completed", "failed"))
    assert done["request_counts"]["completed"] == 1, done


def ask_job(pair: Pair, label: str, text: str) -> None:
    job = post(pair, "/edgewise/v1/jobs", label, json={"url": "/v1/completions", "body": completion(text)})["id"]
    done = until(pair, f"/edgewise/v1/jobs/{job}", lambda told: told["state"] not in ("queued", "running"))
    assert done["state"] == "succeeded", done


def ask_pipeline(pair: Pair, label: str, text: str) -> None:
    post(pair, "/edgewise/v1/pipelines/mixed", label, json={"input": {"secret": "x", "open": text}})


@pytest.mark.parametrize("ask", [ask_picture, ask_edit, ask_batch, ask_job, ask_pipeline])
def test_what_is_labelled_private_stays_whatever_kind_of_work_it_is(
    pair: Pair, ask: Callable[[Pair, str, str], None]
) -> None:
    rng, encode = random.Random(), encoder(pair)
    private, free = draw(rng, encode), draw(rng, encode)
    ask(pair, "private", private.text)
    ask(pair, "any", free.text)
    passed = traffic(pair)
    assert not private.seen(passed)
    assert free.seen(passed)


def test_a_stages_label_goes_with_everything_that_is_made_of_its_output(pair: Pair) -> None:
    rng, encode = random.Random(), encoder(pair)
    secret, free = draw(rng, encode), draw(rng, encode)
    body = {"input": {"secret": secret.text, "open": free.text}}
    told = post(pair, "/edgewise/v1/pipelines/mixed", "any", json=body)
    stages = {stage["name"]: stage for stage in told["edgewise"]["stages"]}
    where = {name: [part["stages"][0]["where"] for part in stage["parts"]] for name, stage in stages.items()}
    assert where == {"note": ["local"], "more": ["local"], "drawing": ["local"], "free": ["cloud"]}
    assert [stages[name]["privacy"] for name in ("note", "more", "drawing", "free")] == ["private"] * 3 + ["any"]
    passed = traffic(pair)
    assert not secret.seen(passed)
    assert free.seen(passed)
    picture = base64.b64decode(told["output"]["drawing"]["pictures"][0]["b64_json"])
    assert picture[50:200] not in passed
