"""all-MiniLM-L6-v2 from the catalog, on real sentences: our graphs beside transformers' network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as untyped_transformers

from edgewise.models.encoders.build import Order, climb
from edgewise.models.encoders.graph import build_graph, groups
from edgewise.models.encoders.load import load_text_encoder
from edgewise.models.encoders.run import TextSession
from edgewise.models.encoders.shape import read_shape
from edgewise.models.encoders.text import load_tokenizer
from edgewise.models.encoders.text_network import sentences
from edgewise.models.encoders.weights import read_weights
from edgewise.models.files import ModelFiles
from edgewise.models.store import Store
from tests.e2e.service import PULL_TIMEOUT_S, edgewise, starter_home
from tests.fakes.tiny_encoders import PROSE

transformers: Any = untyped_transformers
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "How do I reset my password?",
    "Interest rates were raised by a quarter of a point, which surprised nobody in the market.",
    "Zwei Stimmen auf Deutsch, une phrase en francais.",
    "def add(a, b): return a + b",
    "42",
]


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    """Pulled once into the store that all tests share."""
    home = starter_home()
    edgewise(home, "models", "pull", "minilm", timeout_s=PULL_TIMEOUT_S)
    return Store(home / "models").resolve("minilm", "embeddings")


@pytest.fixture(scope="module")
def rows(files: ModelFiles) -> list[list[int]]:
    """The texts above, and every ninth sentence of the prose that calibration and gate do not read."""
    return load_tokenizer(files).encode([*TEXTS, *sentences(PROSE.read_text())[128::9]])


@pytest.fixture(scope="module")
def truth(files: ModelFiles, rows: list[list[int]], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("minilm")
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(files.paths[name])
    network = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.inference_mode():
        for row in rows:
            states = network(input_ids=torch.tensor([row])).last_hidden_state[0]
            found.append(torch.nn.functional.normalize(states.mean(0), dim=0))
    return torch.stack(found).numpy()


def test_float32_is_transformers(files: ModelFiles, rows: list[list[int]], truth: Any) -> None:
    shape = read_shape(files)
    assert (shape.width, shape.max_tokens, shape.pooling) == (384, 256, "mean")
    exact = TextSession(build_graph(shape, read_weights(files, shape)).SerializeToString(), 1)
    np.testing.assert_allclose(exact.run(rows), truth, atol=1e-5)


def test_eight_bit_blocks_pass_the_gate_on_sentences_that_they_have_not_seen(
    files: ModelFiles, rows: list[list[int]], truth: Any
) -> None:
    shape = read_shape(files)
    model = build_graph(shape, read_weights(files, shape), dict.fromkeys(groups(shape), "blocks"))
    cosines = (TextSession(model.SerializeToString(), 1).run(rows) * truth).sum(axis=1)
    assert cosines.mean() >= 0.999


@pytest.mark.slow
def test_the_ladders_winner_stays_near_transformers(
    files: ModelFiles, rows: list[list[int]], truth: Any, tmp_path: Path
) -> None:
    from edgewise.models.encoders.record import ladder_folder, place_name
    from edgewise.models.onnx_session import RUNTIME

    folder = ladder_folder(tmp_path, files.digest) / place_name(RUNTIME, "here", 1)
    order = Order(files=files, role="embeddings", samples=PROSE, folder=folder, device="here", threads=1)
    record = climb(order, lambda *_: None)
    for it in record.candidates:
        print(it)
    chosen = record.chosen
    assert chosen.cosine_min is not None
    assert chosen.cosine_min >= 0.999
    encoder, _ = load_text_encoder(files, 1, store=str(tmp_path), samples=str(PROSE), device="here")
    assert encoder.precision == chosen.name
    vectors = np.frombuffer(encoder.compute([tuple(map(tuple, rows))])[0][1], np.float32).reshape(len(rows), -1)
    assert (vectors * truth).sum(axis=1).mean() >= 0.999
