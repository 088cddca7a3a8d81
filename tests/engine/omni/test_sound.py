"""Pieces of sound on their way out of the engine's process: joined, cut where they are known, never lost."""

from __future__ import annotations

import numpy as np
import pytest

from edgewise.engine.book import RequestBook
from edgewise.engine.book_base import Deliver, Send
from edgewise.engine.merging import ChunkMerger
from edgewise.engine.messages import Submit
from edgewise.engine.request import GenerateRequest, SamplingParams, TokenChunk
from edgewise.engine.speech import Sound, Speech, joined
from edgewise.engine.stream import merge_tokens


def sound(start: int, count: int) -> Sound:
    """Sample i has the value i."""
    return Sound(start=start, samples=np.arange(start, start + count, dtype=np.int16).tobytes(), rate=24_000)


def chunk(name: str, offset: int, tokens: tuple[int, ...] = (), said: Sound | None = None, **more: str) -> TokenChunk:
    return TokenChunk(request_id=name, offset=offset, tokens=tokens, sound=said, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("reached", "left"), [(0, (5, 4)), (5, (5, 4)), (7, (7, 2)), (9, None), (20, None)])
def test_what_was_heard_is_cut_off(reached: int, left: tuple[int, int] | None) -> None:
    assert sound(5, 4).after(reached) == (None if left is None else sound(*left))


def test_pieces_are_joined_wherever_chunks_are_merged() -> None:
    assert joined(sound(0, 3), sound(3, 2)) == sound(0, 5)
    assert joined(None, sound(3, 2)) == joined(sound(3, 2), None) == sound(3, 2)
    parts = [chunk("a", 0, (1,)), chunk("a", 1, (), sound(0, 3)), chunk("a", 1, (2,)), chunk("a", 2, (), sound(3, 2))]
    merger = ChunkMerger()
    merged = parts[0]
    for part in parts:
        merger.add(part)
    for part in parts[1:]:
        merged = merge_tokens(merged, part)
    for found in (merged, *merger.take()):
        assert (found.tokens, found.sound, found.offset) == ((1, 2), sound(0, 5), 0)


def test_a_spoken_answer_goes_on_after_a_crash_without_what_was_heard() -> None:
    book = RequestBook(strike_limit=3)
    request = GenerateRequest(
        id="a", prompt=(1,), sampling=SamplingParams(max_tokens=2), speech=Speech(voice="Ann", seed=4)
    )
    book.up(1, 100, 0.0)
    key, _ = book.open(request, 0.0)
    book.accepted(1, key)
    book.chunks(1, [chunk(key, 0, (7, 8)), chunk(key, 2, (), sound(0, 10))], 1.0)
    book.down(2.0)
    again = [action for action in book.up(2, 100, 3.0) if isinstance(action, Send)]
    assert len(again) == 1  # all tokens are there, but not all that is to be said
    assert isinstance(again[0].message, Submit)
    assert again[0].message.speech == request.speech
    book.accepted(2, key)
    repeated = [chunk(key, 0, (7, 8)), chunk(key, 2, (), sound(0, 6)), chunk(key, 2, (), sound(6, 9))]
    (told,) = [one for one in book.chunks(2, repeated, 3.0) if isinstance(one, Deliver)]
    assert told.chunk.sound == sound(10, 5)


@pytest.mark.parametrize("finish", [None, "cancelled"])
def test_sound_that_comes_before_the_text_has_caught_up_lies_where_the_text_is(finish: str | None) -> None:
    """In the life after a crash: the caller has three tokens, the engine has written one again, and speaks."""
    book = RequestBook(strike_limit=3)
    asked = GenerateRequest(id="a", prompt=(1,), sampling=SamplingParams(max_tokens=9), speech=Speech(voice="Ann"))
    book.up(1, 100, 0.0)
    key, _ = book.open(asked, 0.0)
    book.chunks(1, [chunk(key, 0, (7, 8, 9))], 1.0)
    book.down(2.0)
    book.up(2, 100, 3.0)
    again = chunk(key, 0, (7,), sound(0, 6), **({} if finish is None else {"finish": finish}))
    (told,) = [one for one in book.chunks(2, [again], 3.0) if isinstance(one, Deliver)]
    assert (told.chunk.offset, told.chunk.tokens, told.chunk.sound, told.chunk.finish) == (3, (), sound(0, 6), finish)
