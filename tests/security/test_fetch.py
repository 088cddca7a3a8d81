from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from edgewise.core.errors import SourceUnavailable
from edgewise.security.fetch import FetchPolicy, UrlRefused, check_url, is_public, open_url
from tests.fakes.model_server import ModelServer, Page, serving

LOOPBACK = FetchPolicy(allow_http=True, private_hosts=frozenset({"127.0.0.1"}), timeout_s=5)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serving() as running:
        yield running


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "198.18.0.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd12:3456::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2001:db8::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)
def test_addresses_that_are_not_the_public_internet(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/x",
        "ftp://example.org/x",
        "file:///etc/passwd",
        "gopher://example.org/",
        "example.org/x",
        "https://",
        "https:///x",
        "https://user:secret@example.org/",
        "https://example.org@127.0.0.1/",
        "https://example.org\\@127.0.0.1/",
        "https://example.org:99999/",
        "https://example.org:0/",
        "https://[::1/",
        "https://exa mple.org/",
        "https://example.org/\r\nHost: x",
        "https://example.org/ü",
        "https://example.org/\0",
        f"https://{'a' * 64}.example/",
        "https://a..example/",
        "",
    ],
)
def test_urls_that_are_never_opened(url: str) -> None:
    with pytest.raises(UrlRefused) as caught:
        open_url(url, FetchPolicy())
    assert caught.value.http_status == 400


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "0x7f.1", "2130706433", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]", "0"]
)
def test_no_spelling_of_loopback_is_opened(host: str, server: ModelServer) -> None:
    with pytest.raises(UrlRefused, match="not a public address"):
        open_url(f"http://{host}:{server.port}/", FetchPolicy(allow_http=True))
    assert server.requests == []


def test_an_allowed_host_allows_no_other_spelling(server: ModelServer) -> None:
    with pytest.raises(UrlRefused):
        open_url(f"http://localhost:{server.port}/", LOOPBACK)


def test_a_name_that_changes_its_answer_gains_nothing(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: public when asked first, loopback when asked again. There is no second question."""
    asked = []

    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        asked.append(host)
        address = "1.1.1.1" if len(asked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    reached = []

    class Recorder(socket.socket):
        def connect(self, address: Any) -> None:
            reached.append(address)
            raise ConnectionRefusedError("a test reaches nobody")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "socket", Recorder)
    with pytest.raises(SourceUnavailable, match="reaches nobody"):
        open_url(f"http://rebind.example:{server.port}/", FetchPolicy(allow_http=True))
    assert asked == ["rebind.example"]
    assert reached == [("1.1.1.1", server.port)]
    assert server.requests == []


def test_one_private_answer_among_public_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (it, port)) for it in ("1.1.1.1", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UrlRefused, match=r"10\.0\.0\.1"):
        open_url("https://mixed.example/", FetchPolicy())


def test_an_answer_is_read(server: ModelServer) -> None:
    server.pages["/x"] = Page(body=b"hello")
    with open_url(server.url("/x?a=b#c"), LOOPBACK, {"X-Own": "1"}) as response:
        assert (response.status, response.read(100), response.read(100)) == (200, b"hello", b"")
    path, headers = server.requests[0]
    assert path == "/x?a=b"
    assert headers["X-Own"] == "1"
    assert headers["Host"] == f"127.0.0.1:{server.port}"


def test_error_statuses_are_returned(server: ModelServer) -> None:
    with open_url(server.url("/none"), LOOPBACK) as response:
        assert response.status == 404


def test_redirects_are_counted(server: ModelServer) -> None:
    server.pages["/loop"] = Page(location="/loop")
    with pytest.raises(SourceUnavailable, match="more than 5 times"):
        open_url(server.url("/loop"), LOOPBACK)
    assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "scheme 'file'"),
        ("http://[", "malformed"),
        ("http://u:p@x/", "no user"),
        ("/\xe9", "ASCII"),
    ],
)
def test_a_redirect_is_checked_like_the_first_url(location: str, message: str, server: ModelServer) -> None:
    server.pages["/x"] = Page(location=location)
    with pytest.raises(UrlRefused, match=message):
        open_url(server.url("/x"), LOOPBACK)


def test_credentials_stay_with_their_origin(server: ModelServer) -> None:
    with serving() as other:
        other.pages["/y"] = Page(body=b"y")
        server.pages["/x"] = Page(location=other.url("/y"))
        with open_url(server.url("/x"), LOOPBACK, {"Authorization": "Bearer secret", "X-Own": "1"}) as response:
            assert response.read(10) == b"y"
        assert server.requests[0][1]["Authorization"] == "Bearer secret"
        assert "Authorization" not in other.requests[0][1]
        assert other.requests[0][1]["X-Own"] == "1"


def test_tls_is_checked_against_the_host(server: ModelServer) -> None:
    policy = FetchPolicy(private_hosts=frozenset({"127.0.0.1"}), timeout_s=5)
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        open_url(f"https://127.0.0.1:{server.port}/", policy)


def test_silence_ends_at_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        policy = FetchPolicy(allow_http=True, private_hosts=frozenset({"127.0.0.1"}), timeout_s=0.1)
        with pytest.raises(SourceUnavailable, match="timed out"):
            open_url(f"http://127.0.0.1:{mute.getsockname()[1]}/", policy)


def test_a_good_url_is_split_without_its_fragment() -> None:
    assert check_url("https://example.org/x?y#z", FetchPolicy()).geturl() == "https://example.org/x?y"


def test_a_name_with_many_addresses_that_do_not_answer_takes_no_longer_than_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Deaf:
        """A socket whose other side never answers."""

        def __init__(self, *_: Any) -> None:
            self.patience_s = 0.0

        def settimeout(self, seconds: float) -> None:
            self.patience_s = seconds

        def connect(self, address: Any) -> None:
            del address
            time.sleep(self.patience_s)
            raise TimeoutError("timed out")

        def close(self) -> None:
            return

    many = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"93.184.216.{last}", 443)) for last in range(1, 41)]
    monkeypatch.setattr("edgewise.security.fetch.socket.getaddrinfo", lambda *_args, **_named: many)
    monkeypatch.setattr("edgewise.security.fetch.socket.socket", Deaf)
    began = time.monotonic()
    with pytest.raises(SourceUnavailable, match="timed out"):
        open_url("https://many.example/x", FetchPolicy(timeout_s=1.0))
    assert time.monotonic() - began < 20.0
