"""Where sentences end, for whoever cuts text: pipelines that work sentence by sentence, and answers that are spoken."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgewise.pipeline.sentence_ends import open_end, sentence_ends


def cut(text: str) -> list[str]:
    ends = [0, *sentence_ends(text), len(text)]
    return [text[start:end] for start, end in pairwise(ends) if end > start]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One. ", "Two! ", "Three?"]),
        ("Dr. Smith met J. Doe, e.g. at 5 p.m. today. Then", ["Dr. Smith met J. Doe, e.g. at 5 p.m. today. ", "Then"]),
        ("He was 42. Then he left.\n3. Go.", ["He was 42. ", "Then he left.\n", "3. Go."]),
        ("1. Fetch water. 2. Boil it.", ["1. Fetch water. ", "2. Boil it."]),
        ('He said "Go!" She went\u2026 Far.', ['He said "Go!" ', "She went\u2026 ", "Far."]),
        ("\u4f60\u597d\u3002\u518d\u89c1\uff01", ["\u4f60\u597d\u3002", "\u518d\u89c1\uff01"]),
        ("A title\nand text", ["A title\n", "and text"]),
        ("Version 3.14 is out. Yes", ["Version 3.14 is out. ", "Yes"]),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert cut(text) == sentences


def test_what_may_be_an_end_is_known_as_such() -> None:
    assert open_end("One. Two") is None
    assert open_end("One. Two.") == 8
    assert open_end("One. Two.  ") == 8
    assert open_end("One. Two.", 9) is None


def test_many_marks_take_no_time_that_grows_with_their_square() -> None:
    text = "." * 200_000 + " x" * 100_000
    assert len(list(sentence_ends(text))) == 1
