"""16-bit sound of one channel to another rate, piece by piece."""

from __future__ import annotations

from typing import Any


class Resampler:
    """Samples of one rate to another (FFmpeg's swresample, polyphase). FFmpeg is loaded only where the rates differ."""

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._resampler: Any = None
        if source != target:
            import av

            self._resampler = av.AudioResampler("s16", "mono", target)

    def feed(self, samples: bytes) -> bytes:
        """What is ready once these are added; whole samples only."""
        if self._resampler is None or not samples:
            return samples
        return _joined(self._resampler.resample(frame_of(samples, self._source)))

    def flush(self) -> bytes:
        """The rest; nothing may be fed after it."""
        return b"" if self._resampler is None else _joined(self._resampler.resample(None))


def frame_of(samples: bytes, rate: int) -> Any:
    """Signed 16-bit samples of one channel as PyAV takes them."""
    import av

    frame = av.AudioFrame("s16", "mono", len(samples) // 2, 1)
    frame.planes[0].update(samples)
    frame.sample_rate = rate
    return frame


def _joined(frames: list[Any]) -> bytes:
    return b"".join(frame.to_ndarray().tobytes() for frame in frames)
