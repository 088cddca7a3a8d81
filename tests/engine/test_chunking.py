"""When media of prompts are encoded, and what of prompts is computed meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pytest

from edgewise.core.priority import Priority
from edgewise.engine.pacing import Pacer
from edgewise.engine.scheduler import StepPlan
from edgewise.engine.step_cost import PromptLoad
from tests.fakes.scheduling import FakeRows, Harness, answer, picture, request

STEP_S = 0.001  # of the harness, of decoding alone


def streaming(part_s: float, parts: int = 3) -> Harness:
    """A stream that has been running for a while; the encoder's parts take `part_s`."""
    harness = Harness(pages=300, step_tokens=16)
    harness.rows.part_s, harness.rows.parts = part_s, parts
    harness.scheduler.add(request("stream", [1, 2, 3], 900))
    while not harness.step().decoding:
        pass
    for _ in range(30):
        harness.step()
    return harness


def until_done(harness: Harness, *names: str) -> list[StepPlan]:
    plans = []
    while not all(name in harness.done for name in names):
        plans.append(harness.step())
        assert plans[-1].decoding >= 1, "the stream waited"
        assert len(plans) < 1000
    return plans


@pytest.mark.parametrize("part_s", [STEP_S / 10, STEP_S * 40])
def test_a_stream_keeps_its_pace_beside_pictures(part_s: float) -> None:
    """A little of the encoder in every step where that is little; else more of it, and seldom."""
    harness = streaming(part_s)
    for number, name in enumerate(("a", "b")):
        media = [picture(1, 4, number), picture(6, 4, number + 2)]
        harness.scheduler.add(request(name, [5] * 12, 2, media=media))
    plans = until_done(harness, "a", "b")
    encoding = [index for index, plan in enumerate(plans) if plan.media.encode is not None]
    assert len(encoding) == 4 * harness.rows.parts
    assert all(not plan.prefilling for plan in plans if plan.media.encode is not None)
    slow = [index for index, plan in enumerate(plans) if plan.media.seconds > STEP_S]
    if part_s < STEP_S:
        assert not slow
    else:
        assert slow == encoding
        gaps = [later - earlier for earlier, later in pairwise(slow)]
        assert min(gaps) >= 20
    assert harness.done["a"] == answer([5] * 12, 2)


def test_without_streams_text_is_computed_while_a_picture_is_encoded() -> None:
    harness = Harness(pages=40, step_tokens=16)
    harness.scheduler.add(request("seen", [5] * 10, 1, media=[picture(2, 8)]))
    harness.scheduler.add(request("text", [6] * 10, 1))
    first = harness.step()
    assert [(work.sequence.id, work.count) for work in first.work] == [("seen", 2), ("text", 10)]
    assert first.media.encode is not None
    assert first.media.seconds == harness.pacer.idle_step_s  # both get their share
    assert harness.step().media.seconds > harness.pacer.idle_step_s
    harness.drain()


def test_what_has_begun_is_finished_first_unless_nobody_needs_it_any_more() -> None:
    harness = Harness(pages=40, step_tokens=16)
    slow = harness.scheduler.add(request("first", [5] * 10, 1, media=[picture(0, 8, 1)]))
    begun = harness.step().media.encode
    assert begun is not None
    harness.scheduler.add(request("urgent", [6] * 10, 1, priority=Priority.REALTIME, media=[picture(0, 8, 2)]))
    assert harness.step().media.encode == begun
    harness.scheduler.remove(slow)
    other = harness.step().media.encode
    assert other is not None
    assert other[1].digest == picture(0, 8, 2).digest
    harness.drain()
    assert list(harness.done) == ["urgent"]


def test_the_same_picture_is_encoded_once_for_a_tenant() -> None:
    harness = Harness(pages=80, step_tokens=16, max_running=8)
    for index in range(4):
        media = [picture(index, 4, 1)]
        harness.scheduler.add(request(f"{index}", [5] * 10, 1, media=media, salt="ab"[index % 2]))
    encoded = 0
    while harness.scheduler.running or harness.scheduler.waiting:
        encoded += harness.step().media.encode is not None
    assert encoded == 2 * harness.rows.parts


def test_a_picture_that_must_be_whole_waits_for_a_step_that_may_be_long() -> None:
    harness = streaming(part_s=0.0, parts=1)
    harness.scheduler.add(request("a", [5] * 20, 1, media=[picture(2, 14, 1, whole=True)]))
    plans = until_done(harness, "a")
    (whole,) = [index for index, plan in enumerate(plans) if plan.prefilling >= 14]
    assert all(plan.prefilling == 0 for plan in plans[whole - 20 : whole])


