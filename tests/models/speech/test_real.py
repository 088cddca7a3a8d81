"""The voices of the catalog with their real weights speak a sentence."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from edgewise.models.speech import load
from edgewise.models.speech.load import load_speaker
from edgewise.models.store import Store
from tests.recordings import hearing_home

SENTENCE = "The train to Boston leaves at 7:30 from platform nine."


@pytest.fixture(scope="module")
def store() -> Store:
    return Store(hearing_home("kokoro", "piper-joe") / "models")


def test_kokoro_speaks_with_the_dictionarys_sounds(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    files = store.resolve("kokoro", "text-to-speech")
    monkeypatch.setattr(load, "has_vnni", lambda: False)  # the packaged form, which every processor has
    speaker, numeric_class = load_speaker(files, 1)
    assert numeric_class.endswith("/cpu/int8")
    (run,) = speaker.check(SENTENCE.encode(), {}).inputs
    assert run.phonemes == (
        "\u00f0\u0259 t\u0279\u02c8An t\u0259 b\u02c8\u0254st\u0259n l\u02c8ivz \u00e6t s\u02c8\u025bv\u0259n "
        "\u03b8\u02c8\u025c\u0279Ti f\u0279\u028cm pl\u02c8\u00e6tf\u02cc\u0254\u0279m n\u02c8In."
    )
    assert run.voice == "jm_kumo"
    ((result, samples),) = speaker.compute([run])
    assert result["rate"] == 24_000
    sound = np.frombuffer(samples, dtype=np.int16)
    assert 2.5 < len(sound) / 24_000 < 6.0
    assert 1_000 < np.abs(sound.astype(int)).max() < 32_767  # heard, and not cut off


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs the program espeak-ng: apt install espeak-ng")
def test_piper_speaks_with_the_programs_sounds(store: Store) -> None:
    speaker, numeric_class = load_speaker(store.resolve("piper-joe", "text-to-speech"), 1)
    assert numeric_class.endswith("/cpu/float32")
    (run,) = speaker.check(SENTENCE.encode(), {}).inputs
    assert run.phonemes.endswith(".")
    assert "b\u02c8\u0254st\u0259n" in run.phonemes
    lengths = []
    for speed in (1.0, 2.0):
        ((result, samples),) = speaker.compute(speaker.check(SENTENCE.encode(), {"speed": speed}).inputs)
        lengths.append(len(samples) / 2 / result["rate"])
    assert 2.0 < lengths[0] < 6.0
    assert lengths[1] < 0.7 * lengths[0]
