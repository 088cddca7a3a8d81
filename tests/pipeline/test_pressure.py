"""What steps down under pressure, and what does not; that the receipt says so."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest

from edgewise.core.clock import FakeClock
from edgewise.core.errors import QueueFull
from edgewise.core.modality import Modality, modality_of_role
from edgewise.core.priority import Priority
from edgewise.engine.pictures.request import DiffuseParams, DiffuseRequest, PictureEngine, PictureInfo
from edgewise.models.manifest import ROLES
from edgewise.pipeline.model import ServedPictures
from edgewise.pipeline.pictures import PictureTask, start_pictures, stepped_down
from edgewise.pipeline.plan import LocalPlanner
from edgewise.pipeline.pressure import MOST, QUALITY, Pressure, Reading, memory_reading, share_reading


class FullPictureEngine:
    """A double: notes what it is asked for, and has no room."""

    state = "ready"
    info: PictureInfo | None = None

    def __init__(self) -> None:
        self.asked: list[DiffuseRequest] = []

    async def submit(self, request: DiffuseRequest) -> Any:
        self.asked.append(request)
        raise QueueFull("full")


def task(engine: FullPictureEngine, steps: int | None = None) -> PictureTask:
    model = ServedPictures(
        name="pictures", engine=cast("PictureEngine", engine), digest="sha256:00", created=0, steps=20, pixels=64
    )
    return PictureTask(id="r", model=model, params=DiffuseParams(prompt="a cat", steps=steps))


def test_the_order_of_modalities_covers_every_role() -> None:
    order = [Modality.VOICE, Modality.CHAT, Modality.IMAGE, Modality.VIDEO]
    assert sorted(Modality) == order
    assert {role: modality_of_role(role).word for role in ROLES} == {
        "llm": "chat",
        "adapter": "chat",
        "embeddings": "chat",
        "rerank": "chat",
        "speech-to-text": "voice",
        "text-to-speech": "voice",
        "vad": "voice",
        "vision": "image",
        "ocr": "image",
        "diffusion": "image",
    }


def test_quality_steps_down_in_the_declared_order() -> None:
    assert len(QUALITY) == MOST + 1
    first_lower = {
        name: next(level for level, one in enumerate(QUALITY) if getattr(one, name) < 1.0)
        for name in ("frames", "pixels", "steps")
    }
    assert first_lower == {"frames": 1, "pixels": 2, "steps": 3}
    for easier, harder in pairwise(QUALITY):
        assert harder.frames <= easier.frames
        assert harder.pixels <= easier.pixels
        assert harder.steps <= easier.steps


def test_the_worst_source_counts_and_is_asked_once_a_second() -> None:
    clock, readings = FakeClock(), [Reading()]
    pressure = Pressure(clock.monotonic)
    pressure.watch("queue", lambda: readings[0])
    assert pressure.reading.level == 0
    pressure.tell("heat", 1, "warm")
    assert pressure.reading == Reading(1, "warm")
    readings[0] = Reading(2, "many requests")
    assert pressure.reading.level == 1, "as read less than a second ago"
    clock.advance(1.0)
    assert pressure.reading == Reading(2, "many requests")
    pressure.tell("heat", 9, "on fire")
    assert pressure.reading == Reading(MOST, "on fire")
    pressure.tell("heat", 0, "")
    assert pressure.reading.level == 2


def test_pictures_and_film_wait_behind_chats_while_pressed_voice_never() -> None:
    pressure = Pressure()
    usual = Priority.INTERACTIVE
    assert {pressure.priority(one, usual) for one in Modality} == {usual}
    pressure.tell("heat", 1, "warm")
    assert pressure.priority(Modality.VOICE, Priority.REALTIME) is Priority.REALTIME
    assert pressure.priority(Modality.CHAT, usual) is usual
    assert pressure.priority(Modality.IMAGE, usual) is Priority.BACKGROUND
    assert pressure.priority(Modality.VIDEO, usual) is Priority.BULK
    assert pressure.priority(Modality.IMAGE, Priority.BULK) is Priority.BULK


@pytest.mark.parametrize(("used", "level"), [(0.0, 0), (0.74, 0), (0.75, 1), (0.9, 2), (0.95, 3), (1.4, 3)])
def test_a_share_that_is_taken(used: float, level: int) -> None:
    assert share_reading(used, "it").level == level


@pytest.mark.parametrize(("left", "level"), [(100, 0), (10, 0), (9.9, 1), (4.9, 2), (2.4, 3), (0, 3)])
def test_memory_that_is_left(left: float, level: int) -> None:
    assert memory_reading(int(left * 10), 1000).level == level


async def test_a_picture_gets_fewer_steps_only_if_its_caller_said_nothing_of_them() -> None:
    engine, pressure = FullPictureEngine(), Pressure()
    for told in (0, 2, 3):
        pressure.tell("heat", told, "hot")
        for steps in (None, 20):
            with pytest.raises(QueueFull):
                await start_pictures(task(engine, steps), LocalPlanner(), pressure=pressure)
    assert [one.params.steps for one in engine.asked] == [None, 20, None, 20, 12, 20]


def test_the_receipt_says_what_stepped_down_and_why() -> None:
    pressure = Pressure()
    pressure.tell("heat", 3, "84 C")
    lowered = stepped_down(replace(task(FullPictureEngine()), warnings=("before",)), pressure)
    assert lowered.warnings == ("before", "The device is pressed (84 C): steps stepped down from 20 to 12.")
