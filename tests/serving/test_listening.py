"""A model that hears, from its store: its encoder's ladder is climbed, and its engine computes with the winner."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.core.settings import load_settings
from edgewise.engine.build import build
from edgewise.engine.machine import Machine
from edgewise.models.encoders import ladder as ladder_module
from edgewise.models.encoders.build import climb, is_kept, read_order
from edgewise.models.encoders.record import LadderRecord
from edgewise.models.encoders.rung import place_of
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.serving.encoders import encoder_dtype, ladder_options
from edgewise.serving.listening import read_listener
from tests.engine.test_engine_media import run
from tests.engine.test_rungs import asking, told
from tests.models.media.sounds import wav
from tests.models.whisper.small import folder, small_whisper
from tests.models.whisper.test_network import noise

MACHINE = Machine(available=4 << 30, cuda=False, capability=None)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With a small Whisper, which has a decoder's tokenizer."""
    plain = make_tiny_model(tmp_path / "plain")
    folder(small_whisper(), tmp_path / "ear")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / name, tmp_path / "ear")
    generation = {"eos_token_id": 9, "decoder_start_token_id": 1, "no_timestamps_token_id": 12}
    (tmp_path / "ear" / "generation_config.json").write_text(json.dumps(generation))
    made = Store(tmp_path / "models", reserve_bytes=0)
    made.import_path(tmp_path / "ear", "ear", role="speech-to-text")
    return made


def measured(store: Store, samples: Path) -> LadderRecord:
    """As `edgewise models encoders ear --measure --samples` does it."""
    samples.mkdir()
    for seed in range(2):
        (samples / f"{seed}.wav").write_bytes(wav(noise(seed).numpy()))
    settings = load_settings(overrides={"home": str(store.root.parent), "dtype": "float32"}, environ={}).settings
    options = {**ladder_options(store, store.manifest("ear"), samples), "dtype": encoder_dtype(settings)}
    place = place_of(len(os.sched_getaffinity(0)), options)
    order = place.order(store.resolve("ear", "speech-to-text"), "speech-to-text")
    assert read_order(json.loads(order.to_json())) == order
    return climb(order, lambda stage, share: None)


def test_an_engine_computes_with_the_winner_that_was_measured(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quickest(candidates: list[ladder_module.Candidate], gate: float) -> ladder_module.Candidate:
        """Whatever the clock says."""
        return next(one for one in candidates if one.name == "int8-blocks" and one.passes(gate))

    monkeypatch.setattr(ladder_module, "choose", quickest)
    settings = load_settings(overrides={"home": str(store.root.parent), "dtype": "float32"}, environ={}).settings
    before = read_listener(settings, store, "ear", MACHINE)
    assert before.config.encoder_form_bytes == 0
    record = measured(store, tmp_path / "samples")
    names = {one.name: one for one in record.candidates}
    assert names["torch-float32"].cosine_min == pytest.approx(1.0, abs=1e-5)
    assert record.chosen.name == "int8-blocks"

    read = read_listener(settings, store, "ear", MACHINE)
    assert read.config.encoder_form_bytes == 2 * record.chosen.bytes
    assert read.needs.minimal > before.needs.minimal
    core = build(read.config, lambda phase, done: None)
    by_blocks, end = run(core, asking("a"))["a"]
    assert told(end) == (0, ["int8-blocks"])
    assert len(by_blocks) > 0
    core.close()


@pytest.mark.parametrize(
    ("name", "model", "role", "kept"),
    [
        ("fp32", b"graph", "speech-to-text", True),
        ("fp32", b"graph", "vision", False),
        ("int8-mixed", b"graph", "vision", True),
        ("torch-float32", b"", "speech-to-text", False),
    ],
)
def test_what_goes_to_a_file(name: str, model: bytes, role: str, kept: bool) -> None:
    session: Any = None
    winner = ladder_module.Candidate(name, {}, model, session, np.ones(1, np.float32))
    assert is_kept(winner, role) is kept
