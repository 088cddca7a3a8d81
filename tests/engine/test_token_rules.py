"""A model's own token rules as a constraint: no vocabulary is needed, and all that they say reaches the draw."""

from __future__ import annotations

from edgewise.engine.constraint import Constraints
from edgewise.engine.drawing import _held_to
from edgewise.kernels.sample import RowControls
from edgewise.models.whisper.rules import rules_text
from tests.pipeline.transcribe.scripted import CONFIG, END, TIME, TOKENS


def test_rules_are_asked_as_grammars_are() -> None:
    constraints = Constraints(None)
    try:
        assert constraints.open("a", rules_text(TOKENS, CONFIG.vocab_size, times=True)).done()
        mask = constraints.begin("a", (TIME, 1))
        assert mask is not None
        permitted = mask.result()
        assert permitted.problem is None
        assert permitted.bits[END // 8] >> END % 8 & 1
        assert permitted.group_from == TIME
        held = _held_to(RowControls(temperature=0.4), mask)
        assert (held.allowed, held.group_from, held.temperature) == (permitted.bits, TIME, 0.4)
        constraints.close("a")
        assert constraints.begin("a", ()) is None
    finally:
        constraints.stop()


def test_without_times_nothing_wins_together() -> None:
    constraints = Constraints(None)
    try:
        constraints.open("a", rules_text(TOKENS, CONFIG.vocab_size, times=False))
        mask = constraints.begin("a", ())
        assert mask is not None
        assert mask.result().group_from is None
    finally:
        constraints.stop()
