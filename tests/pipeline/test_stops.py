"""Stop strings are found where a search of the whole text finds them, and no part of one is ever shown."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewise.pipeline.stops import StopScanner

SMALL = st.text("abc", min_size=0, max_size=40)
STOPS = st.lists(st.text("abc", min_size=1, max_size=6), max_size=4)


def run(scanner: StopScanner, pieces: list[str]) -> str:
    return "".join(scanner.feed(piece) for piece in pieces) + scanner.flush()


@given(SMALL, STOPS, st.lists(st.integers(0, 40), max_size=8))
@example("abcabd", ["abd", "bca"], [1, 2])
@example("aab", ["ab"], [])
@example("abcde"[:4], ["abcx", "bc"], [])
def test_the_text_is_cut_where_a_whole_search_cuts_it(text: str, stops: list[str], cuts: list[int]) -> None:
    found = [text.find(stop) for stop in stops if stop in text]
    borders = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    scanner = StopScanner(stops)
    shown = run(scanner, [text[a:b] for a, b in pairwise(borders)])
    if found:
        assert scanner.found == min(found)
        assert shown == text[: min(found)]
    else:
        assert scanner.found is None
        assert shown == text
    assert scanner.released == len(shown)


@given(SMALL, STOPS)
def test_nothing_shown_can_still_become_part_of_a_stop_string(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = ""
    for position, char in enumerate(text, 1):
        shown += scanner.feed(char)
        if scanner.found is not None:
            break
        tail = text[len(shown) : position]
        for stop in stops:
            longest = max(size for size in range(len(stop)) if text[:position].endswith(stop[:size]))
            assert len(tail) >= longest


@given(SMALL, STOPS)
def test_no_more_is_held_than_a_stop_string_needs(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    shown = ""
    for position, char in enumerate(text, 1):
        shown += scanner.feed(char)
        if scanner.found is not None:
            break
        assert position - len(shown) < max((len(stop) for stop in stops), default=1)


def test_a_two_word_stop_across_pieces() -> None:
    scanner = StopScanner(["the end"])
    assert run(scanner, ["it is t", "he e", "nd of", " it"]) == "it is "
    assert scanner.found == 6


def test_a_longer_stop_that_began_earlier_wins_over_a_shorter_one_inside_it() -> None:
    assert run(StopScanner(["cd", "bcde"]), list("abcdef")) == "a"
    assert run(StopScanner(["cd", "bcde"]), list("abcdxf")) == "ab"
    assert run(StopScanner(["cd", "bcde"]), list("abcd")) == "ab"


def test_nothing_is_read_after_the_stop() -> None:
    scanner = StopScanner(["x"])
    assert scanner.feed("axb") == "a"
    assert scanner.feed("more") == ""
    assert scanner.flush() == ""


def test_without_stop_strings_nothing_is_held() -> None:
    scanner = StopScanner([])
    assert scanner.feed("abc") == "abc"
    assert scanner.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopScanner([""])
