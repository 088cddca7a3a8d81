"""Privacy labels and policies: who may ask for which, what wins, and that every route that makes a task has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.privacy import (
    PRIVACY_NAMES,
    Clearance,
    Labels,
    Privacy,
    SiteClearance,
    clearance_of,
    labels_by_name,
    site_clearance_of,
)
from edgewise.pipeline.plan import Demand, Errand, LocalPlanner, Plan
from tests.api.harness import CHAT, COMPLETIONS, Api, error_of, hello, make_api, prompt
from tests.api.test_auth import Record
from tests.api.text_apis.test_batches import batching, begin, ended, lines

ANY, SITE, PRIVATE = Privacy.ANY, Privacy.SITE, Privacy.PRIVATE
RESPONSES, MESSAGES, BATCHES = "/v1/responses", "/v1/messages", "/v1/batches"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: hello(),
    COMPLETIONS: prompt(),
    RESPONSES: {"model": "tiny", "input": "hi"},
    MESSAGES: {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
}


class Keys:
    """One key for each label, named like it, and one without."""

    def verify(self, token: str, /) -> Record | None:
        if token == "plain":
            return Record("id-plain", "plain")
        return next((Record(f"id-{name}", name, privacy=name) for name in PRIVACY_NAMES if name == token), None)


@dataclass
class Spy(LocalPlanner):
    """Keeps what it was asked."""

    errands: list[Errand] = field(default_factory=list)

    async def plan(self, errand: Errand, demands: Sequence[Demand]) -> Plan:
        self.errands.append(errand)
        return await super().plan(errand, demands)


def api_of(
    key: str | None = None, header: str | None = None, model: Privacy | None = None, default: Privacy = ANY, **more: Any
) -> tuple[Api, Spy]:
    spy = Spy()
    labels = Labels(default=default, models={} if model is None else {"starter": model})  # by an alias of "tiny"
    api = make_api(keys=Keys(), labels=labels, planner=spy, **more)
    if key is not None:
        api.headers["authorization"] = f"Bearer {key}"
    if header is not None:
        api.headers["x-edgewise-privacy"] = header
    return api, spy


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(
    ("key", "header", "model", "default", "expected"),
    [
        (None, None, None, ANY, "any"),
        (None, None, None, PRIVATE, "private"),
        (None, " Private ", None, ANY, "private"),
        (None, "site", SITE, ANY, "site"),
        (None, None, PRIVATE, ANY, "private"),
        ("any", None, None, PRIVATE, "any"),
        ("any", "private", None, ANY, "private"),
        ("any", None, SITE, ANY, "site"),
        ("private", None, ANY, ANY, "private"),
        ("plain", None, None, SITE, "site"),
        ("site", "site", ANY, ANY, "site"),
    ],
)
async def test_the_strictest_label_wins_on_every_route(
    path: str, key: str | None, header: str | None, model: Privacy | None, default: Privacy, expected: str
) -> None:
    api, spy = api_of(key, header, model, default)
    receipt = (await api.answer(path, BODIES[path]))["edgewise"]
    assert receipt["privacy"] == expected
    assert [errand.privacy.label for errand in spy.errands] == [expected]


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize(
    ("key", "header", "model", "default"),
    [
        ("private", "any", None, ANY),
        ("any", "any", SITE, ANY),
        (None, "site", None, PRIVATE),
        ("site", "any", None, ANY),
    ],
)
async def test_a_header_never_loosens_a_label(
    path: str, key: str | None, header: str, model: Privacy | None, default: Privacy
) -> None:
    api, spy = api_of(key, header, model, default)
    response = await api.post(path, BODIES[path])
    assert response.status_code == 403
    assert "only make it stricter" in response.json()["error"]["message"]
    assert not spy.errands


@pytest.mark.parametrize("header", ["secret", "", "private, any", "0"])
async def test_an_unknown_label_is_refused_by_name(header: str) -> None:
    error = await api_of(header=header)[0].refusal(CHAT, hello(), 400)
    assert error["param"] == "X-Edgewise-Privacy"
    assert "private, site, any" in error["message"]


async def test_what_continues_an_answer_inherits_its_label() -> None:
    api, spy = api_of(header="private")
    first = await api.answer(RESPONSES, BODIES[RESPONSES])
    del api.headers["x-edgewise-privacy"]
    body = BODIES[RESPONSES] | {"previous_response_id": first["id"]}
    second = await api.answer(RESPONSES, body)
    third = await api.answer(RESPONSES, body | {"previous_response_id": second["id"]})
    assert third["edgewise"]["privacy"] == "private"
    assert [errand.privacy for errand in spy.errands] == [PRIVATE] * 3
    refused = await api.post(RESPONSES, body, headers={"x-edgewise-privacy": "any"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("key", "header", "model", "expected"),
    [(None, None, None, ANY), ("private", None, None, PRIVATE), (None, "site", None, SITE), ("any", None, SITE, SITE)],
)
async def test_lines_of_a_batch_have_the_label_of_key_header_and_model(
    tmp_path: Path, key: str | None, header: str | None, model: Privacy | None, expected: Privacy
) -> None:
    spy = Spy()
    labels = Labels(models={} if model is None else {"tiny": model})
    async with batching(tmp_path, keys=Keys(), labels=labels, planner=spy) as api:
        api.headers |= {} if key is None else {"authorization": f"Bearer {key}"}
        api.headers |= {} if header is None else {"x-edgewise-privacy": header}
        batch = await ended(api, await begin(api, CHAT, lines(CHAT, 2)))
        assert batch["status"] == "completed"
    assert [errand.privacy for errand in spy.errands] == [expected] * 2


async def test_a_batch_is_refused_a_laxer_label(tmp_path: Path) -> None:
    async with batching(tmp_path, keys=Keys()) as api:
        api.headers |= {"authorization": "Bearer site", "x-edgewise-privacy": "any"}
        file = await api.request("POST", "/v1/files", files={"file": ("a", lines(CHAT))}, data={"purpose": "batch"})
        body = {"input_file_id": file.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
        assert error_of(await api.post(BATCHES, body))["code"] == "permission_denied"


@pytest.mark.parametrize("path", list(BODIES))
async def test_a_request_may_name_its_policy(path: str) -> None:
    api, spy = api_of()
    for header, expected in ((None, None), ("local-only", "local-only"), (" Cheapest", "cheapest")):
        api.headers.pop("x-edgewise-policy", None)
        api.headers |= {} if header is None else {"x-edgewise-policy": header}
        await api.answer(path, BODIES[path])
        assert spy.errands[-1].policy == expected
    api.headers["x-edgewise-policy"] = "quickest"
    response = await api.post(path, BODIES[path])
    assert response.status_code == 400
    assert "prefer-cloud" in response.json()["error"]["message"]


def test_only_the_label_any_gives_clearance() -> None:
    assert [clearance_of(label) is not None for label in Privacy] == [False, False, True]
    for forged in (Privacy.PRIVATE, Privacy.SITE, 2, "any", True):
        with pytest.raises(ValueError, match="does not leave"):
            Clearance(forged)  # type: ignore[arg-type]
    assert [site_clearance_of(label) is not None for label in Privacy] == [False, True, True]
    for forged in (Privacy.PRIVATE, 1, "site", True):
        with pytest.raises(ValueError, match="does not leave"):
            SiteClearance(forged)  # type: ignore[arg-type]


def test_the_type_checker_refuses_a_clearance_for_a_label_that_was_not_looked_at(tmp_path: Path) -> None:
    from mypy import api as mypy

    source = tmp_path / "leak.py"
    source.write_text(
        "from edgewise.core.privacy import Clearance, Privacy\n"
        "def right(label: Privacy) -> Clearance | None:\n"
        "    return Clearance(label) if label is Privacy.ANY else None\n"
        "def unseen(label: Privacy) -> Clearance:\n"
        "    return Clearance(label)\n"
        "def forbidden() -> Clearance:\n"
        "    return Clearance(Privacy.SITE)\n"
    )
    report, _, status = mypy.run(["--strict", "--no-incremental", "--follow-imports=silent", str(source)])
    found = [int(line.split(":")[1]) for line in report.splitlines() if "[arg-type]" in line]
    assert (status, found) == (1, [5, 7]), report


def test_settings_of_models() -> None:
    assert labels_by_name(["tiny=private", " big = Site", "tiny=any"]) == {"tiny": PRIVATE, "big": SITE}
    for entry, complaint in (("tiny", "NAME=LABEL"), ("=any", "NAME=LABEL"), ("tiny=open", "no privacy label")):
        with pytest.raises(ValueError, match=complaint):
            labels_by_name([entry])
