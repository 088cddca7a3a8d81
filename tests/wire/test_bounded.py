"""An answer that never ends costs whoever asked no more memory than the bound."""

from __future__ import annotations

import contextlib
import functools
import gzip
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from edgewise.api.context import ANONYMOUS_SALT
from edgewise.cloud.executors.upstream import HttpTimings, Upstream
from edgewise.cloud.fleet.people.openid import OpenId
from edgewise.core.errors import EngineUnavailable, LinkLost
from edgewise.core.settings_fleet import FleetSettings
from edgewise.core.tls_time import TimeFloor
from edgewise.edge.enrol.client import EnrolmentClient
from edgewise.edge.offload import http as offload
from edgewise.edge.offload.http import HttpTransport
from edgewise.serving.peers.peer import Peer
from edgewise.wire.bounded import PLAIN, read_bounded
from tests.edge.offload.raw import Reply, raw_server, streamed, whole

MIB = 1 << 20


def endless(status: str = "200 OK") -> Reply:
    """A body of which a gigabyte is announced and eight mebibytes are sent, then nothing."""
    head = f"HTTP/1.1 {status}\r\ncontent-length: {1 << 30}\r\n\r\n".encode()
    return lambda method, path, body: [head, *[bytes(MIB)] * 8, 30.0]


def small_until_decoded(status: str = "200 OK") -> Reply:
    return lambda method, path, body: [whole(coded_twice(), status, content_encoding="gzip, gzip")]


@functools.cache
def coded_twice() -> bytes:
    """Some kilobytes that are 64 MiB once both codings are taken off."""
    return gzip.compress(gzip.compress(bytes(64 * MIB), 1))


@contextlib.contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """What is inside takes no more memory at any moment."""
    coded_twice()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < nbytes


async def test_a_body_up_to_the_bound_is_read_and_a_longer_one_refused() -> None:
    async with raw_server(lambda method, path, body: [whole(b"x" * 100)]) as server, httpx.AsyncClient() as client:
        async with client.stream("GET", server.url) as response:
            assert await read_bounded(response, 100) == b"x" * 100
        async with client.stream("GET", server.url) as response:
            with pytest.raises(LinkLost, match="more than 99 bytes"):
                await read_bounded(response, 99)
        async with client.stream("GET", server.url) as response:
            with pytest.raises(EngineUnavailable):
                await read_bounded(response, 99, fault=EngineUnavailable)


async def test_what_is_announced_as_too_long_is_not_read() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n"
    async with (
        raw_server(lambda method, path, body: [head, 30.0]) as server,
        httpx.AsyncClient() as client,
        client.stream("GET", server.url) as response,
    ):
        with pytest.raises(LinkLost, match="more than 100 bytes, the most that is taken: check that the address"):
            await read_bounded(response, 100)


async def test_a_body_without_length_is_counted_as_it_comes() -> None:
    async with (
        raw_server(lambda method, path, body: streamed(bytes(60), bytes(60), 30.0)) as server,
        httpx.AsyncClient() as client,
        client.stream("GET", server.url) as response,
    ):
        with pytest.raises(LinkLost, match="more than 100 bytes"):
            await read_bounded(response, 100)


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "br", "identity, deflate"])
async def test_a_body_in_a_coding_is_refused(coding: str) -> None:
    reply = whole(gzip.compress(gzip.compress(b"{}")), content_encoding=coding)
    async with (
        raw_server(lambda method, path, body: [reply]) as server,
        httpx.AsyncClient(headers=PLAIN) as client,
        client.stream("GET", server.url) as response,
    ):
        with pytest.raises(LinkLost, match=f"`content-encoding: {coding}`, though `identity` was asked for: let that"):
            await read_bounded(response, 1000)
    assert server.headers[0]["accept-encoding"] == "identity"


async def test_a_body_that_says_it_is_in_no_coding_is_read() -> None:
    async with (
        raw_server(lambda method, path, body: [whole(b"{}", content_encoding="Identity")]) as server,
        httpx.AsyncClient() as client,
        client.stream("GET", server.url) as response,
    ):
        assert await read_bounded(response, 2) == b"{}"


