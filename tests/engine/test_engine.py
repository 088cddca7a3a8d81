"""The engine core on a tiny real model: answers do not depend on load, chunking, cache hits or where a stream was cut."""

import gc
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from edgewise.core.errors import ConfigError, ContextLengthExceeded, InvalidRequest, OutOfMemory
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig, KVDtypeName
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.models.files import ModelFiles

Answer = tuple[list[int], TokenChunk]


def config_of(files: ModelFiles, **changes: object) -> EngineConfig:
    base = EngineConfig(
        model=files,
        device="cpu",
        dtype="float32",
        kv_dtype="int8",
        kv_memory_bytes=2**22,
        max_step_tokens=64,
        threads=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["float32", "int8", "fp8"])
def engine(request: pytest.FixtureRequest, tiny_model: ModelFiles) -> Iterator[Engine]:
    kv_dtype: KVDtypeName = request.param
    core = build(config_of(tiny_model, kv_dtype=kv_dtype), lambda phase, done: None)
    yield core
    core.close()


def make(name: str, prompt: list[int], **sampling: object) -> GenerateRequest:
    options: dict[str, object] = {"max_tokens": 24, "temperature": 0.0, **sampling}
    return GenerateRequest(id=name, prompt=tuple(prompt), sampling=SamplingParams(**options))  # type: ignore[arg-type]


def prompt_of(seed: int, length: int, vocab: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(vocab) for _ in range(length)]


def run(core: Engine, *requests: GenerateRequest, each_step: Callable[[int], None] | None = None) -> dict[str, Answer]:
    for request in requests:
        core.add(request)
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    last: dict[str, TokenChunk] = {}
    for step in range(100_000):
        if not core.has_work:
            return {name: (tokens, last[name]) for name, tokens in answers.items()}
        if each_step:
            each_step(step)
        for chunk in core.step():
            resumed = next(len(r.output) for r in requests if r.id == chunk.request_id)
            assert chunk.offset == resumed + len(answers[chunk.request_id])
            answers[chunk.request_id] += chunk.tokens
            if chunk.finish:
                last[chunk.request_id] = chunk
    raise AssertionError("the engine never became idle")


def test_answers_in_a_crowd_are_those_given_alone(engine: Engine) -> None:
    vocab = engine.info.vocab_size
    requests = [
        make(
            f"{temperature}-{i}",
            prompt_of(i, 5 + 13 * i, vocab),
            temperature=temperature,
            seed=i,
            top_p=0.95,
            max_tokens=16 + i,
        )
        for i in range(8)
        for temperature in (0.0, 1.0)
    ]
    alone = {request.id: run(engine, request)[request.id][0] for request in requests}
    engine._scheduler.pages.drop_cached()
    crowd = run(engine, *requests)
    assert {name: tokens for name, (tokens, _) in crowd.items()} == alone
    assert len({tuple(tokens) for tokens in alone.values()}) > 8


def test_a_prefix_hit_changes_time_only(engine: Engine) -> None:
    engine._scheduler.pages.drop_cached()
    prompt = prompt_of(77, 100, engine.info.vocab_size)
    first, first_end = run(engine, make("a", prompt))["a"]
    second, second_end = run(engine, make("b", prompt))["b"]
    longer, longer_end = run(engine, make("c", [*prompt, *first[:20]], max_tokens=4))["c"]
    assert first_end.stats is not None
    assert second_end.stats is not None
    assert longer_end.stats is not None
    assert (first_end.stats.cached_tokens, second_end.stats.cached_tokens) == (0, 96)
    assert longer_end.stats.cached_tokens >= 112  # pages filled while decoding count as well
    assert second == first
    assert longer == first[20:24]


@pytest.mark.parametrize("temperature", [0.0, 1.2])
def test_a_stream_cut_anywhere_goes_on_with_the_same_tokens(engine: Engine, temperature: float) -> None:
    request = make(
        "whole",
        prompt_of(5, 40, engine.info.vocab_size),
        temperature=temperature,
        seed=123456789,
        max_tokens=40,
        presence_penalty=0.3,
        repetition_penalty=1.1,
    )
    whole = run(engine, request)["whole"][0]
    for cut in (0, 1, 7, 16, 23, 39):
        engine._scheduler.pages.drop_cached()
        resumed = replace(request, id=f"cut-{cut}", output=tuple(whole[:cut]))
        rest, end = run(engine, resumed)[resumed.id]
        assert whole[:cut] + rest == whole
        assert end.stats is not None
        assert end.stats.completion_tokens == 40


def test_aborts_at_any_time_free_every_page(engine: Engine) -> None:
    rng = random.Random(1)
    vocab = engine.info.vocab_size
    cancelled = set()
    for round_ in range(150):
        name = f"r{round_}"
        engine.add(make(name, prompt_of(round_, rng.randrange(1, 150), vocab), max_tokens=50))
        for _ in range(rng.choice([0, 0, 1, 2, 5])):
            engine.step()
        engine.cancel(name)
        engine.cancel(name)
        cancelled |= {chunk.request_id for chunk in engine.step() if chunk.finish == "cancelled"}
    assert cancelled == {f"r{i}" for i in range(150)}
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert not engine.has_work


