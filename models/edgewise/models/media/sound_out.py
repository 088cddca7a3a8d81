"""Sound to files that grow: WAV, FLAC, MP3, Opus, AAC and raw samples, written piece by piece."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, get_args

from edgewise.models.media.resample import Resampler, frame_of

SoundFormat = Literal["wav", "flac", "mp3", "opus", "aac", "pcm"]
SOUND_FORMATS: Final[tuple[str, ...]] = get_args(SoundFormat)
MEDIA_TYPES: Final[Mapping[SoundFormat, str]] = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "pcm": "audio/pcm",
}
PCM_RATE: Final = 24_000
"""Samples a second of "pcm", which has no header to name another: that of OpenAI's."""

_UNKNOWN: Final = 0xFFFFFFFF
_WIDTH: Final = 2


class SoundWriter(Protocol):
    """Signed 16-bit samples of one channel, machine order, to the bytes of a file."""

    def write(self, samples: bytes) -> bytes:
        """What of the file is ready once these samples are added."""

    def close(self) -> bytes:
        """The rest of it; call it once."""


@dataclass(frozen=True, slots=True)
class _Codec:
    """A container of FFmpeg's and its codec. `rate` is the only one that is written; None takes any."""

    container: str
    codec: str
    rate: int | None = None
    bit_rate: int | None = None
    options: Mapping[str, str] | None = None


_CODECS: Final[Mapping[str, _Codec]] = {
    "flac": _Codec("flac", "flac"),
    # Neither a table of seek points nor a tag: both would be written into what has been sent already.
    "mp3": _Codec("mp3", "libmp3lame", bit_rate=64_000, options={"write_xing": "0", "id3v2_version": "0"}),
    "opus": _Codec("ogg", "libopus", 48_000, bit_rate=48_000, options={"page_duration": "200000"}),
    "aac": _Codec("adts", "aac", bit_rate=64_000),
}


def open_sound(format: SoundFormat, rate: int, length: int | None = None) -> SoundWriter:
    """A writer for samples at `rate` a second.

    Args:
        length: Samples that will come; None where nobody knows, which the header of a WAV file then says.
    """
    if format == "wav":
        return _Wav(rate, length)
    if format == "pcm":
        return _Pcm(rate)
    return _Encoded(_CODECS[format], rate)


def wav_header(rate: int, length: int | None) -> bytes:
    """The 44 bytes before 16-bit samples of one channel (RIFF, WAVE_FORMAT_PCM); sizes are 2**32 - 1 where `length` is None."""
    size = _UNKNOWN if length is None else length * _WIDTH
    whole = _UNKNOWN if length is None else size + 36
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", whole, b"WAVE", b"fmt ", 16, 1, 1, rate, rate * _WIDTH, _WIDTH, 16, b"data", size
    )


class _Wav:
    def __init__(self, rate: int, length: int | None) -> None:
        self._head = wav_header(rate, length)

    def write(self, samples: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + samples

    def close(self) -> bytes:
        return self.write(b"")


class _Pcm:
    def __init__(self, rate: int) -> None:
        self._resampler = Resampler(rate, PCM_RATE)

    def write(self, samples: bytes) -> bytes:
        return self._resampler.feed(samples)

    def close(self) -> bytes:
        return self._resampler.flush()


class _Sink:
    """A file that cannot seek, so that nothing is written which is to be mended later."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        return len(piece)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


class _Encoded:
    def __init__(self, codec: _Codec, rate: int) -> None:
        self._sink = _Sink()
        options = dict(codec.options or {})
        self._container = _ffmpeg().open(self._sink, "w", format=codec.container, container_options=options)
        stream: Any = self._container.add_stream(codec.codec, rate=codec.rate or rate)
        stream.layout = "mono"
        if codec.bit_rate is not None:
            stream.bit_rate = codec.bit_rate
        self._stream = stream
        self._rate = rate

    def write(self, samples: bytes) -> bytes:
        if samples:
            self._container.mux(self._stream.encode(frame_of(samples, self._rate)))
        return self._sink.take()

    def close(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()


def _ffmpeg() -> Any:
    """PyAV; loaded by the first request that needs it, since a device that never speaks need not hold it in memory."""
    import av

    return av
