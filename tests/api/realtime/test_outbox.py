"""Events to a client that is slower than they come."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.types import Message

from edgewise.api.realtime.outbox import Outbox
from edgewise.core.errors import Cancelled
from edgewise.core.patience import end_task
from tests.api.harness import until


class Wire:
    """Takes messages while `open` is set."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.open = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self.open.wait()
        self.sent.append(json.loads(message["text"])["type"])


async def test_what_was_told_is_sent_in_its_order_even_if_its_teller_was_cancelled() -> None:
    wire = Wire()
    outbox = Outbox(wire.send, send_timeout_s=60)
    sending = asyncio.create_task(outbox.run())
    telling = asyncio.create_task(outbox.put({"type": "large", "text": "x" * (2 << 20)}))
    await until(lambda: outbox.waiting > 2 << 20)
    assert not telling.done()
    telling.cancel()
    after = asyncio.create_task(outbox.put({"type": "after"}))
    wire.open.set()
    await asyncio.wait_for(after, 60)
    await until(lambda: wire.sent == ["large", "after"])
    assert outbox.waiting == 0
    await end_task(sending)


async def test_a_client_that_takes_nothing_is_given_up() -> None:
    outbox = Outbox(Wire().send, send_timeout_s=0.05)
    await outbox.put({"type": "event"})
    with pytest.raises(Cancelled, match="took nothing"):
        await asyncio.wait_for(outbox.run(), 60)


async def test_nobody_waits_for_room_once_it_is_closed() -> None:
    outbox = Outbox(Wire().send, send_timeout_s=60)
    telling = asyncio.create_task(outbox.put({"type": "large", "text": "x" * (2 << 20)}))
    await until(lambda: outbox.waiting > 0)
    outbox.close()
    await asyncio.wait_for(telling, 60)
    waiting = outbox.waiting
    await outbox.put({"type": "late"})
    assert outbox.waiting == waiting


async def test_a_full_box_takes_its_last_event_at_once_and_sends_it_after_the_others() -> None:
    wire = Wire()
    outbox = Outbox(wire.send, send_timeout_s=60)
    telling = asyncio.create_task(outbox.put({"type": "large", "text": "x" * (2 << 20)}))
    await until(lambda: outbox.waiting > 0)
    outbox.close({"type": "error"})
    await asyncio.wait_for(telling, 60)
    wire.open.set()
    await asyncio.wait_for(outbox.flush(), 60)
    assert wire.sent == ["large", "error"]
