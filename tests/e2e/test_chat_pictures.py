"""Pictures in chats with a language model without eyes, over a real service: pulled models look for it."""

from __future__ import annotations

import base64
from typing import Any

import httpx
from PIL import Image, ImageDraw, ImageFont

from tests.e2e.service import import_tiny, new_home, running
from tests.e2e.vision import add_vision, png

TIMEOUT_S = 120
LABEL = ("Olive oil", "Best before 06/2027")


def label() -> bytes:
    """A drawn label."""
    page = Image.new("RGB", (640, 240), "white")
    font = ImageFont.load_default(40)
    for number, line in enumerate(LABEL):
        ImageDraw.Draw(page).text((40, 40 + 90 * number), line, font=font, fill="black")
    return png(page)


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def asked(url: str, **image: Any) -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": url, **image}}
    return [{"role": "user", "content": [part, {"type": "text", "text": "what does this label say?"}]}]


def chat(service: str, model: str, messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
    body = {"model": model, "messages": messages, "max_tokens": 4, "return_token_ids": True, **more}
    return httpx.post(f"{service}/v1/chat/completions", json=body, timeout=TIMEOUT_S)


def told_the_same(service: str, model: str, count: int) -> None:
    """The same conversation in words has the same prompt: all of its full pages are in the prefix cache."""
    shown = {"image": data_url(label()), "top": 3}
    labels = httpx.post(f"{service}/edgewise/v1/vision/classify", json=shown, timeout=TIMEOUT_S).json()["labels"]
    names = [one["name"] for one in labels if one["score"] >= 0.2]
    shows = [f"It shows: {', '.join(names)}."] if names else []
    words = "\n".join(["A picture. Text in it:", *LABEL, *shows, "what does this label say?"])
    usage = chat(service, model, [{"role": "user", "content": words}]).json()["usage"]
    assert usage["prompt_tokens"] == count
    assert usage["prompt_tokens_details"]["cached_tokens"] >= (count - 1) // 16 * 16 > 48


def other_forms(service: str, model: str, count: int) -> None:
    """The Responses API and Anthropic's messages show the same picture."""
    text = {"type": "input_text", "text": "what does this label say?"}
    parts = [{"type": "input_image", "image_url": data_url(label())}, text]
    body = {"model": model, "input": [{"role": "user", "content": parts}], "max_output_tokens": 4}
    answer = httpx.post(f"{service}/v1/responses", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["input_tokens"] == count
    more = {**body, "previous_response_id": answer.json()["id"], "input": "and now?"}
    again = httpx.post(f"{service}/v1/responses", json=more, timeout=TIMEOUT_S)
    assert again.status_code == 200, again.text
    assert [one["of"] for one in again.json()["edgewise"]["media"]] == ["previous_response_id.content[0].image_url"]
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(label()).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what does this label say?"}]
    asking = {"model": model, "messages": [{"role": "user", "content": content}]}
    counted = httpx.post(f"{service}/v1/messages/count_tokens", json=asking, timeout=TIMEOUT_S)
    assert counted.json() == {"input_tokens": count}
    message = httpx.post(f"{service}/v1/messages", json={**asking, "max_tokens": 4}, timeout=TIMEOUT_S)
    assert message.status_code == 200, message.text
    assert message.json()["usage"]["input_tokens"] + message.json()["usage"]["cache_read_input_tokens"] == count


def test_a_model_without_eyes_is_told_what_is_in_a_picture() -> None:
    with new_home(starter=False) as home:
        add_vision(home)
        name = import_tiny(home, context=2048)
        with running(model=name, home=home) as service:
            answer = chat(service.url, name, asked(data_url(label())))
            assert answer.status_code == 200, answer.text
            receipt = answer.json()["edgewise"]
            looks = [stage for stage in receipt["stages"] if stage["stage"] == "look"]
            assert {look["model"] for look in looks} == {"rapidocr", "efficientnet-lite0"}
            assert {look["of"] for look in looks} == {"messages[0].content[0].image_url.url"}
            assert any("has no eyes" in warning and "'rapidocr'" in warning for warning in receipt["warnings"])
            (medium,) = receipt["media"]
            assert (medium["width"], medium["height"], medium["tokens"]) == (640, 240, 0)
            told_the_same(service.url, name, answer.json()["usage"]["prompt_tokens"])
            other_forms(service.url, name, answer.json()["usage"]["prompt_tokens"])
            for body, status, param in (
                (asked("file:///etc/hostname"), 400, "messages[0].content[0].image_url.url"),
                (asked("/etc/hostname"), 400, "messages[0].content[0].image_url.url"),
                (asked("https://127.0.0.1/x.png"), 400, "messages[0].content[0].image_url.url"),
                (asked(data_url(b"no picture")), 400, "messages[0].content[0].image_url.url"),
                (asked(data_url(label()), detail="best"), 400, "messages[0].content[0].image_url.detail"),
            ):
                refused = chat(service.url, name, body)
                assert (refused.status_code, refused.json()["error"]["param"]) == (status, param), refused.text
