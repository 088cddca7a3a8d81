"""Carry a request for pictures out: plan, submit every picture, hand out progress and pictures in order of arrival."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from edgewise.core.errors import Cancelled, EdgewiseError, EngineFault, error_class
from edgewise.core.log import get_logger
from edgewise.core.priority import Priority
from edgewise.core.privacy import Privacy
from edgewise.engine.pictures.request import (
    DiffuseChunk,
    DiffuseParams,
    DiffuseRequest,
    DiffuseStats,
    PictureEngine,
    PictureStream,
)
from edgewise.engine.request import RequestStats, link_of
from edgewise.pipeline.hooks.hooks import Hooks, Passage
from edgewise.pipeline.hooks.protocol import Call, PromptText
from edgewise.pipeline.model import ServedPictures
from edgewise.pipeline.plan import Decision, Demand, Errand, Place, Plan, Planner, PolicyName
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import PictureReceipt, Usage, costs_of, diffuse_receipt, show_plan
from edgewise.pipeline.seeds import draw_seed, sequence_seed

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTask:
    """One request; what is not said here is as in `pipeline.task.Task`.

    Attributes:
        params: Of every picture; `seed` is that of the first one.
        n: Pictures; each has a seed of its own, derived from the first as those of several answers are.
        seed: None draws one; the receipt names it.
    """

    id: str
    model: ServedPictures
    params: DiffuseParams
    n: int = 1
    seed: int | None = None
    key: str = ""
    priority: Priority = Priority.INTERACTIVE
    deadline_s: float | None = None
    privacy: Privacy = Privacy.PRIVATE
    policy: PolicyName | None = None
    allowed: tuple[Place, ...] = ()
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """Progress of picture `index`."""

    index: int
    chunk: DiffuseChunk


@dataclass(slots=True)
class _Picture:
    index: int
    seed: int
    stream: PictureStream
    stats: DiffuseStats | None = None


@dataclass(slots=True)
class PictureRun:
    """A request under way. `done` once every picture is finished; `receipt` is complete then."""

    task: PictureTask
    plan: Plan
    clock: Callable[[], float] = time.monotonic
    passage: Passage | None = None
    _pictures: list[_Picture] = field(default_factory=list)
    _pumps: list[asyncio.Task[None]] = field(default_factory=list)
    _news: asyncio.Queue[Drawn | EdgewiseError] = field(default_factory=asyncio.Queue)
    _unfinished: int = 0
    _started_s: float = 0.0
    _first_s: float | None = None
    _last_s: float = 0.0
    _fault: str = "cancelled"
    on_end: Callable[[Outcome], None] | None = None

    @property
    def done(self) -> bool:
        return self._unfinished == 0

    @property
    def model_name(self) -> str:
        return self.task.model.name

    @property
    def decision(self) -> Decision[PictureEngine]:
        return self.plan.decision("diffuse")

    @property
    def first_token_s(self) -> float | None:
        """Seconds to the first step of any picture."""
        return None if self._first_s is None else self._first_s - self._started_s

    def usage(self) -> Usage:
        """Pictures are not counted in tokens."""
        return Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=None)

    async def submit(self, seed: int) -> None:
        """Queue every picture or none."""
        self._started_s = self._last_s = self.clock()
        try:
            for index in range(self.task.n):
                own = picture_seed(seed, index)
                request = DiffuseRequest(
                    id=f"{self.task.id}/{index}",
                    params=replace(self.task.params, seed=own),
                    key=self.task.key,
                    priority=self.task.priority,
                    deadline_s=self.task.deadline_s,
                )
                self._pictures.append(_Picture(index, own, await self.decision.engine.submit(request)))
        except BaseException as error:
            self._fault = error.code if isinstance(error, EdgewiseError) else self._fault
            await self.aclose()
            raise
        self._unfinished = self.task.n
        self._pumps = [
            asyncio.create_task(self._pump(picture), name=f"{self.task.id}/{picture.index}")
            for picture in self._pictures
        ]

    async def receive(self, timeout_s: float) -> Drawn | None:
        """The next piece of news; None after `timeout_s` without any. Raises what an engine reports; the run is over then."""
        reading = asyncio.ensure_future(self._news.get())
        try:
            await asyncio.wait({reading}, timeout=timeout_s)
            if not reading.done():
                return None
            news = reading.result()
        finally:
            reading.cancel()
        if isinstance(news, EdgewiseError):
            self._fault = news.code
            await self.aclose()
            raise news
        if news.chunk.finish is not None:
            await self._let_pass(news)
            self._unfinished -= 1
            if self.done:
                self._tell_end(None)
        return news

    async def _let_pass(self, drawn: Drawn) -> None:
        """The hooks hear of a finished picture before it is shown; one that fails ends the run."""
        if self.passage is None:
            return
        try:
            await self.passage.pass_picture(drawn.index, drawn.chunk.picture or b"")
        except EdgewiseError as error:
            self._fault = error.code
            await self.aclose()
            raise

    async def news(self) -> AsyncIterator[Drawn]:
        """All of it, until every picture is finished."""
        while not self.done:
            drawn = await self.receive(3600.0)
            if drawn is not None:
                yield drawn

    def fail(self, error: EdgewiseError) -> None:
        """End the request for its caller, who meets the error where it reads on."""
        self._news.put_nowait(error)

    async def aclose(self) -> None:
        """Cancel what is still being drawn: it takes no further step. Safe to call twice."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for picture in self._pictures:  # a pump that was cancelled before its first step has not closed its stream
            await picture.stream.aclose()
        if self.passage is not None:
            await self.passage.end(self._fault)
        self._tell_end(self._fault)

    def _tell_end(self, fault: str | None) -> None:
        """Once, when the last picture was handed out or the run was closed before that."""
        if self.on_end is None:
            return
        tell, self.on_end = self.on_end, None
        receipt = self.receipt()
        tell(
            Outcome(
                errand=_errand(self.task),
                model=self.task.model.name,
                plan=self.plan,
                receipt=receipt.to_dict(),
                costs=receipt.costs,
                stats=tuple(None if one.stats is None else _account(one.stats) for one in self._pictures),
                first_s=self.first_token_s,
                total_s=self._last_s - self._started_s,
                fault=fault,
            )
        )

    def receipt(self) -> PictureReceipt:
        """What was drawn, where and how."""
        task = self.task
        stats = [picture.stats for picture in self._pictures]
        return PictureReceipt(
            request_id=task.id,
            model=task.model.name,
            digest=task.model.digest,
            priority=task.priority.label,
            privacy=task.privacy.label,
            seeds=tuple(picture.seed for picture in self._pictures),
            plan=show_plan(self.plan),
            total_ms=_ms(self._last_s - self._started_s),
            costs=costs_of(
                [None if one is None else _account(one) for one in stats],
                [link_of(one.stream) for one in self._pictures],
                self.plan.watts,
            ),
            stages=(diffuse_receipt(self.decision, stats),),
            ignored=task.ignored,
            warnings=task.warnings,
        )

    async def _pump(self, picture: _Picture) -> None:
        """Move one picture's progress from the engine to the caller."""
        try:
            async for chunk in picture.stream:
                self._last_s = self.clock()
                if self._first_s is None:
                    self._first_s = self._last_s
                if chunk.stats is not None:
                    picture.stats = chunk.stats
                if chunk.finish in ("error", "cancelled"):
                    raise _engine_error(chunk)
                self._news.put_nowait(Drawn(picture.index, chunk))
                if chunk.finish is not None:
                    return
            self._news.put_nowait(EngineFault("The engine's stream ended without a picture."))
        except EdgewiseError as error:
            self._news.put_nowait(error)
        except Exception as error:  # outermost frame of a task; the caller must hear of it
            log.exception("picture_broke", request_id=self.task.id, picture=picture.index)
            self._news.put_nowait(EngineFault(f"The picture broke off by an internal error ({type(error).__name__})."))
        finally:
            await picture.stream.aclose()


