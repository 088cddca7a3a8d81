"""Deadline classes: who may ask for which, what wins, and where it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from edgewise.api.deps import Limits
from edgewise.api.requests import Requests
from edgewise.core.clock import FakeClock
from edgewise.core.errors import QueueFull
from edgewise.core.priority import PRIORITY_NAMES, Priority, PriorityName, priorities_by_name
from edgewise.core.privacy import PrivacyName
from tests.api.harness import CHAT, COMPLETIONS, Api, error_of, hello, make_api, prompt


@dataclass(frozen=True)
class Record:
    id: str
    name: str
    priority: PriorityName
    scopes: frozenset[str] = frozenset({"inference"})
    privacy: PrivacyName | None = None
    device: str | None = None


@dataclass
class Keys:
    """One key for each class, named like it."""

    records: dict[str, Record] = field(
        default_factory=lambda: {name: Record(f"id-{name}", name, name) for name in PRIORITY_NAMES}
    )

    def verify(self, token: str, /) -> Record | None:
        return self.records.get(token)


def api_of(*, key: str | None = None, header: str | None = None, model: Priority | None = None) -> Api:
    limits = Limits(model_priority={} if model is None else {"tiny": model})
    api = make_api(keys=Keys(), limits=limits)
    if key is not None:
        api.headers["authorization"] = f"Bearer {key}"
    if header is not None:
        api.headers["x-edgewise-priority"] = header
    return api


@pytest.mark.parametrize(
    ("key", "header", "model", "expected"),
    [
        (None, None, None, "interactive"),
        (None, "realtime", None, "realtime"),
        (None, " Bulk ", Priority.REALTIME, "bulk"),
        (None, None, Priority.BACKGROUND, "background"),
        (None, None, Priority.REALTIME, "realtime"),
        ("realtime", None, None, "realtime"),
        ("realtime", "background", None, "background"),
        ("background", None, Priority.BULK, "bulk"),
        ("background", "background", Priority.BULK, "background"),
        ("bulk", None, Priority.REALTIME, "bulk"),
    ],
)
async def test_the_header_wins_then_the_less_urgent_of_key_and_model(
    key: str | None, header: str | None, model: Priority | None, expected: str
) -> None:
    for path, body in ((CHAT, hello()), (COMPLETIONS, prompt())):
        api = api_of(key=key, header=header, model=model)
        receipt = (await api.answer(path, body))["edgewise"]
        assert receipt["priority"] == expected
        [submitted] = api.engine.requests
        assert submitted.priority.label == expected
        assert submitted.key == ("anonymous" if key is None else f"id-{key}")


@pytest.mark.parametrize("header", ["urgent", "", "0", "realtime, bulk"])
async def test_an_unknown_class_is_refused_by_name(header: str) -> None:
    error = await api_of(header=header).refusal(CHAT, hello(), 400)
    assert error["param"] == "X-Edgewise-Priority"
    assert "realtime, interactive, background, bulk" in error["message"]


async def test_a_key_is_a_ceiling() -> None:
    response = await api_of(key="background", header="interactive").post(CHAT, hello())
    assert response.status_code == 403
    assert "'background'" in error_of(response)["message"]


def test_less_urgent_requests_do_not_fill_the_service() -> None:
    requests = Requests(clock=FakeClock(), limit=2)
    for index in range(2):
        requests.enter(id=f"bulk{index}", route="/", key=None, priority=Priority.BULK)
    with pytest.raises(QueueFull):
        requests.enter(id="more", route="/", key=None, priority=Priority.BULK)
    requests.enter(id="chat", route="/", key=None, priority=Priority.INTERACTIVE)
    requests.enter(id="batch", route="/", key=None, priority=Priority.BACKGROUND)
    with pytest.raises(QueueFull):
        requests.enter(id="batch2", route="/", key=None, priority=Priority.BACKGROUND)
    assert requests.open == 4


def test_settings_of_models() -> None:
    assert priorities_by_name(["tiny=bulk", " big = Realtime"]) == {"tiny": Priority.BULK, "big": Priority.REALTIME}
    for entry, complaint in (("tiny", "NAME=CLASS"), ("=bulk", "NAME=CLASS"), ("tiny=fast", "no deadline class")):
        with pytest.raises(ValueError, match=complaint):
            priorities_by_name([entry])
