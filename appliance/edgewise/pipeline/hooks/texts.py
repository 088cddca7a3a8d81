"""The texts of a task's input, one by one, and the same input with other texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgewise.core.errors import HookFailed
from edgewise.pipeline.hooks.protocol import PromptText
from edgewise.pipeline.task import Task, TextInput


def prompt_texts(task: Task) -> list[PromptText]:
    """Every text that the model will see; prompts of token ids as the text that they stand for."""
    if isinstance(task.input, TextInput):
        return [PromptText("prompt", _text(task, prompt)) for prompt in task.input.prompts]
    found = []
    for message in task.input.messages:
        found += [PromptText(message["role"], text) for text in _content(message)]
        found += [PromptText("call", call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return found + [PromptText("tools", json.dumps(tool, ensure_ascii=False)) for tool in task.input.tools]


def with_texts(task: Task, texts: Sequence[PromptText]) -> Task:
    """The task with these texts in the order of `prompt_texts`; what is equal stays as it was.

    Raises:
        HookFailed: The definition of a function was replaced by something that is no JSON object.
    """
    if list(texts) == prompt_texts(task):
        return task
    new = iter([one.text for one in texts])
    if isinstance(task.input, TextInput):
        prompts = tuple(_kept(task, prompt, next(new)) for prompt in task.input.prompts)
        return replace(task, input=TextInput(prompts))
    messages = tuple(_with_message(message, new) for message in task.input.messages)
    tools = tuple(_with_tool(next(new)) for _ in task.input.tools)
    return replace(task, input=replace(task.input, messages=messages, tools=tools))


def _content(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message's content; parts that are none have none."""
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


def _with_part(part: Mapping[str, Any], new: Iterator[str]) -> Mapping[str, Any]:
    return {**part, "text": next(new)} if part["type"] == "text" else part


def _text(task: Task, prompt: str | tuple[int, ...]) -> str:
    if isinstance(prompt, str):
        return prompt
    known = [id for id in prompt if 0 <= id < task.model.tokenizer.vocab_size]
    return task.model.tokenizer.decode(known, skip_special=False)


def _kept(task: Task, prompt: str | tuple[int, ...], text: str) -> str | tuple[int, ...]:
    return prompt if _text(task, prompt) == text else text


def _with_message(message: Mapping[str, Any], new: Iterator[str]) -> dict[str, Any]:
    content = message["content"]
    made = {
        **message,
        "content": next(new) if isinstance(content, str) else [_with_part(part, new) for part in content],
    }
    if "tool_calls" in message:
        made["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": next(new)}} for call in message["tool_calls"]
        ]
    return made


def _with_tool(text: str) -> dict[str, Any]:
    try:
        tool = json.loads(text)
    except json.JSONDecodeError as error:
        raise HookFailed("A hook replaced the definition of a function by something that is no JSON.") from error
    if not isinstance(tool, dict):
        raise HookFailed("A hook replaced the definition of a function by something that is no object.")
    return tool
