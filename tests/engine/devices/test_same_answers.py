"""Several devices answer what one does: in a batch, after a prefix hit, a preemption, a cancel, from a lower tier, with adapters.

Sums are split otherwise, so logits differ in their last bits; in float32 no token of these answers hangs on them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig, KVDtypeName
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, Priority, SamplingParams
from edgewise.models.adapters.files import AdapterFiles
from edgewise.models.tiny import local_files, make_tiny_model
from tests.fakes.adapters import adapter_files, make_adapter

PAGES = 48
PAGE_TOKENS = 16
Tokens = list[int]


@dataclass(frozen=True)
class Case:
    """A model, a format of its KV cache and the number of devices."""

    name: str
    devices: int
    kv_dtype: KVDtypeName
    model: dict[str, Any]
    adapters: bool = False
    draft: bool = False


CASES = [
    Case("shared-heads", 2, "int8", {}, adapters=True),
    Case("experts", 2, "float32", {"family": "qwen3_moe"}, draft=True),
    # Two KV heads, so that two devices hold each, and a vocabulary that four cannot divide.
    Case("four", 4, "fp8", {"vocab": 510, "heads": 8}),
]


# What no model and no number of devices changes.
FIRST = pytest.mark.parametrize("pair", CASES[:1], ids=lambda case: case.name, indirect=True)


@dataclass(frozen=True)
class Pair:
    """The engine on one device and that on several."""

    case: Case
    one: Engine
    several: Engine
    adapter: AdapterFiles | None


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    case: Case = request.param
    folder = make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", **case.model)
    config = EngineConfig(
        model=local_files(folder),
        device="cpu",
        kernels="reference",
        dtype="float32",
        kv_dtype=case.kv_dtype,
        kv_memory_bytes=2**22,
        max_context=256,
        max_step_tokens=32,
        threads=1,
        host_cache_bytes=2**22,
        adapters=case.adapters,
    )
    one = build(config, lambda phase, done: None)
    twice = 2 if case.name == "four" else 1
    page_bytes = one.memory().booked["kv_cache"] // one.info.num_pages * twice
    divided = replace(config, tensor_parallel=case.devices, kv_memory_bytes=PAGES * page_bytes)
    if case.draft:  # the model itself, so that it is always right
        divided = replace(divided, speculation="draft", draft=config.model)
    several = build(divided, lambda phase, done: None)
    adapter = None
    if case.adapters:
        made = make_adapter(folder.parent / "adapter", folder, seed=1, size=1.0)
        adapter = adapter_files(made, "adapter")
    yield Pair(case, one, several, adapter)
    several.close()
    one.close()


def requests_for(vocab: int, adapter: AdapterFiles | None) -> list[GenerateRequest]:
    """16 of up to 3 pages: greedy and sampled, and every third with an adapter if there is one."""
    rng = random.Random(11)
    return [
        GenerateRequest(
            id=str(index),
            prompt=tuple(rng.randrange(vocab) for _ in range(4 + 2 * index)),
            sampling=SamplingParams(max_tokens=12, temperature=0.8 if index % 2 else 0.0, seed=index),
            adapter=adapter if index % 3 == 0 else None,
        )
        for index in range(16)
    ]


def long_one(name: str, length: int, most: int = 20, **changes: Any) -> GenerateRequest:
    rng = random.Random(length)
    prompt = tuple(rng.randrange(500) for _ in range(length))
    sampling = SamplingParams(max_tokens=most, temperature=0.7, seed=length)
    return GenerateRequest(id=name, prompt=prompt, sampling=sampling, **changes)


def run(core: Engine, *requests: GenerateRequest) -> dict[str, Tokens]:
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
            assert chunk.finish != "error", chunk.error_message
            answers[chunk.request_id] += chunk.tokens


def test_what_it_says_of_itself(pair: Pair) -> None:
    info, stats, booked = pair.several.info, pair.several.stats(), pair.several.memory().booked
    assert (info.devices, stats.devices, pair.one.info.devices) == (pair.case.devices, pair.case.devices, 1)
    assert info.numeric_class != pair.one.info.numeric_class
    assert info.kv_fingerprint != pair.one.info.kv_fingerprint
    assert info.batch_invariant
    assert info.num_pages == PAGES
    assert stats.rss_bytes > pair.one.stats().rss_bytes
    assert booked["weights"] >= pair.one.memory().booked["weights"]


def test_a_batch_of_16(pair: Pair) -> None:
    """Prompts are cut into chunks: all together have ten times the tokens of a step."""
    requests = requests_for(pair.one.info.vocab_size, pair.adapter)
    expected = run(pair.one, *requests)
    assert run(pair.several, *requests) == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == 16
    for request in requests[::5]:  # alone as in the crowd
        pair.several.clear_cache(None)
        assert run(pair.several, request) == {request.id: expected[request.id]}


def test_after_a_prefix_hit(pair: Pair) -> None:
    request = long_one("a", 100)
    expected = run(pair.one, request)
    assert run(pair.several, request) == expected
    before = pair.several.stats().cached_tokens
    assert run(pair.several, request) == expected
    after = pair.several.stats()
    assert after.cached_tokens >= before + 96
    assert after.accepted_tokens > 0 or not pair.case.draft


def test_after_a_preemption(pair: Pair) -> None:
    """Pages of the preempted move to host memory and back, every device's part of them."""
    core = pair.several
    core.clear_cache(None)
    bulk = [long_one(f"bulk-{index}", 140 + index, 60, priority=Priority.BULK) for index in range(4)]
    urgent = [long_one(f"urgent-{index}", 130 + index, priority=Priority.REALTIME) for index in range(3)]
    expected = run(pair.one, *bulk, *urgent)
    answers: dict[str, Tokens] = {request.id: [] for request in (*bulk, *urgent)}
    before = core.stats()
    for request in bulk:
        core.add(request)
    while not all(answers[request.id] for request in bulk[:3]):
        collect(core, answers, 1)
    for request in urgent:
        core.add(request)
        collect(core, answers, 6)
    collect(core, answers)
    assert answers == expected
    after = core.stats()
    assert after.preemptions > before.preemptions
    assert after.unspilled_pages > before.unspilled_pages


