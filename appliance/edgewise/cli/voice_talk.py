"""A conversation at the client: sound to the service, its events to a speaker and to whoever watches."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from edgewise.cli.chat_client import ServiceRefusedError
from edgewise.cli.voice_client import Event, VoiceClient
from edgewise.cli.voice_sound import Sink, Source, level
from edgewise.core.patience import end_task

State = Literal["listening", "hearing", "thinking", "speaking"]
_RINGING_S: Final = 0.3
"""After an answer, in which devices and the room may still sound of it."""
_QUIET_S: Final = 2.0
"""Silence after the end of a source in which the service would notice that a turn is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkOptions:
    """Attributes:
    session: Fields of `session.update`; may be empty.
    wake: Only what begins with this word is answered.
    once: End after the first answer.
    interrupt: Whether the microphone is heard while an answer is played.
    """

    session: Mapping[str, Any] = field(default_factory=dict)
    wake: str | None = None
    once: bool = False
    interrupt: bool = True


@dataclass(slots=True, kw_only=True)
class Summary:
    """What happened; `overflows` and `underflows` are losses of sound in and out (xruns)."""

    turns: int = 0
    answers: int = 0
    interruptions: int = 0
    overflows: int = 0
    underflows: int = 0
    worst_gap_ms: float = 0.0
    first_sound_ms: list[float] = field(default_factory=list)


class Watcher:
    """Hears of everything; does nothing by itself."""

    def state(self, state: State) -> None:
        """What goes on now."""

    def level(self, value: float, summary: Summary) -> None:
        """How loud the input is, 0 to 1, some times a second."""

    def event(self, event: Event) -> None:
        """Every event of the service, sound left out."""

    def text(self, speaker: Literal["user", "assistant"], text: str, *, done: bool) -> None:
        """What somebody says; an assistant's in pieces."""


class Talk:
    """One session."""

    def __init__(self, client: VoiceClient, source: Source, sink: Sink, options: TalkOptions, watcher: Watcher) -> None:
        self.summary = Summary()
        self._client = client
        self._source = source
        self._sink = sink
        self._options = options
        self._watcher = watcher
        self._ended = asyncio.Event()
        self._busy = False
        self._sounded = float("-inf")

    def stop(self) -> None:
        """End it soon."""
        self._ended.set()

    async def run(self) -> Summary:
        """Until the service ends it, an answer was played (with `once`), or it is cancelled."""
        await self._configure()
        work = [
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._follow()),
            asyncio.create_task(self._ended.wait()),
        ]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
        finally:
            for task in work:
                await end_task(task)
            self._count()
        return self.summary

    async def _configure(self) -> None:
        fields: dict[str, Any] = {"type": "realtime", **self._options.session}
        if self._options.wake is not None:
            turns = {"type": "server_vad", "create_response": False}
            audio = fields.get("audio", {})
            fields["audio"] = {**audio, "input": {**audio.get("input", {}), "turn_detection": turns}}
        if len(fields) > 1:
            await self._client.send("session.update", session=fields)

    def _count(self) -> None:
        self.summary.overflows, self.summary.underflows = self._source.overflows, self._sink.underflows

    async def _listen(self) -> None:
        async for block in self._source.blocks():
            self._count()
            self._watcher.level(level(block), self.summary)
            if self._exhausted():
                self.stop()
            await self._client.append(bytes(len(block)) if self._deaf() else block)

    def _deaf(self) -> bool:
        """Whether the microphone is not heard, since it would hear the answer."""
        if self._options.interrupt:
            return False
        if self._sink.playing:
            self._sounded = time.monotonic()
        return time.monotonic() - self._sounded < _RINGING_S

    def _exhausted(self) -> bool:
        """Whether the source has ended, and all that it said was answered."""
        ended_at = self._source.ended_at
        return (
            ended_at is not None
            and time.monotonic() - ended_at > _QUIET_S
            and not self._busy
            and not self._sink.playing
        )

    async def _follow(self) -> None:
        async for event in self._client.events():
            kind = event["type"]
            if kind == "response.output_audio.delta":
                self._sink.play(event["item_id"], base64.b64decode(event["delta"]))
                self._watcher.state("speaking")
                continue
            self._watcher.event(event)
            handler = _HANDLERS.get(kind)
            if handler is not None:
                await handler(self, event)

    async def _started(self, _: Event) -> None:
        """Somebody speaks: the speaker falls silent, and the service hears how much of its answer was played."""
        self._watcher.state("hearing")
        self._busy = True
        stopped = self._sink.stop()
        if stopped is not None:
            item, played_ms = stopped
            self.summary.interruptions += 1
            await self._client.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=played_ms)

    async def _stopped(self, _: Event) -> None:
        self._watcher.state("thinking")

    async def _heard(self, event: Event) -> None:
        text = event["transcript"].strip()
        self._watcher.text("user", text, done=True)
        self.summary.turns += bool(text)
        wake = self._options.wake
        if not text:
            self._rest()
        elif wake is not None and not begins_with(text, wake):
            self._rest()
            await self._client.send("conversation.item.delete", item_id=event["item_id"])
        elif wake is not None:
            await self._client.send("response.create")

    async def _said(self, event: Event) -> None:
        self._watcher.text("assistant", event["delta"], done=False)

    async def _answered(self, event: Event) -> None:
        response = event["response"]
        self._watcher.text("assistant", "", done=True)
        receipt = response["edgewise"]
        self.summary.answers += response["status"] in ("completed", "incomplete")
        self.summary.worst_gap_ms = max(self.summary.worst_gap_ms, receipt["worst_gap_ms"])
        if receipt["first_sound_ms"] is not None:
            self.summary.first_sound_ms.append(receipt["first_sound_ms"])
        if response["status"] == "failed":
            error = (response["status_details"] or {}).get("error") or {}
            raise ServiceRefusedError(f"the answer failed: {error.get('message', 'no reason was given')}")
        if response["status"] == "cancelled":
            return
        while self._sink.playing:  # noqa: ASYNC110 - a device tells nobody when it has played
            await asyncio.sleep(0.02)
        self._rest()
        if self._options.once:
            self.stop()

    def _rest(self) -> None:
        self._busy = False
        self._watcher.state("listening")

    async def _failed(self, event: Event) -> None:
        """What the service refuses of a session that goes on is shown by the watcher; truncation may come late."""
        error = event["error"]
        if error.get("code") in ("session_expired", "shutting_down"):
            raise ServiceRefusedError(error["message"])

    async def _not_heard(self, event: Event) -> None:
        raise ServiceRefusedError(f"the speech was not transcribed: {event['error']['message']}")


_Handler = Callable[[Talk, Event], Any]
_HANDLERS: Final[Mapping[str, _Handler]] = {
    "input_audio_buffer.speech_started": Talk._started,
    "input_audio_buffer.speech_stopped": Talk._stopped,
    "conversation.item.input_audio_transcription.completed": Talk._heard,
    "conversation.item.input_audio_transcription.failed": Talk._not_heard,
    "response.output_audio_transcript.delta": Talk._said,
    "response.done": Talk._answered,
    "error": Talk._failed,
}


def begins_with(text: str, wake: str) -> bool:
    """Whether a transcription begins with a word or several, whatever their case and the punctuation around them."""
    words, wanted = (re.findall(r"[\w']+", one.lower()) for one in (text, wake))
    return bool(wanted) and words[: len(wanted)] == wanted
