"""Answers in parts over the engine's lives: what was delivered is not asked for again, and nothing is lost or told twice."""

from __future__ import annotations

from edgewise.engine.book_base import Action, Deliver, Send
from edgewise.engine.encoders.book import EncoderBook
from edgewise.engine.encoders.request import EncodeChunk, EncodeRequest
from edgewise.engine.messages import SubmitEncode


def sent(actions: list[Action]) -> list[SubmitEncode]:
    return [one.message for one in actions if isinstance(one, Send) and isinstance(one.message, SubmitEncode)]


def told(actions: list[Action]) -> list[EncodeChunk]:
    return [one.chunk for one in actions if isinstance(one, Deliver)]


def part(key: str, offset: int, *, last: bool = False) -> EncodeChunk:
    return EncodeChunk(request_id=key, offset=offset, finish="done" if last else None, content=b"%d" % offset)


def test_an_engine_that_died_goes_on_at_the_part_that_is_missing() -> None:
    book = EncoderBook()
    book.begin(1, 0.0)
    key, actions = book.open(EncodeRequest(id="r", content=b"text"), 0.0)
    assert [one.skip for one in sent(actions)] == [0]
    assert [one.offset for one in told(book.chunks(1, [part(key, 0), part(key, 1)], 0.1))] == [0, 1]
    book.down(0.2)
    assert [(one.skip, one.content) for one in sent(book.begin(2, 0.3))] == [(2, b"text")]
    assert told(book.chunks(1, [part(key, 2)], 0.4)) == []  # of the life that has ended
    (last,) = told(book.chunks(2, [part(key, 2, last=True)], 0.5))
    assert (last.request_id, last.offset, last.finish) == ("r", 2, "done")
    assert len(book) == 0


def test_parts_clear_the_strikes_of_lives_that_ended() -> None:
    book = EncoderBook(strike_limit=2)
    key, _ = book.open(EncodeRequest(id="r", content=b""), 0.0)
    for life in range(1, 5):
        book.begin(life, 0.0)
        assert len(told(book.chunks(life, [part(key, life - 1)], 0.0))) == 1
        assert told(book.down(0.0)) == []
    book.begin(5, 0.0)
    (end,) = told(book.down(0.0))
    assert (end.finish, end.error_code, end.offset) == ("error", "engine_error", 4)


def test_a_part_that_is_skipped_ends_the_request() -> None:
    book = EncoderBook()
    book.begin(1, 0.0)
    key, _ = book.open(EncodeRequest(id="r", content=b""), 0.0)
    book.chunks(1, [part(key, 0)], 0.0)
    (end,) = told(book.chunks(1, [part(key, 2)], 0.0))
    assert end.finish == "error"
    assert "1 parts were delivered" in str(end.error_message)
