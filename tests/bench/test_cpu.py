"""The arithmetic and the order of the side-by-side measurement, with sides whose times are known; its child on a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from edgewise.kernels.limits import PAGE_TOKENS
from edgewise.models.tiny import GGUF_NAME, make_tiny_model
from tests.bench.cpu import FIGURES, Figure, measure, summarize
from tests.bench.cpu_files import _random
from tests.bench.cpu_shown import markdown, plain, rows_of
from tests.bench.cpu_sides import Spans, missing, peak_mib
from tests.bench.peer_sides import ROOT


class KnownSide:
    """A token takes `slowness` seconds, of a prompt as of an answer; a prompt that was seen takes none."""

    def __init__(self, name: str, bits: int, slowness: float, order: list[str]) -> None:
        self.name = name
        self.bits = bits
        self._slowness = slowness
        self._order = order
        self._seen: set[tuple[int, ...]] = set()

    def generate(self, prompts: Sequence[list[int]], tokens: int) -> Spans:
        self._order.append(self.name)
        spans = []
        for prompt in prompts:
            first = 0.0 if tuple(prompt) in self._seen else len(prompt) * self._slowness
            self._seen.add(tuple(prompt))
            spans.append((first, first + (tokens - 1) * self._slowness))
        return spans

    def facts(self) -> dict[str, Any]:
        return {"version": "1", "load_s": 0.5, "peak_mib": 100}


def no_tick(_: str, __: object) -> None:
    """Nobody watches."""


def prompts_of(figure: Figure) -> list[list[int]]:
    return [[stream] * figure.prompt for stream in range(figure.streams)]


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        (Figure("prefill", 1, 100, 1), 0.5),
        (Figure("decode", 1, 8, 11), 0.5),
        (Figure("decode", 4, 8, 11), 2.0),
    ],
)
def test_figures_are_what_they_are_called(figure: Figure, value: float) -> None:
    assert figure.value(KnownSide("x", 4, 2.0, []), prompts_of(figure)) == pytest.approx(value)


def test_rounds_are_interleaved_and_ours_is_compared_at_its_own_bits() -> None:
    order: list[str] = []
    slowness = {
        "edgewise int4": (4, 1.0),
        "llama.cpp Q4_0": (4, 2.0),
        "edgewise int8": (8, 3.0),
        "llama.cpp Q8_0": (8, 12.0),
    }
    sides = [KnownSide(name, bits, slow, order) for name, (bits, slow) in slowness.items()]
    names = [side.name for side in sides]
    figures = [Figure("decode", 1, 8, 3)]
    found = measure(sides, figures, 2, prompts_of, no_tick, no_tick)
    assert order == [*names, *names, *names[1:], names[0]], "the warm-up, then each round from another side on"
    (row,) = summarize(sides, found)
    assert {name: ratio["median"] for name, ratio in row["ours_to"].items()} == {
        "llama.cpp Q4_0": 2,
        "llama.cpp Q8_0": 4,
    }
    report = {"sides": {side.name: side.facts() for side in sides}, "figures": [row], "rounds": 2}
    heading, lines = rows_of(report)
    assert heading == ("side", "decode at 8", "load s", "peak MiB")
    assert lines[1] == ("llama.cpp Q4_0", "0.5 (2.00)", "0.5", "100")
    place = {
        "model": "starter",
        "cpu": "X",
        "threads": 2,
        "load_before": 0.1,
        "rounds": 2,
        "time": "2026-11-30T10:00:00Z",
    }
    page = markdown([report | place])
    assert "2026-11-30, starter model, X, 2 threads, load before 0.1, 2 rounds:" in page
    assert "| llama.cpp Q4_0 | 0.5 (2.00) | 0.5 | 100 |" in page
    assert "Not measured" in markdown([])
    assert "llama.cpp Q4_0: decode at 8 0.5 (2.00), load s 0.5, peak MiB 100" in plain(report)


def test_a_peer_that_cannot_be_the_fastest_is_asked_twice_only() -> None:
    order: list[str] = []
    slowness = {
        "edgewise int4": (4, 5.0),
        "llama.cpp Q4_0": (4, 2.0),
        "llama.cpp Q4_1": (4, 4.1),
        "llama.cpp Q8_0": (8, 9.0),
        "transformers float32": (32, 20.0),
    }
    sides = [KnownSide(name, bits, slow, order) for name, (bits, slow) in slowness.items()]
    done: list[str] = []
    found = measure(sides, [Figure("decode", 1, 8, 3)], 3, prompts_of, no_tick, lambda figure, _: done.append(figure))
    assert {name: len(values) for name, values in found["decode at 8"].items()} == {
        "edgewise int4": 3,
        "llama.cpp Q4_0": 3,
        "llama.cpp Q4_1": 2,
        "llama.cpp Q8_0": 3,  # the fastest of its bits
        "transformers float32": 2,  # alone of its bits, and slower than any
    }
    assert done == ["decode at 8"]
    (row,) = summarize(sides, found)
    assert row["ours_to"]["llama.cpp Q4_1"]["median"] == pytest.approx(0.82)
    _, lines = rows_of({"sides": {side.name: side.facts() for side in sides}, "figures": [row], "rounds": 3})
    assert lines[2][1] == "0.2439* (0.82)"
    assert lines[1][1] == "0.5 (0.40)"


def test_rounds_of_a_prefill_have_prompts_of_their_own() -> None:
    """Else the second one would find the first one's prompt in the cache."""
    fresh = iter(range(100))
    side = KnownSide("edgewise int4", 4, 1.0, [])
    found = measure([side], [Figure("prefill", 1, 8, 1)], 3, lambda _: [[next(fresh)] * 8], no_tick, no_tick)
    assert found["prefill 8"]["edgewise int4"] == [1.0, 1.0, 1.0]


