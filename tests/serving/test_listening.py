"""A model that hears, from its store: its encoder's ladder is climbed, and its engine computes with the winner."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.core.settings import load_settings
from edgewise.engine.build import build
from edgewise.engine.encoders.climbs import BEGUN, ENDED
from edgewise.engine.machine import Machine
from edgewise.models.catalog import load_catalog
from edgewise.models.encoders import ladder as ladder_module
from edgewise.models.encoders import rung
from edgewise.models.encoders.build import climb, is_kept, read_order
from edgewise.models.encoders.record import Judge, LadderRecord, ladder_folder, read_unjudged, write_unjudged
from edgewise.models.encoders.rung import place_of
from edgewise.models.store import Store
from edgewise.serving.encoders import encoder_dtype, ladder_options
from edgewise.serving.ladders import hearing_ladder
from edgewise.serving.listening import read_listener
from tests.engine.test_engine_media import run
from tests.engine.test_rungs import asking, told
from tests.fakes.tiny_voice import add_to_catalog, make_voice
from tests.models.media.sounds import wav
from tests.models.whisper.small import folder, small_whisper, with_words
from tests.models.whisper.test_network import noise

MACHINE = Machine(available=4 << 30, cuda=False, capability=None)


def add_voice(store: Store, *, damaged: bool = False) -> None:
    """Install a voice of random sounds, or one that cannot be loaded."""
    home = store.root.parent
    voice = make_voice(home / "voice")
    if damaged:
        (voice / "vocab.json").write_text("{}")
    add_to_catalog(voice, home, "tiny-voice")
    store.pull(load_catalog(home / "catalog.d").find("tiny-voice"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With a small Whisper, which has a decoder's tokenizer."""
    folder(small_whisper(), tmp_path / "ear")
    with_words(tmp_path / "ear")
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
    assert record.judge == Judge(kind="recordings", name="samples", inputs=1)
    told_of = hearing_ladder(settings, store, store.manifest("ear"), card=False)
    assert (told_of.detail, told_of.remedy) == (
        "int8-blocks is the quickest on this processor, judged by 1 recordings of samples",
        "",
    )

    read = read_listener(settings, store, "ear", MACHINE)
    assert read.config.encoder_form_bytes == 2 * record.chosen.bytes
    assert read.config.encoder_climb == {}
    assert read.needs.minimal > before.needs.minimal
    core = build(read.config, lambda phase, done: None)
    by_blocks, end = run(core, asking("a"))["a"]
    assert told(end) == (0, ["int8-blocks"])
    assert len(by_blocks) > 0
    core.close()


def climbing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "encoder-climb"]


def test_a_first_load_climbs_beside_requests_with_what_a_voice_reads_aloud(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real process, whose only voice cannot be loaded: it ends with why, which is kept. What a voice judges otherwise is
    tested where no process has the lowest priority (tests/models/encoders/test_sound_judge.py)."""
    settings = load_settings(overrides={"home": str(store.root.parent), "dtype": "float32"}, environ={}).settings
    without = read_listener(settings, store, "ear", MACHINE)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setattr(rung, "_BUILD", "tests.fakes.climb_at_once")
    add_voice(store, damaged=True)
    read = read_listener(settings, store, "ear", MACHINE)
    assert read.needs.minimal == without.needs.minimal
    size = int(read.config.encoder_climb["climb_bytes"])
    assert read.needs.full > without.needs.full + 2 * size
    budget = read.needs.minimal + (read.needs.full - read.needs.minimal) // 2  # what the pool gives
    core = build(replace(read.config, memory_budget_bytes=budget), lambda phase, done: None)
    words: list[str] = []
    core.listen(lambda kind, message: words.append(kind))
    (thread,) = climbing()
    assert core.memory().booked["climb"] == size
    _, end = run(core, asking("a"))["a"]
    assert told(end) == (0, ["torch-float32"])
    thread.join(200)
    assert words == [BEGUN, ENDED]
    assert "climb" not in core.memory().booked
    assert "encoder_climb_failed" in caplog.text
    (place,) = ladder_folder(store.root, read.config.model.digest).iterdir()
    found = read_unjudged(place)
    assert found is not None
    assert not found.final  # it may be mended
    assert "tiny-voice: " in found.why
    assert "is no vocabulary" in found.why
    core.close()

    told_of = hearing_ladder(settings, store, store.manifest("ear"), card=False)
    assert found.why in told_of.detail
    assert "--samples FOLDER" in told_of.remedy
    write_unjudged(place, replace(found, final=True))
    again = build(replace(read.config, memory_budget_bytes=budget), lambda phase, done: None)
    assert climbing() == []
    assert "encoder_climb_skipped" in caplog.text
    again.close()


def test_without_a_voice_nothing_is_climbed_and_it_is_said(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings(overrides={"home": str(store.root.parent), "dtype": "float32"}, environ={}).settings
    core = build(read_listener(settings, store, "ear", MACHINE).config, lambda phase, done: None)
    assert climbing() == []
    (skipped,) = [vars(one)["edgewise_fields"] for one in caplog.records if one.getMessage() == "encoder_climb_skipped"]
    assert "no voice is installed" in skipped["reason"]
    assert "edgewise models pull kokoro" in skipped["remedy"]
    core.close()
    told_of = hearing_ladder(settings, store, store.manifest("ear"), card=False)
    assert told_of.detail.startswith("torch computes: no voice is installed")
    assert "`edgewise models encoders ear --measure --samples FOLDER`" in told_of.remedy
    add_voice(store)
    told_of = hearing_ladder(settings, store, store.manifest("ear"), card=False)
    assert told_of.detail.endswith("judged by the voice tiny-voice")
    assert told_of.remedy == ""


def test_a_device_that_is_to_measure_nothing_by_itself_says_so(store: Store) -> None:
    over = {"home": str(store.root.parent), "dtype": "float32"}
    settings = load_settings(overrides=over, environ={"EDGEWISE_ENGINE__ENCODER_TUNING": "off"}).settings
    add_voice(store)
    read = read_listener(settings, store, "ear", MACHINE)
    assert read.config.encoder_climb == {}
    told_of = hearing_ladder(settings, store, store.manifest("ear"), card=False)
    assert told_of.detail == "torch computes: engine.encoder_tuning is off"
    assert "`edgewise models encoders ear --measure`" in told_of.remedy


def test_on_a_card_nothing_is_climbed(store: Store) -> None:
    settings = load_settings(overrides={"home": str(store.root.parent), "dtype": "float32"}, environ={}).settings
    add_voice(store)
    assert (
        read_listener(settings, store, "ear", replace(MACHINE, cuda=True, capability=(9, 0))).config.encoder_climb == {}
    )
    assert hearing_ladder(settings, store, store.manifest("ear"), card=True).detail == "torch computes on the card"


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
