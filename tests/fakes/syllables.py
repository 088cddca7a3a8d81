"""Made-up voices: syllables of harmonics under formants, as different from each other as two people are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Sound = npt.NDArray[np.float64]
_SYLLABLE_S = 0.18
_FORMANTS = (300, 500, 700, 900, 1200, 1800, 2200, 2600)


def syllables(seconds: float, pitch: float, rate: int, *, seed: int = 0, loud: float = 0.7) -> Sound:
    """Samples in [-loud, loud]; one syllable in five is silent."""
    random = np.random.default_rng(seed)
    sound = np.zeros(int(seconds * rate))
    size = int(_SYLLABLE_S * rate)
    for start in range(0, len(sound), size):
        piece = sound[start : start + size]
        if random.random() < 0.2:
            continue
        time, at = np.arange(len(piece)) / rate, pitch * random.uniform(0.85, 1.15)
        formants = random.choice(_FORMANTS, 3, replace=False)
        for number in range(1, int(4000 / at)):
            strength = np.exp(-(((number * at - formants) / 150.0) ** 2)).sum()
            piece += strength * np.sin(2 * np.pi * number * at * time + random.uniform(0, 2 * np.pi))
        piece *= np.hanning(len(piece)) / max(1e-9, np.abs(piece).max())
    return loud * sound


def packed(sound: Sound) -> bytes:
    """16 bits each."""
    return (np.clip(sound, -1.0, 1.0) * 32767).astype("<i2").tobytes()


def room(sound: Sound, rate: int, *, delay_s: float = 0.12, gain: float = 0.5) -> Sound:
    """As a microphone hears it: later, softer, and with reverberation."""
    random = np.random.default_rng(1)
    answer = (
        gain * 0.2 * random.standard_normal(int(0.15 * rate)) * np.exp(-np.arange(int(0.15 * rate)) / (0.02 * rate))
    )
    answer[0] = gain
    late = np.concatenate((np.zeros(int(delay_s * rate)), sound))
    heard: Sound = np.convolve(late, answer)[: len(sound)]
    return heard
