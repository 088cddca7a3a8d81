"""Hooks on every text route: one code path, fail closed, and an audit trail that holds no text."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from edgewise.core.errors import StorageError
from edgewise.pipeline.hooks.audit_log import verify_chain
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.hooks.load import load_hooks
from edgewise.pipeline.hooks.protocol import AuditRecord, Call, Hook, HookSetup, PromptText, TextFilter
from tests.api.harness import Api, make_api
from tests.fakes.engine import FakeEngine, Fault
from tests.fakes.serving import says

TEXT = "The word is forbidden here."
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "PROMPT"}]},
    "/v1/completions": {"model": "tiny", "prompt": "PROMPT"},
    "/v1/responses": {"model": "tiny", "input": "PROMPT"},
    "/v1/messages": {"model": "tiny", "max_tokens": 99, "messages": [{"role": "user", "content": "PROMPT"}]},
}
every_route = pytest.mark.parametrize("route", sorted(ROUTES))


def ask(route: str, prompt: str = "hi", **fields: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json.dumps(ROUTES[route]).replace("PROMPT", prompt))
    return body | fields


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Api]:
    """A service with both of our hooks."""
    (tmp_path / "words.txt").write_text("forbidden\n")
    hooks = Hooks(load_hooks(["word-filter", "audit-log"], ["word-filter.file=words.txt"], tmp_path))
    api = make_api(FakeEngine(script=says(TEXT)), hooks=hooks)
    yield api
    api.deps.state.close()


def trail(folder: Path) -> list[dict[str, Any]]:
    verify_chain(folder / "audit.jsonl")
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


@every_route
async def test_a_prompt_is_refused_and_that_is_on_record(guarded: Api, tmp_path: Path, route: str) -> None:
    response = await guarded.post(route, ask(route, "a FORBIDDEN thing"))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "content_filter")
    assert guarded.engine.requests == []
    (record,) = trail(tmp_path)
    assert (record["event"], record["outcome"], record["key"]) == ("refused", "content_filter", "anonymous")
    await guarded.deps.hooks.aclose()


@every_route
async def test_an_answer_ends_before_the_match_in_body_and_stream(guarded: Api, tmp_path: Path, route: str) -> None:
    body = (await guarded.post(route, ask(route))).text
    stream = (await guarded.post(route, ask(route, stream=True))).text
    for text in (body, stream):
        assert "forb" not in text
        assert "content_filter" in text or "refusal" in text
    if route == "/v1/chat/completions":
        choice = json.loads(body)["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("The word is ", "content_filter")
    assert guarded.engine.open == {}
    asked, answered, *_ = trail(tmp_path)
    assert (asked["event"], answered["event"], answered["outcome"]) == ("asked", "answered", "completed")
    assert asked["prompt_sha256"] == answered["prompt_sha256"]
    assert answered["answers"] == [{"finish": "content_filter", "sha256": hashlib.sha256(b"The word is ").hexdigest()}]
    assert answered["completion_tokens"] > 0
    assert "The word" not in (tmp_path / "audit.jsonl").read_text()
    await guarded.deps.hooks.aclose()


async def test_prompts_of_token_ids_and_echo_do_not_pass_by(guarded: Api) -> None:
    ids = list(b"forbidden")
    response = await guarded.post("/v1/completions", {"model": "tiny", "prompt": ids})
    assert response.json()["error"]["code"] == "content_filter"
    await guarded.deps.hooks.aclose()


async def test_a_request_that_breaks_is_on_record(guarded: Api, tmp_path: Path) -> None:
    guarded.engine.fault = Fault(0, 2)
    assert (await guarded.post("/v1/completions", ask("/v1/completions"))).status_code == 500
    assert [(one["event"], one.get("outcome")) for one in trail(tmp_path)] == [
        ("asked", None),
        ("answered", "engine_error"),
    ]
    await guarded.deps.hooks.aclose()


async def test_text_is_on_record_only_if_wanted(tmp_path: Path) -> None:
    hooks = Hooks(load_hooks(["audit-log"], ["audit-log.text=yes"], tmp_path))
    api = make_api(FakeEngine(script=says(TEXT)), hooks=hooks)
    await api.answer("/v1/completions", ask("/v1/completions", "the prompt"))
    asked, answered = trail(tmp_path)
    assert asked["prompt_text"] == "prompt: the prompt"
    assert answered["answers"][0]["text"] == TEXT
    await hooks.aclose()


class Replaces(Hook):
    name = "replaces"

    async def before_prompt(self, call: Call, texts: Sequence[PromptText]) -> Sequence[str]:
        return [one.text.replace("hi", "ho") for one in texts]


class Breaks(Hook):
    """Fails in one of its methods."""

    name = "breaks"

    def __init__(self, method: str, error: Exception) -> None:
        super().__init__(HookSetup(home=Path()))
        self._method = method
        self._error = error

    def _do(self, method: str) -> None:
        if method == self._method:
            raise self._error

    async def before_prompt(self, call: Call, texts: Sequence[PromptText]) -> Sequence[str]:
        self._do("before_prompt")
        return [one.text for one in texts]

    def watch(self, call: Call) -> TextFilter | None:
        self._do("watch")
        return _Check(self)

    async def audit(self, record: AuditRecord) -> None:
        self._do(record.event)


class _Check:
    hold_back = 0

    def __init__(self, hook: Breaks) -> None:
        self._hook = hook

    async def check(self, text: str, start: int, *, last: bool) -> int | None:
        self._hook._do("check")
        return None


@every_route
async def test_a_prompt_can_be_replaced(route: str) -> None:
    api = make_api(FakeEngine(script=says("x")), hooks=Hooks([Replaces(HookSetup(home=Path()))]))
    await api.answer(route, ask(route))
    prompt = bytes(id for id in api.engine.requests[-1].prompt if id < 256).decode()
    assert "ho" in prompt
    assert "hi" not in prompt
    api.deps.state.close()


@pytest.mark.parametrize("method", ["before_prompt", "watch", "check", "asked", "answered"])
@pytest.mark.parametrize("on_error", ["refuse", "allow"])
async def test_a_hook_that_fails(method: str, on_error: Literal["refuse", "allow"]) -> None:
    hooks = Hooks([Breaks(method, RuntimeError("a bug"))], on_error=on_error)
    api = make_api(FakeEngine(script=says("x")), hooks=hooks)
    response = await api.post("/v1/completions", ask("/v1/completions"))
    if on_error == "allow":
        assert response.json()["choices"][0]["text"] == "x"
        return
    assert (response.status_code, response.json()["error"]["code"]) == (500, "hook_failed")
    assert "a bug" not in response.text
    assert api.engine.open == {}
    stream = (await api.post("/v1/completions", ask("/v1/completions", stream=True))).text
    assert "hook_failed" in stream
    assert "[DONE]" not in stream


async def test_an_audit_trail_that_cannot_be_written_refuses() -> None:
    api = make_api(hooks=Hooks([Breaks("asked", StorageError("The disk is full."))]))
    error = await api.refusal("/v1/completions", ask("/v1/completions"), 507)
    assert error["message"] == "The disk is full."


class Hangs(Hook):
    name = "hangs"

    async def before_prompt(self, call: Call, texts: Sequence[PromptText]) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_hook_that_hangs_has_failed() -> None:
    api = make_api(hooks=Hooks([Hangs(HookSetup(home=Path()))], timeout_s=0.05))
    assert (await api.refusal("/v1/completions", ask("/v1/completions"), 500))["code"] == "hook_failed"
