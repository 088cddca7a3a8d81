"""A model that Edgewise does not implement, imported and served by the real service; only the engine imports transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from edgewise.models.tiny import make_tiny_model
from scripts.service import DeviceService, ServiceError
from tests.e2e.service import edgewise, import_model, new_home, running
from tests.models.longtail.models import save

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


def import_longtail(home: Path, folder: Path, family: str, **config: object) -> str:
    """A tiny model of a family of transformers with the tokenizer of a tiny model of ours; returns its name."""
    folder.mkdir()
    save(folder, family, vocab_size=512)
    tokenizer = make_tiny_model(folder.parent / f"{folder.name}-tokenizer")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    import_model(home, folder, folder.name)
    return folder.name


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with new_home(starter=False) as made:
        yield made


@pytest.fixture(scope="module")
def service(home: Path) -> Iterator[DeviceService]:
    name = import_longtail(home, home / "granite", "granite")
    with running("--dtype", "float32", model=name, home=home) as started:
        yield started


def ask(service: DeviceService, content: str) -> str:
    body = {
        "model": "granite",
        "messages": [{"role": "user", "content": content}],
        "max_completion_tokens": 12,
        "temperature": 0,
    }
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert usage["completion_tokens"] >= 1
    return str(answer.json()["choices"][0]["message"]["content"])


def test_it_answers_and_answers_alike(service: DeviceService) -> None:
    question = "What does the pump say? " * 8
    assert ask(service, question) == ask(service, question)


def test_it_fits_says_the_sum_of_its_headers(service: DeviceService, home: Path) -> None:
    report = json.loads(edgewise(home, "models", "fit", "granite", "--json"))
    assert report["fits"]
    assert report["model_context"] == 256


def test_only_the_engines_process_holds_transformers(service: DeviceService) -> None:
    def holds_torch(process: psutil.Process) -> bool:
        return any("libtorch" in mapped.path for mapped in process.memory_maps())

    main = psutil.Process(service.pid)
    assert not holds_torch(main)
    assert any(holds_torch(child) for child in main.children(recursive=True))


def test_what_pages_cannot_serve_is_named_at_the_start() -> None:
    with new_home(starter=False) as own:  # a state directory has one service
        name = import_longtail(own, own / "mamba", "mamba", max_position_embeddings=256, num_attention_heads=4)
        with pytest.raises(ServiceError, match="MambaForCausalLM keeps recurrent state"), running(model=name, home=own):
            pass
