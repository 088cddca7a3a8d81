"""A body of /v1/messages to a `Task`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgewise.api.checks import a_string, an_object, function, only, refuse
from edgewise.api.extensions import drawing
from edgewise.api.messages_api.content import read_conversation
from edgewise.api.messages_api.schemas import IGNORED, REFUSED, CountBody, MessagesBody
from edgewise.api.parse import AnswerForm, Caller
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.model import ServedModel
from edgewise.pipeline.task import AnswerFormat, ChatInput, Sampling, Task, ToolChoice

_TOOL = frozenset({"type", "name", "description", "input_schema", "strict"})
_TOOL_IGNORED = ("allowed_callers", "cache_control", "defer_loading", "eager_input_streaming", "input_examples")
_MODES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


def messages_task(body: MessagesBody | CountBody, model: ServedModel, caller: Caller) -> tuple[Task, AnswerForm]:
    """Raises `InvalidRequest` or a subclass, naming the field."""
    refuse(body, REFUSED)
    conversation = read_conversation(body.system, body.messages)
    tools, tools_ignored = _tools(body.tools or ())
    stops: tuple[str, ...] = ()
    sampling = Sampling()
    if isinstance(body, MessagesBody):
        stops = tuple(dict.fromkeys(body.stop_sequences or ()))
        drawn = drawing(body, max_tokens=body.max_tokens, temperature=body.temperature)
        sampling = replace(drawn, fit_context=True)
    task = Task(
        id=caller.request_id,
        model=model,
        input=ChatInput(tuple(conversation.messages), tools, tuple(conversation.attachments)),
        sampling=sampling,
        stop=stops,
        salt=caller.salt,
        key=caller.key_id,
        priority=caller.priority(model),
        privacy=caller.privacy(model),
        policy=caller.policy,
        deadline_s=caller.deadline_s(body.timeout),
        max_image_pixels=body.max_image_pixels,
        pan_and_scan=body.pan_and_scan,
        tool_choice=_tool_choice(body.tool_choice, tools),
        answer_format=_format(body.output_config or {}),
        ignored=(
            *(name for name in sorted(IGNORED) if getattr(body, name) is not None),
            *conversation.ignored,
            *tools_ignored,
        ),
    )
    return task, AnswerForm(stream=bool(body.stream), include_usage=True, return_token_ids=False, logprobs=False)


def _tools(tools: Sequence[dict[str, Any]]) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    ignored: dict[str, None] = {}
    made = []
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        kind = tool.get("type") or "custom"
        if kind != "custom":
            raise UnsupportedField(
                f"'{where}' is of type '{str(kind)[:40]}', which is not supported here: only tools of your own are.",
                param=f"{where}.type",
            )
        only(tool, _TOOL.union(_TOOL_IGNORED), where)
        schema = an_object(tool.get("input_schema"), f"{where}.input_schema")
        one = function(tool.get("name"), tool.get("description"), schema, where, schema_field="input_schema")
        if isinstance(tool.get("strict"), bool):
            one["function"]["strict"] = tool["strict"]
        ignored.update({f"tools[].{name}": None for name in _TOOL_IGNORED if tool.get(name) is not None})
        made.append(one)
    return tuple(made), list(ignored)


def _tool_choice(value: dict[str, Any] | None, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    if value is None:
        return ToolChoice()
    only(value, frozenset({"type", "name", "disable_parallel_tool_use"}), "tool_choice")
    kind = str(value.get("type"))
    if kind not in _MODES:
        raise InvalidRequest(
            f"'tool_choice.type' is '{kind[:40]}': it must be one of {', '.join(_MODES)}.",
            param="tool_choice.type",
        )
    if kind in ("any", "tool") and not tools:
        raise InvalidRequest(f"'tool_choice' is '{kind}', but there are no 'tools'.", param="tool_choice")
    name = a_string(value, "name", "tool_choice") if kind == "tool" else None
    if name is not None and name not in [tool["function"]["name"] for tool in tools]:
        raise InvalidRequest(
            f"'tool_choice' names '{name[:80]}', which is not among 'tools'.", param="tool_choice.name"
        )
    parallel = value.get("disable_parallel_tool_use") is not True
    if kind == "auto":
        return ToolChoice(mode="auto", parallel=parallel)
    return ToolChoice(mode="none" if kind == "none" else "required", name=name, parallel=parallel)


def _format(config: dict[str, Any]) -> AnswerFormat | None:
    only(config, frozenset({"format", "effort"}), "output_config")
    if config.get("effort") is not None:
        raise UnsupportedField(
            "'output_config.effort' is not supported here: no model here has a setting for it.",
            param="output_config.effort",
        )
    if config.get("format") is None:
        return None
    where = "output_config.format"
    wanted = an_object(config["format"], where)
    only(wanted, frozenset({"type", "schema"}), where)
    if wanted.get("type") != "json_schema":
        raise InvalidRequest(
            f"'{where}.type' is '{str(wanted.get('type'))[:40]}': it must be 'json_schema'.", param=f"{where}.type"
        )
    schema = an_object(wanted.get("schema"), f"{where}.schema")
    return AnswerFormat(kind="json_schema", value=schema, param=f"{where}.schema")
