"""A chat body's messages as the template takes them: a role and text each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgewise.api.errors import MissingField, WrongType
from edgewise.api.fields import MESSAGE_IGNORED, PART_IGNORED
from edgewise.api.schemas import Message
from edgewise.core.errors import InvalidRequest, UnknownField, UnsupportedField
from edgewise.pipeline.task import ChatInput

_ONLY = {"tool_call_id": "tool", "tool_calls": "assistant", "refusal": "assistant", "audio": "assistant"}
_MEDIA = {
    "image_url": "pictures cannot be read yet",
    "input_audio": "speech cannot be read yet",
    "file": "files cannot be read yet",
}


def chat_input(messages: Sequence[Message]) -> tuple[ChatInput, list[str]]:
    """The conversation, and the names of message fields that have no effect.

    "developer" is passed to the template as "system", which it replaced in OpenAI's document. Text parts are joined by line
    breaks. An assistant's message may be without content (null), any other may not.
    """
    ignored: dict[str, None] = {}
    rendered = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _check_role(message, where)
        content, parts_ignored = _content(message, where)
        names = [f"messages[].{name}" for name in sorted(MESSAGE_IGNORED) if getattr(message, name)]
        ignored.update(dict.fromkeys([*names, *parts_ignored]))
        rendered.append(_rendered(message, content))
    return ChatInput(tuple(rendered)), list(ignored)


def _rendered(message: Message, content: str) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
    if message.tool_calls:
        turn["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _check_role(message: Message, where: str) -> None:
    for name, role in _ONLY.items():
        if getattr(message, name) is not None and message.role != role:
            raise UnknownField(
                f"'{where}.{name}' belongs to the role '{role}', not to '{message.role}'.", param=f"{where}.{name}"
            )
    if message.role == "tool" and message.tool_call_id is None:
        raise MissingField(f"The field '{where}.tool_call_id' is required.", param=f"{where}.tool_call_id")
    for name, remedy in (("audio", "send its text"), ("function_call", "use tool_calls")):
        if getattr(message, name) is not None:
            raise UnsupportedField(f"'{where}.{name}' is not supported here: {remedy}.", param=f"{where}.{name}")


def _content(message: Message, where: str) -> tuple[str, list[str]]:
    content = message.content
    param = f"{where}.content"
    if isinstance(content, str):
        return content, []
    if isinstance(content, list) and content:
        parts = [_part(part, message.role, f"{param}[{index}]") for index, part in enumerate(content)]
        return "\n".join(text for text, _ in parts), [name for _, names in parts for name in names]
    if content is None and message.role == "assistant":
        return message.refusal or "", []
    if content is None:
        raise InvalidRequest(f"'{param}' is null or missing: a {message.role} message needs content.", param=param)
    raise WrongType(f"'{param}' must be a string or a list of content parts, not empty.", param=param)


def _part(part: Any, role: str, where: str) -> tuple[str, list[str]]:
    if not isinstance(part, dict):
        raise WrongType(f"'{where}' must be an object with a type.", param=where)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MEDIA:
        raise UnsupportedField(f"'{where}' is of type '{kind}': {_MEDIA[kind]}. Send text.", param=where)
    if not (kind == "text" or (kind == "refusal" and role == "assistant")):
        shown = str(kind)[:40]
        raise InvalidRequest(f"'{where}.type' is '{shown}': it must be 'text'.", param=f"{where}.type")
    unknown = sorted(part.keys() - {"type", kind} - PART_IGNORED)
    if unknown:
        raise UnknownField(f"Unknown field '{where}.{unknown[0][:80]}': remove it.", param=f"{where}.{unknown[0][:80]}")
    text = part.get(kind)
    if not isinstance(text, str):
        raise WrongType(f"'{where}.{kind}' must be a string.", param=f"{where}.{kind}")
    return text, [f"messages[].content[].{name}" for name in sorted(PART_IGNORED) if part.get(name) is not None]
