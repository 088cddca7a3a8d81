"""Where turns begin and end, held to what any sequence of probabilities must give."""

from hypothesis import given
from hypothesis import strategies as st

from edgewise.models.vad.spans import FRAME, Span
from edgewise.pipeline.voice.turns import (
    PAUSE_FRAMES,
    START_FRAMES,
    Paused,
    Resumed,
    Started,
    Stopped,
    TurnDetector,
    TurnEvent,
    TurnOptions,
)


def _events(probabilities: list[float], options: TurnOptions | None = None, max_seconds: float = 60) -> list[TurnEvent]:
    detector = TurnDetector(options or TurnOptions(), max_seconds=max_seconds)
    return [event for one in probabilities for event in detector.feed(one)]


def test_a_turn_is_speech_with_padding_and_the_silence_that_ended_it() -> None:
    silence = TurnOptions(silence_ms=160, prefix_ms=64)
    events = _events([0.0] * 10 + [0.9] * 20 + [0.0] * 8, silence)
    start = 8 * FRAME
    assert events == [
        Started(start),
        Paused(Span(start, (30 + PAUSE_FRAMES) * FRAME)),
        Stopped(Span(start, 35 * FRAME), 30 * FRAME),
    ]


def test_a_click_is_no_turn() -> None:
    assert _events([0.0, *[0.9] * (START_FRAMES - 1), 0.0, 0.0]) == []


def test_a_short_pause_is_told_and_taken_back() -> None:
    events = _events([0.9] * 5 + [0.0] * PAUSE_FRAMES + [0.9])
    assert [type(one) for one in events] == [Started, Paused, Resumed]


def test_a_turn_goes_on_a_little_below_the_threshold_and_begins_only_above_it() -> None:
    assert _events([0.4] * 50) == []
    assert len(_events([0.6] * 5 + [0.4] * 100)) == 1


def test_a_turn_of_the_greatest_length_is_ended_and_says_so() -> None:
    events = _events([0.9] * 100, max_seconds=FRAME * 20 / 16_000)
    stopped = [one for one in events if isinstance(one, Stopped)]
    assert stopped
    assert all(one.cut for one in stopped)
    assert stopped[0].span.end - stopped[0].span.start == 20 * FRAME


@given(
    st.lists(st.floats(0, 1), max_size=300),
    st.floats(0.05, 1),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(1, 40),
)
def test_turns_are_in_order_apart_and_within_what_was_heard(
    probabilities: list[float], threshold: float, silence_ms: int, prefix_ms: int, most: int
) -> None:
    options = TurnOptions(threshold=threshold, silence_ms=silence_ms, prefix_ms=prefix_ms)
    detector = TurnDetector(options, max_seconds=most * FRAME / 16_000)
    begun: int | None = None
    paused = False
    last_end = 0
    for number, one in enumerate(probabilities, 1):
        needed = detector.needed
        for event in detector.feed(one):
            if isinstance(event, Started):
                assert begun is None
                assert last_end <= event.start < number * FRAME
                assert event.start >= needed  # what it needs was still kept
                begun = event.start
            elif isinstance(event, Paused):
                assert begun == event.span.start
                assert not paused
                paused = True
            elif isinstance(event, Resumed):
                assert paused
                paused = False
            else:
                assert begun == event.span.start
                assert begun < event.span.end == number * FRAME
                assert event.speech_end <= event.span.end
                assert event.cut or silence_ms <= (event.span.end - event.speech_end) // 16
                last_end, begun, paused = event.span.end, None, False
        assert detector.start == begun
        assert detector.position == number * FRAME
        assert last_end <= detector.needed <= detector.position


@given(st.lists(st.floats(0, 1), max_size=60))
def test_a_turn_can_be_ended_at_any_time(probabilities: list[float]) -> None:
    detector = TurnDetector(TurnOptions(), max_seconds=60)
    for one in probabilities:
        detector.feed(one)
    begun = detector.start
    assert detector.end() == (None if begun is None else Span(begun, detector.position))
    assert detector.start is None
