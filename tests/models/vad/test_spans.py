"""From probabilities to speech and windows: a property test, and the cases that go wrong first."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from edgewise.models.media.rates import RATE
from edgewise.models.vad.spans import FRAME, LONG_PAUSE, Span, speech_spans, windows

PER_SECOND = RATE / FRAME


def probabilities(*parts: tuple[float, float]) -> npt.NDArray[np.float32]:
    """(seconds, probability) one after the other."""
    return np.concatenate([np.full(round(seconds * PER_SECOND), value, dtype=np.float32) for seconds, value in parts])


def spans_of(*parts: tuple[float, float]) -> list[tuple[float, float]]:
    found = probabilities(*parts)
    return [(round(s.start / RATE, 1), round(s.end / RATE, 1)) for s in speech_spans(found, found.shape[0] * FRAME)]


def test_silence_and_clicks_are_no_speech() -> None:
    assert spans_of((5.0, 0.02)) == []
    assert spans_of((2.0, 0.0), (0.1, 0.99), (2.0, 0.0)) == []
    assert speech_spans(np.zeros(0, dtype=np.float32), 0) == []


def test_short_pauses_do_not_end_speech_and_margins_are_kept() -> None:
    assert spans_of((2.0, 0.0), (1.0, 0.9), (0.2, 0.0), (1.0, 0.9), (2.0, 0.0)) == [(1.7, 4.5)]
    assert spans_of((2.0, 0.0), (1.0, 0.9), (2.0, 0.0), (1.0, 0.9), (2.0, 0.0)) == [(1.7, 3.3), (4.7, 6.3)]
    assert spans_of((1.0, 0.9)) == [(0.0, 1.0)]


def test_between_the_thresholds_it_stays_as_it_is() -> None:
    assert spans_of((2.0, 0.0), (1.0, 0.9), (1.0, 0.4), (2.0, 0.0)) == [(1.7, 4.3)]
    assert spans_of((2.0, 0.0), (1.0, 0.4), (2.0, 0.0)) == []


def test_a_window_is_cut_in_a_pause_and_ends_at_a_long_one() -> None:
    found = probabilities(*[(9.0, 0.9), (1.0, 0.0)] * 4)
    cut = windows(speech_spans(found, found.shape[0] * FRAME), found, seconds=30.0)
    assert [round(window.seconds) for window in cut] == [29, 10]
    found = probabilities((4.0, 0.9), (LONG_PAUSE + 2, 0.0), (4.0, 0.9))
    assert len(windows(speech_spans(found, found.shape[0] * FRAME), found, seconds=30.0)) == 2


def test_speech_without_a_pause_is_cut_where_it_is_quietest() -> None:
    found = probabilities((25.0, 0.9), (0.1, 0.5), (20.0, 0.9))
    (first, second) = windows(speech_spans(found, found.shape[0] * FRAME), found, seconds=30.0)
    assert first.end == second.start
    assert abs(first.end / RATE - 25.0) < 0.15


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 40.0), st.sampled_from([0.0, 0.2, 0.45, 0.9])), min_size=1, max_size=12))
def test_windows_hold_all_speech_in_order_and_are_never_too_long(parts: list[tuple[float, float]]) -> None:
    found = probabilities(*parts)
    samples = found.shape[0] * FRAME
    spans = speech_spans(found, samples)
    cut = windows(spans, found, seconds=30.0)
    assert all(0 <= window.start < window.end <= samples for window in cut)
    assert all(window.seconds <= 30.0 for window in cut)
    assert all(first.end <= second.start for first, second in itertools.pairwise(cut))
    assert all(_covered(span, cut) for span in spans)


def _covered(span: Span, cut: list[Span]) -> bool:
    at = span.start
    for window in cut:
        if window.start <= at < window.end:
            at = window.end
    return at >= span.end
