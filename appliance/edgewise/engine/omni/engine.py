"""The engine of a model that answers in text and speech: a text engine is its Thinker, Talker and Code2Wav have turns beside it.

Text goes first. While the Thinker has work, the other stages may use a share of the time that its steps take; a turn that takes
more is made up for by the next steps. Text is then written at least 1 / (1 + `AUDIO_SHARE`) as fast as without them, and waits
for that share of a step and one turn at most. With no text to write they have the device to themselves.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from edgewise.core.errors import EngineFault, InvalidRequest
from edgewise.core.log import get_logger
from edgewise.engine.api import CacheTier, EngineInfo, EngineStats, MemoryReport
from edgewise.engine.engine import Engine
from edgewise.engine.messages import PageOrder, PageReply
from edgewise.engine.notices import Notify
from edgewise.engine.omni.answer import Answer
from edgewise.engine.omni.stages import SpeechStages
from edgewise.engine.request import GenerateRequest, TokenChunk

log = get_logger(__name__)

AUDIO_SHARE: Final = 0.25
"""Of the time of the Thinker's steps, for the other stages."""
_IDLE_S: Final = 0.001


class OmniEngine:
    """An `engine.core.EngineCore`. What it is not told of here is done by the text engine.

    Args:
        thinker: Its runner is observed by `stages`.
    """

    def __init__(
        self,
        thinker: Engine,
        stages: SpeechStages,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.info: EngineInfo = replace(thinker.info, voices=tuple(stages.voices))
        self._thinker = thinker
        self._stages = stages
        self._now = now
        self._wait = wait
        self._saved = 0.0
        self._outbox: list[TokenChunk] = []

    def add(self, request: GenerateRequest) -> None:
        """See `EngineCore.add`. A spoken answer is begun again where it was interrupted: its sound needs all that was thought,
        so it shares no cached pages either, not even its own from an earlier life of the engine, which the disk may hold."""
        if request.speech is None:
            self._thinker.add(request)
            return
        if request.constraint is not None:
            raise InvalidRequest(
                "An answer in a grammar cannot be spoken: ask for text alone.", param="response_format"
            )
        fresh = replace(request, output=(), apart=secrets.token_hex(16), shared=False)
        self._stages.add(fresh)
        try:
            self._thinker.add(replace(fresh, speech=None))
        except BaseException:
            self._stages.remove(request.id)
            raise

    def cancel(self, request_id: str) -> None:
        """See `EngineCore.cancel`."""
        self._thinker.cancel(request_id)
        answer = self._stages.get(request_id)
        if answer is not None and answer.text_end is not None:
            self._outbox.append(self._last(answer, replace(answer.text_end, finish="cancelled")))

    @property
    def has_work(self) -> bool:
        return self._thinker.has_work or bool(self._stages.answers) or bool(self._outbox)

    def step(self) -> list[TokenChunk]:
        """See `EngineCore.step`."""
        chunks, self._outbox = self._outbox, []
        if not self._thinker.busy:
            self._saved = 0.0
            if self._thinker.has_work:
                chunks += self._think()
            did, sound = self._stages.turn()
            if not (did or chunks or any(answer.finished for answer in self._stages.answers)):
                self._wait(_IDLE_S)
            return chunks + self._sounds(sound) + self._ends()
        began = self._now()
        chunks += self._think()
        now = self._now()
        self._saved += AUDIO_SHARE * (now - began)
        while self._saved > 0:
            did, sound = self._stages.turn()
            chunks += self._sounds(sound)
            if not did:
                self._saved = 0.0
                break
            took, now = self._now() - now, self._now()
            self._saved -= took
        return chunks + self._ends()

    def _think(self) -> list[TokenChunk]:
        """A step of the Thinker."""
        told = [self._told(chunk) for chunk in self._thinker.step()]
        return [chunk for chunk in told if chunk.tokens or chunk.finish is not None]

    def _sounds(self, sound: TokenChunk | None) -> list[TokenChunk]:
        """With the offset that text has reached, of which a chunk of sound says nothing new."""
        if sound is None:
            return []
        answer = self._stages.get(sound.request_id)
        assert answer is not None
        return [replace(sound, offset=answer.written)]

    def _told(self, chunk: TokenChunk) -> TokenChunk:
        """A chunk of the Thinker; the end of a text that is still to be spoken is kept."""
        answer = self._stages.get(chunk.request_id)
        if answer is None:
            return chunk
        if chunk.finish == "stop":  # its last token ends the answer, and comes when all has been said
            answer.text_end = replace(chunk, offset=chunk.offset + len(chunk.tokens) - 1, tokens=chunk.tokens[-1:])
            return replace(chunk, tokens=chunk.tokens[:-1], finish=None)
        if chunk.finish == "cancelled" and answer.broken:
            return self._last(answer, _failed(chunk))
        answer.written = chunk.offset + len(chunk.tokens)
        if chunk.finish == "length":
            answer.text_end = replace(chunk, offset=answer.written, tokens=())
            return replace(chunk, finish=None)
        if chunk.finish is not None:
            self._stages.remove(chunk.request_id)
        return chunk

    def _ends(self) -> list[TokenChunk]:
        """Last chunks of answers that have been said, cannot be said, or whose time is over while they are."""
        ended = []
        for answer in self._stages.answers:
            if answer.text_end is None:
                if answer.broken:  # its last chunk comes with the next step
                    self._thinker.cancel(answer.request.id)
                continue
            if answer.broken:
                ended.append(self._last(answer, _failed(answer.text_end)))
            elif answer.finished:
                ended.append(self._last(answer, answer.text_end))
            elif answer.deadline_at is not None and self._now() >= answer.deadline_at:
                late = replace(
                    answer.text_end,
                    finish="error",
                    error_code="deadline_exceeded",
                    error_message="The answer was written but not yet spoken within its time limit. Allow more time.",
                )
                ended.append(self._last(answer, late))
        return ended

    def _last(self, answer: Answer, chunk: TokenChunk) -> TokenChunk:
        self._stages.remove(answer.request.id)
        stats = chunk.stats and replace(chunk.stats, speech=answer.stats())
        return replace(chunk, stats=stats)

    # --- what the text engine does ----------------------------------------------------------------------------------------

    def limit(self, max_running: int, pace: float) -> None:
        """See `engine.core.Limited`."""
        self._thinker.limit(max_running, pace)

    def guard(self, lost: Callable[[str], None]) -> None:
        """See `engine.core.Guarded`."""
        self._thinker.guard(lost)

    def listen(self, listener: Notify) -> None:
        self._thinker.listen(listener)

    def clear_cache(self, tier: CacheTier | None) -> dict[str, int]:
        return self._thinker.clear_cache(tier)

    def pages(self, order: PageOrder) -> PageReply:
        """See `engine.core.HoldsPages`."""
        return self._thinker.pages(order)

    def stats(self) -> EngineStats:
        return self._thinker.stats()

    def memory(self) -> MemoryReport:
        return self._thinker.memory()

    def close(self) -> None:
        for answer in self._stages.answers:
            self._stages.remove(answer.request.id)
        self._thinker.close()


def _failed(chunk: TokenChunk) -> TokenChunk:
    """The last chunk of an answer that cannot be said."""
    message = "The Talker produced no finite logits for this answer."
    log.error("request_failed", request_id=chunk.request_id, code=EngineFault.code, reason=message)
    return replace(chunk, finish="error", error_code=EngineFault.code, error_message=message)