async def start_pictures(
    task: PictureTask,
    planner: Planner,
    *,
    clock: Callable[[], float] = time.monotonic,
    hooks: Hooks | None = None,
    on_end: Callable[[Outcome], None] | None = None,
) -> PictureRun:
    """Ask the hooks, plan and queue a request.

    Raises:
        ContentRefused, HookFailed: A hook refuses the prompt, or failed.
        InvalidRequest: The model cannot draw it, naming the field.
        QueueFull, EngineUnavailable, OutOfMemory: The engine takes no more, is not there, or has no room for it.
    """
    seed = draw_seed() if task.seed is None else task.seed
    task, passage = (task, None) if not hooks else await _admit(task, hooks)
    plan = await planner.plan(_errand(task), [picture_demand(task)])
    run = PictureRun(task, plan, clock, passage, on_end=on_end)
    if passage is not None:
        await passage.begin(0, task.n)
    await run.submit(seed)
    return run


async def _admit(task: PictureTask, hooks: Hooks) -> tuple[PictureTask, Passage]:
    """The task with the prompts that the hooks let through."""
    params = task.params
    texts = [PromptText("prompt", params.prompt)]
    texts += [PromptText("negative_prompt", params.negative_prompt)] * bool(params.negative_prompt)
    call = Call(request_id=task.id, key=task.key, model=task.model.name, digest=task.model.digest)
    passed, passage = await hooks.admit_texts(call, texts)
    prompt, *negative = (one.text for one in passed)
    return replace(task, params=replace(params, prompt=prompt, negative_prompt="".join(negative))), passage


