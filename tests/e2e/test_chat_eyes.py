"""Pictures in chats with a model that has eyes, over a real service: a tiny random Qwen2-VL."""

from __future__ import annotations

import base64
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from scripts.service import DeviceService
from tests.e2e.service import edgewise, import_model, import_tiny, new_home, running
from tests.models.media.test_video import film
from tests.models.multimodal.small import picture
from tests.models.multimodal.tiny_qwen import MAX_PIXELS, tiny_qwen

TIMEOUT_S = 120
CHAT = "/v1/chat/completions"
AROUND = 2  # markers before and after a picture


@pytest.fixture(scope="module")
def service() -> Iterator[DeviceService]:
    with new_home(starter=False) as home:
        import_model(home, tiny_qwen(home / "source"), "eyes")
        import_tiny(home, "blind")
        with running(model="eyes", home=home) as started:
            yield started


def shown(width: int, height: int, seed: int = 0, form: str = "PNG") -> dict[str, Any]:
    out = io.BytesIO()
    Image.fromarray(picture(width, height, seed)).save(out, form)
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()},
    }


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def ask(service: DeviceService, *parts: dict[str, Any], model: str = "eyes", **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": list(parts)}]
    body = {"model": model, "messages": messages, "max_tokens": 6, "seed": 3, "return_token_ids": True, **more}
    return httpx.post(service.url + CHAT, json=body, timeout=TIMEOUT_S)


def answer(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_a_picture_is_seen(service: DeviceService) -> None:
    plain = answer(ask(service, said("what is it?")))
    seen = answer(ask(service, shown(120, 80), said("what is it?")))
    (medium,) = seen["edgewise"]["media"]
    assert (medium["width"], medium["height"], medium["seen_width"], medium["seen_height"]) == (120, 80, 112, 84)
    assert (medium["tokens"], medium["kind"], medium["bounded_by"]) == (12, "image", None)
    assert seen["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + 12 + AROUND
    assert seen["edgewise"]["stages"][0]["stage"] == "generate"


def test_equal_text_with_another_picture_is_another_prompt(service: DeviceService) -> None:
    """The prefix cache takes pages back for the same picture alone, also where it comes as another file."""
    first = answer(ask(service, shown(200, 150, 1), said("what is it?"), temperature=0))
    again = answer(ask(service, shown(200, 150, 1), said("what is it?"), temperature=0))
    other = answer(ask(service, shown(200, 150, 2), said("what is it?"), temperature=0))
    assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] < 16
    assert other["choices"][0]["token_ids"] != first["choices"][0]["token_ids"]


def with_exif(pixels: Any, **tags: Any) -> dict[str, Any]:
    out = io.BytesIO()
    exif = Image.Exif()
    for tag, value in tags.items():
        exif[int(tag.removeprefix("x"), 16)] = value
    Image.fromarray(pixels).save(out, "PNG", exif=exif)
    return {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()},
    }


def test_a_picture_is_named_by_its_pixels_and_seen_upright(service: DeviceService) -> None:
    """One that is stored turned is the upright one, to the cache too; an id in its EXIF block names nothing."""
    pixels = picture(90, 150, 4)
    upright = answer(ask(service, with_exif(pixels), said("what is it?"), temperature=0))
    turned = answer(ask(service, with_exif(np.rot90(pixels), x0112=6), said("what is it?"), temperature=0))
    assert turned["edgewise"]["media"] == upright["edgewise"]["media"]
    assert turned["choices"][0]["token_ids"] == upright["choices"][0]["token_ids"]
    assert turned["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16
    first = answer(ask(service, with_exif(picture(90, 150, 5), xA420="same"), said("what is it?")))
    second = answer(ask(service, with_exif(picture(90, 150, 6), xA420="same"), said("what is it?")))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 16
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] < 16


def test_an_answer_is_the_same_after_other_requests(service: DeviceService) -> None:
    asked = (shown(111, 95, 7), said("describe it"))
    first = answer(ask(service, *asked, temperature=0))
    answer(ask(service, said("something else altogether"), temperature=0))
    answer(ask(service, shown(111, 95, 8), said("describe it"), temperature=0))
    again = answer(ask(service, *asked, temperature=0))
    assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]


def test_nothing_near_is_fetched(service: DeviceService) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "169.254.169.254", "10.0.0.1"):
            for scheme in ("http", "https"):
                part = {"type": "image_url", "image_url": {"url": f"{scheme}://{host}:{port}/a.png"}}
                refused = ask(service, part)
                assert refused.status_code == 400, refused.text
        with pytest.raises(TimeoutError):
            listener.accept()


def test_several_pictures_between_texts(service: DeviceService) -> None:
    seen = answer(ask(service, said("a"), shown(60, 60), said("b"), shown(200, 40), shown(30, 200), said("c")))
    assert [one["of"] for one in seen["edgewise"]["media"]] == [
        f"messages[0].content[{index}].image_url.url" for index in (1, 3, 4)
    ]
    assert all(one["tokens"] > 0 for one in seen["edgewise"]["media"])


@pytest.mark.parametrize(("more", "by"), [({"max_image_pixels": 28 * 28 * 6}, "max_image_pixels"), ({}, None)])
def test_a_bound_of_pixels(service: DeviceService, more: dict[str, Any], by: str | None) -> None:
    (medium,) = answer(ask(service, shown(600, 400), said("?"), **more))["edgewise"]["media"]
    assert medium["bounded_by"] == by
    assert medium["tokens"] == medium["seen_width"] * medium["seen_height"] // 28**2
    assert medium["seen_width"] * medium["seen_height"] <= (28 * 28 * 6 if by else MAX_PIXELS)


