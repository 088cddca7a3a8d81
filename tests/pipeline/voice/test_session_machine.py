"""Whatever speakers and callers do in whatever order: answers never overlap, each begins and ends once, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.core.errors import Conflict, InvalidRequest
from edgewise.core.patience import end_task
from edgewise.pipeline.voice.protocols import AudioDelta, ItemTruncated, ResponseBegan, ResponseEnded, TextDelta
from edgewise.pipeline.voice.session import SessionOptions, VoiceSession
from edgewise.pipeline.voice.turns import TurnOptions
from tests.fakes.voice import DoubleModels, Listener, silence, speech

TURNS = TurnOptions(silence_ms=200, prefix_ms=64)
OPERATIONS = (
    "speak",
    "pause",
    "wait",
    "respond",
    "cancel",
    "commit",
    "clear",
    "by hand",
    "by voice",
    "hold",
    "go on",
    "deaf",
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 6)), max_size=25))
def test_answers_begin_and_end_once_and_one_after_the_other(operations: list[tuple[str, int]]) -> None:
    asyncio.run(_converse(operations))


async def _converse(operations: list[tuple[str, int]]) -> None:
    heard, models = Listener(), DoubleModels(said=["One.", "", "Three."], spoken_s=0.01, context=200)
    options = SessionOptions(turns=TURNS, input_rate=16_000, output_rate=16_000)
    session = VoiceSession(models, heard.tell, options=options, observer=heard, max_seconds=5)
    listening = asyncio.create_task(session.run())
    for name, turns_of_the_loop in operations:
        with contextlib.suppress(InvalidRequest, Conflict):
            await asyncio.wait_for(_do(name, session, models), 60)
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
    for event in (models.hear, models.write_on, models.speak_on):
        event.set()
    await asyncio.wait_for(session.wait_answered(), 60)
    await end_task(listening)
    await session.aclose()
    _check(heard, models)
    assert len(asyncio.all_tasks()) == 1


async def _do(name: str, session: VoiceSession, models: DoubleModels) -> None:
    if name == "speak":
        await session.append(speech(0.2))
    elif name == "pause":
        await session.append(silence(0.3))
    elif name == "wait":
        await asyncio.sleep(0.01)
    elif name == "respond":
        await session.respond()
    elif name == "cancel":
        await session.cancel(None)
    elif name == "commit":
        await session.commit()
    elif name == "clear":
        await session.clear()
    elif name in ("by hand", "by voice"):
        await session.configure(replace(session.options, turns=TURNS if name == "by voice" else None))
    elif name == "deaf":
        await session.configure(replace(session.options, interrupt=False))
    elif name == "hold":
        models.write_on.clear()
        models.speak_on.clear()
    else:
        models.write_on.set()
        models.speak_on.set()


def _check(heard: Listener, models: DoubleModels) -> None:
    current: str | None = None
    seen: set[str] = set()
    for event in heard.told:
        if isinstance(event, ResponseBegan):
            assert current is None
            assert event.response.id not in seen
            current = event.response.id
            seen.add(current)
        elif isinstance(event, (TextDelta, AudioDelta)):
            assert event.response.id == current
        elif isinstance(event, ResponseEnded):
            assert event.response.id == current
            assert event.response.status in ("completed", "cancelled")
            current = None
        elif isinstance(event, ItemTruncated):
            assert event.item.end_ms is not None
            assert 0 <= event.item.end_ms <= event.item.audio_ms + 1
    assert current is None
    assert len(heard.answers) == len(seen)
    assert models.open_speech == 0
    assert all(writing.closed for writing in models.writings)
