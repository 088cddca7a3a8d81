"""Pictures for which nobody waits: /v1/images/generations as an endpoint of deferred jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgewise.api.deps import ApiDependencies
from edgewise.api.images.routes import draw, prepare
from edgewise.api.images.schemas import ImageBody
from edgewise.api.images.writer import whole_answer
from edgewise.api.parse import Caller
from edgewise.api.requests import RequestRecord
from edgewise.api.schemas import validate
from edgewise.api.unattended import Answered, Unattended, refuse_stream
from edgewise.core.privacy import Privacy


class PictureEndpoint:
    """See `api.unattended.Endpoint`."""

    placed_whole = True

    async def check(self, deps: ApiDependencies, body: Mapping[str, Any], caller: Caller) -> Privacy:
        asked = await prepare(deps, validate(ImageBody, dict(body)), caller, "generation")
        refuse_stream(asked.form.stream)
        return asked.task.privacy

    async def answer(
        self, deps: ApiDependencies, record: RequestRecord, body: Mapping[str, Any], caller: Caller, asked: Unattended
    ) -> Answered:
        wanted = await prepare(deps, validate(ImageBody, dict(body)), caller, "generation")
        refuse_stream(wanted.form.stream)
        seed = asked.seed if wanted.task.seed is None else wanted.task.seed
        task = replace(wanted.task, key=asked.key, allowed=asked.allowed, seed=seed)
        record.model = task.model.name
        run = await draw(deps, task)
        deps.requests.attach(record, run)
        return Answered(await whole_answer(run, wanted.form, int(deps.clock.time())), run.usage())
