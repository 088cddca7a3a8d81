"""The HTTP transport over real sockets: faults of the network are lost links, refusals the errors that the cloud names."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import cbor2
import pytest

from edgewise.core.errors import (
    DigestMismatch,
    EdgewiseError,
    EngineFault,
    LinkLost,
    ModelNotFound,
    NotAuthenticated,
    NotFound,
    QueueFull,
    StreamGone,
)
from edgewise.edge.offload.http import HttpTransport
from edgewise.edge.offload.jobs import generate_job
from edgewise.wire.messages import Blob, Chunk, Final, JobControl
from edgewise.wire.stream_log import START, Place
from tests.edge.offload.double import CAPABILITY, ask
from tests.edge.offload.raw import RawServer, Reply, raw_server, streamed, whole

JOB = generate_job(ask(), CAPABILITY, "device")
ACCEPTED = whole(json.dumps({"id": "job/1", "state": "queued"}).encode(), "202 Accepted")
CHUNK = Chunk(attempt=1, offset=0, count=2, tokens=(5, 6)).model_dump_json().encode()
FINAL = Final(state="succeeded", attempt=1, count=2, finish="length").model_dump_json().encode()


def with_transport(reply: Reply, use: Callable[[HttpTransport, RawServer], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with raw_server(reply) as server:
            transport = HttpTransport(server.url, "secret", **options)
            try:
                return await use(transport, server)
            finally:
                await transport.close()

    return asyncio.run(run())


async def follow(transport: HttpTransport, server: RawServer) -> list[Chunk | Final]:
    del server
    await transport.submit(JOB)
    return [event async for event in transport.events(JOB.key, START)]


def job_then(*parts: bytes | float | None) -> Reply:
    return lambda method, path, body: [ACCEPTED] if method == "POST" else streamed(*parts)


def test_a_job_goes_up_and_its_stream_comes_down() -> None:
    async def use(transport: HttpTransport, server: RawServer) -> None:
        events = await follow(transport, server)
        assert [type(event) for event in events] == [Chunk, Final]
        assert events[0].tokens == (5, 6)  # type: ignore[union-attr]
        assert [first for first, _ in server.asked] == [
            "POST /edgewise/v1/jobs HTTP/1.1",
            "GET /edgewise/v1/jobs/job%2F1/stream?from=0.0 HTTP/1.1",
        ]
        assert cbor2.loads(server.asked[0][1])["work"]["prompt"] == [1, 2, 3]
        assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}
        up, down = transport.traffic(JOB.key)
        assert up > len(server.asked[0][1])
        assert down > len(CHUNK) + len(FINAL)

    # Torn in the middle of a line, and with a comment between.
    parts = (
        b"id: 1.0\nda",
        b"ta: " + CHUNK[:9],
        CHUNK[9:] + b"\n\n: keep-alive\n\nid: 1.2\ndata: " + FINAL + b"\n\n",
        b"",
    )
    with_transport(job_then(*parts), use)


def test_last_words_go_to_the_job_and_forget_it() -> None:
    async def use(transport: HttpTransport, server: RawServer) -> None:
        await follow(transport, server)
        await transport.control(JobControl(key=JOB.key, op="ack", after="1.2", done=True))
        assert server.asked[-1][0] == "POST /edgewise/v1/jobs/job%2F1/ack HTTP/1.1"
        with pytest.raises(NotFound):
            await transport.control(JobControl(key=JOB.key, op="cancel"))
        assert transport.traffic(JOB.key) == (0, 0)

    def reply(method: str, path: str, body: bytes) -> list[bytes | float | None]:
        if path.endswith("/ack"):
            return [b"HTTP/1.1 204 No Content\r\n\r\n"]
        return job_then(b"data: " + FINAL + b"\n\n", b"")(method, path, body)

    with_transport(reply, use)


@pytest.mark.parametrize(
    "parts",
    [
        (b"data: " + CHUNK + b"\n\n", None),  # reset
        (b"data: " + CHUNK + b"\n\n", b""),  # ended before its last record
        (b"data: " + CHUNK + b"\n\n", 30.0),  # half open: nobody says anything any more
        (b"data: " + CHUNK[:20], b""),  # ended inside an event
    ],
)
def test_a_stream_that_breaks_is_a_lost_link(parts: tuple[bytes | float | None, ...]) -> None:
    with pytest.raises(LinkLost):
        with_transport(job_then(*parts), follow, silence_s=0.3)


def test_comments_keep_a_quiet_stream_alive() -> None:
    quiet = [part for _ in range(6) for part in (b": keep-alive\n\n", 0.5)]  # longer than a silence, all together
    events = with_transport(job_then(*quiet, b"data: " + FINAL + b"\n\n", b""), follow, silence_s=2.0)
    assert len(events) == 1


@pytest.mark.parametrize("data", [b"data: {}\n\n", b"data: [1]\n\n", b"data: no json\n\n"])
def test_what_is_no_event_is_a_fault_and_not_a_lost_link(data: bytes) -> None:
    with pytest.raises(EngineFault):
        with_transport(job_then(data, b""), follow)


def _refusal(code: str, status: str, **headers: str) -> Reply:
    body = json.dumps({"error": {"code": code, "message": "Told.", "type": "x", "param": "p"}}).encode()
    return lambda method, path, asked: [whole(body, status, **headers)]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (_refusal("invalid_api_key", "401 Unauthorized"), NotAuthenticated),
        (_refusal("model_not_found", "404 Not Found"), ModelNotFound),
        (_refusal("gone", "410 Gone"), StreamGone),
        (_refusal("rate_limit_exceeded", "429 Too Many", retry_after="7"), QueueFull),
        (_refusal("a code of tomorrow", "429 Too Many"), QueueFull),
        (lambda method, path, body: [whole(b"<html>", "502 Bad Gateway")], LinkLost),
        (lambda method, path, body: [whole(b"<html>", "200 OK")], EngineFault),
        (lambda method, path, body: [whole(b"", "500 Oh")], EngineFault),
        (lambda method, path, body: [None], LinkLost),
        (lambda method, path, body: [b"no HTTP at all\r\n\r\n"], LinkLost),
    ],
)
def test_what_the_cloud_refuses_is_the_error_it_names(reply: Reply, kind: type[EdgewiseError]) -> None:
    async def use(transport: HttpTransport, server: RawServer) -> None:
        del server
        await transport.info()

    with pytest.raises(kind) as refused:
        with_transport(reply, use)
    assert type(refused.value) is kind
    if "7" in str(reply("GET", "/", b"")[0]) and kind is QueueFull:
        assert refused.value.retry_after_s == 7.0


def test_nobody_there_is_a_lost_link() -> None:
    async def ask_nobody() -> None:
        transport = HttpTransport("http://127.0.0.1:9")
        try:
            await transport.info()
        finally:
            await transport.close()

    with pytest.raises(LinkLost):
        asyncio.run(ask_nobody())


def test_connections_are_kept_until_one_falls_silent() -> None:
    silent: list[bool] = []

    def reply(method: str, path: str, body: bytes) -> list[bytes | float | None]:
        return [30.0] if silent else [whole(b'{"name": "n", "tenant": "t"}')]

    async def use(transport: HttpTransport, server: RawServer) -> list[int]:
        await transport.info()
        await transport.info()
        counts = [server.connections]
        silent.append(True)
        with pytest.raises(LinkLost):
            await transport.info()
        silent.clear()
        await transport.info()
        return [*counts, server.connections]

    assert with_transport(reply, use, silence_s=2.0) == [1, 2]


def test_a_blob_is_read_on_where_the_link_was_lost_and_checked() -> None:
    content = bytes(range(256)) * 40
    blob = Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    sent: list[str] = []

    def reply(method: str, path: str, body: bytes) -> list[bytes | float | None]:
        sent.append(path)
        if len(sent) == 1:
            return [f"HTTP/1.1 200 OK\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content[:5000], 0.05, None]
        return [whole(content[5000:], "206 Partial Content")]

    async def use(transport: HttpTransport, server: RawServer) -> bytes:
        with pytest.raises(LinkLost):
            await transport.get_blob(blob)
        got = await transport.get_blob(blob)
        assert server.headers[1]["range"] == "bytes=5000-"
        return got

    assert with_transport(reply, use) == content

    async def wrong(transport: HttpTransport, server: RawServer) -> bytes:
        return await transport.get_blob(blob)

    with pytest.raises(DigestMismatch):
        with_transport(lambda method, path, body: [whole(content[::-1])], wrong)


def test_equal_blobs_that_are_fetched_at_once_are_each_whole() -> None:
    content = bytes(range(256)) * 40
    blob = Blob(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))

    def reply(method: str, path: str, body: bytes) -> list[bytes | float | None]:
        answer = whole(content)
        return [answer[:5000], 0.05, answer[5000:]]

    async def use(transport: HttpTransport, server: RawServer) -> list[bytes]:
        return await asyncio.gather(*(transport.get_blob(blob) for _ in range(3)))

    assert with_transport(reply, use) == [content] * 3


def test_a_blob_goes_up_under_its_hash() -> None:
    async def use(transport: HttpTransport, server: RawServer) -> None:
        blob = await transport.put_blob(b"picture", "image/png")
        assert server.asked == [(f"PUT /edgewise/v1/blobs/{blob.sha256} HTTP/1.1", b"picture")]
        assert server.headers[0]["content-type"] == "image/png"

    with_transport(lambda method, path, body: [whole(b"{}", "201 Created")], use)


def test_events_of_a_job_that_was_not_handed_over_here_are_not_there() -> None:
    async def use(transport: HttpTransport, server: RawServer) -> None:
        with pytest.raises(NotFound):
            await anext(transport.events("other", Place(0, 0)))

    with_transport(lambda method, path, body: [], use)


@pytest.mark.parametrize("dropped", [False, True])
def test_a_large_blob_goes_on_where_a_lost_link_left_it(dropped: bool) -> None:
    content = bytes(range(256)) * 400

    def reply(method: str, path: str, body: bytes) -> list[bytes | float | None]:
        if method == "HEAD":
            return [whole(b"", "404 Not Found", upload_offset="70000")]
        if dropped and len(body) < len(content):
            error = {"error": {"code": "range_not_satisfiable", "message": "go on at 0"}}
            return [whole(json.dumps(error).encode(), "416 Range Not Satisfiable")]
        return [whole(b"{}", "201 Created")]

    async def use(transport: HttpTransport, server: RawServer) -> None:
        await transport.put_blob(content, "image/png")
        sent = [body for _, body in server.asked if body]
        assert sent == [content[70000:], content][: 1 + dropped]
        assert server.headers[1]["content-range"] == "bytes 70000-102399/102400"

    with_transport(reply, use)


def test_a_large_blob_that_is_there_is_not_sent_again() -> None:
    async def use(transport: HttpTransport, server: RawServer) -> None:
        await transport.put_blob(bytes(100_000), "image/png")
        assert [(first.split()[0], body) for first, body in server.asked] == [("HEAD", b"")]

    with_transport(lambda method, path, body: [whole(b"")], use)
