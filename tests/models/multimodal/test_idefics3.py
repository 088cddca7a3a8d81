"""Idefics3 and SmolVLM beside transformers: tiles, the text around them, patches, tower and connector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Idefics3Config, SmolVLMConfig
from transformers.models.idefics3.image_processing_pil_idefics3 import (
    Idefics3ImageProcessorPil,
    get_resize_output_image_size,
)
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.idefics3 import Idefics3Layout, read_layout, rescaled, tiled
from edgewise.models.multimodal.pixels import HALF
from edgewise.models.multimodal.towers.idefics3 import load_encoder
from tests.models.multimodal.engine_logits import EngineLogits, interleaved
from tests.models.multimodal.small import TEXT, config_of, encoder_of, picture, saved

TILE, COUNT = 56, 4
SIZES = [(300, 200), (57, 133), (112, 112), (700, 90), (20, 31)]


@pytest.fixture(scope="module", params=[Idefics3Config, SmolVLMConfig], ids=["idefics3", "smolvlm"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    folder = tmp_path_factory.mktemp("model")
    processor = Idefics3ImageProcessorPil(size={"longest_edge": 4 * TILE}, max_image_size={"longest_edge": TILE})
    processor.save_pretrained(folder)
    vision = {
        "hidden_size": 32,
        "intermediate_size": 56,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": TILE,
        "patch_size": 14,
    }
    text = {**TEXT, "model_type": "llama"}
    return saved(request.param(text_config=text, vision_config=vision, image_token_id=290, scale_factor=2), folder)


def layout_of(files: ModelFiles) -> Idefics3Layout:
    return read_layout(config_of(files), files)


def processed(files: ModelFiles, pictures: list[Any]) -> Any:
    processor: Any = Idefics3ImageProcessorPil.from_pretrained(Path(files.paths["config.json"]).parent)
    shown = [[Image.fromarray(one) for one in pictures]]
    return processor(shown, return_tensors="pt", return_row_col_info=True)


class _Texts:
    """What `Idefics3Processor.replace_image_token` reads of its processor."""

    fake_image_token, image_token, global_image_tag = "<fake_token_around_image>", "<image>", "<global-img>"
    image_seq_len = COUNT


def test_tiles_and_their_text_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    layout = layout_of(both[1])
    for number, size in enumerate([*SIZES, (1000, 999), (333, 3000)]):
        shown = picture(*size, seed=number)
        wanted = processed(both[1], [shown])
        fitted = layout.picture(shown, "image")
        assert fitted.text == Idefics3Processor.replace_image_token(_Texts(), wanted, 0), size
        pixels = np.stack([np.frombuffer(one.content, np.uint8).reshape(one.shape)[0] for one in fitted.media])
        values = (pixels / 255 - np.array(HALF.mean)) / np.array(HALF.deviation)
        np.testing.assert_allclose(values.transpose(0, 3, 1, 2), wanted["pixel_values"][0].numpy(), atol=1e-6)


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([224, 1456, 2048]), st.sampled_from([56, 364, 512]))
def test_every_size_is_cut_as_by_transformers(width: int, height: int, longest: int, tile: int) -> None:
    """The sizes alone: nothing is resampled."""
    processor: Any = Idefics3ImageProcessorPil()
    first: tuple[int, int] = get_resize_output_image_size(np.empty((3, height, width), np.bool_), longest)[::-1]
    assert rescaled(width, height, longest) == first
    seen = []
    processor.resize = lambda image, size, resample=None: seen.append((size.width, size.height))
    processor.resize_for_vision_encoder(np.empty((3, first[1], first[0]), np.bool_), tile)
    assert tiled(*first, tile) == seen[0]


def test_rows_of_pictures_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    model, files = both
    pictures = [picture(*size, seed=index) for index, size in enumerate(SIZES)]
    wanted = processed(files, pictures)
    with torch.inference_mode():
        found = model.model.get_image_features(wanted["pixel_values"], wanted["pixel_attention_mask"]).pooler_output
    rows = torch.cat(list(found))
    layout = layout_of(files)
    media = [tile for one in pictures for tile in layout.picture(one, "image").media]
    own = torch.cat(encoder_of(files, load_encoder).encode(media))
    assert own.shape == rows.shape == (len(media) * COUNT, 64)
    assert rows.std() > 0.1
    torch.testing.assert_close(own, rows, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("most", "tiles"), [(None, 12), (9 * TILE**2, 6), (5 * TILE**2, 4), (TILE**2, 0), (1, 0)])
def test_a_bound_of_the_caller_means_fewer_tiles(both: tuple[Any, ModelFiles], most: int | None, tiles: int) -> None:
    fitted = layout_of(both[1]).picture(picture(300, 200), "image", max_pixels=most)
    assert len(fitted.media) == tiles + 1


def test_logits_of_prompts_with_pictures_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    """Two prompts in one batch, one with two pictures of different tiles."""
    model, files = both
    layout, engine = layout_of(files), EngineLogits(files)
    shown = [[picture(300, 200), picture(57, 133, seed=1)], [picture(20, 31, seed=2)]]
    fitted = [[layout.picture(one, "image") for one in pictures] for pictures in shown]
    prompts = [
        interleaved([[5, 6], fitted[0][0], [7], fitted[0][1], [8, 9]], 290),
        interleaved([[11], fitted[1][0], [12, 13, 14]], 290),
    ]
    for (tokens, _), pictures, own in zip(prompts, shown, engine.whole(prompts), strict=True):
        wanted = processed(files, pictures)
        more = {name: wanted[name] for name in ("pixel_values", "pixel_attention_mask")}
        with torch.inference_mode():
            theirs = model(input_ids=torch.tensor([tokens]), **more).logits[0]
        assert theirs.std() > 0.3
        torch.testing.assert_close(own, theirs, atol=1e-3, rtol=0)
