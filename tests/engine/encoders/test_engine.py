"""The core of an encoder's engine: order, batches, deadlines, cancels, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from edgewise.core.errors import InvalidRequest, QueueFull
from edgewise.core.priority import Priority
from edgewise.engine.encoders.engine import EncoderCore, Result
from edgewise.engine.encoders.request import EncodeRequest, EncoderInfo, merge_parts
from edgewise.engine.ledger import Ledger
from edgewise.models.parts import Parts

INFO = EncoderInfo(model="m", digest="sha256:0", role="vision", numeric_class="test", device="cpu", pid=1, load_s=0.0)


class Shouting:
    """A named double: answers in capitals; refuses what is empty."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def check(self, content: bytes, options: Mapping[str, Any]) -> str:
        if not content:
            raise InvalidRequest("'image' is empty.", param="image")
        return content.decode() + str(options.get("mark", ""))

    def compute(self, inputs: Sequence[str]) -> list[Result]:
        self.batches.append(list(inputs))
        return [({"said": one.upper()}, one.encode()) for one in inputs]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def made(**options: Any) -> tuple[EncoderCore, Shouting, Clock]:
    encoder, clock = Shouting(), Clock()
    ledger = Ledger(1 << 20, lambda: 1 << 20)
    limits = {"max_batch": 2, "max_waiting": 3, **options}
    return EncoderCore(INFO, encoder, ledger, now=clock, **limits), encoder, clock


def ask(name: str, **fields: Any) -> EncodeRequest:
    return EncodeRequest(id=name, content=name.encode(), **fields)


def test_the_most_urgent_goes_first_and_others_in_their_order() -> None:
    core, encoder, _ = made()
    for request in (ask("a"), ask("b", priority=Priority.BULK), ask("c", priority=Priority.REALTIME)):
        core.add(request)
    chunks = [*core.step(), *core.step()]
    assert encoder.batches == [["c", "a"], ["b"]]
    assert [(one.request_id, one.result["said"], one.content) for one in chunks] == [
        ("c", "C", b"c"),
        ("a", "A", b"a"),
        ("b", "B", b"b"),
    ]
    assert [one.stats.batch for one in chunks if one.stats] == [2, 2, 1]
    assert not core.has_work


def test_what_cannot_be_read_takes_no_place() -> None:
    core, encoder, _ = made(max_waiting=1)
    with pytest.raises(InvalidRequest, match="is empty"):
        core.add(EncodeRequest(id="x", content=b""))
    assert not core.has_work
    core.add(ask("a", options={"mark": "!"}))
    with pytest.raises(QueueFull, match="1 requests wait for 'm' already"):
        core.add(ask("b"))
    core.step()
    assert encoder.batches == [["a!"]]


def test_a_deadline_that_has_passed_is_told_and_nothing_computed() -> None:
    core, encoder, clock = made()
    core.add(ask("late", deadline_s=1.0))
    core.add(ask("fine", deadline_s=10.0))
    clock.now = 2.0
    late, fine = core.step()
    assert (late.request_id, late.finish, late.error_code) == ("late", "error", "deadline_exceeded")
    assert (fine.request_id, fine.finish) == ("fine", "done")
    assert fine.stats is not None
    assert fine.stats.queued_s == 2.0
    assert encoder.batches == [["fine"]]


def test_a_cancelled_request_ends_once() -> None:
    core, encoder, _ = made()
    core.add(ask("a"))
    core.cancel("a")
    core.cancel("a")
    core.cancel("unknown")
    (chunk,) = core.step()
    assert (chunk.request_id, chunk.finish) == ("a", "cancelled")
    assert encoder.batches == []


def test_equal_inputs_are_different_requests() -> None:
    core, encoder, _ = made(max_batch=1)
    for number in range(3):
        core.add(EncodeRequest(id=str(number), content=b"same"))
    assert [core.step()[0].request_id for _ in range(3)] == ["0", "1", "2"]
    assert len(encoder.batches) == 3


def test_it_can_be_told_to_do_less() -> None:
    core, encoder, _ = made()
    core.limit(1, 1.0)
    core.add(ask("a"))
    core.add(ask("b"))
    core.step()
    assert encoder.batches == [["a"]]
    assert core.stats().waiting == 1


class Spelling(Shouting):
    """A named double: one part for each letter."""

    def check(self, content: bytes, options: Mapping[str, Any]) -> Any:
        return Parts(list(content.decode()))


def spelling(**options: Any) -> EncoderCore:
    core, _, _ = made(**options)
    core._encoder = Spelling()
    return core


def test_an_answer_in_parts_comes_in_order_and_others_are_not_kept_waiting() -> None:
    core = spelling(max_batch=1)
    core.add(ask("abc"))
    core.add(ask("xy"))
    chunks = [core.step()[0] for _ in range(5)]
    assert [(one.offset, one.content, one.finish) for one in chunks] == [
        (0, b"a", None),
        (0, b"x", None),
        (1, b"b", None),
        (1, b"y", "done"),
        (2, b"c", "done"),
    ]
    assert not core.has_work


def test_parts_that_are_there_are_skipped_and_a_cancel_ends_the_rest() -> None:
    core = spelling()
    core.add(ask("abc", skip=1))
    (second,) = core.step()
    assert (second.offset, second.content) == (1, b"b")
    core.cancel("abc")
    (end,) = core.step()
    assert (end.finish, end.content) == ("cancelled", b"")
    assert not core.has_work


def test_a_deadline_ends_an_answer_between_its_parts() -> None:
    core, _, clock = made()
    core._encoder = Spelling()
    core.add(ask("abc", deadline_s=1.0))
    core.step()
    clock.now = 1.5
    (end,) = core.step()
    assert (end.finish, end.error_code) == ("error", "deadline_exceeded")


def test_parts_of_a_slow_reader_are_joined_without_loss() -> None:
    core = spelling()
    core.add(ask("abc"))
    first, second, third = (core.step()[0] for _ in range(3))
    joined = merge_parts(merge_parts(first, second), third)
    assert (joined.offset, joined.content, joined.finish) == (0, b"abc", "done")
