"""The bodies of /v1/chat/completions and /v1/completions as OpenAI's document has them, plus our extensions.

Types are strict ("5" is no number) and unknown fields are refused; `null` means "not given" everywhere. Fields that are ignored
or refused are typed `Any`: see `api.fields`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from edgewise.api.errors import MissingField, WrongType
from edgewise.api.keep_alive import KeepAlive
from edgewise.core.errors import EdgewiseError, InvalidRequest, UnknownField
from edgewise.pipeline.seeds import MAX_SEED

MAX_STOPS = 4
MAX_STOP_CHARS = 4096
MAX_CHOICES = 128
MAX_TIMEOUT_S = 86_400.0

_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
"""pydantic's kinds of a number out of range, in the words that the engine uses for them."""

Body = TypeVar("Body", bound=BaseModel)


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("wrong_type", "{text}", {"text": message})


def _bad(message: str) -> PydanticCustomError:
    return PydanticCustomError("bad_value", "{text}", {"text": message})


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return ()
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise _wrong(f"must be a string or a list of at most {MAX_STOPS} strings")
    if len(stops) > MAX_STOPS:
        raise _bad(f"has {len(stops)} strings: at most {MAX_STOPS} are allowed")
    if not all(stops):
        raise _bad("has an empty string: a stop string needs at least one character")
    if max(map(len, stops), default=0) > MAX_STOP_CHARS:
        raise _bad(f"has a string of {max(map(len, stops))} characters: at most {MAX_STOP_CHARS} are allowed")
    return tuple(stops)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def prompts(value: Any) -> Any:
    """A string, strings, token ids, or lists of token ids: always a tuple of str and tuples of int."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if all(_is_id(item) for item in value):
            return (tuple(value),)
        if all(isinstance(item, list) and item and all(_is_id(one) for one in item) for item in value):
            return tuple(tuple(item) for item in value)
    raise _wrong("must be a string, a list of strings, a list of token ids or a list of lists of token ids, none empty")


def _bias(value: Any) -> Any:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong("must be an object of token ids and numbers")
    bias: dict[int, float] = {}
    for key, number in value.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise _bad(f"has the key '{key[:40]}': keys are token ids, such as \"50256\"")
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise _wrong(f"of token {key} must be a number")
        bias[int(key)] = float(max(min(number, 1e9), -1e9))
    return bias


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", protected_namespaces=())


MaxImagePixels = Annotated[int, Field(ge=1, le=1 << 30)] | None
"""Extension: what a model sees of a picture at most, width * height."""


class StreamOptions(_Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ToolFunction(_Strict):
    name: str
    arguments: str


class ToolCall(_Strict):
    """A call that an earlier answer made; part of the conversation."""

    id: str
    type: Literal["function"]
    function: ToolFunction


class Message(_Strict):
    """One message of any role; which fields a role may have is checked by `api.messages`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: Any = None
    function_call: Any = None


class Generation(_Strict):
    """What both routes have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stop: Annotated[Any, BeforeValidator(_stops), Field(json_schema_extra={"type": ["string", "array", "null"]})] = ()
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[Any, BeforeValidator(_bias), Field(json_schema_extra={"type": ["object", "null"]})] = Field(
        default_factory=dict
    )
    user: Any = None
    # Extensions of ours.
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None
    keep_alive: KeepAlive = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


class ChatBody(Generation):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_image_pixels: MaxImagePixels = None
    pan_and_scan: bool | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    audio: Any = None
    function_call: Any = None
    functions: Any = None
    metadata: Any = None
    modalities: Any = None
    moderation: Any = None
    parallel_tool_calls: bool | None = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    response_format: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    tool_choice: Any = None
    tools: Any = None
    verbosity: Any = None
    web_search_options: Any = None


class CompletionBody(Generation):
    prompt: Annotated[Any, BeforeValidator(prompts), Field(json_schema_extra={"type": ["string", "array"]})]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    suffix: Any = None


def validate(schema: type[Body], value: Mapping[str, Any]) -> Body:
    """The body as its schema; raises an `InvalidRequest` that names the first offending field."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _translate(error) from error


def _translate(error: ValidationError) -> EdgewiseError:
    first = error.errors(include_url=False, include_context=True)[0]
    param = _path(first["loc"])
    kind, message = first["type"], first["msg"]
    if kind == "extra_forbidden":
        return UnknownField(f"Unknown field '{param}': remove it.", param=param)
    if kind == "missing":
        return MissingField(f"The field '{param}' is required.", param=param)
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        limit = first["ctx"][name]
        text = f"is {str(first['input'])[:40]}: it must be {words} {int(limit) if limit == int(limit) else limit}"
    elif kind == "too_short":
        text = "is empty: it needs at least one element"
    else:
        text = message if kind in ("wrong_type", "bad_value") else f"is refused: {message[:1].lower()}{message[1:]}"
    mistyped = kind == "wrong_type" or kind.endswith("_type")
    return (WrongType if mistyped else InvalidRequest)(f"'{param}' {text}.", param=param)


def _path(loc: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") as messages[0].role."""
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path[:200]
