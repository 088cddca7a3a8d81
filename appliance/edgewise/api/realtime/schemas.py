"""The events of a client, as OpenAI's Realtime API has them (its GA names); docs/voice.md lists the subset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.fields import Refusal, empty, never, one_of
from edgewise.core.errors import UnsupportedField

Rate = Literal[24000, 16000]
Modality = Literal["text", "audio"]
MAX_INSTRUCTIONS: Final = 32_768
"""Characters."""
MAX_TEXT: Final = 32_768
"""Characters of one part of a written message."""


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


class AudioFormat(_Body):
    """16-bit samples, little-endian, one channel. 16 kHz is our extension."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Rate = 24000


class ServerVad(_Body):
    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0.05, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] = 500
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: Any = None


class Transcription(_Body):
    """`model`: by default the first that is installed; `language`: where the model knows several."""

    model: str | None = None
    language: Annotated[str, Field(max_length=20)] | None = None
    prompt: Annotated[str, Field(max_length=2000)] | None = None


class AudioInput(_Body):
    format: AudioFormat | None = None
    noise_reduction: Any = None
    transcription: Transcription | None = None
    turn_detection: ServerVad | None = None


class AudioOutput(_Body):
    """`model` is our extension: which voice model speaks."""

    format: AudioFormat | None = None
    voice: str | None = None
    speed: Annotated[float, Field(ge=0.25, le=1.5)] | None = None
    model: str | None = None


class Audio(_Body):
    input: AudioInput | None = None
    output: AudioOutput | None = None


class SessionFields(_Body):
    """What a client may say of a session. What is not said stays as it is."""

    type: Literal["realtime"] = "realtime"
    model: str | None = None
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS)] | None = None
    output_modalities: Annotated[list[Modality], Field(min_length=1, max_length=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=4096)] | Literal["inf"] | None = None
    audio: Audio | None = None
    include: Any = None
    parallel_tool_calls: Any = None
    prompt: Any = None
    reasoning: Any = None
    tool_choice: Any = None
    tools: Any = None
    tracing: Any = None
    truncation: Any = None


class SessionUpdate(_Body):
    type: str
    event_id: str | None = None
    session: SessionFields


class Append(_Body):
    type: str
    event_id: str | None = None
    audio: str


class Plain(_Body):
    """An event without fields."""

    type: str
    event_id: str | None = None


class TextPart(_Body):
    type: Literal["input_text", "output_text"]
    text: Annotated[str, Field(max_length=MAX_TEXT)]


class NewItem(_Body):
    id: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    object: Literal["realtime.item"] | None = None
    type: Literal["message"]
    status: Literal["completed", "incomplete", "in_progress"] | None = None
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[TextPart], Field(min_length=1, max_length=64)]


class ItemCreate(_Body):
    type: str
    event_id: str | None = None
    previous_item_id: str | None = None
    item: NewItem


class ItemDelete(_Body):
    type: str
    event_id: str | None = None
    item_id: str


class ItemTruncate(_Body):
    type: str
    event_id: str | None = None
    item_id: str
    content_index: int
    audio_end_ms: Annotated[int, Field(ge=0)]


class ResponseOutput(_Body):
    format: AudioFormat | None = None
    voice: str | None = None


class ResponseAudio(_Body):
    output: ResponseOutput | None = None


class ResponseFields(_Body):
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS)] | None = None
    output_modalities: Annotated[list[Modality], Field(min_length=1, max_length=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=4096)] | Literal["inf"] | None = None
    audio: ResponseAudio | None = None
    conversation: Any = None
    input: Any = None
    metadata: Any = None
    parallel_tool_calls: Any = None
    prompt: Any = None
    reasoning: Any = None
    tool_choice: Any = None
    tools: Any = None


class ResponseCreate(_Body):
    type: str
    event_id: str | None = None
    response: ResponseFields | None = None


class ResponseCancel(_Body):
    type: str
    event_id: str | None = None
    response_id: str | None = None


_TOOLS = "no tools are called in a voice session; /v1/chat/completions calls them"
REFUSED: Final[Mapping[str, Refusal]] = {
    "include": Refusal("no further data are sent", empty),
    "parallel_tool_calls": Refusal(_TOOLS, one_of(True, False)),
    "prompt": Refusal("there are no stored prompts; send 'instructions'", never),
    "reasoning": Refusal("no model here has a setting for it", never),
    "tool_choice": Refusal(_TOOLS, one_of("auto", "none")),
    "tools": Refusal(_TOOLS, empty),
    "tracing": Refusal("no traces are sent anywhere", never),
    "truncation": Refusal("the oldest turns are dropped when the context is full", one_of("auto")),
    "conversation": Refusal("every answer belongs to the session's conversation", one_of("auto")),
    "input": Refusal("an answer is to the session's conversation", empty),
    "metadata": Refusal("no metadata are kept", empty),
    "noise_reduction": Refusal("sound is taken as it comes", never),
    "idle_timeout_ms": Refusal("a session waits for its speaker", never),
}


def refuse(body: BaseModel, path: str) -> None:
    """Refuse by name what would change the conversation and is not supported. Raises `UnsupportedField`."""
    for name in type(body).model_fields:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            refuse(value, f"{path}.{name}")
        elif name in REFUSED and value is not None and not REFUSED[name].harmless(value):
            raise UnsupportedField(
                f"'{path}.{name}' is not supported here: {REFUSED[name].why}.", param=f"{path}.{name}"
            )
