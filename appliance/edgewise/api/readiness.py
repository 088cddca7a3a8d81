"""Ready means: every pinned model has answered a real token recently. If none was asked for one, a one-token request probes it.

Models that are loaded on demand do not count: whether one of them has room is known when it is asked, and a probe would keep
it loaded. Where none is pinned, ready means that the service takes requests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from edgewise.core.clock import Clock
from edgewise.core.errors import EdgewiseError, EngineUnavailable
from edgewise.core.patience import within
from edgewise.engine.request import GenerateRequest, SamplingParams
from edgewise.pipeline.model import Models, ServedModel

PROBE_TEXT = "Hello"
FAILING = "it is started again about once a minute, and the log says why it ends"
RECHECK_S = 1.0
"""A failed probe is not repeated sooner: anyone may ask /readyz."""


@dataclass(frozen=True, slots=True)
class ReadyReport:
    """Attributes:
    token_age_s: Age of the oldest pinned model's latest token; None if some pinned model never answered one.
    """

    ready: bool
    reason: str
    token_age_s: float | None


class Readiness:
    """Keeps the time of each model's latest token.

    Args:
        max_age_s: A token older than this is no longer proof.
        probe_timeout_s: A probe that takes longer has failed.
    """

    def __init__(self, models: Models, *, clock: Clock, max_age_s: float = 30.0, probe_timeout_s: float = 20.0) -> None:
        self._models = models
        self._clock = clock
        self._max_age_s = max_age_s
        self._probe_timeout_s = probe_timeout_s
        self._tokens: dict[str, float] = {}
        self._failures: dict[str, tuple[float, str]] = {}
        self._numbers = itertools.count(1)
        self._lock = asyncio.Lock()
        self._others: list[Callable[[], Awaitable[str | None]]] = []
        self._shown: dict[str, Callable[[], Any]] = {}

    def also(self, check: Callable[[], Awaitable[str | None]]) -> None:
        """A further condition: says why the service is not ready, None if it is."""
        self._others.append(check)

    def show(self, name: str, tell: Callable[[], Any]) -> None:
        """Have a field `name` of plain JSON data in the body of /readyz; anyone may read it."""
        self._shown[name] = tell

    @property
    def shown(self) -> dict[str, Any]:
        """These fields now."""
        return {name: tell() for name, tell in self._shown.items()}

    def note_token(self, model: str) -> None:
        """A token of this model has just arrived."""
        self._tokens[model] = self._clock.monotonic()

    async def check(self) -> ReadyReport:
        """The verdict now; probes models whose latest token is too old, one check at a time."""
        for check in self._others:
            if (reason := await check()) is not None:
                return ReadyReport(False, reason, self._age())
        models = self._models.pinned()
        absent = self._models.absent()
        if absent:
            return ReadyReport(False, f"{', '.join(absent)}: pinned, but not installed (any more)", None)
        if not models:
            return ReadyReport(True, "no model is pinned: each is loaded when it is asked", None)
        async with self._lock:
            reasons = [f"{model.name}: {reason}" for model in models if (reason := await self._verify(model))]
        if reasons:
            return ReadyReport(False, "; ".join(reasons), self._age())
        return ReadyReport(True, "every model has answered a token recently", self._age())

    def _age(self) -> float | None:
        times = [self._tokens.get(model.name) for model in self._models.pinned()]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            return None
        return round(self._clock.monotonic() - min(known), 3)

    async def _verify(self, model: ServedModel) -> str | None:
        """Why the model is not ready; None if it is."""
        if model.engine.state == "failed":
            return f"the engine keeps failing: {FAILING}"
        if model.engine.state != "ready":
            return f"the engine is {model.engine.state}"
        now = self._clock.monotonic()
        last = self._tokens.get(model.name)
        if last is not None and now - last <= self._max_age_s:
            return None
        failed = self._failures.get(model.name)
        if failed is not None and now - failed[0] < RECHECK_S:
            return failed[1]
        reason = await self.probe(model)
        if reason is None:
            self.note_token(model.name)
            self._failures.pop(model.name, None)
        else:
            self._failures[model.name] = (self._clock.monotonic(), reason)
        return reason

    async def probe(self, model: ServedModel) -> str | None:
        """Ask a model for one token; why none came, None if one did."""
        try:
            return await within(
                self._one_token(model),
                self._probe_timeout_s,
                lambda: EngineUnavailable(f"no token came within {self._probe_timeout_s:g} s"),
            )
        except EdgewiseError as error:
            return error.message

    async def _one_token(self, model: ServedModel) -> str | None:
        request = GenerateRequest(
            id=f"probe/{model.name}/{next(self._numbers)}",
            prompt=tuple(model.tokenizer.encode(PROBE_TEXT)),
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            salt="probe",
        )
        stream = await model.engine.submit(request)
        try:
            async for chunk in stream:
                if chunk.finish == "error":
                    return chunk.error_message or "the engine failed on a probe"
                if chunk.tokens:
                    return None
        finally:
            await stream.aclose()
        return "the engine ended a probe without a token"
