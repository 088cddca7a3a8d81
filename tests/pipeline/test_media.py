"""Media of a conversation before any engine: in words for a model without eyes, as placeholders for one with eyes."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from edgewise.core.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    OutOfMemory,
    PayloadTooLarge,
    QueueFull,
)
from edgewise.core.privacy import Labels, Privacy
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.models.files import ModelFiles
from edgewise.models.manifest import Role
from edgewise.models.media.fitting import FittedPicture
from edgewise.models.media.needs import LEAST
from edgewise.models.media.pictures import read_rgb
from edgewise.models.media.process import MediaProcess
from edgewise.models.multimodal.gemma3 import Gemma3Layout
from edgewise.models.multimodal.idefics3 import Idefics3Layout
from edgewise.models.multimodal.layout import Layout
from edgewise.models.multimodal.llava import LlavaLayout
from edgewise.models.multimodal.qwen import Bounds, QwenLayout
from edgewise.models.templates import ChatTemplate
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.tokenizer import load_tokenizer
from edgewise.pipeline.attachments import Attachment
from edgewise.pipeline.batches.files import Files
from edgewise.pipeline.held import HeldBytes
from edgewise.pipeline.hooks.texts import prompt_texts, with_texts
from edgewise.pipeline.look_words import MOST_CHARACTERS, words
from edgewise.pipeline.media import MOST, MediaDesk
from edgewise.pipeline.model import Models, ServedEncoder, ServedModel
from edgewise.pipeline.pressure import Pressure
from edgewise.pipeline.prompt import answer_budget, encode_input
from edgewise.pipeline.receipts import MediumReceipt
from edgewise.pipeline.recent import RecentInputs
from edgewise.pipeline.state import open_state
from edgewise.pipeline.task import ChatInput, Task
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import fake_model

PARAM = "messages[0].content[0].image_url.url"


def url(width: int = 60, height: int = 40, shade: int = 0) -> str:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 0, 0)).save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def attachment(index: int = 0, **fields: Any) -> Attachment:
    made = Attachment(kind="image", param=PARAM.replace("content[0]", f"content[{index}]"), urls=(url(),))
    return replace(made, **fields)


def task(model: ServedModel, *content: Any, attachments: tuple[Attachment, ...], **fields: Any) -> Task:
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
    chat = ChatInput(({"role": "user", "content": parts},), attachments=attachments)
    return Task(id="t", model=model, input=chat, **fields)


PICTURE = {"type": "image"}


class Looking:
    """A double of an engine that looks: says what it was told to."""

    def __init__(self, seen: Mapping[str, Any], error: str | None = None) -> None:
        self.seen = seen
        self.error = error
        self.info = None
        self.requests: list[EncodeRequest] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def submit(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        self.requests.append(request)
        return self._answer(request)

    async def _answer(self, request: EncodeRequest) -> AsyncIterator[EncodeChunk]:
        await self.answers.wait()
        if self.error is not None:
            yield EncodeChunk(
                request_id=request.id, finish="error", error_code=self.error, error_message="'image' is bad"
            )
            return
        yield EncodeChunk(request_id=request.id, finish="done", result={**self.seen, "width": 60, "height": 40})


class Installed(Models):
    """A double: these models look."""

    def __init__(self, **engines: Looking) -> None:
        super().__init__([fake_model()])
        self.engines_of = engines

    async def open_encoder(self, role: Role, name: str | None, *, keep_alive_s: float | None = None) -> ServedEncoder:
        if role not in self.engines_of:
            raise ModelNotFound("none", param="model")
        engine = cast("Any", self.engines_of[role])
        return ServedEncoder(name=f"the-{role}", role=role, engine=engine, digest="sha256:0", created=0)


READER = {"lines": [{"text": "Olive oil"}, {"text": "2027"}]}
LABELS = {"labels": [{"name": "bottle", "score": 0.7}, {"name": "cup", "score": 0.1}]}


def desk(models: Models, **options: Any) -> MediaDesk:
    return MediaDesk(models=models, files=Files(open_state(None), None), fetch=None, max_bytes=1 << 20, **options)


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({"ocr": READER, "vision": LABELS}, "A picture. Text in it:\nOlive oil\n2027\nIt shows: bottle."),
        ({"ocr": READER}, "A picture. Text in it:\nOlive oil\n2027"),
        ({"vision": LABELS}, "A picture. It shows: bottle."),
        (
            {"ocr": {"lines": []}, "vision": {"labels": []}},
            "A picture. There is no text in it. It is not known what it shows.",
        ),
        ({"ocr": READER, "vision": {"labels": []}}, "A picture. Text in it:\nOlive oil\n2027"),
    ],
)
def test_what_was_seen_in_words(seen: dict[Role, Any], told: str) -> None:
    assert words(seen) == (told, False)


def test_long_text_is_cut_and_told_so() -> None:
    told, cut = words({"ocr": {"lines": [{"text": "y" * (MOST_CHARACTERS + 5)}]}})
    assert cut
    assert told.count("y") == MOST_CHARACTERS


async def test_what_all_requests_hold_decoded_is_bounded_and_given_back(tmp_path: Path) -> None:
    model = with_config(model_of(tmp_path, "qwen"), tmp_path, {})
    asked = task(model, PICTURE, PICTURE, attachments=(attachment(0), attachment(1)))
    one = desk(Models([model]))
    fitted = (await one.gather(asked)).input
    assert isinstance(fitted, ChatInput)
    size = sum(len(medium.content) for shown in fitted.media for medium in shown.media)
    assert one.held.used == 0
    most = one.held.peak  # the second picture as it is decoded, and the first as the model takes it
    assert most > size
    for limit, before, error in ((most, 0, None), (most, size, OutOfMemory), (most - 1, 0, PayloadTooLarge)):
        held = HeldBytes(limit)
        held.hold().add(before, "file")
        if error is None:
            hold = held.hold()
            await replace(one, held=held).gather(asked, hold)
            assert held.used == hold.size == size
            hold.close()
        else:
            with pytest.raises(error, match=r"content\[[01]\].*of memory.*limits.media_bytes.*send fewer or shorter"):
                await replace(one, held=held).gather(asked)
        assert held.used == before
    one.process.close()


async def test_what_is_booked_before_a_picture_is_decoded_is_what_its_header_says(tmp_path: Path) -> None:
    model = with_config(model_of(tmp_path, "qwen"), tmp_path, {})
    asked = task(model, PICTURE, attachments=(attachment(0),))
    decoded: list[str] = []
    one = desk(Models([model]), held=HeldBytes(LEAST))

    def decode(job: str, *given: Any, **options: Any) -> Any:
        decoded.append(job)
        return MediaProcess.decode(one.process, job, *given, **options)

    one.process.decode = decode  # type: ignore[method-assign]
    with pytest.raises(PayloadTooLarge):
        await one.gather(asked)
    assert decoded == ["needs-picture"]
    one.process.close()


async def test_a_deadline_covers_media_and_what_is_left_is_handed_on() -> None:
    asked = task(fake_model(), "see:", PICTURE, attachments=(attachment(1),), deadline_s=600.0)
    reader = Looking(READER)
    left = (await desk(Installed(ocr=reader)).gather(asked)).deadline_s
    assert left is not None
    assert 0 < left < 600
    reader.answers.clear()
    with pytest.raises(DeadlineExceeded, match="before its media were read"):
        await desk(Installed(ocr=reader)).gather(replace(asked, deadline_s=0.05))


async def test_words_travel_no_further_than_the_models_that_looked() -> None:
    installed = Installed(ocr=Looking(READER), vision=Looking(LABELS))
    asked = task(fake_model(), "see:", PICTURE, attachments=(attachment(1),))
    for models, label in (
        ({"the-vision": Privacy.PRIVATE, "the-ocr": Privacy.SITE}, Privacy.PRIVATE),
        ({}, Privacy.ANY),
    ):
        found = await desk(installed, labels=Labels(models=models)).gather(replace(asked, privacy=Privacy.ANY))
        assert found.privacy is label


async def test_pictures_become_words_in_their_places() -> None:
    reader, labeller = Looking(READER), Looking(LABELS)
    asked = task(fake_model(), "left:", PICTURE, "right:", PICTURE, attachments=(attachment(1), attachment(3)))
    found = await desk(Installed(ocr=reader, vision=labeller)).gather(asked)
    assert isinstance(found.input, ChatInput)
    told = "A picture. Text in it:\nOlive oil\n2027\nIt shows: bottle."
    assert found.input.messages[0]["content"] == f"left:\n{told}\nright:\n{told}"
    assert found.input.attachments == ()
    assert [(look.model, look.of) for look in found.looks] == [
        (name, attachment(index).param) for index in (1, 3) for name in ("the-ocr", "the-vision")
    ]
    assert found.warnings == (
        "The model 'tiny' has no eyes: 'the-ocr' and 'the-vision' looked at 2 pictures, and it was told what they saw.",
    )
    assert len({request.id for request in (*reader.requests, *labeller.requests)}) == 4


async def test_one_of_the_models_that_look_is_enough() -> None:
    found = await desk(Installed(ocr=Looking(READER))).gather(task(fake_model(), PICTURE, attachments=(attachment(),)))
    assert [look.model for look in found.looks] == ["the-ocr"]


@pytest.mark.parametrize(
    ("models", "options", "fields", "words"),
    [
        (Installed(), {}, {}, "edgewise models pull rapidocr"),
        (Installed(ocr=Looking(READER)), {"look": False}, {}, "vision.look"),
        (Installed(), {}, {"kind": "video"}, "is a film"),
        (Installed(ocr=Looking(READER)), {}, {"urls": ("blob:x",)}, "data URL"),
        (Installed(ocr=Looking(READER)), {}, {"urls": ("https://example.com/x.png",)}, "offline"),
        (Installed(ocr=Looking(READER, "invalid_value")), {}, {}, f"'{PARAM}' is bad"),
    ],
)
async def test_refusals_name_the_field_and_the_remedy(
    models: Models, options: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await desk(models, **options).gather(task(fake_model(), PICTURE, attachments=(attachment(**fields),)))
    assert refused.value.param == PARAM
    assert words in refused.value.message


async def test_a_full_queue_is_told_as_such() -> None:
    models = Installed(ocr=Looking(READER, "rate_limit_exceeded"), vision=Looking(LABELS))
    with pytest.raises(QueueFull):
        await desk(models).gather(task(fake_model(), PICTURE, attachments=(attachment(),)))


async def test_too_many_are_refused() -> None:
    many = tuple(attachment(index) for index in range(MOST + 1))
    with pytest.raises(InvalidRequest, match=f"at most {MOST}"):
        await desk(Installed(ocr=Looking(READER))).gather(task(fake_model(), *[PICTURE] * len(many), attachments=many))


async def test_hooks_see_the_text_beside_pictures_and_pictures_stay() -> None:
    asked = task(fake_model(), "one", PICTURE, "two", attachments=(attachment(1),))
    texts = prompt_texts(asked)
    assert [one.text for one in texts] == ["one", "two"]
    changed = with_texts(asked, [replace(one, text=one.text.upper()) for one in texts])
    assert isinstance(changed.input, ChatInput)
    assert [part.get("text", part["type"]) for part in changed.input.messages[0]["content"]] == ["ONE", "image", "TWO"]
    assert changed.input.attachments == asked.input.attachments  # type: ignore[union-attr]


def test_inputs_with_pictures_are_not_kept_for_trials() -> None:
    recent = RecentInputs()
    recent.note(task(fake_model(), PICTURE, attachments=(attachment(),)))
    assert len(recent) == 0


# --- models with eyes ---

_QWEN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for content in message['content'] %}"
    "{% if content['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
_GEMMA = (
    "{%- for message in messages -%}{{ '<start_of_turn>' + message['role'] + '\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}{%- else -%}"
    "{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "{{ '<end_of_turn>\n' }}{%- endfor -%}"
)
_SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
)
_PLAIN = "{% for message in messages %}USER: {{ message['content'] }}\n{% endfor %}"
_SMALL = Bounds(28 * 28, 28 * 28 * 4)
_TILES: dict[str, Any] = {"tile": 28, "longest": 56, "splits": True, "count": 2}
_FAMILIES: dict[str, tuple[tuple[str, ...], str, Any, str]] = {
    "qwen": (
        ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>"),
        _QWEN,
        lambda ids: QwenLayout(
            placeholders={"image": ids[0], "video": -1},
            side=28,
            depth=2,
            picture_bounds=_SMALL,
            film_bounds=_SMALL,
            per_second=0,
        ),
        "<|im_start|>user\na<|vision_start|><|image_pad|><|image_pad|><|vision_end|>b{written}<|im_end|>\n",
    ),
    "gemma": (
        ("<image_soft_token>", "<start_of_image>", "<end_of_image>", "<start_of_turn>", "<end_of_turn>"),
        _GEMMA,
        lambda ids: Gemma3Layout(placeholders={"image": ids[0]}, side=28, count=3),
        "<start_of_turn>user\na\n\n<start_of_image>"
        + "<image_soft_token>" * 3
        + "<end_of_image>\n\nb{written}<end_of_turn>\n",
    ),
    "smolvlm": (
        (
            "<image>",
            "<fake_token_around_image>",
            "<global-img>",
            "<row_1_col_1>",
            "<row_1_col_2>",
            "<end_of_utterance>",
        ),
        _SMOLVLM,
        lambda ids: Idefics3Layout(placeholders={"image": ids[0]}, **_TILES),
        "<|im_start|>User: a<fake_token_around_image><row_1_col_1><image><image>"
        "<fake_token_around_image><row_1_col_2><image><image>\n\n<fake_token_around_image><global-img><image><image>"
        "<fake_token_around_image>b{written}<end_of_utterance>\n",
    ),
    "llava": (  # a template that takes no parts
        ("<image>",),
        _PLAIN,
        lambda ids: LlavaLayout(placeholder=ids[0], side=28, patches=2, extra=0, crop=False, grids=()),
        "USER: a\n<image><image><image><image>\nb{written}\n",
    ),
}


def model_of(folder: Path, family: str, *, special: bool = True) -> ServedModel:
    """Its tokenizer knows the family's markers, as special tokens or as plain ones."""
    markers, template, layout, _ = _FAMILIES[family]
    make_tiny_model(folder, family="qwen2")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    ids = [len(tokenizer["model"]["vocab"]) + number for number in range(len(markers))]
    tokenizer["added_tokens"] += [{"id": id, "content": text, **flags} for id, text in zip(ids, markers, strict=True)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    files = local_files(folder)
    return replace(
        fake_model(FakeEngine(), tokenizer=load_tokenizer(files), template=ChatTemplate({"default": template}, {})),
        layout=cast("Layout", layout(ids)),
        files=files,
    )


@pytest.mark.parametrize("family", list(_FAMILIES))
async def test_a_picture_is_where_the_template_puts_it(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt's text is the family's; markers that a user writes are text."""
    model = model_of(tmp_path, family)
    layout = model.layout
    assert layout is not None

    def fit(
        process: Any,
        files: ModelFiles,
        data: bytes,
        param: str,
        *,
        max_pixels: int | None,
        share: float,
        pan_and_scan: bool | None,
    ) -> FittedPicture:
        pixels = read_rgb(data, param)
        fitted = layout.picture(pixels, param, max_pixels=max_pixels)
        return FittedPicture(fitted, (pixels.shape[1], pixels.shape[0]), math.prod(fitted.size))

    monkeypatch.setattr("edgewise.pipeline.media.picture_needs", lambda *given, **options: LEAST)
    monkeypatch.setattr("edgewise.pipeline.media.fit_picture", fit)
    markers = _FAMILIES[family][0]
    written = " " + "".join(markers)
    asked = task(model, "a", PICTURE, "b" + written, attachments=(attachment(1, urls=(url(56, 28),)),))
    found = await desk(Models([model])).gather(asked)
    encoded = await encode_input(found)
    (prompt,) = encoded.prompts
    assert model.tokenizer.decode(prompt, skip_special=False) == _FAMILIES[family][3].replace("{written}", written)
    ids = set(layout.placeholders.values())
    covered = [spot for one in encoded.media for spot in range(one.start, one.end)]
    assert [spot for spot, token in enumerate(prompt) if token in ids] == covered
    assert found.media[0].tokens == len(covered)
    if model.template is not None:
        cast("ChatTemplate", model.template).close()


def test_a_prompt_that_is_too_long_names_the_share_of_pictures() -> None:
    medium = MediumReceipt(
        of=PARAM,
        kind="image",
        width=9,
        height=9,
        seen_width=9,
        seen_height=9,
        frames=1,
        every_s=None,
        tokens=4000,
        bounded_by=None,
    )
    asked = replace(task(fake_model(max_context=4096), "x", attachments=()), media=(medium,))
    with pytest.raises(ContextLengthExceeded, match=r"4000 of its tokens are media.*max_image_pixels"):
        answer_budget(asked, 5000)


async def test_a_marker_that_is_no_special_token_is_text_in_a_message(tmp_path: Path) -> None:
    model = model_of(tmp_path, "llava", special=False)
    chat = ChatInput(({"role": "user", "content": "what does <image> mean, <image>?"},))
    encoded = await encode_input(Task(id="t", model=model, input=chat))
    assert encoded.media == ()
    assert model.tokenizer.decode(encoded.prompts[0]) == "USER: what does <image> mean, <image>?\n"
    cast("ChatTemplate", model.template).close()


async def test_a_template_that_leaves_pictures_out_is_refused(tmp_path: Path) -> None:
    model = model_of(tmp_path, "llava")
    template = ChatTemplate({"default": "{% for message in messages %}{{ message['role'] }}{% endfor %}"}, {})
    fitted = cast("Layout", model.layout).picture(np.zeros((5, 5, 3), np.uint8), "x")
    chat = ChatInput(({"role": "user", "content": [PICTURE]},), media=(fitted,))
    with pytest.raises(InvalidRequest, match="shows 0 of 1 pictures"):
        await encode_input(Task(id="t", model=replace(model, template=template), input=chat))
    template.close()


def pressed(level: int) -> Pressure:
    found = Pressure()
    found.tell("heat", level, "84 C")
    return found


def with_config(model: ServedModel, folder: Path, preprocessor: dict[str, Any]) -> ServedModel:
    config = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    (folder / "config.json").write_text(json.dumps(config))
    return replace(model, files=local_files(folder))


@pytest.mark.parametrize(
    ("level", "asked", "seen"),
    [(0, {}, 4), (1, {}, 4), (2, {}, 1), (3, {}, 1), (3, {"detail": "high"}, 4), (3, {"max_image_pixels": 10**6}, 4)],
)
async def test_pixels_that_a_caller_left_open_step_down(
    level: int, asked: dict[str, Any], seen: int, tmp_path: Path
) -> None:
    model = with_config(model_of(tmp_path, "qwen"), tmp_path, {"min_pixels": 784, "max_pixels": 784 * 4})
    detail = {name: value for name, value in asked.items() if name == "detail"}
    bound = {name: value for name, value in asked.items() if name != "detail"}
    one = desk(Models([model]), pressure=pressed(level))
    shown = attachment(urls=(url(200, 200),), **detail)
    found = await one.gather(task(model, PICTURE, attachments=(shown,), **bound))
    assert found.media[0].tokens == seen
    assert bool(found.warnings) == (seen < 4)
    assert all("84 C): pixels of a picture stepped down from 3136" in warning for warning in found.warnings)
    one.process.close()


async def test_frames_that_a_caller_left_open_step_down(tmp_path: Path) -> None:
    model = with_config(model_of(tmp_path, "qwen"), tmp_path, {})
    one = desk(Models([model]), pressure=pressed(1))
    frames = tuple(url(28, 28, shade) for shade in range(8))
    for fields, count in (({}, 4), ({"frames": 8}, 8)):
        given = attachment(kind="video", urls=frames, **fields)
        found = await one.gather(task(model, {"type": "video"}, attachments=(given,)))
        assert found.media[0].frames == count
        assert bool(found.warnings) == (count < 8)
    one.process.close()
