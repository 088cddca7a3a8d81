"""Grammars and tokenizers agree: what a tokenizer makes of an allowed text is allowed, token by token, to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgewise.engine.constraint import Constraints
from edgewise.models.tiny import local_files, make_tiny_model
from edgewise.models.tokenizer import Tokenizer, load_tokenizer
from edgewise.pipeline.structured.lark import constraint, quoted
from edgewise.pipeline.structured.vocabulary import checking_vocabulary, vocabulary_of
from tests.fakes.text import ByteTokenizer
from tests.models.test_tokenizer import sentencepiece_model

TEXTS = [
    '{"name": "value", "n": [1, 2.5, -3e4, null, true]}',
    "Grüße aus 東京 🟥\n\ttab",
    " leading and trailing ",
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>',
    "a" * 40,
]


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tiny")
    if request.param == "sentencepiece":
        return load_tokenizer(sentencepiece_model(folder))
    return load_tokenizer(local_files(make_tiny_model(folder)))


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_as_the_tokenizer_writes_it_is_allowed(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, parse_special=False)
    written = b"".join(tokenizer.token_bytes(id) for id in ids).decode()
    constraints = Constraints(vocabulary_of(tokenizer))
    constraints.open("r", constraint(f"start: {quoted(written)}"))
    for count, id in enumerate([*ids, min(tokenizer.eos_ids)]):
        mask = constraints.begin("r", ids[:count])
        assert mask is not None
        bits = mask.result().bits
        assert bits[id >> 3] >> (id & 7) & 1, (count, id)
    constraints.stop()


def test_the_table_has_every_token_once(tokenizer: Tokenizer) -> None:
    table = vocabulary_of(tokenizer)
    assert len(table.spellings) == tokenizer.vocab_size
    assert set(table.eos) == tokenizer.eos_ids
    for id, spelling in enumerate(table.spellings):
        if id in table.special:
            assert spelling == tokenizer.token_text(id).encode()
        else:
            assert spelling == tokenizer.token_bytes(id)
    assert repr(table).startswith(f"Vocabulary({tokenizer.vocab_size} tokens")


def test_the_stand_in_has_the_same_control_tokens() -> None:
    tokenizer = ByteTokenizer()
    small, whole = checking_vocabulary(tokenizer), vocabulary_of(tokenizer)
    assert small.special == whole.special
    assert small.eos == whole.eos
    assert [small.spellings[id] for id in small.special] == [whole.spellings[id] for id in whole.special]
    assert small.spellings[-256:] == tuple(bytes([byte]) for byte in range(256))
