"""Sound for tests: encoded in any format, and 20 files that are none or are broken."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping

import av
import numpy as np
import numpy.typing as npt

FORMATS: Mapping[str, tuple[str, str, int, str]] = {
    "wav": ("wav", "pcm_s16le", 44_100, "stereo"),
    "wav of 8 bits": ("wav", "pcm_u8", 8000, "mono"),
    "wav of floats": ("wav", "pcm_f32le", 48_000, "5.1"),
    "flac": ("flac", "flac", 48_000, "stereo"),
    "mp3": ("mp3", "libmp3lame", 44_100, "stereo"),
    "ogg opus": ("ogg", "libopus", 48_000, "mono"),
    "m4a": ("mp4", "aac", 44_100, "stereo"),
    "alac": ("mp4", "alac", 44_100, "stereo"),
    "webm": ("webm", "libopus", 48_000, "stereo"),
    "aac": ("adts", "aac", 22_050, "mono"),
    "aiff": ("aiff", "pcm_s16be", 22_050, "mono"),
}
"""Container, codec, rate and layout."""


def tone(seconds: float, *, hertz: float = 440.0, rate: int = 16_000) -> npt.NDArray[np.float32]:
    """[samples], half of full scale."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def wav(samples: npt.NDArray[np.float32], rate: int = 16_000) -> bytes:
    """A WAV file of 16 bits, mono."""
    body = (np.clip(samples, -1, 1) * 32_767).astype("<i2").tobytes()
    head = struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 36 + len(body), b"WAVEfmt ", 16, 1, 1, rate, 2 * rate, 2, 16, b"data", len(body)
    )
    return head + body


def encode(samples: npt.NDArray[np.float32], name: str, *, rate: int = 16_000) -> bytes:
    """`samples` as `FORMATS[name]`, the same in every channel."""
    container, codec, out_rate, layout = FORMATS[name]
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, rate=out_rate, layout=layout)
        assert isinstance(stream, av.AudioStream)
        resampler = av.AudioResampler(stream.format, layout, out_rate, stream.codec_context.frame_size or 1024)
        channels = stream.codec_context.channels
        frame = av.AudioFrame.from_ndarray(np.repeat(samples[None], channels, axis=0), format="fltp", layout=layout)
        frame.sample_rate = rate
        for given in (frame, None):
            for part in resampler.resample(given):
                file.mux(stream.encode(part))
        file.mux(stream.encode(None))
    return out.getvalue()


def bad_sounds() -> dict[str, bytes]:
    """20 files that no samples can be had of, by what is wrong with them."""
    good = wav(tone(0.5))
    mp3, opus, m4a = (encode(tone(0.5), name) for name in ("mp3", "ogg opus", "m4a"))
    return {
        "empty": b"",
        "one byte": b"R",
        "text": b"this is no sound at all",
        "zeros": bytes(5000),
        "header alone": good[:44],
        "half a header": good[:20],
        "chunk past the end": bytes.fromhex("52494646ffff fb4757415645000000 494600fffb30000a"),
        "no rate": good[:24] + bytes(4) + good[28:],
        "no channels": good[:22] + bytes(2) + good[24:],
        "unknown coding": good[:20] + b"\x99\x09" + good[22:],
        "windows media": bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + bytes(3000),
        "amr": b"#!AMR\n" + bytes(300),
        "ogg of nothing": b"OggS" + bytes(3000),
        "first page of ogg": opus[:60],
        "flac of nothing": b"fLaC" + bytes(4000),
        "tag without music": b"ID3\x04\x00\x00\x00\x00\x0f\x76" + bytes(2038),
        "sync words alone": bytes([0xFF, 0xFB]) * 4000,
        "end of mp4 alone": m4a[:40],
        "webm of nothing": b"\x1a\x45\xdf\xa3" + bytes(999),
        "a picture": b"\x89PNG\r\n\x1a\n" + mp3[:400],
    }
