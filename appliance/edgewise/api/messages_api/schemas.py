"""The bodies of /v1/messages and /v1/messages/count_tokens as Anthropic's document has them, plus our extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgewise.api.extensions import DrawingBody
from edgewise.api.fields import Refusal, empty, never, one_of

IGNORED = frozenset(
    {
        "cache_control",
        "diagnostics",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""The prefix cache works without `cache_control`."""

REFUSED: Mapping[str, Refusal] = {
    "container": Refusal("no code is run here", never),
    "context_management": Refusal("a conversation is sent as it is", empty),
    "mcp_servers": Refusal("no foreign servers are called", empty),
    "thinking": Refusal("no model here has a setting for it", one_of({"type": "disabled"})),
}
MAX_STOP_SEQUENCES = 16
_Stop = Annotated[str, Field(min_length=1, max_length=4096)]


class Turn(BaseModel):
    """One message."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["user", "assistant", "system"]
    content: Any


class _Conversation(DrawingBody):
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Any = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    metadata: Any = None
    service_tier: Any = None
    speed: Any = None
    thinking: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


class MessagesBody(_Conversation):
    max_tokens: Annotated[int, Field(ge=1)]
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    stop_sequences: Annotated[list[_Stop], Field(max_length=MAX_STOP_SEQUENCES)] | None = None


class CountBody(_Conversation):
    """What would be sent; the fields about drawing have no effect on a count."""

    max_tokens: Any = None
    temperature: Any = None
    stop_sequences: Any = None