async def test_codings_inside_codings_cost_no_memory(tmp_path: Path) -> None:
    async with (
        raw_server(small_until_decoded()) as server,
        EnrolmentClient(server.url, TimeFloor(tmp_path / "floor")) as client,
    ):
        with at_most(32 * MIB), pytest.raises(LinkLost, match="content-encoding: gzip, gzip"):
            await client.challenge("00" * 32)
    assert server.headers[0]["accept-encoding"] == "identity"


async def test_enrolment_takes_no_endless_answer(tmp_path: Path) -> None:
    async with raw_server(endless()) as server, EnrolmentClient(server.url, TimeFloor(tmp_path / "floor")) as client:
        with pytest.raises(LinkLost, match="answers with more than 1048576 bytes"):
            await client.challenge("00" * 32)


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
async def test_a_device_takes_no_endless_answer_of_its_cloud(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_MAX_BODY", 2 * MIB)
    async with raw_server(endless(status)) as server:
        transport = HttpTransport(server.url)
        try:
            with pytest.raises(LinkLost, match="answers with more than 2097152 bytes"):
                await transport.info()
        finally:
            await transport.close()


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
async def test_a_device_decodes_no_answer_of_its_cloud(status: str) -> None:
    async with raw_server(small_until_decoded(status)) as server:
        transport = HttpTransport(server.url)
        try:
            with at_most(32 * MIB), pytest.raises(LinkLost, match="content-encoding: gzip, gzip"):
                await transport.info()
        finally:
            await transport.close()
    assert server.headers[0]["accept-encoding"] == "identity"


async def test_bytes_of_an_answer_that_is_refused_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "_MAX_BODY", 2 * MIB)
    pieces = [bytes(MIB)] * 4
    async with raw_server(lambda method, path, body: [*streamed(*pieces), 30.0]) as server:
        transport = HttpTransport(server.url)
        try:
            with pytest.raises(LinkLost, match="more than 2097152 bytes"):
                await transport.info()
            assert transport.received_bytes > 2 * MIB
        finally:
            await transport.close()


def upstream_of(url: str) -> Upstream:
    upstream = Upstream(url, None, HttpTimings())
    upstream.open()
    return upstream


@pytest.mark.parametrize(
    ("reply", "why"), [(endless(), "more than 16777216 bytes"), (small_until_decoded(), "gzip, gzip")]
)
async def test_a_cloud_takes_no_such_answer_of_an_upstream_server(reply: Reply, why: str) -> None:
    async with raw_server(reply) as server:
        upstream = upstream_of(server.url)
        try:
            with at_most(32 * MIB), pytest.raises(EngineUnavailable, match=why):
                await upstream.models()
            with (
                at_most(32 * MIB),
                pytest.raises(EngineUnavailable, match="gzip" if "gzip" in why else "a line of more"),
            ):
                async with aclosing(upstream.stream({}, float("inf"))) as events:
                    await anext(events)
        finally:
            await upstream.close()
    assert server.headers[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("reply", "why"), [(endless(), "more than 1048576 bytes"), (small_until_decoded(), "gzip, gzip")]
)
async def test_a_fleet_takes_no_such_answer_of_its_openid_provider(reply: Reply, why: str) -> None:
    async with raw_server(reply) as server:
        provider = OpenId(FleetSettings(oidc_issuer=server.url, oidc_client_id="edgewise"))
        with at_most(32 * MIB), pytest.raises(LinkLost, match=why):
            await provider.begin("http://127.0.0.1/back")
    assert server.headers[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize(("reply", "why"), [(endless(), "more than 4096 bytes"), (small_until_decoded(), "gzip, gzip")])
async def test_an_appliance_takes_no_such_answer_of_a_peer(reply: Reply, why: str) -> None:
    async with raw_server(reply) as server:
        peer = Peer(server.url, {}, ca_file=None, now=time.monotonic)
        try:
            with at_most(32 * MIB), pytest.raises(LinkLost, match=why):
                await peer.start(ANONYMOUS_SALT, "sha256:" + "00" * 32, 30.0)
        finally:
            await peer.close()
    assert server.headers[0]["accept-encoding"] == "identity"
