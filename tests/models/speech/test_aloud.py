"""What a voice reads aloud: recordings whose words are written beside them."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgewise.models.encoders.sound_texts import right_words
from edgewise.models.media.audio import decode
from edgewise.models.speech import aloud
from edgewise.models.speech.aloud import PASSAGES, read_aloud
from edgewise.models.store import Store
from tests.fakes.tiny_voice import make_voice, voice_files
from tests.recordings import hearing_home


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    voice = voice_files(make_voice(tmp_path_factory.mktemp("voice")))
    folder = tmp_path_factory.mktemp("readings")
    read_aloud(voice, folder, 1)
    return folder


def samples(path: Path) -> npt.NDArray[np.int16]:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def test_each_passage_is_a_recording_with_its_words_beside_it(readings: Path) -> None:
    assert sorted(path.name for path in readings.iterdir()) == sorted(
        f"{number}.{kind}" for number in range(len(PASSAGES)) for kind in ("txt", "wav")
    )
    for number, text in enumerate(PASSAGES):
        assert (readings / f"{number}.txt").read_text() == text
        path = readings / f"{number}.wav"
        found, content = decode(path.read_bytes(), path.name)
        assert (found["rate"], found["channels"]) == (24_000, 1)
        assert 0.5 < len(content) / 4 / 16_000 < 30


def test_pairs_are_read_in_silence_and_in_noise_by_turns(readings: Path) -> None:
    """A voice is silent between its sentences; only where noise was added is there none."""
    quiet = [float(np.mean(samples(readings / f"{number}.wav") == 0)) > 0.05 for number in range(len(PASSAGES))]
    assert quiet == [number % 4 < 2 for number in range(len(PASSAGES))]


def test_a_voices_readings_are_the_same_each_time(readings: Path, tmp_path: Path) -> None:
    """Noise included, so that what was judged can be judged again."""
    read_aloud(voice_files(make_voice(tmp_path / "voice")), tmp_path, 1)
    for number in range(len(PASSAGES)):
        assert (tmp_path / f"{number}.wav").read_bytes() == (readings / f"{number}.wav").read_bytes()


def test_a_real_voice_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortest passage by Kokoro, as whisper-tiny.en writes it. Takes seconds: it is real speech."""
    # Here: the others need no torch.
    from edgewise.models.encoders.exported import export
    from edgewise.models.encoders.sound_network import read_module, spectrograms
    from edgewise.models.encoders.sound_texts import Texts
    from edgewise.models.encoders.tensor_network import TensorSession

    store = Store(hearing_home("kokoro", "whisper-tiny.en") / "models")
    monkeypatch.setattr(aloud, "PASSAGES", (min(PASSAGES, key=len),))
    read_aloud(store.resolve("kokoro", "text-to-speech"), tmp_path, 1)
    files = store.resolve("whisper-tiny.en", "speech-to-text")
    config, module = read_module(files)
    heard = spectrograms([tmp_path / "0.wav"], config)[:1]
    (written,) = Texts(files, heard, TensorSession(export(module, heard[0]), 1)).wanted
    words, right = right_words(aloud.PASSAGES[0], written)
    assert words == len(aloud.PASSAGES[0].split())
    assert right >= 0.9 * words, written
