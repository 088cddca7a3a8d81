"""Pages of one engine in another: proven by computing the last one again, or forgotten."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.handover import NOT_COMPARED, pages_of_order
from edgewise.engine.messages import PageAction, PageForm, PageOrder, PageReply
from edgewise.engine.prefix import PageHash, chain_start, extend_chain
from edgewise.engine.request import GenerateRequest, RequestStats, SamplingParams
from edgewise.models.files import ModelFiles

PAGE = 16
PROMPT = tuple((5 + 3 * position) % 200 for position in range(203))
PAGES = len(PROMPT) // PAGE


@pytest.fixture(params=["float32", "int8"])
def config(request: pytest.FixtureRequest, tiny_model: ModelFiles) -> EngineConfig:
    return EngineConfig(
        model=tiny_model,
        device="cpu",
        dtype="float32",
        kv_dtype=request.param,
        kv_memory_bytes=245760,
        max_step_tokens=64,
        threads=1,
        handover_bytes=2**20,
    )


def life(config: EngineConfig) -> Engine:
    return build(config, lambda phase, done: None)


def chain(salt: str) -> list[PageHash]:
    names: list[PageHash] = []
    extend_chain(names, chain_start(salt), PROMPT, PAGE, PAGES * PAGE)
    return names


def ask(core: Engine, prompt: tuple[int, ...], salt: str, tokens: int = 24) -> tuple[list[int], RequestStats]:
    sampling = SamplingParams(max_tokens=tokens, temperature=0.7, seed=5)
    core.add(GenerateRequest(id="one", prompt=prompt, sampling=sampling, salt=salt))
    answer: list[int] = []
    stats = None
    while core.has_work:
        for chunk in core.step():
            answer += chunk.tokens
            stats = chunk.stats or stats
    assert stats is not None
    return answer, stats


def order(
    core: Engine,
    action: PageAction,
    names: list[PageHash],
    lasting: list[PageHash] | None = None,
    contents: tuple[bytes, ...] = (),
    form: PageForm = "exact",
) -> PageReply:
    return core.pages(
        PageOrder(*(1, action, b"".join(names)), lasting=b"".join(lasting or ()), contents=contents, form=form)
    )


def hand_over(
    giver: Engine,
    taker: Engine,
    change: Callable[[list[bytes]], None] = lambda _: None,
    form: PageForm = "exact",
    lasting: str = "ours",
) -> int:
    contents = list(order(giver, "export", chain("ours"), form=form).contents)
    assert len(contents) == PAGES
    change(contents)
    names = chain("quarantine")
    assert order(taker, "import", names, contents=tuple(contents), form=form).count == PAGES
    _, proof = ask(taker, PROMPT[: PAGES * PAGE], "quarantine", tokens=1)
    assert proof.cached_tokens == proof.restored_tokens == (PAGES - 1) * PAGE
    return order(taker, "adopt", names, chain(lasting), form=form).count


def test_pages_of_another_engine_spare_the_prefill(config: EngineConfig) -> None:
    giver, taker = life(config), life(config)
    assert giver.info.kv_fingerprint == taker.info.kv_fingerprint
    expected, cold = ask(giver, PROMPT, "ours")
    assert order(giver, "held", chain("ours")).count == PAGES
    assert order(giver, "held", chain("theirs")).count == 0
    assert hand_over(giver, taker) == PAGES
    answer, warm = ask(taker, PROMPT, "ours")
    assert answer == expected
    assert (cold.cached_tokens, warm.cached_tokens) == (0, PAGES * PAGE)
    assert ask(taker, PROMPT, "quarantine")[1].cached_tokens == 0
    answer, other = ask(taker, PROMPT, "theirs")
    assert (answer, other.cached_tokens) == (expected, 0)


@pytest.mark.parametrize("page", [0, 5, PAGES - 1])
def test_a_page_that_is_not_what_this_engine_would_compute_is_forgotten(config: EngineConfig, page: int) -> None:
    giver, taker = life(config), life(config)
    expected, _ = ask(giver, PROMPT, "ours")
    free = taker.stats().pages_free

    def change(contents: list[bytes]) -> None:
        wrong = bytearray(contents[page])
        wrong[: len(wrong) // 4] = contents[(page + 1) % PAGES][: len(wrong) // 4]  # of the first layer
        contents[page] = bytes(wrong)

    assert hand_over(giver, taker, change) == 0
    assert taker.stats().pages_free == free
    assert taker.stats().host_pages == 0
    answer, stats = ask(taker, PROMPT, "ours")
    assert answer == expected
    assert stats.cached_tokens == 0


def test_rounded_pages_are_smaller_and_stay_apart_from_exact_ones(config: EngineConfig) -> None:
    giver, taker = life(config), life(config)
    expected, _ = ask(giver, PROMPT, "ours")
    (page,) = order(giver, "export", chain("ours")[:1], form="int4").contents
    assert len(page) == giver.info.kv_int4_page_bytes < giver.info.kv_page_bytes
    assert hand_over(giver, taker, form="int4", lasting="rounded") == PAGES
    answer, stats = ask(taker, PROMPT, "rounded")
    assert (len(answer), stats.cached_tokens) == (len(expected), PAGES * PAGE)
    answer, stats = ask(taker, PROMPT, "ours")
    assert (answer, stats.cached_tokens) == (expected, 0)


@pytest.mark.parametrize("form", ["exact", "int4"])
def test_pages_of_other_tokens_and_of_no_numbers_are_forgotten(config: EngineConfig, form: PageForm) -> None:
    giver = life(config)
    ask(giver, PROMPT, "ours")
    for change in (list.reverse, lambda pages: pages.__setitem__(-1, b"\xff" * len(pages[-1]))):
        taker = life(config)
        free = taker.stats().pages_free
        assert hand_over(giver, taker, change, form=form, lasting="rounded") == 0
        assert (taker.stats().pages_free, taker.stats().host_pages) == (free, 0)


def test_an_order_that_rounds_moves_fewer_pages() -> None:
    assert pages_of_order(200_000, "int4") == 2 < pages_of_order(200_000, "exact")
    assert pages_of_order(1 << 30, "int4") == 1


def test_what_cannot_be_taken_is_not(config: EngineConfig) -> None:
    closed = life(replace(config, handover_bytes=0))
    names = chain("quarantine")
    page = bytes(closed.info.kv_page_bytes)
    assert order(closed, "import", names[:1], contents=(page,)).count == 0
    small = life(replace(config, handover_bytes=3 * closed.info.kv_page_bytes))
    assert order(small, "import", names[:1], contents=(page[:-1],)).count == 0
    assert order(small, "import", names[:5], contents=(page,) * 5).count == 3
    assert order(small, "forget", names[:5]).count == 3
    assert order(small, "adopt", names[:5], names[5:10]).count == NOT_COMPARED
    assert life(replace(config, disk_cache_key="another template")).info.kv_fingerprint != closed.info.kv_fingerprint
