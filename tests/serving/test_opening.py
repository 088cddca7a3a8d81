"""What is said when the model to be opened has a damaged file, or no template."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgewise.core.errors import BadModelFile, ConfigError, DigestMismatch
from edgewise.core.settings import Settings
from edgewise.engine.machine import Machine
from edgewise.models.store import Store
from edgewise.models.tiny import make_tiny_model
from edgewise.serving.served import read_model, with_remedy

ROOMY = Machine(cuda=False, capability=None, available=8 << 30)


def imported(home: Path, source: Path) -> Settings:
    Store(home / "models").import_path(source, "tiny")
    return Settings(home=home, model="tiny")


def test_a_damaged_file_is_named_with_what_mends_it(tmp_path: Path) -> None:
    settings = imported(tmp_path / "home", make_tiny_model(tmp_path / "tiny", format="gguf") / "tiny.gguf")
    (blob,) = (path for path in (tmp_path / "home/models/blobs/sha256").iterdir() if path.stat().st_size > 100_000)
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"X")
    with pytest.raises(BadModelFile, match=r"not a GGUF file.*`edgewise models verify tiny`"):
        read_model(settings, Store(settings.home / "models"), "tiny", ROOMY)


def test_a_remedy_is_given_once_and_only_for_damage() -> None:
    damage = with_remedy(DigestMismatch("a.gguf differs.", param="model"), "tiny")
    assert isinstance(damage, DigestMismatch)
    assert damage.param == "model"
    assert damage.message.startswith("a.gguf differs. `edgewise models verify tiny`")
    assert with_remedy(damage, "tiny") is damage
    other = ConfigError("No.")
    assert with_remedy(other, "tiny") is other


def test_a_model_without_a_template_is_served_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = make_tiny_model(tmp_path / "tiny")
    config = source / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": None}))
    settings = imported(tmp_path / "home", source)
    with caplog.at_level("WARNING"):
        model = read_model(settings, Store(settings.home / "models"), "tiny", ROOMY)
    model.close()
    assert model.template is None
    assert "no_chat_template" in caplog.text