async def explain_pictures(task: PictureTask, planner: Planner, missing_bytes: int = 0) -> Plan:
    """Where a request would be drawn and why, without drawing it; `missing_bytes` of its input are not there yet. The hooks see
    nothing."""
    demand = picture_demand(task)
    return await planner.explain(_errand(task), [replace(demand, upload_bytes=demand.upload_bytes + missing_bytes)])


def picture_seed(seed: int, index: int) -> int:
    """Seed of the picture `index` (from 0) of a request; small enough for every JSON reader, to be asked for alone."""
    return seed if index == 0 else sequence_seed(seed, index) & (2**53 - 1)


def picture_demand(task: PictureTask) -> Demand:
    """What drawing needs, for placement."""
    params, info = task.params, task.model.engine.info
    best = (0, 0) if info is None else info.sizes_best
    pixels = (params.width or best[0]) * (params.height or best[1])
    upload = len(params.prompt.encode()) + len(params.negative_prompt.encode())
    return Demand(
        stage="diffuse",
        model=task.model.name,
        digest=task.model.digest,
        aliases=task.model.aliases,
        local=task.model.engine if task.model.here else None,
        answers=task.n,
        steps=params.steps or (task.model.steps if info is None else info.steps),
        pixels=pixels or task.model.pixels,
        upload_bytes=upload + len(params.image or b"") + len(params.mask or b""),
        allowed=task.allowed,
    )


def _errand(task: PictureTask) -> Errand:
    return Errand(
        id=task.id,
        key=task.key,
        priority=task.priority,
        privacy=task.privacy,
        deadline_s=task.deadline_s,
        policy=task.policy,
    )


def _account(stats: DiffuseStats) -> RequestStats:
    """A picture in the words of an answer: it reads nothing, and all its steps are writing."""
    return RequestStats(
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=stats.steps,
        queued_s=stats.queued_s,
        prefill_s=0.0,
        decode_s=stats.denoise_s + stats.decode_s,
        preemptions=stats.preemptions,
        restarts=stats.restarts,
        link=stats.link,
        segments=stats.segments,
    )


def _engine_error(chunk: DiffuseChunk) -> EdgewiseError:
    """The error that the engine names, as its class in the tree; an unknown code is an engine fault."""
    message = chunk.error_message or f"The engine ended the request: {chunk.error_code or chunk.finish}."
    if chunk.finish == "cancelled":
        return Cancelled(message)
    return (error_class(chunk.error_code or "") or EngineFault)(message)


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
