"""What a session asks of the device's models."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from edgewise.api.deps import ApiDependencies
from edgewise.api.parse import Caller
from edgewise.api.realtime.models import DeviceModels
from edgewise.api.requests import RequestRecord
from edgewise.core.errors import EngineFault, InvalidRequest
from edgewise.core.privacy import Labels, Privacy
from edgewise.engine.encoders.request import EncodeRequest, EncodeStream
from edgewise.pipeline.model import Models, ServedEncoder
from edgewise.pipeline.run import Run
from edgewise.pipeline.task import Task
from edgewise.pipeline.voice.protocols import Speech
from tests.fakes.engine import FakeEngine, Fault
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


def unused_model() -> Any:
    """In the place of one that is not asked."""
    return None


class Refusing(DeviceModels):
    """Begins no answer."""

    error: BaseException = EngineFault("Nothing is begun.")

    async def _begin(self, task: Task, record: RequestRecord) -> Run:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [(EngineFault("It broke."), 500), (ValueError("a fault"), 500), (asyncio.CancelledError(), 499)],
)
async def test_an_answer_that_cannot_begin_is_listed_with_why(error: BaseException, status: int) -> None:
    asking = Caller(request_id="a", salt="", timeout_s=None, max_sequences=1)
    deps, unused = ApiDependencies(models=Models()), unused_model()
    models = Refusing(deps, asking, fake_model(), listener(unused), unused, unused)
    models.error = error
    with pytest.raises(type(error)):
        await models.write("a", ({"role": "user", "content": "Hello."},), None)
    (shown,) = deps.requests.show()["finished"]
    assert shown["status"] == status


@pytest.mark.parametrize(("read", "status", "error"), [(True, 500, "engine_error"), (False, 499, "cancelled")])
async def test_an_answer_that_breaks_off_is_listed_with_why(read: bool, status: int, error: str) -> None:
    asking = Caller(request_id="a", salt="", timeout_s=None, max_sequences=1)
    deps, unused = ApiDependencies(models=Models()), unused_model()
    engine = FakeEngine(fault=Fault(0, 2))
    models = DeviceModels(deps, asking, fake_model(engine), listener(unused), unused, unused)
    writing = await models.write("a", ({"role": "user", "content": "Hello."},), 8)
    if read:
        with pytest.raises(EngineFault):
            assert [chunk async for chunk in writing.chunks()]
    await writing.aclose()
    (shown,) = deps.requests.show()["finished"]
    assert (shown["status"], shown["error"]) == (status, error)
    deps.state.close()


@dataclass
class Mute:
    """An engine that refuses."""

    refusal: InvalidRequest
    info: None = None

    async def submit(self, request: EncodeRequest) -> EncodeStream:
        raise self.refusal


async def test_a_text_without_sound_is_spoken_as_nothing_and_other_refusals_are_raised() -> None:
    asking = Caller(request_id="a", salt="", timeout_s=None, max_sequences=1)
    engine: Any = Mute(InvalidRequest("Nothing can be spoken.", param="input"))
    unused: Any = None
    voice = ServedEncoder(name="voice", role="text-to-speech", engine=engine, digest="sha256:0", created=0)
    models = DeviceModels(ApiDependencies(models=Models()), asking, fake_model(), listener(unused), voice, unused)
    assert [sound async for sound in models.speak("a", "Hello.", Speech())] == []
    engine.refusal = InvalidRequest("No such voice.", param="voice")
    with pytest.raises(InvalidRequest, match="No such voice"):
        assert [sound async for sound in models.speak("a", "Hello.", Speech())]
