"""The body of POST /v1/responses as OpenAI's document has it, plus our extensions. What is ignored or refused is typed `Any`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from edgewise.api.extensions import DrawingBody
from edgewise.api.fields import Refusal, empty, never, one_of

IGNORED = frozenset(
    {
        "access_programs",
        "max_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
"""`max_tool_calls` counts calls of built-in tools, of which there are none."""

REFUSED: Mapping[str, Refusal] = {
    "background": Refusal("an answer is made while its caller waits; for later answers use /v1/batches", one_of(False)),
    "background_options": Refusal("an answer is made while its caller waits", empty),
    "context_management": Refusal("a conversation is sent as it is", empty),
    "conversation": Refusal("conversations are continued with 'previous_response_id'", never),
    "image": Refusal("pictures cannot be read yet", empty),
    "moderation": Refusal("no moderation model is run", never),
    "prompt": Refusal("no prompt templates are kept here", never),
    "reasoning": Refusal("no model here has a setting for it", one_of({}, {"effort": "none"})),
    "truncation": Refusal("a prompt that does not fit is refused, never cut", one_of("disabled")),
}

INCLUDE_LOGPROBS = "message.output_text.logprobs"
INCLUDE_IGNORED = frozenset(
    {
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        "reasoning.encrypted_content",
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)
"""What they would show is never in an answer here."""

MAX_METADATA = 16


class ResponsesBody(DrawingBody):
    input: Annotated[Any, Field(json_schema_extra={"type": ["string", "array"]})]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA)] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream_options: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tool_choice: Any = None
    tools: list[dict[str, Any]] | None = None
    access_programs: Any = None
    background: Any = None
    background_options: Any = None
    context_management: Any = None
    conversation: Any = None
    image: Any = None
    max_tool_calls: Any = None
    moderation: Any = None
    prompt: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    truncation: Any = None
    user: Any = None


Role = Literal["system", "developer", "user", "assistant"]
