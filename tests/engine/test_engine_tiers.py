"""Tiers under a real engine: the second life skips the first one's prefill, and the answers are the same bits."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig, KVDtypeName
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, RequestStats, SamplingParams
from edgewise.engine.tiers import folder
from edgewise.models.files import ModelFiles

PROMPT = 203  # tokens: 12 full pages


@pytest.fixture
def config(tiny_model: ModelFiles) -> EngineConfig:
    return EngineConfig(
        model=tiny_model,
        device="cpu",
        dtype="float32",
        kv_dtype="int8",
        kv_memory_bytes=61440,
        max_step_tokens=64,
        threads=1,
    )


def ask(core: Engine, text: int, *, salt: str = "", length: int = PROMPT) -> tuple[list[int], RequestStats]:
    prompt = tuple((7 * text + 3 * position) % core.info.vocab_size for position in range(length))
    sampling = SamplingParams(max_tokens=24, temperature=0.7, seed=5)
    core.add(GenerateRequest(id=f"{text}{salt}{time.monotonic_ns()}", prompt=prompt, sampling=sampling, salt=salt))
    tokens: list[int] = []
    stats = None
    while core.has_work:
        for chunk in core.step():
            assert chunk.finish != "error", chunk.error_message
            tokens += chunk.tokens
            stats = chunk.stats or stats
    assert stats is not None
    return tokens, stats


def life(config: EngineConfig) -> Engine:
    return build(config, lambda phase, done: None)


def written(core: Engine, pages: int) -> None:
    deadline = time.monotonic() + 120
    while core.stats().disk_pages < pages:
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(params=["float32", "int8", "fp8"])
def on_disk(request: pytest.FixtureRequest, config: EngineConfig, tmp_path: Path) -> EngineConfig:
    kv_dtype: KVDtypeName = request.param
    return replace(
        config,
        kv_dtype=kv_dtype,
        kv_memory_bytes=245760,
        disk_cache_dir=str(tmp_path / "kv"),
        disk_cache_bytes=2**24,
    )


def test_a_second_life_finds_the_first_ones_prompt(on_disk: EngineConfig) -> None:
    first = life(on_disk)
    expected, cold = ask(first, 1)
    assert cold.cached_tokens == 0
    first.close()
    second = life(on_disk)
    again, warm = ask(second, 1)
    assert again == expected
    assert (warm.cached_tokens, warm.restored_tokens) == (192, 192)
    assert second.stats().disk_hits >= 12
    other, stranger = ask(second, 1, salt="another tenant")
    assert other == expected
    assert stranger.cached_tokens == 0
    second.close()
    third = life(replace(on_disk, disk_cache_key="another template"))
    assert ask(third, 1)[1].cached_tokens == 0
    third.close()


def test_a_life_that_ends_without_a_word_leaves_its_pages(on_disk: EngineConfig) -> None:
    first = life(on_disk)
    expected, _ = ask(first, 1)
    written(first, 12)  # no close: as after kill -9
    second = life(on_disk)
    again, warm = ask(second, 1)
    assert again == expected
    assert warm.restored_tokens == 192
    for core in (first, second):
        core.close()


def test_damage_costs_time_only(on_disk: EngineConfig) -> None:
    first = life(on_disk)
    expected, _ = ask(first, 1)
    first.close()
    for file in folder.all_files(Path(on_disk.disk_cache_dir or "")):
        data = bytearray(file.path.read_bytes())
        data[-5000] ^= 4
        file.path.write_bytes(data)
    second = life(on_disk)
    again, stats = ask(second, 1)
    assert again == expected
    assert stats.restored_tokens < 192
    assert second.stats().disk_refused == 1
    second.close()


def test_the_host_tier_brings_back_what_the_device_had_to_give_up(config: EngineConfig) -> None:
    core = life(replace(config, host_cache_bytes=2**22))
    assert core.memory().booked["cache_tiers"] == 2**22
    expected, _ = ask(core, 1)
    for text in range(2, 6):
        ask(core, text)
    again, stats = ask(core, 1)
    assert again == expected
    assert stats.restored_tokens == 192
    held = core.stats()
    assert held.host_pages > core.info.num_pages
    assert held.host_hits == 12
    assert core.clear_cache("host") == {"host": held.host_pages}
    core.close()


def test_clearing_forgets_every_tier(on_disk: EngineConfig) -> None:
    core = life(replace(on_disk, host_cache_bytes=2**20))
    ask(core, 1)
    written(core, 13)
    cleared = core.clear_cache(None)
    assert cleared == {"device": 14, "host": 14, "disk": 14}
    assert ask(core, 1)[1].cached_tokens == 0
    core.close()


def test_a_full_queue_of_memory_leaves_the_tiers_out(config: EngineConfig) -> None:
    tight = replace(config, host_cache_bytes=2**40, memory_budget_bytes=2**29, kv_memory_bytes=None)
    core = life(tight)
    report = core.memory()
    assert sum(report.booked.values()) <= report.budget_bytes
    assert core.info.max_context == 512
    core.close()
