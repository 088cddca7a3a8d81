"""A pipeline for which nobody waits, as an endpoint of deferred jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgewise.api.deps import ApiDependencies
from edgewise.api.parse import Caller
from edgewise.api.pipelines.routes import PipelineBody, asked_of, begin_chain, whole_answer
from edgewise.api.requests import RequestRecord
from edgewise.api.schemas import validate
from edgewise.api.unattended import Answered, Unattended, refuse_stream
from edgewise.core.privacy import Privacy
from edgewise.pipeline.chains.chain import Chain
from edgewise.pipeline.chains.load import Pipelines


class PipelineEndpoint:
    """See `api.unattended.Endpoint`."""

    placed_whole = False

    def __init__(self, pipelines: Pipelines, name: str) -> None:
        self._pipelines = pipelines
        self._name = name

    async def check(self, deps: ApiDependencies, body: Mapping[str, Any], caller: Caller) -> Privacy:
        chain = await self._chain(body, caller)
        asked = {record["model"] for record in chain.receipt()["stages"]}
        named = [{card.name, *card.aliases} for card in await deps.models.cards()]
        models = deps.labels.model(asked.union(*(names for names in named if names & asked)))
        return chain.privacy if models is None else min(chain.privacy, models)

    async def answer(
        self, deps: ApiDependencies, record: RequestRecord, body: Mapping[str, Any], caller: Caller, asked: Unattended
    ) -> Answered:
        chain = begin_chain(deps, record, await self._chain(body, caller, asked))
        return Answered(await whole_answer(chain), chain.usage())

    async def _chain(self, body: Mapping[str, Any], caller: Caller, asked: Unattended | None = None) -> Chain:
        """Not started. Raises `NotFound`, and `InvalidRequest` for inputs that are missing or unknown."""
        checked = validate(PipelineBody, dict(body))
        refuse_stream(checked.stream)
        pipeline = await asyncio.to_thread(self._pipelines.get, self._name)
        wanted = asked_of(checked, caller)
        if asked is not None:
            seed = wanted.seed if checked.seed is not None or asked.seed is None else asked.seed
            wanted = replace(wanted, key=asked.key, seed=seed)
        return Chain(pipeline, self._pipelines.kinds, wanted)
