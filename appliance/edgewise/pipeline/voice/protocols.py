"""What a voice session needs of models, and what it tells whoever it talks to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edgewise.core.errors import EdgewiseError
from edgewise.pipeline.receipts import Usage
from edgewise.pipeline.voice.conversation import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A turn of speech in words; no words where none were spoken. `receipt` says by which model and how."""

    text: str
    seconds: float
    receipt: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A piece of speech: signed 16-bit samples of one channel; `compute_s` is how long it took to make."""

    samples: bytes
    rate: int
    compute_s: float = 0.0


class WrittenPiece(Protocol):
    """A piece of an answer's text."""

    @property
    def text(self) -> str: ...

    @property
    def finish(self) -> str | None: ...


class Writing(Protocol):
    """An answer that a language model writes: `pipeline.run.Run`, and its place among the requests in flight."""

    def chunks(self) -> AsyncIterator[WrittenPiece]: ...

    def usage(self) -> Usage: ...

    def receipt(self) -> Mapping[str, Any]: ...

    async def aclose(self) -> None:
        """Cancel what still runs and give the place back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """How an answer is spoken."""

    voice: str | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What is known of speech before it is transcribed: its language, and words like those that will come."""

    language: str | None = None
    prompt: str | None = None


class VoiceModels(Protocol):
    """The models of one session. All raise `EdgewiseError`."""

    @property
    def context(self) -> int:
        """Tokens of prompt and answer together."""

    def tokens(self, text: str, /) -> int: ...

    async def prepare(self) -> None:
        """Load what is not loaded, so that the first turn need not wait for it."""

    def check(self, hints: Hints) -> None:
        """Raises `InvalidRequest` where the model that transcribes cannot take them."""

    async def probabilities(self, samples: bytes, state: bytes) -> tuple[Sequence[float], bytes]:
        """How likely each frame of whole frames is speech, and the state for the next call; b"" is the state at the beginning."""

    async def transcribe(self, id: str, samples: bytes, hints: Hints) -> Heard:
        """16-bit samples at 16 kHz, in words."""

    async def write(self, id: str, messages: tuple[Mapping[str, Any], ...], max_tokens: int | None) -> Writing:
        """Begin an answer."""

    def speak(self, id: str, text: str, how: Speech) -> AsyncGenerator[Sound, None]:
        """A text in pieces of sound, as they are made; none where nothing of it can be spoken."""


# --- what is told ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    item_id: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """`cut`: the turn was ended because it had the greatest length."""

    item_id: str
    at_ms: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """The sound of a turn has become an item."""

    item: Item
    previous_id: str | None


@dataclass(frozen=True, slots=True)
class Transcribed:
    item: Item
    heard: Heard


@dataclass(frozen=True, slots=True)
class TranscriptionFailed:
    item: Item
    error: EdgewiseError


@dataclass(frozen=True, slots=True)
class ItemDropped:
    """It is told to the model no more, for lack of room in its context."""

    item_id: str


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    item: Item


@dataclass(slots=True, kw_only=True)
class Response:
    """One answer, in its making and as it ended.

    Attributes:
        status: "in_progress", "completed", "cancelled", "incomplete" or "failed".
        reason: Why it was cancelled or is incomplete: "turn_detected", "client_cancelled", "max_output_tokens", "content_filter".
        first_sound_s: From the end of the speaker's last word, or from the request of an answer, to the first sound.
        worst_gap_s: Longest silence that a listener had because sound came too late.
        speech_s, speak_s: Duration of the speech, and how long it took to make.
        unspoken: Phrases that the voice has no sound for; they are text only.
        dropped: Items that were dropped from the conversation since the answer before.
        ended: Whether its end has been told.
    """

    id: str
    item: Item
    text_only: bool
    status: str = "in_progress"
    reason: str | None = None
    error: EdgewiseError | None = None
    usage: Usage | None = None
    receipt: Mapping[str, Any] | None = None
    transcription: Mapping[str, Any] | None = None
    first_sound_s: float | None = None
    worst_gap_s: float = 0.0
    speech_s: float = 0.0
    speak_s: float = 0.0
    unspoken: int = 0
    dropped: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class ResponseBegan:
    response: Response
    previous_id: str | None


@dataclass(frozen=True, slots=True)
class TextDelta:
    response: Response
    text: str


@dataclass(frozen=True, slots=True)
class AudioDelta:
    response: Response
    samples: bytes


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    response: Response


@dataclass(frozen=True, slots=True)
class Failed:
    """Something that was not asked for by one message went wrong; the session goes on."""

    error: EdgewiseError


Told = (
    SpeechStarted
    | SpeechStopped
    | Committed
    | Transcribed
    | TranscriptionFailed
    | ItemDropped
    | ItemTruncated
    | ResponseBegan
    | TextDelta
    | AudioDelta
    | ResponseEnded
    | Failed
)
Tell = Callable[[Told], Awaitable[None]]
"""Takes what is told before it waits, so that a caller who is cancelled has told it; the wait is for a listener who is behind.
It does not raise: a listener who has left is told nothing more."""


class VoiceObserver(Protocol):
    """Hears of every answer's end, and of every interruption; for metrics."""

    def answered(self, response: Response, /) -> None: ...

    def interrupted(self) -> None: ...