def test_the_room_behind_the_last_token_is_told_while_it_is_held(engine: Engine) -> None:
    size = engine.info.page_tokens
    length = 64 + size + 1  # more than a step computes: what is promised to the prompt is no loss
    for name in ("a", "b"):
        engine.add(
            make(name, prompt_of(length + ord(name), length, engine.info.vocab_size), max_tokens=4, min_tokens=4)
        )
    engine.step()
    tokens = sum(len(one.tokens) for one in engine._scheduler.running)
    pages = sum(len(one.pages) for one in engine._scheduler.running)
    assert pages > 0
    assert engine.stats().pages_unfilled == pytest.approx(pages - tokens / size)
    while engine.has_work:
        engine.step()
        assert 0 <= engine.stats().pages_unfilled <= 2
    assert engine.stats().pages_unfilled == 0


def test_stop_tokens_lengths_and_min_tokens(engine: Engine) -> None:
    prompt = prompt_of(9, 12, engine.info.vocab_size)
    free = run(engine, make("free", prompt, max_tokens=12))["free"][0]
    stop = free[5]
    first = free.index(stop)
    tokens, end = run(engine, make("stop", prompt, stop_token_ids=(stop,)))["stop"]
    assert tokens == free[: first + 1]
    assert end.finish == "stop"
    tokens, end = run(engine, make("min", prompt, stop_token_ids=(stop,), min_tokens=first + 2, max_tokens=first + 4))[
        "min"
    ]
    assert stop not in tokens[: first + 2]
    assert run(engine, make("len", prompt, max_tokens=3))["len"][1].finish == "length"


def test_statistics_come_with_the_first_and_the_last_token(engine: Engine) -> None:
    engine.add(make("st", prompt_of(3, 30, engine.info.vocab_size), max_tokens=4))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    assert [chunk.stats is not None for chunk in chunks] == [True, False, False, True]
    assert chunks[0].stats is not None
    assert (chunks[0].stats.prompt_tokens, chunks[0].stats.completion_tokens) == (30, 1)


def test_log_probabilities_come_with_each_token(engine: Engine) -> None:
    engine.add(make("lp", prompt_of(2, 9, engine.info.vocab_size), max_tokens=3, top_logprobs=4))
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    assert len(chunks) == 3
    for chunk in chunks:
        assert chunk.logprobs is not None
        (logprobs,) = chunk.logprobs
        assert logprobs.token == chunk.tokens[0] == logprobs.top[0][0]
        assert len(logprobs.top) == 4
        assert logprobs.logprob == logprobs.top[0][1] <= 0.0


def test_what_cannot_run_is_refused_and_leaves_nothing(engine: Engine) -> None:
    vocab, context = engine.info.vocab_size, engine.info.max_context
    with pytest.raises(InvalidRequest, match=f"token id {vocab}"):
        engine.add(make("a", [1, vocab]))
    with pytest.raises(InvalidRequest, match="logit_bias"):
        engine.add(make("a", [1], logit_bias={99999999: 5.0}))
    with pytest.raises(ContextLengthExceeded, match=str(context)):
        engine.add(make("a", [1] * context, max_tokens=5))
    assert not engine.has_work


def test_a_deadline_ends_a_request_with_its_reason(engine: Engine) -> None:
    core = engine
    request = replace(make("late", [1, 2, 3], max_tokens=50), deadline_s=0.0)
    tokens, end = run(core, request)["late"]
    assert tokens == []
    assert (end.finish, end.error_code) == ("error", "deadline_exceeded")
    assert end.error_message is not None
    assert "0 tokens are made. Allow more time ('timeout'" in end.error_message


def test_a_cache_that_is_asked_for_and_too_small_is_a_mistake_in_the_configuration(tiny_model: ModelFiles) -> None:
    with pytest.raises(ConfigError, match=r"at least \d+ are needed; raise engine\.kv_memory_bytes"):
        build(config_of(tiny_model, kv_memory_bytes=100), lambda phase, done: None)
    with pytest.raises(OutOfMemory, match=r"free memory, raise engine\.memory_fraction"):
        build(config_of(tiny_model, kv_memory_bytes=None, memory_fraction=1e-6), lambda phase, done: None)


def test_a_broken_network_fails_the_request_not_the_engine(tiny_model: ModelFiles) -> None:
    core = build(config_of(tiny_model), lambda phase, done: None)
    network = core._runner._network
    original = network.logits
    network.logits = lambda hidden: original(hidden) * torch.nan  # type: ignore[method-assign]
    _, end = run(core, make("nan", [1, 2, 3]))["nan"]
    assert (end.finish, end.error_code) == ("error", "engine_error")
    network.logits = original  # type: ignore[method-assign]
    assert len(run(core, make("fine", [1, 2, 3]))["fine"][0]) == 24


def test_a_finished_engine_is_garbage(tiny_model: ModelFiles) -> None:
    core = build(config_of(tiny_model), lambda phase, done: None)
    run(core, make("a", [1, 2, 3]))
    assert core._live == {}
    core.close()
    gc.collect()
