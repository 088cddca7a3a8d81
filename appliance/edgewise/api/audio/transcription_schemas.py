"""The fields of /v1/audio/transcriptions and /v1/audio/translations as OpenAI's document has them, plus our extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.fields import Refusal, empty, never, one_of
from edgewise.api.keep_alive import KeepAlive
from edgewise.api.schemas import MAX_TIMEOUT_S
from edgewise.core.errors import InvalidRequest, UnsupportedField

AnswerFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
STREAMED: Final = ("json", "text")
"""Forms that can be sent as they grow."""
SEGMENTED: Final = ("srt", "verbose_json", "vtt")
"""Forms that show segments with their times."""
MAX_PROMPT: Final = 8000
MAX_LISTED: Final = 100

REFUSED: Final[Mapping[str, Refusal]] = {
    "chunking_strategy": Refusal("windows end where nobody speaks, which a model finds", one_of("auto")),
    "include": Refusal("'response_format' verbose_json tells how sure the model was of each segment", empty),
    "known_speaker_names": Refusal("no model here tells speakers apart", empty),
    "known_speaker_references": Refusal("no model here tells speakers apart", never),
}
EXTENSIONS: Final = ("keep_alive", "timeout")


class TranslationBody(BaseModel):
    """POST /v1/audio/translations besides its file. `null` means "not given" everywhere."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    model: str | None = None
    prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    response_format: AnswerFormat | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    keep_alive: KeepAlive = None


class TranscriptionBody(TranslationBody):
    """POST /v1/audio/transcriptions besides its file."""

    language: Annotated[str, Field(max_length=40)] | None = None
    languages: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=MAX_LISTED)] | None = None
    keywords: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=MAX_LISTED)] | None = None
    stream: bool | None = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None
    chunking_strategy: Any = None
    include: Any = None
    known_speaker_names: Any = None
    known_speaker_references: Any = None


def granularities(body: TranslationBody) -> frozenset[str]:
    """What times are told of, "segment" and "word"."""
    given = body.timestamp_granularities if isinstance(body, TranscriptionBody) else None
    return frozenset(given or ("segment",))


def check(body: TranslationBody) -> None:
    """Refuse what would change the answer and is not supported.

    Raises:
        InvalidRequest: Naming the field.
    """
    if not isinstance(body, TranscriptionBody):
        return
    for name, refusal in REFUSED.items():
        value = getattr(body, name)
        if value is not None and not refusal.harmless(value):
            raise UnsupportedField(f"'{name}' is not supported here: {refusal.why}.", param=name)
    if body.language and body.languages:
        raise InvalidRequest(
            "'language' says what is spoken and 'languages' among which to find it out: send one.", param="languages"
        )
    shape = body.response_format or "json"
    if body.stream and shape not in STREAMED:
        raise UnsupportedField(f"'stream' is for 'response_format' json and text, not for {shape}.", param="stream")
    given = body.timestamp_granularities
    if given and shape not in SEGMENTED:
        raise InvalidRequest(
            f"'timestamp_granularities' are for 'response_format' verbose_json, srt and vtt, not for {shape}.",
            param="timestamp_granularities",
        )
    if given and shape != "verbose_json" and len(set(given)) > 1:
        raise InvalidRequest(
            f"'timestamp_granularities' names both, and {shape} shows segments or words: name one.",
            param="timestamp_granularities",
        )
