"""The engine core on a tiny LLaVA: answers over pictures do not depend on load, chunks, caches or where they were cut."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from edgewise.core.errors import EngineUnavailable, InvalidRequest, OutOfMemory, QueueFull
from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.messages import PageAction, PageOrder, PageReply
from edgewise.engine.numerics import cpu_family
from edgewise.engine.prefix import PageHash, chain_start, extend_chain
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.scheduler import StepPlan
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import Fitted, Layout
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.protocol import Slices, finished
from tests.models.multimodal.engine_logits import interleaved
from tests.models.multimodal.small import picture
from tests.models.multimodal.tiny_llava import IMAGE, tiny_llava
from tests.models.whisper.small import folder, small_whisper

Part = list[int] | Fitted


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return tiny_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def layout(files: ModelFiles) -> Layout:
    found = read_layout(files)
    assert found is not None
    return found


def config_of(files: ModelFiles, **changes: Any) -> EngineConfig:
    base = EngineConfig(
        model=files,
        device="cpu",
        dtype="float32",
        kv_dtype="float32",
        kv_memory_bytes=1 << 22,
        max_step_tokens=64,
        threads=1,
        encoder_cache_bytes=1 << 20,
        media_bytes=1 << 20,
    )
    return replace(base, **changes)


@pytest.fixture
def engine(files: ModelFiles) -> Iterator[Engine]:
    core = build(config_of(files), lambda phase, done: None)
    yield core
    core.close()


def ask(name: str, parts: Sequence[Part], **options: Any) -> GenerateRequest:
    tokens, media = interleaved(parts, options.pop("placeholder", IMAGE))
    sampling = SamplingParams(max_tokens=options.pop("max_tokens", 12), temperature=0.0)
    return GenerateRequest(id=name, prompt=tuple(tokens), sampling=sampling, media=media, **options)


def run(core: Engine, *requests: GenerateRequest) -> dict[str, tuple[list[int], TokenChunk]]:
    for request in requests:
        core.add(request)
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    last: dict[str, TokenChunk] = {}
    for _ in range(10_000):
        if not core.has_work:
            return {name: (tokens, last[name]) for name, tokens in answers.items()}
        for chunk in core.step():
            answers[chunk.request_id] += chunk.tokens
            if chunk.finish:
                last[chunk.request_id] = chunk
    raise AssertionError("the engine never became idle")


def shown(layout: Layout, seed: int) -> Fitted:
    return layout.picture(picture(60, 40, seed=seed), "picture")


def cached(end: TokenChunk) -> int:
    assert end.stats is not None
    return end.stats.cached_tokens


def test_the_same_picture_again_hits_both_caches_and_another_does_not(engine: Engine, layout: Layout) -> None:
    before, after = list(range(20)), list(range(30, 50))
    first, end = run(engine, ask("a", [before, shown(layout, 1), after]))["a"]
    assert cached(end) == 0
    again, end = run(engine, ask("b", [before, shown(layout, 1), after]))["b"]
    assert again == first
    assert cached(end) >= 48
    assert engine.stats().encoder_cache_misses == 1
    other, end = run(engine, ask("c", [before, shown(layout, 2), after]))["c"]
    assert other != first
    assert cached(end) == 16  # the page before the picture's first
    moved, end = run(engine, ask("d", [after, shown(layout, 1), before]))["d"]
    assert moved != first
    assert cached(end) == 0
    stats = engine.stats()
    assert (stats.encoder_cache_misses, stats.encoder_cache_hits, stats.encoder_cache_items) == (2, 1, 2)


def test_the_account_says_what_the_encoder_took_and_what_it_did_not_have_to_do_again(
    engine: Engine, layout: Layout
) -> None:
    parts: list[Part] = [list(range(20)), shown(layout, 1), shown(layout, 2), [5]]
    _, end = run(engine, ask("a", parts))["a"]
    assert end.stats is not None
    (use,) = end.stats.encoders
    assert (use.unit, use.media) == ("image", 2)
    assert use.rung
    assert 0 < use.seconds < end.stats.device_s
    assert engine.stats().encoder_seconds == pytest.approx(use.seconds)
    _, again = run(engine, ask("b", parts))["b"]
    assert again.stats is not None
    assert again.stats.encoders == ()
    assert again.stats.device_s > 0


def test_the_numeric_class_names_what_the_encoder_depends_on(engine: Engine) -> None:
    """Also beside native kernels: rows of pictures are torch's."""
    assert f"-{cpu_family()}-t1/" in engine.info.numeric_class


def test_tenants_share_nothing(engine: Engine, layout: Layout) -> None:
    parts: list[Part] = [list(range(20)), shown(layout, 1), [5]]
    one, _ = run(engine, ask("a", parts, salt="x"))["a"]
    other, end = run(engine, ask("b", parts, salt="y"))["b"]
    assert one == other
    assert cached(end) == 0
    assert engine.stats().encoder_cache_misses == 2


