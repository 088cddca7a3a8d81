"""What is asked of a transcription, what comes back, and its receipt. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.models.media.rates import RATE
from edgewise.pipeline.listener import ServedListener
from edgewise.pipeline.model import ServedEncoder
from edgewise.pipeline.plan import PolicyName
from edgewise.pipeline.receipts import Receipt, StageReceipt
from edgewise.pipeline.transcribe.words import Word

Aim = Literal["transcribe", "translate"]
SAMPLE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeTask:
    """One recording; what is not said here is as in `pipeline.task.Task`.

    Attributes:
        detector: Finds speech; None where no such model is installed.
        samples: float32 at 16 kHz, mono.
        aim: "translate" writes English, whatever is spoken.
        language: Code of what is spoken; None finds it out.
        languages: Among which it is found out; empty for all that the model knows.
        prompt: What the text could have begun with: names and style.
        temperature: None and 0 begin at 0 and go up where the text looks wrong.
        words: Whether segments have their words with times.
        notes: Sentences for the receipt about the file.
    """

    id: str
    model: ServedListener
    detector: ServedEncoder | None
    samples: bytes
    aim: Aim = "transcribe"
    language: str | None = None
    languages: tuple[str, ...] = ()
    prompt: str = ""
    temperature: float | None = None
    words: bool = False
    notes: tuple[str, ...] = ()
    salt: str = ""
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None
    privacy: Privacy = Privacy.PRIVATE
    policy: PolicyName | None = None
    ignored: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long the recording is."""
        return len(self.samples) / SAMPLE_BYTES / RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of text with its time in seconds.

    Attributes:
        tokens: Of the text, times left out.
        temperature: At which it was drawn.
        avg_logprob: Mean natural logarithm of the probability of its window's words.
        compression_ratio: Bytes of its window's text over those of the same, compressed: high where words repeat.
        no_speech_prob: 1 - the mean probability of speech in it, as the detector has it; 0 without a detector.
        words: In order, in seconds of the recording; empty where they were not asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A piece of the answer.

    Attributes:
        text: The next characters of the whole text; hooks may have held them back or changed them.
        segments: Those that are new.
        finish: Set on the last piece.
    """

    text: str
    segments: tuple[Segment, ...]
    finish: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectReceipt(StageReceipt):
    """A model found where somebody speaks: `speech_s` of `audio_s`. Seconds are of sound."""

    model: str
    audio_s: float
    speech_s: float
    compute_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenReceipt(StageReceipt):
    """`windows` of at most 30 s were heard; `retries` were written again, at the `temperatures` at which texts were kept.

    `language_prob` is None where the language was told. `real_time_factor` is computing time over the length of the recording.
    """

    language: str
    language_prob: float | None
    windows: int
    retries: int
    temperatures: tuple[float, ...]
    prefill_ms: float
    decode_ms: float
    real_time_factor: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeReceipt(Receipt):
    """The receipt of a transcription."""

    stages: tuple[StageReceipt, ...]