def test_pages_from_host_memory(pair: Pair) -> None:
    core, request = pair.several, long_one("a", 110)
    core.clear_cache(None)
    expected = run(core, request)
    assert expected == run(pair.one, request)
    for index in range(6):  # others need the device's pages
        run(core, long_one(f"other-{index}", 180 + index))
    before = core.stats().host_hits
    assert run(core, request) == expected
    assert core.stats().host_hits >= before + 6


@FIRST
def test_after_a_cancel(pair: Pair) -> None:
    """Freed pages are others' at once, on every device."""
    requests = [long_one(str(index), 40 + index) for index in range(4)]
    expected = run(pair.one, *requests)
    answers: dict[str, Tokens] = {request.id: [] for request in requests}
    for request in requests:
        pair.several.add(request)
    collect(pair.several, answers, 5)
    pair.several.cancel("1")
    pair.several.cancel("3")
    collect(pair.several, answers)
    assert (answers["0"], answers["2"]) == (expected["0"], expected["2"])


@FIRST
def test_a_stream_that_is_continued(pair: Pair) -> None:
    request = long_one("a", 60)
    whole = run(pair.several, request)["a"]
    rest = run(pair.several, replace(request, output=tuple(whole[:9])))["a"]
    assert [*whole[:9], *rest] == whole


@FIRST
def test_adapters(pair: Pair) -> None:
    assert pair.adapter is not None
    request = replace(long_one("a", 50), adapter=pair.adapter)
    got = run(pair.several, request)
    assert got == run(pair.one, request)
    assert got != run(pair.several, replace(request, adapter=None))
    assert pair.several.stats().adapter_bytes > pair.one.stats().adapter_bytes  # what is not cut is on both


@FIRST
def test_pages_rounded_for_another_appliance(pair: Pair) -> None:
    """What rounds them knows what lies where in a page of several devices."""
    core = pair.several
    run(core, long_one("a", 64))
    assert core._hand_over is not None
    mover, rounder = core._hand_over._mover, core._hand_over._rounder
    exported = mover.export(range(PAGES))
    page = max(exported, key=lambda content: sum(content))  # a full one
    assert len(page) == mover.page_bytes == core.info.kv_page_bytes
    (back,) = rounder.unpack(rounder.pack([page]))
    assert 0 < rounder.distance(memoryview(back), page) < 0.25
    assert rounder.distance(exported[0] if exported[0] != page else exported[1], page) > 0.5
