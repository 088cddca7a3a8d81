"""Pictures from URLs: data URLs decoded, fetches only where the guard lets them, at every hop."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast

import pytest

from edgewise.core.errors import InvalidRequest
from edgewise.models.media.source import read_source
from edgewise.security.fetch import FetchPolicy

NAMED = FetchPolicy(
    private_hosts=frozenset({"localhost"}), http_hosts=frozenset({"localhost", "127.0.0.1"}), remedy="here"
)


class _Files(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        _, port = cast("tuple[str, int]", self.server.server_address)
        if self.path == "/file":
            self._answer(200, b"x" * 1000)
        elif self.path == "/hop":
            self._answer(302, b"", ("Location", "/file"))
        elif self.path == "/away":
            self._answer(302, b"", ("Location", f"http://127.0.0.1:{port}/file"))
        elif self.path == "/elsewhere":
            self._answer(302, b"", ("Location", "file:///etc/passwd"))
        else:
            self._answer(404, b"no")

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Files) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://localhost:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def read(url: str, max_bytes: int = 4096, policy: FetchPolicy | None = NAMED) -> bytes:
    return read_source(url, "image", max_bytes=max_bytes, policy=policy)


def test_data_urls_are_decoded() -> None:
    assert read("data:image/png;base64," + base64.b64encode(b"\x89PNG").decode()) == b"\x89PNG"
    assert read("DATA:;base64,AAAA") == bytes(3)
    assert read("data:,a%20b") == b"a b"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("data:image/png;base64", "without a comma"),
        ("data:image/png;base64,A", "base64 is malformed.*Encode it again"),
        ("data:image/png;base64,\u00e4AAA", "base64 is malformed"),
        ("data:," + "a" * 5000, "more than 0.0 MiB: send it smaller"),
        ("blob:sha256:00", "send a data URL .*or an https URL"),
        ("file:///etc/passwd", "send a data URL"),
        ("x", "send a data URL"),
        ("http://example.com/x.png", "use https"),
        ("https://user:secret@example.com/x.png", "no user or password"),
    ],
)
def test_other_urls_are_refused_by_name(url: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as raised:
        read(url)
    assert raised.value.param == "image"
    assert raised.value.http_status == 400


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "2130706433",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::]",
        "[fe80::1]",
        "[fd00::1]",
    ],
)
def test_private_addresses_are_refused_in_every_form(host: str) -> None:
    with pytest.raises(InvalidRequest, match="not a public address: allow it by name, here") as raised:
        read(f"https://{host}/x.png")
    assert raised.value.param == "image"


def test_what_the_operator_named_is_fetched(server: str) -> None:
    assert read(f"{server}/file") == b"x" * 1000
    assert read(f"{server}/hop") == b"x" * 1000


def test_each_hop_is_checked(server: str) -> None:
    with pytest.raises(InvalidRequest, match=r"'127.0.0.1' lies at 127.0.0.1, which is not a public address"):
        read(f"{server}/away")
    with pytest.raises(InvalidRequest, match="scheme 'file'"):
        read(f"{server}/elsewhere")


def test_answers_that_are_no_file_are_refused(server: str) -> None:
    with pytest.raises(InvalidRequest, match="answers 404: check the URL"):
        read(f"{server}/nothing")
    with pytest.raises(InvalidRequest, match=r"more than 0\.0 MiB"):
        read(f"{server}/file", max_bytes=999)


def test_a_service_that_is_offline_fetches_nothing(server: str) -> None:
    with pytest.raises(InvalidRequest, match=r"fetches nothing .`offline = true`.: send a data URL"):
        read(f"{server}/file", policy=None)
