"""What follows an ending that stood before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgewise.engine.speculation.lookup import MATCHES, History


def test_what_followed_the_longest_and_latest_match_is_guessed() -> None:
    before = [1, 2, 3, 4, 5, 6, 70, 71, 9, 4, 5, 6, 80, 81, 9]
    assert History().guess([*before, 4, 5, 6], 2).tokens == (80, 81)  # type: ignore[union-attr]
    longer = History().guess([*before, 1, 2, 3, 4, 5, 6], 2)
    assert longer is not None
    assert (longer.tokens, longer.matched) == ((70, 71), 6)


def test_a_loop_is_guessed_for_as_long_as_asked() -> None:
    guess = History().guess([9, 1, 2, 3, 1, 2, 3], 8)
    assert guess is not None
    assert guess.tokens == (1, 2, 3, 1, 2, 3, 1, 2)
    same = History().guess([5, 5, 5, 5], 3)
    assert same is not None
    assert same.tokens == (5, 5, 5)


def test_nothing_is_guessed_without_a_match() -> None:
    assert History().guess([], 4) is None
    assert History().guess([1, 2, 3], 4) is None
    assert History().guess([1, 2, 3, 4, 5, 9, 2, 4], 4) is None


def test_only_whole_tokens_match() -> None:
    # The bytes of 256, 256, 256 stand in those of these tokens as well, but not where a token begins.
    assert History().guess([1 << 16] * 4 + [7, 256, 256, 256], 4) is None


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 8), st.lists(st.integers(1, 20), max_size=6))
def test_guesses_are_those_of_a_plain_search(tokens: list[int], most: int, parts: list[int]) -> None:
    history, reached = History(), 0
    for part in parts:  # told in pieces, as an answer grows
        reached += part
        history.guess(tokens[:reached], most)
    tokens = tokens[: max(reached, 1)] if parts else tokens
    guess = history.guess(tokens, most)
    assert (None if guess is None else (guess.tokens, guess.matched)) == _plain(tokens, most)


def _plain(tokens: list[int], most: int) -> tuple[tuple[int, ...], int] | None:
    for length in MATCHES:
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == tokens[-length:]:
                whole = list(tokens)
                for place in range(most):
                    whole.append(whole[start + length + place])
                return tuple(whole[len(tokens) :]), length
    return None
