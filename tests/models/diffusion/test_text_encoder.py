"""The encoder of prompts gives what transformers gives for the same files, and what sentence-transformers makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from edgewise.core.errors import BadModelFile
from edgewise.models.diffusion.starter.files import TEXT_WEIGHTS, load_encoder
from edgewise.models.diffusion.starter.tiny import TINY, make_tiny_pictures
from edgewise.models.tiny import local_files

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT, written by transformers into the folder of a tiny picture model."""
    folder = make_tiny_pictures(tmp_path_factory.mktemp("model"))
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=TINY.text_width,
        num_hidden_layers=3,
        num_attention_heads=TINY.text_heads,
        intermediate_size=80,
        max_position_embeddings=20,
        initializer_range=0.4,
    )
    bert = transformers.BertModel(config).eval()
    bert.save_pretrained(folder / "bert")
    (folder / TEXT_WEIGHTS).write_bytes((folder / "bert/model.safetensors").read_bytes())
    for path in (folder / "bert").iterdir():
        path.unlink()
    (folder / "bert").rmdir()
    with torch.inference_mode():
        ids = torch.tensor([[2, 4, 5, 8, 3]])
        states = bert(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    torch.save(states, folder.parent / "expected.pt")
    return folder


def test_states_and_sentence_vector_are_those_of_transformers(folder: Path) -> None:
    expected = torch.load(folder.parent / "expected.pt", weights_only=True)
    encoder = load_encoder(local_files(folder), TINY)
    with torch.inference_mode():
        assert encoder.ids(["a red cat"], 8) == [[2, 4, 5, 8, 3]]
        states, sentence = encoder.encode("A red CAT", 8)
    assert torch.allclose(states, expected, atol=2e-5)
    assert torch.allclose(sentence, torch.nn.functional.normalize(expected.mean(0), dim=0), atol=2e-5)


def test_padding_changes_nothing_and_long_prompts_keep_their_end_mark(folder: Path) -> None:
    encoder = load_encoder(local_files(folder), TINY)
    ids = torch.tensor([[2, 4, 5, 8, 3, 0, 0], [2, 6, 3, 0, 0, 0, 0]])
    mask = torch.tensor([[True] * 5 + [False] * 2, [True] * 3 + [False] * 4])
    with torch.inference_mode():
        together = encoder(ids, mask)
        assert torch.allclose(together[0, :5], encoder.encode("a red cat", 8)[0], atol=2e-5)
        assert torch.allclose(together[1, :3], encoder.encode("green", 8)[0], atol=2e-5)
    assert encoder.ids(["a red cat of the green house"], 5) == [[2, 4, 5, 8, 3]]


def test_an_encoder_of_another_width_is_refused(folder: Path, tmp_path: Path) -> None:
    other = make_tiny_pictures(tmp_path / "other")
    (other / TEXT_WEIGHTS).write_bytes((folder / TEXT_WEIGHTS).read_bytes())
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"text_tokens": 21}))
    with pytest.raises(BadModelFile, match="places"):
        load_encoder(local_files(other), type(TINY)(**{**TINY_VALUES, "text_tokens": 21}))


TINY_VALUES = {name: getattr(TINY, name) for name in type(TINY).__dataclass_fields__}
