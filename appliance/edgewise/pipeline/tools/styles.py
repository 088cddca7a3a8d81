"""The styles in which models write tool calls; which model has which is told in `models.templates.tool_styles`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edgewise.models.templates.tool_styles import StyleName


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStyle:
    """One way to write calls.

    Attributes:
        trigger: Text or control token that opens a call; "" if none does.
        anchored: A call may be the whole answer, without the trigger.
        form: "object": a JSON object with name and arguments; "named": the name, `separator`, and the arguments' object.
        separator: Between name and arguments.
        arguments_key: Member that holds the arguments.
        array: Calls are elements of one array.
        end: Closes a call, or the array of calls.
        between: Between two calls.
    """

    name: StyleName
    trigger: str
    anchored: bool = False
    form: Literal["object", "named"] = "object"
    separator: str = ""
    arguments_key: Literal["arguments", "parameters"] = "arguments"
    array: bool = False
    end: str = ""
    between: str = ""

    @property
    def markers(self) -> frozenset[str]:
        """What the reader of calls must see even where it is a control token."""
        return frozenset({self.trigger, self.separator, self.end} - {""})


STYLES: Mapping[StyleName, ToolStyle] = {
    style.name: style
    for style in (
        ToolStyle(name="hermes", trigger="<tool_call>", end="</tool_call>", between="\n"),
        ToolStyle(name="generic", trigger="<tool_call>", end="</tool_call>", between="\n"),
        ToolStyle(name="llama", trigger="<|python_tag|>", anchored=True, arguments_key="parameters", between="; "),
        ToolStyle(name="mistral", trigger="[TOOL_CALLS]", array=True, between=", "),
        ToolStyle(name="mistral_args", trigger="[TOOL_CALLS]", form="named", separator="[ARGS]"),
        ToolStyle(name="phi", trigger="<|tool_call|>", array=True, end="<|/tool_call|>", between=", "),
        ToolStyle(name="glm", trigger="<|assistant|>", anchored=True, form="named", separator="\n"),
    )
}
