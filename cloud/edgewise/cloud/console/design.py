"""How the console looks: colours for light and dark, spacing, type, and what each state is called.

Every text colour has a contrast of at least 4.5 to 1 on every surface that it is put on (a test computes it). A state is never
said by colour alone: it has a colour, an icon and a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Tone = Literal["ok", "warn", "bad", "info", "mute"]

LIGHT: Mapping[str, str] = {
    "bg": "#f5f6f8",
    "surface": "#ffffff",
    "raised": "#eef1f4",
    "line": "#dde2e8",
    "strong-line": "#7b8696",
    "text": "#18202b",
    "muted": "#525d6d",
    "accent": "#1f54bd",
    "accent-bg": "#e5edfb",
    "on-accent": "#ffffff",
    "ok": "#17663e",
    "ok-bg": "#e2f3e9",
    "warn": "#7d4b00",
    "warn-bg": "#fdf0d9",
    "bad": "#a8221b",
    "bad-bg": "#fbe9e8",
    "info": "#1f54a8",
    "info-bg": "#e4edf9",
    "mute": "#525d6d",
    "mute-bg": "#e9edf1",
}
DARK: Mapping[str, str] = {
    "bg": "#0f141a",
    "surface": "#161d26",
    "raised": "#1e2732",
    "line": "#2b3643",
    "strong-line": "#6f7e90",
    "text": "#e5eaf0",
    "muted": "#a2afbe",
    "accent": "#8ab6ff",
    "accent-bg": "#1b2d4b",
    "on-accent": "#0b1220",
    "ok": "#79d8a3",
    "ok-bg": "#153222",
    "warn": "#f3c471",
    "warn-bg": "#37290f",
    "bad": "#ffa39b",
    "bad-bg": "#421d1b",
    "info": "#93bfff",
    "info-bg": "#182b47",
    "mute": "#a2afbe",
    "mute-bg": "#242e3a",
}
SPACES = (0, 4, 8, 12, 16, 24, 32, 48)
"""Pixels of `--s1` and on."""
SIZES: Mapping[str, float] = {"small": 12.0, "base": 13.5, "large": 15.5, "title": 20.0, "figure": 26.0}
"""Pixels of type."""


@dataclass(frozen=True, slots=True)
class Word:
    """How a state is shown. `icon` is a name of the Material Icons font, which comes with NiceGUI."""

    word: str
    icon: str
    tone: Tone

    def cell(self, note: str = "") -> dict[str, str]:
        """For the column kind "state" of a table."""
        return {"word": self.word, "icon": self.icon, "tone": self.tone, "note": note}


DEVICE_STATES: Mapping[str, Word] = {
    "online": Word("Online", "check_circle", "ok"),
    "degraded": Word("Degraded", "warning", "warn"),
    "draining": Word("Draining", "hourglass_bottom", "info"),
    "offline-expected": Word("Off as planned", "bedtime", "mute"),
    "offline": Word("Offline", "cloud_off", "bad"),
    "never-seen": Word("Never seen", "radio_button_unchecked", "mute"),
}
COMMAND_STATES: Mapping[str, Word] = {
    "queued": Word("Queued", "schedule", "mute"),
    "sent": Word("Sent", "send", "info"),
    "accepted": Word("Accepted", "inventory", "info"),
    "running": Word("Running", "autorenew", "info"),
    "succeeded": Word("Succeeded", "check_circle", "ok"),
    "failed": Word("Failed", "error", "bad"),
    "rejected": Word("Rejected", "block", "bad"),
    "expired": Word("Expired", "timer_off", "warn"),
    "cancelled": Word("Cancelled", "cancel", "mute"),
    "superseded": Word("Superseded", "low_priority", "mute"),
    "timed-out": Word("Timed out", "timer_off", "bad"),
}
ROLLOUT_STATES: Mapping[str, Word] = {
    "draft": Word("Draft", "edit_note", "mute"),
    "waiting-approval": Word("Waits for approval", "how_to_reg", "warn"),
    "running": Word("Running", "autorenew", "info"),
    "paused": Word("Paused", "pause_circle", "warn"),
    "succeeded": Word("Succeeded", "check_circle", "ok"),
    "failed": Word("Failed", "error", "bad"),
    "rolling-back": Word("Rolling back", "undo", "warn"),
    "rolled-back": Word("Rolled back", "undo", "bad"),
    "cancelled": Word("Cancelled", "cancel", "mute"),
}
SHADOW_STATES: Mapping[str, Word] = {
    "applied": Word("In force", "check_circle", "ok"),
    "pending": Word("Pending", "autorenew", "info"),
    "refused": Word("Refused", "block", "bad"),
}
SEVERITIES: Mapping[str, Word] = {
    "critical": Word("Critical", "error", "bad"),
    "warning": Word("Warning", "warning", "warn"),
    "info": Word("Info", "info", "info"),
}
GOVERNOR_LEVELS: Mapping[int, Word] = {
    0: Word("Normal", "check_circle", "ok"),
    1: Word("Warm", "thermostat", "warn"),
    2: Word("Hot", "local_fire_department", "bad"),
    3: Word("Critical", "error", "bad"),
}
"""Of `governor_level` in telemetry; the words are those of the device."""
KEY_STATES: Mapping[str, Word] = {
    "pending": Word("Waits for you", "how_to_reg", "warn"),
    "active": Word("Active", "check_circle", "ok"),
    "replaced": Word("Replaced", "history", "mute"),
    "revoked": Word("Revoked", "block", "bad"),
    "refused": Word("Refused", "cancel", "mute"),
}


def word_of(states: Mapping[str, Word], state: str) -> Word:
    """A state that this console does not know is shown by its own name, never hidden."""
    return states.get(state) or Word(state.replace("-", " ").capitalize() or "Unknown", "help", "mute")


def variables() -> str:
    """The tokens as CSS variables: light, dark by choice, dark by the system's preference."""
    fixed = [f"--s{n}:{space}px" for n, space in enumerate(SPACES)]
    fixed += [f"--type-{name}:{size / 16}rem" for name, size in SIZES.items()]
    light = ";".join([*fixed, "color-scheme:light", *(f"--{name}:{value}" for name, value in LIGHT.items())])
    dark = ";".join(["color-scheme:dark", *(f"--{name}:{value}" for name, value in DARK.items())])
    return (
        f":root{{{light}}}\n:root[data-theme=dark]{{{dark}}}\n"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
    )
