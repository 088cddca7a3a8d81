"""A model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.core.errors import TemplateFailed
from edgewise.models.templates.limits import ADDRESS_SPACE_BYTES
from edgewise.models.templates.process import RenderProcess
from edgewise.models.templates.tool_styles import ToolSupport, takes_parts, tool_support

DEFAULT, TOOL_USE = "default", "tool_use"


class ChatTemplate:
    """Renders messages with the template that came with a model.

    Attributes:
        sources: Jinja text by name; "default" is always there, "tool_use" is taken when tools are given.
        tool_support: What it knows of tools.
        takes_parts: Whether a message's content may be a list of parts.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        """Keep the template; no process is started before `warm_up` or the first `render`.

        Args:
            special_tokens: Variables such as "bos_token".
        """
        self.sources = dict(sources)
        self.tool_support: ToolSupport = tool_support(sources)
        self.takes_parts = takes_parts(sources)
        self._special_tokens = dict(special_tokens)
        self._process = RenderProcess()

    def __repr__(self) -> str:
        return f"ChatTemplate({sorted(self.sources)}, {self._process!r})"

    @property
    def pid(self) -> int | None:
        """Process id of the render process, if one has been started."""
        return self._process.pid

    def warm_up(self) -> None:
        """Start the render process without waiting for it, so that the first render need not."""
        self._process.start()

    def close(self) -> None:
        """End the render process; it also ends with this object and with the program."""
        self._process.close()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The text of a conversation, special tokens in their written form.

        Takes well under a millisecond for an ordinary template; one that misbehaves is stopped after `CPU_SECONDS`.

        Args:
            messages: JSON values; entries that are None count as absent.
            add_generation_prompt: End with the start of the assistant's turn.
            tools: Function schemas, for templates that know tools.
            extra: More variables, e.g. enable_thinking.

        Raises:
            TemplateFailed: The template refuses the messages, has a fault, or exceeds its limits.
        """
        name = TOOL_USE if tools and TOOL_USE in self.sources else DEFAULT
        variables = {
            **self._special_tokens,
            "messages": [{key: value for key, value in message.items() if value is not None} for message in messages],
            "tools": None if tools is None else list(tools),
            **({"xml_tools": list(tools)} if tools else {}),  # the name that SmolLM3's template has for them
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **extra,
        }
        answer = self._process.ask({"source": self.sources[name], "variables": variables})
        if "text" in answer:
            text: str = answer["text"]
            return text
        raise TemplateFailed(_fault(answer["error"], answer["message"]), param="messages")


def _fault(kind: str, message: str) -> str:
    if kind == "refused":
        return f"The model's chat template refuses these messages: {message}"
    if kind == "memory":
        return f"The model's chat template was stopped at {ADDRESS_SPACE_BYTES >> 20} MiB of memory: it builds too much text."
    return f"The model's chat template cannot render these messages: {message}"
