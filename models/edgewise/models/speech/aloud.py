"""Sentences of ours, read aloud by a voice of this device: speech whose words are known, for judging what hears it."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from edgewise.models.files import ModelFiles
from edgewise.models.speech.load import load_speaker
from edgewise.models.speech.speaker import Speaker

PASSAGES: Final = (
    "The kitchen window looks over a small garden. Every morning a black cat sits on the wall and waits for the birds. "
    "When it rains, it sleeps beside the stove.",
    "Please turn off the lights in the hall before you leave. The key hangs on a hook behind the front door, and the dog "
    "has already been fed.",
    "Water boils faster at the top of a mountain, because the air presses less on its surface. For the same reason, rice "
    "takes longer to cook up there.",
    "The old bridge was closed last winter after a long storm. Until it is repaired, trucks have to drive around the lake, "
    "which takes them almost an hour.",
    "She opened the letter slowly, read it once, and put it back on the table. Nobody in the room asked her what it said.",
    "A good map shows more than roads. It tells you where a river can be crossed, how steep a path is, and where you will "
    "find shade in summer.",
)
"""Each is said in less than half a minute, Whisper's window; common words without numbers and names, of one spelling each."""
_NOISE: Final = 0.1
"""Of the speech's own strength, 20 dB below it: a voice is cleaner than any microphone, and noise is where words turn first."""

Samples = npt.NDArray[np.int16]


def read_aloud(files: ModelFiles, folder: Path, threads: int) -> None:
    """Write a reading of each of `PASSAGES`, 0.wav and so on, and what is said in it as 0.txt.

    A model's voices take turns. Of two passages that follow each other one calibrates and one judges (`encoders.sound_network`):
    so pairs are read in silence and in noise by turns.

    Args:
        files: A model that speaks.
        folder: Is there.

    Raises:
        BadModelFile, UnsupportedModel: It cannot be loaded.
        EngineFault: A program that it needs failed.
    """
    speaker, _ = load_speaker(files, threads)
    for number, text in enumerate(PASSAGES):
        rate, sound = _said(speaker, text, speaker.names[number % len(speaker.names)])
        if number % 4 in (2, 3):
            sound = _in_noise(sound, number)
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(sound.astype("<i2").tobytes())
        (folder / f"{number}.txt").write_text(text, encoding="utf-8")


def _said(speaker: Speaker, text: str, voice: str) -> tuple[int, Samples]:
    """Samples a second, and the samples."""
    spoken = speaker.compute(speaker.check(text.encode(), {"voice": voice}).inputs)
    return int(spoken[0][0]["rate"]), np.concatenate([np.frombuffer(samples, np.int16) for _, samples in spoken])


def _in_noise(sound: Samples, seed: int) -> Samples:
    """With white noise, the same for the same seed."""
    level = float(np.sqrt(np.mean(np.square(sound, dtype=np.float64)))) * _NOISE
    noise = np.random.default_rng(seed).normal(0.0, level, len(sound))
    return np.clip(sound + noise, -32_768, 32_767).astype(np.int16)
