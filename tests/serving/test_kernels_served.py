"""Settings of kernels and weights hold for the model that is served first; models of other kinds are loaded beside it."""

from __future__ import annotations

import json
import shutil

import pytest

from edgewise.core.errors import ConfigError
from edgewise.core.settings import Settings, load_settings
from edgewise.engine import weight_choice
from edgewise.engine.machine import Machine
from edgewise.engine.numerics import Numerics, resolve
from edgewise.models.longtail.estimate import read_network
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.serving.adapters import config_of, engine_name
from edgewise.serving.listening import read_listener
from edgewise.serving.served import ReadModel, read_model
from tests.models.longtail.models import save
from tests.models.whisper.small import folder, small_whisper

MACHINE = Machine(cuda=False, capability=None, available=8 << 30)
CARD = Machine(cuda=True, capability=(9, 0), available=8 << 30)
ASKED = [{"quantize": "int8"}, {"quantize": "int4"}, {"engine.kernels": "native"}]


@pytest.fixture(autouse=True)
def _with_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_choice, "why_no_library", lambda: None)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """With a decoder, a Whisper and one of the long tail, which has the decoder's tokenizer."""
    home = tmp_path_factory.mktemp("home")
    store = Store(home / "models", reserve_bytes=0)
    plain = make_tiny_model(home / "plain")
    store.import_path(plain, "plain")
    save(home / "tail", "gptj", vocab_size=512)
    whisper = folder(small_whisper(), home / "ear")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(plain / name, home / "tail")
        shutil.copy(plain / name, home / "ear")
    assert whisper.paths
    generation = {"eos_token_id": 9, "decoder_start_token_id": 1, "no_timestamps_token_id": 6}
    (home / "ear" / "generation_config.json").write_text(json.dumps(generation))
    store.import_path(home / "tail", "tail")
    store.import_path(home / "ear", "ear", role="speech-to-text")
    return store


def settings_of(store: Store, **asked: object) -> Settings:
    overrides = {"home": str(store.root.parent), "model": "plain", **asked}
    return load_settings(overrides=overrides, environ={}).settings


def numerics_of(read: ReadModel) -> Numerics:
    """As its engine resolves them."""
    config = read.config
    return resolve(
        device="cpu",
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        quantize=config.quantize,
        cuda=False,
        kernels=config.kernels,
        network=read_network(config.model),
    )


@pytest.mark.parametrize("asked", ASKED)
def test_other_kinds_of_models_are_read_beside_the_first(asked: dict[str, str], store: Store) -> None:
    settings = settings_of(store, **asked)
    plain = numerics_of(read_model(settings, store, "plain", MACHINE))
    assert plain.kernels == "native"
    assert plain.quantize == asked.get("quantize", "none")
    tail = numerics_of(read_model(settings, store, "tail", MACHINE))
    assert (tail.kernels, tail.quantize) == ("reference", "none")
    assert tail.lacking == "this kind of model runs on the reference kernels"
    ear = read_listener(settings, store, "ear", MACHINE).config
    assert (ear.kernels, ear.quantize) == ("reference", "none")


@pytest.mark.parametrize("asked", ASKED)
def test_the_first_model_is_refused_if_they_do_not_compute_it(asked: dict[str, str], store: Store) -> None:
    with pytest.raises(ConfigError, match="this kind of model runs on the reference kernels"):
        read_model(settings_of(store, **asked, model="tail"), store, "tail", MACHINE)


def test_settings_that_contradict_each_other_are_refused_for_all(store: Store) -> None:
    settings = settings_of(store, quantize="int8", **{"engine.kernels": "reference"})
    for name in ("plain", "tail"):
        with pytest.raises(ConfigError, match="'quantize' is int8"):
            read_model(settings, store, name, MACHINE)


@pytest.mark.parametrize("quantize", ["auto", "none", "int8", "int4"])
def test_adapters_are_computed_beside_a_model_in_any_format(quantize: str, store: Store) -> None:
    settings = settings_of(store, quantize=quantize)
    read = read_model(settings, store, "plain", MACHINE, lambda config: config_of(engine_name("plain"), config))
    numerics = numerics_of(read)
    expected = "none" if quantize == "auto" else quantize
    assert (numerics.kernels, numerics.quantize, read.config.adapters) == ("native", expected, True)
    card = read_model(settings, store, "plain", CARD, lambda config: config_of(engine_name("plain"), config, cuda=True))
    assert (card.config.kernels, card.config.quantize, card.config.adapters) == ("reference", "none", True)
