"""What hooks are told of a request that one of them, or the engine, does not let pass: each has its beginning and its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from edgewise.core.errors import ContentRefused, HookFailed
from edgewise.pipeline.hooks.hooks import Hooks
from edgewise.pipeline.hooks.protocol import AuditRecord, Call, Hook, HookSetup, PromptText
from edgewise.pipeline.plan import LocalPlanner
from edgewise.pipeline.receipt_store import Outcome
from edgewise.pipeline.run import start_run
from tests.fakes.engine import FakeEngine
from tests.pipeline.test_run import task


class Keeps(Hook):
    name = "keeps"

    def __init__(self, setup: HookSetup) -> None:
        super().__init__(setup)
        self.told: list[tuple[str, str | None]] = []

    async def audit(self, record: AuditRecord) -> None:
        self.told.append((record.event, record.outcome))


class Broken(Hook):
    """Its disk is full, say."""

    name = "broken"

    async def audit(self, record: AuditRecord) -> None:
        raise OSError("no space")


class Refuses(Hook):
    name = "refuses"

    async def before_prompt(self, call: Call, texts: Sequence[PromptText]) -> Sequence[str]:
        raise ContentRefused("Not that.")


@pytest.fixture
def setup(tmp_path: Path) -> HookSetup:
    return HookSetup(home=tmp_path, options={})


@pytest.mark.parametrize("first", [True, False])
async def test_where_one_hook_fails_the_others_have_the_end_too_and_so_has_placement(
    setup: HookSetup, first: bool
) -> None:
    keeps, engine = Keeps(setup), FakeEngine()
    hooks = Hooks([keeps, Broken(setup)] if first else [Broken(setup), keeps])
    ends: list[str | None] = []

    def ended(outcome: Outcome) -> None:
        ends.append(outcome.fault)

    with pytest.raises(HookFailed, match="broken"):
        await start_run(task(engine), LocalPlanner(), hooks=hooks, on_end=ended)
    assert keeps.told == [("asked", None), ("answered", "hook_failed")]
    assert ends == ["hook_failed"]
    assert engine.requests == []


async def test_a_refusal_is_told_as_one_where_the_trail_of_it_is_lost(
    setup: HookSetup, caplog: pytest.LogCaptureFixture
) -> None:
    keeps = Keeps(setup)
    hooks = Hooks([Broken(setup), Refuses(setup), keeps])
    with pytest.raises(ContentRefused, match="Not that"):
        await start_run(task(FakeEngine()), LocalPlanner(), hooks=hooks)
    assert keeps.told == [("refused", "content_filter")]
    assert "audit_lost" in [record.message for record in caplog.records]
