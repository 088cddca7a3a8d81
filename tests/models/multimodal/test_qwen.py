"""Qwen2-VL and Qwen2.5-VL beside transformers: sizes, patches, the tower and what stands in the prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen2_5_VLConfig, Qwen2VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from edgewise.core.errors import InvalidRequest
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import place
from edgewise.models.multimodal.pixels import CLIP
from edgewise.models.multimodal.protocol import MediaEncoder
from edgewise.models.multimodal.qwen import Bounds, QwenLayout
from edgewise.models.multimodal.towers.qwen import load_encoder
from tests.models.multimodal.engine_logits import EngineLogits, interleaved
from tests.models.multimodal.small import TEXT, config_of, encoder_of, picture, saved

IMAGE, VIDEO = 290, 291
ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
IDS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": 292,
    "vision_end_token_id": 293,
}
TOWER: dict[str, Any] = {"depth": 3, "patch_size": 14, "num_heads": 4, "initializer_range": 0.1}
SIZES = [(300, 200), (57, 133), (700, 90), (20, 20), (1400, 1000)]
TOLERANCE = 1e-3


def config(kind: str) -> Any:
    text = {**TEXT, "rope_parameters": ROPE}
    if kind == "qwen2_vl":
        return Qwen2VLConfig(text_config=text, vision_config={**TOWER, "embed_dim": 32, "hidden_size": 64}, **IDS)
    vision: dict[str, Any] = {
        "hidden_size": 32,
        "out_hidden_size": 64,
        "intermediate_size": 52,
        "fullatt_block_indexes": [1],
    }
    return Qwen2_5_VLConfig(text_config=text, vision_config={**TOWER, **vision}, **IDS)


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    folder = tmp_path_factory.mktemp("model")
    Qwen2VLImageProcessorPil(max_pixels=28 * 28 * 60).save_pretrained(folder)
    return saved(config(request.param), folder)


def layout_of(files: ModelFiles) -> QwenLayout:
    layout = read_layout(files)
    assert isinstance(layout, QwenLayout)
    return layout


def tower_of(files: ModelFiles) -> MediaEncoder:
    return encoder_of(files, load_encoder)


def processed(files: ModelFiles, pictures: list[Any]) -> Any:
    processor = Qwen2VLImageProcessorPil.from_pretrained(Path(files.paths["config.json"]).parent)
    return processor([Image.fromarray(one) for one in pictures], return_tensors="pt")


def test_pictures_are_of_the_size_that_the_model_was_trained_with(both: tuple[Any, ModelFiles]) -> None:
    layout = layout_of(both[1])
    for width, height in [*SIZES, (28, 28), (41, 43), (5000, 26), (333, 3000)]:
        fitted = layout.target(width, height, "image", layout.picture_bounds, None)
        assert fitted == smart_resize(height, width, max_pixels=28 * 28 * 60)[::-1], (width, height)


@settings(deadline=None)
@given(st.integers(1, 6000), st.integers(1, 6000), st.integers(1, 60), st.integers(60, 5000))
def test_every_size_is_fitted_as_by_transformers(width: int, height: int, least: int, most: int) -> None:
    bounds = Bounds(least * 784, most * 784)
    layout = QwenLayout(placeholders={}, side=28, depth=2, picture_bounds=bounds, film_bounds=bounds, per_second=0)
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(InvalidRequest):
            layout.target(width, height, "image", bounds, None)
        return
    wanted = smart_resize(height, width, min_pixels=bounds.least, max_pixels=bounds.most)
    assert layout.target(width, height, "image", bounds, None) == wanted[::-1]


def test_a_bound_of_the_caller_is_kept(both: tuple[Any, ModelFiles]) -> None:
    layout = layout_of(both[1])
    fitted = layout.picture(picture(1000, 500), "image", max_pixels=28 * 28 * 10)
    assert fitted.size[0] * fitted.size[1] <= 28 * 28 * 10
    assert fitted.media[0].count == fitted.text.count("<|image_pad|>") == fitted.size[0] * fitted.size[1] // 28**2


def test_a_strip_is_refused(both: tuple[Any, ModelFiles]) -> None:
    with pytest.raises(InvalidRequest, match="200 times"):
        layout_of(both[1]).picture(picture(1005, 5), "messages[0].content[0]")


def test_rows_of_pictures_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    """Several pictures of several sizes; their pixels by Pillow are those of the family's processor to the bit."""
    model, files = both
    pictures = [picture(*size, seed=index) for index, size in enumerate(SIZES)]
    wanted = processed(files, pictures)
    with torch.inference_mode():
        rows = model.model.get_image_features(wanted["pixel_values"], wanted["image_grid_thw"]).pooler_output
    layout = layout_of(files)
    media = [layout.picture(one, "image").media[0] for one in pictures]
    found = tower_of(files).encode(media)
    for index, (own, theirs) in enumerate(zip(found, rows, strict=True)):
        grid = wanted["image_grid_thw"][index].tolist()
        assert media[index].grid == (grid[0], grid[1] // 2, grid[2] // 2)
        assert own.shape == theirs.shape == (media[index].count, 64)
        assert theirs.std() > 0.1
        torch.testing.assert_close(own, theirs, atol=TOLERANCE, rtol=0)


def test_rows_of_film_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    model, files = both
    frames = [picture(160, 120, seed=seed) for seed in range(5)]
    layout = layout_of(files)
    film = layout.film(frames, len(frames), 0.5, "video", max_tokens=1024).media[0]
    tower = tower_of(files)
    pixels = np.frombuffer(film.content, np.uint8).reshape(film.shape)
    assert film.grid is not None
    times, rows, columns = film.grid
    assert (times, film.shape[0]) == (3, 6)  # the sixth is the fifth again
    assert np.array_equal(pixels[4], pixels[5])
    values = (pixels / 255 - np.array(CLIP.mean)) / np.array(CLIP.deviation)
    cut = values.reshape(times, 2, rows, 2, 14, columns, 2, 14, 3).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    patches = torch.tensor(cut.reshape(times * rows * columns * 4, -1), dtype=torch.float32)
    with torch.inference_mode():
        grid = torch.tensor([[times, rows * 2, columns * 2]])
        (wanted,) = model.model.get_video_features(patches, grid).pooler_output
    torch.testing.assert_close(tower.encode([film])[0], wanted, atol=TOLERANCE, rtol=0)


def test_a_picture_has_the_same_rows_whatever_is_beside_it(both: tuple[Any, ModelFiles]) -> None:
    layout, tower = layout_of(both[1]), tower_of(both[1])
    media = [layout.picture(picture(*size), "image").media[0] for size in SIZES[:3]]
    together = tower.encode(media)
    assert all(torch.equal(tower.encode([one])[0], rows) for one, rows in zip(media, together, strict=True))


def test_time_counts_where_positions_depend_on_it(both: tuple[Any, ModelFiles]) -> None:
    layout = layout_of(both[1])
    frames = [picture(56, 56)] * 4
    slow, fast = (layout.film(frames, 4, seconds, "video", max_tokens=1024).media[0] for seconds in (2.0, 0.25))
    timed = config_of(both[1]).get("model_type") == "qwen2_5_vl"
    assert (slow.second, fast.second) == ((16.0, 2.0) if timed else (0.0, 0.0))
    assert (slow.digest != fast.digest) == timed


@pytest.mark.parametrize("size", [(300, 200), (40, 30), (10, 500), (500, 10)])
@pytest.mark.parametrize("most", [1, 20, 60, 300])
def test_a_film_keeps_to_its_tokens(both: tuple[Any, ModelFiles], most: int, size: tuple[int, int]) -> None:
    layout = layout_of(both[1])
    count = min(6, layout.most_frames(most))
    fitted = layout.film([picture(*size)] * count, count, 0.5, "video", max_tokens=most)
    assert fitted.media[0].count <= most
    assert fitted.text.count("<|video_pad|>") == fitted.media[0].count


def test_media_are_placed_where_their_placeholders_are(both: tuple[Any, ModelFiles]) -> None:
    layout = layout_of(both[1])
    first, second = (layout.picture(picture(*size), "image").media[0] for size in [(300, 200), (57, 133)])
    prompt = [1, *[IMAGE] * first.count, *[IMAGE] * second.count, 2]
    placed = place(prompt, [first, second], layout.placeholders)
    assert [one.start for one in placed] == [1, 1 + first.count]


def logits_of(
    model: Any, prompt: list[int], wanted: Any, film: torch.Tensor | None = None, seconds: float = 0
) -> torch.Tensor:
    """Transformers' logits [tokens, vocab] of a prompt with the pictures that its processor made, or with a film's patches."""
    kinds = torch.tensor([[1 if token == IMAGE else 2 if token == VIDEO else 0 for token in prompt]])
    more: dict[str, Any] = {}
    if film is not None:
        more = {"pixel_values_videos": film, "video_grid_thw": wanted}
        if model.config.model_type == "qwen2_5_vl":
            more["second_per_grid_ts"] = torch.tensor([seconds])
    else:
        more = dict(wanted)
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([prompt]), mm_token_type_ids=kinds, **more).logits[0]
    return logits


