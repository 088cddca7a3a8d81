"""A Whisper as CTranslate2 stores it becomes transformers' files without loss, the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import WhisperForConditionalGeneration

from edgewise.core.errors import BadModelFile
from edgewise.models.whisper.config import read_tokens
from edgewise.models.whisper.ctranslate2 import convert, convert_generation
from tests.models.whisper.small import ctranslate2, ctranslate2_settings, files_of, small_whisper

NAMES = ("model.safetensors", "config.json", "preprocessor_config.json")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[WhisperForConditionalGeneration, Path]:
    model = small_whisper(vocabulary=51_865)
    path = tmp_path_factory.mktemp("ct2") / "model.bin"
    path.write_bytes(ctranslate2(model.state_dict(), layers=2))
    (path.parent / "settings.json").write_text(json.dumps(ctranslate2_settings(50_257)))
    return model, path


def _made(path: Path, out: Path) -> Path:
    for name in NAMES:
        (out / name).write_bytes(b"".join(convert(path, name)))
    (out / "generation_config.json").write_bytes(
        b"".join(convert_generation(path.parent / "settings.json", "generation_config.json"))
    )
    return out


def test_every_weight_is_kept(original: tuple[WhisperForConditionalGeneration, Path], tmp_path: Path) -> None:
    model, path = original
    found = load_file(_made(path, tmp_path) / "model.safetensors")
    expected = {name: value for name, value in model.state_dict().items() if name != "proj_out.weight"}
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, expected[name].half()) for name, value in found.items())


def test_transformers_loads_the_folder(original: tuple[WhisperForConditionalGeneration, Path], tmp_path: Path) -> None:
    model, path = original
    loaded: Any = WhisperForConditionalGeneration.from_pretrained(
        _made(path, tmp_path), output_loading_info=True, dtype=torch.float32
    )
    network, told = loaded
    assert not told["missing_keys"] - {"proj_out.weight"}
    assert not told["unexpected_keys"]
    assert network.num_parameters() == model.num_parameters()


def test_bytes_are_the_same_every_time(original: tuple[WhisperForConditionalGeneration, Path]) -> None:
    for name in NAMES:
        assert b"".join(convert(original[1], name)) == b"".join(convert(original[1], name))


def test_control_tokens(original: tuple[WhisperForConditionalGeneration, Path], tmp_path: Path) -> None:
    files = files_of(_made(original[1], tmp_path))
    tokens = read_tokens(files)
    assert (tokens.end, tokens.start, tokens.previous, tokens.no_speech) == (50_257, 50_258, 50_361, 50_362)
    assert (tokens.no_times, tokens.first_time, tokens.translate, tokens.transcribe) == (50_363, 50_364, 50_358, 50_359)
    assert (tokens.languages["en"], tokens.languages["su"]) == (50_259, 50_357)
    assert tokens.suppressed_first == (220, 50_257)
    assert json.loads(files.paths["generation_config.json"].read_text())["alignment_heads"] == [[1, 0], [1, 2]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: b"\x05" + data[1:], "no Whisper in CTranslate2's format 6"),
        (lambda data: data[:5000], "ends in the middle"),
        (
            lambda data: data.replace(b"encoder/conv1/weight", b"encoder/conv9/weight"),
            "encoder/conv1/weight is missing",
        ),
    ],
)
def test_damage_is_refused_by_name(
    original: tuple[WhisperForConditionalGeneration, Path], tmp_path: Path, change: object, problem: str
) -> None:
    assert callable(change)
    damaged = tmp_path / "model.bin"
    damaged.write_bytes(change(original[1].read_bytes()))
    with pytest.raises(BadModelFile, match=problem):
        b"".join(convert(damaged, "model.safetensors"))
