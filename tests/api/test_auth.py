"""Who gets what: keys, scopes, addresses, host names, origins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message

from edgewise.api.deps import Access
from edgewise.core.priority import PriorityName
from edgewise.core.privacy import PrivacyName
from tests.api.harness import CHAT, LOOPBACK, Api, error_of, hello, make_api

REMOTE = "http://192.0.2.7:8400"
PATHS = ["/", "/v1/models", CHAT, "/metrics", "/edgewise/v1/memory", "/openapi.json", "/docs", "/nope", "/healthz/x"]


@dataclass(frozen=True)
class Record:
    id: str
    name: str
    scopes: frozenset[str] = frozenset({"inference"})
    priority: PriorityName = "interactive"
    privacy: PrivacyName | None = None
    device: str | None = None


@dataclass
class Keys:
    """A test double of the key store."""

    records: dict[str, Record] = field(
        default_factory=lambda: {
            "good": Record("1", "app"),
            "other": Record("2", "other"),
            "admin": Record("3", "boss", frozenset({"admin"})),
            "scraper": Record("4", "scraper", frozenset({"metrics"})),
        }
    )

    def verify(self, token: str, /) -> Record | None:
        return self.records.get(token)


def guarded(base: str = LOOPBACK, key: str | None = None, **access: Any) -> Api:
    api = make_api(base=base, keys=Keys(), access=Access(**access))
    if key is not None:
        api.headers["authorization"] = f"Bearer {key}"
    return api


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "HEAD"])
async def test_from_elsewhere_nothing_but_health_without_a_key(method: str, path: str) -> None:
    response = await guarded(REMOTE).request(method, path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    if method != "HEAD":
        assert error_of(response)["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_open(path: str) -> None:
    assert (await guarded(REMOTE).get(path)).status_code == 200
    assert (await guarded(REMOTE).request("HEAD", path)).status_code == 200


@pytest.mark.parametrize("base", [REMOTE, "http://[2001:db8::1]:8400", "http://printer:8400", "http://0.0.0.0:8400"])
async def test_an_address_that_is_not_loopback_for_sure_needs_a_key(base: str) -> None:
    assert (await guarded(base).get("/v1/models")).status_code == 401


@pytest.mark.parametrize("base", ["http://127.0.0.1:8400", "http://127.9.9.9:1", "http://[::1]:8400"])
async def test_loopback_needs_none(base: str) -> None:
    assert (await guarded(base).get("/v1/models")).status_code == 200


async def test_loopback_needs_one_when_the_configuration_says_so() -> None:
    assert (await guarded(require_key=True).get("/v1/models")).status_code == 401
    assert (await guarded(require_key=True, key="good").get("/v1/models")).status_code == 200


@pytest.mark.parametrize("header", ["forwarded", "x-forwarded-for", "x-real-ip", "x-forwarded-host"])
async def test_what_a_proxy_passes_on_counts_as_from_elsewhere(header: str) -> None:
    assert (await guarded().get("/v1/models", headers={header: "192.0.2.9"})).status_code == 401
    assert (await guarded(key="good").get("/v1/models", headers={header: "192.0.2.9"})).status_code == 200


@pytest.mark.parametrize("base", [LOOPBACK, REMOTE])
@pytest.mark.parametrize("value", ["Bearer wrong", "bearer wrong", "Basic Z29vZA==", "good", "Bearer good good"])
async def test_a_wrong_key_is_refused_everywhere(base: str, value: str) -> None:
    api = guarded(base)
    response = await api.get("/v1/models", headers={"authorization": value})
    assert response.status_code == 401
    assert (await make_api(base=base).get("/v1/models", headers={"authorization": value})).status_code == 401


@pytest.mark.parametrize("value", ["Bearer", "Bearer ", "bearer   ", "Bearer unused", "Bearer none", "Bearer EMPTY"])
async def test_an_empty_key_is_no_key(value: str) -> None:
    assert (await guarded().get("/v1/models", headers={"authorization": value})).status_code == 200
    assert (await guarded(REMOTE).get("/v1/models", headers={"authorization": value})).status_code == 401


@pytest.mark.parametrize(
    ("key", "allowed"),
    [
        ("good", {"/v1/models", "/openapi.json"}),
        ("scraper", {"/metrics", "/openapi.json"}),
        ("admin", {"/v1/models", "/metrics", "/edgewise/v1/memory", "/edgewise/v1/requests", "/openapi.json"}),
    ],
)
@pytest.mark.parametrize("base", [LOOPBACK, REMOTE])
async def test_scopes(base: str, key: str, allowed: set[str]) -> None:
    api = guarded(base, key)
    for path in ("/v1/models", "/metrics", "/edgewise/v1/memory", "/edgewise/v1/requests", "/openapi.json"):
        response = await api.get(path)
        assert response.status_code == (200 if path in allowed else 403), path
        if response.status_code == 403:
            assert error_of(response)["code"] == "permission_denied"


async def test_a_refused_body_is_not_read() -> None:
    api = guarded(REMOTE)
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "server": ("192.0.2.7", 8400),
        "client": ("192.0.2.8", 1),
    }
    await api.app(scope, receive, send)
    assert sent[0]["status"] == 401


@pytest.mark.parametrize(("server", "status"), [(("/run/edgewise.sock", None), 200), (None, 401), (("x", None), 401)])
async def test_a_unix_socket_is_local_and_an_unknown_address_is_not(server: Any, status: int) -> None:
    api = guarded()
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/v1/models",
        "raw_path": b"/v1/models",
        "query_string": b"",
        "headers": [],
        "server": server,
    }
    await api.app(scope, receive, send)
    assert sent[0]["status"] == status


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8400", "localhost.evil.example", "192.0.2.7", "[2001:db8::1]"]
)
async def test_a_strange_host_name_is_refused_to_callers_without_a_key(host: str) -> None:
    response = await guarded().get("/v1/models", headers={"host": host})
    assert response.status_code == 421
    assert error_of(response)["code"] == "host_not_allowed"
    assert (await guarded(key="good").get("/v1/models", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8400", "localhost.", "127.0.0.1:1", "[::1]:8400", "box.lan:8400"]
)
async def test_names_of_this_machine_are_fine(host: str) -> None:
    api = guarded(allowed_hosts=("box.lan",))
    assert (await api.get("/v1/models", headers={"host": host})).status_code == 200


async def test_no_origin_is_allowed_by_default() -> None:
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    for method, path in (("GET", "/v1/models"), ("OPTIONS", CHAT)):
        response = await guarded().request(method, path, headers=headers)
        assert not [name for name in response.headers if name.startswith("access-control")]


async def test_a_listed_origin_gets_its_preflight_and_its_header_but_still_needs_a_key() -> None:
    api = guarded(REMOTE, allowed_origins=("https://app.example",))
    origin = {"origin": "https://app.example"}
    preflight = await api.request("OPTIONS", CHAT, headers=origin | {"access-control-request-method": "POST"})
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    refused = await api.get("/v1/models", headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    asked = origin | {"authorization": "Bearer good", "x-edgewise-receipt": "header"}
    answered = await api.post(CHAT, hello(), headers=asked)
    assert answered.headers["x-edgewise-receipt"]
    readable = answered.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "x-edgewise-receipt", "x-edgewise-model", "x-edgewise-voice"} <= {*readable}
    other = await api.request(
        "OPTIONS", CHAT, headers={"origin": "https://evil.example", "access-control-request-method": "POST"}
    )
    assert other.status_code == 401
    assert "access-control-allow-origin" not in other.headers


async def test_a_page_of_another_origin_cannot_send_what_needs_no_preflight() -> None:
    async def status(origin: str | None, key: str | None = None, method: str = "POST", **access: Any) -> int:
        headers = {"content-type": "multipart/form-data; boundary=b"} | ({"origin": origin} if origin else {})
        api = guarded(key=key, **access)
        response = await api.request(method, "/v1/audio/transcriptions", headers=headers)
        if response.status_code == 403:
            assert error_of(response)["code"] == "origin_not_allowed"
            assert "security.allowed_origins" in error_of(response)["message"]
        return response.status_code

    for origin in ("https://evil.example", "null", "http://127.0.0.1:9000", "http://127.0.0.1:8400.evil.example"):
        assert await status(origin) == 403
        assert await status(origin, "unused") == 403, "a word that stands for no key"
        assert await status(origin, "good") == 400, "pages do not know keys"
        assert await status(origin, method="GET") == 405
        assert await status(origin, allowed_origins=(origin,)) == 400
    assert await status(None) == await status(LOOPBACK) == 400


async def test_every_key_has_prefix_cache_entries_of_its_own() -> None:
    salts = []
    for key in (None, "good", "other"):
        api = guarded(key=key)
        await api.answer(CHAT, hello())
        salts.append(api.engine.requests[0].salt)
    assert len(set(salts)) == 3


async def test_a_websocket_is_refused() -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    await guarded().app({"type": "websocket", "path": "/", "headers": [], "server": ("127.0.0.1", 1)}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
