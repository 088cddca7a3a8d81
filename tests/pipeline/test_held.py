"""The ledger of media comes back to where it was, however requests end: answered, refused, failed, cancelled, cut off."""

from __future__ import annotations

import asyncio
import io
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgewise.core.errors import InvalidRequest, OutOfMemory, PayloadTooLarge
from edgewise.models.media.needs import sound_bytes
from edgewise.models.media.process import MediaProcess
from edgewise.pipeline.held import HeldBytes, Hold
from edgewise.pipeline.listen import decoded
from edgewise.pipeline.model import Models
from tests.api.harness import until
from tests.pipeline.test_media import PICTURE, attachment, model_of, task, with_config
from tests.pipeline.test_media import desk as media_desk

LIMIT = 1000


class Requests(RuleBasedStateMachine):
    """Requests book, decode, keep what came of it, and end in every way; the model is a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 10 * LIMIT
        self.held = HeldBytes(LIMIT, available=lambda: self.free, spare=100)
        self.holds: list[Hold] = []
        self.sizes: list[int] = []

    @rule()
    def begin(self) -> None:
        self.holds.append(self.held.hold())
        self.sizes.append(0)

    @rule(free=st.integers(0, 10 * LIMIT))
    def other_processes_take_memory(self, free: int) -> None:
        self.free = free

    @precondition(lambda self: bool(self.holds))
    @rule(at=st.integers(0, 9), size=st.integers(0, LIMIT + 200))
    def add(self, at: int, size: int) -> None:
        at %= len(self.holds)
        own, used = self.sizes[at], sum(self.sizes)
        if own + size > LIMIT:
            with pytest.raises(PayloadTooLarge, match=r"'file'.*limits\.media_bytes.*send fewer"):
                self.holds[at].add(size, "file")
        elif used + size > LIMIT or size > max(0, self.free - 100):
            with pytest.raises(OutOfMemory, match=r"'file'.*try again shortly") as refused:
                self.holds[at].add(size, "file")
            assert refused.value.retry_after_s
        else:
            self.holds[at].add(size, "file")
            self.sizes[at] += size

    @precondition(lambda self: bool(self.holds))
    @rule(at=st.integers(0, 9), size=st.integers(0, LIMIT))
    def decoded(self, at: int, size: int) -> None:
        at %= len(self.holds)
        self.holds[at].give(size)
        self.sizes[at] = max(0, self.sizes[at] - size)

    @precondition(lambda self: bool(self.holds))
    @rule(at=st.integers(0, 9), again=st.booleans())
    def end(self, at: int, again: bool) -> None:
        at %= len(self.holds)
        hold = self.holds.pop(at)
        self.sizes.pop(at)
        hold.close()
        if again:
            hold.close()

    @invariant()
    def the_sums_agree(self) -> None:
        assert self.held.used == sum(self.sizes) <= LIMIT
        assert [one.size for one in self.holds] == self.sizes

    def teardown(self) -> None:
        for one in self.holds:
            one.close()
        assert self.held.used == 0


TestRequests = Requests.TestCase


def recording(seconds: float, claims: float | None = None) -> bytes:
    """A WAV file; `claims`: what its header says of its length."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((1000 * np.sin(np.arange(int(seconds * 16_000)) / 20)).astype("<i2").tobytes())
    return out.getvalue() if claims is None else _lying(out.getvalue(), claims)


def _lying(data: bytes, seconds: float) -> bytes:
    size = (int(seconds * 32_000)).to_bytes(4, "little")
    at = data.index(b"data") + 4
    return data[:at] + size + data[at + 4 :]


class Desk:
    """A process that decodes, and its ledger."""

    def __init__(self, limit: int) -> None:
        self.process = MediaProcess()
        self.held = HeldBytes(limit)
        self.jobs: list[str] = []

    async def hear(self, hold: Hold, data: bytes, max_seconds: float = 60.0) -> bytes:
        samples, _ = await decoded(self.process, hold, data, "file", max_bytes=1 << 22, max_seconds=max_seconds)
        return samples


@pytest.fixture
def desk() -> Any:
    made = Desk(sound_bytes(20))
    yield made
    made.process.close()


async def test_a_recording_is_booked_as_its_header_says_and_keeps_what_came_of_it(desk: Desk) -> None:
    with desk.held.hold() as hold:
        samples = await desk.hear(hold, recording(5))
        assert hold.size == len(samples) == 5 * 16_000 * 4
        assert desk.held.peak == sound_bytes(6)
    assert desk.held.used == 0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (recording(30), PayloadTooLarge),
        (recording(3)[:40], InvalidRequest),
        (b"nothing", InvalidRequest),
        (recording(70), InvalidRequest),
    ],
    ids=["too large", "cut off", "no sound", "too long"],
)
async def test_a_recording_that_is_refused_holds_nothing(desk: Desk, data: bytes, error: type[Exception]) -> None:
    hold = desk.held.hold()
    with pytest.raises(error):
        await desk.hear(hold, data)
    assert desk.held.used == 0


async def test_one_that_finds_no_room_beside_others_is_told_to_come_again(desk: Desk) -> None:
    first, second = desk.held.hold(), desk.held.hold()
    first.add(sound_bytes(15), "file")
    with pytest.raises(OutOfMemory, match="'file' takes"):
        await desk.hear(second, recording(10))
    first.close()
    assert await desk.hear(second, recording(10))


async def test_a_cancelled_request_gives_back_what_was_booked_for_its_decoding(desk: Desk) -> None:
    hold = desk.held.hold()
    work = asyncio.create_task(desk.hear(hold, recording(18)))
    await until(lambda: desk.held.used > 0 or work.done())
    assert desk.held.used == sound_bytes(19)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert desk.held.used == 0
    assert await desk.hear(hold, recording(1))  # and another one is decoded, by a new process
    hold.close()
    assert desk.held.used == 0


async def test_a_machine_without_memory_decodes_nothing_and_says_when_to_ask_again(tmp_path: Path) -> None:
    model = with_config(model_of(tmp_path, "qwen"), tmp_path, {})
    asked = task(model, PICTURE, attachments=(attachment(0),))
    one = media_desk(Models([model]), held=HeldBytes(available=lambda: 100 << 20, spare=99 << 20))
    with pytest.raises(OutOfMemory, match=r"the machine has 100\.0 MiB left, of which 99\.0 MiB") as caught:
        await one.gather(asked)
    assert caught.value.retry_after_s
    assert one.held.refused == {"machine": 1}
    one.process.close()
