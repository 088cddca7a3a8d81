"""Draws pictures, one slice of a step at a time: the `engine.core.EngineCore` of a picture model. Runs in the engine process.

A turn of the loop does one thing: begin a picture (encode its prompts), advance the present step to its next yield, or decode.
A request whose picture was drawn elsewhere is decoded only: it takes no step.
Between two turns messages are taken, so a cancelled picture takes no further step, and a more urgent one does not wait for the
step under way: that is abandoned, and its pictures are as before it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from edgewise.core.errors import EngineFault, InvalidRequest, OutOfMemory
from edgewise.core.log import get_logger
from edgewise.core.sizes import mib
from edgewise.engine.api import CacheTier, EngineStats, MemoryReport
from edgewise.engine.heartbeat import resident_bytes
from edgewise.engine.ledger import REFUSE_MARK, Ledger
from edgewise.engine.notices import Notices, Notify
from edgewise.engine.pictures.brief import brief_of
from edgewise.engine.pictures.request import DiffuseChunk, DiffuseFinish, DiffuseRequest, DiffuseStats, PictureInfo
from edgewise.engine.pictures.scheduler import Job, PictureScheduler
from edgewise.models.diffusion.pictures import encode
from edgewise.models.diffusion.protocol import Canvas, PictureModel, Pixels
from edgewise.models.diffusion.sizes import PictureSizes

log = get_logger(__name__)

_SLOWEST = 0.05  # pace that is not fallen below
_REST_S = 0.05  # of a pause, between two looks at messages


class Slices(Protocol):
    """When the device may be used; `engine.turns.PictureTurns` is one."""

    def slice(self) -> AbstractContextManager[None]:
        """Waits for this process's turn; held for one slice."""

    def cut(self) -> None:
        """Inside of a slice: end it and begin the next one; outside of any, nothing."""

    def idle(self) -> None:
        """Nothing is to be drawn for now."""


class FreeSlices:
    """Nobody else uses the device."""

    def slice(self) -> AbstractContextManager[None]:
        return nullcontext()

    def cut(self) -> None:
        return

    def idle(self) -> None:
        return


@dataclass(slots=True)
class _Stroke:
    """A step under way."""

    group: list[Job]
    slices: Iterator[None]
    seconds: float = 0.0
    cancelled: set[str] = field(default_factory=set)