def test_logits_of_prompts_with_pictures_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    """Two prompts in one batch: three pictures between texts, and one picture at the end."""
    model, files = both
    layout, engine = layout_of(files), EngineLogits(files)
    shown = [[picture(*size, seed=index) for index, size in enumerate(SIZES[:3])], [picture(90, 61, seed=9)]]
    fitted = [[layout.picture(one, "image") for one in pictures] for pictures in shown]
    first, second, third = fitted[0]
    prompts = [
        interleaved([[5, 6, 292], first, [293, 7, 292], second, [293, 292], third, [293, 8, 9, 10]], IMAGE),
        interleaved([[11, 12, 292], fitted[1][0]], IMAGE),
    ]
    for (tokens, _), pictures, own in zip(prompts, shown, engine.whole(prompts), strict=True):
        theirs = logits_of(model, tokens, processed(files, pictures))
        assert theirs.std() > 0.3
        torch.testing.assert_close(own, theirs, atol=TOLERANCE, rtol=0)


def test_logits_of_a_prompt_with_a_film_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    """Of a film whose largest position is that of its columns: there transformers 5 counts on as Qwen's own code does."""
    model, files = both
    layout, engine = layout_of(files), EngineLogits(files, num_pages=400)
    frames = [picture(420, 120, seed=seed) for seed in range(4)]
    fitted = layout.film(frames, 4, 0.5, "video", max_tokens=1024)
    prompt = interleaved([[5, 292], fitted, [293, 7, 8]], VIDEO)
    film = fitted.media[0]
    times, rows, columns = film.grid or (0, 0, 0)
    pixels = np.frombuffer(film.content, np.uint8).reshape(film.shape)
    values = (pixels / 255 - np.array(CLIP.mean)) / np.array(CLIP.deviation)
    cut = values.reshape(times, 2, rows, 2, 14, columns, 2, 14, 3).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    patches = torch.tensor(cut.reshape(times * rows * columns * 4, -1), dtype=torch.float32)
    grid = torch.tensor([[times, rows * 2, columns * 2]])
    theirs = logits_of(model, prompt[0], grid, patches, seconds=1.0)
    (own,) = engine.whole([prompt])
    torch.testing.assert_close(own, theirs, atol=TOLERANCE, rtol=0)
