"""Which model guesses for which: the same vocabulary, told apart by its tokens, and counted in what a model needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgewise.core.errors import ConfigError, ModelNotFound
from edgewise.core.settings import load_settings
from edgewise.engine.drafting import plan_draft
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import resolve
from edgewise.models.decoder.config import DecoderConfig
from edgewise.models.longtail.estimate import read_network
from edgewise.models.multimodal.config import MultimodalConfig
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.serving.served import ReadModel, read_model
from tests.models.longtail.models import save

MACHINE = Machine(cuda=False, capability=None, available=8 << 30)
Read = Callable[..., ReadModel]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    store = Store(tmp_path / "models", reserve_bytes=0)
    models: dict[str, dict[str, Any]] = {
        "large": {},
        "small": {"layers": 1},
        "other": {"vocab": 600},
        "padded": {"config": {"vocab_size": 576}},  # the same tokens, and rows that stand for none
    }
    for name, options in models.items():
        store.import_path(make_tiny_model(tmp_path / name, **options), name)

    def call(model: str, **engine: Any) -> ReadModel:
        inner = {f"engine.{key}": value for key, value in engine.items()}
        overrides = {"home": str(tmp_path), "model": "large", **inner}
        return read_model(load_settings(overrides=overrides, environ={}).settings, store, model, MACHINE)

    return call


def test_a_draft_of_the_same_vocabulary_is_used_and_counted(read: Read) -> None:
    plain, drafted = read("large"), read("large", draft_model="small")
    assert plain.config.draft is None
    assert drafted.config.draft is not None
    assert drafted.config.draft.name == "small"
    assert drafted.needs.minimal > plain.needs.minimal
    assert read("small", draft_model="small").config.draft is None
    assert read("large", draft_model="small", speculation="off").config.draft is None


def test_other_vocabularies_are_refused_for_the_first_model_and_left_out_for_others(read: Read) -> None:
    with pytest.raises(ConfigError, match="other has other tokens than large"):
        read("large", draft_model="other")
    assert read("other", draft_model="small").config.draft is None
    with pytest.raises(ConfigError, match=r"set engine\.draft_model too"):
        read("large", speculation="draft")
    with pytest.raises(ModelNotFound, match="nobody"):
        read("large", draft_model="nobody")


def test_the_same_tokens_in_a_larger_table_are_another_vocabulary(read: Read) -> None:
    with pytest.raises(ConfigError, match="padded has a vocabulary of 576 where 512 are in large"):
        read("large", draft_model="padded")
    assert read("padded", draft_model="small").config.draft is None
    assert read("padded", draft_model="small", speculation="draft").config.draft is None


def test_no_memory_is_kept_for_a_draft_where_nothing_is_guessed(read: Read, tmp_path: Path) -> None:
    """A model that transformers runs promises nothing of a token's bits; one that speaks is made of all that is computed."""
    save(tmp_path / "tail", "gptj", vocab_size=512)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "large" / name, tmp_path / "tail")
    Store(tmp_path / "models", reserve_bytes=0).import_path(tmp_path / "tail", "tail")
    plain, drafted = read("tail"), read("tail", draft_model="small")
    assert drafted.config.draft is not None
    assert drafted.needs == plain.needs

    config = read("large", draft_model="small").config
    decoder = read_network(config.model)
    assert isinstance(decoder, DecoderConfig)
    numerics = resolve(device="cpu", dtype="auto", kv_dtype="auto", quantize="none", cuda=False, network=decoder)
    assert plan_draft(config, decoder, numerics) is not None
    sighted = MultimodalConfig(
        text=decoder, kinds=("image",), tower_elements=1, tower_workspace=1, encoder="", other=""
    )
    assert plan_draft(config, sighted, numerics) is not None
    assert plan_draft(config, replace(sighted, speaks=True), numerics) is None
