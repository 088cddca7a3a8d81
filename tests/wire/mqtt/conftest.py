"""Every test of this folder that takes `broker` runs on each broker that Edgewise supports."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.wire.mqtt.connection import SILENCE_S, Broker
from edgewise.wire.mqtt.link import Link
from edgewise.wire.mqtt.session import SessionCounter
from tests.e2e.broker import BrokerProcess, iotcore_broker, mosquitto_broker

LinkFactory = Callable[..., Link]


class Hasty(random.Random):
    """Reconnects soon, whatever the limits of a delay are."""

    def uniform(self, a: float, b: float) -> float:
        return 0.1


async def until(condition: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"did not happen: {what}")


def impatient(link: Link, silence_s: float) -> None:
    """From now on, until its connection ends: a busy machine may take long to make one."""
    connection = link.connection
    connection._broker = replace(connection._broker, silence_s=silence_s)


@pytest.fixture(params=["iotcore", "mosquitto"])
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with iotcore_broker() if request.param == "iotcore" else mosquitto_broker() as started:
        yield started


@pytest.fixture
async def new_link(tmp_path: Path) -> AsyncIterator[LinkFactory]:
    """Makes links, not yet started; all are stopped when the test ends."""
    async with AsyncExitStack() as links:

        def make(at: BrokerProcess, uid: str, **options: Any) -> Link:
            where = Broker(
                host=at.host,
                port=at.port,
                uid=uid,
                password=at.passwords.get(uid),
                keepalive_s=options.pop("keepalive_s", 30),
                silence_s=options.pop("silence_s", SILENCE_S),
            )
            sessions = SessionCounter(tmp_path / f"{uid}-{options.pop('home', '')}")
            link = Link(where, sessions, rng=Hasty(), **options)
            links.push_async_callback(link.stop)
            return link

        yield make
