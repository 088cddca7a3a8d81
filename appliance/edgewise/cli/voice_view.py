"""A voice session at the terminal: what is said, line by line, and below it the state and how loud the input is."""

from __future__ import annotations

import json
import math
from typing import Any, Final, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from edgewise.cli.output import say
from edgewise.cli.voice_client import Event
from edgewise.cli.voice_talk import State, Summary, Watcher

_BARS: Final = 24
_FLOOR_DB: Final = -60.0
_STYLES: Final = {"listening": "dim", "hearing": "green", "thinking": "yellow", "speaking": "cyan"}


class JsonView(Watcher):
    """Every event on a line of its own."""

    def event(self, event: Event) -> None:
        typer.echo(json.dumps(event, ensure_ascii=False))


class PlainView(Watcher):
    """What is said, line by line; errors to standard error."""

    def __init__(self) -> None:
        self._answer = ""

    def event(self, event: Event) -> None:
        if event["type"] == "error":
            say(f"refused: {event['error']['message']}")

    def text(self, speaker: Literal["user", "assistant"], text: str, *, done: bool) -> None:
        if speaker == "user":
            self.line(f"You: {text or '(no words)'}")
            return
        self._answer += text
        if done and self._answer:
            self.line(f"Edgewise: {_printable(self._answer)}")
            self._answer = ""

    def line(self, text: str) -> None:
        typer.echo(text)


class LiveView(PlainView):
    """The same on a terminal, with a line that moves."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        self._state: State = "listening"
        self._level = 0.0
        self._summary = Summary()
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=12, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._live.stop()

    def state(self, state: State) -> None:
        self._state = state

    def level(self, value: float, summary: Summary) -> None:
        self._level, self._summary = value, summary

    def line(self, text: str) -> None:
        self._console.print(Text(text))

    def _render(self) -> Text:
        xruns = self._summary.overflows + self._summary.underflows
        shown = Text(f"{self._state:<10}", style=_STYLES[self._state])
        shown.append(meter(self._level), style="green")
        shown.append(f"  xruns {xruns}", style="red" if xruns else "dim")
        shown.append("  Ctrl-C ends", style="dim")
        return shown


def meter(value: float) -> str:
    """A bar of -60 dB to 0 dB of full scale."""
    decibels = 20 * math.log10(value) if value > 0 else _FLOOR_DB
    filled = round(_BARS * min(1.0, max(0.0, 1 - decibels / _FLOOR_DB)))
    return "#" * filled + "." * (_BARS - filled)


def summary_data(summary: Summary) -> dict[str, Any]:
    return {
        "type": "edgewise.voice.summary",
        "turns": summary.turns,
        "answers": summary.answers,
        "interruptions": summary.interruptions,
        "input_overflows": summary.overflows,
        "output_underflows": summary.underflows,
        "first_sound_ms": summary.first_sound_ms,
        "worst_gap_ms": summary.worst_gap_ms,
    }


def summary_text(summary: Summary) -> str:
    firsts = summary.first_sound_ms
    first = f", first sound after {sum(firsts) / len(firsts) / 1e3:.1f} s on average" if firsts else ""
    return (
        f"{summary.answers} answers to {summary.turns} turns, {summary.interruptions} interrupted{first}; "
        f"xruns: {summary.overflows} in, {summary.underflows} out."
    )


def _printable(text: str) -> str:
    """Without the control characters that could drive a terminal."""
    return "".join(ch for ch in text if ch.isprintable() or ch == "\t").strip()
