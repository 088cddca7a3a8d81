"""The body of /v1/audio/speech as OpenAI's document has it, plus our extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.fields import Refusal, empty
from edgewise.api.keep_alive import KeepAlive
from edgewise.api.schemas import MAX_TIMEOUT_S
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.models.media.sound_out import SoundFormat

MAX_INPUT: Final = 4096
"""Characters of one request, as OpenAI has it."""
MIN_SPEED: Final = 0.25
MAX_SPEED: Final = 4.0

REFUSED: Final[Mapping[str, Refusal]] = {
    "instructions": Refusal("no voice here takes any; choose a 'voice' and a 'speed'", empty),
}
EXTENSIONS: Final = ("keep_alive", "timeout")


class SpeechBody(BaseModel):
    """POST /v1/audio/speech. `null` means "not given" everywhere."""

    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())

    input: Annotated[str, Field(json_schema_extra={"maxLength": MAX_INPUT})]
    model: str | None = None
    voice: str | None = None
    response_format: SoundFormat | None = None
    speed: Annotated[float, Field(ge=MIN_SPEED, le=MAX_SPEED)] | None = None
    stream_format: Literal["audio", "sse"] | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    keep_alive: KeepAlive = None
    instructions: Any = None


def check(body: SpeechBody) -> None:
    """Refuse what would change the speech and is not supported, and a text that is too long.

    Raises:
        InvalidRequest: Naming the field.
    """
    for name, refusal in REFUSED.items():
        value = getattr(body, name)
        if value is not None and not refusal.harmless(value):
            raise UnsupportedField(f"'{name}' is not supported here: {refusal.why}.", param=name)
    if len(body.input) > MAX_INPUT:
        raise InvalidRequest(
            f"'input' has {len(body.input)} characters: at most {MAX_INPUT} are spoken in one request. Send it in pieces.",
            param="input",
        )
