"""The ledger of media comes back to where it was, however requests end: answered, refused, failed, cancelled, cut off."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from PIL import Image

from edgewise.core.errors import InvalidRequest, OutOfMemory, PayloadTooLarge
from edgewise.models.media import needs
from edgewise.models.media.audio import claimed_seconds
from edgewise.models.media.fit import layout_of
from edgewise.models.media.fitting import picture_needs
from edgewise.models.media.pictures import MAX_PIXELS
from edgewise.models.media.process import MediaProcess
from edgewise.models.media.sound_limits import MAX_SECONDS, sound_bytes
from edgewise.pipeline.held import HELD_BYTES, HeldBytes, Hold, held_bytes
from edgewise.pipeline.listen import decoded
from edgewise.pipeline.media import MOST
from edgewise.pipeline.model import Models
from tests.api.harness import until
from tests.fakes.serving import fake_model
from tests.pipeline.test_media import PICTURE, READER, Installed, Looking, attachment, model_of, task, url, with_config
from tests.pipeline.test_media import desk as media_desk

LIMIT = 1000


class Requests(RuleBasedStateMachine):
    """Requests book, decode, keep what came of it, and end in every way; the model is a list of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.free = 10 * LIMIT
        self.held = HeldBytes(LIMIT, available=lambda: self.free, spare=100)
        self.holds: list[Hold] = []
        self.sizes: list[int] = []

    @rule()
    def begin(self) -> None:
        self.holds.append(self.held.hold())
        self.sizes.append(0)

    @rule(free=st.integers(0, 10 * LIMIT))
    def other_processes_take_memory(self, free: int) -> None:
        self.free = free

    @precondition(lambda self: bool(self.holds))
    @rule(at=st.integers(0, 9), size=st.integers(0, LIMIT + 200))
    def add(self, at: int, size: int) -> None:
        at %= len(self.holds)
        own, used = self.sizes[at], sum(self.sizes)
        if own + size > LIMIT:
            with pytest.raises(PayloadTooLarge, match=r"'file'.*limits\.media_bytes.*send fewer"):
                self.holds[at].add(size, "file")
        elif used + size > LIMIT or size > max(0, self.free - 100):
            with pytest.raises(OutOfMemory, match=r"'file'.*try again shortly") as refused:
                self.holds[at].add(size, "file")
            assert refused.value.retry_after_s
        else:
            self.holds[at].add(size, "file")
            self.sizes[at] += size

    @precondition(lambda self: bool(self.holds))
    @rule(at=st.integers(0, 9), size=st.integers(0, LIMIT))
    def decoded(self, at: int, size: int) -> None:
        at %= len(self.holds)
        self.holds[at].give(size)
        self.sizes[at] = max(0, self.sizes[at] - size)

    @precondition(lambda self: bool(self.holds))
    @rule(at=st.integers(0, 9), again=st.booleans())
    def end(self, at: int, again: bool) -> None:
        at %= len(self.holds)
        hold = self.holds.pop(at)
        self.sizes.pop(at)
        hold.close()
        if again:
            hold.close()

    @invariant()
    def the_sums_agree(self) -> None:
        assert self.held.used == sum(self.sizes) <= LIMIT
        assert [one.size for one in self.holds] == self.sizes

    def teardown(self) -> None:
        for one in self.holds:
            one.close()
        assert self.held.used == 0


TestRequests = Requests.TestCase


