"""Gemma 3's eyes beside transformers: size, patches, tower and projector."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

from edgewise.models.files import ModelFiles
from edgewise.models.multimodal import gemma3
from edgewise.models.multimodal.gemma3 import PanAndScan
from edgewise.models.multimodal.layout import Fitted, Pixels
from edgewise.models.multimodal.towers.gemma3 import load_encoder
from tests.models.multimodal.engine_logits import EngineLogits, interleaved
from tests.models.multimodal.small import config_of, encoder_of, picture
from tests.models.multimodal.tiny_gemma3 import COUNT, SIDE, tiny_gemma3

SCANNED = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 64,
    "pan_and_scan_max_num_crops": 3,
    "pan_and_scan_min_ratio_to_activate": 1.3,
}
SIZES = [(300, 200), (57, 133), (112, 112), (700, 90)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    return tiny_gemma3(tmp_path_factory.mktemp("model"))


def test_rows_of_pictures_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    model, files = both
    pictures = [picture(*size, seed=index) for index, size in enumerate(SIZES)]
    processor = Gemma3ImageProcessorPil.from_pretrained(Path(files.paths["config.json"]).parent)
    wanted = processor([Image.fromarray(one) for one in pictures], return_tensors="pt")
    with torch.inference_mode():
        rows = model.model.get_image_features(wanted["pixel_values"]).pooler_output
    layout = gemma3.read_layout(config_of(files), files)
    media = [layout.picture(one, "image").media[0] for one in pictures]
    for one, values in zip(media, wanted["pixel_values"].numpy(), strict=True):
        pixels = np.frombuffer(one.content, np.uint8).reshape(one.shape)[0]
        np.testing.assert_allclose((pixels / 255 - 0.5) / 0.5, values.transpose(1, 2, 0), atol=1e-6)
    for own, theirs in zip(encoder_of(files, load_encoder).encode(media), rows, strict=True):
        assert own.shape == theirs.shape == (COUNT, 64)
        assert theirs.std() > 0.1
        torch.testing.assert_close(own, theirs, atol=1e-3, rtol=0)


def test_a_picture_is_one_span_that_sees_itself(both: tuple[Any, ModelFiles]) -> None:
    layout = gemma3.read_layout(config_of(both[1]), both[1])
    fitted = layout.picture(picture(300, 200), "image")
    (one,) = fitted.media
    assert (one.whole, one.count, fitted.size) == (True, COUNT, (SIDE, SIDE))
    assert fitted.text == "\n\n<start_of_image>" + "<image_soft_token>" * COUNT + "<end_of_image>\n\n"
    assert layout.placeholders == {"image": 290}


def test_logits_of_prompts_with_pictures_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    """Positions of a picture see each other. Two prompts in one batch, one with two pictures."""
    model, files = both
    layout, engine = gemma3.read_layout(config_of(files), files), EngineLogits(files)
    processor = Gemma3ImageProcessorPil.from_pretrained(Path(files.paths["config.json"]).parent)
    shown = [[picture(300, 200), picture(57, 133, seed=1)], [picture(700, 90, seed=2)]]
    fitted = [[layout.picture(one, "image") for one in pictures] for pictures in shown]
    prompts = [
        interleaved([[5, 6, 291], fitted[0][0], [292, 7, 291], fitted[0][1], [292, 8, 9]], 290),
        interleaved([[11, 291], fitted[1][0], [292, 12, 13, 14]], 290),
    ]
    for (tokens, _), pictures, own in zip(prompts, shown, engine.whole(prompts), strict=True):
        pixels = processor([Image.fromarray(one) for one in pictures], return_tensors="pt")["pixel_values"]
        kinds = torch.tensor([[int(token == 290) for token in tokens]])
        with torch.inference_mode():
            theirs = model(input_ids=torch.tensor([tokens]), pixel_values=pixels, token_type_ids=kinds).logits[0]
        assert theirs.std() > 0.3
        torch.testing.assert_close(own, theirs, atol=1e-3, rtol=0)


@pytest.fixture(scope="module")
def scanning(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    return tiny_gemma3(tmp_path_factory.mktemp("scanning"), **SCANNED)


def processed(files: ModelFiles, pictures: list[Pixels]) -> Any:
    processor = Gemma3ImageProcessorPil.from_pretrained(Path(files.paths["config.json"]).parent)
    return processor([Image.fromarray(one) for one in pictures], return_tensors="pt")


def test_parts_of_long_pictures_are_those_of_transformers(scanning: tuple[Any, ModelFiles]) -> None:
    """Wide, high, nearly square, so long that there are parts at most, so flat that parts would be too small; odd sizes."""
    files = scanning[1]
    layout = gemma3.read_layout(config_of(files), files)
    sizes = [(300, 200), (201, 333), (130, 110), (700, 90), (301, 65), (300, 60), (101, 500), (64, 64)]
    pictures = [picture(*size, seed=index) for index, size in enumerate(sizes)]
    wanted = processed(files, pictures)
    fitted = [layout.picture(one, "image") for one in pictures]
    assert [len(one.media) - 1 for one in fitted] == [int(it) for it in wanted["num_crops"]] == [2, 2, 0, 3, 3, 0, 3, 0]
    media = [part for one in fitted for part in one.media]
    for one, values in zip(media, wanted["pixel_values"].numpy(), strict=True):
        pixels = np.frombuffer(one.content, np.uint8).reshape(one.shape)[0]
        np.testing.assert_allclose((pixels / 255 - 0.5) / 0.5, values.transpose(1, 2, 0), atol=1e-6)
    assert [one.size for one in fitted[:2]] == [(2 * SIDE, SIDE), (SIDE, 2 * SIDE)]


@pytest.mark.parametrize("most", [2, 4])
def test_the_number_of_parts_is_that_of_transformers(most: int) -> None:
    """For every shape, with the numbers of the published models."""
    scan = PanAndScan(on=True, most=most)
    theirs = Gemma3ImageProcessorPil()
    for width in range(100, 2400, 173):
        for height in range(100, 2400, 157):
            cut = theirs.pan_and_scan(np.zeros((3, height, width), np.uint8), 256, most, 1.2)
            assert scan.parts(width, height) == len(cut), (width, height)


def test_the_text_around_parts_is_that_of_transformers(scanning: tuple[Any, ModelFiles]) -> None:
    layout = gemma3.read_layout(config_of(scanning[1]), scanning[1])
    soft = "<image_soft_token>" * COUNT
    whole = f"\n\n<start_of_image>{soft}<end_of_image>\n\n"
    processor = SimpleNamespace(full_image_sequence=whole)
    for size, crops in (((300, 200), 2), ((700, 90), 3), ((112, 112), 0)):
        told = Gemma3Processor.replace_image_token(processor, {"num_crops": [crops]}, 0)
        assert layout.picture(picture(*size), "image").text == told


def test_callers_switch_parts_on_and_off_and_a_bound_of_pixels_leaves_them_out(both: tuple[Any, ModelFiles]) -> None:
    layout = gemma3.read_layout(config_of(both[1]), both[1])
    assert layout.scan == PanAndScan(), "what the files leave open is as in the family's own processor"
    pixels = picture(900, 400)

    def parts(fitted: Fitted) -> int:
        return len(fitted.media) - 1

    assert parts(layout.picture(pixels, "image")) == 0
    on = layout.scanning(True)
    assert parts(on.picture(pixels, "image")) == 2
    assert parts(on.scanning(False).picture(pixels, "image")) == 0
    assert parts(on.picture(pixels, "image", max_pixels=2 * SIDE**2)) == 2
    assert parts(on.picture(pixels, "image", max_pixels=2 * SIDE**2 - 1)) == 0


def test_logits_of_prompts_with_parts_are_those_of_transformers(scanning: tuple[Any, ModelFiles]) -> None:
    """Two prompts in one batch: a picture with two parts beside one without, and one with three."""
    model, files = scanning
    layout, engine = gemma3.read_layout(config_of(files), files), EngineLogits(files)
    shown = [[picture(300, 200), picture(112, 112, seed=1)], [picture(700, 90, seed=2)]]
    fitted = [[layout.picture(one, "image") for one in pictures] for pictures in shown]
    prompts = [
        interleaved([[5, 6], *framed(fitted[0][0]), [7], *framed(fitted[0][1]), [8, 9]], 290),
        interleaved([[11], *framed(fitted[1][0]), [12, 13, 14]], 290),
    ]
    for (tokens, media), pictures, own in zip(prompts, shown, engine.whole(prompts), strict=True):
        assert sum(token == 290 for token in tokens) == COUNT * len(media)
        kinds = torch.tensor([[int(token == 290) for token in tokens]])
        with torch.inference_mode():
            theirs = model(
                input_ids=torch.tensor([tokens]),
                pixel_values=processed(files, pictures)["pixel_values"],
                token_type_ids=kinds,
            ).logits[0]
        assert theirs.std() > 0.3
        torch.testing.assert_close(own, theirs, atol=1e-3, rtol=0)


def framed(fitted: Fitted) -> list[Any]:
    """The whole and its parts, each between its marks, words between them."""
    found: list[Any] = []
    for at, one in enumerate(fitted.media):
        found += [[20 + at, 291], replace(fitted, media=(one,)), [292]]
    return found
