"""Encoded film from callers to frames, evenly spaced in time.

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
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from edgewise.core.errors import InvalidRequest
from edgewise.models.multimodal.layout import Pixels

FORMATS: Final = "MP4 or MOV (H.264, H.265, AV1, MPEG-4), or WebM or Matroska (VP8, VP9, AV1)"
MAX_SECONDS: Final = 3600.0
MAX_PIXELS: Final = 4096 * 2304
"""Of a frame."""
FPS: Final = 2.0
"""Frames that are looked at in each second where nobody says otherwise, as Qwen's models were trained."""
_CODECS: Final = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg4", "mjpeg", "libvpx", "libvpx-vp9"})
_STARTS: Final[Mapping[bytes, str]] = {b"\x1a\x45\xdf\xa3": "matroska"}
_SEEK_S: Final = 4.0
"""Gaps longer than this are jumped, to the key frame before the next frame that is wanted, instead of being decoded."""
_DAMAGED: Final = 100
"""Damaged frames in a row after which a film counts as cut off."""


@contextmanager
def open_film(data: bytes, param: str) -> Iterator[Film]:
    """Raises:
    InvalidRequest: No film of a known format, damaged, cut off, or beyond a limit; also while its frames are read.
    """
    kind = _kind(data, param)
    options = {"protocol_whitelist": "", "format_whitelist": kind}
    try:
        with av.open(io.BytesIO(data), format=kind, options=options) as file:
            yield Film(file, param)
    except FFmpegError as error:
        raise _damaged(param, len(data), error.strerror) from error


class Film:
    """An open film.

    Attributes:
        seconds: Its length.
        size: (width, height) of its frames, upright once the first has been read.
    """

    def __init__(self, file: InputContainer, param: str) -> None:
        stream = next(iter(file.streams.video), None)
        if stream is None or stream.codec_context is None:
            raise InvalidRequest(f"'{param}' has no pictures in it: send {FORMATS}.", param=param)
        if stream.codec_context.name not in _CODECS:
            raise InvalidRequest(
                f"'{param}' is coded as {stream.codec_context.name}, which is not read here: send {FORMATS}.",
                param=param,
            )
        stream.codec_context.thread_count = 1
        self._file = file
        self._stream: VideoStream = stream
        self._param = param
        self._check_size(stream.codec_context.width, stream.codec_context.height)
        self.size = (stream.codec_context.width, stream.codec_context.height)
        self.seconds = self._length()

    def count(self, *, fps: float | None, frames: int | None, most: int) -> int:
        """How many frames to look at: `frames`, or `fps` for each second, and no more than `most`."""
        return frames_of(self.seconds, fps=fps, frames=frames, most=most)

    def frames(self, count: int) -> Iterator[Pixels]:
        """`count` frames, the first at the beginning, the others `seconds / count` apart; each is the one shown at its time.

        A film with fewer shows some twice.
        """
        every = self.seconds / count
        shown: VideoFrame | None = None
        decoded = self._decoded(0.0)
        ahead = next(decoded, None)
        for index in range(count):
            wanted = index * every
            if ahead is not None and wanted - _time(ahead) > _SEEK_S:
                decoded = self._decoded(wanted)
                ahead = next(decoded, ahead)
            while ahead is not None and (shown is None or _time(ahead) <= wanted):
                shown, ahead = ahead, next(decoded, None)
            if shown is None:
                raise _damaged(self._param, 0, "no frame can be decoded")
            yield self._pixels(shown)

    def _decoded(self, start_s: float) -> Iterator[VideoFrame]:
        """Frames from the key frame before `start_s` on."""
        if start_s:
            self._file.seek(int(start_s * av.time_base), backward=True)
        damaged = 0
        for packet in self._file.demux(self._stream):
            try:
                frames = packet.decode()
            except FFmpegError:  # one bad packet is no reason to refuse a film; many are
                damaged += 1
                if damaged > _DAMAGED:
                    raise
                continue
            for frame in frames:
                if isinstance(frame, VideoFrame) and frame.time is not None:
                    self._check_size(frame.width, frame.height)
                    yield frame

    def _pixels(self, frame: VideoFrame) -> Pixels:
        pixels = frame.to_ndarray(format="rgb24")
        turned = np.ascontiguousarray(np.rot90(pixels, k=round(frame.rotation / 90) % 4))
        self.size = (turned.shape[1], turned.shape[0])
        return turned.astype(np.uint8, copy=False)

    def _length(self) -> float:
        """As the file says, or counted where it does not."""
        stream, file = self._stream, self._file
        if stream.duration is not None and stream.time_base is not None:
            seconds = float(stream.duration * stream.time_base)
        elif file.duration is not None:
            seconds = file.duration / av.time_base
        else:
            last = max((_time(frame) for frame in self._decoded(0.0)), default=0.0)
            file.seek(0)
            seconds = last + 1.0 / FPS
        if seconds > MAX_SECONDS:
            raise InvalidRequest(
                f"'{self._param}' lasts {seconds:.0f} s: at most {MAX_SECONDS:g} s are taken. Cut it.",
                param=self._param,
            )
        return max(seconds, 1e-3)

    def _check_size(self, width: int, height: int) -> None:
        if width * height > MAX_PIXELS:
            raise InvalidRequest(
                f"'{self._param}' has frames of {width} x {height} pixels: at most {MAX_PIXELS} are taken. Make it smaller.",
                param=self._param,
            )


def frames_of(seconds: float, *, fps: float | None, frames: int | None, most: int) -> int:
    """See `Film.count`."""
    asked = frames if frames is not None else round(seconds * (FPS if fps is None else fps))
    return max(1, min(asked, most))


def _time(frame: VideoFrame) -> float:
    return float(frame.time or 0.0)


def _kind(data: bytes, param: str) -> str:
    """FFmpeg's name of the format, by the file's first bytes."""
    head = data[:16]
    if head[4:8] == b"ftyp":
        return "mov"
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    raise InvalidRequest(
        f"'{param}' is no film in a format that is read here ({len(data)} bytes): send {FORMATS}.", param=param
    )


def _damaged(param: str, size: int, why: Any) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' is damaged or cut off ({size} bytes; {why}): send the whole file, or save it again.", param=param
    )