def recording(seconds: float, claims: float | None = None) -> bytes:
    """A WAV file; `claims`: what its header says of its length."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes((1000 * np.sin(np.arange(int(seconds * 16_000)) / 20)).astype("<i2").tobytes())
    return out.getvalue() if claims is None else _lying(out.getvalue(), claims)


def _lying(data: bytes, seconds: float) -> bytes:
    size = (int(seconds * 32_000)).to_bytes(4, "little")
    at = data.index(b"data") + 4
    return data[:at] + size + data[at + 4 :]


class Desk:
    """A process that decodes, and its ledger."""

    def __init__(self, limit: int) -> None:
        self.process = MediaProcess()
        self.held = HeldBytes(limit)
        self.jobs: list[str] = []

    async def hear(self, hold: Hold, data: bytes, max_seconds: float = 60.0) -> bytes:
        samples, _ = await decoded(self.process, hold, data, "file", max_bytes=1 << 22, max_seconds=max_seconds)
        return samples


@pytest.fixture
def desk() -> Any:
    made = Desk(sound_bytes(20))
    yield made
    made.process.close()


async def test_a_recording_is_booked_as_its_header_says_and_keeps_what_came_of_it(desk: Desk) -> None:
    with desk.held.hold() as hold:
        samples = await desk.hear(hold, recording(5))
        assert hold.size == len(samples) == 5 * 16_000 * 4
        assert desk.held.peak == sound_bytes(6)
    assert desk.held.used == 0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (recording(30), PayloadTooLarge),
        (recording(3)[:40], InvalidRequest),
        (b"nothing", InvalidRequest),
        (recording(70), InvalidRequest),
    ],
    ids=["too large", "cut off", "no sound", "too long"],
)
async def test_a_recording_that_is_refused_holds_nothing(desk: Desk, data: bytes, error: type[Exception]) -> None:
    hold = desk.held.hold()
    with pytest.raises(error):
        await desk.hear(hold, data)
    assert desk.held.used == 0


async def test_one_that_finds_no_room_beside_others_is_told_to_come_again(desk: Desk) -> None:
    first, second = desk.held.hold(), desk.held.hold()
    first.add(sound_bytes(15), "file")
    with pytest.raises(OutOfMemory, match="'file' takes"):
        await desk.hear(second, recording(10))
    first.close()
    assert await desk.hear(second, recording(10))


async def test_a_cancelled_request_gives_back_what_was_booked_for_its_decoding(desk: Desk) -> None:
    hold = desk.held.hold()
    work = asyncio.create_task(desk.hear(hold, recording(18)))
    await until(lambda: desk.held.used > 0 or work.done())
    assert desk.held.used == sound_bytes(19)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert desk.held.used == 0
    assert await desk.hear(hold, recording(1))  # and another one is decoded, by a new process
    hold.close()
    assert desk.held.used == 0


async def test_a_machine_without_memory_decodes_nothing_and_says_when_to_ask_again(tmp_path: Path) -> None:
    model = with_config(model_of(tmp_path, "qwen"), tmp_path, {})
    asked = task(model, PICTURE, attachments=(attachment(0),))
    one = media_desk(Models([model]), held=HeldBytes(available=lambda: 100 << 20, spare=99 << 20))
    with pytest.raises(OutOfMemory, match=r"the machine has 100\.0 MiB left, of which 99\.0 MiB") as caught:
        await one.gather(asked)
    assert caught.value.retry_after_s
    assert one.held.refused == {"machine": 1}
    one.process.close()


# --- ordinary media under default limits ---


@lru_cache
def photo(width: int = 8000, height: int = 4000) -> str:
    """As large as any that is taken, where nothing else is asked for."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 40)).save(out, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


def photo_bytes(width: int = 8000, height: int = 4000) -> bytes:
    return base64.b64decode(photo(width, height).partition(",")[2])


_TOWER = {"model_type": "siglip_vision_model", "image_size": 384, "patch_size": 14}
_NEXT = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
_PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Qwen2VLForConditionalGeneration": ({"model_type": "qwen2_vl"}, {"max_pixels": 12_845_056}),
    "Qwen2_5_VLForConditionalGeneration": ({"model_type": "qwen2_5_vl"}, {"max_pixels": 12_845_056}),
    "Gemma3ForConditionalGeneration": (
        {"model_type": "gemma3"},
        {"size": {"height": 896, "width": 896}, "do_pan_and_scan": True},
    ),
    "Idefics3ForConditionalGeneration": (
        {"model_type": "idefics3", "vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4},
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
    ),
    "LlavaForConditionalGeneration": ({"model_type": "llava", "vision_config": _TOWER}, {}),
    "LlavaNextForConditionalGeneration": (
        {
            "model_type": "llava_next",
            "vision_config": _NEXT,
            "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
        },
        {"size": {"shortest_edge": 336}},
    ),
}
"""Sizes of published models, of the families that see."""


def told(folder: Path, architecture: str) -> dict[str, Any]:
    """Of such a model, what the process that decodes is told."""
    config, preprocessor = _PUBLISHED[architecture]
    found = {"config.json": {"architectures": [architecture], **config}, "preprocessor_config.json": preprocessor}
    for name, content in found.items():
        (folder / name).write_text(json.dumps(content))
    paths = [(name, str(folder / name)) for name in found]
    return {"model": architecture, "digest": str(folder), "format": "safetensors", "paths": paths}


@pytest.mark.parametrize("architecture", _PUBLISHED)
def test_the_largest_picture_has_room_for_every_family(architecture: str, tmp_path: Path) -> None:
    model = told(tmp_path, architecture)
    plain = io.BytesIO()
    Image.new("1", (8000, 4000)).save(plain, "PNG")
    for data in (photo_bytes(), plain.getvalue()):
        found, _ = needs.picture(data, "image", pan_and_scan=None, **model)
        assert 12 * MAX_PIXELS <= found["bytes"] < HELD_BYTES
    film, _ = needs.film(photo_bytes() * 2, "film", max_tokens=2048, sizes=[len(photo_bytes())] * 2)
    assert film["bytes"] < HELD_BYTES


