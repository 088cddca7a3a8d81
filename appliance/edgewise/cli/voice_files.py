"""WAV files in place of a microphone and a speaker, at their own pace."""

from __future__ import annotations

import asyncio
import time
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO

import numpy as np

from edgewise.cli.voice_sound import BLOCK_S, RATE
from edgewise.core.errors import InvalidRequest, NotFound
from edgewise.core.files import translate_os_errors
from edgewise.models.media.resample import Resampler
from edgewise.pipeline.voice.sound import WIDTH, Pace


class FileSource:
    """A WAV file as if it were spoken now, then silence."""

    overflows = 0

    def __init__(self, path: Path) -> None:
        self._samples = read_wav(path)
        self.ended_at: float | None = None

    async def blocks(self) -> AsyncIterator[bytes]:
        size = int(RATE * BLOCK_S) * WIDTH
        begun, number = time.monotonic(), 0
        while True:
            block = self._samples[number * size : (number + 1) * size]
            if len(block) < size and self.ended_at is None:
                self.ended_at = time.monotonic()
            yield block.ljust(size, b"\0")
            number += 1
            await asyncio.sleep(max(0.0, begun + number * BLOCK_S - time.monotonic()))


class FileSink:
    """Keeps what a speaker would have played, and knows when it would have been heard."""

    underflows = 0

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._pace = Pace(0.0)
        self._item: str | None = None
        self._start = 0

    @property
    def playing(self) -> bool:
        return self._pace.playing(time.monotonic())

    @property
    def samples(self) -> bytes:
        return b"".join(self._pieces)

    def play(self, item_id: str, samples: bytes) -> None:
        if item_id != self._item:
            self._item, self._pace, self._start = item_id, Pace(0.0), len(self.samples)
        self._pieces.append(samples)
        self._pace.sent(len(samples) / WIDTH / RATE, time.monotonic())

    def stop(self) -> tuple[str, int] | None:
        if self._item is None or not self.playing:
            return None
        played_s = self._pace.played_s(time.monotonic())
        self._pieces = [self.samples[: self._start + int(played_s * RATE) * WIDTH]]
        item, self._item = self._item, None
        return item, int(played_s * 1000)


def read_wav(path: Path) -> bytes:
    """The samples of a file at `RATE`, its channels mixed to one.

    Raises:
        InvalidRequest: It is no WAV file of 16-bit samples.
    """
    try:
        with _open(path, "rb") as content, wave.open(content) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise InvalidRequest(f"{path} is no WAV file: {error or 'it is cut'}.", param="--file") from error
    if width != WIDTH:
        raise InvalidRequest(
            f"{path} has samples of {8 * width} bits: 16 are read. `ffmpeg -i FILE -c:a pcm_s16le OUT.wav` converts it.",
            param="--file",
        )
    values = np.frombuffer(frames[: len(frames) // (WIDTH * channels) * WIDTH * channels], dtype="<i2")
    mixed = values.reshape(-1, channels).astype(np.int32).mean(axis=1).astype("<i2").tobytes()
    resampler = Resampler(rate, RATE)
    return resampler.feed(mixed) + resampler.flush()


def _open(path: Path, mode: str) -> IO[bytes]:
    """Raises `NotFound` or `StorageError`."""
    try:
        with translate_os_errors("open", path):
            return path.open(mode)
    except OSError as error:
        raise NotFound(f"{path} cannot be opened: {(error.strerror or str(error)).lower()}.") from error


def write_wav(path: Path, samples: bytes) -> None:
    with _open(path, "wb") as content, wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(WIDTH)
        file.setframerate(RATE)
        file.writeframes(samples)
