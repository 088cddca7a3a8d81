"""Runs a pipeline: every stage is a task, which begins as soon as what it reads is there, in part where that is enough.

Cancelling the chain cancels every stage, and each ends its work within one step, wherever that runs. Labels flow along every
edge: a stage's is the strictest of the request's, the pipeline's, its own, and those of everything that it reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from edgewise.core.errors import DeadlineExceeded, EdgewiseError, EngineFault, InvalidRequest
from edgewise.core.log import get_logger
from edgewise.core.patience import end_task
from edgewise.core.privacy import Privacy, privacy_of
from edgewise.pipeline.chains.kinds import Kinds
from edgewise.pipeline.chains.load import Pipeline
from edgewise.pipeline.chains.output import Output
from edgewise.pipeline.chains.spec import StageSpec, fill
from edgewise.pipeline.chains.stage_run import Asked, ChainPiece, Record, Scene, StageRun
from edgewise.pipeline.news import News
from edgewise.pipeline.receipts import Usage

log = get_logger(__name__)


class Chain:
    """One request under way. `start` it, read `receive` until `done`, and `aclose` it in any case.

    Attributes:
        first_token_s: Seconds from the start to the first piece of any stage.

    Raises:
        InvalidRequest: An input is missing or unknown.
    """

    def __init__(
        self, pipeline: Pipeline, kinds: Kinds, asked: Asked, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.pipeline = pipeline
        self.asked = asked
        self.first_token_s: float | None = None
        self._clock = clock
        self._began = clock()
        label = min(asked.privacy, privacy_of(pipeline.spec.privacy))
        inputs = inputs_of(pipeline, asked.input)
        self._scene = Scene(
            kinds=kinds,
            asked=asked,
            inputs=inputs,
            outputs={stage.name: Output(label) for stage in pipeline.order},
            records={stage.name: Record(label, fill(stage.model, inputs)) for stage in pipeline.order},
            offer=self._offer,
            left_s=self._left_s,
            now_s=self._now_s,
            works=set(),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._news: News[ChainPiece] = News()
        self._running = len(pipeline.order)

    def __repr__(self) -> str:
        return f"Chain({self.asked.id}, {self.pipeline.spec.name}, running={self._running})"

    @property
    def model_name(self) -> str:
        """For metrics: what was asked is a pipeline."""
        return f"pipeline:{self.pipeline.spec.name}"

    @property
    def privacy(self) -> Privacy:
        """The strictest label of any stage, as far as it is known: that of a model is once its stage has begun."""
        own = [privacy_of(stage.privacy) for stage in self.pipeline.order]
        return min(*own, *(record.privacy for record in self._scene.records.values()))

    @property
    def done(self) -> bool:
        """Every stage has ended, and all that came of it was read."""
        return self._running == 0 and not self._news

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._run(number, stage), name=f"{self.asked.id}/{stage.name}")
            for number, stage in enumerate(self.pipeline.order)
        ]

    async def receive(self, timeout_s: float | None = None) -> ChainPiece | None:
        """The next piece of any stage; None when none came within `timeout_s`, or at the end.

        Raises:
            EdgewiseError: A stage failed, whose name the message gives, or `fail` was called. The caller then closes the chain.
        """
        return None if self.done else await self._news.next(timeout_s)

    async def pieces(self) -> AsyncIterator[ChainPiece]:
        """All of them, to the end; raises as `receive` does."""
        while not self.done:
            piece = await self.receive()
            if piece is not None:
                yield piece

    def output(self, name: str) -> Output:
        """What a stage has made."""
        return self._scene.outputs[name]

    def fail(self, error: EdgewiseError) -> None:
        """End with an error after what is already there; used when the service must stop."""
        for task in self._tasks:
            task.cancel()
        self._news.put(error)

    async def aclose(self) -> None:
        """Cancel every stage that still runs. Safe to call at any time, and twice."""
        await end_task(*self._tasks)
        for work in [*self._scene.works]:  # of a task that was cancelled again while it closed it
            await work.aclose()
        self._news.close()

    def usage(self) -> Usage:
        """Of all stages together."""
        usages = [usage for record in self._scene.records.values() for usage in record.usages.values()]
        cached = [usage.cached_tokens for usage in usages if usage.cached_tokens is not None]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            cached_tokens=sum(cached) if cached else None,
        )

    def receipt(self) -> dict[str, Any]:
        """One for all stages; each lists the receipts of its parts."""
        records = self._scene.records
        return {
            "request_id": self.asked.id,
            "pipeline": self.pipeline.spec.name,
            "source": self.pipeline.source,
            "priority": self.asked.priority.label,
            "privacy": self.privacy.label,
            "seed": self.asked.seed,
            "total_ms": _ms(self._now_s()),
            "stages": [_stage_receipt(stage, records[stage.name]) for stage in self.pipeline.order],
        }

    async def _run(self, number: int, stage: StageSpec) -> None:
        try:
            await StageRun(self._scene, number, stage).run()
        except EdgewiseError as error:
            self._news.put(named(error, stage))
            return
        except Exception as error:  # outermost frame of a task; the caller must hear of it
            log.exception("stage_broke", request_id=self.asked.id, stage=stage.name)
            told = f"It broke off by an internal error ({type(error).__name__})."
            self._news.put(named(EngineFault(told), stage))
            return
        self._scene.records[stage.name].ended_s = self._now_s()
        self._running -= 1
        self._news.rouse()

    def _now_s(self) -> float:
        return self._clock() - self._began

    def _left_s(self) -> float | None:
        if self.asked.deadline_s is None:
            return None
        left = self.asked.deadline_s - self._now_s()
        if left <= 0:
            raise DeadlineExceeded(
                f"The pipeline was not done within {self.asked.deadline_s:g} s: allow more time ('timeout', or the service's "
                "limits.request_timeout_s), or ask for less."
            )
        return left

    def _offer(self, piece: ChainPiece) -> None:
        if self.first_token_s is None:
            self.first_token_s = self._now_s()
        self._news.put(piece)


def inputs_of(pipeline: Pipeline, given: Mapping[str, str]) -> dict[str, str]:
    """Every input's text: what was given, else its default."""
    known = pipeline.spec.inputs
    for name in given:
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidRequest(
                f"'input.{name[:80]}' is no input of '{pipeline.spec.name}', which has {names}.", param="input"
            )
    values = {name: given.get(name, one.default) for name, one in known.items()}
    for name, value in values.items():
        if value is None:
            raise InvalidRequest(f"'input.{name}' is missing: '{pipeline.spec.name}' needs it.", param="input")
    return {name: str(value) for name, value in values.items()}


def named(error: EdgewiseError, stage: StageSpec) -> EdgewiseError:
    """The same error, saying in which stage it happened."""
    error.message = f"Stage '{stage.name}': {error.message}"
    error.args = (error.message,)
    return error


def _stage_receipt(stage: StageSpec, record: Record) -> dict[str, Any]:
    return {
        "name": stage.name,
        "kind": stage.kind,
        "model": record.model,
        "privacy": record.privacy.label,
        "began_ms": None if record.began_s is None else _ms(record.began_s),
        "ended_ms": None if record.ended_s is None else _ms(record.ended_s),
        "parts": [record.receipts[part] for part in sorted(record.receipts)],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
