"""Input items: as they are kept and shown again, and as the messages of a conversation."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewise.api.checks import a_string, an_object, only
from edgewise.api.errors import WrongType
from edgewise.api.media_parts import attachments_of, content_of, input_image_part
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.task import ChatInput

_ROLES = ("user", "assistant", "system", "developer")
_MEDIA = {
    "input_file": "files cannot be read yet",
    "input_audio": "speech cannot be read yet",
}
_ALLOWED = {"assistant": ("output_text", "refusal"), "user": ("input_text", "input_image")}
_MESSAGE = frozenset({"type", "role", "content", "id", "status", "phase"})
_CALL = frozenset({"type", "call_id", "name", "arguments", "id", "status", "caller", "namespace", "async"})
_OUTPUT = frozenset({"type", "call_id", "output", "id", "status", "caller", "name", "namespace"})
_PART = frozenset({"type", "text", "refusal", "annotations", "logprobs", "prompt_cache_breakpoint"})


@dataclass(slots=True)
class Input:
    """Attributes:
    items: In the form in which they are kept.
    ignored: Names of what has no effect.
    """

    items: list[dict[str, Any]] = field(default_factory=list)
    ignored: dict[str, None] = field(default_factory=dict)


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def read_input(value: Any) -> Input:
    """The `input` of a body. Raises `InvalidRequest`, naming the item."""
    if isinstance(value, str):
        return Input([_message("user", [{"type": "input_text", "text": value}])])
    if not isinstance(value, list) or not value:
        raise WrongType("'input' must be a string or a list of items, not empty.", param="input")
    found = Input()
    for index, item in enumerate(value):
        _read_item(an_object(item, f"input[{index}]"), f"input[{index}]", found)
    return found


def _read_item(item: dict[str, Any], where: str, found: Input) -> None:
    kind = item.get("type") or "message"
    if kind == "message":
        only(item, _MESSAGE, where)
        found.items.append(_read_message(item, where, found))
    elif kind == "function_call":
        only(item, _CALL, where)
        call = {name: a_string(item, name, where) for name in ("call_id", "name", "arguments")}
        found.items.append({"id": new_id("fc"), "type": kind, "status": "completed", **call})
    elif kind == "function_call_output":
        only(item, _OUTPUT, where)
        call_id = a_string(item, "call_id", where)
        output = item.get("output")
        text = output if isinstance(output, str) else _joined(_parts(output, f"{where}.output", "tool", found))
        found.items.append(
            {"id": new_id("fco"), "type": kind, "status": "completed", "call_id": call_id, "output": text}
        )
    elif kind == "reasoning":
        found.ignored["input[].reasoning"] = None
    else:
        raise UnsupportedField(
            f"'{where}' is of type '{str(kind)[:40]}', which is not supported here: send messages, function calls and "
            "their outputs.",
            param=f"{where}.type",
        )


def _read_message(item: dict[str, Any], where: str, found: Input) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise InvalidRequest(
            f"'{where}.role' is '{str(role)[:40]}': it must be one of {', '.join(_ROLES)}.", param=f"{where}.role"
        )
    if item.get("phase") is not None:
        found.ignored["input[].phase"] = None
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if role == "assistant" else "input_text"
        return _message(role, [_text_part(kind, content)])
    return _message(role, _parts(content, f"{where}.content", role, found))


def _parts(value: Any, where: str, role: str, found: Input) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        raise WrongType(f"'{where}' must be a string or a list of parts, not empty.", param=where)
    return [_part(an_object(part, f"{where}[{n}]"), f"{where}[{n}]", role, found) for n, part in enumerate(value)]


def _part(part: dict[str, Any], where: str, role: str, found: Input) -> dict[str, Any]:
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        raise UnsupportedField(f"'{where}' is of type '{kind}': {_MEDIA[kind]}. Send text.", param=where)
    allowed = _ALLOWED.get(role, ("input_text",))
    if kind not in allowed:
        raise InvalidRequest(
            f"'{where}.type' is '{str(kind)[:40]}': in a message of the role '{role}' it must be {' or '.join(allowed)}.",
            param=f"{where}.type",
        )
    if kind == "input_image":
        found.ignored.update(_no_breakpoint(part))
        one = input_image_part(part, where)
        named = {"image_url": one.urls[0]} if one.file is None else {"file_id": one.file}
        return {"type": kind, **named, "detail": one.detail}
    only(part, _PART, where)
    found.ignored.update(_no_breakpoint(part))
    text = a_string(part, "refusal" if kind == "refusal" else "text", where)
    return _text_part(str(kind), text)


def _no_breakpoint(part: Mapping[str, Any]) -> dict[str, None]:
    name = "input[].content[].prompt_cache_breakpoint"
    return {name: None} if part.get("prompt_cache_breakpoint") is not None else {}


def _text_part(kind: str, text: str) -> dict[str, Any]:
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": [], "logprobs": []}
    return {"type": kind, ("refusal" if kind == "refusal" else "text"): text}


def _message(role: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": new_id("msg"), "type": "message", "status": "completed", "role": role, "content": content}


def conversation_of(earlier: Sequence[Mapping[str, Any]], given: Iterable[Mapping[str, Any]]) -> ChatInput:
    """Items as chat messages: calls join the assistant's message before them, "developer" is told as "system".

    A call that was cut off (status "incomplete") is left out: its arguments are no JSON.

    Args:
        earlier: Of the answers that the request continues.
        given: Of the request itself.
    """
    messages: list[dict[str, Any]] = []
    attachments: list[Attachment] = []
    for index, item in enumerate([*earlier, *given], start=-len(earlier)):
        if item["type"] == "message":
            role = "system" if item["role"] == "developer" else item["role"]
            where = "previous_response_id" if index < 0 else f"input[{index}]"
            parts = [_read_part(part, f"{where}.content[{n}]") for n, part in enumerate(item["content"])]
            attachments += attachments_of(parts)
            messages.append({"role": role, "content": content_of(parts)})
        elif item["type"] == "function_call" and item["status"] == "incomplete":
            continue
        elif item["type"] == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            call = {"name": item["name"], "arguments": item["arguments"]}
            messages[-1].setdefault("tool_calls", []).append(
                {"id": item["call_id"], "type": "function", "function": call}
            )
        else:
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return ChatInput(tuple(messages), attachments=tuple(attachments))


def _read_part(part: Mapping[str, Any], where: str) -> str | Attachment:
    if part["type"] == "input_image":
        return input_image_part(dict(part), where)
    text: str = part["refusal"] if part["type"] == "refusal" else part["text"]
    return text


def _joined(parts: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts)
