"""Answers to devices that connect: one for each window, to the last word, and nobody waits for the faults of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from edgewise.cloud.fleet.syncs import Synced, Syncs
from edgewise.cloud.fleet.uplink import Uplink
from edgewise.core.clock import FakeClock
from edgewise.core.errors import LinkLost
from edgewise.wire.envelope import Envelope, new_ulid
from edgewise.wire.fleet import Sync
from tests.cloud.fleet.bench import until


def uplink(uid: str, gen: int, *, retained: bool = False) -> Uplink:
    body = Sync(gens={"config": gen})
    return Uplink(uid, "sync", "", Envelope(id=new_ulid(), ep=1, seq=gen), body, 0.0, retained)


async def test_a_device_that_syncs_again_and_again_is_answered_once_in_a_window_to_its_last_word() -> None:
    """F13: two sides that never agree must not keep each other busy."""
    clock, answered = FakeClock(), list[tuple[str, int]]()

    async def answer(batch: Mapping[str, Synced]) -> None:
        answered.extend((uid, one.sync.gens["config"]) for uid, one in batch.items())

    syncs = Syncs(window_s=2.0, clock=clock)
    syncs.add(answer)
    syncs.start()
    syncs.after("t", uplink("loop", 1))
    await until(lambda: answered == [("loop", 1)])
    for gen in range(2, 50):
        syncs.after("t", uplink("loop", gen))
        await asyncio.sleep(0)
    syncs.after("t", uplink("calm", 7))
    syncs.after("t", uplink("kept", 1, retained=True))
    await until(lambda: ("calm", 7) in answered)
    assert answered == [("loop", 1), ("calm", 7)]

    def passed() -> bool:
        clock.advance(0.25)
        return len(answered) == 3

    await until(passed)
    assert answered[-1] == ("loop", 49)
    await syncs.stop()


async def test_one_answer_that_fails_keeps_neither_others_nor_later_devices() -> None:
    answered: list[str] = []

    async def lost(_: Mapping[str, Synced]) -> None:
        raise LinkLost("no broker")

    async def faulty(_: Mapping[str, Synced]) -> None:
        raise RuntimeError("a fault")

    async def answer(batch: Mapping[str, Synced]) -> None:
        answered.extend(batch)

    syncs = Syncs()
    for one in (lost, faulty, answer):
        syncs.add(one)
    syncs.start()
    for uid in ("a", "b"):
        syncs.after("t", uplink(uid, 1))
        await until(lambda uid=uid: uid in answered)  # type: ignore[misc]
    await syncs.stop()
