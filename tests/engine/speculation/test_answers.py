"""Answers with guesses are those without, to the bit: whatever is asked, whatever is guessed, whatever else happens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pytest

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk, TokenLogprobs
from edgewise.engine.sequence import Sequence
from edgewise.models.files import ModelFiles
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.pipeline.structured.vocabulary import vocabulary_of
from tests.engine.test_constraint import grammar

MEMORY = 1 << 20


class Told:
    """Guesses what the answers without guesses were, and errs after so many tokens, a different number each time."""

    resting = False

    def __init__(self, answers: dict[str, list[int]], seed: int) -> None:
        self.answers = answers
        self.random = random.Random(seed)

    def propose(self, sequences: Seq[Sequence], rooms: Seq[int], most: int) -> list[tuple[int, ...]]:
        return [self._guess(one, room, most // len(sequences)) for one, room in zip(sequences, rooms, strict=True)]

    def _guess(self, sequence: Sequence, room: int, most: int) -> tuple[int, ...]:
        known = self.answers[sequence.id.partition("/")[0]]
        guess = [*known[sequence.generated :], 3, 5, 3][: min(room, most, self.random.randrange(10))]
        for place in range(len(guess)):
            if self.random.random() < 0.1:
                guess[place] = (guess[place] + 1) % 100
        return tuple(guess)

    def passed(self) -> None: ...


def engine_of(files: ModelFiles, **changes: Any) -> Engine:
    config = EngineConfig(
        model=files,
        device="cpu",
        dtype="float32",
        kv_dtype="int8",
        kv_memory_bytes=MEMORY,
        max_step_tokens=64,
        threads=1,
    )
    return build(replace(config, **changes), lambda phase, done: None)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: ModelFiles) -> Tokenizer:
    return load_tokenizer(tiny_model)


@pytest.fixture(scope="module")
def plain(tiny_model: ModelFiles, tokenizer: Tokenizer) -> Iterator[Engine]:
    core = engine_of(tiny_model, speculation="off", vocabulary=vocabulary_of(tokenizer))
    yield core
    core.close()


@pytest.fixture(scope="module")
def guessing(tiny_model: ModelFiles, tokenizer: Tokenizer) -> Iterator[Engine]:
    core = engine_of(tiny_model, speculation="lookup", vocabulary=vocabulary_of(tokenizer))
    yield core
    core.close()


def ask(name: str, seed: int, vocab: int, **sampling: Any) -> GenerateRequest:
    chance = random.Random(seed)
    options: dict[str, Any] = {"max_tokens": 24, "seed": seed, **sampling}
    prompt = tuple(chance.randrange(vocab) for _ in range(chance.randrange(1, 40)))
    return GenerateRequest(id=name, prompt=prompt, sampling=SamplingParams(**options))


class Heard:
    """All that was delivered of an answer."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.end: TokenChunk | None = None
        self.most = 0

    def hear(self, chunk: TokenChunk, resumed: int) -> None:
        assert self.end is None
        assert chunk.offset == resumed + len(self.tokens)
        self.tokens += chunk.tokens
        self.logprobs += chunk.logprobs or ()
        self.most = max(self.most, len(chunk.tokens))
        self.end = chunk if chunk.finish else None

    @property
    def told(self) -> tuple[object, ...]:
        assert self.end is not None
        return self.tokens, self.logprobs, self.end.finish, self.end.error_code


def run(core: Engine, requests: Seq[GenerateRequest]) -> dict[str, Heard]:
    heard = {request.id: Heard() for request in requests}
    resumed = {request.id: len(request.output) for request in requests}
    for request in requests:
        core.add(request)
    while core.has_work:
        for chunk in core.step():
            heard[chunk.request_id].hear(chunk, resumed[chunk.request_id])
    stats = core.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    return heard


def varied(vocab: int) -> list[GenerateRequest]:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
        {"temperature": 1.0, "presence_penalty": 0.7, "frequency_penalty": 0.4},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.7, "top_logprobs": 3},
        {"temperature": 0.0, "min_tokens": 9, "stop_token_ids": tuple(range(0, vocab, 3))},
        {"temperature": 1.0, "logit_bias": {5: 4.0, 6: 4.0}, "stop_token_ids": (5,)},
    ]
    return [ask(str(number), number, vocab, **kind) for number, kind in enumerate(kinds)]


