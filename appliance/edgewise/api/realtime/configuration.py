"""What is in force in a session: what a client has said of it so far, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from edgewise.api.realtime.schemas import AudioFormat, ResponseFields, ServerVad, SessionFields
from edgewise.core.errors import UnsupportedField
from edgewise.pipeline.voice.protocols import Hints, Speech
from edgewise.pipeline.voice.session import SessionOptions
from edgewise.pipeline.voice.turns import TurnOptions

INSTRUCTIONS = (
    "You are a helpful assistant in a spoken conversation. Answer in one or two short sentences of plain words, without lists or "
    "markup."
)
"""In force where a client gives none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNames:
    """The models of a session, by their role."""

    chat: str
    transcription: str
    speech: str
    vad: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Attributes:
    turns: None without turn detection.
    max_output_tokens: None for what the context leaves.
    voice: None for the voice model's first.
    """

    names: ModelNames
    instructions: str = INSTRUCTIONS
    text_only: bool = False
    max_output_tokens: int | None = None
    input_rate: int = 24_000
    output_rate: int = 24_000
    turns: ServerVad | None = field(default_factory=lambda: ServerVad(type="server_vad"))
    voice: str | None = None
    speed: float = 1.0
    language: str | None = None
    prompt: str | None = None

    @property
    def options(self) -> SessionOptions:
        """The same for the loop."""
        vad = self.turns
        return SessionOptions(
            instructions=self.instructions,
            turns=None
            if vad is None
            else TurnOptions(
                threshold=vad.threshold, silence_ms=vad.silence_duration_ms, prefix_ms=vad.prefix_padding_ms
            ),
            respond=vad is not None and vad.create_response,
            interrupt=vad is not None and vad.interrupt_response,
            input_rate=self.input_rate,
            output_rate=self.output_rate,
            speech=Speech(voice=self.voice, speed=self.speed),
            hints=Hints(language=self.language, prompt=self.prompt),
            max_tokens=self.max_output_tokens,
            text_only=self.text_only,
        )

    def show(self, id: str, expires_at: int) -> dict[str, Any]:
        """OpenAI's session object."""
        names = self.names
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": id,
            "model": names.chat,
            "output_modalities": _modalities(self.text_only),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens or "inf",
            "tools": [],
            "tool_choice": "auto",
            "truncation": "auto",
            "expires_at": expires_at,
            "audio": {
                "input": {
                    "format": _format(self.input_rate),
                    "noise_reduction": None,
                    "transcription": {
                        "model": names.transcription,
                        "language": self.language,
                        "prompt": self.prompt,
                    },
                    "turn_detection": None
                    if self.turns is None
                    else self.turns.model_dump(exclude={"idle_timeout_ms"}),
                },
                "output": {
                    "format": _format(self.output_rate),
                    "voice": self.voice,
                    "speed": self.speed,
                    "model": names.speech,
                },
            },
        }

    def updated(self, fields: SessionFields) -> Configuration:
        """With what a client says; raises `UnsupportedField` for what cannot change within a session."""
        self._check_models(fields)
        changes = _answer_changes(fields)
        sound, heard = fields.audio and fields.audio.output, fields.audio and fields.audio.input
        if sound:
            changes |= _given(sound, voice="voice", speed="speed")
            changes |= _rate(sound.format, "output_rate")
        if heard:
            changes |= _rate(heard.format, "input_rate")
            if "turn_detection" in heard.model_fields_set:
                changes["turns"] = heard.turn_detection
            if heard.transcription:
                changes |= {"language": heard.transcription.language, "prompt": heard.transcription.prompt}
        return replace(self, **changes)

    def for_answer(self, fields: ResponseFields | None) -> Configuration:
        """With what a client says of one answer."""
        if fields is None:
            return self
        changes = _answer_changes(fields)
        if fields.audio and fields.audio.output:
            changes |= _given(fields.audio.output, voice="voice")
            changes |= _rate(fields.audio.output.format, "output_rate")
        return replace(self, **changes)

    def _check_models(self, fields: SessionFields) -> None:
        audio = fields.audio
        transcription = audio and audio.input and audio.input.transcription
        speech = audio and audio.output
        for asked, now, param in (
            (fields.model, self.names.chat, "session.model"),
            (transcription.model if transcription else None, self.names.transcription, _TRANSCRIPTION_MODEL),
            (speech.model if speech else None, self.names.speech, "session.audio.output.model"),
        ):
            if asked is not None and asked != now:
                raise UnsupportedField(
                    f"'{param}' is '{asked[:80]}', but this session has '{now}' and keeps it: open another session, and name "
                    "its models in the URL ('model', 'transcription_model', 'speech_model').",
                    param=param,
                )


_TRANSCRIPTION_MODEL = "session.audio.input.transcription.model"


def _answer_changes(fields: SessionFields | ResponseFields) -> dict[str, Any]:
    changes = _given(fields, instructions="instructions")
    if fields.output_modalities is not None:
        changes["text_only"] = fields.output_modalities == ["text"]
    if fields.max_output_tokens is not None:
        most = fields.max_output_tokens
        changes["max_output_tokens"] = None if isinstance(most, str) else most
    return changes


def _given(body: Any, **names: str) -> dict[str, Any]:
    return {ours: value for theirs, ours in names.items() if (value := getattr(body, theirs)) is not None}


def _rate(format: AudioFormat | None, name: str) -> dict[str, Any]:
    return {} if format is None else {name: format.rate}


def _format(rate: int) -> dict[str, Any]:
    return {"type": "audio/pcm", "rate": rate}


def _modalities(text_only: bool) -> list[str]:
    return ["text"] if text_only else ["audio"]
