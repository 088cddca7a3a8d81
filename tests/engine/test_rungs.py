"""An engine whose encoder's form changes while it serves: no page and no row of one form is taken for those of another."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edgewise.engine.build import build
from edgewise.engine.config import EngineConfig
from edgewise.engine.engine import Engine
from edgewise.engine.numerics import cpu_family
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.models.encoders.exported import export
from edgewise.models.encoders.record import ladder_folder, place_name, write_winner
from edgewise.models.encoders.sound_network import read_module
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.media import Media
from edgewise.models.onnx_session import RUNTIME
from tests.engine.test_engine_media import config_of, run
from tests.models.whisper.small import folder, small_whisper
from tests.models.whisper.test_network import AUDIO, FRAMES, noise
from tests.models.whisper.test_rungs import ladder_record, other_bits


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return folder(small_whisper(), tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def graph(files: ModelFiles) -> bytes:
    """Of another encoder than torch computes, so that a mixture shows."""
    _, module = read_module(files)
    with torch.no_grad():
        module.layer_norm.weight.mul_(-3.0)
    return export(module, np.zeros((1, 80, 2 * FRAMES), np.float32))


def keep(store: Path, name: str, model: bytes) -> None:
    place = ladder_folder(store, "sha256:0") / place_name(RUNTIME, cpu_family(), 1)
    write_winner(place, replace(ladder_record(name, model), device=cpu_family()), model)


def config(files: ModelFiles, store: Path, **changes: Any) -> EngineConfig:
    base = config_of(files, max_step_tokens=AUDIO + 8, encoder_ladders=str(ladder_folder(store, "sha256:0")))
    return replace(base, **changes)


@pytest.fixture
def core(files: ModelFiles, tmp_path: Path) -> Iterator[Engine]:
    built = build(config(files, tmp_path), lambda phase, done: None)
    yield built
    built.close()


def asking(name: str) -> GenerateRequest:
    content = noise(1).numpy().tobytes()
    digest = hashlib.sha256(content).digest()
    medium = Media(kind="audio", start=0, count=AUDIO, digest=digest, content=content, shape=(16_000,))
    sampling = SamplingParams(max_tokens=6, temperature=0.0, top_logprobs=0)
    return GenerateRequest(id=name, prompt=(0,) * AUDIO + (1, 2), sampling=sampling, media=(medium,))


def told(end: TokenChunk) -> tuple[int, list[str]]:
    """Tokens from the cache, and the forms that ran."""
    assert end.stats is not None
    return end.stats.cached_tokens, [use.rung for use in end.stats.encoders]


def until_serves(core: Engine, name: str) -> None:
    assert core._senses is not None
    encoder: Any = core._senses._encoder
    for _ in range(500):
        if encoder.serving.startswith(name):
            return
        time.sleep(0.01)
    raise AssertionError(f"{name} never came to serve")


def test_a_recording_in_another_form_is_another_prefix(
    files: ModelFiles, graph: bytes, core: Engine, tmp_path: Path
) -> None:
    assert core.info.numeric_class.endswith("/encoder-within-gate")
    by_torch, end = run(core, asking("a"))["a"]
    assert told(end) == (0, ["torch-float32"])
    _, end = run(core, asking("b"))["b"]
    assert told(end)[0] >= AUDIO

    keep(tmp_path, "int8-mixed", graph)
    until_serves(core, "int8-mixed@")
    swapped, end = run(core, asking("c"))["c"]
    assert told(end) == (0, ["int8-mixed"])
    assert swapped != by_torch

    fresh = build(config(files, tmp_path, encoder_form_bytes=2 * len(graph)), lambda phase, done: None)
    from_the_start, end = run(fresh, asking("d"))["d"]
    assert told(end) == (0, ["int8-mixed"])
    assert from_the_start == swapped
    assert fresh.memory().booked["encoder_cache"] == core.memory().booked["encoder_cache"] + 2 * len(graph)
    assert "encoder" not in fresh.memory().booked
    assert core.memory().booked["encoder"] == 2 * len(graph)
    fresh.close()


def test_a_swap_in_the_middle_does_not_touch_what_is_in_work(graph: bytes, core: Engine, tmp_path: Path) -> None:
    alone, _ = run(core, asking("a"))["a"]
    core.clear_cache(None)
    core.add(asking("b"))
    keep(tmp_path, "int8-mixed", graph)
    until_serves(core, "int8-mixed@")
    core.add(asking("c"))
    answers: dict[str, list[int]] = {"b": [], "c": []}
    while core.has_work:
        for chunk in core.step():
            answers[chunk.request_id] += chunk.tokens
    assert answers["b"] == alone  # encoded after the swap, and with the form that served when it came
    assert answers["c"] != alone
    again, end = run(core, asking("d"))["d"]
    assert again == answers["c"]
    assert told(end)[0] >= AUDIO


def test_all_forms_that_are_open_are_booked(graph: bytes, core: Engine, tmp_path: Path) -> None:
    keep(tmp_path, "int8-mixed", graph)
    until_serves(core, "int8-mixed@")
    others = other_bits(graph)
    keep(tmp_path, "int8-static", others)
    until_serves(core, "int8-static@")
    assert core.memory().booked["encoder"] == 2 * (len(graph) + len(others))
    assert core._senses is not None
    encoder: Any = core._senses._encoder
    for form in list(encoder._forms.values())[1:]:
        encoder._drop(form, RuntimeError("a node failed"))
    assert "encoder" not in core.memory().booked
