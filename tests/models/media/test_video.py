"""Film of callers: formats, times of frames, jumps, rotation, what is damaged or too large, and frames sent one by one."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from edgewise.core.errors import InvalidRequest
from edgewise.models.files import ModelFiles
from edgewise.models.media import video
from edgewise.models.media.fitting import FilmWish, FittedFilm, fit_film
from edgewise.models.media.process import MediaProcess
from edgewise.models.media.video import open_film
from edgewise.models.tiny import local_files
from tests.models.multimodal.tiny_qwen import tiny_qwen

FPS = 10
SIZE = (64, 48)


def film(
    seconds: float, *, kind: str = "mp4", codec: str = "mpeg4", size: tuple[int, int] = SIZE, gap: int = 12
) -> bytes:
    """Its frames become brighter by 3 each: brightness tells the time."""
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as file:
        stream: Any = file.add_stream(codec, rate=FPS)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.gop_size = gap
        for index in range(round(seconds * FPS)):
            pixels = np.full((size[1], size[0], 3), min(255, 20 + 3 * index), np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                file.mux(packet)
        for packet in stream.encode():
            file.mux(packet)
    return out.getvalue()


def times(data: bytes, count: int) -> list[float]:
    """Seconds at which the frames that are looked at are shown, by their brightness."""
    with open_film(data, "video") as opened:
        return [round((float(frame.mean()) - 20) / 3) / FPS for frame in opened.frames(count)]


@pytest.mark.parametrize(
    ("kind", "codec"),
    [("mp4", "mpeg4"), ("mp4", "libx264"), ("mov", "mpeg4"), ("webm", "libvpx-vp9"), ("matroska", "libx264")],
)
def test_frames_are_those_of_their_times(kind: str, codec: str) -> None:
    data = film(3.0, kind=kind, codec=codec)
    with open_film(data, "video") as opened:
        assert opened.seconds == pytest.approx(3.0, abs=0.15)
    assert times(data, 6) == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5], abs=0.15)
    assert times(data, 1) == [0]


def test_long_gaps_are_jumped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same frames with jumps as without."""
    data = film(7.0, gap=5)
    plain = times(data, 4)
    monkeypatch.setattr(video, "_SEEK_S", 0.5)
    assert times(data, 4) == plain == pytest.approx([0, 1.7, 3.5, 5.2], abs=0.11)


def test_how_many_frames_are_looked_at() -> None:
    with open_film(film(4.0), "video") as opened:
        assert opened.count(fps=None, frames=None, most=100) == 8
        assert opened.count(fps=5, frames=None, most=100) == 20
        assert opened.count(fps=None, frames=3, most=100) == 3
        assert opened.count(fps=5, frames=None, most=7) == 7
        assert opened.count(fps=0.01, frames=None, most=100) == 1


def test_a_film_with_few_frames_shows_some_twice() -> None:
    assert len(times(film(0.3), 8)) == 8


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        film(1.0)[:40],
        film(1.0)[: len(film(1.0)) // 2],
        b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 300,
        b"\x1a\x45\xdf\xa3" + b"\xff" * 300,
        b"#EXTM3U\nfile:///etc/hostname\n",
        b"RIFF\x00\x00\x00\x00AVI LIST",
    ],
)
def test_what_is_no_film_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused, open_film(data, "messages[0]") as opened:
        list(opened.frames(2))
    assert refused.value.param == "messages[0]"
    assert "hostname" not in refused.value.message


