"""Tools and earlier calls in the form that a model's chat template expects.

Templates take arguments as objects, not as JSON text; some know tools under other names, some not at all. What a template does
not write itself is written into the messages' content, in the model's own style.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.models.templates.tool_styles import StyleName, ToolSupport
from edgewise.pipeline.tools.styles import STYLES, ToolStyle

Message = dict[str, Any]

_MISTRAL_ID = re.compile(r"[A-Za-z0-9]{9}", re.ASCII)

_INSTRUCTIONS = """You can call functions. Each line between the tags describes one, with the JSON schema of its arguments:
<tools>
{tools}
</tools>
To call functions, write for each call one JSON object in tags, and no other text:
<tool_call>
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
</tool_call>
The results come back between <tool_response> tags. When no function helps, answer in plain text."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the template is given.

    Attributes:
        tools: None where the messages describe them.
    """

    messages: list[Message]
    tools: list[Mapping[str, Any]] | None


def with_objects(message: Mapping[str, Any]) -> Message:
    """The same message, the arguments of its calls as objects where their text is one."""
    if not message.get("tool_calls"):
        return dict(message)
    return {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = arguments
        arguments = value if isinstance(value, dict) else arguments
    return {**call, "function": {**function, "arguments": arguments}}


def adapt(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], support: ToolSupport) -> Conversation:
    """Messages (arguments as objects) and tools as the template wants them."""
    if not tools and not any(message["role"] == "tool" or message.get("tool_calls") for message in messages):
        return Conversation(list(messages), None)
    style = STYLES[support.style]
    adapted = [dict(message) for message in messages]
    if support.style == "generic" or not (support.writes_calls or support.style == "glm"):
        adapted = [_calls_as_text(message, style) for message in adapted]
    if support.style == "generic":
        return _generic(adapted, tools, support)
    change = _CHANGES.get(support.style)
    return change(adapted, tools) if change else Conversation(adapted, list(tools) or None)


def call_text(style: ToolStyle, calls: Sequence[tuple[str, str]]) -> str:
    """Calls, each a name and its arguments' JSON text, as the model writes them."""
    if style.form == "named":
        return "".join(f"{style.trigger}{name}{style.separator}{arguments}" for name, arguments in calls)
    objects = [f'{{"name": {json.dumps(name)}, "{style.arguments_key}": {arguments}}}' for name, arguments in calls]
    if style.array:
        return f"{style.trigger}[{style.between.join(objects)}]{style.end}"
    if style.anchored:
        return style.between.join(objects)
    return style.between.join(f"{style.trigger}\n{one}\n{style.end}" for one in objects)


def _calls_as_text(message: Message, style: ToolStyle) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = call_text(style, [(call["function"]["name"], _json(call["function"]["arguments"])) for call in calls])
    content = message.get("content") or ""
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{content}\n{text}" if content else text}


def _json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _generic(messages: list[Message], tools: Sequence[Mapping[str, Any]], support: ToolSupport) -> Conversation:
    """Templates that know no tools: they are described in the system message, results come as a user's turn."""
    merged: list[Message] = []
    for message in messages:
        if message["role"] != "tool":
            merged.append(message)
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if merged and merged[-1].get("results"):
            merged[-1]["content"] += f"\n{text}"
        else:
            merged.append({"role": "user", "content": text, "results": True})
    turns = [{key: value for key, value in message.items() if key != "results"} for message in merged]
    if tools:
        lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        turns = _instructed(turns, _INSTRUCTIONS.format(tools=lines), support)
    return Conversation(turns, None)


def _instructed(messages: list[Message], text: str, support: ToolSupport) -> list[Message]:
    """The conversation with instructions at its beginning."""
    role = "user" if support.refuses_system else "system"
    first = messages[0] if messages else None
    if first is None or first["role"] != role:
        return [{"role": role, "content": text}, *messages]
    if isinstance(first["content"], list):  # a user's, with media
        return [{**first, "content": [{"type": "text", "text": text}, *first["content"]]}, *messages[1:]]
    parts = (text, first["content"]) if support.refuses_system else (first["content"], text)
    return [{**first, "content": "\n\n".join(part for part in parts if part)}, *messages[1:]]


def _phi(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> Conversation:
    """The template reads tools off the system message, as a JSON text."""
    if not tools:
        return Conversation(messages, None)
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0]["role"] == "system":
        return Conversation([{**messages[0], "tools": listed}, *messages[1:]], None)
    return Conversation([{"role": "system", "content": "", "tools": listed}, *messages], None)


def _glm(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> Conversation:
    """A call is an assistant's message with the name as `metadata`; a result has the role "observation"."""
    turns: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            turns.append({"role": "observation", "content": message["content"]})
            continue
        calls = message.get("tool_calls") or ()
        if message.get("content") or not calls:
            turns.append({key: value for key, value in message.items() if key != "tool_calls"})
        for call in calls:
            function = call["function"]
            turns.append({"role": "assistant", "metadata": function["name"], "content": _json(function["arguments"])})
    return Conversation(turns, list(tools) or None)


def _mistral(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> Conversation:
    """The template takes ids of 9 letters and digits only; others are replaced, the same by the same."""
    return Conversation([_short_ids(message) for message in messages], list(tools) or None)


def _short_ids(message: Message) -> Message:
    changed = dict(message)
    if message.get("tool_call_id") is not None:
        changed["tool_call_id"] = _short_id(message["tool_call_id"])
    if message.get("tool_calls"):
        changed["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
    return changed


def _short_id(id: str) -> str:
    return id if _MISTRAL_ID.fullmatch(id) else hashlib.sha256(id.encode(errors="replace")).hexdigest()[:9]


_CHANGES: Mapping[StyleName, Callable[[list[Message], Sequence[Mapping[str, Any]]], Conversation]] = {
    "phi": _phi,
    "glm": _glm,
    "mistral": _mistral,
    "mistral_args": _mistral,
}
