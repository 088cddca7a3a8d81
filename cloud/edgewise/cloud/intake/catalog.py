"""What can be had here, and whether a job's model is among it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgewise.cloud.executors.protocol import Executor
from edgewise.cloud.tenants import Tenants
from edgewise.cloud.work import names_of
from edgewise.core.clock import Clock, SystemClock
from edgewise.core.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, ModelNotFound
from edgewise.wire.messages import Capability, GenerateWork, Work

_AGAIN_S = 5.0
_FRESH_S = 2.0  # the back end is asked this often at most
_PATIENCE_S = 1.0  # a question waits so long for the back end; then it is answered with what that said last


class Catalog:
    """The back end's models with the tenants' prices. A back end that is slow to answer makes nobody wait for long."""

    def __init__(self, executor: Executor, tenants: Tenants, *, clock: Clock | None = None) -> None:
        self._executor = executor
        self._tenants = tenants
        self._clock = clock or SystemClock()
        self._models: tuple[Capability, ...] = ()
        self._seen: tuple[Capability, ...] = ()  # the last list that was not empty
        self._asked_s = -_FRESH_S
        self._asking: asyncio.Task[Sequence[Capability]] | None = None

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    async def models(self) -> tuple[Capability, ...]:
        """Those that can be asked now, as far as is known. Raises why the back end could not be asked."""
        now = self._clock.monotonic()
        if self._asking is None and now - self._asked_s >= _FRESH_S:
            self._asked_s = now
            self._asking = asyncio.create_task(self._ask(), name="cloud-catalog")
            self._asking.add_done_callback(_look)
        if self._asking is not None:
            asking = self._asking
            await asyncio.wait({asking}, timeout=max(0.0, self._asked_s + _PATIENCE_S - now))
            if asking.done() and not asking.cancelled():
                asking.result()
        return self._models

    async def _ask(self) -> Sequence[Capability]:
        try:
            self._models = tuple(map(self._priced, await self._executor.capabilities()))
            self._seen = self._models or self._seen
            return self._models
        finally:
            self._asking = None

    def forget(self) -> None:
        """Ask the back end again at the next occasion."""
        self._asked_s = -_FRESH_S

    async def find(self, work: Work) -> Capability:
        """The model that a job means: by digest where it names one, whatever the device calls it.

        Raises:
            EngineUnavailable: The back end has no models at all now, or has not named any yet.
            ModelNotFound: It is not here, or another one has its name.
            InvalidRequest: It cannot read this work.
        """
        known = await self.models() or self._seen
        models = [one for one in known if one.kind == work.kind]
        found = _pick(models, work) if known else None
        if found is None or not self._models:
            raise EngineUnavailable(
                "The back end of this cloud has no models now: try again shortly.", retry_after_s=_AGAIN_S
            )
        if isinstance(work, GenerateWork):
            _check_prompt(work, found)
        return found

    def _priced(self, capability: Capability) -> Capability:
        price = self._tenants.price(capability.model)
        return capability.model_copy(update={"price_in": price.prompt, "price_out": price.answer})


def _look(asked: asyncio.Task[Sequence[Capability]]) -> None:
    """Nobody may have waited for its error."""
    if not asked.cancelled():
        asked.exception()


def _pick(models: Sequence[Capability], work: Work) -> Capability:
    by_name = {one.model: one for one in models}
    named = [by_name[name] for name in names_of(work) if name in by_name]
    if work.digest is not None:
        same = [one for one in models if one.digest == work.digest]
        for one in (*(one for one in same if one in named), *same, *(one for one in named if one.digest is None)):
            return one
    elif named:
        return named[0]
    if named:
        raise ModelNotFound(
            f"The model '{work.model[:100]}' is here with the digest {named[0].digest}, not {work.digest}.",
            param="work.digest",
        )
    names = ", ".join(f"'{one.model}'" for one in models) or "none"
    raise ModelNotFound(f"The model '{work.model[:100]}' is not here. Models: {names}.", param="work.model")


def _check_prompt(work: GenerateWork, model: Capability) -> None:
    if model.reads == "text" and not work.text:
        raise InvalidRequest(f"The model '{model.model}' reads text here: send 'text'.", param="work.text")
    if model.reads == "tokens" and not work.prompt:
        raise InvalidRequest(f"The model '{model.model}' reads token ids here: send 'prompt'.", param="work.prompt")
    if model.reads == "tokens" and model.context is not None and len(work.prompt) >= model.context:
        raise ContextLengthExceeded(
            f"The prompt has {len(work.prompt)} tokens: '{model.model}' takes {model.context} with the answer.",
            param="work.prompt",
        )
