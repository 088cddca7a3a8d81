"""Carry a request for pictures out: plan, submit every picture, hand out progress and pictures in order of arrival."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

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
from edgewise.engine.request import RequestStats
from edgewise.pipeline.hooks.hooks import Hooks, Passage
from edgewise.pipeline.hooks.protocol import Call, PromptText
from edgewise.pipeline.model import ServedPictures
from edgewise.pipeline.plan import Decision, Demand, Place, Plan, Planner, PolicyName
from edgewise.pipeline.pressure import Pressure
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.receipts import PictureReceipt, Usage, diffuse_receipt
from edgewise.pipeline.run_base import RunBase, errand_of, raise_reported
from edgewise.pipeline.seeds import draw_seed, sequence_seed


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

    @property
    def finish(self) -> str | None:
        return self.chunk.finish


@dataclass(slots=True)
class _Picture:
    index: int
    seed: int
    stream: PictureStream
    stats: DiffuseStats | None = None

    @property
    def account(self) -> RequestStats | None:
        """In the words of an answer: a picture reads nothing, and all its steps are writing."""
        stats = self.stats
        if stats is None:
            return None
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


class PictureRun(RunBase[PictureTask, _Picture, Drawn]):
    """A request under way."""

    @property
    def decision(self) -> Decision[PictureEngine]:
        return self.plan.decision("diffuse")

    def usage(self) -> Usage:
        """Pictures are not counted in tokens."""
        return Usage(prompt_tokens=0, completion_tokens=0, cached_tokens=None)

    async def submit(self, seed: int) -> None:
        """Queue every picture or none."""
        await self._start([partial(self._picture, index, picture_seed(seed, index)) for index in range(self.task.n)])

    async def _picture(self, index: int, seed: int) -> _Picture:
        request = DiffuseRequest(
            id=f"{self.task.id}/{index}",
            params=replace(self.task.params, seed=seed),
            key=self.task.key,
            priority=self.task.priority,
            deadline_s=self.task.deadline_s,
        )
        return _Picture(index, seed, await self.decision.engine.submit(request))

    async def _take(self, part: _Picture, chunk: DiffuseChunk) -> Drawn:
        """The hooks hear of a finished picture before it is shown; one that fails ends the run."""
        self._last_s = self._clock()
        self._first_s = self._last_s if self._first_s is None else self._first_s
        part.stats = part.stats if chunk.stats is None else chunk.stats
        raise_reported(chunk)
        if chunk.finish is not None and self._passage is not None:
            await self._passage.pass_picture(part.index, chunk.picture or b"")
        return Drawn(part.index, chunk)

    def receipt(self) -> PictureReceipt:
        return PictureReceipt(
            **self._common(),
            seeds=tuple(picture.seed for picture in self._parts),
            stages=(diffuse_receipt(self.decision, [picture.stats for picture in self._parts]),),
            warnings=self.task.warnings,
        )


async def start_pictures(
    task: PictureTask,
    planner: Planner,
    *,
    clock: Callable[[], float] = time.monotonic,
    hooks: Hooks | None = None,
    on_end: Callable[[Outcome], None] | None = None,
    pressure: Pressure | None = None,
) -> PictureRun:
    """Ask the hooks, plan and queue a request. Drawn here under pressure it gets fewer steps, unless it says how many.

    Raises:
        ContentRefused, HookFailed: A hook refuses the prompt, or failed.
        InvalidRequest: The model cannot draw it, naming the field.
        QueueFull, EngineUnavailable, OutOfMemory: The engine takes no more, is not there, or has no room for it.
    """
    seed = draw_seed() if task.seed is None else task.seed
    task, passage = (task, None) if not hooks else await _admit(task, hooks)
    plan = await planner.plan(errand_of(task), [picture_demand(task)])
    if pressure is not None and plan.decision("diffuse").where == "local":
        task = stepped_down(task, pressure)
    run = PictureRun(task, plan, clock=clock, passage=passage, on_end=on_end)
    await run.submit(seed)
    return run


def stepped_down(task: PictureTask, pressure: Pressure) -> PictureTask:
    """The same task with the steps that the pressure leaves, and a sentence about it for the receipt."""
    usual, share = _steps(task), pressure.quality.steps
    if task.params.steps is not None or share == 1.0:
        return task
    steps = max(1, round(usual * share))
    told = pressure.lowered("steps", usual, steps)
    return replace(task, params=replace(task.params, steps=steps), warnings=(*task.warnings, told))


def _steps(task: PictureTask) -> int:
    """What is asked for, or else the model's own number."""
    info = task.model.engine.info
    return task.params.steps or (task.model.steps if info is None else info.steps)


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
    return await planner.explain(errand_of(task), [replace(demand, upload_bytes=demand.upload_bytes + missing_bytes)])


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
        steps=_steps(task),
        pixels=pixels or task.model.pixels,
        upload_bytes=upload + len(params.image or b"") + len(params.mask or b""),
        allowed=task.allowed,
    )