def test_answers_alone_in_a_crowd_and_cut_anywhere_are_the_same(files: ModelFiles, layout: Layout) -> None:
    requests = [ask("text", [list(range(50))])]
    for seed in range(5):
        parts: list[Part] = [list(range(3 * seed, 40)), shown(layout, seed), [seed], shown(layout, seed + 3), [9, 8]]
        requests.append(ask(f"r{seed}", parts))
    core = build(config_of(files, prefix_cache=False), lambda phase, done: None)
    try:
        alone = {request.id: run(core, request)[request.id][0] for request in requests}
        together = run(core, *requests)
        assert {name: tokens for name, (tokens, _) in together.items()} == alone
        for cut in (1, 5, 11):
            resumed = [replace(one, id=f"{one.id}-{cut}", output=tuple(alone[one.id][:cut])) for one in requests]
            rest = run(core, *resumed)
            assert {name.split("-")[0]: alone[name.split("-")[0]][:cut] + rest[name][0] for name in rest} == alone
    finally:
        core.close()
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)


def test_what_is_evicted_is_encoded_again(files: ModelFiles, layout: Layout) -> None:
    """A cache that holds the rows of one picture, for prompts that have two each."""
    rows = shown(layout, 0).media[0].count * 64 * 4
    core = build(config_of(files, encoder_cache_bytes=rows, prefix_cache=False), lambda phase, done: None)
    roomy = build(config_of(files, prefix_cache=False), lambda phase, done: None)
    try:
        requests = [ask(f"r{seed}", [[seed], shown(layout, seed), [1], shown(layout, seed + 1)]) for seed in range(4)]
        tight = run(core, *requests)
        assert {name: tokens for name, (tokens, _) in tight.items()} == {
            name: tokens for name, (tokens, _) in run(roomy, *requests).items()
        }
        stats = core.stats()
        assert stats.encoder_cache_evictions > 0
        assert stats.encoder_cache_bytes <= stats.encoder_cache_limit_bytes == rows
        assert core.memory().booked["encoder_cache"] == rows
    finally:
        core.close()
        roomy.close()


def test_running_streams_go_on_beside_pictures(engine: Engine, layout: Layout) -> None:
    """A token in every step, while six pictures are encoded and their prompts computed; or as many as until the stream ends,
    where its steps are far shorter than the encoder's."""
    engine.add(ask("stream", [[1, 2, 3]], max_tokens=400))
    for _ in range(30):
        engine.step()
    for seed in range(6):
        engine.add(ask(f"p{seed}", [[seed], shown(layout, seed), [4]], max_tokens=2))
    finish = None
    while engine.stats().encoder_cache_misses < 6 and finish is None:
        chunks = [chunk for chunk in engine.step() if chunk.request_id == "stream"]
        assert chunks, "the stream waited"
        finish = chunks[-1].finish
    assert engine.stats().encoder_cache_misses > 0
    while engine.has_work:
        engine.step()


def test_cancels_at_any_time_free_every_page(engine: Engine, layout: Layout) -> None:
    for round_ in range(20):
        name = f"r{round_}"
        engine.add(ask(name, [list(range(round_)), shown(layout, round_ % 3), [7] * round_, shown(layout, 4)]))
        for _ in range(round_ % 5):
            engine.step()
        engine.cancel(name)
        engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert not engine.has_work


class Encoder:
    """In parts; what it makes of a medium is a row too few, or nothing ever."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends
        self.closed = 0

    def encode(self, items: Sequence[Media]) -> list[torch.Tensor]:
        return [finished(self.slices(item)) for item in items]

    def slices(self, item: Media) -> Slices:
        try:
            yield
            while not self.ends:
                time.sleep(0.3)
                yield
            return torch.zeros(item.count - 1, 64)
        finally:
            self.closed += 1


def test_what_an_encoder_refuses_ends_those_who_need_it_and_nobody_else(engine: Engine, layout: Layout) -> None:
    assert engine._senses is not None
    engine._senses._encoder = Encoder(ends=True)
    seen = [ask(name, [[1], shown(layout, 1), [2]]) for name in ("a", "b")]
    ended = run(engine, *seen, ask("text", [[3, 4]]))
    assert {name: end.finish for name, (_, end) in ended.items()} == {"a": "error", "b": "error", "text": "length"}
    assert "15 rows" in str(ended["a"][1].error_message)
    stats = engine.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total


class Refusing:
    """Says of every medium what a form of an encoder says that has failed."""

    def encode(self, items: Sequence[Media]) -> list[torch.Tensor]:
        raise EngineUnavailable("The form of the encoder failed: ask again.")


def test_rows_that_are_gone_and_cannot_be_made_again_end_their_request_alone(
    engine: Engine, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is scarce between plan and step, and the encoder fails just then."""
    senses, schedule = engine._senses, engine._scheduler.schedule
    assert senses is not None
    text = ask("text", [[3, 4]])
    alone, _ = run(engine, text)["text"]

    def scarce() -> StepPlan:
        plan = schedule()
        if any(item.sequence.spans.within(item.start, item.start + item.count) for item in plan.work):
            senses.cache.shrink(1 << 30)
            monkeypatch.setattr(senses, "_encoder", Refusing())
        return plan

    monkeypatch.setattr(engine._scheduler, "schedule", scarce)
    seen = [ask(name, [list(range(20)), shown(layout, 1), [seed]]) for seed, name in enumerate(("a", "b"))]
    ended = run(engine, replace(text, id="beside"), *seen)
    assert ended["beside"][0] == alone
    assert {ended[name][1].error_code for name in ("a", "b")} == {"engine_unavailable"}
    monkeypatch.undo()
    assert run(engine, replace(seen[0], id="again"))["again"][1].finish == "length"
    stats = engine.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total


