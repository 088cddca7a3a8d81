"""Bodies that are no JSON, too large, too slow or too deep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgewise.api.body import MAX_DEPTH
from edgewise.api.deps import Limits
from tests.api.harness import CHAT, COMPLETIONS, hello, make_api

both = pytest.mark.parametrize("route", [CHAT, COMPLETIONS])


@both
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"model": "tiny",}',
        b"[]",
        b'"text"',
        b"null",
        b"5",
        b"\xff\xfe{}",
        b'\xef\xbb\xbf{"model": "tiny"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"model": "\\ud800"}',
        b'{"\\udc00": 1}',
        b'{"metadata": {"a": ["\\ud83d"]}}',
        b"[" * 100_000,
        b'{"metadata": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a":' * 100_000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
async def test_what_is_no_json_object_is_refused(route: str, raw: bytes) -> None:
    error = await make_api().refusal(route, raw)
    assert error["code"] == "invalid_json"
    assert len(error["message"]) < 300


async def test_nesting_up_to_the_limit_and_whole_surrogate_pairs_are_fine() -> None:
    nested: Any = "👍"
    for _ in range(MAX_DEPTH - 2):
        nested = [nested]
    raw = json.dumps(hello(metadata=nested)).encode()
    assert b"\\ud83d" in raw
    await make_api().answer(CHAT, raw)


@both
@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "json"])
async def test_another_content_type_is_refused(route: str, kind: str) -> None:
    error = await make_api().refusal(route, json.dumps(hello()).encode(), 415, headers={"content-type": kind})
    assert error["code"] == "unsupported_media_type"


async def test_parameters_of_the_content_type_are_fine() -> None:
    response = await make_api().post(CHAT, hello(), headers={"content-type": "Application/JSON; charset=utf-8"})
    assert response.status_code == 200


@both
async def test_a_body_that_announces_too_much_is_refused_unread(route: str) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"x"

    api = make_api(limits=Limits(max_body_bytes=100))
    headers = {"content-type": "application/json", "content-length": "101"}
    response = await api.request("POST", route, content=body(), headers=headers)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "payload_too_large"
    assert read == 0


@both
async def test_a_body_that_grows_too_large_is_refused_while_it_is_read(route: str) -> None:
    sent = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 40
            yield b" " * 40

    api = make_api(limits=Limits(max_body_bytes=100))
    response = await api.request("POST", route, content=body(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    told = response.json()["error"]["message"]
    assert "(limits.max_body_bytes: 100 bytes): send less, or raise the setting" in told
    assert sent <= 160


async def test_a_body_at_the_limit_is_read() -> None:
    raw = json.dumps(hello()).encode()
    await make_api(limits=Limits(max_body_bytes=len(raw))).answer(CHAT, raw)


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    api = make_api(limits=Limits(body_timeout_s=0.02))
    response = await api.request("POST", CHAT, content=body(), headers={"content-type": "application/json"})
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "request_timeout"
    assert "within 0.02 s: send less" in response.json()["error"]["message"]
    assert api.deps.requests.open == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/v1", 404, "unknown_url"),
        ("POST", "/v1/nothing", 404, "unknown_url"),
        ("GET", "/v1/models/", 404, "model_not_found"),
        ("GET", "/v1/models/..%2F..%2Fx", 404, "model_not_found"),
        ("GET", "/v1/models/%00", 404, "model_not_found"),
        ("GET", "/healthz/", 404, "unknown_url"),
        ("GET", "/docs", 404, "unknown_url"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models/tiny", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("BREW", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_unknown_routes_and_methods_are_refused_in_the_same_shape(
    method: str, path: str, status: int, code: str
) -> None:
    response = await make_api().request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("allow" in response.headers) == (status == 405)


async def test_a_fault_of_ours_is_an_error_body_without_its_secrets() -> None:
    api = make_api()

    def broken() -> None:
        raise RuntimeError("secret detail")

    api.deps.requests.show = broken  # type: ignore[method-assign,assignment]
    response = await api.get("/edgewise/v1/requests")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"].startswith("req_")
