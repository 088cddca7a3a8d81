"""Steps queued ahead: the same answers, chunks and pages as without, whatever ends or comes in between.

The device is the CPU: `DecodeLoop` over the reference's functions computes a step when it is launched, and its tokens are read
when the engine asks for them, one step late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch

from edgewise.engine import build as module
from edgewise.engine.ahead import AheadRunner
from edgewise.engine.build import build_parts
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.networks import LoadedNetwork, load_network
from edgewise.engine.pacing import Pacer
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.step_cost import PromptLoad
from edgewise.kernels.paging import KVLayer
from edgewise.models.decoder.cuda.loop import DecodeLoop
from edgewise.models.decoder.cuda.plain import PlainStep
from edgewise.models.decoder.model import Decoder
from edgewise.models.files import ModelFiles
from tests.conftest import TinyModelFactory
from tests.engine.speculation.test_answers import Told

PAGE = 16

Step = Callable[[Decoder, Sequence[KVLayer]], PlainStep]


def config_of(files: ModelFiles, **changes: object) -> EngineConfig:
    base = EngineConfig(
        model=files,
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        kv_memory_bytes=2**22,
        max_step_tokens=64,
        max_running=8,
        threads=1,
        speculation="off",
        kernels="reference",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def plain_engine(config: EngineConfig) -> Engine:
    return build_parts(config, lambda phase, done: None).engine


def ahead_engine(config: EngineConfig, step: Step = PlainStep) -> Engine:
    """The same engine over a loop, as it is built for a network that has one."""

    class Looped(Decoder):
        def loop(self, kv: Sequence[KVLayer], *, max_rows: int, max_pages: int) -> DecodeLoop:
            return DecodeLoop(step(self, kv), torch.device("cpu"), max_rows=max_rows, max_pages=max_pages)

    def load(*args: Any, **options: Any) -> LoadedNetwork:
        decoder = load_network(*args, **options)
        decoder.__class__ = Looped
        return decoder

    with mock.patch.object(module, "load_network", load):
        core = plain_engine(config)
    assert isinstance(core._runner, AheadRunner)
    return core


@pytest.fixture(scope="module")
def plain(tiny_model: ModelFiles) -> Iterator[Engine]:
    core = plain_engine(config_of(tiny_model))
    yield core
    core.close()


@pytest.fixture
def ahead(tiny_model: ModelFiles) -> Iterator[Engine]:
    core = ahead_engine(config_of(tiny_model))
    yield core
    core.close()


def make(core: Engine, index: int, length: int, **sampling: object) -> GenerateRequest:
    rng = random.Random(index)
    prompt = tuple(rng.randrange(core.info.vocab_size) for _ in range(length))
    options: dict[str, object] = {"max_tokens": 24, "temperature": 0.0, "seed": index, **sampling}
    return GenerateRequest(id=f"r{index}", prompt=prompt, sampling=SamplingParams(**options))  # type: ignore[arg-type]


def drain(core: Engine, found: dict[str, list[int]], ends: dict[str, TokenChunk], steps: int = 10_000) -> None:
    """Take steps until nothing is left or `steps` are done; every chunk's offset must be where its request stands."""
    for _ in range(steps):
        if not core.has_work:
            return
        for chunk in core.step():
            tokens = found.setdefault(chunk.request_id, [])
            assert chunk.offset == len(tokens)
            assert chunk.request_id not in ends, "a chunk after the last one"
            tokens += chunk.tokens
            if chunk.finish is not None:
                ends[chunk.request_id] = chunk


def answers(core: Engine, *requests: GenerateRequest) -> dict[str, tuple[list[int], str | None]]:
    found: dict[str, list[int]] = {}
    ends: dict[str, TokenChunk] = {}
    for request in requests:
        core.add(request)
    drain(core, found, ends)
    return {name: (tokens, ends[name].finish) for name, tokens in found.items()}


def answers_from(core: Engine, request: GenerateRequest) -> list[int]:
    """What follows the tokens that a resumed request has."""
    core.add(request)
    rest: list[int] = []
    while core.has_work:
        for chunk in core.step():
            rest += chunk.tokens
    return rest


