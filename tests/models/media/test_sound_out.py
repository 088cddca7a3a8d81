"""Sound to files: what comes back out of them is what went in."""

from __future__ import annotations

import io
import wave
from typing import Any, cast

import av
import numpy as np
import pytest

from edgewise.models.media.sound_out import MEDIA_TYPES, PCM_RATE, SOUND_FORMATS, SoundFormat, open_sound


def tone(rate: int, seconds: float = 1.5) -> Any:
    return (np.sin(np.arange(int(rate * seconds)) * 440 * 2 * np.pi / rate) * 12_000).astype(np.int16)


def written(format: str, samples: Any, rate: int, length: int | None = None) -> list[bytes]:
    """In pieces of odd lengths."""
    writer = open_sound(cast("SoundFormat", format), rate, length)
    return [*(writer.write(samples[at : at + 7001].tobytes()) for at in range(0, len(samples), 7001)), writer.close()]


def read(data: bytes) -> tuple[Any, int]:
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    rate = frames[0].sample_rate
    resampler = av.AudioResampler("s16", "mono", rate)
    mono = [one for frame in frames for one in resampler.resample(frame)]
    return np.concatenate([one.to_ndarray().reshape(-1) for one in mono]), rate


def pitch(samples: Any, rate: int) -> float:
    middle = samples[len(samples) // 4 : 3 * len(samples) // 4].astype(np.float64)
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    return float(np.argmax(spectrum)) * rate / len(middle)


@pytest.mark.parametrize("rate", [22_050, 24_000])
@pytest.mark.parametrize("format", [one for one in SOUND_FORMATS if one != "pcm"])
def test_every_format_keeps_length_and_pitch(format: str, rate: int) -> None:
    samples = tone(rate)
    pieces = written(format, samples, rate)
    assert pieces[0]  # something leaves with the first piece
    back, at = read(b"".join(pieces))
    assert abs(len(back) / at - len(samples) / rate) < 0.11  # an encoder's frame, and its delay
    assert pitch(back, at) == pytest.approx(440, abs=2)
    if format in ("wav", "flac"):
        assert at == rate
        assert np.array_equal(back, samples)


@pytest.mark.parametrize("rate", [22_050, 24_000])
def test_raw_samples_are_of_the_rate_that_clients_expect(rate: int) -> None:
    samples = np.frombuffer(b"".join(written("pcm", tone(rate), rate)), dtype=np.int16)
    assert abs(len(samples) / PCM_RATE - 1.5) < 0.01
    assert pitch(samples, PCM_RATE) == pytest.approx(440, abs=2)


def test_a_wav_header_says_the_length_where_it_is_known_and_leaves_it_open_where_not() -> None:
    samples = tone(24_000)
    with wave.open(io.BytesIO(b"".join(written("wav", samples, 24_000, len(samples))))) as file:
        assert (file.getnframes(), file.getframerate(), file.getnchannels()) == (len(samples), 24_000, 1)
    data = b"".join(written("wav", samples, 24_000))
    assert data[4:8] == data[40:44] == b"\xff" * 4
    with wave.open(io.BytesIO(data)) as file:
        assert len(file.readframes(file.getnframes())) == 2 * len(samples)


def test_every_format_has_a_media_type() -> None:
    assert set(MEDIA_TYPES) == set(SOUND_FORMATS)
