"""Gemma 3's eyes beside transformers: size, patches, tower and projector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from edgewise.models.files import ModelFiles
from edgewise.models.multimodal import gemma3
from edgewise.models.multimodal.towers.gemma3 import load_encoder
from tests.models.multimodal.engine_logits import EngineLogits, interleaved
from tests.models.multimodal.small import config_of, encoder_of, picture
from tests.models.multimodal.tiny_gemma3 import COUNT, SIDE, tiny_gemma3

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