def test_who_has_seen_a_medium_goes_on_when_its_encoder_refuses_it(engine: Engine, layout: Layout) -> None:
    senses = engine._senses
    assert senses is not None
    request = ask("a", [[1], shown(layout, 1), [2]], max_tokens=200)
    whole, _ = run(engine, request)["a"]
    engine.add(replace(request, id="b"))
    tokens = [token for _ in range(4) for chunk in engine.step() for token in chunk.tokens]
    assert 0 < len(tokens) < len(whole)
    senses.cache.clear()
    senses._encoder = Refusing()
    engine.add(ask("c", [[9], shown(layout, 1), [3]]))
    ends = {}
    while engine.has_work:
        for chunk in engine.step():
            tokens += chunk.tokens
            ends[chunk.request_id] = chunk.finish
    assert (tokens, ends) == (whole, {"b": "length", "c": "error"})


def test_a_cancelled_prompt_leaves_nothing_of_its_encoder(engine: Engine, layout: Layout) -> None:
    assert engine._senses is not None
    encoder = engine._senses._encoder = Encoder(ends=False)
    engine.add(ask("a", [[1], shown(layout, 1), [2]]))
    for _ in range(3):
        engine.step()
    assert engine._senses.unfinished is not None
    engine.cancel("a")
    gc.collect()
    assert engine._senses.unfinished is None
    assert encoder.closed == 1


def test_preempted_prompts_with_pictures_go_on(files: ModelFiles, layout: Layout) -> None:
    requests = [
        ask(f"r{seed}", [list(range(seed, 30)), shown(layout, seed), [5] * 20], max_tokens=60) for seed in range(4)
    ]
    page = 2 * 3 * 2 * 16 * 16 * 4  # keys and values, layers, heads, head size, tokens, bytes
    small = build(config_of(files, kv_memory_bytes=18 * page, max_context=256), lambda phase, done: None)
    roomy = build(config_of(files), lambda phase, done: None)
    try:
        squeezed = run(small, *requests)
        assert small.stats().preemptions > 0
        free = run(roomy, *requests)
        assert {name: tokens for name, (tokens, _) in squeezed.items()} == {
            name: tokens for name, (tokens, _) in free.items()
        }
    finally:
        small.close()
        roomy.close()


def test_memory_pressure_takes_what_is_encoded_and_nothing_else(engine: Engine, layout: Layout) -> None:
    request = ask("a", [[1], shown(layout, 1), [2]])
    first, _ = run(engine, request)["a"]
    senses = engine._senses
    assert senses is not None
    senses.cache.shrink(1 << 30)
    assert engine.stats().encoder_cache_bytes == 0
    engine._scheduler.pages.drop_cached()
    assert run(engine, replace(request, id="b"))["b"][0] == first
    engine.clear_cache("device")
    assert engine.stats().encoder_cache_items == 0


def test_pages_with_a_picture_are_handed_over_under_names_that_tell_it(files: ModelFiles, layout: Layout) -> None:
    """As `serving.peers.take` does it: names of a quarantine, a proof that is a prompt of its own, names of the request."""
    giver, taker = (build(config_of(files, handover_bytes=1 << 22), lambda phase, done: None) for _ in range(2))
    request = ask("a", [list(range(40)), shown(layout, 1), list(range(50, 80))])
    pages = (len(request.prompt) - 1) // 16

    def names(salt: str, one: GenerateRequest = request) -> bytes:
        chain: list[PageHash] = []
        extend_chain(chain, chain_start(salt), one.prompt, 16, pages * 16, one.media)
        return b"".join(chain)

    def order(core: Engine, action: PageAction, called: bytes, **fields: Any) -> PageReply:
        return core.pages(PageOrder(id=1, action=action, names=called, **fields))

    try:
        expected, _ = run(giver, request)["a"]
        exported = order(giver, "export", names(""))
        assert exported.count == pages
        assert order(taker, "import", names("hidden"), contents=exported.contents).count == pages
        proof = replace(request, id="proof", prompt=request.prompt[: pages * 16], salt="hidden")
        run(taker, replace(proof, sampling=SamplingParams(max_tokens=1)))
        assert order(taker, "adopt", names("hidden"), lasting=names("")).count == pages
        other = ask("other", [list(range(40)), shown(layout, 2), list(range(50, 80))])
        assert order(taker, "held", names("", other)).count == 2
        answer, end = run(taker, replace(request, id="b"))["b"]
        assert answer == expected
        assert cached(end) == pages * 16
        assert taker.stats().encoder_cache_misses == 0  # nothing of the picture was computed here
    finally:
        giver.close()
        taker.close()


