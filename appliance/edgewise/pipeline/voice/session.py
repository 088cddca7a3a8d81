"""A voice session: what is heard becomes turns, turns become messages, and messages are answered aloud.

Whoever owns it calls its methods from one task, one at a time; `run` is another task of theirs. It tells what happens by one
function, and has at most one answer under way.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from edgewise.core.errors import Conflict, EdgewiseError, EngineFault, InvalidRequest
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.models.media.rates import RATE
from edgewise.pipeline.prompt import THREAD_CHARS
from edgewise.pipeline.voice.answer import Answer, AnswerOptions
from edgewise.pipeline.voice.conversation import MESSAGE_TOKENS, Conversation, Item
from edgewise.pipeline.voice.listening import Listening
from edgewise.pipeline.voice.protocols import (
    Committed,
    Failed,
    Heard,
    Hints,
    ItemDropped,
    ItemTruncated,
    Response,
    ResponseBegan,
    ResponseEnded,
    Speech,
    SpeechStarted,
    SpeechStopped,
    Tell,
    Transcribed,
    TranscriptionFailed,
    VoiceModels,
    VoiceObserver,
)
from edgewise.pipeline.voice.turns import Paused, Resumed, Started, Stopped, TurnEvent, TurnOptions

log = get_logger(__name__)

_PENDING: Final = 8
"""Turns that may wait for their transcription; the next one waits to be committed."""
_ANSWER_TOKENS: Final = 512
"""Room kept for an answer of no stated length, but at most a quarter of the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Attributes:
    turns: How turns are found; None where the caller ends them by `commit`.
    respond, interrupt: Whether the end of a turn begins an answer, and its beginning ends one.
    max_tokens: Of one answer; None for what fits.
    """

    instructions: str = ""
    turns: TurnOptions | None = field(default_factory=TurnOptions)
    respond: bool = True
    interrupt: bool = True
    input_rate: int = 24_000
    output_rate: int = 24_000
    speech: Speech = field(default_factory=Speech)
    hints: Hints = field(default_factory=Hints)
    max_tokens: int | None = None
    text_only: bool = False


class VoiceSession:
    """Args:
    max_seconds: Longest turn.
    """

    def __init__(
        self,
        models: VoiceModels,
        tell: Tell,
        *,
        options: SessionOptions,
        observer: VoiceObserver,
        max_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.conversation = Conversation()
        self._models = models
        self._tell = tell
        self._observer = observer
        self._clock = clock
        self._options = options
        self._listening = Listening(
            models, self._turn, turns=options.turns, rate=options.input_rate, max_seconds=max_seconds, clock=clock
        )
        self._item_id = _id("item")
        self._guess: asyncio.Task[Heard] | None = None
        """A transcription that began before its turn was over."""
        self._hearing: dict[str, asyncio.Task[None]] = {}
        self._transcription: Heard | None = None
        self._dropped = 0
        self._changing = asyncio.Lock()  # held while an answer is begun, or ended before its time
        self._answering: asyncio.Task[None] | None = None
        self._answer: Answer | None = None

    @property
    def options(self) -> SessionOptions:
        return self._options

    @property
    def answering(self) -> bool:
        """Whether an answer is being prepared or under way."""
        return self._answering is not None and not self._answering.done()

    # --- what a caller does ------------------------------------------------------------------------------------------------

    async def configure(self, options: SessionOptions) -> None:
        """What is in force from now on; a turn under way is forgotten if how turns are found has changed.

        Raises:
            InvalidRequest: The model that transcribes does not know the language; nothing has changed.
        """
        self._models.check(options.hints)
        self._options = options
        if self._listening.configure(options.turns, options.input_rate):
            await self._drop_guess()

    async def append(self, samples: bytes) -> None:
        """Sound at the input's rate. Raises as `Listening.append` does, and waits as it does."""
        await self._listening.append(samples)

    async def commit(self) -> None:
        """End the turn here. Raises `InvalidRequest` if nothing was heard."""
        samples = self._listening.take_turn()
        if not samples:
            raise InvalidRequest(
                "The input audio buffer is empty: append some audio before it is committed.", param="type"
            )
        await self._drop_guess()
        await self._commit(samples)

    async def clear(self) -> None:
        """Forget what was heard and not committed."""
        self._listening.restart()
        await self._drop_guess()

    async def respond(self, options: SessionOptions | None = None) -> None:
        """Begin an answer to the conversation as it stands, by other options than the session's where some are given.

        Raises:
            Conflict: One is under way.
        """
        async with self._changing:
            if self.answering:
                raise Conflict(
                    "An answer is under way: wait for its 'response.done', or cancel it by 'response.cancel'.",
                    param="type",
                )
            self._begin(options or self._options, self._clock(), asked=True)

    async def cancel(self, id: str | None) -> None:
        """End the answer under way. Raises `InvalidRequest` if there is none, or it has another id."""
        current = None if self._answer is None else self._answer.response.id
        if not self.answering or id not in (None, current):
            raise InvalidRequest(
                "No answer is under way." if id is None else f"The answer '{id[:80]}' is not under way.",
                param="response_id" if id else "type",
            )
        await self._interrupt("client_cancelled")

    async def add(self, item: Item) -> str | None:
        """Add a written item; returns the id of the one before it. Raises as `Conversation.add` does."""
        item.tokens = await self._count(item.text) + MESSAGE_TOKENS
        previous = self.conversation.add(item)
        await self._make_room()
        return previous

    async def truncate(self, item_id: str, end_ms: float) -> None:
        """An answer was heard up to here. Raises as `Conversation.truncate` does."""
        await self._tell(ItemTruncated(self.conversation.truncate(item_id, end_ms)))

    async def run(self) -> None:
        """Listen, until it is cancelled. Raises as `Listening.run` does."""
        await self._listening.run()

    async def wait_answered(self) -> None:
        """Until no answer is under way, and its end has been told."""
        if self._answering is not None:
            await asyncio.wait({self._answering})
        async with self._changing:
            return

    async def aclose(self) -> None:
        """End all that runs; nothing is told any more."""
        guess, self._guess = self._guess, None
        await end_task(self._answering, guess, *self._hearing.values())

    # --- turns --------------------------------------------------------------------------------------------------------

    async def _turn(self, event: TurnEvent) -> None:
        if isinstance(event, Started):
            await self._tell(SpeechStarted(self._item_id, _ms(event.start)))
            if self._options.interrupt:
                await self._interrupt("turn_detected")
        elif isinstance(event, Paused):
            self._guess = self._transcribe(self._listening.take(event.span))
        elif isinstance(event, Resumed):
            await self._drop_guess()
        else:
            await self._stopped(event)

    async def _stopped(self, event: Stopped) -> None:
        await self._tell(SpeechStopped(self._item_id, _ms(event.span.end), event.cut))
        since = self._listening.arrived(event.speech_end)
        await self._commit(self._listening.take(event.span))
        if not self._options.respond:
            return
        async with self._changing:
            if not self.answering:
                self._begin(self._options, since, asked=False)
                return
        await self._tell(
            Failed(Conflict("The turn is not answered by itself: another answer is under way.", param="type"))
        )

    async def _drop_guess(self) -> None:
        guess, self._guess = self._guess, None
        await end_task(guess)

    # --- what was said -----------------------------------------------------------------------------------------------------

    async def _commit(self, samples: bytes) -> None:
        """Make an item of a turn; its words come when they are known."""
        while len(self._hearing) >= _PENDING:
            await asyncio.wait(set(self._hearing.values()), return_when=asyncio.FIRST_COMPLETED)
        guess, self._guess = self._guess, None
        item = Item(id=self._item_id, role="user", audio=True, status="in_progress")
        task = guess or self._transcribe(samples)
        self._item_id = _id("item")
        previous = self.conversation.add(item)
        self._hearing[item.id] = asyncio.create_task(self._hear(item, task), name=item.id)
        await self._tell(Committed(item, previous))

    def _transcribe(self, samples: bytes) -> asyncio.Task[Heard]:
        return asyncio.create_task(self._models.transcribe(self._item_id, samples, self._options.hints))

    async def _hear(self, item: Item, transcribing: asyncio.Task[Heard]) -> None:
        try:
            heard = await transcribing
            item.text, item.status, item.tokens = heard.text.strip(), "completed", None
            self._transcription = heard
            await self._tell(Transcribed(item, heard))
            await self._make_room()
        except EdgewiseError as error:
            item.status = "incomplete"
            await self._tell(TranscriptionFailed(item, error))
        except Exception as error:  # outermost frame of a task; the caller must hear of it
            log.exception("voice_transcription_broke", item_id=item.id)
            item.status = "incomplete"
            await self._tell(TranscriptionFailed(item, _broken(error)))
        finally:
            await end_task(transcribing)
            self._hearing.pop(item.id, None)

    # --- answers -----------------------------------------------------------------------------------------------------------

    def _begin(self, options: SessionOptions, since: float, *, asked: bool) -> None:
        self._answering = asyncio.create_task(self._answered(options, since, asked), name="voice-answer")

    async def _answered(self, options: SessionOptions, since: float, asked: bool) -> None:
        """Answer, and say so where no answer could begin."""
        try:
            await self._respond(options, since, asked)
        except EdgewiseError as error:
            await self._tell(Failed(error))
        except Exception as error:  # outermost frame of a task; the caller must hear of it
            log.exception("voice_answer_not_begun")
            await self._tell(Failed(_broken(error)))

    async def _respond(self, options: SessionOptions, since: float, asked: bool) -> None:
        """Answer when all that was said is known; a turn without words is not answered by itself."""
        while self._hearing:
            await asyncio.wait(set(self._hearing.values()))
        last = self.conversation.last
        if not asked and (last is None or not last.text):
            return
        await self._make_room()
        dropped, self._dropped = self._dropped, 0
        messages = self.conversation.messages(options.instructions)
        item = Item(id=_id("item"), role="assistant", audio=not options.text_only, status="in_progress")
        response = Response(id=_id("resp"), item=item, text_only=options.text_only, dropped=dropped)
        heard, self._transcription = self._transcription, None
        response.transcription = None if heard is None else heard.receipt
        answer_options = AnswerOptions(
            max_tokens=options.max_tokens, rate=options.output_rate, speech=options.speech, since=since
        )
        answer = Answer(response, self._models, answer_options, self._tell, self._clock)
        self._answer = answer
        await self._tell(ResponseBegan(response, self.conversation.add(item)))
        await self._guarded(response, answer.run(messages))
        await self._ended(response)

    async def _make_room(self) -> None:
        """Drop the oldest items where all do not fit the context beside the instructions and an answer."""
        options, context = self._options, self._models.context
        reserved = min(options.max_tokens or _ANSWER_TOKENS, context // 4)
        head = await self._count(options.instructions) if options.instructions else 0
        for id in self.conversation.fit(self._models.tokens, context - reserved - head):
            self._dropped += 1
            await self._tell(ItemDropped(id))

    async def _count(self, text: str) -> int:
        """Tokens of a text; a long one's on a thread."""
        if len(text) > THREAD_CHARS:
            return await asyncio.to_thread(self._models.tokens, text)
        return self._models.tokens(text)

    async def _guarded(self, response: Response, work: Coroutine[Any, Any, None]) -> None:
        """A fault ends the answer, not the session."""
        try:
            await work
        except EdgewiseError as error:
            response.status, response.error = "failed", error
        except Exception as error:  # outermost frame of an answer; the caller must hear of it
            log.exception("voice_answer_broke", response_id=response.id)
            response.status, response.error = "failed", _broken(error)

    async def _ended(self, response: Response) -> None:
        item = response.item
        item.status = "completed" if response.status == "completed" else "incomplete"
        if (
            response.status in ("failed", "cancelled")
            and item.audio
            and item.end_ms is None
            and self._answer is not None
        ):
            item.end_ms = min(self._answer.pace.played_s(self._clock()) * 1000, item.audio_ms)
        response.ended = True
        self._observer.answered(response)
        await self._tell(ResponseEnded(response))

    async def _interrupt(self, reason: str) -> None:
        """End the answer under way, and have what of it was not heard yet told to no model."""
        async with self._changing:
            await end_task(self._answering)
            if self._answer is not None:
                await self._cut_short(self._answer, reason)

    async def _cut_short(self, answer: Answer, reason: str) -> None:
        response, item, now = answer.response, answer.response.item, self._clock()
        if not response.ended and response.status == "in_progress":
            response.status, response.reason = "cancelled", reason
        unheard = response.status == "cancelled" or answer.pace.playing(now)
        if item.audio and unheard and item in self.conversation:
            self._answer = None
            if reason == "turn_detected":
                self._observer.interrupted()
            if item.end_ms is None:  # else a quick client has said it already
                self.conversation.truncate(item.id, min(answer.pace.played_s(now) * 1000, item.audio_ms))
                await self._tell(ItemTruncated(item))
        if not response.ended:
            await self._ended(response)


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"


def _broken(error: Exception) -> EngineFault:
    return EngineFault(
        f"It broke off by an internal error ({type(error).__name__}); the service's log has the details."
    )


def _ms(position: int) -> int:
    return position * 1000 // RATE