def test_a_film_that_was_held_upright_is_turned() -> None:
    """The matrix in the track's header turns by 90 degrees clockwise, as telephones write it: what is left comes above."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream: Any = file.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        pixels = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
        pixels[:, : SIZE[0] // 2] = 255
        for _ in range(5):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        file.mux(stream.encode())
    data = bytearray(out.getvalue())
    matrix = data.index(b"tkhd") + 4 + 40
    data[matrix : matrix + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)
    with open_film(bytes(data), "video") as opened:
        (frame,) = opened.frames(1)
        assert opened.size == (SIZE[1], SIZE[0])
    assert frame.shape == (SIZE[0], SIZE[1], 3)
    assert frame[:20].mean() > 230
    assert frame[-20:].mean() < 25


def test_large_frames_and_long_films_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_PIXELS", 64 * 47)
    with pytest.raises(InvalidRequest, match="64 x 48"), open_film(film(1.0), "video"):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(video, "MAX_SECONDS", 0.5)
    with pytest.raises(InvalidRequest, match="lasts 1 s"), open_film(film(1.0), "video"):
        pass


@pytest.fixture(scope="module")
def process() -> Iterator[MediaProcess]:
    made = MediaProcess()
    yield made
    made.close()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return local_files(tiny_qwen(tmp_path_factory.mktemp("qwen")))


def fitted(process: MediaProcess, files: ModelFiles, *data: bytes, **wish: Any) -> FittedFilm:
    wanted = {"fps": None, "frames": None, "max_tokens": 400, "max_pixels": None, **wish}
    return fit_film(process, files, data, "video", FilmWish(**wanted))


def test_a_film_is_fitted_in_the_media_process(process: MediaProcess, qwen: ModelFiles) -> None:
    found = fitted(process, qwen, film(2.0))
    (part,) = found.parts
    assert (found.frames, found.every_s, found.came) == (4, 0.5, SIZE)
    assert part.media[0].kind == "video"
    assert part.media[0].shape[0] == 4
    assert part.media[0].count <= 400
    assert fitted(process, qwen, film(2.0), frames=2, max_pixels=28 * 28).parts[0].media[0].count == 1


def test_pictures_are_the_frames_of_a_film(process: MediaProcess, qwen: ModelFiles) -> None:
    stills = []
    for shade in range(5):
        out = io.BytesIO()
        Image.new("RGB", SIZE, (40 * shade, 0, 0)).save(out, "PNG")
        stills.append(out.getvalue())
    found = fitted(process, qwen, *stills, fps=1.0)
    assert (found.frames, found.every_s, found.came) == (5, 1.0, SIZE)
    medium = found.parts[0].media[0]
    pixels = np.frombuffer(medium.content, np.uint8).reshape(medium.shape)
    assert [int(frame[0, 0, 0]) for frame in pixels] == [0, 40, 80, 120, 160, 160]  # pairs: the last one twice


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_a_picture_that_moves_is_a_film(process: MediaProcess, qwen: ModelFiles, form: str) -> None:
    """Four frames of 0.2, 0.4, 0.2 and 0.2 s: half a second has passed when the second one is shown."""
    out = io.BytesIO()
    stills = [Image.new("RGB", SIZE, (60 * shade, 0, 0)) for shade in range(4)]
    lossless = {"lossless": True} if form == "WEBP" else {}
    stills[0].save(out, form, save_all=True, append_images=stills[1:], duration=[200, 400, 200, 200], **lossless)
    found = fitted(process, qwen, out.getvalue(), frames=4)
    medium = found.parts[0].media[0]
    pixels = np.frombuffer(medium.content, np.uint8).reshape(medium.shape)
    assert (found.frames, found.every_s, found.came) == (4, 0.25, SIZE)
    assert [round(int(frame[0, 0, 0]) / 60) for frame in pixels] == [0, 1, 1, 2]
    assert fitted(process, qwen, out.getvalue()).frames == 2  # two a second


def test_a_picture_that_stands_still_is_a_film_of_one_frame(process: MediaProcess, qwen: ModelFiles) -> None:
    out = io.BytesIO()
    Image.new("RGB", SIZE).save(out, "PNG")
    assert fitted(process, qwen, out.getvalue()).frames == 1
    with pytest.raises(InvalidRequest, match="damaged or cut off"):
        fitted(process, qwen, out.getvalue()[:-30])


def test_a_model_that_takes_pictures_sees_frames(process: MediaProcess, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(
        '{"architectures": ["SmolVLMForConditionalGeneration"], "vision_config": {"image_size": 56, "patch_size": 14}}'
    )
    Idefics3ImageProcessorPil(size={"longest_edge": 224}, max_image_size={"longest_edge": 56}).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    found = fitted(process, local_files(tmp_path), film(3.0), max_pixels=56 * 56, max_tokens=13)
    assert (len(found.parts), found.frames) == (3, 3)
    assert found.every_s == pytest.approx(1.0, abs=0.1)
    assert all(part.media[0].kind == "image" and part.media[0].count == 4 for part in found.parts)


def test_a_broken_film_costs_one_request(process: MediaProcess, qwen: ModelFiles) -> None:
    with pytest.raises(InvalidRequest, match="'video' is damaged or cut off"):
        fitted(process, qwen, film(1.0)[:200])
    assert fitted(process, qwen, film(1.0)).frames == 2
