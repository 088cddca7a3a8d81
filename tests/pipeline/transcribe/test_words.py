"""Words from tokens and frames: splitting, marks, pauses; and a recording whose windows are asked one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.core.errors import EngineFault
from edgewise.engine.request import GenerateRequest
from edgewise.pipeline.transcribe.text import Piece
from edgewise.pipeline.transcribe.words import Word, place_words, split_words
from tests.pipeline.transcribe.scripted import (
    END,
    ENGLISH,
    GERMAN,
    NO_TIMES,
    START,
    TRANSCRIBE,
    Said,
    ScriptedEngine,
    at,
)
from tests.pipeline.transcribe.test_run import heard, sound, task


class Bytes:
    """A tokenizer whose tokens are given."""

    def __init__(self, *tokens: bytes) -> None:
        self._tokens = tokens

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._tokens[id] for id in ids).decode(errors="replace")


def split(*tokens: bytes, spaced: bool = True) -> list[tuple[str, int]]:
    return split_words(range(len(tokens)), Bytes(*tokens), spaced=spaced)


def test_tokens_without_a_space_go_on_the_word_before_them() -> None:
    assert split(b" Dash", b"wood", b" had", b"n", b"'t", b".") == [(" Dashwood", 2), (" hadn't", 3), (".", 1)]


def test_tokens_that_end_within_a_character_belong_together() -> None:
    euro = " €".encode()
    assert split(b" 5", euro[:2], euro[2:], b"!") == [(" 5", 1), (" €", 2), ("!", 1)]


def test_bytes_that_are_no_text_are_a_word_and_nothing_is_lost() -> None:
    assert split(b" a", b"\xff", b" b") == [(" a\ufffd", 2), (" b", 1)]
    assert split(b" a", b" \xe2") == [(" a", 1), (" \ufffd", 1)]


def test_without_spaces_each_character_is_a_word() -> None:
    you, good = "你".encode(), "好".encode()
    assert split(you, good[:1], good[1:], "。".encode(), spaced=False) == [("你", 1), ("好", 2), ("。", 1)]


def placed(
    texts: Sequence[bytes], frames: Sequence[int], *, piece: tuple[float, float] = (0.0, 30.0), before: float = 0.0
) -> list[tuple[str, float, float]]:
    pieces = [Piece(*piece, tuple(range(len(texts))))]
    (words,) = place_words(pieces, frames, Bytes(*texts), spaced=True, before=before)
    return [(one.word, round(one.start, 2), round(one.end, 2)) for one in words]


def test_frames_are_fiftieths_of_a_second_and_words_have_their_marks() -> None:
    found = placed([b' "', b"He", b" was", b",", b" (", b"not", b")", b"."], [0, 5, 20, 40, 42, 50, 60, 62, 65])
    assert found == [('"He', 0.0, 0.4), ("was,", 0.4, 0.84), ("(not).", 0.84, 1.3)]


def test_a_mark_at_the_end_of_a_sentence_or_the_word_after_it_does_not_have_the_pause() -> None:
    texts = [b" a", b" b", b".", b" c", b" d"]
    assert placed(texts, [0, 10, 20, 150, 160, 170])[1] == ("b.", 0.2, 0.8)
    assert placed(texts, [0, 10, 20, 22, 150, 160])[2] == ("c", 2.6, 3.0)


def test_the_first_word_after_a_pause_begins_late_and_the_last_one_ends_early() -> None:
    found = placed([b" a", b" b", b" c"], [0, 100, 110, 300], piece=(1.8, 2.6))
    assert found == [("a", 1.3, 2.0), ("b", 2.0, 2.2), ("c", 2.2, 2.9)]
    late = placed([b" a", b" b", b" c"], [0, 100, 110, 120], before=1.9)
    assert late[0] == ("a", 0.0, 2.0)  # what was said before ended just there


@given(
    st.lists(st.sampled_from([b" a", b" b", b"c", b".", b' "', b" (", b")", b" ", b"\xe2", b"\x82"]), max_size=12),
    st.lists(st.integers(0, 200), min_size=13, max_size=13),
    st.lists(st.integers(0, 12), max_size=3),
    st.floats(-5, 5),
)
def test_words_are_in_order_within_the_frames_and_all_is_there(
    texts: list[bytes], steps: list[int], cuts: list[int], before: float
) -> None:
    frames = [sum(steps[: count + 1]) for count in range(len(texts) + 1)]
    bounds = [0, *sorted(min(cut, len(texts)) for cut in cuts), len(texts)]
    pieces = [Piece(frames[a] * 0.02, frames[b] * 0.02, tuple(range(a, b))) for a, b in pairwise(bounds)]
    tokenizer = Bytes(*texts)
    found = place_words(pieces, frames, tokenizer, spaced=True, before=before)
    at = 0.0
    for piece, words in zip(pieces, found, strict=True):
        said = tokenizer.decode(piece.tokens)
        assert _letters("".join(one.word for one in words)) == _letters(said)
        for one in words:
            assert at <= one.start + 1e-9
            assert one.start <= one.end + 1e-9
            at = one.end
    assert at <= frames[-1] * 0.02 + 1e-9


def _letters(text: str) -> str:
    """Halves of characters may show as one mark or as two."""
    return text.replace(" ", "").replace("\ufffd", "")


async def test_a_long_recording_asks_each_window_for_what_was_kept_of_it() -> None:
    script = iter([Said((at(0), 1, 2, at(20), at(20), 9)), Said((at(0.5), 3, at(9.9)))])

    def answer(request: GenerateRequest) -> Said:
        if request.alignment is None:
            return next(script)
        count = len(request.prompt) - request.alignment.first
        return Said((END,), frames=tuple(50 * (1 + number) for number in range(count)))

    engine = ScriptedEngine(answer)
    _, segments, _ = await heard(task(engine, sound(30.0), language="en", words=True))
    assert [one.words for one in segments] == [
        (Word("a", 1.0, 2.0), Word("b", 2.0, 3.0)),
        (Word("c", 21.0, 22.0),),
    ]
    asked = [request for request in engine.requests if request.alignment is not None]
    assert [request.prompt[1504:] for request in asked] == [
        (START, ENGLISH, TRANSCRIBE, NO_TIMES, 1, 2, END),
        (START, ENGLISH, TRANSCRIBE, NO_TIMES, 3, END),
    ]
    assert [one.alignment and (one.alignment.first, one.alignment.frames) for one in asked] == [
        (1508, 1000),
        (1508, 500),
    ]
    assert [one.sampling.max_tokens for one in asked] == [1, 1]
    plain = [request for request in engine.requests if request.alignment is None]
    assert [one.media for one in asked] == [one.media for one in plain]  # the same sound: nothing is encoded again


async def test_words_are_not_asked_for_where_nobody_wants_them_and_a_wrong_count_is_a_fault() -> None:
    engine = ScriptedEngine(lambda request: Said((at(0), 1, at(2))))
    _, segments, _ = await heard(task(engine, sound(2.0), language="en"))
    assert segments[0].words == ()
    assert len(engine.requests) == 1
    with pytest.raises(EngineFault, match="told 0 places of 1 tokens"):
        await heard(task(engine, sound(2.0), language="en", words=True))


@pytest.mark.parametrize(("language", "aim", "words"), [("ja", "transcribe", 2), ("ja", "translate", 1)])
async def test_languages_without_spaces_have_words_of_characters(language: str, aim: Any, words: int) -> None:
    def answer(request: GenerateRequest) -> Said:
        return Said((at(0), 1, 2, at(2))) if request.alignment is None else Said((END,), frames=(0, 20, 40))

    asked = task(ScriptedEngine(answer), sound(2.0), language=language, aim=aim, words=True)
    tokens = replace(asked.model.tokens, languages={"ja": GERMAN})
    tokenizer: Any = Bytes(b"", b"a", b"b")
    _, segments, _ = await heard(replace(asked, model=replace(asked.model, tokens=tokens, tokenizer=tokenizer)))
    assert len(segments[0].words) == words
