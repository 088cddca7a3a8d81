"""The tool fields of a chat body, as the pipeline takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgewise.api.checks import a_string, an_object, function, only
from edgewise.api.errors import WrongType
from edgewise.core.errors import InvalidRequest, UnsupportedField
from edgewise.pipeline.task import ToolChoice

MAX_TOOLS = 128
_FUNCTION = frozenset({"name", "description", "parameters", "strict"})


def tools_of(value: Any) -> tuple[Mapping[str, Any], ...]:
    """`tools`; raises `InvalidRequest` naming the field."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise WrongType("'tools' must be a list.", param="tools")
    if len(value) > MAX_TOOLS:
        raise InvalidRequest(f"'tools' has {len(value)} elements: at most {MAX_TOOLS} are allowed.", param="tools")
    tools = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(value))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in seen:
            where = f"tools[{index}].function.name"
            raise InvalidRequest(f"'{where}' is '{name}' a second time: names must differ.", param=where)
        seen.add(name)
    return tools


def _tool(value: Any, where: str) -> Mapping[str, Any]:
    tool = an_object(value, where)
    kind = a_string(tool, "type", where)
    if kind != "function":
        raise UnsupportedField(
            f"'{where}.type' is '{kind[:40]}': only functions can be called here.", param=f"{where}.type"
        )
    only(tool, {"type", "function"}, where)
    where = f"{where}.function"
    given = an_object(tool.get("function"), where)
    a_string(given, "name", where)
    only(given, _FUNCTION, where)
    strict = given.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise WrongType(f"'{where}.strict' must be true or false.", param=f"{where}.strict")
    schema = given.get("parameters")
    made = function(given["name"], given.get("description"), schema, where, schema_field="parameters")
    if isinstance(schema, dict) and schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"'{where}.parameters.type' must be 'object': arguments have names.", param=f"{where}.parameters.type"
        )
    if strict is not None:
        made["function"]["strict"] = strict
    return made


def tool_choice_of(value: Any, parallel: bool | None, tools: Sequence[Mapping[str, Any]]) -> ToolChoice:
    """`tool_choice` and `parallel_tool_calls`; raises `InvalidRequest` naming the field."""
    several = parallel is not False
    if value is None or value == "auto":
        return ToolChoice(mode="auto", parallel=several)
    if value == "none":
        return ToolChoice(mode="none", parallel=several)
    if not tools:
        raise InvalidRequest("'tool_choice' is only allowed with 'tools'.", param="tool_choice")
    if value == "required":
        return ToolChoice(mode="required", parallel=several)
    return ToolChoice(mode="required", name=_named(value, tools), parallel=several)


def _named(value: Any, tools: Sequence[Mapping[str, Any]]) -> str:
    if isinstance(value, str):
        raise InvalidRequest(
            f"'tool_choice' is '{value[:40]}': it must be 'none', 'auto', 'required' or a function.",
            param="tool_choice",
        )
    choice = an_object(value, "tool_choice")
    if a_string(choice, "type", "tool_choice") != "function":
        raise UnsupportedField(
            f"'tool_choice.type' is '{choice['type'][:40]}': only 'function' is supported here.",
            param="tool_choice.type",
        )
    only(choice, {"type", "function"}, "tool_choice")
    where = "tool_choice.function"
    wanted = an_object(choice.get("function"), where)
    name = a_string(wanted, "name", where)
    only(wanted, {"name"}, where)
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise InvalidRequest(
            f"'{where}.name' is '{name[:80]}', which is not among 'tools' ({', '.join(names)[:200]}).",
            param=f"{where}.name",
        )
    return name
