"""Qwen2-Audio beside transformers on small random weights: places in the prompt, rows, logits of whole conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from edgewise.core.errors import InvalidRequest
from edgewise.models.files import ModelFiles
from edgewise.models.multimodal.families import read_layout
from edgewise.models.multimodal.layout import Fitted, SoundLayout, place
from edgewise.models.multimodal.media import Media
from edgewise.models.multimodal.qwen2_audio import Qwen2AudioLayout
from edgewise.models.multimodal.towers.audio import load_encoder
from edgewise.models.tiny import local_files
from tests.models.multimodal.engine_logits import EngineLogits
from tests.models.multimodal.small import TEXT, encoder_of
from tests.models.multimodal.tiny_qwen2_audio import SECONDS, small_qwen2_audio

AUDIO = 290
LENGTHS = [480, 4000, 16_000, 31_999, 32_000]
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ModelFiles]:
    model = small_qwen2_audio(TEXT["vocab_size"], AUDIO)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model, local_files(folder)


def sound(count: int) -> NDArray[np.float32]:
    return (np.random.default_rng(count).normal(0, 0.1, count)).astype(np.float32)


def layout_of(files: ModelFiles) -> Qwen2AudioLayout:
    layout = read_layout(files)
    assert isinstance(layout, Qwen2AudioLayout)
    assert isinstance(layout, SoundLayout)
    return layout


def features(sounds: list[NDArray[np.float32]]) -> dict[str, Any]:
    made: Any = WhisperFeatureExtractor
    extractor = made(feature_size=80, chunk_length=SECONDS)
    found = extractor(
        sounds, sampling_rate=16_000, return_attention_mask=True, padding="max_length", return_tensors="pt"
    )
    return {"input_features": found["input_features"], "feature_attention_mask": found["attention_mask"]}


@torch.inference_mode()
def theirs(model: Any, tokens: list[int], sounds: list[NDArray[np.float32]]) -> torch.Tensor:
    ids = torch.tensor([tokens])
    given = features(sounds) if sounds else {}
    logits: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), **given).logits[0]
    return logits


def prompt(layout: Qwen2AudioLayout, *parts: list[int] | Fitted) -> tuple[list[int], Any]:
    tokens: list[int] = []
    media: list[Media] = []
    for part in parts:
        if isinstance(part, Fitted):
            tokens += [AUDIO] * part.media[0].count
            media += part.media
        else:
            tokens += part
    return tokens, place(tokens, media, layout.placeholders)


@pytest.mark.parametrize("count", LENGTHS)
def test_places_and_rows_are_those_of_transformers(both: tuple[Any, ModelFiles], count: int) -> None:
    model, files = both
    samples = sound(count)
    fitted = layout_of(files).sound(samples, "a")
    given = features([samples])
    _, outputs = model.model.audio_tower._get_feat_extract_output_lengths(given["feature_attention_mask"].sum(-1))
    (medium,) = fitted.media
    assert (medium.count, fitted.text.count("<|AUDIO|>")) == (int(outputs), int(outputs))
    (rows,) = encoder_of(files, load_encoder).encode([medium])
    assert rows.shape == (int(outputs), TEXT["hidden_size"])


def test_logits_of_conversations_with_recordings(both: tuple[Any, ModelFiles]) -> None:
    model, files = both
    layout = layout_of(files)
    first, second = sound(16_000), sound(9000)
    one, two = layout.sound(first, "a"), layout.sound(second, "b")
    prompts = [
        (prompt(layout, [5, 6], one, [7, 8, 9]), [first]),
        (prompt(layout, one, [4], two, [3, 2]), [first, second]),
        (prompt(layout, [1, 2, 3, 4]), []),
        (prompt(layout, [5, 6], two, [7, 8, 9]), [second]),
    ]
    found = EngineLogits(files).whole([asked for asked, _ in prompts])
    for logits, ((tokens, _), sounds) in zip(found, prompts, strict=True):
        assert (logits - theirs(model, tokens, sounds)).abs().max() < TOLERANCE


def test_equal_text_with_another_recording_is_another_prefix(both: tuple[Any, ModelFiles]) -> None:
    layout = layout_of(both[1])
    first, second = layout.sound(sound(4000), "a").media[0], layout.sound(sound(4001), "a").media[0]
    assert first.count == second.count
    assert first.digest != second.digest


def test_what_it_does_not_hear_is_refused_by_name(both: tuple[Any, ModelFiles]) -> None:
    layout = layout_of(both[1])
    with pytest.raises(InvalidRequest, match=r"'a' lasts 2\.1 s: this model hears at most 2 s"):
        layout.sound(sound(33_600), "a")
    with pytest.raises(InvalidRequest, match="takes recordings only"):
        layout.picture(np.zeros((4, 4, 3), dtype=np.uint8), "a")


def test_files_of_the_published_form_are_read(tmp_path: Path) -> None:
    published = {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "audio_config": {"d_model": 1280},
        "audio_token_index": 151_646,
    }
    (tmp_path / "config.json").write_text(json.dumps(published))
    layout = read_layout(local_files(tmp_path))
    assert layout == Qwen2AudioLayout(151_646, 480_000)
