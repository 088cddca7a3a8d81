"""Answers in OpenAI's shapes: one class per route, each able to write a whole body and a stream's events."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgewise.api.logprobs import chat_logprobs, completion_logprobs
from edgewise.api.parse import AnswerForm
from edgewise.pipeline.run import Run
from edgewise.pipeline.task import TextInput
from edgewise.pipeline.text import ShownToken, TextChunk, ToolCallDelta


@dataclass(slots=True)
class GatheredCall:
    """One tool call of a finished answer; `arguments` joined are its JSON text."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Gathered:
    """One finished answer."""

    text: list[str] = field(default_factory=list)
    shown: list[ShownToken] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    calls: list[GatheredCall] = field(default_factory=list)
    finish: str | None = None

    def add(self, chunk: TextChunk) -> None:
        self.text.append(chunk.text)
        self.shown.extend(chunk.shown)
        self.token_ids.extend(chunk.token_ids)
        for delta in chunk.tool_calls:
            if delta.id is not None and delta.name is not None:
                self.calls.append(GatheredCall(delta.id, delta.name))
            self.calls[delta.index].arguments.append(delta.arguments)
        self.finish = chunk.finish


class Shape(Protocol):
    """How one route writes a run's answers."""

    def opening(self) -> list[dict[str, Any]]:
        """Choices of the events before the first token."""

    def deltas(self, chunk: TextChunk) -> list[dict[str, Any]]:
        """Choices of the events for a piece, the finish reason in the last of them only."""

    def choice(self, index: int, answer: Gathered) -> dict[str, Any]: ...

    def envelope(self, choices: Sequence[dict[str, Any]], *, chunk: bool) -> dict[str, Any]: ...


class _Base:
    object_name: str
    chunk_name: str
    id_prefix: str

    def __init__(self, run: Run, form: AnswerForm, created: int) -> None:
        self._run = run
        self._form = form
        self._tokenizer = run.task.model.tokenizer
        self._head = {
            "id": f"{self.id_prefix}{run.task.id.removeprefix('req_')}",
            "created": created,
            "model": run.task.model.name,
            "system_fingerprint": fingerprint(run),
        }
        self._opened: set[int] = set()

    def envelope(self, choices: Sequence[dict[str, Any]], *, chunk: bool) -> dict[str, Any]:
        """The object around choices; every event of a stream has the same id and time."""
        name = self.chunk_name if chunk else self.object_name
        return {"id": self._head["id"], "object": name, **self._head, "choices": list(choices)}

    def _token_ids(self, sequence: int, ids: Sequence[int]) -> dict[str, Any]:
        """The extension's fields: the answer's ids, and the prompt's with the first piece of every answer."""
        if not self._form.return_token_ids:
            return {}
        if sequence in self._opened:
            return {"token_ids": list(ids)}
        self._opened.add(sequence)
        return {"token_ids": list(ids), "prompt_token_ids": list(self._run.prompts[sequence // self._run.task.n])}

    def _speaks(self, chunk: TextChunk) -> bool:
        """Whether a piece has anything to show besides its finish reason."""
        return bool(chunk.text or (self._form.logprobs and chunk.shown) or self._form.return_token_ids)


class ChatShape(_Base):
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def opening(self) -> list[dict[str, Any]]:
        forced = self._run.task.tool_choice.mode == "required"
        start = {"role": "assistant", "content": None if forced else "", "refusal": None}
        return [self._delta(index, start) for index in range(self._run.task.n)]

    def deltas(self, chunk: TextChunk) -> list[dict[str, Any]]:
        choices = []
        if chunk.tool_calls or self._speaks(chunk):
            choices.append(
                self._delta(chunk.sequence, self._said(chunk), logprobs=self._logprobs(chunk.shown))
                | self._token_ids(chunk.sequence, chunk.token_ids)
            )
        if chunk.finish is not None:
            choices.append(self._delta(chunk.sequence, {}, finish=chunk.finish))
        return choices

    def _said(self, chunk: TextChunk) -> dict[str, Any]:
        """The delta of a piece; of an answer made of calls alone the content stays null."""
        calls = [_call_delta(delta) for delta in chunk.tool_calls]
        said: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if chunk.text or not (calls or self._run.task.tool_choice.mode == "required"):
            said["content"] = chunk.text
        return said

    def choice(self, index: int, answer: Gathered) -> dict[str, Any]:
        content = "".join(answer.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if answer.calls and not content else content,
            "refusal": None,
            "annotations": [],
        }
        if answer.calls:
            message["tool_calls"] = [_call(call.id, call.name, "".join(call.arguments)) for call in answer.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(answer.shown),
            "finish_reason": answer.finish,
        } | self._token_ids(index, answer.token_ids)

    def _logprobs(self, shown: Sequence[ShownToken]) -> dict[str, Any] | None:
        return chat_logprobs(self._tokenizer, shown) if self._form.logprobs else None

    def _delta(
        self, index: int, delta: dict[str, Any], *, logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    """The index always; id, type and name with a call's first piece only."""
    if delta.id is None or delta.name is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    return {"index": delta.index} | _call(delta.id, delta.name, delta.arguments)


class CompletionShape(_Base):
    object_name = "text_completion"
    chunk_name = "text_completion"
    id_prefix = "cmpl-"

    def opening(self) -> list[dict[str, Any]]:
        if not self._form.echo:
            return []
        count = len(self._run.prompts) * self._run.task.n
        return [self._choice(index, self._echo(index), None, None) for index in range(count)]

    def deltas(self, chunk: TextChunk) -> list[dict[str, Any]]:
        choices = []
        if self._speaks(chunk):
            logprobs = self._logprobs(chunk.shown)
            choices.append(
                self._choice(chunk.sequence, chunk.text, logprobs, None)
                | self._token_ids(chunk.sequence, chunk.token_ids)
            )
        if chunk.finish is not None:
            choices.append(self._choice(chunk.sequence, "", None, chunk.finish))
        return choices

    def choice(self, index: int, answer: Gathered) -> dict[str, Any]:
        text = self._echo(index) + "".join(answer.text) if self._form.echo else "".join(answer.text)
        return self._choice(index, text, self._logprobs(answer.shown), answer.finish) | self._token_ids(
            index, answer.token_ids
        )

    def _echo(self, index: int) -> str:
        """The prompt as it was sent; token ids as their text."""
        prompt = index // self._run.task.n
        given = self._run.task.input
        if isinstance(given, TextInput) and isinstance(text := given.prompts[prompt], str):
            return text
        return self._tokenizer.decode(self._run.prompts[prompt])

    def _logprobs(self, shown: Sequence[ShownToken]) -> dict[str, Any] | None:
        return completion_logprobs(self._tokenizer, shown) if self._form.logprobs else None

    def _choice(self, index: int, text: str, logprobs: Any, finish: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def fingerprint(run: Run) -> str:
    """Changes when model or numeric class do: answers with equal fingerprints and seeds are equal."""
    info = run.plan.decision("generate").engine.info
    facts = f"{run.task.model.digest}/{'' if info is None else info.numeric_class}"
    return f"fp_{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def usage_object(run: Run) -> dict[str, Any]:
    """OpenAI's `usage`; without `prompt_tokens_details` where the engine gave no account."""
    usage = run.usage()
    counts: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return counts
