"""Any server with OpenAI's API as a back end: text goes up, text comes back, and one server's trouble is kept from all jobs.

Jobs are texts here and items are characters: a job that was interrupted goes on after the text that its log holds, which is put
behind the prompt. The server cuts that into tokens anew, so the continuation is a valid one but not always that of an
undisturbed answer. What is retryable is tried again here as long as nothing has come; afterwards it is the next attempt's work.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from edgewise.cloud.executors.breaker import Breaker, BreakerRules, BreakerState, Permit
from edgewise.cloud.executors.completions import Reading, UpstreamModel, asking
from edgewise.cloud.executors.protocol import Order, Produced
from edgewise.cloud.executors.upstream import HttpTimings, Upstream
from edgewise.core.errors import (
    DeadlineExceeded,
    EdgewiseError,
    EngineFault,
    EngineUnavailable,
    InvalidRequest,
    LinkLost,
    UnsupportedField,
)
from edgewise.core.log import get_logger
from edgewise.core.metrics import Metrics
from edgewise.core.patience import wait_set, within
from edgewise.core.recurring import Guard
from edgewise.wire.messages import Capability, GenerateWork

log = get_logger(__name__)

_SMOOTHING: Final = 0.2
_STATES: Final[tuple[BreakerState, ...]] = ("closed", "half_open", "open")


@dataclass(slots=True)
class _Pace:
    """Smoothed characters a second, of answers and of prompts."""

    answer: float | None = None
    prompt: float | None = None

    def note(self, answer: float | None, prompt: float | None) -> None:
        self.answer, self.prompt = _smoothed(self.answer, answer), _smoothed(self.prompt, prompt)


def _smoothed(before: float | None, now: float | None) -> float | None:
    if before is None or now is None:
        return before if now is None else now
    return before + _SMOOTHING * (now - before)


@dataclass(slots=True)
class _Attempt:
    """An order on its way.

    Attributes:
        until: Moment of the deadline.
        prompt: What the server continues: the prompt and the answer so far.
        before, spent: Tokens of the prompt and of the answer so far, as the server counts them; None where it counts none.
        counted: Whether that has been asked.
        tries: Requests that have been sent.
    """

    order: Order
    work: GenerateWork
    model: UpstreamModel
    until: float
    prompt: str
    before: int | None = None
    spent: int | None = 0
    counted: bool = True
    tries: int = 0


class HttpExecutor:
    """Implements `executors.protocol.Executor`.

    Args:
        url: The server's base address with its version, e.g. "http://127.0.0.1:8000/v1".
        key: Sent as a bearer token.
        metrics: Where its figures are published.
        timings, breaker: Limits; the defaults suit a server in the same data centre.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        metrics: Metrics | None = None,
        timings: HttpTimings | None = None,
        breaker: BreakerRules | None = None,
    ) -> None:
        self._timings = timings or HttpTimings()
        self._upstream = Upstream(url, key, self._timings)
        self._breaker = Breaker("The upstream server", breaker, on_change=self._breaker_changed)
        self._models: dict[str, UpstreamModel] = {}
        self._paces: dict[str, _Pace] = {}
        self._last_model = ""
        self._changed = asyncio.Event()
        self._listed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._random = random.Random().random  # noqa: S311 - jitter, no secret
        published = metrics or Metrics(process=False)
        self._requests = published.counter(
            "cloud_upstream_requests", "Requests to the upstream server by outcome.", ("outcome",)
        )
        self._state = published.gauge("cloud_upstream_breaker", "1 for the breaker's present state.", ("state",))
        self._show_state()

    def __repr__(self) -> str:
        return f"HttpExecutor({self._upstream!r}, {self._breaker!r})"

    @property
    def breaker_state(self) -> BreakerState:
        return self._breaker.state

    def start(self) -> None:
        """Begin to list models and to probe a server that has failed."""
        self._upstream.open()
        self._watching = asyncio.create_task(self._watch(), name="upstream-watch")

    async def stop(self) -> None:
        if self._watching is None:
            return
        self._watching.cancel()
        await asyncio.wait({self._watching})
        self._watching = None
        await self._upstream.close()

    async def capabilities(self) -> Sequence[Capability]:
        """The server's models; none while the breaker is not closed. Waits for the first list after the start."""
        if not self._listed.is_set():
            with contextlib.suppress(LinkLost):
                await within(self._listed.wait(), self._timings.connect_s, lambda: LinkLost("not listed yet"))
        if self._breaker.state != "closed":
            return ()
        return [self._capability(model) for model in self._models.values()]

    def _capability(self, model: UpstreamModel) -> Capability:
        pace = self._paces.get(model.id, _Pace())
        return Capability(
            model=model.id,
            digest=model.digest,
            reads="text",
            context=model.context,
            speed=pace.answer,
            prefill=pace.prompt,
        )

    # --- one order ----------------------------------------------------------------------------------------------------------

    async def run(self, order: Order) -> AsyncGenerator[Produced, None]:
        """See `Executor.run`; `facts["upstream"]` says what the server was not asked for, and why."""
        attempt = self._attempt(order)
        while True:
            attempt.tries += 1
            begun = False
            try:
                async with aclosing(self._once(attempt)) as answer:
                    async for produced in answer:
                        begun = True
                        yield produced
                return
            except EdgewiseError as error:
                pause = self._pause(attempt, error)
                if begun or pause is None:
                    raise
                log.info("upstream_again", job=order.job, pause_s=round(pause, 2), code=error.code, why=error.message)
            await asyncio.sleep(pause)

    def _attempt(self, order: Order) -> _Attempt:
        work = order.work
        if not isinstance(work, GenerateWork):
            raise UnsupportedField(f"This cloud passes work on to a server of texts: no '{work.kind}'.", param="kind")
        if work.text is None:
            raise InvalidRequest("This cloud reads text only (Capability.reads): send work.text.", param="work.text")
        return _Attempt(
            order=order,
            work=work,
            model=self._models.get(work.model) or UpstreamModel(id=work.model),
            until=time.monotonic() + (float("inf") if order.deadline_s is None else order.deadline_s),
            prompt=work.text + order.text,
            spent=None if order.text else 0,
            counted=not order.text,
        )

    def _pause(self, attempt: _Attempt, error: EdgewiseError) -> float | None:
        """Seconds until the next request; None if there is to be none."""
        if not error.retryable or attempt.tries >= self._timings.tries:
            return None
        longest = self._timings.longest_pause_s
        pause = min(self._timings.pause_s * 2 ** (attempt.tries - 1), longest) * (0.5 + 0.5 * self._random())
        pause = max(pause, error.retry_after_s or 0.0)
        return None if pause > longest or time.monotonic() + pause >= attempt.until else pause

    async def _once(self, attempt: _Attempt) -> AsyncGenerator[Produced, None]:
        """One request, from leave to outcome."""
        self._last_model = attempt.model.id
        permit = self._breaker.admit()
        try:
            await self._count(attempt)
            limit = attempt.work.sampling.get("max_tokens")
            if attempt.spent and limit is not None and attempt.spent >= limit:
                yield Produced(count=0, finish="length", facts=_facts(attempt, Reading(), _Timing(), {}))
            else:
                async with aclosing(self._answer(attempt)) as answer:
                    async for produced in answer:
                        yield produced
        except EdgewiseError as error:
            self._note_failure(permit, error)
            raise
        self._breaker.succeeded(permit)
        self._requests.labels("done").inc()

    def _note_failure(self, permit: Permit, error: EdgewiseError) -> None:
        """A refusal is a sign of life; a fault, or silence, is none."""
        fault = isinstance(error, (LinkLost, EngineUnavailable, EngineFault))
        self._requests.labels("failed" if fault else "refused").inc()
        if fault:
            self._breaker.failed(permit, error.message)
        elif not isinstance(error, DeadlineExceeded):
            self._breaker.succeeded(permit)

    async def _count(self, attempt: _Attempt) -> None:
        """How many tokens of the answer are in the log: by how much they make the prompt longer, as the server counts.

        A token each is computed for it, whose prompts the server most likely still has in its cache.
        """
        if attempt.counted:
            return
        assert attempt.work.text is not None
        counts = [
            (await self._upstream.one_token(attempt.model.id, text)).prompt
            for text in (attempt.work.text, attempt.prompt)
        ]
        attempt.before, after = counts
        attempt.spent = None if attempt.before is None or after is None else max(1, after - attempt.before)
        attempt.counted = True

    async def _answer(self, attempt: _Attempt) -> AsyncGenerator[Produced, None]:
        asked = asking(attempt.work, attempt.model, spent=attempt.spent)
        body = {**asked.fields, "prompt": attempt.prompt, "stream": True, "stream_options": {"include_usage": True}}
        timing = _Timing()
        reading = Reading()
        try:
            async with aclosing(self._upstream.stream(body, attempt.until)) as events:
                async for event in events:
                    produced = reading.take(event)
                    if produced is not None:
                        timing.note(produced.count)
                        yield produced
        except LinkLost:
            if reading.finish is None:  # what follows the end of the answer is an account of it only
                raise
        if reading.finish is None:
            raise LinkLost("The upstream server's stream ended before the answer did.")
        timing.end = time.monotonic()
        self._paces.setdefault(attempt.model.id, _Pace()).note(*timing.paces(len(attempt.prompt)))
        yield Produced(count=0, finish=reading.finish, facts=_facts(attempt, reading, timing, asked.left_out))

    # --- watching -----------------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """List the models now and then; while the breaker is open, probe when it is due."""
        guard = Guard()
        while True:
            self._changed.clear()
            try:
                pause = await self._look()
                guard.well("upstream_watch_broke")
            except Exception as error:  # noqa: BLE001 - outermost frame; a server that nobody looks at is away for ever
                guard.failed("upstream_watch_broke", error)
                pause = self._timings.list_again_s
            await wait_set(self._changed, pause)

    async def _look(self) -> float:
        """List or probe what is due; seconds until the next look."""
        due = self._breaker.probe_in_s
        if self._breaker.state == "closed":
            return self._timings.list_s if await self._list() else self._timings.list_again_s
        if due == 0.0:
            await self._probe()
            return 0.0
        return self._timings.list_s if due is None else due

    async def _list(self) -> bool:
        permit = self._breaker.admit()
        try:
            await self._read_models()
        except EdgewiseError as error:
            log.warning("upstream_not_listed", code=error.code, why=error.message)
            self._note_failure(permit, error)
            return False
        return True

    async def _read_models(self) -> None:
        self._models = {model.id: model for model in await self._upstream.models()}
        self._listed.set()

    async def _probe(self) -> None:
        """A real token of the model that was asked last."""
        permit = self._breaker.begin_probe()
        if permit is None:
            return
        try:
            await self._read_models()
            name = self._last_model if self._last_model in self._models else next(iter(self._models), "")
            if name:
                await self._upstream.one_token(name, "1")
        except EdgewiseError as error:
            self._breaker.failed(permit, error.message)
        except BaseException:  # cancelled, or a fault of this program: another probe finds out
            self._breaker.abandoned(permit)
            raise
        else:
            self._breaker.succeeded(permit)

    def _breaker_changed(self, before: BreakerState, after: BreakerState, why: str) -> None:
        say = log.warning if after == "open" else log.info
        say("upstream_breaker", before=before, after=after, why=why)
        self._show_state()
        self._changed.set()

    def _show_state(self) -> None:
        for state in _STATES:
            self._state.labels(state).set(state == self._breaker.state)


