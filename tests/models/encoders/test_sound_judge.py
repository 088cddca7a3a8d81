"""Which speech judged an encoder that hears: words are counted, and the record says so."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from edgewise.core.errors import UnsupportedModel
from edgewise.models.encoders import build
from edgewise.models.encoders.build import Order, climb, network_of, read_order
from edgewise.models.encoders.network import Judged
from edgewise.models.encoders.record import (
    RECORD,
    UNJUDGED,
    Judge,
    Unjudged,
    read_ladder,
    read_unjudged,
    write_unjudged,
    write_winner,
)
from edgewise.models.encoders.sound_texts import right_words
from edgewise.models.files import ModelFiles
from edgewise.models.speech.aloud import read_aloud
from tests.fakes.tiny_voice import make_voice, voice_files
from tests.models.media.sounds import wav
from tests.models.whisper.small import files_of, folder, small_whisper, with_words
from tests.models.whisper.test_network import noise
from tests.models.whisper.test_rungs import ladder_record


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A Whisper of random weights, which understands nothing."""
    path = tmp_path_factory.mktemp("whisper")
    folder(small_whisper(), path)
    return files_of(with_words(path))


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return voice_files(make_voice(tmp_path_factory.mktemp("voice")))


@pytest.mark.parametrize(
    ("said", "written", "counted"),
    [
        ("The dog, the cat.", "the dog the cat", (4, 4)),
        ("The dog, the cat.", "A dog sees the cat!", (4, 3)),
        ("It doesn't rain.", "It doesn\u2019t rain", (3, 3)),
        ("One two three", "", (3, 0)),
        ("one two", "two one", (2, 1)),
        ("\u00dcber alles", "\u00fcber ALLES", (2, 2)),
    ],
)
def test_right_words(said: str, written: str, counted: tuple[int, int]) -> None:
    assert right_words(said, written) == counted


def test_a_judge_says_no_more_than_was_heard() -> None:
    assert str(Judge(kind="voice", name="kokoro", inputs=3, words=80, right=78)) == (
        "3 readings by the voice kokoro, of whose 80 words float32 writes 78"
    )
    assert str(Judge(kind="recordings", name="calls", inputs=7)) == "7 recordings of calls"


def test_a_record_keeps_its_judge_and_older_ones_have_none(tmp_path: Path) -> None:
    judge = Judge(kind="voice", name="kokoro", inputs=3, words=80, right=78)
    record = dataclasses.replace(ladder_record("torch-float32", None), judge=judge)
    place = tmp_path / "encoders" / "sha256-0" / "place"
    write_winner(place, record, None)
    assert read_ladder(place, record.digest) == record
    raw = json.loads((place / RECORD).read_text())
    del raw["judge"]
    (place / RECORD).write_text(json.dumps(raw))
    assert read_ladder(place, record.digest) == dataclasses.replace(record, judge=None)
    (place / RECORD).write_text(json.dumps({**raw, "judge": {"kind": "voice"}}))
    assert read_ladder(place, record.digest) is None


def test_what_could_not_be_judged_is_kept_until_something_is(tmp_path: Path) -> None:
    place = tmp_path / "encoders" / "sha256-0" / "place"
    assert read_unjudged(place) is None
    found = Unjudged(voices=("sha256:1",), why="joe: it has no espeak-ng", final=False)
    write_unjudged(place, found)
    assert read_unjudged(place) == found
    (place / UNJUDGED).write_text("[]")
    assert read_unjudged(place) is None
    write_winner(place, ladder_record("torch-float32", None), None)
    assert not (place / UNJUDGED).exists()


