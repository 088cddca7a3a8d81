"""The kind `generate`: a language model writes a text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Annotated, Any

from pydantic import ConfigDict, PositiveInt
from pydantic import Field as Limit

from edgewise.core.errors import InvalidRequest
from edgewise.core.privacy import Labels
from edgewise.pipeline.chains.kinds import Call, Field, Medium, Outlook, Piece, Size, Work
from edgewise.pipeline.chains.parts import pack
from edgewise.pipeline.chains.run_work import RunWork, label_of, precise
from edgewise.pipeline.chains.spec import Strict
from edgewise.pipeline.model import Models, ServedModel
from edgewise.pipeline.plan import Plan
from edgewise.pipeline.prompt import encode_input
from edgewise.pipeline.run import Run
from edgewise.pipeline.task import ChatInput, Sampling, Task, TextInput
from edgewise.pipeline.text import TextChunk

_MARGIN = 16
_LEAST = 16
_GUESS = 256
"""Tokens: what counts of sentences may be off by when they are put together, the smallest piece that makes sense, and an answer
of which nothing at all is known."""

Start = Callable[[Task], Awaitable[Run]]
"""`pipeline.run.start_run` with all that the service adds to it."""
Explain = Callable[[Task, int], Awaitable[Plan]]
"""`pipeline.run.explain` with the service's planner."""


class Options(Strict):
    """As the fields of a request with these names; see docs/api.md."""

    model_config = ConfigDict(strict=True)

    max_tokens: PositiveInt | None = None
    temperature: Annotated[float, Limit(ge=0, le=2)] | None = None
    top_k: Annotated[int, Limit(ge=0)] | None = None
    top_p: Annotated[float, Limit(gt=0, le=1)] | None = None
    min_p: Annotated[float, Limit(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Limit(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Limit(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Limit(ge=-2, le=2)] = 0.0
    min_tokens: Annotated[int, Limit(ge=0)] = 0
    ignore_eos: bool = False
    stop: Annotated[list[str], Limit(max_length=4)] = []  # noqa: RUF012 - pydantic copies it
    seed: Annotated[int, Limit(ge=0, lt=2**64)] | None = None


class Generate:
    """Args:
    start: Begins a task.
    labels: Of models.
    explain: Tells where one would run.
    """

    makes: Medium = "text"
    splits = True
    fields: Mapping[str, Field] = {"system": Field(), "user": Field(), "prompt": Field()}

    def __init__(self, models: Models, start: Start, labels: Labels, explain: Explain) -> None:
        self._models = models
        self._start = start
        self._labels = labels
        self._explain = explain

    def check(self, fields: Set[str], options: Mapping[str, Any]) -> None:
        if ("user" in fields) == ("prompt" in fields):
            raise ValueError("give 'user' (with 'system' or without) for a chat, or 'prompt' for a text to continue")
        if "prompt" in fields and "system" in fields:
            raise ValueError("'system' goes with 'user'; a 'prompt' is continued as it is")
        Options.model_validate(options)

    async def begin(self, call: Call) -> Work:
        model = await self._models.open(call.model)
        run = await self._start(self._task(call, model))
        return await precise(_Text(run), call, run.plan.decision("generate"))

    async def explain(self, call: Call, missing: Size) -> Outlook:
        task = self._task(call, await self._models.open(call.model))
        plan = await self._explain(task, missing.tokens)
        tokens, why = _length(plan, task)
        return Outlook(plan=plan, model=task.model.name, privacy=task.privacy, makes=Size(tokens=tokens), why=why)

    async def room(self, call: Call, tokens: int | None) -> int:
        model = await self._models.open(call.model)
        encoded = await encode_input(self._task(call, model))
        answer = Options.model_validate(call.options).max_tokens or model.context // 4
        room = model.context - len(encoded.prompts[0]) - answer - _MARGIN
        if room < _LEAST:
            raise InvalidRequest(
                f"The context of '{model.name}' ({model.context} tokens) has no room for a piece of text beside the rest of its "
                f"prompt ({len(encoded.prompts[0])}) and an answer of {answer} tokens: lower max_tokens.",
                param="options.max_tokens",
            )
        return room if tokens is None else min(room, tokens)

    async def split(self, call: Call, text: str, tokens: int | None) -> list[str]:
        limit = await self.room(call, tokens)
        model = await self._models.open(call.model)
        return await asyncio.to_thread(pack, text, limit, lambda piece: len(model.tokenizer.encode(piece)))

    def _task(self, call: Call, model: ServedModel) -> Task:
        given = Options.model_validate(call.options)
        texts = {name: str(value) for name, value in call.input.items()}
        names = [("system", texts.get("system")), ("user", texts.get("user"))]
        chat = tuple({"role": role, "content": text} for role, text in names if text is not None)
        return Task(
            id=call.id,
            model=model,
            input=TextInput((texts["prompt"],)) if "prompt" in texts else ChatInput(chat),
            sampling=Sampling(
                **given.model_dump(exclude={"stop", "seed"}), seed=call.seed if given.seed is None else given.seed
            ),
            stop=tuple(given.stop),
            salt=call.salt,
            key=call.key,
            priority=call.priority,
            deadline_s=call.deadline_s,
            privacy=label_of(call, self._labels, model.names),
            policy=call.policy,
            allowed=call.allowed,
        )


def _length(plan: Plan, task: Task) -> tuple[int, str]:
    """Tokens that an answer is expected to have, and how that is known."""
    predicted, limit = plan.decision("generate").predicted, task.sampling.max_tokens
    if predicted is not None and predicted.answer_tokens is not None and (limit or predicted.total_s is not None):
        return predicted.answer_tokens, "as such answers were until now; its max_tokens before the first one"
    if limit is not None:
        return limit, "its max_tokens"
    return _GUESS, "a guess: nothing was measured, and it has no max_tokens"


class _Text(RunWork[Run]):
    """One run as a stage's work."""

    def piece(self, item: TextChunk) -> Piece:
        return Piece(offset=item.offset, count=len(item.text), text=item.text, finish=item.finish)
