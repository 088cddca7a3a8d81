"""What a task's answers are held to: its format, its tools, or both; compiled and checked before anything is queued."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import InvalidRequest
from edgewise.pipeline.structured.lark import constraint, json_rule
from edgewise.pipeline.structured.rules import rules_of
from edgewise.pipeline.structured.schema import check_schema
from edgewise.pipeline.task import ChatInput, Task
from edgewise.pipeline.tools.grammar import ANY_OBJECT, CallGrammar
from edgewise.pipeline.tools.reading import CallReading
from edgewise.pipeline.tools.styles import STYLES, ToolStyle

Tool = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """Attributes:
    constraint: For the engine; None for free text.
    reading: How calls are read; None if none may be made.
    warnings: Sentences for the receipt.
    """

    constraint: str | None = None
    reading: CallReading | None = None
    warnings: tuple[str, ...] = ()


async def hold(task: Task) -> Held:
    """Raises `InvalidRequest` or a subclass for what cannot be enforced, naming field and keyword."""
    if task.answer_format is None and not _tools(task):
        return Held()
    return await asyncio.to_thread(_hold, task)


def _tools(task: Task) -> Sequence[Tool]:
    """The tools that may be called."""
    if not isinstance(task.input, ChatInput) or task.tool_choice.mode == "none":
        return ()
    name = task.tool_choice.name
    return [tool for tool in task.input.tools if name is None or tool["function"]["name"] == name]


def _hold(task: Task) -> Held:
    tools = _tools(task)
    answer = None if task.answer_format is None else _checked_answer(task)
    if not tools:
        assert answer is not None
        return Held(constraint(answer), None, _unending(task))
    assert task.model.template is not None
    style = STYLES[task.model.template.tool_support.style]
    warnings = list(_about(style))
    functions = [_function(task, tool, warnings) for tool in tools]
    special = {text: id for text, id in task.model.special_ids.items() if text in style.markers}
    grammar = _call_grammar(task, CallGrammar(style, special, tuple(functions)), answer, warnings)
    if grammar is not None:
        task.model.grammars.require(grammar, "tools", "the grammar of these functions")
        warnings += _unending(task)
    reading = CallReading(
        style=style,
        names=frozenset(name for name, _ in functions),
        parallel=task.tool_choice.parallel and task.tool_choice.name is None,
        revealed={id: text.encode() for text, id in special.items()},
    )
    return Held(grammar, reading, tuple(warnings))


def _checked_answer(task: Task) -> str:
    form = task.answer_format
    assert form is not None
    rules = rules_of(form)
    task.model.grammars.require(constraint(rules), form.param, "it")
    return rules


def _call_grammar(task: Task, calls: CallGrammar, answer: str | None, warnings: list[str]) -> str | None:
    """The whole answer's grammar; None leaves it free."""
    choice = task.tool_choice
    parallel = choice.parallel and choice.name is None
    if choice.mode == "required":
        if answer is not None:
            warnings.append(f"'{_param(task)}' has no effect: tool_choice makes the answer consist of calls.")
        return constraint(calls.forced(parallel=parallel))
    if answer is not None:
        return constraint(f"start: calls | @answer\n{calls.calls(parallel=parallel)}", answer=answer)
    if not any(_strict(tool) for tool in _tools(task)):
        return None
    rules = calls.triggered(parallel=parallel)
    if rules is None:
        warnings.append(
            "'strict' is not enforced with tool_choice 'auto': this model's calls have no mark that tells them from text. "
            "With 'required' it is."
        )
        return None
    return constraint(rules)


def _function(task: Task, tool: Tool, warnings: list[str]) -> tuple[str, Mapping[str, Any]]:
    """A tool's name and the schema that its arguments are held to."""
    function = tool["function"]
    name: str = function["name"]
    assert isinstance(task.input, ChatInput)
    param = f"tools[{list(task.input.tools).index(tool)}].function.parameters"
    schema = {**function["parameters"], "type": "object"}
    try:
        check_schema(schema, param)
        task.model.grammars.require(constraint(f"start: {json_rule(schema)}"), param, "it")
    except InvalidRequest as error:
        if _strict(tool):
            raise
        if task.tool_choice.mode == "required" or task.answer_format is not None:
            warnings.append(f"The arguments of '{name}' are held to no more than a JSON object: {error.message}")
        return name, ANY_OBJECT
    return name, schema


def _strict(tool: Tool) -> bool:
    return bool(tool["function"].get("strict"))


def _param(task: Task) -> str:
    return "response_format" if task.answer_format is None else task.answer_format.param


def _about(style: ToolStyle) -> Sequence[str]:
    if style.name != "generic":
        return ()
    return ("The model's chat template knows no tools: they are described to it in a text of this service.",)


def _unending(task: Task) -> tuple[str, ...]:
    if not task.sampling.ignore_eos:
        return ()
    return ("'ignore_eos' has no effect: the answer ends where its grammar does.",)
