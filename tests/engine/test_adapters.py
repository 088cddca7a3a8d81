"""Requests that name adapters: answers are the merged model's, together as alone, and nobody finds pages of another adapter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import BadModelFile, OutOfMemory, QueueFull, UnsupportedField
from edgewise.engine.build import build
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.adapters.layout import WEIGHTS
from edgewise.models.tiny import local_files, make_tiny_model
from tests.engine.test_engine import config_of, make, prompt_of, run
from tests.fakes.adapters import adapter_files, make_adapter, merge


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[AdapterFiles]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        adapter_files(make_adapter(folder / f"a{seed}", model, seed=seed, size=1.0), f"a{seed}") for seed in range(3)
    ]


@pytest.fixture(scope="module", params=["reference", "native"])
def kernels(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def engine_of(folder: Path, kernels: str, **changes: Any) -> Engine:
    wanted: dict[str, Any] = {"kernels": kernels, "kv_dtype": "float32", "dtype": "float32", **changes}
    return build(config_of(local_files(folder), **wanted), lambda phase, done: None)


@pytest.fixture(scope="module")
def engine(model: Path, kernels: str) -> Iterator[Engine]:
    core = engine_of(model, kernels, adapters=True)
    assert core.info.kernels == kernels
    yield core
    core.close()


def asked(name: str, adapter: AdapterFiles | None, prompt: int, **sampling: Any) -> GenerateRequest:
    return replace(make(name, prompt_of(prompt, 40, 500), **sampling), adapter=adapter)


def test_answers_are_those_of_the_merged_model(
    engine: Engine, kernels: str, model: Path, adapters: list[AdapterFiles], tmp_path: Path
) -> None:
    merged = engine_of(merge(model, Path(adapters[0].config).parent, tmp_path / "merged"), kernels)
    for temperature in (0.0, 0.8):
        request = asked("a", adapters[0], 5, temperature=temperature, seed=3)
        got = run(engine, request)["a"][0]
        assert got == run(merged, replace(request, adapter=None))["a"][0]
        assert got != run(engine, replace(request, adapter=None))["a"][0]
    merged.close()


def test_several_adapters_in_one_batch_answer_as_alone(engine: Engine, adapters: list[AdapterFiles]) -> None:
    requests = [
        asked(f"{seed}-{number}", adapter, seed, temperature=float(seed % 2), seed=seed, max_tokens=12 + seed)
        for seed in range(3)
        for number, adapter in enumerate([None, *adapters])
    ]
    alone = {request.id: run(engine, request)[request.id][0] for request in requests}
    engine._scheduler.pages.drop_cached()
    together = run(engine, *requests)
    assert {name: tokens for name, (tokens, _) in together.items()} == alone
    assert len({tuple(alone[f"0-{number}"]) for number in range(4)}) == 4
    stats = engine.stats()
    assert stats.adapters == 3
    assert 0 < stats.adapter_bytes <= engine.memory().booked["adapters"]


def test_pages_belong_to_their_adapter(engine: Engine, adapters: list[AdapterFiles]) -> None:
    engine._scheduler.pages.drop_cached()
    cached = []
    for name, adapter in [("a", adapters[0]), ("b", None), ("c", adapters[1]), ("d", adapters[0]), ("e", None)]:
        end = run(engine, asked(name, adapter, 9, max_tokens=2))[name][1]
        assert end.stats is not None
        cached.append(end.stats.cached_tokens)
    assert cached == [0, 0, 0, 32, 32]


def test_an_answer_goes_on_with_its_adapter(engine: Engine, adapters: list[AdapterFiles]) -> None:
    request = asked("a", adapters[1], 11, temperature=1.0, seed=8)
    whole = run(engine, request)["a"][0]
    rest = run(engine, replace(request, output=tuple(whole[:7])))["a"][0]
    assert whole[:7] + rest == whole


def test_the_longest_unused_adapter_makes_room(kernels: str, model: Path, adapters: list[AdapterFiles]) -> None:
    one = engine_of(model, kernels, adapters=True)
    run(one, asked("a", adapters[0], 1, max_tokens=1))
    size = one.stats().adapter_bytes
    one.close()
    core = engine_of(model, kernels, adapters=True, adapter_bytes=2 * size)
    for name in ("a0", "a1", "a2"):
        run(core, asked(name, adapters[int(name[1])], 1, max_tokens=1))
    assert core.stats().adapters == 2
    core.add(asked("x", adapters[1], 1))
    core.add(asked("y", adapters[2], 1))
    with pytest.raises(QueueFull, match=r"engine\.adapter_bytes"):
        core.add(asked("z", adapters[0], 1))
    while core.has_work:
        core.step()
    run(core, asked("z", adapters[0], 1, max_tokens=1))
    assert core.stats().adapters == 2
    core.close()
    small = engine_of(model, kernels, adapters=True, adapter_bytes=size - 1)
    with pytest.raises(OutOfMemory, match="'a0' takes"):
        small.add(asked("a", adapters[0], 1))
    assert not small.has_work
    small.close()


def test_what_cannot_be_used_is_refused_by_name(
    engine: Engine, kernels: str, model: Path, adapters: list[AdapterFiles], tmp_path: Path
) -> None:
    plain = engine_of(model, kernels)
    with pytest.raises(UnsupportedField, match="takes no adapters"):
        plain.add(asked("a", adapters[0], 1))
    plain.close()
    folder = make_adapter(tmp_path / "bad", model)
    (folder / WEIGHTS).write_bytes(b"\1\2\3")
    with pytest.raises(BadModelFile):
        engine.add(asked("a", adapter_files(folder, "bad"), 1))
    assert not engine.has_work


def test_guesses_are_checked_with_the_adapter(
    kernels: str, model: Path, adapters: list[AdapterFiles], engine: Engine
) -> None:
    request = asked("a", adapters[0], 3, max_tokens=60, logit_bias={5: 100.0, 6: 99.0})
    core = engine_of(model, kernels, adapters=True, speculation="lookup")
    assert run(core, request)["a"][0] == run(engine, request)["a"][0]
    assert core.stats().accepted_tokens > 0
    core.close()
