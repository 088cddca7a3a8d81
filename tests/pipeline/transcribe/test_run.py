"""The course of a transcription against a scripted engine: windows, context, other tries, languages, hooks, deadlines."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgewise.core.errors import DeadlineExceeded, InvalidRequest, UnsupportedField
from edgewise.engine.request import GenerateRequest
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.transcribe.run import TranscribeRun, start_transcription
from edgewise.pipeline.transcribe.task import Segment, TranscribeTask
from tests.pipeline.transcribe.scripted import (
    ENGLISH,
    GERMAN,
    NO_SPEECH,
    PREVIOUS,
    START,
    TOKENS,
    TRANSCRIBE,
    TRANSLATE,
    Said,
    ScriptedEngine,
    at,
    listener,
)

LOUD = 0.1


def sound(seconds: float, level: float = LOUD) -> bytes:
    return np.full(round(seconds * 16_000), level, dtype="<f4").tobytes()


def task(engine: Any, samples: bytes, **fields: Any) -> TranscribeTask:
    return TranscribeTask(id="t", model=listener(engine), detector=None, samples=samples, **fields)


async def heard(asked: TranscribeTask, **options: Any) -> tuple[str, list[Segment], TranscribeRun]:
    run = await start_transcription(asked, segmented=options.pop("segmented", True), **options)
    text = ""
    segments: list[Segment] = []
    try:
        async for piece in run.chunks():
            text += piece.text
            segments += piece.segments
    finally:
        await run.aclose()
    return text, segments, run


def says(*tokens: int, **options: Any) -> ScriptedEngine:
    return ScriptedEngine(lambda request: Said(tokens, **options))


async def test_silence_asks_no_engine() -> None:
    engine = says(1)
    text, segments, run = await heard(task(engine, sound(1.2, 0.0)))
    assert (text, segments, engine.requests) == ("", [], [])
    assert run.seconds == pytest.approx(1.2)
    assert "silero-vad" in run.receipt().warnings[0]


async def test_a_recording_of_zero_seconds_is_silence() -> None:
    assert (await heard(task(says(1), b"")))[0] == ""


async def test_one_window() -> None:
    engine = says(at(0.5), 1, 2, at(3.0))
    text, segments, run = await heard(task(engine, sound(5.0), language="en"))
    assert text == "ab"
    (segment,) = segments
    assert (segment.start, segment.end, segment.text, segment.tokens) == (0.5, 3.0, " ab", (1, 2))
    (request,) = engine.requests
    assert request.prompt[-3:] == (START, ENGLISH, TRANSCRIBE)
    assert (len(request.prompt), request.media[0].count, request.media[0].shape) == (1504 + 3, 1504, (80_000,))
    assert request.sampling.temperature == 0.0
    listen = run.receipt().to_dict()["stages"][-1]
    assert (listen["windows"], listen["retries"], listen["language"], listen["language_prob"]) == (1, 0, "en", None)


async def test_long_recordings_go_on_where_the_text_ended_with_what_came_before() -> None:
    script = iter([Said((at(0), 1, at(20), at(20))), Said((at(0), 2, at(28), at(28))), Said((at(1), 3, at(11.5)))])
    engine = ScriptedEngine(lambda request: next(script))
    text, segments, _ = await heard(task(engine, sound(60.0), language="en"))
    assert [(one.start, one.end, one.text) for one in segments] == [(0, 20, " a"), (20, 48, " b"), (49, 59.5, " c")]
    assert text == "a b c"
    assert [request.media[0].shape[0] / 16_000 for request in engine.requests] == [30, 30, 12]
    contexts = [request.prompt[1504:] for request in engine.requests]
    assert contexts[0] == (START, ENGLISH, TRANSCRIBE)
    assert contexts[1] == (PREVIOUS, 1, START, ENGLISH, TRANSCRIBE)
    assert contexts[2] == (PREVIOUS, 1, 2, START, ENGLISH, TRANSCRIBE)


async def test_text_without_progress_does_not_go_round_in_circles() -> None:
    engine = says(at(0), 1, at(0.2), at(0.2))
    _, segments, _ = await heard(task(engine, sound(61.0), language="en"))
    assert len(engine.requests) == len(segments) == 3


async def test_the_prompt_comes_before_the_text_and_its_end_counts() -> None:
    engine = says(at(0), 1, at(1))
    await heard(task(engine, sound(2.0), language="en", prompt="x" * 30 + "abc"))
    context = engine.requests[0].prompt[1504:]
    assert context[0] == PREVIOUS
    assert context[-6:] == (1, 2, 3, START, ENGLISH, TRANSCRIBE)
    assert len(context) == 1 + 19 + 3


async def test_repetition_is_written_again_at_higher_temperatures_and_is_no_context() -> None:
    def script(request: GenerateRequest) -> Said:
        hot = request.sampling.temperature >= 0.6
        return Said((at(0), *((1, 2) if hot else (1,) * 60), at(29), at(29)))

    engine = ScriptedEngine(script)
    _, segments, run = await heard(task(engine, sound(35.0), language="en"))
    assert [request.sampling.temperature for request in engine.requests] == [0.0, 0.2, 0.4, 0.6] * 2
    assert [one.temperature for one in segments] == [0.6, 0.6]
    assert PREVIOUS not in engine.requests[4].prompt
    listen = run.receipt().to_dict()["stages"][-1]
    assert (listen["retries"], listen["temperatures"]) == (6, (0.6, 0.6))


async def test_a_given_temperature_is_kept() -> None:
    engine = says(at(0), *((1,) * 60), at(2))
    await heard(task(engine, sound(2.0), language="en", temperature=0.3))
    assert [request.sampling.temperature for request in engine.requests] == [0.3]


async def test_what_the_model_takes_for_silence_is_left_out() -> None:
    def script(request: GenerateRequest) -> Said:
        if request.sampling.max_tokens == 1:
            return Said((ENGLISH,), top=((NO_SPEECH, math.log(0.9)), (ENGLISH, math.log(0.05))))
        return Said((at(0), 1, 2, at(1)), logprob=-2.0)

    text, segments, _ = await heard(task(ScriptedEngine(script), sound(2.0), language="en"))
    assert (text, segments) == ("", [])


async def test_the_language_is_found_once_and_told() -> None:
    def script(request: GenerateRequest) -> Said:
        if request.sampling.max_tokens == 1:
            assert request.prompt[1504:] == (START,)
            return Said((GERMAN,), top=((GERMAN, math.log(0.6)), (ENGLISH, math.log(0.2)), (1, math.log(0.1))))
        return Said((at(0), 1, at(30), at(30)))

    engine = ScriptedEngine(script)
    _, _, run = await heard(task(engine, sound(45.0), aim="translate"))
    assert run.language == "de"
    assert [request.sampling.max_tokens == 1 for request in engine.requests] == [True, False, False]
    assert engine.requests[1].prompt[-2:] == (GERMAN, TRANSLATE)
    assert run.receipt().to_dict()["stages"][-1]["language_prob"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("fields", "problem"), [({"language": "xx"}, "'language' has 'xx'"), ({"aim": "translate"}, "")]
)
async def test_what_the_model_cannot_is_refused_by_name(fields: dict[str, Any], problem: str) -> None:
    english = replace(TOKENS, languages={}, transcribe=None, translate=None)
    asked = replace(task(says(1), sound(1.0), **fields), model=listener(says(1), english))
    with pytest.raises(InvalidRequest, match=problem or "English alone"):
        await heard(asked)


async def test_the_deadline_holds_for_the_whole_recording() -> None:
    engine = says(at(0), 1, at(29), at(29))
    with pytest.raises(DeadlineExceeded, match="before all of the recording"):
        await heard(task(engine, sound(65.0), language="en", deadline_s=1e-9))
    assert engine.requests == []


async def test_a_run_that_is_closed_closes_the_engines_stream() -> None:
    engine = ScriptedEngine(lambda request: Said((1,)), gate=asyncio.Event())
    run = await start_transcription(task(engine, sound(2.0), language="en"), segmented=False)
    await engine.asked.wait()
    await run.aclose()
    assert engine.streams[0].closed


class _NoB:
    """A hook whose filter cuts an answer at the letter b."""

    name = "no-b"
    wants_text = True
    hold_back = 0

    async def before_prompt(self, call: Any, texts: Any) -> list[str]:
        return [one.text for one in texts]

    def watch(self, call: Any) -> Any:
        return self

    async def check(self, text: str, start: int, *, last: bool) -> int | None:
        at_b = text.find("b")
        return None if at_b < 0 else start + at_b

    async def audit(self, record: Any) -> None:
        self.last = record

    async def aclose(self) -> None: ...


async def test_hooks_read_what_is_heard_and_segments_are_refused_beside_them() -> None:
    hook: Any = _NoB()
    engine = says(at(0), 1, 2, at(1))
    with pytest.raises(UnsupportedField, match="has no times"):
        await heard(task(engine, sound(2.0), language="en"), hooks=Hooks([hook]))
    text, _, _ = await heard(task(engine, sound(2.0), language="en"), hooks=Hooks([hook]), segmented=False)
    assert text == "a"
    assert (hook.last.event, hook.last.answers[0].text) == ("answered", "a")