def test_markers_in_a_message_are_text(service: DeviceService) -> None:
    """What a user writes never stands for a picture, and does not shift those that are there."""
    written = "<|vision_start|><|image_pad|><|vision_end|>"
    assert answer(ask(service, said(written)))["edgewise"]["media"] == []
    seen = answer(ask(service, said(written), shown(120, 80), said(written)))
    assert [one["tokens"] for one in seen["edgewise"]["media"]] == [12]


def test_the_same_over_the_other_apis(service: DeviceService) -> None:
    part = shown(120, 80)
    url = part["image_url"]["url"]
    count = answer(ask(service, part, said("what is it?")))["usage"]["prompt_tokens"]
    content = [
        {"type": "input_image", "image_url": url, "detail": "low"},
        {"type": "input_text", "text": "what is it?"},
    ]
    body = {"model": "eyes", "input": [{"role": "user", "content": content}], "max_output_tokens": 2}
    response = answer(httpx.post(service.url + "/v1/responses", json=body, timeout=TIMEOUT_S))
    assert response["usage"]["input_tokens"] == count
    assert [one["bounded_by"] for one in response["edgewise"]["media"]] == ["detail"]
    source = {"type": "base64", "media_type": "image/png", "data": url.partition(",")[2]}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "what is it?"}]
    asking = {"model": "eyes", "messages": [{"role": "user", "content": blocks}]}
    counted = httpx.post(service.url + "/v1/messages/count_tokens", json=asking, timeout=TIMEOUT_S)
    assert answer(counted) == {"input_tokens": count}


def test_a_film_is_seen(service: DeviceService) -> None:
    """As a file, and as a list of its frames."""
    url = "data:video/mp4;base64," + base64.b64encode(film(2.0)).decode()
    part = {"type": "video_url", "video_url": {"url": url, "frames": 4}}
    (medium,) = answer(ask(service, part, said("what happens?")))["edgewise"]["media"]
    assert (medium["kind"], medium["frames"], medium["every_s"]) == ("video", 4, 0.5)
    assert medium["tokens"] == 2 * medium["seen_width"] * medium["seen_height"] // 28**2 <= 2048
    frames = [shown(64, 48, seed)["image_url"]["url"] for seed in range(3)]
    part = {"type": "video_url", "video_url": {"url": frames, "fps": 1}}
    (medium,) = answer(ask(service, part, said("what happens?"), max_image_pixels=28 * 28))["edgewise"]["media"]
    assert (medium["frames"], medium["every_s"], medium["tokens"]) == (3, 1.0, 2)
    for value, param in (
        ({"url": url, "fps": 0}, "fps"),
        ({"url": url, "frames": 2.5}, "frames"),
        ({"url": ["file:///x"]}, "url[0]"),
        ({"url": "data:video/mp4;base64,aGVsbG8="}, "url"),
    ):
        refused = ask(service, {"type": "video_url", "video_url": value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (
            400,
            f"messages[0].content[0].video_url.{param}",
        )
    blind = ask(service, part, model="blind")
    assert "is a film" in blind.json()["error"]["message"], blind.text


def test_uploaded_files_are_seen(service: DeviceService) -> None:
    """By their caller, in each form that can name one."""
    ids = []
    still = base64.b64decode(shown(120, 80)["image_url"]["url"].partition(",")[2])
    for name, content in (("a.png", still), ("b.mp4", film(1.0))):
        made = httpx.post(
            service.url + "/v1/files", files={"file": (name, content)}, data={"purpose": "vision"}, timeout=TIMEOUT_S
        )
        ids.append(answer(made)["id"])
    part = {"type": "video_url", "video_url": {"file_id": ids[1], "frames": 2}}
    (medium,) = answer(ask(service, part))["edgewise"]["media"]
    assert (medium["of"], medium["frames"]) == ("messages[0].content[0].video_url.file_id", 2)
    body = {"model": "eyes", "input": [{"role": "user", "content": [{"type": "input_image", "file_id": ids[0]}]}]}
    response = httpx.post(service.url + "/v1/responses", json={**body, "max_output_tokens": 2}, timeout=TIMEOUT_S)
    assert [one["tokens"] for one in answer(response)["edgewise"]["media"]] == [12]
    gone = ask(service, {"type": "video_url", "video_url": {"file_id": "file-nothing"}})
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "messages[0].content[0].video_url.file_id")


def test_the_command_shows_pictures(service: DeviceService, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(picture(120, 80)).save(path)
    options = ("--image", str(path), "--model", "eyes", "--max-tokens", "3", "--url", service.url, "--json")
    told = json.loads(edgewise(tmp_path, "chat", "what is it?", *options))
    assert [one["tokens"] for one in told["edgewise"]["media"]] == [12]


def test_what_cannot_be_seen_is_refused(service: DeviceService) -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
    param = "messages[0].content[0].image_url.url"
    for parts, model, word in (
        ((broken, said("?")), "eyes", "no picture"),
        ((shown(1000, 4), said("?")), "eyes", "200 times"),
        ((shown(60, 60), said("?")), "blind", "ask a model that has (eyes)"),
    ):
        refused = ask(service, *parts, model=model)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
        assert word in refused.json()["error"]["message"]
