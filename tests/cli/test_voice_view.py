"""What a voice session shows at the terminal."""

from __future__ import annotations

import math

import pytest

from edgewise.cli.voice_sound import level
from edgewise.cli.voice_talk import Summary
from edgewise.cli.voice_view import LiveView, PlainView, meter, summary_text
from tests.fakes.voice import LOUD, silence, speech


def test_the_meter_shows_decibels() -> None:
    assert meter(0.0) == "." * 24
    assert meter(1.0) == "#" * 24
    assert meter(math.sqrt(1e-3)) == "#" * 12 + "." * 12
    assert level(speech(0.1)) == pytest.approx(LOUD / 32768)
    assert level(silence(0.1)) == level(b"") == 0.0


def test_the_line_shows_state_level_and_losses() -> None:
    view = LiveView()
    view.state("hearing")
    view.level(1.0, Summary(overflows=1, underflows=2))
    shown = view._render().plain
    assert shown.startswith("hearing")
    assert "#" * 24 in shown
    assert "xruns 3" in shown


def test_what_is_said_is_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    view = PlainView()
    view.text("user", "", done=True)
    view.text("assistant", "Red \x1b[31m", done=False)
    view.text("assistant", "is a colour.", done=False)
    view.text("assistant", "", done=True)
    view.event({"type": "error", "error": {"message": "no"}})
    shown = capsys.readouterr()
    assert shown.out == "You: (no words)\nEdgewise: Red [31mis a colour.\n"
    assert shown.err == "refused: no\n"


def test_the_summary_tells_losses_apart() -> None:
    text = summary_text(Summary(turns=2, answers=1, overflows=3, first_sound_ms=[1000.0, 2000.0]))
    assert text == "1 answers to 2 turns, 0 interrupted, first sound after 1.5 s on average; xruns: 3 in, 0 out."
