"""Engines of models whose pictures have positions of their own (Qwen2-VL), or see all of themselves (Gemma 3).

Answers are the same alone, in a crowd, in chunks, after a preemption, and wherever a stream was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edgewise.engine.build import build
from edgewise.engine.engine import Engine
from edgewise.engine.request import GenerateRequest
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.tiny import local_files
from tests.engine.test_engine_media import Part, ask, config_of, run
from tests.models.multimodal.small import picture
from tests.models.multimodal.tiny_gemma3 import tiny_gemma3
from tests.models.multimodal.tiny_qwen import tiny_qwen

MAKERS: dict[str, Callable[[Path], ModelFiles]] = {
    "qwen2-vl": lambda folder: local_files(tiny_qwen(folder)),
    "gemma3": lambda folder: tiny_gemma3(folder)[1],
}
SIZES = [(120, 80), (60, 200), (300, 90)]


@pytest.fixture(scope="module", params=MAKERS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return MAKERS[request.param](tmp_path_factory.mktemp("model"))


def requests_of(files: ModelFiles) -> list[GenerateRequest]:
    layout = read_layout(files)
    assert layout is not None
    made = [ask("text", [list(range(50))])]
    for seed, size in enumerate(SIZES):
        pictures = [layout.picture(picture(*size, seed=seed + more), "picture") for more in (0, 5)]
        parts: list[Part] = [list(range(7 * seed, 40)), pictures[0], [seed], pictures[1], [9, 8]]
        made.append(ask(f"r{seed}", parts, placeholder=layout.placeholders["image"]))
    return made


def life(files: ModelFiles, **changes: object) -> Engine:
    return build(config_of(files, **changes), lambda phase, done: None)


def tokens_of(core: Engine, *requests: GenerateRequest) -> dict[str, list[int]]:
    return {name: tokens for name, (tokens, _) in run(core, *requests).items()}


def test_answers_do_not_depend_on_how_they_were_computed(files: ModelFiles) -> None:
    requests = requests_of(files)
    core = life(files)
    alone: dict[str, list[int]] = {}
    for request in requests:
        core.clear_cache("device")
        alone |= tokens_of(core, request)
    assert len({tuple(tokens) for tokens in alone.values()}) == len(requests)
    core.clear_cache("device")
    assert tokens_of(core, *requests) == alone
    assert tokens_of(core, *(replace(one, id=f"{one.id} again") for one in requests)) == {
        f"{name} again": tokens for name, tokens in alone.items()
    }
    assert core.stats().cached_tokens > 0
    core.clear_cache("device")
    for cut in (1, 7):
        rest = tokens_of(core, *(replace(one, output=tuple(alone[one.id][:cut])) for one in requests))
        assert {name: [*alone[name][:cut], *tokens] for name, tokens in rest.items()} == alone
    core.close()
    small = life(files, max_step_tokens=17, kv_memory_bytes=3 * 2 * 2 * 16 * 16 * 4 * 22, max_context=320)
    # The pictures are encoded before, or one answer would be over before the next picture is.
    tokens_of(
        small, *(replace(one, id=f"{one.id} first", sampling=replace(one.sampling, max_tokens=1)) for one in requests)
    )
    longer = [replace(one, sampling=replace(one.sampling, max_tokens=150)) for one in requests]
    squeezed = tokens_of(small, *longer)
    assert small.stats().preemptions > 0
    assert {name: tokens[:12] for name, tokens in squeezed.items()} == alone
    small.close()
