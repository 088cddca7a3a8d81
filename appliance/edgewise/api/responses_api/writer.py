"""Answers in the form of OpenAI's Responses API: items with parts, and an event for each step of their making.

The same steps make the stream and the whole body, so both say the same. Every event has a `sequence_number`; the last one,
`response.completed`, `.incomplete` or `.failed`, carries the whole answer. There is no `[DONE]`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from edgewise.api.logprobs import chat_logprobs
from edgewise.api.parse import AnswerForm
from edgewise.api.responses_api.items import new_id
from edgewise.api.responses_api.parse import Asked
from edgewise.api.sse import KEEP_ALIVE, sse
from edgewise.core.errors import EdgewiseError
from edgewise.pipeline.conversations import Conversations, Kept
from edgewise.pipeline.run import Run
from edgewise.pipeline.text import ShownToken, TextChunk, ToolCallDelta

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponsesWriter:
    """Args:
    keep: Where the finished answer is kept; None keeps it nowhere.
    """

    keep_alive = KEEP_ALIVE

    def __init__(self, run: Run, form: AnswerForm, asked: Asked, created: int, keep: Conversations | None) -> None:
        self._run = run
        self._form = form
        self._asked = asked
        self._created = created
        self._keep = keep
        self._id = f"resp_{run.task.id.removeprefix('req_')}"
        self._output: list[dict[str, Any]] = []
        self._shown: list[ShownToken] = []
        self._number = 0
        self._finish: str | None = None
        self._body: dict[str, Any] = {}

    def opening(self) -> Iterable[bytes]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def piece(self, chunk: TextChunk) -> Iterator[bytes]:
        if self._form.logprobs:
            self._shown += chunk.shown
        for part in chunk.ordered:
            yield from self._text(part) if isinstance(part, str) else self._call(part)
        if self._open is not None and self._open["type"] == "function_call":
            self._shown.clear()
        if chunk.finish is not None:
            self._finish = chunk.finish
            if not self._output:
                yield from self._open_message()
            if self._shown and self._open is not None:
                yield from self._text("")
            yield from self._close_item()

    def gather(self, chunk: TextChunk) -> None:
        deque(self.piece(chunk), maxlen=0)

    async def settle(self) -> None:
        self._body = self._response(self._status()) | {"edgewise": self._run.receipt().to_dict()}
        if self._keep is not None and self._asked.store:
            kept = Kept(
                id=self._id,
                body=self._body,
                input=self._asked.items,
                previous=self._asked.previous,
                privacy=self._run.task.privacy,
            )
            await self._keep.put(self._run.task.salt, kept)

    def closing(self) -> Iterable[bytes]:
        yield self._event(f"response.{self._status()}", response=self._body)

    def failure(self, error: EdgewiseError) -> Iterable[bytes]:
        fault = {
            "code": _ERROR_CODES.get(error.http_status, "server_error"),
            "message": error.message,
            "param": error.param,
            "type": error.code,
        }
        yield self._event("response.failed", response=self._response("failed") | {"error": fault})

    def body(self) -> dict[str, Any]:
        return self._body

    def _status(self) -> str:
        return "incomplete" if self._finish in _INCOMPLETE else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse(data, event=kind)

    # --- items ------------------------------------------------------------------------------------------------------------

    @property
    def _open(self) -> dict[str, Any] | None:
        """The item that is being written."""
        return self._output[-1] if self._output and self._output[-1]["status"] == "in_progress" else None

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _text(self, text: str) -> Iterator[bytes]:
        if self._open is None or self._open["type"] != "message":
            yield from self._close_item()
            yield from self._open_message()
        logprobs = self._logprobs()
        part = self._output[-1]["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        yield self._event("response.output_text.delta", **self._place, content_index=0, delta=text, logprobs=logprobs)

    def _logprobs(self) -> list[dict[str, Any]]:
        """Of the tokens that have been shown since the last text. Those of calls have no place in this API."""
        if not self._shown:
            return []
        told: list[dict[str, Any]] = chat_logprobs(self._run.task.model.tokenizer, self._shown)["content"]
        self._shown.clear()
        return told

    def _open_message(self) -> Iterator[bytes]:
        item: dict[str, Any] = {"id": new_id("msg"), "type": "message", "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        yield from self._add(item)
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._event("response.content_part.added", **self._place, content_index=0, part=part)
        item["content"] = [part]

    def _add(self, item: dict[str, Any]) -> Iterator[bytes]:
        self._output.append(item)
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)

    def _call(self, delta: ToolCallDelta) -> Iterator[bytes]:
        if delta.name is not None:
            yield from self._close_item()
            call = {"call_id": delta.id or new_id("call"), "name": delta.name, "arguments": ""}
            yield from self._add({"id": new_id("fc"), "type": "function_call", "status": "in_progress", **call})
        if delta.arguments:
            self._output[-1]["arguments"] += delta.arguments
            yield self._event("response.function_call_arguments.delta", **self._place, delta=delta.arguments)

    def _close_item(self) -> Iterator[bytes]:
        item = self._open
        if item is None:
            return
        cut = self._finish in _INCOMPLETE or (item["type"] == "function_call" and self._finish == "stop")
        item["status"] = "incomplete" if cut else "completed"
        if item["type"] == "message":
            part = item["content"][0]
            told = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._event("response.output_text.done", **self._place, content_index=0, **told)
            yield self._event("response.content_part.done", **self._place, content_index=0, part=part)
        else:
            told = {"arguments": item["arguments"], "name": item["name"]}
            yield self._event("response.function_call_arguments.done", **self._place, **told)
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    # --- the whole --------------------------------------------------------------------------------------------------------

    def _response(self, status: str) -> dict[str, Any]:
        asked, task = self._asked, self._run.task
        drawn = task.sampling.effective(task.model)
        ended = status in ("completed", "incomplete")
        reason = {"reason": _INCOMPLETE[self._finish or ""]} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": reason,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "model": task.model.name,
            "output": list(self._output),
            "parallel_tool_calls": asked.parallel,
            "previous_response_id": asked.previous,
            "reasoning": {"effort": None, "summary": None},
            "store": asked.store,
            "temperature": drawn["temperature"],
            "text": asked.text,
            "tool_choice": asked.tool_choice,
            "tools": list(asked.tools),
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": drawn["top_p"],
            "truncation": "disabled",
            "usage": usage_object(self._run) if ended else None,
            "metadata": asked.metadata,
        }


def usage_object(run: Run) -> dict[str, Any]:
    """The Responses API's `usage`; tokens of the prompt that an unknown cache may have held count as not cached."""
    usage = run.usage()
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
