"""Grammars for answers that call tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.pipeline.structured.lark import json_rule, quoted
from edgewise.pipeline.tools.styles import ToolStyle

MAX_CALLS = 16
"""Calls that one forced answer may have."""
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """Writes rules for one style.

    Attributes:
        special: Ids of the markers that are control tokens of this model; others are text.
        functions: Name and arguments' schema of each function, checked.
    """

    style: ToolStyle
    special: Mapping[str, int]
    functions: tuple[tuple[str, Mapping[str, Any]], ...]

    def forced(self, *, parallel: bool) -> str:
        """Rules `start: calls`: at least one call, and nothing else."""
        return f"start: calls\n{self.calls(parallel=parallel)}"

    def calls(self, *, parallel: bool) -> str:
        """Rules for `calls`, one or, if `parallel`, several."""
        style = self.style
        if style.form == "named":
            first = "call" if style.anchored else f"{self._marker(style.trigger)} call"
            more = f"{self._marker(style.trigger)} call"
        elif style.array or style.anchored:
            first, more = "call", f"{quoted(style.between)} call"
        else:
            whole = f'{self._marker(style.trigger)} "\\n" call "\\n" {self._marker(style.end)}'
            first, more = whole, f"{quoted(style.between)} {whole}"
        several = f"{first} ({more}){{0,{MAX_CALLS - 1}}}" if parallel else first
        if style.array:
            several = f'{self._marker(style.trigger)} "[" {several} "]" {self._marker(style.end)}'
        return f"calls: {several}\n{self._call_rules()}"

    def triggered(self, *, parallel: bool) -> str | None:
        """Rules for free text in which whatever follows the trigger is a call; None if the style has no certain trigger."""
        style = self.style
        if style.anchored or style.form == "named":
            return None
        if style.trigger in self.special:
            head = f"head: TEXT {self._marker(style.trigger)}"
        else:
            head = f"head[lazy]: TEXT {quoted(style.trigger)}"
        if style.array:
            more = f"({quoted(style.between)} call){{0,{MAX_CALLS - 1}}}" if parallel else ""
            body = f'"[" call {more} "]" {self._marker(style.end)}'
        else:
            body = f'"\\n" call "\\n" {self._marker(style.end)}'
        times = f"{{0,{MAX_CALLS}}}" if parallel and not style.array else "?"
        return (
            f"start: (head body){times} tail\ntail: TEXT\nTEXT: /(.|\\n)*/\n{head}\nbody: {body}\n{self._call_rules()}"
        )

    def _call_rules(self) -> str:
        names = " | ".join(f"call_{index}" for index in range(len(self.functions)))
        rules = [f"call: {names}"]
        rules += [f"call_{index}: {self._call(*function)}" for index, function in enumerate(self.functions)]
        return "\n".join(rules)

    def _call(self, name: str, schema: Mapping[str, Any]) -> str:
        style = self.style
        if style.form == "named":
            return f"{quoted(name)} {self._marker(style.separator)} {json_rule(schema)}"
        before = f'{{"name": "{name}", "{style.arguments_key}": '
        return f'{quoted(before)} {json_rule(schema)} "}}"'

    def _marker(self, text: str) -> str:
        """A marker as text, or as the one token that it is; nothing for none."""
        if text in self.special:
            return f"<[{self.special[text]}]>"
        return quoted(text) if text else ""
