"""A spoken answer without a process: hooks, receipt, faults on the way, and readers who leave."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgewise.core.errors import ContentRefused, EngineFault, ShuttingDown
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncodeStats
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.hooks.protocol import AuditRecord, Call, Hook, PromptText
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.speech import SpeechRun, SpeechTask, start_speech

RATE = 100
UNSPOKEN = "\u4f60\u597d\u043f\U0001f600"


class Talking:
    """A named double of a voice's engine: a part for each word, of as many samples as it has letters."""

    info = SimpleNamespace(numeric_class="double", pid=1)

    def __init__(self, *, fails_at: int | None = None, hangs_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.hangs_at = hangs_at
        self.asked: list[EncodeRequest] = []
        self.closed = 0

    async def submit(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        self.asked.append(request)
        return self._answer(request)

    async def _answer(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        words = request.content.decode().split()
        try:
            for at, word in enumerate(words):
                if at == self.hangs_at:
                    await asyncio.Event().wait()
                if at == self.fails_at:
                    yield EncodeChunk(
                        request_id=request.id, finish="error", error_code="engine_error", error_message="hoarse"
                    )
                    return
                yield EncodeChunk(
                    request_id=request.id,
                    finish="done" if at + 1 == len(words) else None,
                    offset=at,
                    result={"voice": request.options.get("voice", "first"), "rate": RATE, "unspoken": UNSPOKEN},
                    content=b"ab" * len(word),
                    stats=EncodeStats(queued_s=0.5 - at / 10, compute_s=0.25, batch=1, restarts=at),
                )
        finally:
            self.closed += 1


class Editor(Hook):
    """A named double: replaces a word, refuses another, and keeps what it is told."""

    name = "editor"

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    async def before_prompt(self, call: Call, texts: Sequence[PromptText]) -> list[str]:
        if any("secret" in one.text for one in texts):
            raise ContentRefused("No secrets.")
        return [one.text.replace("bad", "good") for one in texts]

    async def audit(self, record: AuditRecord) -> None:
        self.records.append(record)


def task(engine: Talking, text: str = "one two three", **fields: Any) -> SpeechTask:
    model = ServedEncoder(
        name="double", role="text-to-speech", engine=cast("Any", engine), digest="sha256:0", created=0
    )
    return SpeechTask(id="r", model=model, text=text, **fields)


async def spoken(run: SpeechRun) -> bytes:
    try:
        return b"".join([piece.samples async for piece in run.chunks()])
    finally:
        await run.aclose()


async def test_the_receipt_sums_the_parts_up_and_is_told_once() -> None:
    engine, told = Talking(), list[Outcome]()
    run = await start_speech(task(engine, voice="second", speed=2.0), on_end=told.append)
    assert await spoken(run) == b"ab" * 11
    assert engine.asked[0].options == {"voice": "second", "speed": 2.0}
    (stage,) = run.receipt().to_dict()["stages"]
    assert (stage["stage"], stage["where"], stage["voice"], stage["runs"], stage["restarts"]) == (
        "speak",
        "local",
        "second",
        3,
        2,
    )
    assert (stage["queued_ms"], stage["speak_ms"], stage["speech_ms"]) == (500.0, 750.0, 110.0)
    assert stage["numeric_class"] == "double"
    says = "Characters that have no sound were left out (CJK, CYRILLIC, signs): 4, each counted once."
    assert (stage["unspoken"], run.receipt().warnings) == (4, (says,))
    assert not set(UNSPOKEN) & set(json.dumps(run.receipt().to_dict(), ensure_ascii=False)), "receipts hold no texts"
    assert [one.fault for one in told] == [None]
    assert engine.closed == 1


async def test_hooks_replace_and_refuse_the_text_and_hear_of_the_end() -> None:
    engine, editor = Talking(), Editor()
    hooks = Hooks([editor])
    run = await start_speech(task(engine, "bad word"), hooks=hooks)
    sound = await spoken(run)
    assert engine.asked[0].content == b"good word"
    assert [one.event for one in editor.records] == ["asked", "answered"]
    (answer,) = editor.records[1].answers
    assert answer.sha256 == hashlib.sha256(sound).hexdigest()
    with pytest.raises(ContentRefused):
        await start_speech(task(engine, "a secret"), hooks=hooks)
    assert len(engine.asked) == 1


async def test_a_fault_comes_after_the_parts_that_were_made() -> None:
    told: list[Outcome] = []
    run = await start_speech(task(Talking(fails_at=2)), on_end=told.append)
    got = [await run.receive(), await run.receive()]
    assert [len(one.samples) for one in got if one is not None] == [6, 6]
    with pytest.raises(EngineFault, match="hoarse"):
        await run.receive()
    await run.aclose()
    assert [one.fault for one in told] == ["engine_error"]


async def test_a_run_ends_when_its_reader_leaves_or_the_service_must() -> None:
    engine = Talking(hangs_at=1)
    run = await start_speech(task(engine))
    assert await run.receive() is not None
    assert await run.receive(0.01) is None  # nothing yet: a stream of events sends a comment
    await run.aclose()
    assert engine.closed == 1
    run = await start_speech(task(engine))
    run.fail(ShuttingDown("The service is shutting down."))
    with pytest.raises(ShuttingDown):
        await spoken(run)
