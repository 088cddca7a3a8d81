"""Grammars, classes, keys, tiers, few pages, cancelled and expired requests, all at once: nothing leaks, no answer changes."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from edgewise.core.priority import Priority
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.models.files import ModelFiles
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.pipeline.structured.vocabulary import vocabulary_of
from tests.engine.test_constraint import WORD, grammar
from tests.engine.test_engine import config_of

GRAMMARS = (None, None, WORD, grammar("/[a-z]+( [a-z]+)*/"))
HOST_PAGES = 12


@pytest.fixture(scope="module")
def tokenizer(tiny_model: ModelFiles) -> Tokenizer:
    return load_tokenizer(tiny_model)


@pytest.fixture
def config(tiny_model: ModelFiles, tokenizer: Tokenizer, tmp_path: Path) -> EngineConfig:
    return config_of(
        tiny_model,
        kv_memory_bytes=61440,
        max_running=4,
        ageing_s=0.05,
        vocabulary=vocabulary_of(tokenizer),
        spill_bytes=2**20,
        host_cache_bytes=HOST_PAGES * 5120,
        disk_cache_dir=str(tmp_path / "kv"),
        disk_cache_bytes=2**20,
    )


def life(config: EngineConfig) -> Engine:
    return build(config, lambda phase, done: None)


@dataclass
class Crowd:
    """Requests at random, and what came back."""

    rng: random.Random
    vocab: int
    stops: tuple[int, ...]
    asked: dict[str, GenerateRequest] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, TokenChunk] = field(default_factory=dict)

    def request(self) -> GenerateRequest:
        rng = self.rng
        beginning = rng.randrange(4)
        prompt = [(7 * beginning + 3 * position) % self.vocab for position in range(rng.randrange(1, 80))]
        sampling = SamplingParams(
            max_tokens=rng.randrange(1, 40),
            temperature=rng.choice([0.0, 1.0]),
            seed=rng.randrange(4),
            stop_token_ids=self.stops,
        )
        return GenerateRequest(
            id=f"r{len(self.asked)}",
            prompt=(*prompt, *(rng.randrange(self.vocab) for _ in range(rng.randrange(20)))),
            sampling=sampling,
            salt=rng.choice(["", "other"]),
            key=rng.choice(["a", "b", "c"]),
            priority=rng.choice(list(Priority)),
            deadline_s=rng.choice([None, None, None, None, 0.0005, 0.01, 0.05]),
            constraint=rng.choice(GRAMMARS),
        )

    def add(self, core: Engine, request: GenerateRequest) -> None:
        core.add(request)
        self.asked[request.id] = request
        self.answers.setdefault(request.id, [])

    def take(self, chunks: list[TokenChunk]) -> None:
        for chunk in chunks:
            assert chunk.request_id not in self.ends
            assert chunk.offset == len(self.answers[chunk.request_id])
            self.answers[chunk.request_id] += chunk.tokens
            if chunk.finish:
                assert chunk.error_code in (None, "deadline_exceeded"), chunk.error_message
                self.ends[chunk.request_id] = chunk

    def disturb(self, core: Engine, turns: int) -> None:
        for _ in range(turns):
            if self.rng.random() < 0.4:
                self.add(core, self.request())
            if self.rng.random() < 0.06 and self.asked:
                core.cancel(self.rng.choice(list(self.asked)[-12:]))
            if self.rng.random() < 0.02:
                core.clear_cache(self.rng.choice([None, "device", "host", "disk"]))
            self.take(core.step())

    def resume(self, core: Engine) -> None:
        """What a service asks of the next engine after a kill -9."""
        for name in self.asked.keys() - self.ends.keys():
            core.add(replace(self.asked[name], output=tuple(self.answers[name])))

    def drain(self, core: Engine) -> None:
        for _ in range(20_000):
            if not core.has_work:
                return
            self.take(core.step())
        raise AssertionError("the engine never became idle")


def assert_idle(core: Engine) -> None:
    stats, pool = core.stats(), core._scheduler.pages
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert (stats.spill_bytes, stats.spill_limit_bytes) == (0, 2**20)
    # One moved page may be the beginning of several parked sequences, each of which moves it back: no bound but this one.
    assert stats.spilled_pages > 0 or stats.unspilled_pages == 0
    assert not pool._parked
    assert stats.host_bytes <= HOST_PAGES * 5120
    assert repr(core._runner.constraints).startswith("Constraints(open=0,")


def engine_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith(("engine-", "kv-"))}


@pytest.mark.parametrize("seed", range(2))
def test_nothing_leaks_and_no_answer_changes(config: EngineConfig, tokenizer: Tokenizer, seed: int) -> None:
    before = engine_threads()
    core = life(config)
    crowd = Crowd(random.Random(seed), core.info.vocab_size, tuple(sorted(tokenizer.eos_ids)))
    crowd.disturb(core, 120)
    killed, core = core, life(config)  # the disk is left as it is, in the middle of a write
    crowd.resume(core)
    crowd.disturb(core, 120)
    crowd.drain(core)
    assert_idle(core)
    killed.close()
    assert killed.stats().preemptions + core.stats().preemptions > 0
    core.close()
    for thread in engine_threads() - before:
        thread.join(5.0)
        assert not thread.is_alive()
    assert crowd.ends.keys() == crowd.asked.keys()
    assert {end.finish for end in crowd.ends.values()} >= {"stop", "length", "cancelled", "error"}
    calm = life(replace(config, kv_memory_bytes=2**22, host_cache_bytes=0, disk_cache_dir=None, disk_cache_bytes=0))
    alone = Crowd(random.Random(0), calm.info.vocab_size, ())
    for name, request in crowd.asked.items():
        alone.add(calm, replace(request, deadline_s=None, priority=Priority.INTERACTIVE))
        alone.drain(calm)
        got = crowd.answers[name]
        if crowd.ends[name].finish in ("stop", "length"):
            assert got == alone.answers[name]
        assert got == alone.answers[name][: len(got)]
    calm.close()