def whole(core: Engine) -> bool:
    """Whether every page is free or cached, and nothing is under way."""
    stats = core.stats()
    return stats.pages_free + stats.pages_cached == core.info.num_pages and stats.running == stats.waiting == 0


def test_a_step_is_begun_before_the_last_one_is_read(ahead: Engine) -> None:
    """With the first tokens of an answer, the step after them is under way."""
    ahead.add(make(ahead, 1, 10))
    assert [len(chunk.tokens) for chunk in ahead.step()] == [1]  # of the prompt
    assert ahead._flight is None
    assert [len(chunk.tokens) for chunk in ahead.step()] == [1]
    assert ahead._flight is not None
    while ahead.has_work:
        ahead.step()
    assert ahead._flight is None
    assert whole(ahead)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answers_are_those_of_steps_one_after_the_other(plain: Engine, ahead: Engine, temperature: float) -> None:
    requests = [make(plain, i, 3 + 17 * i, temperature=temperature, max_tokens=5 + 9 * i) for i in range(8)]
    expected = answers(plain, *requests)
    assert answers(ahead, *requests) == expected
    assert whole(ahead)
    ahead._scheduler.pages.drop_cached()
    assert answers(ahead, requests[3])["r3"] == expected["r3"]


def test_a_stop_token_found_late_leaves_no_trace(plain: Engine, ahead: Engine) -> None:
    """Whatever token of the answer is the stop token, also the one that fills a page."""
    free = answers(plain, make(plain, 1, 20, max_tokens=40))["r1"][0]
    for place in (1, *range(9, 15), *range(26, 30)):
        if free[place] in free[:place]:
            continue
        request = make(ahead, 1, 20, max_tokens=40, stop_token_ids=(free[place],))
        assert answers(ahead, request) == {"r1": (free[: place + 1], "stop")}
        assert whole(ahead)
        assert ahead.stats().pages_cached == 20 // PAGE, place
        ahead._scheduler.pages.drop_cached()


def test_a_conversation_that_goes_on_finds_right_pages(plain: Engine, ahead: Engine) -> None:
    first = make(ahead, 1, 20, max_tokens=60)
    told = answers(ahead, first)["r1"][0]
    again = replace(make(ahead, 2, 1), prompt=(*first.prompt, *told[:50], 3))
    assert answers(ahead, again) == answers(plain, again)


@pytest.fixture(scope="module")
def other_way(tiny_model_factory: TinyModelFactory) -> Step:
    """A step with other weights than the model's: on a card the loop rounds in another way than the pass over prompts."""
    other = build_parts(config_of(tiny_model_factory(seed=1)), lambda phase, done: None).loaded
    assert isinstance(other, Decoder)
    return lambda decoder, kv: PlainStep(other, kv)


@pytest.fixture
def apart(tiny_model: ModelFiles, other_way: Step) -> Iterator[Engine]:
    core = ahead_engine(config_of(tiny_model), other_way)
    yield core
    core.close()


def test_a_prompt_takes_no_pages_of_an_answer(apart: Engine) -> None:
    first = make(apart, 1, 20, max_tokens=60)
    told = answers(apart, first)["r1"][0]
    again = replace(make(apart, 2, 1), prompt=(*first.prompt, *told[:50], 3))
    found = answers(apart, again)
    assert apart.stats().cached_tokens == 20 // PAGE * PAGE
    apart._scheduler.pages.drop_cached()
    assert answers(apart, again) == found


def test_an_answer_takes_no_pages_of_a_prompt(apart: Engine) -> None:
    """One that is resumed, where somebody has asked a prompt with all that it has said."""
    first = make(apart, 1, 20, max_tokens=60)
    told = answers(apart, first)["r1"][0]
    answers(apart, replace(make(apart, 2, 1), prompt=(*first.prompt, *told[:50], 3)))
    assert answers_from(apart, replace(first, output=tuple(told[:50]))) == told[50:]