def test_media_that_cannot_be_taken_are_refused_by_name(files: ModelFiles, engine: Engine, layout: Layout) -> None:
    good = ask("good", [[1], shown(layout, 1), [2]])
    (medium,) = good.media

    def refused(match: str, **changes: Any) -> None:
        with pytest.raises(InvalidRequest, match=match):
            engine.add(replace(good, media=(replace(medium, **changes),)))
        assert not engine.has_work

    refused("takes image", kind="audio")
    refused("outside the prompt", start=10)
    refused("outside the prompt", start=-1)
    refused("32 are expected", digest=b"x")
    refused("its shape says", shape=(1, 2, 3))
    refused("its shape says", content=medium.content[:-1])
    refused("grid of another size", grid=(1, 2, 3))
    refused("negative seconds", second=-1.0)
    with pytest.raises(InvalidRequest, match="over another"):
        engine.add(replace(good, media=(medium, medium)))
    small = build(config_of(files, encoder_cache_bytes=64, media_bytes=4000), lambda phase, done: None)
    with pytest.raises(InvalidRequest, match=r"engine\.encoder_cache_bytes"):
        small.add(good)
    small.close()
    busy = build(config_of(files, media_bytes=2 * len(medium.content) - 1), lambda phase, done: None)
    busy.add(replace(good, id="first"))
    with pytest.raises(QueueFull, match=r"engine\.media_bytes"):
        busy.add(replace(good, id="second"))
    with pytest.raises(InvalidRequest, match=r"engine\.media_bytes"):
        busy.add(replace(ask("two", [shown(layout, 1), shown(layout, 2), [1]]), id="third"))
    busy.cancel("first")
    busy.step()
    assert run(busy, good)["good"][0]
    busy.close()


def test_a_model_without_eyes_says_so(tiny_model: ModelFiles, layout: Layout) -> None:
    core = build(config_of(tiny_model), lambda phase, done: None)
    assert core.info.media == ()
    with pytest.raises(InvalidRequest, match="takes text alone"):
        core.add(ask("a", [[1], shown(layout, 1)]))
    assert "encoder_cache" not in core.memory().booked
    core.close()


def test_memory_for_the_tower_is_asked_for_before_it_is_loaded(files: ModelFiles) -> None:
    core = build(config_of(files), lambda phase, done: None)
    booked = core.memory().booked
    core.close()
    needed = sum(booked[name] for name in ("weights", "workspace", "encoder_cache", "kv_cache"))
    stages: list[str] = []
    with pytest.raises(OutOfMemory, match="does not fit"):
        build(
            config_of(files, memory_budget_bytes=int((needed - booked["encoder_cache"]) / 0.8)),
            lambda phase, done: stages.append(phase),
        )
    assert set(stages) == {"fit"}


def test_a_prompt_without_the_recording_that_its_model_needs_is_refused(tmp_path: Path) -> None:
    """Whisper's: one recording of 64 places at the beginning, and nothing else."""
    core = build(config_of(folder(small_whisper(), tmp_path)), lambda phase, done: None)
    samples = bytes(4 * 16_000)

    def heard(start: int, count: int) -> Media:
        digest = hashlib.sha256(samples).digest()
        return Media(kind="audio", start=start, count=count, digest=digest, content=samples, shape=(16_000,))

    wrong: list[tuple[Media, ...]] = [(), (heard(1, 64),), (heard(0, 63),), (heard(0, 64), heard(64, 1))]
    for media in (*wrong, (heard(0, 64),)):
        request = GenerateRequest(
            id="a", prompt=(0,) * 64 + (1, 2), sampling=SamplingParams(max_tokens=3, temperature=0.0), media=media
        )
        if media in wrong:
            with pytest.raises(
                InvalidRequest, match=r"begin with one recording of 64 tokens.*/v1/audio/transcriptions"
            ):
                core.add(request)
            assert not core.has_work
        else:
            assert len(run(core, request)["a"][0]) == 3
    core.close()
