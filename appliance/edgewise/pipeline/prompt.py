"""A task's input as token ids, checked against the context before anything is queued."""

from __future__ import annotations

import asyncio

from edgewise.core.errors import ContextLengthExceeded, InvalidRequest
from edgewise.pipeline.model import ServedModel
from edgewise.pipeline.task import ChatInput, Task

THREAD_CHARS = 16_384
"""Longer inputs are tokenized on a thread, so that the event loop keeps serving others."""


async def encode_prompts(task: Task) -> tuple[tuple[int, ...], ...]:
    """Token ids of every prompt of the task, each at least one token.

    Raises:
        TemplateFailed: The chat template refuses the messages.
        InvalidRequest: An empty prompt or an id outside the vocabulary.
    """
    if isinstance(task.input, ChatInput):
        size = sum(len(message["content"]) for message in task.input.messages)
    else:
        size = sum(len(prompt) for prompt in task.input.prompts)
    if size > THREAD_CHARS:
        return await asyncio.to_thread(_encode, task)
    return _encode(task)


def _encode(task: Task) -> tuple[tuple[int, ...], ...]:
    if isinstance(task.input, ChatInput):
        return (_encode_chat(task.model, task.input),)
    return tuple(_encode_text(task.model, prompt) for prompt in task.input.prompts)


def _encode_chat(model: ServedModel, chat: ChatInput) -> tuple[int, ...]:
    if model.template is None:
        raise InvalidRequest(
            f"The model '{model.name}' has no chat template: use /v1/completions with it.", param="messages"
        )
    text = model.template.render(chat.messages, add_generation_prompt=True)
    return tuple(model.tokenizer.encode(text, add_special=False, parse_special=True))


def _encode_text(model: ServedModel, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        ids = tuple(model.tokenizer.encode(prompt, add_special=True, parse_special=True))
    else:
        ids = prompt
        for token in ids:
            if not 0 <= token < model.tokenizer.vocab_size:
                raise InvalidRequest(
                    f"'prompt' holds token id {token}: ids run from 0 to {model.tokenizer.vocab_size - 1}.",
                    param="prompt",
                )
    if ids:
        return ids
    if model.tokenizer.bos_id is None:
        raise InvalidRequest("'prompt' is empty and this model has no start token: give at least one.", param="prompt")
    return (model.tokenizer.bos_id,)


def answer_budget(task: Task, prompt_tokens: int) -> int:
    """Tokens the answer may have: what was asked for, or all that is left of the context.

    Raises:
        ContextLengthExceeded: Prompt and answer do not fit; the message names the numbers.
    """
    context = task.model.context
    asked = task.sampling.max_tokens
    where = "messages" if isinstance(task.input, ChatInput) else "prompt"
    if prompt_tokens + (asked or 1) > context:
        answer = f" and {asked} are asked for as the answer" if asked is not None else ""
        raise ContextLengthExceeded(
            f"This model's context is {context} tokens, but the '{where}' are {prompt_tokens} tokens{answer}. "
            f"Shorten the {where}{' or lower max_tokens' if asked is not None else ''}.",
            param=where,
        )
    return asked if asked is not None else context - prompt_tokens