@pytest.mark.parametrize("architecture", _PUBLISHED)
@pytest.mark.parametrize("size", [(1, 1), (60, 40), (300, 1500), (1200, 900)])
def test_a_layout_makes_no_more_than_is_booked_for_it(architecture: str, size: tuple[int, int], tmp_path: Path) -> None:
    layout = layout_of(told(tmp_path, architecture))
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    made = layout.picture(pixels, "image")
    assert sum(len(one.content) for one in made.media) <= needs.PIXEL * layout.most_pixels


async def test_callers_with_the_largest_pictures_wait_in_line_and_all_are_served(tmp_path: Path) -> None:
    model = with_config(model_of(tmp_path, "qwen"), tmp_path, {})
    one = media_desk(Models([model]), held=HeldBytes())
    holds = [one.held.hold() for _ in range(2)]
    asked = task(model, PICTURE, attachments=(attachment(0, urls=(photo(),)),))
    found = await asyncio.gather(*(one.gather(asked, hold) for hold in holds))
    assert [shown.media[0].width for shown in found] == [8000] * 2
    came = holds[0].size
    assert one.held.used == 2 * came < 16 << 20
    assert model.files is not None
    size = picture_needs(one.process, model.files, photo_bytes(), "image")
    assert one.held.peak == size + came
    assert not one.held.refused
    for hold in holds:
        hold.close()
    assert one.held.used == 0
    one.process.close()


@pytest.mark.parametrize("kind", ["a film of stills", "pictures"])
async def test_photos_for_a_model_without_eyes_take_what_they_have_encoded(kind: str) -> None:
    urls = (photo(4000, 3000),) * 4
    shown = (attachment(0, kind="video", urls=urls),) if kind != "pictures" else None
    asked = shown or tuple(attachment(index, urls=(url,)) for index, url in enumerate(urls))
    one = media_desk(Installed(ocr=Looking(READER)), held=HeldBytes())
    model = fake_model()
    found = await one.gather(task(model, *[PICTURE] * len(asked), attachments=asked))
    assert len(found.media) == len(asked)
    assert one.held.used == 0
    one.process.close()


async def test_as_many_pictures_as_are_taken_can_be_looked_at() -> None:
    shown = tuple(attachment(index, urls=(url(),)) for index in range(MOST))
    one = media_desk(Installed(ocr=Looking(READER)), held=HeldBytes())
    found = await one.gather(task(fake_model(), *[PICTURE] * MOST, attachments=shown))
    assert len(found.media) == MOST
    assert one.held.peak < 1 << 20


def live(seconds: float, loud: float = 0.3) -> bytes:
    """A recording as browsers make it: WebM that does not say how long it is. Silence has few bits."""
    out = io.BytesIO()
    with av.open(out, "w", format="matroska", options={"live": "1"}) as file:
        stream = file.add_stream("libopus", rate=48_000, layout="mono")
        noise = np.random.default_rng(0).uniform(-loud, loud, (1, int(seconds * 48_000))).astype(np.float32)
        for at in range(0, noise.shape[1], 960):
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(noise[:, at : at + 960]), "flt", "mono")
            frame.sample_rate = 48_000
            frame.pts = at
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


@pytest.mark.parametrize("max_seconds", [3600.0, 7200.0])
async def test_recordings_that_do_not_say_how_long_they_are_are_heard_side_by_side(max_seconds: float) -> None:
    desk = Desk(HELD_BYTES)
    data = live(20)
    assert claimed_seconds(data, "file", 1 << 22, max_seconds) is None
    holds = [desk.held.hold(), desk.held.hold()]
    heard = await asyncio.gather(*(desk.hear(hold, data, max_seconds) for hold in holds))
    assert [len(samples) // 64_000 for samples in heard] == [20, 20]
    assert desk.held.used == sum(map(len, heard))
    assert desk.held.peak < sound_bytes(60) + len(heard[0])
    desk.process.close()


async def test_what_goes_on_longer_than_was_thought_is_decoded_in_larger_pieces(desk: Desk) -> None:
    hold = desk.held.hold()
    data = live(10, loud=0)
    assert needs.audio(data, "file")[0]["seconds"] < 3
    samples = await desk.hear(hold, data)
    assert len(samples) // 64_000 == 10
    assert hold.size == len(samples)
    assert sound_bytes(10) < desk.held.peak <= sound_bytes(20)
    hold.close()


@pytest.mark.parametrize("hours", [0.5, 1, 2, 3.5])
def test_the_longest_recording_has_room_where_nobody_sets_a_limit(hours: float) -> None:
    seconds = hours * MAX_SECONDS
    assert sound_bytes(seconds) < held_bytes(None, seconds) == HELD_BYTES * max(1, hours)
    assert held_bytes(1 << 20, seconds) == 1 << 20
