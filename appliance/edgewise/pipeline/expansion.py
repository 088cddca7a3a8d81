"""Media in a rendered prompt: each marker that the chat template wrote becomes the text by which the model knows a medium.

Markers in what people wrote are not these: `pipeline.prompt` has covered them before the template saw them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.core.errors import InvalidRequest
from edgewise.models.multimodal.layout import Fitted, Layout
from edgewise.models.multimodal.media import MediaKind


def in_parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose content is a list of parts throughout: templates that take parts may take nothing else."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def with_markers(messages: Sequence[dict[str, Any]], layout: Layout) -> list[dict[str, Any]]:
    """Messages whose content is text, for templates that take no parts: markers stand in lines of their own."""
    return [
        message
        if isinstance(message.get("content"), str)
        else {**message, "content": "\n".join(_line(part, layout) for part in message["content"])}
        for message in messages
    ]


def _line(part: Mapping[str, Any], layout: Layout) -> str:
    text: str = part["text"] if part["type"] == "text" else layout.markers[part["type"]]
    return text


def expand(text: str, layout: Layout, media: Sequence[Fitted]) -> str:
    """The prompt's text with each medium in place of its marker.

    Raises:
        InvalidRequest: The template has left media out, or wrote more markers than there are media.
    """
    kinds: dict[str, MediaKind] = {marker: kind for kind, marker in layout.markers.items()}
    pieces = re.split(f"({'|'.join(map(re.escape, kinds))})", text)
    found = [kinds[marker] for marker in pieces[1::2]]
    wanted = [kind for fitted in media for kind in [fitted.media[0].kind]]
    if found != wanted:
        raise InvalidRequest(
            f"The chat template shows {len(found)} of {len(wanted)} pictures and films of this conversation: it takes them "
            "in other places or not at all. Put them into a user's message, before its text.",
            param="messages",
        )
    texts = [fitted.text for fitted in media]
    return "".join(piece if index % 2 == 0 else texts[index // 2] for index, piece in enumerate(pieces))
