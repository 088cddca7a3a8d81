"""Buffers, rates and the pace of playing."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.models.media.resample import Resampler
from edgewise.models.vad.spans import Span
from edgewise.pipeline.voice.sound import Pace, SoundBuffer


def _tone(rate: int, seconds: float, hertz: float = 440.0) -> array[int]:
    return array("h", [int(9000 * math.sin(2 * math.pi * hertz * at / rate)) for at in range(int(rate * seconds))])


@pytest.mark.parametrize(("source", "target"), [(24_000, 16_000), (22_050, 24_000), (16_000, 16_000)])
def test_a_tone_is_the_same_tone_at_another_rate(source: int, target: int) -> None:
    resampler = Resampler(source, target)
    samples = _tone(source, 1.0).tobytes()
    made = b"".join(resampler.feed(samples[at : at + 1000]) for at in range(0, len(samples), 1000)) + resampler.flush()
    found = array("h", made)
    assert abs(len(found) - target) < target * 0.01
    expected = _tone(target, 1.0)
    error = max(abs(a - b) for a, b in zip(found[500:-500], expected[500:], strict=False))
    assert error < 900


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), max_size=30))
def test_a_buffer_gives_what_was_put_in_as_long_as_it_is_not_forgotten(steps: list[tuple[int, int]]) -> None:
    buffer, everything = SoundBuffer(), array("h")
    for count, forget in steps:
        new = array("h", [(len(everything) + at) % 30_000 for at in range(count)])
        everything.extend(new)
        buffer.append(new.tobytes())
        buffer.forget_before(buffer.start + forget)
        assert buffer.end == len(everything)
        assert buffer.take(Span(buffer.start, buffer.end)) == everything[buffer.start :].tobytes()
        assert buffer.take(Span(0, buffer.end)) == everything[buffer.start :].tobytes()


@given(st.lists(st.tuples(st.floats(0.01, 2), st.floats(0, 3)), min_size=1, max_size=40), st.floats(0.1, 5))
def test_pace_holds_the_lead_and_knows_what_was_heard(steps: list[tuple[float, float]], lead: float) -> None:
    """Against a player that is simulated sample by sample of time: what is in its buffer, it plays."""
    pace, now, buffered, heard, worst = Pace(lead), 100.0, 0.0, 0.0, 0.0
    started = False
    for seconds, idle in steps:
        wait = pace.wait_s(now)
        for passed in (wait, idle):
            now += passed
            played = min(buffered, passed)
            heard += played
            buffered -= played
            if started and passed > played:
                worst = max(worst, passed - played)
        assert pace.played_s(now) == pytest.approx(heard, abs=1e-6)
        assert pace.playing(now) == (buffered > 1e-9) or buffered < 1e-6
        pace.sent(seconds, now)
        started = True
        buffered += seconds
        if idle == 0:
            assert buffered <= lead + seconds + 1e-6
    assert pace.sent_s == pytest.approx(heard + buffered, abs=1e-6)
    assert pace.worst_gap_s <= worst + 1e-6
