"""LLaVA-1.5 and LLaVA-NeXT beside transformers: tiles, pixels, rows of pictures, logits of prompts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaNextConfig, SiglipVisionConfig
from transformers.image_processing_utils import select_best_resolution
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from edgewise.core.errors import BadModelFile
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import Fitted
from edgewise.models.multimodal.llava import LlavaLayout
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.pixels import CLIP, HALF, Colours
from edgewise.models.multimodal.towers.colours import normalised
from edgewise.models.tiny import local_files
from tests.models.multimodal.engine_logits import EngineLogits, Prompt, interleaved
from tests.models.multimodal.small import TEXT, picture, saved

IMAGE = 299
SIDE, PATCH = 24, 6
GRIDS = [[24, 48], [48, 24], [48, 48], [72, 24], [24, 72]]
TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
}
SIZES = [(100, 40), (30, 90), (24, 24), (300, 299), (500, 3)]
TOLERANCE = 1e-3


def config(kind: str) -> Any:
    text = LlamaConfig(**TEXT)
    if kind == "next":
        tower = CLIPVisionConfig(**TOWER, projection_dim=16)
        return LlavaNextConfig(
            vision_config=tower, text_config=text, image_token_index=IMAGE, image_grid_pinpoints=GRIDS
        )
    if kind == "siglip":  # as LLaVA-Interleave: another tower, all of its rows, two of its states
        return LlavaConfig(
            vision_config=SiglipVisionConfig(**TOWER),
            text_config=text,
            image_token_index=IMAGE,
            vision_feature_select_strategy="full",
            vision_feature_layer=[-1, 1],
            multimodal_projector_bias=False,
        )
    tower = CLIPVisionConfig(**TOWER, projection_dim=16)
    return LlavaConfig(vision_config=tower, text_config=text, image_token_index=IMAGE)


def processor(kind: str) -> Any:
    sizes = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    if kind == "next":
        return LlavaNextImageProcessorPil(**sizes, image_grid_pinpoints=GRIDS)
    return CLIPImageProcessorPil(**sizes)


@pytest.fixture(scope="module", params=["llava", "siglip", "next"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    folder = tmp_path_factory.mktemp("model")
    if request.param != "siglip":
        processor(request.param).save_pretrained(folder)
    return saved(config(request.param), folder)


def layout_of(files: ModelFiles) -> LlavaLayout:
    layout = read_layout(files)
    assert isinstance(layout, LlavaLayout)
    return layout


def prompts_of(layout: LlavaLayout) -> tuple[list[Prompt], list[tuple[int, int]]]:
    """Prompts with none, one and several pictures of all sizes between text, and the sizes of their pictures."""
    chance = random.Random(4)

    def text(count: int) -> list[int]:
        return [chance.randrange(290) for _ in range(count)]

    def shown(index: int) -> Fitted:
        return layout.picture(picture(*SIZES[index], seed=index), "picture")

    parts: list[list[list[int] | Fitted]] = [
        [text(5), shown(0), text(9)],
        [text(12)],
        [shown(1), text(3), shown(2), shown(3), text(2)],
        [text(30), shown(4), text(1)],
    ]
    return [interleaved(one, IMAGE) for one in parts], [SIZES[index] for index in range(5)]


def of_transformers(model: Any, prompts: list[Prompt], sizes: list[tuple[int, int]]) -> list[torch.Tensor]:
    """Logits from the same pixels, one prompt at a time."""
    results, at = [], 0
    shades = CLIP if model.config.vision_config.model_type == "clip_vision_model" else HALF
    for tokens, media in prompts:
        inputs: dict[str, Any] = {"input_ids": torch.tensor([tokens])}
        if media:
            pixels = [_pixels(one, shades) for one in media]
            if model.config.model_type == "llava_next":
                most = max(len(one) for one in pixels)
                pixels = [torch.nn.functional.pad(one, (0,) * 7 + (most - len(one),)) for one in pixels]
                inputs["pixel_values"] = torch.stack(pixels)
                inputs["image_sizes"] = torch.tensor([(height, width) for width, height in sizes[at : at + len(media)]])
            else:
                inputs["pixel_values"] = torch.cat(pixels)
        at += len(media)
        with torch.no_grad():
            results.append(model(**inputs).logits[0])
    return results


def _pixels(one: Media, shades: Colours) -> torch.Tensor:
    return normalised(one, shades, torch.zeros(1)).permute(0, 3, 1, 2)


def test_logits_of_several_pictures_between_text_in_one_batch(both: tuple[Any, ModelFiles]) -> None:
    model, files = both
    prompts, sizes = prompts_of(layout_of(files))
    expected = of_transformers(model, prompts, sizes)
    engine = EngineLogits(files)
    for found, wanted in zip(engine.whole(prompts), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)
    assert expected[0].std() > 100 * TOLERANCE


def test_rows_do_not_depend_on_the_batch_or_on_chunks(both: tuple[Any, ModelFiles]) -> None:
    _, files = both
    prompts, _ = prompts_of(layout_of(files))
    engine = EngineLogits(files, num_pages=400)
    together = engine.whole(prompts)
    for prompt, expected in zip(prompts, together, strict=True):
        sequence, length = engine.sequence(prompt), len(prompt[0])
        parts = []
        for start in range(0, length, 7):
            parts += engine.step((sequence, start, min(7, length - start)))
        assert torch.equal(torch.cat(parts), expected)


def test_another_picture_changes_what_follows_and_nothing_before(both: tuple[Any, ModelFiles]) -> None:
    _, files = both
    layout, engine = layout_of(files), EngineLogits(files)
    pictures = [layout.picture(picture(50, 50, seed=seed), "picture") for seed in (1, 2)]
    first, second = (interleaved([[7, 8, 9], one, [10, 11]], IMAGE) for one in pictures)
    assert first[0] == second[0]
    assert first[1][0].digest != second[1][0].digest
    one, other = engine.whole([first, second])
    assert torch.equal(one[:3], other[:3])
    assert not torch.allclose(one[-1], other[-1], atol=1e-2)


@pytest.mark.parametrize("size", SIZES[:4])
def test_pixels_are_those_of_the_models_own_processor(tmp_path: Path, size: tuple[int, int]) -> None:
    shown = picture(*size)
    for kind in ("llava", "next"):
        processor(kind).save_pretrained(tmp_path)
        config(kind).save_pretrained(tmp_path)
        layout = layout_of(_files(tmp_path, kind))
        expected = processor(kind)(Image.fromarray(shown), return_tensors="np")["pixel_values"]
        expected = expected[0] if kind == "next" else expected
        (one,) = layout.picture(shown, "picture").media
        found = normalised(one, CLIP, torch.zeros(1)).permute(0, 3, 1, 2).numpy()
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < 0.02  # one step of 255, divided by the deviation


def _files(folder: Path, kind: str) -> ModelFiles:
    """As of a saved model of that kind; `save_pretrained` of a configuration names no class."""
    path = folder / "config.json"
    name = "LlavaNextForConditionalGeneration" if kind == "next" else "LlavaForConditionalGeneration"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [name]}))
    (folder / "model.safetensors").touch()
    return local_files(folder)


LAYOUT = LlavaLayout(
    placeholder=IMAGE,
    side=336,
    patches=24,
    extra=0,
    crop=True,
    grids=((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_pictures_are_tiled_as_transformers_tiles_them(height: int, width: int) -> None:
    tiles = LAYOUT.tiles(height, width)
    best = select_best_resolution((height, width), [list(size) for size in LAYOUT.grids])
    assert (tiles.rows * 336, tiles.columns * 336) == best
    assert tiles.height <= best[0]
    assert tiles.width <= best[1]
    assert tiles.height == best[0] or tiles.width == best[1]
    assert 0 <= 2 * tiles.cut_rows <= tiles.rows * 24
    assert 0 <= 2 * tiles.cut_columns <= tiles.columns * 24


def test_a_bound_of_pixels_chooses_fewer_tiles() -> None:
    wide = LAYOUT.tiles(1000, 1000)
    bounded = LAYOUT.tiles(1000, 1000, 336 * 672)
    assert (wide.rows, wide.columns) == (2, 2)
    assert bounded.rows * bounded.columns == 2
    assert LAYOUT.tiles(1000, 1000, 1).rows >= 1  # the smallest is always allowed


def test_a_strip_of_a_picture_is_taken_without_a_huge_one_on_the_way() -> None:
    square = LlavaLayout(placeholder=1, side=24, patches=4, extra=0, crop=True, grids=())
    (one,) = square.picture(np.full((1, 20_000, 3), 7, dtype=np.uint8), "picture").media
    assert one.shape == (1, 24, 24, 3)
    assert set(one.content) == {7}


@pytest.mark.parametrize("grids", [[], [[336]], [[100, 336]], [[336, 336 * 1000]], "many"])
def test_impossible_sizes_of_tiles_are_refused(tmp_path: Path, grids: Any) -> None:
    config("next").save_pretrained(tmp_path)
    files = _files(tmp_path, "next")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "image_grid_pinpoints": grids}))
    with pytest.raises(BadModelFile, match="image_grid_pinpoints"):
        read_layout(files)
