"""A text to runs of a voice, and their sound."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from edgewise.core.errors import BadModelFile, InvalidRequest, UnsupportedModel
from edgewise.models.files import ModelFiles
from edgewise.models.speech.load import load_speaker
from edgewise.models.speech.sentences import sentences
from edgewise.models.speech.speaker import Speaker, Utterance
from edgewise.models.speech.voice import Floats
from tests.fakes.tiny_voice import LIMIT, NAMES, STEP, make_voice, voice_files


class Spelling:
    """A named double of a voice: its phonemes are the letters, each of them ten samples long."""

    rate = 1000
    names = ("first", "second")

    def __init__(self, limit: int = 1000, silence: int = 0) -> None:
        self.limit = limit
        self._silence = np.zeros(silence, dtype=np.float32)

    def phonemes(self, clauses: Sequence[str]) -> list[str]:
        return list(clauses)

    def speak(self, phonemes: str, name: str, speed: float) -> Floats:
        sound = np.full(int(10 * len(phonemes) / speed), 0.5, dtype=np.float32)
        return np.concatenate([self._silence, sound, self._silence])


def runs(text: str, **options: int) -> list[Utterance]:
    return list(Speaker(Spelling(**options)).check(text.encode(), {}).inputs)


def said(text: str, **options: int) -> list[str]:
    return [one.phonemes for one in runs(text, **options)]


def test_each_sentence_is_a_run_and_every_line_is_spoken() -> None:
    assert said("One two. Three!\nFour\n\n\nfive, six\r\nseven?") == [
        "One two.",
        "Three!",
        "Four.",
        "five, six.",
        "seven?",
    ]


def test_a_long_sentence_is_cut_at_clauses_then_at_words_and_nothing_is_dropped() -> None:
    text = "one two three, four five six; seven eight nine ten eleven twelve."
    cut = said(text, limit=24)
    assert max(map(len, cut)) <= 24
    assert cut[0] == "one two three,"
    assert "".join(cut).replace(" ", "") == text.replace(" ", "")
    endless = "x" * 100
    assert "".join(said(endless, limit=24)) == endless + "."
    assert max(map(len, said(endless, limit=24))) <= 24


def test_what_is_spoken_slowly_is_cut_earlier() -> None:
    slow = (
        Speaker(Spelling(limit=80)).check(b"one two three four five six seven eight nine ten.", {"speed": 0.25}).inputs
    )
    assert len(slow) > 1
    assert max(len(one.phonemes) for one in slow) <= 20


def test_pauses_follow_the_marks_and_the_speed() -> None:
    comma, sentence, paragraph = 0.12, 0.3, 0.55
    assert [one.pause_s for one in runs("One. Two.\nThree.")] == [sentence, paragraph, paragraph]
    assert [one.pause_s for one in runs("aaaaaaaaa, bbbbbbbbb.", limit=12)] == [comma, paragraph]
    speaker = Speaker(Spelling())
    for speed in (1.0, 2.0):
        ((_, samples),) = speaker.compute(speaker.check(b"abc", {"speed": speed}).inputs)
        assert len(samples) // 2 == int(10 * len("abc.") / speed) + int(paragraph / speed * 1000)


def test_what_is_too_loud_becomes_softer_and_is_not_cut_off() -> None:
    class Loud(Spelling):
        def speak(self, phonemes: str, name: str, speed: float) -> Floats:
            return np.array([0.5, 2.0, -4.0, 0.5], dtype=np.float32)

    speaker = Speaker(Loud())
    ((_, samples),) = speaker.compute(speaker.check(b"abc", {}).inputs)
    loud = np.frombuffer(samples, dtype=np.int16)[:4] / 32767
    assert loud.tolist() == pytest.approx([0.1225, 0.49, -0.98, 0.1225], abs=1e-3)


def test_silence_at_the_ends_of_a_run_is_cut() -> None:
    speaker = Speaker(Spelling(silence=500))
    ((result, samples),) = speaker.compute(speaker.check(b"abc", {}).inputs)
    assert result == {"voice": "first", "rate": 1000, "unspoken": ""}
    assert len(samples) // 2 == 40 + 2 * 30 + 550


def test_what_cannot_be_spoken_is_refused_by_name() -> None:
    speaker = Speaker(Spelling())
    with pytest.raises(InvalidRequest, match="'alloy', and this model has 'first', 'second'") as voice:
        speaker.check(b"x", {"voice": "alloy"})
    assert voice.value.param == "voice"
    for nothing in ("", " \n ", "\U0001f600", "..."):
        with pytest.raises(InvalidRequest, match="nothing that can be spoken") as text:
            speaker.check(nothing.encode(), {})
        assert text.value.param == "input"


def test_characters_without_sound_are_told() -> None:
    assert runs("Hi \U0001f600.")[0].unspoken == "\U0001f600"
    assert sentences("Hi \U0001f600\nyou \U0001f600 \u4f60")[1] == "\U0001f600\u4f60"


def test_a_voice_in_kokoros_files_speaks(tmp_path: Path) -> None:
    speaker, numeric_class = load_speaker(voice_files(make_voice(tmp_path / "voice")), 1)
    assert "onnxruntime" in numeric_class
    parts = speaker.check(b"Hello world. " + b"one two three four " * 10, {"voice": NAMES[1]}).inputs
    assert len(parts) > 2
    assert max(len(part.phonemes) for part in parts) <= LIMIT
    ((result, samples),) = speaker.compute(parts[:1])
    assert result["voice"] == NAMES[1]
    tokens = len(parts[0].phonemes) + 2
    assert abs(len(samples) // 2 - tokens * STEP - int(0.3 * 24_000)) <= STEP


def test_files_that_are_no_voice_are_named(tmp_path: Path) -> None:
    folder = make_voice(tmp_path / "voice")
    files = voice_files(folder)
    less = {name: path for name, path in files.paths.items() if name != "vocab.json"}
    with pytest.raises(BadModelFile, match=r"has no file vocab\.json"):
        load_speaker(ModelFiles(name="v", digest="", format="onnx", paths=less), 1)
    with pytest.raises(UnsupportedModel, match=r"these are other\.onnx"):
        load_speaker(ModelFiles(name="v", digest="", format="onnx", paths={"other.onnx": folder}), 1)
    (folder / "kokoro.onnx").write_bytes(b"no network")
    with pytest.raises(BadModelFile, match="cannot be loaded"):
        load_speaker(files, 1)