def test_preempted_answers_keep_their_own_pages(apart: Engine, tiny_model: ModelFiles, other_way: Step) -> None:
    """Parked or computed again, beside cached pages of the prompts."""
    requests = [make(apart, index, 40 + index, max_tokens=60) for index in range(6)]
    expected = answers(apart, *requests)
    page_bytes = apart._scheduler.pages.spill._mover.page_bytes  # type: ignore[union-attr]
    for spill_bytes in (0, 1 << 22):
        few = config_of(tiny_model, kv_memory_bytes=20 * page_bytes, spill_bytes=spill_bytes, max_context=200)
        core = ahead_engine(few, other_way)
        assert answers(core, *requests) == expected
        assert core.stats().preemptions > 0
        assert whole(core)
        core.close()


def test_what_the_device_cannot_draw_is_drawn_on_the_host(plain: Engine, ahead: Engine) -> None:
    requests = [
        make(plain, 0, 12, temperature=0.8, top_p=0.9),
        make(plain, 1, 12, temperature=0.8, top_k=5),
        make(plain, 2, 12, repetition_penalty=1.3),
        make(plain, 3, 12, presence_penalty=0.5, temperature=0.7),
        make(plain, 4, 12, logit_bias={5: 9.0}),
        make(plain, 5, 12, top_logprobs=2),
        make(plain, 6, 12, min_tokens=8, stop_token_ids=(1, 2, 3)),
        make(plain, 7, 12, temperature=0.8, min_p=0.1),
    ]
    assert answers(ahead, *requests) == answers(plain, *requests)


def test_requests_that_come_and_go_at_any_time(plain: Engine, ahead: Engine) -> None:
    rng = random.Random(5)
    found: dict[str, list[int]] = {}
    ends: dict[str, TokenChunk] = {}
    requests = [
        make(ahead, index, rng.randrange(1, 90), max_tokens=rng.randrange(1, 50), temperature=rng.choice([0.0, 1.0]))
        for index in range(24)
    ]
    for request in requests:
        ahead.add(request)
        drain(ahead, found, ends, steps=rng.choice([0, 1, 2, 7]))
        if rng.random() < 0.3:
            ahead.cancel(rng.choice(requests).id)
    drain(ahead, found, ends)
    assert set(ends) == {request.id for request in requests}
    assert whole(ahead)
    for request in requests:
        expected = answers(plain, request)[request.id][0]
        told = found[request.id]
        assert told == expected[: len(told)]
        assert len(told) == len(expected) or ends[request.id].finish == "cancelled"


def test_preempted_answers_are_the_same(tiny_model: ModelFiles, plain: Engine) -> None:
    """Too few pages: steps that would need one that is not there are not queued, and answers are computed again by the loop."""
    page_bytes = plain._scheduler.pages.spill._mover.page_bytes  # type: ignore[union-attr]
    core = ahead_engine(
        config_of(tiny_model, kv_memory_bytes=20 * page_bytes, spill_bytes=0, prefix_cache=False, max_context=200)
    )
    requests = [make(plain, index, 40 + index, max_tokens=60) for index in range(6)]
    assert answers(core, *requests) == answers(plain, *requests)
    assert core.stats().preemptions > 0
    assert whole(core)
    core.close()


def test_a_resumed_answer_is_computed_again_by_the_loop(plain: Engine, ahead: Engine) -> None:
    request = make(plain, 4, 30, temperature=1.0, max_tokens=40)
    told = answers(plain, request)["r4"][0]
    for cut in (1, 17, 39):
        ahead._scheduler.pages.drop_cached()
        assert told[:cut] + answers_from(ahead, replace(request, output=tuple(told[:cut]))) == told


def test_guesses_are_rows_of_one_step(tiny_model: ModelFiles, plain: Engine) -> None:
    """Answers that repeat themselves, so that guesses come true; the steps are then not queued."""
    core = ahead_engine(config_of(tiny_model, speculation="lookup"))
    bias = dict.fromkeys((5, 6, 7), 30.0)
    requests = [
        make(
            plain, index, 30 + index, max_tokens=40, temperature=0.7 * (index % 2), logit_bias=bias if index > 1 else {}
        )
        for index in range(4)
    ]
    requests.append(replace(make(plain, 9, 1, max_tokens=20), prompt=(5,)))
    assert answers(core, *requests) == answers(plain, *requests)
    assert core.stats().accepted_tokens > 0
    assert whole(core)
    core.close()


