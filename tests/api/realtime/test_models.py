"""What a session asks of the device's models."""

from __future__ import annotations

from typing import Any

import pytest

from edgewise.api.deps import ApiDependencies
from edgewise.api.parse import Caller
from edgewise.api.realtime.models import DeviceModels
from edgewise.api.requests import RequestRecord
from edgewise.core.errors import EngineFault
from edgewise.core.privacy import Labels, Privacy
from edgewise.pipeline.model import Models
from edgewise.pipeline.run import Run
from edgewise.pipeline.task import Task
from tests.fakes.serving import fake_model
from tests.pipeline.transcribe.scripted import listener


class Asked(DeviceModels):
    """Keeps the task of an answer and begins none."""

    task: Task | None = None

    async def _begin(self, task: Task, record: RequestRecord) -> Run:
        self.task = task
        raise EngineFault("Nothing is begun.")


async def test_an_answer_has_the_label_of_the_model_that_heard_the_question() -> None:
    labels = Labels(models={"scripted": Privacy.PRIVATE})
    asking = Caller(request_id="a", salt="", timeout_s=None, max_sequences=1, labels=labels)
    unused: Any = None
    models = Asked(ApiDependencies(models=Models()), asking, fake_model(), listener(unused), unused, unused)
    with pytest.raises(EngineFault):
        await models.write("a", ({"role": "user", "content": "Hello."},), None)
    assert models.task is not None
    assert models.task.privacy is Privacy.PRIVATE
