"""Chat answers that are spoken as well: `modalities` and `audio`, and how they are written, as OpenAI documents it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from edgewise.api.checks import a_string, an_object, only
from edgewise.api.deps import ApiDependencies
from edgewise.api.errors import WrongType
from edgewise.api.parse import AnswerForm
from edgewise.api.schemas import ChatBody
from edgewise.api.shapes import ChatShape, Gathered
from edgewise.api.writers import ChoicesWriter
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.engine.speech import Sound
from edgewise.models.media.sound_out import SoundFormat, open_sound
from edgewise.pipeline.run import Run
from edgewise.pipeline.text import TextChunk

_FORMATS: Final[Mapping[str, SoundFormat]] = {
    "wav": "wav",
    "aac": "aac",
    "mp3": "mp3",
    "flac": "flac",
    "opus": "opus",
    "pcm16": "pcm",
}
_ALONE: Final = (
    "stop",
    "tools",
    "response_format",
    "logprobs",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
"""Fields of answers in text alone: what they cut, hide or describe is spoken already, or is no speech."""


def voice_of(body: ChatBody) -> tuple[str | None, SoundFormat | None]:
    """The voice that is asked for and the format of its sound; None for an answer in text alone.

    Raises:
        InvalidRequest: Or a subclass, naming the field.
    """
    if body.modalities in (None, ["text"]):
        if body.audio is not None:
            raise InvalidRequest("""'audio' needs 'modalities': ["text", "audio"].""", param="audio")
        return None, None
    if not isinstance(body.modalities, list) or sorted(map(str, body.modalities)) != ["audio", "text"]:
        raise InvalidRequest("""'modalities' must be ["text"] or ["text", "audio"].""", param="modalities")
    audio = an_object(body.audio, "audio")
    only(audio, {"voice", "format"}, "audio")
    if not isinstance(audio.get("voice"), str | None):
        raise WrongType("'audio.voice' must be the name of one of the model's voices.", param="audio.voice")
    voice, format = a_string(audio, "voice", "audio"), a_string(audio, "format", "audio")
    if format not in _FORMATS:
        raise InvalidRequest(f"'audio.format' must be one of {', '.join(_FORMATS)}.", param="audio.format")
    if body.stream and format != "pcm16":
        raise InvalidRequest("'audio.format' must be 'pcm16' with 'stream'.", param="audio.format")
    if (body.n or 1) > 1:
        raise UnsupportedField("'n' is 1 for answers that are spoken: ask again for another.", param="n")
    for name in _ALONE:
        if getattr(body, name):
            raise UnsupportedField(f"'{name}' is not supported for answers that are spoken: leave one out.", param=name)
    return voice, _FORMATS[format]


class SpokenShape(ChatShape):
    """The text is the transcript of the sound; the message has no other content."""

    def __init__(self, run: Run, form: AnswerForm, created: int) -> None:
        super().__init__(run, form, created)
        self._audio = {"id": f"audio_{run.task.id.removeprefix('req_')}"}
        self._expires = {"expires_at": created}
        self.encoded = b""

    def opening(self) -> list[dict[str, Any]]:
        return [self._delta(0, {"role": "assistant", "content": None, "refusal": None})]

    def deltas(self, chunk: TextChunk) -> list[dict[str, Any]]:
        choices = []
        if chunk.text:
            choices.append(self._delta(0, {"audio": self._audio | {"transcript": chunk.text}}))
        if chunk.sound is not None:
            choices.append(self._delta(0, {"audio": self._audio | {"data": _base64(chunk.sound.samples)}}))
        if chunk.finish is not None:
            choices.append(self._delta(0, {"audio": self._audio | self._expires}))
            choices.append(self._delta(0, {}, finish=chunk.finish))
        return choices

    def choice(self, index: int, answer: Gathered) -> dict[str, Any]:
        audio = self._audio | self._expires | {"data": _base64(self.encoded), "transcript": "".join(answer.text)}
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "annotations": [],
            "audio": audio,
        }
        return {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish}


class SpokenWriter(ChoicesWriter):
    """As for chats; the sound of a whole body is encoded before it is written."""

    def __init__(
        self, deps: ApiDependencies, run: Run, shape: SpokenShape, form: AnswerForm, format: SoundFormat
    ) -> None:
        super().__init__(run, shape, form)
        self._metrics = deps.metrics
        self._spoken = shape
        self._format = format
        self._sounds: list[Sound] = []

    def gather(self, chunk: TextChunk) -> None:
        super().gather(chunk)
        if chunk.sound is not None:
            self._sounds.append(chunk.sound)

    async def settle(self) -> None:
        """Encode, and count what was said."""
        self._spoken.encoded = await asyncio.to_thread(_encoded, self._sounds, self._format)
        told = self._run.receipt().speech
        if told is None or told.first_audio_ms is None:
            return
        self._metrics.first_audio.observe(told.first_audio_ms / 1000)
        self._metrics.speaking_factor.observe(told.real_time_factor)
        self._metrics.playback_gap.observe(told.worst_gap_ms / 1000)


def _encoded(sounds: Sequence[Sound], format: SoundFormat) -> bytes:
    if not sounds:
        return b""
    writer = open_sound(format, sounds[0].rate, sum(one.count for one in sounds))
    return b"".join([*(writer.write(one.samples) for one in sounds), writer.close()])


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
