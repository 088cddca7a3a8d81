"""Encoded sound from callers to samples: its first bytes say what it is, its length is checked before and while it is decoded.

Runs in the media process (`models.media.process`). Read by FFmpeg through PyAV, told which format it is: left to guess, FFmpeg
would also try formats that open other files.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.container import InputContainer
from av.error import FFmpegError

from edgewise.core.errors import InvalidRequest
from edgewise.core.sizes import mib
from edgewise.models.media.rates import RATE
from edgewise.models.media.sound_limits import MAX_BYTES, MAX_SECONDS

FORMATS: Final = "WAV, FLAC, MP3, Ogg (Opus, Vorbis, FLAC), M4A or MP4 (AAC, ALAC), WebM, AAC or AIFF"
_CODECS: Final = frozenset({"flac", "mp3", "mp3float", "mp2", "mp2float", "vorbis", "opus", "aac", "alac", "libopus"})
_DAMAGED: Final = (FFmpegError, ValueError, ArithmeticError, LookupError)
"""What PyAV raises on hostile files."""
_DAMAGED_SHARE: Final = 100
"""One in so many packets may be damaged; a recording that has more is refused."""

Samples = npt.NDArray[np.float32]


def decode(
    data: bytes,
    param: str,
    *,
    rate: int = RATE,
    max_bytes: int = MAX_BYTES,
    max_seconds: float = MAX_SECONDS,
    booked_seconds: float | None = None,
) -> tuple[dict[str, Any], bytes]:
    """A recording's first audio track, its channels mixed to one.

    Args:
        data: The file.
        param: The field that it came in, for messages.
        rate: Samples a second that are asked for.
        max_bytes, max_seconds: More is refused.
        booked_seconds: For which there is memory: where more is there than that, decoding stops, and all that is returned is
            that there is "more". None for as much as is there.

    Returns:
        "format", "codec", "rate" and "channels" of the file, "seconds", "claimed" (seconds by its header, None without),
        "damaged" (packets that were left out); and float32 samples in [-1, 1], little-endian.

    Raises:
        InvalidRequest: No sound of a known format, cut off before any, damaged, or beyond a limit.
    """
    with _opened(data, param, max_bytes) as file:
        return _read(file, param, rate, max_seconds, max_seconds if booked_seconds is None else booked_seconds)


def claimed_seconds(data: bytes, param: str, max_bytes: int, max_seconds: float) -> float | None:
    """How long a recording is by its header, which may be wrong; None where it does not say. Raises as `decode`."""
    with _opened(data, param, max_bytes) as file:
        return _claimed(file, param, max_seconds)


@contextmanager
def _opened(data: bytes, param: str, max_bytes: int) -> Iterator[InputContainer]:
    check_size(len(data), param, max_bytes)
    kind = _kind(data, param)
    try:
        with av.open(
            io.BytesIO(data),
            format=kind,
            options={"protocol_whitelist": "", "format_whitelist": kind},
            metadata_errors="replace",  # titles are in any encoding, and nobody reads them here
        ) as file:
            yield file
    except _DAMAGED as error:
        reason = error.strerror if isinstance(error, FFmpegError) else type(error).__name__
        raise InvalidRequest(
            f"'{param}' is damaged or cut off ({len(data)} bytes; {reason}): send the whole file, or save it again.",
            param=param,
        ) from error


def check_size(size: int, param: str, max_bytes: int = MAX_BYTES) -> None:
    """Raises `InvalidRequest` for an empty file and one with more than `max_bytes`."""
    if not size:
        raise InvalidRequest(f"'{param}' is empty: send {FORMATS}.", param=param)
    if size > max_bytes:
        raise InvalidRequest(
            f"'{param}' has {mib(size)}: at most {mib(max_bytes)} are taken. Send it compressed (Opus, MP3) or in parts.",
            param=param,
        )


def _kind(data: bytes, param: str) -> str:
    """FFmpeg's name of the format, by the file's first bytes."""
    head = data[:16]
    if head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE":
        return "wav"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "aiff"
    if head[4:8] == b"ftyp":
        return "mov"
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "aac" if head[1] & 0xF6 == 0xF0 else "mp3"
    raise InvalidRequest(f"'{param}' is in no format that is read here{_named(head)}: send {FORMATS}.", param=param)


_STARTS: Final[Mapping[bytes, str]] = {
    b"fLaC": "flac",
    b"OggS": "ogg",
    b"ID3": "mp3",
    b"\x1a\x45\xdf\xa3": "matroska",
}
_KNOWN: Final[Mapping[bytes, str]] = {
    b"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "Windows Media (WMA)",
    b"#!AMR": "AMR",
    b"MThd": "MIDI",
    b".snd": "AU",
    b"%PDF": "PDF",
    b"\x89PNG": "PNG",
    b"PK\x03\x04": "ZIP",
}


def _named(head: bytes) -> str:
    return next((f" ({name})" for start, name in _KNOWN.items() if head.startswith(start)), "")


def _read(
    file: InputContainer, param: str, rate: int, max_seconds: float, booked_seconds: float
) -> tuple[dict[str, Any], bytes]:
    stream = next(iter(file.streams.audio), None)
    if stream is None:
        raise InvalidRequest(f"'{param}' has no audio track: send {FORMATS}.", param=param)
    context = stream.codec_context
    codec = "an unknown codec" if context is None else context.name  # PyAV's types do not say that it may be None
    if codec not in _CODECS and not codec.startswith("pcm_"):
        raise InvalidRequest(f"'{param}' is coded as {codec}, which is not read here: send {FORMATS}.", param=param)
    claimed = _claimed(file, param, max_seconds)
    context.thread_count = 1
    reading = _Reading(file, rate)
    parts: list[Samples] = []
    most, length = int(max_seconds * rate), 0
    for part in reading.samples():
        length += part.shape[0]
        if length > most:
            raise _too_long(param, "more", max_seconds)
        if length > booked_seconds * rate:
            return {"more": True}, b""
        if not np.isfinite(part).all():
            raise InvalidRequest(
                f"'{param}' is damaged: some of its samples are no numbers (NaN or infinite). Save it again.",
                param=param,
            )
        parts.append(part)
    if not length:
        raise InvalidRequest(f"'{param}' has no sound in it: it may be cut off after its header.", param=param)
    if reading.damaged > max(1, reading.packets // _DAMAGED_SHARE):
        raise InvalidRequest(
            f"'{param}' is damaged: {reading.damaged} of {reading.packets} packets cannot be decoded. Save it again.",
            param=param,
        )
    found = {
        "format": file.format.name,
        "codec": codec,
        "rate": context.sample_rate,
        "channels": context.channels,
        "seconds": length / rate,
        "claimed": claimed,
        "damaged": reading.damaged,
    }
    whole = np.concatenate(parts)
    parts.clear()  # an hour is 230 MB, once is enough
    np.clip(whole, -1.0, 1.0, out=whole)
    return found, whole.astype("<f4", copy=False).tobytes()


def _claimed(file: InputContainer, param: str, max_seconds: float) -> float | None:
    claimed = None if file.duration is None else file.duration / av.time_base
    if claimed is not None and claimed > max_seconds + 1:
        raise _too_long(param, f"{claimed:.0f} s", max_seconds)
    return claimed


def _too_long(param: str, length: str, most: float) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' lasts {length}: at most {most:g} s are taken at once. Send it in parts.", param=param
    )


class _Reading:
    """Decodes packet by packet, mixes to one channel and resamples (libswresample, polyphase with a window of 64 taps)."""

    def __init__(self, file: InputContainer, rate: int) -> None:
        self._file = file
        self._rate = rate
        self.packets = 0
        self.damaged = 0

    def samples(self) -> Iterator[Samples]:
        resampler: av.AudioResampler | None = None
        for frame in self._frames():
            if resampler is None:
                resampler = av.AudioResampler(format="fltp", layout=frame.layout, rate=self._rate)
            yield from map(_mixed, resampler.resample(frame))
        if resampler is not None:
            yield from map(_mixed, resampler.resample(None))

    def _frames(self) -> Iterator[AudioFrame]:
        for packet in self._file.demux(audio=0):
            self.packets += 1
            try:
                frames = packet.decode()
            except FFmpegError:  # one bad packet is no reason to refuse an hour of talk; how many is counted and told
                self.damaged += 1
                continue
            for frame in frames:
                if isinstance(frame, AudioFrame):
                    frame.pts = (
                        None  # gaps and jumps of a container's clock are not filled: what is there is what is heard
                    )
                    yield frame


def _mixed(frame: AudioFrame) -> Samples:
    channels = frame.to_ndarray()
    mixed: Samples = channels.mean(axis=0, dtype=np.float32) if channels.shape[0] > 1 else channels[0]
    return mixed
