"""Which code runs a model, and what is said where it cannot."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import UnsupportedModel
from edgewise.engine.networks import describe
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.files import ModelFiles
from edgewise.models.tiny import local_files
from edgewise.models.weights.write import StoredTensor, write_safetensors

FOREIGN = {
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 1,
    "n_embd": 8,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": 16,
}


def test_our_own_families_never_ask_for_transformers(tiny_model: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(name: str) -> Any:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(importlib, "import_module", never)
    assert isinstance(describe(tiny_model), DecoderConfig)


def test_a_transformers_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_old(name: str) -> Any:
        raise ImportError("cannot import name 'AttentionMaskInterface'")

    (tmp_path / "config.json").write_text(json.dumps(FOREIGN))
    write_safetensors(tmp_path / "model.safetensors", [StoredTensor("wte.weight", (16, 8), "F32", bytes(512))])
    monkeypatch.setattr(importlib, "import_module", too_old)
    with pytest.raises(
        UnsupportedModel, match=r"GPT2LMHeadModel needs transformers.*pip install -U 'edgewise\[transformers\]'"
    ):
        describe(local_files(tmp_path))