class OwnNumbers(PlainStep):
    """A device whose draws are not the host's; those of a card differ seldom, by the rounding of their sums."""

    def draw(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        places: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        super().draw(logits, temperature, min_p, seeds + 1, places, out)


def test_guesses_do_not_change_which_tokens_the_device_draws(tiny_model: ModelFiles) -> None:
    """The host draws the places that may not end the answer yet, and no others, wherever a run of guesses lies."""
    plain = ahead_engine(config_of(tiny_model), OwnNumbers)
    core = ahead_engine(config_of(tiny_model, speculation="lookup"), OwnNumbers)
    requests = [
        make(plain, index, 20 + index, temperature=1.0, min_tokens=8 + index, max_tokens=30, stop_token_ids=(1, 2))
        for index in range(4)
    ]
    expected = answers(plain, *requests)
    for seed in range(4):
        core._scheduler.speculator = Told({name: tokens for name, (tokens, _) in expected.items()}, seed)
        assert answers(core, *requests) == expected
    assert core.stats().accepted_tokens > 100
    plain.close()
    core.close()


def test_a_deadline_ends_a_queued_answer(ahead: Engine) -> None:
    clock = [0.0]
    ahead._now = ahead._scheduler._now = lambda: clock[0]
    ahead.add(replace(make(ahead, 1, 10, max_tokens=500), deadline_s=5.0))
    for _ in range(5):
        ahead.step()
    clock[0] = 6.0
    last = [chunk for _ in range(3) for chunk in ahead.step()][-1]
    assert (last.finish, last.error_code) == ("error", "deadline_exceeded")
    assert not ahead.has_work
    assert whole(ahead)


def test_time_without_requests_is_no_part_of_a_step(plain: Engine, ahead: Engine) -> None:
    """A stop token leaves a step that nobody waits for; its tokens are read when the next request comes, minutes later."""
    clock = [0.0]
    ahead._now = lambda: clock[0]
    seen: list[float] = []

    class Hearing(Pacer):
        def observe(self, *, decoding: int, load: PromptLoad, seconds: float) -> None:
            seen.append(seconds)

    ahead._pacer = Hearing(max_step_tokens=64)
    free = answers(plain, make(plain, 1, 20))["r1"][0]
    place = next(place for place in range(5, 24) if free[place] not in free[:place])
    answers(ahead, make(ahead, 1, 20, stop_token_ids=(free[place],)))
    assert ahead._flight is not None
    clock[0] = 600.0
    answers(ahead, make(ahead, 2, 20))
    assert seen
    assert max(seen) == 0.0


def test_nothing_is_queued_while_somebody_could_be_admitted(ahead: Engine) -> None:
    ahead.add(make(ahead, 1, 10, max_tokens=100))
    ahead.step()
    ahead.step()
    assert ahead._flight is not None
    ahead.add(make(ahead, 2, 10, max_tokens=100))
    ahead.step()  # reads what is under way and begins nothing
    assert ahead._flight is None
    heard: set[str] = set()
    while heard != {"r1", "r2"}:
        heard |= {chunk.request_id for chunk in ahead.step()}
    ahead.step()
    assert ahead._flight is not None
    assert len(ahead._flight.work) == 2


def test_broken_logits_end_one_answer(ahead: Engine) -> None:
    ahead.add(make(ahead, 1, 10, max_tokens=100))
    ahead.add(make(ahead, 2, 10, max_tokens=30))
    for _ in range(4):
        ahead.step()
    sick = next(s for s in ahead._scheduler.running if s.id == "r1")
    ahead._runner._kv[0].v[sick.pages[0]] = torch.nan
    ends = {c.request_id: c.finish for _ in range(40) for c in (ahead.step() if ahead.has_work else ()) if c.finish}
    assert ends == {"r1": "error", "r2": "length"}
    assert whole(ahead)
