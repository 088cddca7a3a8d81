"""Phrases of a text that is being written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.pipeline.voice.phrases import LONGEST, Phrases


def _phrases(text: str, size: int = 1) -> list[str]:
    cut = Phrases()
    found = [phrase for at in range(0, len(text), size) for phrase in cut.feed(text[at : at + size])]
    return [*found, cut.flush()]


@given(st.text(alphabet="ab.,;!? \n\"')1D", max_size=800), st.integers(1, 30))
def test_nothing_is_lost_and_nothing_is_long(text: str, size: int) -> None:
    phrases = _phrases(text, size)
    assert "".join(phrases) == text
    assert all(len(phrase) <= LONGEST + size for phrase in phrases)


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("Yes. It is.", ["Yes. ", "It is."]),
        ("Ask Dr. Smith. He knows.", ["Ask Dr. Smith.", " He knows."]),
        ("It is 3.5 metres. Good.", ["It is 3.5 metres.", " Good."]),
        ("1. Boil water. 2. Wait.", ["1. Boil water.", " 2. Wait."]),
        ('She said "Go!" and left.', ['She said "Go!" ', "and left."]),
        ("Line one\nline two", ["Line one\n", "line two"]),
        (
            "The capital of France has a long history, which began with a tribe.",
            ["The capital of France has a long history, ", "which began with a tribe."],
        ),
    ],
)
def test_a_phrase_is_handed_out_at_its_end(text: str, phrases: list[str]) -> None:
    assert _phrases(text) == phrases


def test_the_first_sentence_waits_for_nothing_and_later_ones_for_what_follows() -> None:
    cut = Phrases()
    assert cut.feed("It is Paris.") == ["It is Paris."]
    assert cut.feed(" The file is notes.") == []
    assert cut.feed("txt. Yes") == [" The file is notes.txt. "]


def test_an_abbreviation_does_not_end_the_first_sentence() -> None:
    cut = Phrases()
    assert cut.feed("That is approx.") == []
    assert cut.feed(" 3.5 metres.") == ["That is approx. 3.5 metres."]
