"""Ready means: jobs can be written down, and the back end has answered a real token recently.

Back ends that are elsewhere (http, ray) are asked for one token where no job has brought an item in time; models of this
service's own engines are looked after by `api.readiness`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from edgewise.cloud.executors.protocol import Executor, Order
from edgewise.cloud.intake.catalog import Catalog
from edgewise.core.clock import Clock
from edgewise.core.errors import DeadlineExceeded, EdgewiseError
from edgewise.core.patience import within
from edgewise.wire.messages import Capability, GenerateWork

PROBE_TEXT = "Hello"
RECHECK_S = 1.0
"""A failed probe is not repeated sooner: anyone may ask /readyz."""


class BackEndReadiness:
    """Args:
    answered_s: Moment on the monotonic clock at which a job brought its latest item; None before the first.
    max_age_s: An item older than this is no longer proof.
    probe_timeout_s: A probe that takes longer has failed.
    """

    def __init__(
        self,
        executor: Executor,
        catalog: Catalog,
        answered_s: Callable[[], float | None],
        *,
        clock: Clock,
        max_age_s: float = 30.0,
        probe_timeout_s: float = 20.0,
    ) -> None:
        self._executor = executor
        self._catalog = catalog
        self._answered_s = answered_s
        self._clock = clock
        self._max_age_s = max_age_s
        self._probe_timeout_s = probe_timeout_s
        self._probed_s: float | None = None
        self._failed: tuple[float, str] | None = None
        self._lock = asyncio.Lock()

    async def check(self) -> str | None:
        """Why the back end is not ready; None if it is. One check at a time."""
        async with self._lock:
            now = self._clock.monotonic()
            known = [moment for moment in (self._answered_s(), self._probed_s) if moment is not None]
            if known and now - max(known) <= self._max_age_s:
                return None
            if self._failed is not None and now - self._failed[0] < RECHECK_S:
                return self._failed[1]
            reason = await self._probe()
            if reason is None:
                self._probed_s, self._failed = self._clock.monotonic(), None
            else:
                self._failed = self._clock.monotonic(), reason
            return reason

    async def _probe(self) -> str | None:
        try:
            models = await self._catalog.models()
            if not models:
                return "the back end has no models now"
            writers = [model for model in models if model.kind == "generate"]
            if not writers:
                return None  # a picture is too dear for a probe
            model = next(
                (model for model in writers if model.numeric_class is not None), writers[0]
            )  # one that is loaded
            late = DeadlineExceeded(f"no token came within {self._probe_timeout_s:g} s")
            return await within(self._one_token(model), self._probe_timeout_s, lambda: late)
        except EdgewiseError as error:
            return f"the back end does not answer: {error.message}"

    async def _one_token(self, model: Capability) -> str | None:
        work = GenerateWork(
            model=model.model,
            prompt=() if model.reads == "text" else (1,),
            text=PROBE_TEXT if model.reads == "text" else None,
            sampling={"max_tokens": 1, "temperature": 0.0},
        )
        stream = self._executor.run(Order(job="probe", attempt=1, work=work, tenant="probe"))
        async with contextlib.aclosing(stream) as answer:  # type: ignore[type-var]  # back ends are generators
            async for produced in answer:
                if produced.finish == "error":
                    return produced.error_message or "the back end failed on a probe"
                if produced.count or produced.finish is not None:
                    return None
        return "the back end ended a probe without a token"
