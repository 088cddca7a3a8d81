"""Films for a model without eyes: pictures at even times are looked at, and it is told what was seen when."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edgewise.core.errors import InvalidRequest
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest, EncodeStats
from edgewise.models.media.fitting import film_pictures
from edgewise.models.media.pictures import read_rgb
from edgewise.models.media.process import MediaProcess
from edgewise.pipeline.look_words import MOST_CHARACTERS, film_words
from edgewise.pipeline.media import MediaDesk
from edgewise.pipeline.model import Models
from edgewise.pipeline.task import ChatInput, Task
from tests.fakes.serving import fake_model
from tests.models.media.test_video import SIZE, film
from tests.pipeline.test_media import PICTURE, Installed, Looking, attachment, desk, pressed, task, url

FILM = {"type": "video"}
PARAM = "messages[0].content[0].video_url.url"


class Brightness(Looking):
    """A double that reads a picture's brightness, which in these films tells the time in steps of 3."""

    async def _answer(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        pixels = read_rgb(request.content, "image")
        seconds = round((float(pixels.mean()) - 20) / 3 / 5) / 2  # to half a second: coding shifts brightness a little
        seen = {"lines": [{"text": f"clock {seconds:.1f}"}], "width": pixels.shape[1], "height": pixels.shape[0]}
        stats = EncodeStats(queued_s=0.001, compute_s=0.01, batch=1)
        yield EncodeChunk(request_id=request.id, finish="done", result=seen, stats=stats)


def film_url(data: bytes) -> str:
    return "data:video/mp4;base64," + base64.b64encode(data).decode()


def film_of(*urls: str, **fields: Any) -> Any:
    return attachment(kind="video", param=PARAM, urls=urls, **fields)


@pytest.fixture
def blind() -> Iterator[MediaDesk]:
    made = desk(Installed(ocr=Brightness({}), vision=Looking({"labels": [{"name": "clock", "score": 0.9}]})))
    yield made
    made.process.close()


def prompt_of(found: Task) -> str:
    assert isinstance(found.input, ChatInput)
    return str(found.input.messages[0]["content"])


async def test_pictures_of_a_film_become_words_with_their_times(blind: MediaDesk) -> None:
    given = film_of(film_url(film(4.0)), frames=4)
    found = await blind.gather(task(fake_model(), "what happens?", FILM, attachments=(given,)))
    assert prompt_of(found) == (
        "what happens?\nA film of 4.0 s, of which 4 pictures were looked at.\n"
        "At 0.0 s: Text in it:\nclock 0.0\nIt shows: clock.\nAt 1.0 s: Text in it:\nclock 1.0\nIt shows: clock.\n"
        "At 2.0 s: Text in it:\nclock 2.0\nIt shows: clock.\nAt 3.0 s: Text in it:\nclock 3.0\nIt shows: clock."
    )
    assert found.warnings == (
        f"The model 'tiny' has no eyes: 'the-ocr' and 'the-vision' looked at 4 frames of '{PARAM}', and it was told what "
        "they saw.",
    )


async def test_the_receipt_says_who_looked_at_how_many_pictures(blind: MediaDesk) -> None:
    given = film_of(film_url(film(4.0)), frames=4)
    found = await blind.gather(task(fake_model(), FILM, attachments=(given,)))
    assert [(one.model, one.of, one.frames) for one in found.looks] == [("the-ocr", PARAM, 4), ("the-vision", PARAM, 4)]
    assert found.looks[0].compute_ms == pytest.approx(40.0)
    assert [use.inputs for use in found.looks[0].encoders] == [4]
    (medium,) = found.media
    assert (medium.kind, medium.frames) == ("video", 4)
    assert medium.every_s == pytest.approx(1.0, abs=0.1)
    assert (medium.width, medium.height, medium.tokens) == (*SIZE, 0)


async def test_pictures_are_at_most_as_many_as_configured_and_fewer_under_pressure() -> None:
    given = film_of(film_url(film(6.0)))
    for level, most, seen in ((0, 8, 8), (0, 3, 3), (1, 8, 4)):
        one = desk(Installed(ocr=Brightness({})), look_frames=most, pressure=pressed(level))
        found = await one.gather(task(fake_model(), FILM, attachments=(given,)))
        assert found.media[0].frames == found.looks[0].frames == seen
        assert any("frames of film stepped down from 8" in it for it in found.warnings) == (level > 0)
        one.process.close()


async def test_frames_that_are_sent_one_by_one_are_a_film_too(blind: MediaDesk) -> None:
    urls = tuple(url(60, 40, shade) for shade in (0, 0, 0, 240))
    found = await blind.gather(task(fake_model(), FILM, attachments=(film_of(*urls, fps=1.0),)))
    assert found.media[0].frames == 4
    told = prompt_of(found)
    assert "of which 4 pictures were looked at.\nFrom 0.0 s to 2.0 s: Text in it:\n" in told
    assert "\nAt 3.0 s: Text in it:\n" in told


async def test_films_and_pictures_keep_their_places(blind: MediaDesk) -> None:
    first, second = film_of(film_url(film(1.0)), frames=1), attachment(3)
    found = await blind.gather(task(fake_model(), "a", FILM, "b", PICTURE, "c", attachments=(first, second)))
    told = prompt_of(found)
    assert told.startswith(
        "a\nA film of 1.0 s, of which one picture was looked at.\nAt 0.0 s: Text in it:\nclock 0.0\n"
    )
    assert "\nb\nA picture. Text in it:\n" in told
    assert told.endswith("\nc")
    assert "looked at a picture and 1 frames" in found.warnings[0]


async def test_who_cannot_look_at_a_film_says_what_to_install() -> None:
    given = film_of(film_url(film(1.0)))
    with pytest.raises(InvalidRequest, match=r"is a film.*has no eyes.*models pull rapidocr"):
        await desk(Models([fake_model()])).gather(task(fake_model(), FILM, attachments=(given,)))
    with pytest.raises(InvalidRequest, match=r"is a film.*switch `vision\.look` on"):
        await desk(Installed(ocr=Brightness({})), look=False).gather(task(fake_model(), FILM, attachments=(given,)))
    broken = film_of(film_url(film(1.0)[:200]))
    one = desk(Installed(ocr=Brightness({})))
    with pytest.raises(InvalidRequest, match="damaged or cut off"):
        await one.gather(task(fake_model(), FILM, attachments=(broken,)))
    one.process.close()


def test_text_of_a_whole_film_is_bounded_and_told_to_be() -> None:
    frames: list[Any] = [{"ocr": {"lines": [{"text": letter * 1500}]}} for letter in "abcd"]
    told, cut = film_words(frames, 0.5)
    assert cut
    assert [told.count(letter * 100) > 0 for letter in "abcd"] == [True, True, True, False]
    assert sum(told.count(letter) for letter in "bcd") - told.count("\n") < MOST_CHARACTERS
    assert film_words(frames[:2], 0.5)[1] is False


def test_pictures_of_films_are_nearly_as_they_were(tmp_path: Any) -> None:
    """What reads text in them loses nothing to speak of, also where a picture is too long for JPEG."""
    process = MediaProcess()
    rng = np.random.default_rng(0)
    for shape, kind in (((40, 60, 3), "JPEG"), ((2, 66_000, 3), "PNG")):
        pixels = np.repeat(np.repeat(rng.integers(0, 255, (shape[0] // 2, shape[1] // 2, 3), np.uint8), 2, 0), 2, 1)
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        found = film_pictures(process, [out.getvalue()], "video", fps=None, frames=None, most=8)
        assert Image.open(io.BytesIO(found.pictures[0])).format == kind
        assert found.came == (shape[1], shape[0])
        got = read_rgb(found.pictures[0], "image")
        assert np.abs(got.astype(int) - pixels).mean() < 4
    process.close()
