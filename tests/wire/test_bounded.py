"""An answer that never ends costs whoever asked no more memory than the bound."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from edgewise.core.errors import EngineUnavailable, LinkLost
from edgewise.core.tls_time import TimeFloor
from edgewise.edge.enrol.client import EnrolmentClient
from edgewise.edge.offload import http as offload
from edgewise.edge.offload.http import HttpTransport
from edgewise.wire.bounded import read_bounded
from tests.edge.offload.raw import Reply, raw_server, whole

MIB = 1 << 20


def endless(status: str = "200 OK") -> Reply:
    """A body of which a gigabyte is announced and eight mebibytes are sent, then nothing."""
    head = f"HTTP/1.1 {status}\r\ncontent-length: {1 << 30}\r\n\r\n".encode()
    return lambda method, path, body: [head, *[bytes(MIB)] * 8, 30.0]


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
