"""Anthropic's messages and content blocks as the messages of a conversation in OpenAI's chat form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgewise.api.checks import a_string, an_object, only
from edgewise.api.errors import WrongType
from edgewise.api.media_parts import attachments_of, content_of, image_block
from edgewise.api.messages_api.schemas import Turn
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.attachments import Attachment

_MEDIA = {"document": "documents cannot be read yet"}
_THOUGHTS = frozenset({"thinking", "redacted_thinking"})
_FIELDS = {
    "text": frozenset({"type", "text", "cache_control", "citations"}),
    "image": frozenset({"type", "source", "cache_control"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller", "toolset_name"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"}),
}
_NO_EFFECT = ("cache_control", "caller", "citations", "is_error", "toolset_name")
_ALLOWED = {"user": ("text", "image", "tool_result"), "assistant": ("text", "tool_use"), "system": ("text",)}


@dataclass(slots=True)
class Conversation:
    """Attributes:
    messages: In OpenAI's chat form; the content is as `pipeline.task.ChatInput` has it.
    attachments: What hangs on them.
    ignored: Names of what has no effect.
    """

    messages: list[dict[str, Any]] = field(default_factory=list)
    attachments: list[Attachment] = field(default_factory=list)
    ignored: dict[str, None] = field(default_factory=dict)


def read_conversation(system: Any, turns: Sequence[Turn]) -> Conversation:
    """Raises `InvalidRequest` or a subclass, naming the block."""
    found = Conversation()
    if system is not None:
        found.messages.append({"role": "system", "content": _system(system, found)})
    for index, turn in enumerate(turns):
        _read_turn(turn, f"messages[{index}]", found)
    if turns[-1].role == "assistant":
        raise UnsupportedField(
            "The last message is the assistant's: an answer cannot be begun for the model here. End with the user's.",
            param=f"messages[{len(turns) - 1}].role",
        )
    return found


def _system(value: Any, found: Conversation) -> str:
    if isinstance(value, str):
        return value
    return "\n".join(_text(block, where, found) for where, block in _blocks(value, "system", "system", found))


def _read_turn(turn: Turn, where: str, found: Conversation) -> None:
    if isinstance(turn.content, str):
        found.messages.append({"role": turn.role, "content": turn.content})
        return
    parts: list[str | Attachment] = []
    calls: list[dict[str, Any]] = []
    for place, block in _blocks(turn.content, f"{where}.content", turn.role, found):
        if block["type"] == "text":
            parts.append(_text(block, place, found))
        elif block["type"] == "image":
            parts.append(image_block(block, place))
        elif block["type"] == "tool_use":
            calls.append(_call(block, place))
        else:
            found.messages.append(_result(block, place, found))
    found.attachments += attachments_of(parts)
    if calls:
        found.messages.append({"role": "assistant", "content": content_of(parts), "tool_calls": calls})
    elif parts or turn.role == "assistant":
        found.messages.append({"role": turn.role, "content": content_of(parts)})


def _blocks(value: Any, where: str, role: str, found: Conversation) -> list[tuple[str, dict[str, Any]]]:
    """Blocks with their places; thoughts of earlier turns are left out."""
    if not isinstance(value, list) or not (value or role == "assistant"):
        raise WrongType(f"'{where}' must be a string or a list of content blocks, not empty.", param=where)
    kept = []
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        block = an_object(item, place)
        kind = str(block.get("type"))
        if kind in _THOUGHTS and role == "assistant":
            found.ignored[f"messages[].content[].{kind}"] = None
            continue
        _check_block(block, kind, place, role, found)
        kept.append((place, block))
    return kept


def _check_block(block: dict[str, Any], kind: str, place: str, role: str, found: Conversation) -> None:
    if kind in _MEDIA:
        raise UnsupportedField(f"'{place}' is of type '{kind}': {_MEDIA[kind]}. Send text.", param=place)
    allowed = _ALLOWED[role]
    if kind not in allowed:
        raise InvalidRequest(
            f"'{place}.type' is '{kind[:40]}': a message of the role '{role}' has {' and '.join(allowed)} blocks.",
            param=f"{place}.type",
        )
    only(block, _FIELDS[kind], place)
    for name in _NO_EFFECT:
        if block.get(name):
            found.ignored[f"content[].{name}"] = None


def _text(block: dict[str, Any], where: str, found: Conversation) -> str:
    del found  # checked already
    return a_string(block, "text", where)


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = json.dumps(an_object(block.get("input"), f"{where}.input"), ensure_ascii=False)
    function = {"name": a_string(block, "name", where), "arguments": arguments}
    return {"id": a_string(block, "id", where), "type": "function", "function": function}


def _result(block: dict[str, Any], where: str, found: Conversation) -> dict[str, Any]:
    content = block.get("content")
    if isinstance(content, list) and content:
        parts = _blocks(content, f"{where}.content", "system", found)
        text = "\n".join(_text(part, place, found) for place, part in parts)
    elif content is None or content == []:
        text = ""
    elif isinstance(content, str):
        text = content
    else:
        raise WrongType(f"'{where}.content' must be a string or a list of blocks.", param=f"{where}.content")
    return {"role": "tool", "tool_call_id": a_string(block, "tool_use_id", where), "content": text}
