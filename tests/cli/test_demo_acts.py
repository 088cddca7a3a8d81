"""The demo's third act cuts the link in the middle of an answer, in however many pieces the answer comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from edgewise.cli import demo_acts
from edgewise.cli.chat_client import Answer
from edgewise.cli.demo import _Show
from edgewise.cli.demo_acts import CUT_TOKENS, Act, cut_answer

WORD = "tide "


class PieceStreamDouble:
    """Stands for `ChatClient`: an answer of `CUT_TOKENS` words, a word a token, in pieces of so many words."""

    words: Sequence[int] = ()

    def __init__(self, url: str, *, headers: Mapping[str, str]) -> None:
        assert url == "http://device"
        assert headers == {demo_acts.POLICY_HEADER: "prefer-cloud"}

    def __enter__(self) -> PieceStreamDouble:
        return self

    def __exit__(self, *exc_info: object) -> None: ...

    def stream(self, messages: object, answer: Answer, **options: Any) -> Iterator[str]:
        assert options["max_completion_tokens"] == CUT_TOKENS
        for count in self.words:
            piece = WORD * count
            answer.text += piece
            yield piece
        answer.finish_reason, answer.usage = "length", {"completion_tokens": sum(self.words)}
        answer.receipt = {"stages": []}


def act(monkeypatch: pytest.MonkeyPatch, words: Sequence[int]) -> tuple[Act, list[int]]:
    """The act, and how many words had come whenever the link was cut."""
    monkeypatch.setattr(demo_acts, "ChatClient", PieceStreamDouble)
    monkeypatch.setattr(PieceStreamDouble, "words", words)
    said: list[str] = []
    cuts: list[int] = []
    done = cut_answer("http://device", "m", said.append, lambda: cuts.append("".join(said).count(WORD)))
    assert "".join(said) == done.facts["text"]
    return done, cuts


@pytest.mark.parametrize(
    ("words", "cut_at"),
    [
        ([1] * CUT_TOKENS, 8),  # a slow engine: a token in a piece
        ([1, *[20] * 11, 19], 21),  # a quick one: 40 ms of tokens
        ([1, 120, 119], 121),  # a very quick one
    ],
)
def test_the_link_is_cut_once_in_the_middle_however_many_tokens_a_piece_has(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[int], cut_at: int
) -> None:
    done, cuts = act(monkeypatch, words)
    assert sum(words) == CUT_TOKENS
    assert cuts == [cut_at]
    assert cut_at < CUT_TOKENS, "the answer goes on"
    assert (done.facts["cut"], done.facts["tokens"]) == (True, CUT_TOKENS)


def test_an_answer_that_is_over_before_the_cut_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done, cuts = act(monkeypatch, [1, 2])
    assert cuts == []
    assert done.facts["cut"] is False
    _Show(as_json=False, began=0.0).cut(done)
    assert "over before it was long enough for its link to be cut" in capsys.readouterr().out
