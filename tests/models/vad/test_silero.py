"""Silero's network on real speech, silence and noise; a stream in pieces is the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgewise.core.errors import BadModelFile, InvalidRequest
from edgewise.models.files import ModelFiles
from edgewise.models.media.rates import RATE
from edgewise.models.store import Store
from edgewise.models.vad.silero import Silero, VadEncoder, VadState, load_vad
from edgewise.models.vad.spans import FRAME, speech_spans
from tests.models.media.sounds import tone
from tests.recordings import hearing_home, librivox


@pytest.fixture(scope="module")
def encoder() -> VadEncoder:
    files = Store(hearing_home("silero-vad") / "models").resolve("silero-vad", "vad")
    return load_vad(files, 2)[0]


def probabilities(encoder: VadEncoder, samples: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    ((_, content),) = encoder.compute([encoder.check(samples.astype("<f4").tobytes(), {})])
    return np.frombuffer(content, dtype="<f4")


def test_speech_is_found_where_it_is(encoder: VadEncoder) -> None:
    clip = librivox()[4].samples
    silence = np.zeros(3 * RATE, dtype=np.float32)
    samples = np.concatenate((silence, clip, silence))
    (span,) = speech_spans(probabilities(encoder, samples), samples.shape[0])
    assert 2.5 <= span.start / RATE <= 3.4
    assert abs(span.end / RATE - 3.0 - clip.shape[0] / RATE) < 0.6


@pytest.mark.parametrize("name", ["zeros", "noise", "tone"])
def test_what_is_no_speech_is_none(encoder: VadEncoder, name: str) -> None:
    sounds = {
        "zeros": np.zeros(5 * RATE, dtype=np.float32),
        "noise": np.random.default_rng(0).normal(0, 0.1, 5 * RATE).astype(np.float32),
        "tone": tone(5.0),
    }
    found = probabilities(encoder, sounds[name])
    assert found.shape == (-(-5 * RATE // FRAME),)
    assert speech_spans(found, 5 * RATE) == []


def test_a_stream_in_pieces_is_the_whole(encoder: VadEncoder) -> None:
    network: Silero = encoder._network
    clip = librivox()[1].samples
    state = VadState()
    pieces = [network.probabilities(clip[at : at + 3 * FRAME], state) for at in range(0, clip.shape[0], 3 * FRAME)]
    assert np.array_equal(np.concatenate(pieces), network.probabilities(clip))


def test_what_is_no_recording_or_no_network_is_refused(encoder: VadEncoder) -> None:
    with pytest.raises(InvalidRequest, match="7 bytes"):
        encoder.check(bytes(7), {})
    assert encoder.compute([encoder.check(b"", {})]) == [({}, b"")]
    with pytest.raises(BadModelFile, match=r"no \.onnx file"):
        load_vad(ModelFiles(name="x", digest="", format="onnx", paths={"a.txt": Path("a.txt")}), 1)
