"""Sessions, forms, sockets and headers, asked as a program would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from edgewise.cloud.console.app import own_path
from tests.e2e.console.child import Child, child
from tests.fakes.fleet_people import PASSWORD

HTML = {"accept": "text/html"}
UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
SOCKET = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"


@pytest.fixture
def client(console: Child) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=console.url, timeout=60) as opened:
        yield opened


def form_of(page: httpx.Response) -> str:
    found = re.search(r'name="form" value="([^"]+)"', page.text)
    assert found
    return found[1]


def log_in(client: httpx.Client, **changes: str) -> httpx.Response:
    form = form_of(client.get("/login"))
    headers = {"origin": changes.pop("origin")} if "origin" in changes else {}
    body = {"name": "ada", "password": PASSWORD, "form": form, "next": "/alerts", **changes}
    return client.post("/login", data=body, headers=headers)


def test_without_a_session_there_is_only_the_login(client: httpx.Client) -> None:
    there = client.get("/devices?query=state:offline", headers=HTML)
    assert there.status_code == 303
    assert there.headers["location"] == "/login?next=%2Fdevices%3Fquery%3Dstate%3Aoffline"
    for path in ("/", "/devices", "/nothing-here", "/_nicegui_ws/socket.io/?EIO=4&transport=polling"):
        assert client.get(path).status_code in (401, 403), path
    assert client.get("/console/audit.jsonl").headers["location"] == "/login"


def test_log_in_and_out(client: httpx.Client) -> None:
    answer = log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/alerts")
    cookie = next(value for value in answer.headers.get_list("set-cookie") if value.startswith("edgewise_session"))
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    page = client.get("/alerts", headers=HTML)
    assert page.status_code == 200
    assert client.post("/logout", data={"form": "guessed"}).status_code == 303
    client.cookies.set("edgewise_session", re.match(r"edgewise_session=([^;]+)", cookie)[1])  # type: ignore[index]
    assert client.get("/alerts", headers=HTML).status_code == 200, "a form without its secret ends no session"
    form = re.search(r'logout.*?"value":"([0-9a-f]{64})"', page.text, re.DOTALL)
    assert form
    client.post("/logout", data={"form": form[1]})
    client.cookies.set("edgewise_session", re.match(r"edgewise_session=([^;]+)", cookie)[1])  # type: ignore[index]
    assert client.get("/alerts", headers=HTML).status_code == 303, "the session has ended, whoever has its cookie"


def test_a_login_form_of_another_page_is_refused(client: httpx.Client) -> None:
    assert log_in(client, form="not the one in the cookie").status_code == 403
    assert log_in(client, origin="https://evil.example").status_code == 403
    assert "edgewise_session" not in client.cookies


def test_wrong_passwords_are_told_kindly_and_limited() -> None:
    with child("tests.fakes.fleet_console", "0", "1") as own, httpx.Client(base_url=own.url, timeout=60) as client:
        wrong = log_in(client, password="wrong")
        assert wrong.status_code == 401
        assert "Name or password is wrong." in wrong.text
        assert 'value="ada"' in wrong.text, "the name need not be typed again"
        for _ in range(10):
            last = log_in(client, password="wrong")
        assert last.status_code == 429
        assert "in about 10 minutes" in last.text


@pytest.mark.parametrize(
    ("asked", "there"),
    [
        ("/devices/d1?x=1", "/devices/d1?x=1"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/\\evil.example/", "/"),
        ("/login", "/"),
        ("/a\r\nset-cookie: x=1", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_pages_of_this_service_only(asked: str, there: str) -> None:
    assert own_path(asked) == there


def test_what_was_typed_is_text_in_the_login_page(client: httpx.Client) -> None:
    page = log_in(client, name='"><script>alert(1)</script>', password="wrong")
    assert "<script>alert" not in page.text


def test_pages_allow_scripts_of_this_service_and_of_their_own_nonce(client: httpx.Client) -> None:
    log_in(client)
    pages = [client.get("/", headers=HTML) for _ in range(2)]
    policy = dict(part.strip().split(" ", 1) for part in pages[0].headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert "'unsafe-inline'" not in policy["script-src"]
    assert policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    nonces = [re.search(r"'nonce-([^']+)'", page.headers["content-security-policy"])[1] for page in pages]  # type: ignore[index]
    assert nonces[0] != nonces[1]
    assert pages[0].text.count("<script") == pages[0].text.count(f'<script nonce="{nonces[0]}"')
    for name, value in {
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-store",
    }.items():
        assert pages[0].headers[name] == value


def test_a_socket_needs_the_session_and_the_origin_of_its_page(client: httpx.Client, console: Child) -> None:
    host = urlsplit(console.url).netloc
    own = {**UPGRADE, "origin": f"http://{host}"}
    assert client.get(SOCKET, headers=own).status_code == 403
    log_in(client)
    page = client.get("/", headers=HTML)
    id = re.search(r"['\"]client_id['\"]: ?['\"]([0-9a-f-]{36})", page.text)
    assert id
    mine = f"{SOCKET}&client_id={id[1]}"
    assert client.get(mine, headers={**UPGRADE, "origin": "https://evil.example"}).status_code == 403
    assert client.get(mine, headers=UPGRADE).status_code == 403, "a browser always says its origin"
    with client.stream("GET", mine, headers=own) as answer:
        assert answer.status_code == 101
    with httpx.Client(base_url=console.url, timeout=60) as other:
        log_in(other, name="vera")
        assert other.get(mine, headers=own).status_code == 403, "a page belongs to the session that asked for it"


def test_the_audit_log_is_exported_whole(client: httpx.Client) -> None:
    log_in(client)
    lines = client.get("/console/audit.jsonl").text.splitlines()
    assert len(lines) == 240
    client.cookies.clear()
    log_in(client, name="vera")
    assert client.get("/console/audit.jsonl").status_code == 403


def test_assets_are_those_of_the_package_only(client: httpx.Client) -> None:
    assert "--accent" in client.get("/console/assets/console.css").text
    for name in ("login.html", "nothing.js"):
        assert client.get(f"/console/assets/{name}").status_code == 404
