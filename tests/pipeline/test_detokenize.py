"""Whole characters only, whatever the tokens' borders."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.pipeline.detokenize import Detokenizer
from tests.fakes.text import EOS, ByteTokenizer


def tokenizer_for(pieces: list[bytes]) -> tuple[ByteTokenizer, list[int]]:
    """A tokenizer with a token for every piece, and the ids that spell them."""
    return ByteTokenizer(pieces, vocab_size=259 + len(pieces)), [259 + index for index in range(len(pieces))]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


@given(st.text(), st.lists(st.integers(0, 10_000), max_size=30))
def test_any_split_of_any_text_gives_the_text_in_whole_characters(text: str, cuts: list[int]) -> None:
    tokenizer, ids = tokenizer_for(split(text.encode(), cuts))
    detokenizer = Detokenizer(tokenizer)
    parts = []
    for token in ids:
        parts.append(detokenizer.push(token))
        assert detokenizer.position == len("".join(parts))
        parts[-1].encode()  # no half of anything
    assert "".join(parts) == text
    assert detokenizer.pending == 0


@given(st.binary(max_size=40), st.lists(st.integers(0, 10_000), max_size=10))
def test_bytes_that_are_no_text_do_not_depend_on_the_split(data: bytes, cuts: list[int]) -> None:
    tokenizer, ids = tokenizer_for(split(data, cuts))
    detokenizer = Detokenizer(tokenizer)
    text = "".join(detokenizer.push(token) for token in ids)
    whole = Detokenizer(ByteTokenizer())
    assert text == "".join(whole.push(byte) for byte in data)
    assert detokenizer.pending == whole.pending
    assert data.decode(errors="replace").startswith(text)


@pytest.mark.parametrize("emoji", ["👩‍👩‍👧", "🇩🇪", "𝄞", "é"])
def test_an_emoji_never_shows_in_part(emoji: str) -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    parts = [detokenizer.push(byte) for byte in emoji.encode()]
    assert "\ufffd" not in "".join(parts)
    assert "".join(parts) == emoji


def test_special_tokens_add_nothing_and_do_not_break_a_character() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    first, second = "é".encode()
    assert [detokenizer.push(token) for token in (first, EOS, second)] == ["", "", "é"]


def test_a_byte_that_cannot_begin_a_character_is_shown_as_such_at_once() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    assert detokenizer.push(0xFF) == "\ufffd"
    assert detokenizer.push(ord("a")) == "a"
