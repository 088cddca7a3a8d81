"""What is learned from what passes: links, paces, lengths."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.edge.placement.measure import Lengths, Line, LinkMeter, LinkView, Paces, Track, Work
from edgewise.engine.request import RequestStats


def stats(
    prompt: int = 10, cached: int = 0, tokens: int = 20, queued: float = 0.0, read: float = 0.1, write: float = 1.0
) -> RequestStats:
    return RequestStats(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=tokens,
        queued_s=queued,
        prefill_s=read,
        decode_s=write,
    )


def test_nothing_is_known_before_something_was_measured() -> None:
    assert (Track().mean, Track().p90, Line().at(5)) == (None, None, None)
    assert LinkMeter().view() == LinkView()
    assert Paces().expect("d", "local", 1, Work(read=1, write=1), 0.0) is None
    assert Lengths().expect("d", "k", 77) == 77
    assert Lengths().fresh("d", "k") == 1.0


def test_a_mean_follows_and_a_percentile_keeps_the_slow_ones() -> None:
    track = Track()
    for value in [1.0] * 8 + [5.0] * 2:
        track.add(value)
    assert track.p90 == 5.0
    assert track.mean is not None
    assert 1.0 < track.mean < 5.0
    for _ in range(40):
        track.add(3.0)
    assert track.mean == pytest.approx(3.0, rel=1e-3)
    assert track.p90 == 3.0


@given(st.floats(0, 5), st.floats(1e-4, 1), st.lists(st.integers(1, 5000), min_size=4, max_size=30, unique=True))
def test_a_line_is_found_and_never_predicts_less_than_nothing(start: float, slope: float, sizes: list[int]) -> None:
    line = Line()
    for size in sizes:
        line.add(size, start + slope * size)
    assert line.at(sizes[-1]) == pytest.approx(start + slope * sizes[-1], rel=0.05, abs=0.05)
    assert (line.at(0) or 0.0) >= 0.0


def test_one_size_alone_errs_on_the_side_of_too_long() -> None:
    line = Line()
    line.add(100, 2.0)
    assert (line.at(50), line.at(100), line.at(400)) == (2.0, 2.0, 8.0)


def test_a_link_is_measured_by_its_large_pieces() -> None:
    meter = LinkMeter()
    for _ in range(5):
        meter.round_trip(0.06)
        meter.sent(100, 0.06)  # says nothing of the bandwidth
        meter.received(1_250_000, 0.06 + 1.0)
    view = meter.view()
    assert view.up_s_per_byte is None
    assert view.transfer_s(10**6, 0) == pytest.approx(0.06)
    assert view.transfer_s(0, 2_500_000) == pytest.approx(2.06, rel=0.01)
    meter.round_trip(0.5)
    assert meter.view().transfer_s(0, 0, p90=True) == 0.5


def test_totals_are_predicted_within_a_tenth_after_some_requests() -> None:
    """An engine of which only the totals' noise is unknown: 3 ms of overhead, 1 ms a token read, 10 ms a token written."""
    rng = random.Random(3)
    paces = Paces()
    errors = []
    for number in range(60):
        read, write = rng.randrange(10, 500), rng.randrange(5, 100)
        noise = rng.uniform(0.95, 1.05)
        parts = stats(prompt=read, tokens=write, read=0.001 * read * noise, write=0.01 * write * noise)
        total = parts.prefill_s + parts.decode_s + 0.003
        work = Work(read=read, write=write)
        expected = paces.expect("d", "local", 1, work, 0.0)
        if number >= 10:
            assert expected is not None
            errors.append(abs(expected.total_s - total) / total)
        paces.of("d", "local", 1).learn(work, parts, total, 0.0)
    assert sorted(errors)[len(errors) // 2] < 0.1


def test_what_the_parts_do_not_explain_is_learned_too() -> None:
    paces = Paces()
    for _ in range(20):
        paces.of("d", "cloud", 1).learn(Work(read=10, write=20), stats(), 3.0, 0.2)
    expected = paces.expect("d", "cloud", 1, Work(read=10, write=20), 0.2)
    assert expected is not None
    assert expected.total_s == pytest.approx(3.0, rel=0.01)


def test_a_load_that_was_never_seen_takes_the_nearest() -> None:
    paces = Paces()
    paces.of("d", "local", 1).learn(Work(read=10, write=20), stats(write=1.0), 1.1, 0.0)
    paces.of("d", "local", 16).learn(Work(read=10, write=20), stats(write=4.0), 4.1, 0.0)
    work = Work(read=10, write=20)
    found = [paces.expect("d", "local", busy, work, 0.0) for busy in (1, 2, 12, 30)]
    assert [round(one.total_s, 1) for one in found if one is not None] == [1.1, 1.1, 4.1, 4.1]
    assert paces.expect("other", "local", 1, work, 0.0) is None


def test_lengths_are_learned_by_key_and_limit() -> None:
    lengths = Lengths()
    for tokens in (10, 12, 11):
        lengths.learn("d", "k", 100, [stats(tokens=tokens, prompt=100, cached=75)])
    assert lengths.expect("d", "k", 100) == 11
    assert lengths.expect("d", "k", 5) == 5
    assert lengths.expect("d", "other", 1000) == 11
    assert lengths.expect("e", "k", 100) == 100
    for limit in (20, 50, 70):  # ended by their limit: who knows how long they would have become
        lengths.learn("f", "k", limit, [stats(tokens=limit)])
    assert [lengths.expect("f", "k", limit) for limit in (10, 50, 200)] == [10, 50, 200]
    assert lengths.fresh("d", "k") == 0.25
