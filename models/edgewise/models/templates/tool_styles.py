"""How a model writes tool calls, told from the text of its chat template.

| style | sign in the template | models | a call |
|---|---|---|---|
| hermes | `<tool_call>` | Hermes, Qwen2.5, Qwen3, SmolLM3 | `<tool_call>{"name": .., "arguments": {..}}</tool_call>` |
| llama | `<|python_tag|>` or "ipython" with "parameters" | Llama 3.1 to 3.3 | `{"name": .., "parameters": {..}}`, no text |
| mistral | `[TOOL_CALLS]` | Mistral v3 to v7 | `[TOOL_CALLS][{"name": .., "arguments": {..}}]` |
| mistral_args | `[TOOL_CALLS]` and `[ARGS]` | Mistral v11 and later | `[TOOL_CALLS]name[ARGS]{..}` |
| phi | `<|tool|>` | Phi-4-mini | `<|tool_call|>[{"name": .., "arguments": {..}}]<|/tool_call|>` |
| glm | `<|observation|>` | GLM-4 | the name, a line break, `{..}` |
| generic | none of them | Gemma 2 and 3, SmolLM2, Llama 2, ... | as hermes, explained by a system text of ours |

Templates whose calls are no JSON (`<function=`, `<arg_key>`) count as generic: arguments in tags of their own could not be
held to a schema. Gemma's templates know no tools; of the two conventions its authors describe, Python calls and JSON, the generic
style is the JSON one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

StyleName = Literal["hermes", "llama", "mistral", "mistral_args", "phi", "glm", "generic"]

_PARTS = ("['type']", '["type"]', ".type", "selectattr('type'", 'selectattr("type"')
_NO_JSON = ("<function=", "<arg_key>")
_SIGNS: tuple[tuple[StyleName, tuple[str, ...]], ...] = (
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("phi", ("<|tool|>",)),
    ("glm", ("<|observation|>",)),
    ("hermes", ("<tool_call>", "tools")),
    ("llama", ("<|python_tag|>", "tools")),
    ("llama", ("ipython", '"parameters"', "tools")),
)


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """What a chat template knows of tools.

    Attributes:
        style: How calls are written.
        writes_calls: The template writes `tool_calls` of earlier turns itself.
        refuses_system: The template takes no system message.
    """

    style: StyleName = "generic"
    writes_calls: bool = False
    refuses_system: bool = False


def takes_parts(sources: Mapping[str, str]) -> bool:
    """Whether a template takes a message's content as a list of parts, told from its text: it asks for a part's type."""
    return any(sign in sources.get("default", "") for sign in _PARTS)


def tool_support(sources: Mapping[str, str]) -> ToolSupport:
    """Read it off a template's sources by name; "tool_use" is the one that is rendered when tools are given."""
    text = sources.get("tool_use") or sources.get("default", "")
    style: StyleName = "generic"
    if not any(sign in text for sign in _NO_JSON):
        style = next((name for name, signs in _SIGNS if all(sign in text for sign in signs)), "generic")
    return ToolSupport(
        style=style,
        writes_calls="tool_calls" in text,
        refuses_system="System role not supported" in text,
    )
