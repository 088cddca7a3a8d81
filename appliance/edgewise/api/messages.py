"""A chat body's messages as the pipeline takes them: a role and text each, or text and what hangs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from edgewise.api.checks import only
from edgewise.api.errors import MissingField, WrongType
from edgewise.api.fields import MESSAGE_IGNORED, PART_IGNORED
from edgewise.api.media_parts import attachments_of, content_of, image_url_part, input_audio_part, video_url_part
from edgewise.api.schemas import Message
from edgewise.core.errors import InvalidRequest, UnknownField, UnsupportedField
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.task import ChatInput

_ONLY = {"tool_call_id": "tool", "tool_calls": "assistant", "refusal": "assistant", "audio": "assistant"}
_MEDIA: Final[Mapping[str, Callable[[dict[str, Any], str], Attachment]]] = {
    "image_url": image_url_part,
    "input_audio": input_audio_part,
    "video_url": video_url_part,
}
"""Readers of parts that are no text, by their type; each part has a field of that name."""
_REFUSED: Final = {
    "file": "files cannot be read yet",
}


def chat_input(messages: Sequence[Message]) -> tuple[ChatInput, list[str]]:
    """The conversation, and the names of message fields that have no effect.

    "developer" is passed to the template as "system", which it replaced in OpenAI's document. Text parts are joined by line
    breaks, unless there are others among them. An assistant's message may be without content (null), any other may not.
    """
    ignored: dict[str, None] = {}
    rendered, attachments = [], []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        _check_role(message, where)
        content, hung, parts_ignored = _content(message, where)
        attachments += hung
        names = [f"messages[].{name}" for name in sorted(MESSAGE_IGNORED) if getattr(message, name)]
        ignored.update(dict.fromkeys([*names, *parts_ignored]))
        rendered.append(_rendered(message, content))
    return ChatInput(tuple(rendered), attachments=tuple(attachments)), list(ignored)


def _rendered(message: Message, content: str | list[dict[str, Any]]) -> dict[str, Any]:
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


def _content(message: Message, where: str) -> tuple[str | list[dict[str, Any]], list[Attachment], list[str]]:
    """The content, what hangs on it, and the names of fields that have no effect."""
    content = message.content
    param = f"{where}.content"
    if isinstance(content, str):
        return content, [], []
    if isinstance(content, list) and content:
        read = [_part(part, message.role, f"{param}[{index}]") for index, part in enumerate(content)]
        parts = [part for part, _ in read]
        return content_of(parts), attachments_of(parts), [name for _, names in read for name in names]
    if content is None and message.role == "assistant":
        return message.refusal or "", [], []
    if content is None:
        raise InvalidRequest(f"'{param}' is null or missing: a {message.role} message needs content.", param=param)
    raise WrongType(f"'{param}' must be a string or a list of content parts, not empty.", param=param)


def _part(part: Any, role: str, where: str) -> tuple[str | Attachment, list[str]]:
    if not isinstance(part, dict):
        raise WrongType(f"'{where}' must be an object with a type.", param=where)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _REFUSED:
        raise UnsupportedField(f"'{where}' is of type '{kind}': {_REFUSED[kind]}. Send text.", param=where)
    medium = isinstance(kind, str) and kind in _MEDIA and role == "user"
    if not (medium or kind == "text" or (kind == "refusal" and role == "assistant")):
        shown = str(kind)[:40]
        allowed = ", ".join(f"'{name}'" for name in ("text", *(_MEDIA if role == "user" else ())))
        raise InvalidRequest(
            f"'{where}.type' is '{shown}': in a message of the role '{role}' it must be {allowed}.",
            param=f"{where}.type",
        )
    only(part, {"type", str(kind), *PART_IGNORED}, where)
    ignored = [f"messages[].content[].{name}" for name in sorted(PART_IGNORED) if part.get(name) is not None]
    if medium:
        return _MEDIA[str(kind)](part, where), ignored
    text = part.get(kind)
    if not isinstance(text, str):
        raise WrongType(f"'{where}.{kind}' must be a string.", param=f"{where}.{kind}")
    return text, ignored