class PictureCore:
    """One picture model. Not thread-safe: one loop calls it.

    Args:
        info: What this engine is, for callers.
        model: What draws.
        widen: Makes it compute in a wider type after half precision has overflowed; None where it cannot.
        sizes: What a picture takes.
        now, wait: Monotonic seconds, and how to let some pass.
    """

    def __init__(
        self,
        info: PictureInfo,
        *,
        model: PictureModel,
        widen: Callable[[], PictureModel] | None,
        sizes: PictureSizes,
        scheduler: PictureScheduler,
        ledger: Ledger,
        slices: Slices | None = None,
        notices: Notices | None = None,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.info = info
        self._model = model
        self._widen = widen
        self._sizes = sizes
        self._scheduler = scheduler
        self._ledger = ledger
        self._slices = slices or FreeSlices()
        self._notices = notices or Notices()
        self._now = now
        self._wait = wait
        self._pace = 1.0
        self._rests_until = 0.0
        self._live: dict[str, Job] = {}
        self._stroke: _Stroke | None = None
        self._outbox: list[DiffuseChunk] = []
        self._arrivals = 0
        self._totals: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"PictureCore({self.info.model}, {self._scheduler!r})"

    # --- requests ------------------------------------------------------------------------------------------------------

    def add(self, request: DiffuseRequest) -> None:
        """Queue a picture.

        Raises:
            InvalidRequest: The model cannot draw it; the message names the field and what can be had.
            OutOfMemory: It is larger than there can ever be memory for.
            QueueFull: Too many wait.
        """
        brief = brief_of(request.params, self.info)
        self._require_room_ever(brief.width, brief.height)
        now = self._now()
        self._arrivals += 1
        job = Job(
            request=request,
            brief=brief,
            total=0 if request.decode is not None else brief.steps - brief.start,
            step_cost=float(brief.width * brief.height * (1 if brief.guidance == 1.0 else 2)),
            arrival=self._arrivals,
            added_at=now,
            deadline_at=None if request.deadline_s is None else now + request.deadline_s,
            served_at=now,
        )
        self._scheduler.add(job)
        self._live[request.id] = job

    def cancel(self, request_id: str) -> None:
        """End a picture now; its last chunk comes with the next turn. Unknown ids have finished already."""
        job = self._live.get(request_id)
        if job is not None:
            self._outbox.append(self._end(job, "cancelled"))
            self._totals["aborted"] += 1

    def limit(self, max_running: int, pace: float) -> None:
        """See `engine.core.Limited`; how many are drawn together stays as it is."""
        del max_running
        self._pace = max(_SLOWEST, min(1.0, pace))
        if self._pace == 1.0:
            self._rests_until = 0.0

    # --- the loop's body -----------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        busy = bool(self._live or self._outbox)
        if not busy:
            self._slices.idle()
        return busy

    def step(self) -> list[DiffuseChunk]:
        """One slice; returns the chunks that are ready."""
        for job in self._scheduler.expired():
            self._outbox.append(self._expire(job))
        if self._live and not self._resting():
            self._turn()
        chunks, self._outbox = self._outbox, []
        return chunks

    def _resting(self) -> bool:
        """Lets a little of a pause pass, without the device, so that messages are taken meanwhile; False if none is due."""
        left = self._rests_until - self._now()
        if left <= 0:
            return False
        self._slices.idle()
        self._wait(min(left, _REST_S))
        return True

    def _turn(self) -> None:
        """Decode what is drawn, begin what waits, or go on with the step."""
        if self._stroke is not None and self._scheduler.outranked(self._stroke.group):
            self._abandon()
        if self._stroke is None:
            finished = next((job for job in self._scheduler.running if job.left == 0), None)
            if finished is not None:
                self._finish(finished)
                return
            first = self._scheduler.to_begin()
            if first is not None and self._begin(first):
                return
            group = self._scheduler.group()
            if not group:
                return
            self._stroke = _Stroke(group, iter(self._model.step([job.canvas for job in group])))
        self._advance(self._stroke)

    def _begin(self, job: Job) -> bool:
        """Book its memory and encode its prompts, if it is to be drawn; False while there is no memory for it."""
        purpose, size = _purpose(job), self._sizes.picture(job.brief.width, job.brief.height)
        if size > self._ledger.room() and self._scheduler.running:
            return False
        self._ledger.book(purpose, size)
        try:
            self._prepare(job)
        except InvalidRequest as error:
            self._outbox.append(self._fail(job, error.code, error.message))
            return True
        self._scheduler.begun(job)
        return True

    def _prepare(self, job: Job) -> None:
        if job.request.decode is not None:
            job.denoised_at = self._now()
            return
        with self._slices.slice(), torch.inference_mode():
            job.canvas = self._model.begin(job.brief)
        job.shape = self._model.batch_key(job.canvas)

    def _advance(self, stroke: _Stroke) -> None:
        with self._slices.slice(), torch.inference_mode():
            began = self._now()
            done = next(stroke.slices, stroke) is stroke
            seconds = self._now() - began
            stroke.seconds += seconds
        if self._pace < 1.0:
            self._rests_until = self._now() + seconds * (1.0 / self._pace - 1.0)
        if done:
            self._stroke = None
            self._totals["steps"] += 1
            group = [job for job in stroke.group if job.id in self._live and self._live[job.id] is job]
            for job in group:
                job.spared, job.predicted = job.canvas.predicted > job.predicted, job.canvas.predicted
            self._scheduler.charge(group, stroke.seconds)
            for job in group:
                self._stepped(job)

    def _stepped(self, job: Job) -> None:
        job.done += 1
        canvas: Canvas = job.canvas
        if not bool(torch.isfinite(canvas.latents).all()):
            self._overflowed(job)
            return
        if job.left == 0:
            job.denoised_at = self._now()
            return
        self._outbox.append(
            DiffuseChunk(
                request_id=job.id, offset=job.done - 1, count=1, total=job.total, preview=self._preview(job, canvas)
            )
        )

    def _preview(self, job: Job, canvas: Canvas) -> bytes | None:
        """Previews lie evenly between the first step and the last."""
        due = job.done * (job.request.params.previews + 1) // job.total
        if due <= job.shown:
            return None
        job.shown = due
        with self._slices.slice(), torch.inference_mode():
            return encode(self._model.decode(canvas))

    def _finish(self, job: Job) -> None:
        """The picture, or its latents; one that half precision has spoilt is drawn again."""
        picture = latents = None
        try:
            with self._slices.slice(), torch.inference_mode():
                if job.request.params.latents:
                    latents = self._model.export(job.canvas)
                else:
                    pixels = self._decoded(job)
                    if self._widen is not None and pixels.min() == pixels.max():
                        self._overflowed(job)
                        return
                    picture = encode(pixels)
        except InvalidRequest as error:  # latents that are none of this model's
            self._outbox.append(self._fail(job, error.code, error.message))
            return
        last = min(1, job.total)
        chunk = self._end(job, "done")
        self._outbox.append(_with(chunk, offset=job.total - last, count=last, picture=picture, latents=latents))

    def _decoded(self, job: Job) -> Pixels:
        if job.request.decode is None:
            return self._model.decode(job.canvas)
        return self._model.restore(job.request.decode, job.brief.width, job.brief.height)

    # --- half precision ------------------------------------------------------------------------------------------------

    def _overflowed(self, job: Job) -> None:
        """Numbers that are not finite, or a picture of one colour: draw everything again in a wider type, or say so."""
        if self._widen is None:
            message = "The model produced numbers that are not finite for this picture, also in its widest type."
            self._outbox.append(self._fail(job, EngineFault.code, message))
            return
        message = (
            f"{self.info.dtype} has overflowed while '{self.info.model}' drew a picture: it computes in float32 from now on, and "
            'what was being drawn is drawn again. Set dtype = "float32" to begin so.'
        )
        try:
            self._ledger.book("weights in float32", max(0, self._sizes.weights_wide - self._sizes.weights))
        except OutOfMemory as error:
            self._outbox.append(self._fail(job, EngineFault.code, f"{self.info.dtype} has overflowed. {error.message}"))
            return
        self._notices.put("half_precision_overflow", message)
        self._abandon()
        self._model, self._widen = self._widen(), None
        for running in list(self._scheduler.running):
            self._restart(running)
        job.retried = True

    def _restart(self, job: Job) -> None:
        job.done, job.predicted, job.denoised_at = 0, 0, None
        self._prepare(job)

    def _abandon(self) -> None:
        stroke, self._stroke = self._stroke, None
        if stroke is None:
            return
        stroke.slices.close()  # type: ignore[attr-defined]  # a generator, as the protocol says
        for job in stroke.group:
            job.preemptions += 1
            self._totals["preemptions"] += 1

    # --- endings -------------------------------------------------------------------------------------------------------

    def _end(self, job: Job, finish: DiffuseFinish) -> DiffuseChunk:
        del self._live[job.id]
        self._scheduler.remove(job)
        self._ledger.free(_purpose(job))
        if self._stroke is not None and not any(one.id in self._live for one in self._stroke.group):
            self._abandon()
        stats = self._stats_of(job)
        return DiffuseChunk(request_id=job.id, offset=job.done, count=0, total=job.total, finish=finish, stats=stats)

    def _fail(self, job: Job, code: str, message: str) -> DiffuseChunk:
        log.error("request_failed", request_id=job.id, code=code, reason=message)
        return _with(self._end(job, "error"), error_code=code, error_message=message)

    def _expire(self, job: Job) -> DiffuseChunk:
        waited = self._now() - job.added_at
        message = (
            f"The picture was not complete within its time limit: {waited:.3g} s have passed and {job.done} of {job.total} steps "
            "are done. Allow more time ('timeout', or the service's limits.request_timeout_s) or ask for fewer steps."
        )
        return _with(self._end(job, "error"), error_code="deadline_exceeded", error_message=message)

    def _stats_of(self, job: Job) -> DiffuseStats:
        now = self._now()
        begun = now if job.begun_at is None else job.begun_at
        denoised = now if job.denoised_at is None else job.denoised_at
        return DiffuseStats(
            queued_s=begun - job.added_at,
            denoise_s=denoised - begun,
            decode_s=now - denoised,
            steps=job.done,
            computed_steps=job.done - job.predicted,
            width=job.brief.width,
            height=job.brief.height,
            guidance=job.brief.guidance,
            retried=job.retried,
            preemptions=job.preemptions,
        )

    def _require_room_ever(self, width: int, height: int) -> None:
        needed = self._sizes.picture(width, height)
        taken = self._ledger.total - sum(
            self._sizes.picture(j.brief.width, j.brief.height) for j in self._scheduler.running
        )
        most = int(self._ledger.budget * REFUSE_MARK) - taken
        if needed > most:
            raise OutOfMemory(
                f"A picture of {width}x{height} needs {mib(needed)} while it is drawn; beside the model there are {mib(most)}. "
                "Ask for a smaller size, or give this model more memory.",
                param="size",
            )

    # --- observation ---------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            rss_bytes=resident_bytes(),
            **self._totals,
        )

    def listen(self, listener: Notify) -> None:
        self._notices.listen(listener)

    def clear_cache(self, tier: CacheTier | None) -> dict[str, int]:
        """A picture engine keeps none."""
        del tier
        return {}

    def memory(self) -> MemoryReport:
        return self._ledger.report()

    def close(self) -> None:
        self._abandon()
        self._live.clear()


def _purpose(job: Job) -> str:
    return f"picture {job.arrival}"


def _with(chunk: DiffuseChunk, **changes: object) -> DiffuseChunk:
    return replace(chunk, **changes)  # type: ignore[arg-type]