@dataclass(slots=True)
class _Timing:
    """When things happened, on the monotonic clock."""

    sent: float = field(default_factory=time.monotonic)
    first: float | None = None
    end: float = field(default_factory=time.monotonic)
    characters: int = 0

    def note(self, characters: int) -> None:
        self.first = self.first or time.monotonic()
        self.characters += characters

    def paces(self, prompt: int) -> tuple[float | None, float | None]:
        """Characters a second of the answer and of the prompt, where there is something to measure."""
        if self.first is None:
            return None, None
        return _rate(self.characters, self.end - self.first), _rate(prompt, self.first - self.sent)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count and seconds > 0 else None


def _facts(attempt: _Attempt, reading: Reading, timing: _Timing, left_out: Mapping[str, str]) -> dict[str, Any]:
    """The account of a finished answer: fields of `RequestStats` where the server counts, and `upstream`.

    What was left out becomes warnings, which the device's receipt repeats.
    """
    usage, spent = reading.usage, attempt.spent or 0
    warnings = [f"The cloud's upstream server was not asked for '{field}': {why}" for field, why in left_out.items()]
    upstream: dict[str, Any] = {
        "model": reading.model or attempt.model.id,
        "finish": reading.said,
        "not_honoured": dict(left_out),
        "tries": attempt.tries,
    }
    if attempt.order.text:
        upstream["resumed_at"] = len(attempt.order.text)
    prompt = attempt.before if usage.prompt is None else usage.prompt - spent
    if prompt is None or (reading.finish is not None and usage.completion is None):
        return {"upstream": upstream | {"usage": "the server told none"}, "warnings": warnings}
    first = timing.first or timing.end
    return {
        "prompt_tokens": max(0, prompt),
        "cached_tokens": usage.cached,
        "completion_tokens": (usage.completion or 0) + spent,
        "queued_s": 0.0,
        "prefill_s": first - timing.sent,
        "decode_s": timing.end - first,
        "warnings": warnings,
        "upstream": upstream,
    }
