"""The side-by-side measurement's own arithmetic and order, with sides whose times are known."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.bench.peer_sides import NotInstalled, ServerSide, Times, llamacpp_side, require
from tests.bench.peers import FIGURES, QUICK, Figure, make_prompts, measure, ratio, show, summarize
from tests.fakes.openai_server import OpenAIServer, Script, openai_server

DECODE = Figure("decode", "decode", 1, 8, 11)
TOGETHER = Figure("together", "decode", 4, 8, 10)
PREFILL = Figure("prefill", "prefill", 1, 100, 2)
FIRST = Figure("first", "first", 1, 8, 2)


class KnownSide:
    """Takes a second for each prompt token and each answer token, times `slowness`; notes its turn in `order`."""

    version = "1"

    def __init__(self, name: str, slowness: float, order: list[str]) -> None:
        self.name = name
        self._slowness = slowness
        self._order = order

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Times:
        self._order.append(self.name)
        first = len(prompts[0]) * self._slowness
        return Times(first_s=first, total_s=first + (tokens - 1) * self._slowness, tokens=tokens)


def tokenize(text: str) -> list[int]:
    return [len(word) for word in text.split()]


@pytest.mark.parametrize(("figure", "value"), [(DECODE, 0.5), (TOGETHER, 40 / 34), (PREFILL, 0.5), (FIRST, 16.0)])
def test_figures_are_what_they_are_called(figure: Figure, value: float) -> None:
    prompts = make_prompts(figure, random.Random(0), tokenize)
    assert [len(prompt) for prompt in prompts] == [figure.prompt] * figure.streams
    assert figure.value(KnownSide("x", 2.0, []), prompts) == pytest.approx(value)


def test_rounds_are_interleaved_and_the_order_turns() -> None:
    order: list[str] = []
    sides = [KnownSide("edgewise", 1.0, order), KnownSide("peer", 3.0, order)]
    found = measure(sides, [DECODE, FIRST], 2, tokenize, lambda _: None)
    assert order[:2] == ["edgewise", "peer"], "the warm-up"
    assert order[2:] == ["edgewise", "peer"] * 2 + ["peer", "edgewise"] * 2
    (decode, first) = summarize([DECODE, FIRST], found)
    assert decode["values"]["peer"] == {"median": 0.3333, "low": 0.3333, "high": 0.3333}
    assert decode["edgewise_to"]["peer"]["median"] == first["edgewise_to"]["peer"]["median"] == 3.0


def test_a_ratio_above_one_means_that_edgewise_is_faster() -> None:
    assert ratio(FIRST, ours=1.0, theirs=2.0) == 2.0
    assert ratio(DECODE, ours=2.0, theirs=1.0) == 2.0


def test_ratios_are_taken_within_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"decode": {"edgewise": [10.0, 1.0, 100.0], "peer": [5.0, 0.5, 50.0]}}
    rows = summarize([DECODE], found)
    assert rows[0]["edgewise_to"]["peer"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    show({"sides": {"edgewise": "", "peer": ""}, "figures": rows})
    assert "10 [1-100]" in capsys.readouterr().out


def test_the_figures_are_those_that_are_promised() -> None:
    names = " ".join(figure.name for figure in FIGURES)
    for promised in ("first token", "one stream", "8 streams", "512", "2048"):
        assert promised in names
    assert [figure.kind for figure in QUICK] == ["first", "decode", "decode", "prefill"]


def test_a_missing_peer_is_named() -> None:
    with pytest.raises(NotInstalled, match="no_such_peer is not installed"):
        require("no_such_peer", sys.executable)
    with (
        pytest.raises(NotInstalled, match=r"pip install xllamacpp.*--llamacpp-python"),
        llamacpp_side(Path("x.gguf"), 1, 1, 64, "/bin/false"),
    ):
        pass


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with openai_server() as running:
        yield running


def test_a_server_must_have_done_the_whole_work(server: OpenAIServer) -> None:
    side = ServerSide("stand-in", "1", server.url, "m")
    times = side.generate([[5] * 24, [6] * 24], 6)  # the stand-in says 24 tokens of any prompt, 6 of any answer
    assert 0 < times.first_s <= times.total_s
    assert sorted(body["prompt"][0] for body in server.bodies) == [5, 6]
    with pytest.raises(RuntimeError, match="instead of no error, 25 and 6 tokens"):
        side.generate([[5] * 25], 6)
    server.default = Script(status=503, code="busy")
    with pytest.raises(RuntimeError, match="503 busy"):
        side.generate([[5] * 24], 6)