def test_every_way_to_draw_gives_the_same_answer(plain: Engine, guessing: Engine, tokenizer: Tokenizer) -> None:
    requests = varied(plain.info.vocab_size)
    held = ask("g", 70, 200, temperature=0.9, max_tokens=64, stop_token_ids=tuple(sorted(tokenizer.eos_ids)))
    requests.append(replace(held, constraint=grammar("/[a-e]{9,30}(xyz)*/")))
    expected = run(plain, requests)
    assert {len(one.tokens) for one in expected.values()} != {24}
    answers = {name: one.tokens for name, one in expected.items()}
    for seed in range(4):
        guessing._scheduler.speculator = Told(answers, seed)
        got = run(guessing, requests)
        assert {name: one.told for name, one in got.items()} == {name: one.told for name, one in expected.items()}
        assert max(one.most for one in got.values()) > 3
        stats = got["g"].end.stats  # type: ignore[union-attr]
        assert stats is not None
        assert 0 < stats.accepted_tokens < stats.proposed_tokens
    total = guessing.stats()
    assert 0 < total.accepted_tokens < total.proposed_tokens


def test_wrong_guesses_leave_nothing_behind_in_the_prefix_cache(plain: Engine, guessing: Engine) -> None:
    first = ask("a", 9, 200, temperature=0.0, max_tokens=40)
    whole = run(plain, [first])["a"].tokens
    guessing._scheduler.speculator = Told({"a": whole, "b": whole[20:]}, 5)
    run(guessing, [first])
    again = replace(first, id="b", prompt=(*first.prompt, *whole[:20]))
    heard = run(guessing, [replace(again, sampling=replace(again.sampling, max_tokens=20))])["b"]
    assert heard.tokens == whole[20:40]
    assert heard.end is not None
    assert heard.end.stats is not None
    assert heard.end.stats.cached_tokens > len(first.prompt)


@pytest.mark.parametrize("cut", [1, 13, 23])
def test_an_answer_goes_on_elsewhere_with_the_same_tokens(plain: Engine, guessing: Engine, cut: int) -> None:
    request = ask("a", 4, plain.info.vocab_size, temperature=1.0)
    whole = run(plain, [request])["a"].tokens
    guessing._scheduler.speculator = Told({"a": whole}, cut)
    rest = run(guessing, [replace(request, output=tuple(whole[:cut]))])["a"].tokens
    assert whole[:cut] + rest == whole


def test_answers_survive_preemption(tiny_model: ModelFiles, plain: Engine) -> None:
    requests = [ask(str(i), 100 + i, 200, temperature=1.0, max_tokens=60, min_tokens=60) for i in range(6)]
    expected = run(plain, requests)
    page = MEMORY // plain.stats().pages_total
    small = engine_of(tiny_model, speculation="lookup", kv_memory_bytes=18 * page, max_context=128)
    small._scheduler.speculator = Told({name: one.tokens for name, one in expected.items()}, 1)
    got = run(small, requests)
    assert {name: one.tokens for name, one in got.items()} == {name: one.tokens for name, one in expected.items()}
    assert small.stats().preemptions > 0
    assert small.stats().accepted_tokens > 0
    small.close()


def test_lookup_finds_what_repeats_and_is_counted(plain: Engine, tiny_model: ModelFiles) -> None:
    core = engine_of(tiny_model, speculation="lookup")
    request = ask("loop", 3, 200, temperature=0.0, max_tokens=120, logit_bias={5: 100.0, 6: 99.9})
    expected, got = run(plain, [request])["loop"], run(core, [request])["loop"]
    assert got.tokens == expected.tokens
    stats = core.stats()
    assert stats.generated_tokens == len(got.tokens)
    assert stats.accepted_tokens > 40
    assert stats.steps < len(expected.tokens) - 30
    core.close()


def test_a_cancelled_answer_leaves_no_page(guessing: Engine) -> None:
    guessing._scheduler.speculator = Told({"a": [1] * 99}, 3)
    for steps in range(6):
        guessing.add(ask("a", steps, 200, max_tokens=90))
        for _ in range(steps):
            guessing.step()
        guessing.cancel("a")
        guessing.step()
        stats = guessing.stats()
        assert stats.pages_free + stats.pages_cached == stats.pages_total
