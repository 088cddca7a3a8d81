"""Text in pieces: nothing is lost, nothing changes with how it arrives, no piece is too long."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.pipeline.chains.parts import Sentences, pack

TEXTS = st.text(alphabet="ab .!?\n\"'\u3002)", max_size=80)


def cut(*pieces: str) -> list[str]:
    cutter = Sentences()
    return [*(sentence for piece in pieces for sentence in cutter.feed(piece)), *cutter.end()]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two!  Three?", ["One.", "Two!", "Three?"]),
        ('She said "no." Then 3.5 came...\n\nAnd more', ['She said "no."', "Then 3.5 came...", "And more"]),
        ("\u4e00\u3002\u4e8c\uff01\u4e09", ["\u4e00\u3002", "\u4e8c\uff01", "\u4e09"]),
        (" \n ", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert cut(text) == sentences


@given(text=TEXTS, cuts=st.lists(st.integers(0, 80), max_size=6))
def test_sentences_do_not_depend_on_how_text_arrives(text: str, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(one, len(text)) for one in cuts), len(text)]
    pieces = [text[first:last] for first, last in pairwise(bounds)]
    assert re.sub(r"\s", "", "".join(cut(text))) == re.sub(r"\s", "", text)
    assert cut(text) == cut(*text) == cut(*pieces)


@pytest.mark.parametrize("text", ["!" * 200_000, '."' * 100_000, "ab" * 10_000, "!" * 2_000, "a\n " * 50_000])
def test_no_text_takes_time_that_grows_with_its_square(text: str) -> None:
    """Some of these took minutes, in which nothing else of the service ran."""
    began = time.process_time()
    cut(text)
    if len(text) <= 20_000:
        cut(*text)
    pack(text, 100, len)
    assert time.process_time() - began < 20.0


def test_a_sentence_is_there_as_soon_as_the_next_one_begins() -> None:
    cutter = Sentences()
    assert cutter.feed("It rains. ") == []
    assert cutter.feed("S") == ["It rains."]


@given(text=TEXTS, limit=st.integers(1, 12))
def test_pieces_join_to_the_text_and_fit(text: str, limit: int) -> None:
    pieces = pack(text, limit, len)
    assert re.sub(r"\s", "", "".join(pieces)) == re.sub(r"\s", "", text)
    assert all(len(piece) <= limit for piece in pieces)
    if text.strip():
        assert len(pack(text, len(text), len)) == 1
