"""Colours can be read, and no state is said by colour alone."""

from __future__ import annotations

from typing import get_args

import pytest

from edgewise.cloud.console import design
from edgewise.cloud.fleet.views import DeviceState, RolloutState
from edgewise.wire.fleet import CommandState

SURFACES = ("bg", "surface", "raised")
ON = [
    (text, surface) for surface in SURFACES for text in ("text", "muted", "accent", "ok", "warn", "bad", "info", "mute")
]
ON += [(tone, f"{tone}-bg") for tone in ("ok", "warn", "bad", "info", "mute", "accent")]
ON += [("text", f"{tone}-bg") for tone in ("ok", "warn", "bad", "info", "accent")]
ON += [("muted", "accent-bg"), ("muted", "warn-bg"), ("on-accent", "accent")]


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [design.LIGHT, design.DARK], ids=["light", "dark"])
def test_every_text_stands_out_from_what_it_is_on(theme: dict[str, str]) -> None:
    faint = {
        (text, on): round(contrast(theme[text], theme[on]), 2)
        for text, on in ON
        if contrast(theme[text], theme[on]) < 4.5
    }
    assert not faint
    edges = {on: contrast(theme["strong-line"], theme[on]) for on in SURFACES}  # of inputs: WCAG 1.4.11 asks 3 to 1
    assert min(edges.values()) >= 3.0, edges


def test_both_themes_have_the_same_tokens() -> None:
    assert design.LIGHT.keys() == design.DARK.keys()


@pytest.mark.parametrize(
    ("words", "states"),
    [
        (design.DEVICE_STATES, get_args(DeviceState)),
        (design.COMMAND_STATES, get_args(CommandState)),
        (design.ROLLOUT_STATES, get_args(RolloutState)),
    ],
)
def test_every_state_has_a_word_and_an_icon(words: dict[str, design.Word], states: tuple[str, ...]) -> None:
    assert set(words) == set(states)
    assert all(word.word and word.icon for word in words.values())
    assert len({word.word for word in words.values()}) == len(words)


def test_an_unknown_state_is_shown_by_its_name() -> None:
    assert design.word_of(design.DEVICE_STATES, "half-asleep").word == "Half asleep"