def test_no_room_for_rows_waits_for_those_that_use_it() -> None:
    """Two prompts whose pictures do not fit at the same time."""
    harness = Harness(pages=80, step_tokens=6, rows_limit=12)
    for name in ("a", "b"):
        harness.scheduler.add(request(name, [5] * 14, 2, media=[picture(1, 12, ord(name))]))
    harness.drain()
    assert harness.done == {name: answer([5] * 14, 2) for name in ("a", "b")}
    assert isinstance(harness.rows, FakeRows)


def test_the_pacer_gives_an_encoder_half_of_the_time_at_most() -> None:
    pacer = Pacer(max_step_tokens=64)
    assert pacer.encode_s(2, paced=True, part_s=1.0) == 0.0  # what decoding costs is not known yet
    assert pacer.encode_s(0, paced=True, part_s=1.0) > 0.0
    assert pacer.encode_s(2, paced=False, part_s=1.0) > 0.0
    time_s = encoded_s = 0.0
    for _ in range(1000):
        pacer.observe(decoding=2, load=PromptLoad(), seconds=0.02)
        allowed = pacer.encode_s(2, paced=True, part_s=0.1)
        assert allowed <= 0.5
        pacer.encoded(2, allowed)
        time_s, encoded_s = time_s + 0.02 + allowed, encoded_s + allowed
    assert 0.3 < encoded_s / time_s <= 0.5


# --- fairness among keys -----------------------------------------------------------------------------------------------------


def pictures(harness: Harness, key: str, count: int, first: int) -> None:
    for number in range(count):
        shown = picture(2, 4, first + number)
        harness.scheduler.add(request(f"{key}{number}", [5] * 8, 1, key=key, media=[shown]))


def test_who_floods_with_pictures_leaves_another_key_its_share() -> None:
    """In steps: the pictures of the key that came later are encoded in turns with those of the flood."""
    harness = Harness(pages=400, step_tokens=16, max_running=4, max_waiting=200, rows_limit=64)
    harness.rows.part_s = 1.0
    pictures(harness, "a", 40, 0)
    for _ in range(20):
        harness.step()
    pictures(harness, "b", 10, 100)
    order = []
    while not all(f"b{number}" in harness.done for number in range(10)):
        payer = harness.step().media.payer
        if payer is not None:
            order.append(payer.key)
    parts = harness.rows.parts
    assert order.count("b") == 10 * parts
    assert order.count("a") <= (10 + harness.max_running + 1) * parts


def test_texts_of_one_key_get_as_much_time_as_pictures_of_another() -> None:
    """Prompts of equal length: without the encoder's time the keys would be served one for one."""
    harness = Harness(pages=400, step_tokens=16, max_running=2, max_waiting=400, rows_limit=64)
    harness.rows.part_s = 0.01  # a step takes 2 ms
    pictures(harness, "a", 40, 0)
    for number in range(100):
        harness.scheduler.add(request(f"b{number}", [6] * 8, 1, key="b"))
    while not all(f"b{number}" in harness.done for number in range(60)):
        harness.step()
    assert 2 <= sum(name.startswith("a") for name in harness.done) <= 12


def test_time_of_an_encoder_counts_as_prompt_tokens_even_before_any_were_seen() -> None:
    harness = Harness(pages=400, step_tokens=16, rows_limit=64)
    harness.rows.part_s, harness.rows.parts = 0.01, 1
    shown = request("seen", [5] * 8, 4, key="a", media=[picture(0, 8, 1)])
    sequence = harness.scheduler.add(shown)
    harness.step()
    assert harness.scheduler.waiting.had(sequence) == 8  # a price is not known yet
    while "seen" not in harness.done:
        harness.step()
    harness.scheduler.charge_encoder(sequence, 0.0)
    price = harness.pacer.tokens_in(0.01)
    assert price is not None
    assert harness.scheduler.waiting.had(sequence) > 8 + price / 2


def test_a_lead_elsewhere_puts_a_key_behind() -> None:
    harness = Harness(pages=400, step_tokens=16, max_running=1, max_waiting=200)
    harness.scheduler.add(request("first", [6] * 8, 2, key="c"))
    harness.drain()
    for number in range(5):
        harness.scheduler.add(request(f"a{number}", [6] * 8, 2, key="a", lead_s=1e6))
    harness.scheduler.add(request("b", [6] * 8, 2, key="b"))
    harness.drain()
    assert list(harness.done)[:2] == ["first", "b"]
