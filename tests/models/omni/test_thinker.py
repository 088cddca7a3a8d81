"""The Thinker beside transformers: what it hears and sees, positions, logits of prompts with all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import Fitted, place
from edgewise.models.multimodal.protocol import SlicedEncoder
from edgewise.models.omni.layout import OmniLayout
from tests.models.multimodal.engine_logits import EngineLogits
from tests.models.multimodal.small import picture
from tests.models.omni.small import (
    AUDIO,
    AUDIO_END,
    AUDIO_START,
    IMAGE,
    SEEN_END,
    SEEN_START,
    VIDEO,
    folder,
    small_omni,
)

TOLERANCE = 1e-3
PLACEHOLDERS = {"image": IMAGE, "video": VIDEO, "audio": AUDIO}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    model = small_omni()
    return model, folder(model, tmp_path_factory.mktemp("omni"))


def layout_of(files: ModelFiles) -> OmniLayout:
    layout = read_layout(files)
    assert isinstance(layout, OmniLayout)
    return layout


def noise(seconds: float, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).normal(0, 0.2, int(seconds * 16_000))).astype(np.float32)


def heard_by(samples: list[Any]) -> dict[str, torch.Tensor]:
    """As the family's processor gives it: padded with silence, with a mask."""
    extract = WhisperFeatureExtractor(feature_size=16)
    features = extract(
        samples, sampling_rate=16_000, return_attention_mask=True, padding="max_length", return_tensors="pt"
    )
    return {
        "input_features": features["input_features"],
        "feature_attention_mask": features["attention_mask"].long(),
    }


def seen_by(fitted: Fitted) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches and grid of a picture or film, as in transformers."""
    (one,) = fitted.media
    assert one.grid is not None
    times, rows, columns = one.grid
    pixels = np.frombuffer(one.content, np.uint8).reshape(one.shape).astype(np.float64)
    if len(pixels) == 1:
        pixels = np.concatenate([pixels, pixels])
    values = (pixels / 255 - np.array([0.48145466, 0.4578275, 0.40821073])) / np.array(
        [0.26862954, 0.26130258, 0.27577711]
    )
    cut = values.reshape(times, 2, rows, 2, 14, columns, 2, 14, 3).transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
    patches = torch.tensor(cut.reshape(times * rows * columns * 4, -1), dtype=torch.float32)
    return patches, torch.tensor([[times, rows * 2, columns * 2]])


def test_rows_of_sound_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    model, files = both
    layout, encoder = layout_of(files), EngineLogits(files).encoder
    for seconds in (0.03, 0.3, 0.4, 1.0, 2.3712):
        samples = noise(seconds)
        (medium,) = layout.sound(samples, "audio").media
        (own,) = encoder.encode([medium])
        with torch.inference_mode():
            wanted = model.thinker.get_audio_features(**heard_by([samples])).last_hidden_state
        assert own.shape == wanted.shape == (medium.count, 64)
        assert wanted.std() > 0.1
        torch.testing.assert_close(own, wanted, atol=TOLERANCE, rtol=0)


def test_sound_and_pictures_are_encoded_in_parts(both: tuple[Any, ModelFiles]) -> None:
    """Layer by layer of each window of 0.4 s and each picture, so that running streams are not held."""
    layout, encoder = layout_of(both[1]), EngineLogits(both[1]).encoder
    assert isinstance(encoder, SlicedEncoder)
    (heard,) = layout.sound(noise(1.0), "audio").media
    (seen,) = layout.picture(picture(90, 64), "image", max_pixels=28 * 28 * 8).media
    for medium, least in ((heard, 3 * 2), (seen, 2)):
        assert sum(1 for _ in encoder.slices(medium)) >= least


def test_logits_are_those_of_transformers(both: tuple[Any, ModelFiles]) -> None:
    """Two recordings, a picture and a film among text, in one prompt, computed in two steps."""
    model, files = both
    layout = layout_of(files)
    first, second = noise(0.7, 1), noise(1.3, 2)
    heard = [layout.sound(one, "audio") for one in (first, second)]
    seen = layout.picture(picture(90, 64), "image", max_pixels=28 * 28 * 8)
    frames = [picture(56, 84, seed) for seed in range(6)]
    film = layout.film(iter(frames), 6, 0.5, "video", max_tokens=60, max_pixels=28 * 28 * 6)
    tokens: list[int] = [1, 2, 3]
    for kind, one, begin, end in (
        ("audio", heard[0], AUDIO_START, AUDIO_END),
        ("image", seen, SEEN_START, SEEN_END),
        ("video", film, SEEN_START, SEEN_END),
        ("audio", heard[1], AUDIO_START, AUDIO_END),
    ):
        tokens += [begin, *[PLACEHOLDERS[kind]] * one.media[0].count, end, 17, 44]
    media = place(tokens, [heard[0].media[0], seen.media[0], film.media[0], heard[1].media[0]], layout.placeholders)
    patches, grid = seen_by(seen)
    film_patches, film_grid = seen_by(film)
    with torch.inference_mode():
        wanted = model.thinker(
            input_ids=torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            pixel_values=patches,
            image_grid_thw=grid,
            pixel_values_videos=film_patches,
            video_grid_thw=film_grid,
            video_second_per_grid=torch.tensor([1.0]),
            **heard_by([first, second]),
        ).logits[0]
    engine = EngineLogits(files)
    sequence = engine.sequence((tokens, media))
    half = len(tokens) // 2
    own = torch.cat([*engine.step((sequence, 0, half)), *engine.step((sequence, half, len(tokens) - half))])
    assert wanted.std() > 0.5
    torch.testing.assert_close(own, wanted, atol=TOLERANCE, rtol=0)
