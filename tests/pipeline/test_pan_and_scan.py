"""Pictures in parts: as the request says, else the setting, else the files; and refused where a model leaves no choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import UnsupportedField
from edgewise.models.tiny import local_files
from edgewise.pipeline.model import Models, ServedModel
from tests.pipeline.test_media import PICTURE, attachment, desk, model_of, task, url

CONFIG = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "mm_tokens_per_image": 3,
    "image_token_index": 7,
}


def gemma(folder: Path, **processor: Any) -> ServedModel:
    model = model_of(folder, "gemma")
    size = {"size": {"height": 28, "width": 28}, "pan_and_scan_min_crop_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps({**size, **processor}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return replace(model, files=local_files(folder))


@pytest.mark.parametrize(
    ("files", "setting", "asked", "pictures"),
    [
        ({}, None, None, 1),
        ({"do_pan_and_scan": True}, None, None, 4),
        ({"do_pan_and_scan": True}, False, None, 1),
        ({}, True, None, 4),
        ({}, True, False, 1),
        ({}, False, True, 4),
    ],
)
async def test_the_request_counts_before_the_setting_and_that_before_the_files(
    files: dict[str, Any], setting: bool | None, asked: bool | None, pictures: int, tmp_path: Path
) -> None:
    model = gemma(tmp_path, **files)
    one = desk(Models([model]), pan_and_scan=setting)
    shown = attachment(urls=(url(90, 30),))
    found = await one.gather(task(model, PICTURE, attachments=(shown,), pan_and_scan=asked))
    assert found.media[0].tokens == 3 * pictures
    assert (found.media[0].seen_width, found.media[0].seen_height) == (28 * max(1, pictures - 1), 28)
    one.process.close()


async def test_a_bound_of_pixels_holds_for_parts_too(tmp_path: Path) -> None:
    model = gemma(tmp_path)
    one = desk(Models([model]), pan_and_scan=True, max_pixels=28 * 28 * 2)
    found = await one.gather(task(model, PICTURE, attachments=(attachment(urls=(url(90, 30),)),)))
    assert (found.media[0].tokens, found.media[0].bounded_by) == (3, "vision.max_pixels")
    one.process.close()


async def test_a_model_that_leaves_no_choice_refuses_the_field(tmp_path: Path) -> None:
    model = model_of(tmp_path, "qwen")
    with pytest.raises(UnsupportedField, match="'pan_and_scan'"):
        await desk(Models([model])).gather(task(model, PICTURE, attachments=(attachment(),), pan_and_scan=True))