def order(files: ModelFiles, tmp_path: Path, **fields: object) -> Order:
    made = Order(
        files=files,
        role="speech-to-text",
        samples=None,
        folder=tmp_path / "models" / "encoders" / "sha256-0" / "place",
        device="here",
        threads=1,
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def test_a_voice_judges_and_the_record_names_it(
    files: ModelFiles, voice: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_UNDERSTOOD", 0.0)  # random weights understand nothing
    asked = order(files, tmp_path, voices=(voice,))
    assert read_order(json.loads(asked.to_json())) == asked
    stages: list[str] = []
    record = climb(asked, lambda stage, share: stages.append(stage))
    assert stages[0] == "reading aloud"
    assert record.judge is not None
    assert (record.judge.kind, record.judge.name, record.judge.inputs) == ("voice", "tiny-voice", 3)
    assert record.judge.words > 60
    assert record.judge.right < record.judge.words
    assert record.inputs == 6  # each as it is, and softly
    assert read_ladder(asked.folder, files.digest) == record


def test_a_voice_that_the_model_does_not_understand_judges_nothing(
    files: ModelFiles, voice: ModelFiles, tmp_path: Path
) -> None:
    damaged = dataclasses.replace(voice, name="damaged", digest="sha256:4", paths={})
    asked = order(files, tmp_path, voices=(damaged, voice))
    with pytest.raises(UnsupportedModel, match=r"no voice here can judge.*models pull kokoro.*--samples FOLDER"):
        climb(asked, lambda stage, share: None)
    found = read_unjudged(asked.folder)
    assert found is not None
    assert found.voices == ("sha256:4", voice.digest)
    assert not found.final  # one could not be loaded
    assert "damaged: " in found.why
    assert "tiny-voice: of the " in found.why
    assert "80% are needed" in found.why
    assert read_ladder(asked.folder, files.digest) is None


def test_a_voice_that_nobody_asked_for_leaves_what_recordings_judged_meanwhile(
    files: ModelFiles, voice: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_UNDERSTOOD", 0.0)
    asked = order(files, tmp_path, voices=(voice,))
    heard = Judge(kind="recordings", name="calls", inputs=7)
    owners = dataclasses.replace(ladder_record("torch-float32", None), digest=files.digest, judge=heard)
    write_winner(asked.folder, owners, None)
    assert climb(asked, lambda stage, share: None, unasked=True) == owners
    assert read_ladder(asked.folder, files.digest) == owners
    by_hand = climb(asked, lambda stage, share: None)
    assert by_hand.judge is not None
    assert by_hand.judge.kind == "voice"
    assert read_ladder(asked.folder, files.digest) == by_hand


def test_a_voice_whose_runtime_breaks_is_told_and_the_next_one_is_tried(
    files: ModelFiles, voice: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_UNDERSTOOD", 0.0)
    tried: list[str] = []

    def read(spoken: ModelFiles, *args: object) -> None:
        tried.append(spoken.name)
        if spoken.name == "broken":
            raise RuntimeError("the session cannot be made")
        read_aloud(spoken, *args)  # type: ignore[arg-type]

    monkeypatch.setattr("edgewise.models.speech.aloud.read_aloud", read)
    broken = dataclasses.replace(voice, name="broken", digest="sha256:5")
    network = network_of(order(files, tmp_path, voices=(broken, voice)))
    assert tried == ["broken", "tiny-voice"]
    assert isinstance(network, Judged)
    assert network.judge is not None
    assert network.judge.name == "tiny-voice"
    with pytest.raises(UnsupportedModel, match="broken: RuntimeError: the session cannot be made"):
        network_of(order(files, tmp_path, voices=(broken,)))


def test_recordings_come_first_and_words_beside_them_are_counted(
    files: ModelFiles, voice: ModelFiles, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    for seed in range(4):
        (calls / f"{seed}.wav").write_bytes(wav(noise(seed).numpy()))
    network = network_of(order(files, tmp_path, samples=calls, voices=(voice,)))
    assert isinstance(network, Judged)
    assert network.judge == Judge(kind="recordings", name="calls", inputs=2)
    (calls / "1.txt").write_text("Words that nobody said.")
    network = network_of(order(files, tmp_path, samples=calls))
    assert isinstance(network, Judged)
    assert network.judge is not None
    assert (network.judge.words, network.judge.inputs) == (4, 2)
    assert all(np.isfinite(one).all() for one in network.judged)
