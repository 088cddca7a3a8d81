"""Greedy tokens are the same alone, in a batch of 16, after a prefix hit, after preemption, after a restart; for every KV format.

The sampled ones are, too: a draw depends on seed and position alone.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import get_args

import pytest

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig, KVDtypeName
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, Priority, SamplingParams
from edgewise.models.files import ModelFiles

PAGES = 24
Tokens = list[int]


@dataclass(frozen=True)
class Setting:
    """One model in one KV format, and the answers that each request gets alone."""

    config: EngineConfig
    core: Engine
    requests: list[GenerateRequest]
    alone: dict[str, Tokens]

    def small(self, spill_bytes: int | None) -> Engine:
        """The same model with a cache of `PAGES` pages."""
        page_bytes = self.core.memory().booked["kv_cache"] // self.core.info.num_pages
        config = replace(self.config, kv_memory_bytes=PAGES * page_bytes, spill_bytes=spill_bytes)
        return build(config, lambda phase, done: None)


def requests_for(vocab: int) -> list[GenerateRequest]:
    rng = random.Random(11)
    return [
        GenerateRequest(
            id=str(index),
            prompt=tuple(rng.randrange(vocab) for _ in range(5 + 7 * index)),
            sampling=SamplingParams(max_tokens=20 + index, temperature=0.0 if index % 4 else 0.8, seed=index),
            priority=Priority.BULK,
        )
        for index in range(16)
    ]


def run(core: Engine, requests: list[GenerateRequest]) -> dict[str, Tokens]:
    answers: dict[str, Tokens] = {request.id: [] for request in requests}
    for request in requests:
        core.add(request)
    collect(core, answers)
    return answers


def collect(core: Engine, answers: dict[str, Tokens], steps: int = 100_000) -> None:
    for _ in range(steps):
        if not core.has_work:
            return
        for chunk in core.step():
            answers[chunk.request_id] += chunk.tokens


@pytest.fixture(scope="module", params=[name for name in get_args(KVDtypeName) if name != "auto"])
def setting(request: pytest.FixtureRequest, tiny_model: ModelFiles) -> Iterator[Setting]:
    config = EngineConfig(
        model=tiny_model,
        device="cpu",
        dtype="float32",
        kv_dtype=request.param,
        kv_memory_bytes=2**22,
        max_context=256,
        max_step_tokens=64,
        threads=1,
    )
    core = build(config, lambda phase, done: None)
    requests = requests_for(core.info.vocab_size)
    alone: dict[str, Tokens] = {}
    for one in requests:
        core._scheduler.pages.drop_cached()
        alone |= run(core, [one])
    yield Setting(config, core, requests, alone)
    core.close()


def test_in_a_batch_of_16(setting: Setting) -> None:
    setting.core._scheduler.pages.drop_cached()
    assert run(setting.core, setting.requests) == setting.alone
    assert len({tuple(tokens) for tokens in setting.alone.values()}) > 8


def test_after_a_prefix_hit(setting: Setting) -> None:
    setting.core._scheduler.pages.drop_cached()
    run(setting.core, setting.requests)
    before = setting.core.stats().cached_tokens
    assert run(setting.core, setting.requests) == setting.alone
    assert setting.core.stats().cached_tokens > before + 100


@pytest.mark.parametrize("spilling", [True, False], ids=["spill", "recompute"])
def test_after_preemption(setting: Setting, *, spilling: bool) -> None:
    core = setting.small(None if spilling else 0)
    assert core.info.num_pages == PAGES
    answers: dict[str, Tokens] = {request.id: [] for request in setting.requests}
    bulk = setting.requests[8:12]
    for request in bulk:
        core.add(request)
    collect(core, answers, 12)
    for index in (4, 13, 14, 15):  # each finds the cache full of less urgent pages
        core.add(replace(setting.requests[index], priority=Priority.REALTIME))
        collect(core, answers, 6)
    collect(core, answers)
    asked = {request.id for request in bulk} | {"4", "13", "14", "15"}
    assert {name: answers[name] for name in asked} == {name: setting.alone[name] for name in asked}
    stats = core.stats()
    assert stats.preemptions >= 2
    assert (stats.spilled_pages > 0, stats.unspilled_pages > 0) == (spilling, spilling)
    assert stats.spill_bytes == 0
    core._scheduler.pages.drop_cached()
    assert core.stats().pages_free == PAGES
    core.close()


def test_after_a_restart(setting: Setting) -> None:
    fresh = build(setting.config, lambda phase, done: None)
    for cut in (0, 1, 9, 16):
        fresh._scheduler.pages.drop_cached()
        resumed = [replace(one, output=tuple(setting.alone[one.id][:cut])) for one in setting.requests]
        rest = run(fresh, resumed)
        assert {one.id: [*one.output, *rest[one.id]] for one in resumed} == setting.alone
    fresh.close()