def test_the_figures_are_those_that_are_promised() -> None:
    assert [figure.name for figure in FIGURES] == [
        "prefill 128", "prefill 512", "prefill 2048", "decode at 128", "decode at 2048", "8 streams at 128", "8 streams at 2048",
    ]  # fmt: skip


def test_of_several_prompts_one_token_is_left_behind_whole_pages() -> None:
    """Else ours would compute the rest of each prompt's last page between others' tokens, and streams would not be together."""
    lengths = {figure.name: figure.prompt_tokens for figure in FIGURES}
    together = {length % PAGE_TOKENS for name, length in lengths.items() if "streams" in name}
    assert together == {1}
    assert lengths["decode at 128"] == 128


def test_a_missing_peer_is_named() -> None:
    assert "pip install xllamacpp" in missing("/bin/false")["llama.cpp"]


def test_our_engine_answers_lines_of_work(tmp_path: Path) -> None:
    file = make_tiny_model(tmp_path / "model", format="gguf") / GGUF_NAME
    command = [sys.executable, "-m", "tests.bench.cpu_edgewise", str(file)]
    command += ["--threads", "1", "--context", "128", "--kv-mib", "16"]
    work = json.dumps({"prompts": [[5] * 20, [6] * 20], "tokens": 4})
    done = subprocess.run(
        command, cwd=ROOT, input=work + "\n", text=True, capture_output=True, timeout=240, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 2, done.stderr
    assert lines[0]["load_s"] > 0
    assert all(0 < first < last for first, last in lines[1]["spans"])
    assert len(lines[1]["spans"]) == 2


@pytest.mark.parametrize(("kind", "block"), [("Q4_0", 18), ("Q8_0", 34)])
def test_random_matrices_keep_the_size_of_what_they_multiply(kind: Any, block: int) -> None:
    tensor = _random("x", (64, 2048), kind, np.random.default_rng(0))
    stored = np.frombuffer(tensor.data, dtype=np.uint8).reshape(64, 2048 // 32 * block)
    out = dequantize(stored, gguf.GGMLQuantizationType[kind]) @ np.random.default_rng(1).standard_normal(2048)
    assert 0.5 < float(np.std(out)) < 2.0


def test_the_greatest_memory_of_a_process_is_read() -> None:
    assert peak_mib(os.getpid()) > 10
