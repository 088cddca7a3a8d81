"""A body of /v1/responses to a `Task`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgewise.api.checks import a_string, an_object, function, only, refuse
from edgewise.api.errors import WrongType
from edgewise.api.extensions import drawing
from edgewise.api.parse import AnswerForm, Caller
from edgewise.api.responses_api.items import Input, conversation_of, read_input
from edgewise.api.responses_api.schemas import IGNORED, INCLUDE_IGNORED, INCLUDE_LOGPROBS, REFUSED, ResponsesBody
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.conversations import History
from edgewise.pipeline.model import ServedModel
from edgewise.pipeline.task import AnswerFormat, Task, ToolChoice

_FUNCTION = frozenset({"type", "name", "description", "parameters", "strict"})
MAX_METADATA_KEY, MAX_METADATA_VALUE = 64, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What of a request the answer shows again.

    Attributes:
        items: The request's own input items.
        text: `{"format": ...}` as it was in force.
        tools, tool_choice: As they were sent.
    """

    items: Sequence[Mapping[str, Any]]
    instructions: str | None
    max_output_tokens: int | None
    metadata: Mapping[str, str]
    previous: str | None
    store: bool
    text: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: Any
    parallel: bool
    top_logprobs: int | None


def check_body(body: ResponsesBody) -> Input:
    """What can be said without a model and without the history; raises `InvalidRequest`, naming the field."""
    refuse(body, REFUSED)
    check_metadata(body.metadata or {})
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    only(body.stream_options or {}, frozenset({"include_obfuscation"}), "stream_options")
    return read_input(body.input)


def responses_task(
    body: ResponsesBody, given: Input, history: History, model: ServedModel, caller: Caller
) -> tuple[Task, AnswerForm, Asked]:
    """Raises `InvalidRequest` or a subclass, naming the field."""
    form, include_ignored = _include(body)
    answer_format, text, text_ignored = _text(body.text or {})
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ()))
    parallel = body.parallel_tool_calls is not False
    system = () if body.instructions is None else ({"role": "system", "content": body.instructions},)
    conversation = conversation_of(history.items, given.items)
    task = Task(
        id=caller.request_id,
        model=model,
        input=replace(conversation, messages=(*system, *conversation.messages), tools=tools),
        sampling=drawing(
            body,
            max_tokens=body.max_output_tokens,
            temperature=body.temperature,
            top_logprobs=(body.top_logprobs or 0) if form.logprobs else None,
        ),
        salt=caller.salt,
        key=caller.key_id,
        priority=caller.priority(model),
        privacy=caller.privacy(model, history.privacy),
        policy=caller.policy,
        deadline_s=caller.deadline_s(body.timeout),
        max_image_pixels=body.max_image_pixels,
        pan_and_scan=body.pan_and_scan,
        tool_choice=_tool_choice(body.tool_choice, tools, parallel=parallel),
        answer_format=answer_format,
        ignored=(*_ignored(body), *include_ignored, *text_ignored, *given.ignored),
    )
    asked = Asked(
        items=given.items,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        previous=body.previous_response_id,
        store=body.store is not False,
        text=text,
        tools=[{"description": None, "parameters": None, "strict": True, **tool} for tool in body.tools or ()],
        tool_choice=body.tool_choice or "auto",
        parallel=parallel,
        top_logprobs=body.top_logprobs,
    )
    return task, form, asked


def check_metadata(metadata: Mapping[str, str]) -> None:
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise InvalidRequest(
                f"'metadata' has an entry that is too long: keys have at most {MAX_METADATA_KEY} characters, values "
                f"{MAX_METADATA_VALUE}.",
                param="metadata",
            )


def _ignored(body: ResponsesBody) -> list[str]:
    found = [name for name in sorted(IGNORED) if getattr(body, name) is not None]
    return found + [f"stream_options.{name}" for name in body.stream_options or {}]


def _include(body: ResponsesBody) -> tuple[AnswerForm, list[str]]:
    wanted = body.include or []
    for name in wanted:
        if name != INCLUDE_LOGPROBS and name not in INCLUDE_IGNORED:
            raise InvalidRequest(f"'include' has '{name[:60]}', which does not exist.", param="include")
    logprobs = INCLUDE_LOGPROBS in wanted or body.top_logprobs is not None
    form = AnswerForm(stream=bool(body.stream), include_usage=True, return_token_ids=False, logprobs=logprobs)
    return form, [f"include.{name}" for name in wanted if name != INCLUDE_LOGPROBS]


def _text(value: dict[str, Any]) -> tuple[AnswerFormat | None, dict[str, Any], list[str]]:
    """The answer's form, as it is shown again, and what of it has no effect."""
    only(value, frozenset({"format", "verbosity"}), "text")
    if value.get("verbosity") not in (None, "medium"):
        raise UnsupportedField(
            "'text.verbosity' is not supported here: no model here has a setting for it.", param="text.verbosity"
        )
    if value.get("format") is None:
        return None, {"format": {"type": "text"}}, []
    wanted = an_object(value["format"], "text.format")
    kind = wanted.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(
            f"'text.format.type' is '{str(kind)[:40]}': it must be 'text', 'json_object' or 'json_schema'.",
            param="text.format.type",
        )
    if kind != "json_schema":
        only(wanted, frozenset({"type"}), "text.format")
        return None if kind == "text" else AnswerFormat(kind=kind, param="text.format"), {"format": wanted}, []
    only(wanted, frozenset({"type", "name", "schema", "description", "strict"}), "text.format")
    a_string(wanted, "name", "text.format")
    schema = an_object(wanted.get("schema"), "text.format.schema")
    ignored = ["text.format.description"] if wanted.get("description") is not None else []
    return AnswerFormat(kind="json_schema", value=schema, param="text.format.schema"), {"format": wanted}, ignored


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind != "function":
        raise UnsupportedField(
            f"'{where}' is of type '{str(kind)[:40]}', which is not supported here: only functions of your own are.",
            param=f"{where}.type",
        )
    only(tool, _FUNCTION, where)
    made = function(tool.get("name"), tool.get("description"), tool.get("parameters"), where, schema_field="parameters")
    if tool.get("strict") is not None:
        if not isinstance(tool["strict"], bool):
            raise WrongType(f"'{where}.strict' must be true or false.", param=f"{where}.strict")
        made["function"]["strict"] = tool["strict"]
    return made


def _tool_choice(value: Any, tools: Sequence[Mapping[str, Any]], *, parallel: bool) -> ToolChoice:
    if value is None or value in ("auto", "none"):
        return ToolChoice(mode=value or "auto", parallel=parallel)
    if value == "required":
        if not tools:
            raise InvalidRequest("'tool_choice' is 'required', but there are no 'tools'.", param="tool_choice")
        return ToolChoice(mode="required", parallel=parallel)
    wanted = an_object(value, "tool_choice")
    if wanted.get("type") != "function":
        raise UnsupportedField(
            f"'tool_choice' of type '{str(wanted.get('type'))[:40]}' is not supported here: name one function, or send "
            "'auto', 'none' or 'required'.",
            param="tool_choice",
        )
    only(wanted, frozenset({"type", "name"}), "tool_choice")
    name = a_string(wanted, "name", "tool_choice")
    if name not in [tool["function"]["name"] for tool in tools]:
        raise InvalidRequest(f"'tool_choice' names '{name[:80]}', which is not among 'tools'.", param="tool_choice")
    return ToolChoice(mode="required", name=name, parallel=parallel)
