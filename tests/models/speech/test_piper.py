"""Piper's inputs, and the program that says how words are pronounced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.core.errors import BadModelFile, EngineFault, UnsupportedModel
from edgewise.models.speech.espeak import find_espeak, pronounce
from edgewise.models.speech.piper import Piper, read_config

CONFIG = {
    "audio": {"sample_rate": 22050},
    "espeak": {"voice": "en-us"},
    "inference": {"noise_scale": 0.6, "length_scale": 1.5, "noise_w": 0.8},
    "phoneme_id_map": {"_": [0], "^": [1], "$": [2], "a": [7], "b": [8, 9]},
}


def config_at(folder: Path, **changes: Any) -> Path:
    path = folder / "voice.onnx.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


class Session:
    """A named double of a network: it keeps what it is fed."""

    def __init__(self) -> None:
        self.fed: dict[str, Any] = {}

    def run(self, names: None, feeds: dict[str, Any]) -> list[Any]:
        self.fed = feeds
        return [np.zeros((1, 1, 1, 30), dtype=np.float32)]


def program(folder: Path, script: str) -> str:
    path = folder / "espeak-ng"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_phonemes_become_ids_with_pads_between_and_speed_shortens(tmp_path: Path) -> None:
    session = Session()
    piper = Piper(session, read_config(config_at(tmp_path)), "joe", "espeak-ng")
    assert len(piper.speak("ab?a", "joe", 2.0)) == 30
    assert session.fed["input"].tolist() == [[1, 0, 7, 0, 8, 9, 0, 7, 0, 2]]
    assert session.fed["input_lengths"].tolist() == [10]
    assert session.fed["scales"].tolist() == pytest.approx([0.6, 0.75, 0.8])
    assert (piper.rate, piper.names) == (22050, ("joe",))


@pytest.mark.parametrize("changes", [{"audio": {}}, {"phoneme_id_map": [1]}, {"inference": {"noise_scale": "x"}}])
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(BadModelFile, match="describes no Piper voice"):
        read_config(config_at(tmp_path, **changes))


def test_a_program_that_is_not_there_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedModel, match=r"`apt install espeak-ng`, or use the voice 'kokoro'"):
        find_espeak("piper-joe")


def test_each_clause_has_its_line(tmp_path: Path) -> None:
    echo = program(tmp_path, 'while read -r line || [ -n "$line" ]; do echo " <$line>"; done')
    assert pronounce(echo, "en-us", ["one two", "-x three"]) == ["<one two>", "<-x three>"]


def test_a_clause_that_the_program_cuts_stays_one(tmp_path: Path) -> None:
    words = program(tmp_path, "tr ' ' '\\n'")
    assert pronounce(words, "en-us", ["one two", "three"]) == ["one two", "three"]


def test_a_program_that_fails_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(EngineFault, match="did not say how to pronounce"):
        pronounce(program(tmp_path, "exit 3"), "en-us", ["one"])
