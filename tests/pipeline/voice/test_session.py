"""A voice session over doubles of its models: turns, answers, interruptions, and what is left when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from edgewise.core.errors import Conflict, EngineFault, InvalidRequest
from edgewise.core.patience import end_task
from edgewise.pipeline.prompt import THREAD_CHARS
from edgewise.pipeline.voice.conversation import Item
from edgewise.pipeline.voice.protocols import AudioDelta, Committed, ItemDropped, ItemTruncated, SpeechStopped
from edgewise.pipeline.voice.session import SessionOptions, VoiceSession
from edgewise.pipeline.voice.turns import TurnOptions
from tests.api.harness import until
from tests.fakes.voice import DoubleModels, Listener, silence, speech

TURNS = TurnOptions(silence_ms=320, prefix_ms=96)


@dataclass
class Talk:
    session: VoiceSession
    models: DoubleModels
    heard: Listener

    async def say(self, seconds: float = 0.5, quiet: float = 0.6) -> None:
        await self.session.append(speech(seconds) + silence(quiet))

    async def answered(self, count: int = 1) -> None:
        await until(lambda: len(self.heard.answers) >= count)


@asynccontextmanager
async def _talk(models: DoubleModels | None = None, max_seconds: float = 60, **options: Any) -> AsyncIterator[Talk]:
    heard, models = Listener(), models or DoubleModels()
    asked = SessionOptions(turns=TURNS, input_rate=16_000, output_rate=16_000)
    session = VoiceSession(
        models, heard.tell, options=replace(asked, **options), observer=heard, max_seconds=max_seconds
    )
    listening = asyncio.create_task(session.run())
    try:
        yield Talk(session, models, heard)
    finally:
        await end_task(listening)
        await session.aclose()
        assert models.open_speech == 0
        assert all(one.closed for one in models.writings)


async def test_a_spoken_question_is_answered_aloud() -> None:
    async with _talk(instructions="Be brief.") as talk:
        await talk.say()
        await talk.answered()
    assert talk.heard.kinds() == [
        "SpeechStarted",
        "SpeechStopped",
        "Committed",
        "Transcribed",
        "ResponseBegan",
        *[kind for kind in talk.heard.kinds()[5:-1] if kind in ("TextDelta", "AudioDelta")],
        "ResponseEnded",
    ]
    (messages,) = talk.models.asked
    assert messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
    )
    (response,) = talk.heard.answers
    assert response.status == "completed"
    assert response.item.text == "Paris is the capital. It is large."
    assert "".join(talk.models.spoken) == response.item.text
    sent = sum(len(one.samples) for one in talk.heard.told if isinstance(one, AudioDelta))
    assert sent / 2 / 16_000 == pytest.approx(response.speech_s)
    assert response.speech_s == pytest.approx(0.02 * len(response.item.text), rel=0.02)
    assert response.first_sound_s is not None
    assert response.transcription == {"model": "ears"}


async def test_the_first_sentence_is_spoken_while_the_second_is_written() -> None:
    models = DoubleModels(answers=[["First one. ", "S", "econd."]])
    async with _talk(models) as talk:
        models.write_on.clear()
        await talk.say()
        await until(lambda: models.writings)
        models.write_on.set()
        await until(lambda: any(isinstance(one, AudioDelta) for one in talk.heard.told))
        await talk.answered()
    assert models.spoken == ["First one. ", "Second."]


async def test_transcription_begins_at_the_first_silence_and_is_used_at_the_end() -> None:
    async with _talk() as talk:
        talk.models.hear.clear()
        await talk.session.append(speech(0.5) + silence(0.2))
        await until(lambda: talk.models.transcribed)
        assert "SpeechStopped" not in talk.heard.kinds()
        await talk.session.append(silence(0.4))
        await until(lambda: "Committed" in talk.heard.kinds())
        talk.models.hear.set()
        await talk.answered()
    assert len(talk.models.transcribed) == 1


async def test_a_speaker_who_goes_on_is_transcribed_anew() -> None:
    async with _talk() as talk:
        talk.models.hear.clear()
        await talk.session.append(speech(0.5) + silence(0.2))
        await until(lambda: talk.models.transcribed)
        await talk.session.append(speech(0.5) + silence(0.6))
        await until(lambda: talk.models.cancelled == 1)
        talk.models.hear.set()
        await talk.answered()
    (samples,) = talk.models.transcribed
    assert len(samples) > 2 * 16_000
    assert len([one for one in talk.heard.told if isinstance(one, Committed)]) == 1


async def test_speech_during_an_answer_ends_it_at_once_and_the_rest_is_told_to_nobody() -> None:
    models = DoubleModels(
        said=["Tell me a story.", "Stop."], answers=[["Once upon a time. ", "And then. ", "X"], ["Yes."]]
    )
    models.spoken_s = 0.5
    async with _talk(models) as talk:
        await talk.say()
        await until(lambda: any(isinstance(one, AudioDelta) for one in talk.heard.told))
        await talk.say()
        await talk.answered(2)
    first, second = talk.heard.answers
    assert (first.status, first.reason) == ("cancelled", "turn_detected")
    assert second.status == "completed"
    assert talk.heard.interruptions == 1
    (truncated,) = [one for one in talk.heard.told if isinstance(one, ItemTruncated)]
    assert truncated.item is first.item
    assert first.item.end_ms is not None
    assert first.item.end_ms < first.item.audio_ms
    assert "X" not in str(models.asked[1])
    assert [one["content"] for one in models.asked[1] if one["role"] == "user"] == ["Tell me a story.", "Stop."]


async def test_speech_while_an_answer_that_was_sent_is_still_playing_truncates_it() -> None:
    models = DoubleModels(spoken_s=0.08)
    async with _talk(models) as talk:
        await talk.say()
        await talk.answered()
        assert talk.heard.answers[0].status == "completed"
        await talk.session.append(speech(0.3))
        await until(lambda: any(isinstance(one, ItemTruncated) for one in talk.heard.told))
    assert talk.heard.interruptions == 1
    assert len(talk.heard.answers) == 1


async def test_an_interrupted_speaker_loses_no_turn() -> None:
    """Who goes on after a pause is answered once, to all that they said."""
    models = DoubleModels(said=["First.", "Second."])
    async with _talk(models) as talk:
        models.hear.clear()
        await talk.say()
        await talk.say()
        await until(lambda: len([one for one in talk.heard.told if isinstance(one, Committed)]) == 2)
        models.hear.set()
        await talk.answered()
    assert [one["content"] for one in models.asked[-1]] == ["First.", "Second."]


async def test_no_words_are_not_answered() -> None:
    async with _talk(DoubleModels(said=["", "Hello."])) as talk:
        await talk.say()
        await until(lambda: "Transcribed" in talk.heard.kinds())
        await talk.session.wait_answered()
        assert not talk.models.asked
        await talk.say()
        await talk.answered()
    assert talk.models.asked == [({"role": "user", "content": "Hello."},)]


async def test_without_turn_detection_the_caller_ends_turns() -> None:
    async with _talk(turns=None) as talk:
        await talk.say()
        await talk.session.commit()
        await until(lambda: "Transcribed" in talk.heard.kinds())
        assert not talk.session.answering
        await talk.session.respond()
        with pytest.raises(Conflict):
            await talk.session.respond()
        await talk.answered()
        with pytest.raises(InvalidRequest, match="empty"):
            await talk.session.commit()
    assert len(talk.models.transcribed[0]) == len(speech(0.5) + silence(0.6))


async def test_what_is_not_committed_is_bounded() -> None:
    async with _talk(turns=None, max_seconds=1) as talk:
        await talk.session.append(silence(0.9))
        with pytest.raises(InvalidRequest, match="1 s"):
            await talk.session.append(silence(0.2))
        await talk.session.clear()
        await talk.session.append(silence(0.9))


async def test_a_turn_is_forgotten_when_turns_are_found_otherwise() -> None:
    async with _talk() as talk:
        talk.models.hear.clear()
        await talk.session.append(speech(0.5) + silence(0.2))
        await until(lambda: talk.models.transcribed)
        await talk.session.configure(replace(talk.session.options, turns=None))
        assert talk.models.cancelled == 1
        talk.models.hear.set()
        await talk.session.append(speech(0.3))
        await talk.session.commit()
        await until(lambda: "Transcribed" in talk.heard.kinds())
    assert talk.models.transcribed == [speech(0.3)]


async def test_what_was_taken_is_kept_nowhere() -> None:
    async with _talk(turns=None) as talk:
        for _ in range(50):
            for _ in range(20):
                await talk.session.append(silence(0.01))
            await talk.session.clear()
    listening = talk.session._listening
    assert len(listening._arrivals) == 0
    assert listening._sound.seconds == 0


async def test_empty_sound_is_kept_nowhere() -> None:
    async with _talk() as talk:
        for _ in range(50):
            await talk.session.append(b"")
    assert len(talk.session._listening._arrivals) == 0


async def test_a_turn_of_the_greatest_length_is_ended_and_answered() -> None:
    async with _talk(max_seconds=1) as talk:
        await talk.session.append(speech(1.5))
        await until(lambda: any(isinstance(one, SpeechStopped) and one.cut for one in talk.heard.told))


async def test_cancel_ends_an_answer_and_there_must_be_one() -> None:
    async with _talk() as talk:
        with pytest.raises(InvalidRequest, match="No answer"):
            await talk.session.cancel(None)
        talk.models.write_on.clear()
        await talk.say()
        await until(lambda: talk.models.writings)
        with pytest.raises(InvalidRequest, match="other"):
            await talk.session.cancel("other")
        await talk.session.cancel(None)
        await talk.answered()
    assert talk.heard.answers[0].reason == "client_cancelled"
    assert talk.heard.interruptions == 0


async def test_a_fault_ends_the_answer_and_not_the_session() -> None:
    models = DoubleModels(fault=EngineFault("No ears."))
    async with _talk(models) as talk:
        await talk.say()
        await until(lambda: "TranscriptionFailed" in talk.heard.kinds())
        models.fault = None
        await talk.say()
        await talk.answered()
    assert talk.heard.answers[0].status == "completed"


async def test_what_cannot_be_counted_is_not_kept_and_an_answer_that_cannot_begin_is_told() -> None:
    models = DoubleModels()
    count = models.tokens

    def broken(text: str, /) -> int:
        raise ValueError("No characters.")

    async with _talk(models, instructions="Be brief.") as talk:
        models.tokens = broken  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="No characters"):
            await talk.session.add(Item(id="a", role="user", text="Hello."))
        assert len(talk.session.conversation) == 0
        await talk.session.respond()
        await until(lambda: "Failed" in talk.heard.kinds())
        models.tokens = count  # type: ignore[method-assign]
        await talk.session.respond()
        await talk.answered()
    assert talk.heard.answers[0].status == "completed"


async def test_a_long_text_is_counted_on_a_thread() -> None:
    models, threads = DoubleModels(), set()

    def count(text: str, /) -> int:
        threads.add(threading.current_thread())
        return 1

    models.tokens = count  # type: ignore[method-assign]
    async with _talk(models) as talk:
        await talk.session.add(Item(id="a", role="user", text="a" * (THREAD_CHARS + 1)))
    assert threads
    assert threading.current_thread() not in threads


async def test_a_phrase_that_cannot_be_spoken_is_text_and_is_counted() -> None:
    hello = "\u041f\u0440\u0438\u0432\u0435\u0442. "
    async with _talk(DoubleModels(answers=[[hello, "Hello."]])) as talk:
        await talk.say()
        await talk.answered()
    (response,) = talk.heard.answers
    assert (response.status, response.unspoken, response.item.text) == ("completed", 1, hello + "Hello.")
    assert talk.models.spoken == ["Hello."]


async def test_a_cut_answer_says_why() -> None:
    async with _talk(DoubleModels(finish="length")) as talk:
        await talk.say()
        await talk.answered()
    assert (talk.heard.answers[0].status, talk.heard.answers[0].reason) == ("incomplete", "max_output_tokens")


async def test_a_long_conversation_drops_its_beginning_and_says_so() -> None:
    models = DoubleModels(context=120, spoken_s=0.0005)
    async with _talk(models) as talk:
        for number in range(1, 13):
            await talk.say()
            await talk.answered(number)
        dropped = [one for one in talk.heard.told if isinstance(one, ItemDropped)]
        assert dropped
        assert sum(one.dropped for one in talk.heard.answers) <= len(dropped)
        assert len(talk.session.conversation) == 24 - len(dropped)
    assert all(messages[0]["role"] == "user" for messages in models.asked)


async def test_text_only_answers_make_no_sound() -> None:
    async with _talk(text_only=True) as talk:
        await talk.say()
        await talk.answered()
    assert not talk.models.spoken
    assert "AudioDelta" not in talk.heard.kinds()
