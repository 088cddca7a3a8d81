"""A task's input as token ids, checked against the context before anything is queued.

In a chat only the template may write special tokens: their written form inside a message is text, so that what a user or a tool
says can never end its turn or open another one. Prompts of text completions are the caller's own and may contain them.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgewise.core.errors import ContextLengthExceeded, EngineFault, InvalidRequest
from edgewise.models.multimodal.layout import Layout, place
from edgewise.models.multimodal.media import Media
from edgewise.pipeline.expansion import expand, in_parts, with_markers
from edgewise.pipeline.model import ChatTemplate, ServedModel
from edgewise.pipeline.task import ChatInput, Task
from edgewise.pipeline.tools.conversation import adapt, with_objects

THREAD_CHARS = 16_384
"""Longer texts are tokenized on a thread, so that the event loop keeps serving others; chats always are, for their templates."""


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """Attributes:
    prompts: Token ids, at least one each.
    media: What placeholders of a conversation's prompt stand for.
    warnings: Sentences for the receipt.
    """

    prompts: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...] = ()
    media: tuple[Media, ...] = ()


async def encode_input(task: Task) -> EncodedInput:
    """Token ids of every prompt of the task.

    Raises:
        TemplateFailed: The chat template refuses the messages.
        InvalidRequest: An empty prompt or an id outside the vocabulary.
    """
    if isinstance(task.input, ChatInput) or sum(len(prompt) for prompt in task.input.prompts) > THREAD_CHARS:
        return await asyncio.to_thread(_encode, task)
    return _encode(task)


def _encode(task: Task) -> EncodedInput:
    if isinstance(task.input, ChatInput):
        if task.input.attachments:
            raise EngineFault("A conversation was to be tokenized before its media were fetched.")
        return _encode_chat(task.model, task.input, without_tools=task.tool_choice.mode == "none")
    prompts = task.input.prompts
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    return EncodedInput(
        tuple(_encode_text(task.model, prompt) for prompt in prompts), tuple(_left_out(task.model, *texts))
    )


def _encode_chat(model: ServedModel, chat: ChatInput, *, without_tools: bool) -> EncodedInput:
    if model.template is None:
        raise InvalidRequest(
            f"The model '{model.name}' has no chat template: use /v1/completions with it.", param="messages"
        )
    guard = _Guard(model)
    messages = [guard.cover(with_objects(message)) for message in chat.messages]
    tools = [] if without_tools else [guard.cover(tool) for tool in chat.tools]
    text = _render(model.template, model.layout, messages, tools)
    shown = text if model.layout is None else expand(text, model.layout, chat.media)
    ids = guard.encode(shown)
    if not ids:
        raise InvalidRequest("The chat template makes an empty prompt of these messages.", param="messages")
    media = [one for fitted in chat.media for one in fitted.media]
    placed = () if model.layout is None else place(ids, media, model.layout.placeholders)
    return EncodedInput((tuple(ids),), (*_unseen_calls(chat, text), *_left_out(model, shown)), placed)


def _render(
    template: ChatTemplate, layout: Layout | None, messages: list[dict[str, Any]], tools: list[dict[str, Any]]
) -> str:
    given = adapt(messages, tools, template.tool_support)
    turns = given.messages
    if layout is not None:
        turns = in_parts(turns) if template.takes_parts else with_markers(turns, layout)
    return template.render(turns, add_generation_prompt=True, tools=given.tools)


class _Guard:
    """Keeps special tokens in messages from being read as such: they travel through the template under a random name."""

    def __init__(self, model: ServedModel) -> None:
        self._tokenizer = model.tokenizer
        markers = () if model.layout is None else tuple(model.layout.markers.values())
        self._placeholders = frozenset(() if model.layout is None else model.layout.placeholders.values())
        texts = sorted({*model.special_texts, *markers}, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(text) for text in texts)) if texts else None
        self._nonce = f"covered-{secrets.token_hex(16)}-"  # of characters that JSON writes as they are
        self._covered: list[str] = []

    def cover(self, value: Any) -> Any:
        """The same data, the special tokens in its strings replaced."""
        if isinstance(value, str):
            return value if self._pattern is None else self._pattern.sub(self._name, value)
        if isinstance(value, Mapping):
            return {self.cover(key): self.cover(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.cover(item) for item in value]
        return value

    def encode(self, text: str) -> list[int]:
        if not self._covered:
            return self._tokenizer.encode(text, add_special=False, parse_special=True)
        ids: list[int] = []
        for index, piece in enumerate(re.split(f"{self._nonce}([0-9]+);", text)):
            if index % 2:
                ids += self._literally(self._covered[int(piece)])
            elif piece:
                ids += self._tokenizer.encode(piece, add_special=False, parse_special=True)
        return ids

    def _literally(self, text: str) -> list[int]:
        """As text. A token that is not marked as special is found in any text, also a placeholder: its parts are not."""
        ids = self._tokenizer.encode(text, add_special=False, parse_special=False)
        if len(text) < 2 or self._placeholders.isdisjoint(ids):
            return ids
        return [id for part in (text[:1], text[1:]) for id in self._literally(part)]

    def _name(self, match: re.Match[str]) -> str:
        self._covered.append(match[0])
        return f"{self._nonce}{len(self._covered) - 1};"


def _unseen_calls(chat: ChatInput, text: str) -> list[str]:
    """Some templates leave tool calls of earlier turns out; the caller must hear of it."""
    return [
        f"The model does not see the tool calls of messages[{index}]: its chat template has no place for them."
        for index, message in enumerate(chat.messages)
        if any(call["function"]["name"] not in text for call in message.get("tool_calls", ()))
    ]


def _left_out(model: ServedModel, *texts: str) -> list[str]:
    """Some vocabularies lack some bytes (control characters, as a rule); the caller must hear if theirs are among them."""
    missing = bytes(model.tokenizer.missing_bytes)
    if not missing:
        return []
    raw = [text.encode() for text in texts]
    count = sum(len(one) - len(one.translate(None, missing)) for one in raw)
    return [f"The model does not see {count} bytes of the prompt: its vocabulary cannot write them."] if count else []


def _encode_text(model: ServedModel, prompt: str | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        ids = tuple(model.tokenizer.encode(prompt, add_special=True, parse_special=True))
    else:
        ids = prompt
        for token in ids:
            if not 0 <= token < model.tokenizer.vocab_size:
                raise InvalidRequest(
                    f"'prompt' holds token id {str(token)[:20]}: ids run from 0 to {model.tokenizer.vocab_size - 1}.",
                    param="prompt",
                )
    if ids:
        return ids
    if model.tokenizer.bos_id is None:
        raise InvalidRequest("'prompt' is empty and this model has no start token: give at least one.", param="prompt")
    return (model.tokenizer.bos_id,)


def answer_budget(task: Task, prompt_tokens: int) -> int:
    """Tokens the answer may have: what was asked for, or all that is left of the context (the cloud's, where only that holds the
    prompt and the label lets it go there).

    Raises:
        ContextLengthExceeded: Prompt and answer do not fit; the message names the numbers.
    """
    asked = task.sampling.max_tokens
    least = 1 if asked is None or task.sampling.fit_context else asked
    context = task.model.context_for(prompt_tokens + least, task.privacy)
    if asked is not None and task.sampling.fit_context:
        asked = min(asked, max(context - prompt_tokens, 1))
    where = "messages" if isinstance(task.input, ChatInput) else "prompt"
    if prompt_tokens + (asked or 1) > context:
        answer = "" if asked is None else f" and {asked} are asked for as the answer"
        remedy = "" if asked is None else " or lower max_tokens"
        seen = sum(medium.tokens for medium in task.media)
        remedy += f"; {seen} of its tokens are media, of which max_image_pixels makes pictures smaller" if seen else ""
        raise ContextLengthExceeded(
            f"This model's context is {context} tokens, but '{where}' has {prompt_tokens} tokens{answer}. "
            f"Shorten '{where}'{remedy}.",
            param=where,
        )
    return asked if asked is not None else context - prompt_tokens
