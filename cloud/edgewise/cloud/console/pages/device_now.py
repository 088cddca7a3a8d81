"""How one device is now: its newest values in words and units, and how far its governor holds it back and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgewise.cloud.console.design import GOVERNOR_LEVELS, Tone, Word
from edgewise.cloud.console.parts import Tag, TimeAgo, icon, notice, panel, redraw
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import gauge_of, memory_share, memory_tone, size, span
from edgewise.cloud.fleet import views

_HOLDS = {
    1: "Half of the places in a batch, pictures drawn 75 % of the time.",
    2: "A quarter of the places in a batch, pictures drawn half of the time.",
    3: "One place in a batch, pictures drawn a quarter of the time.",
}
"""What a level costs (docs/governor.md)."""
_GOVERNED = ("governor_slows", "governor_eases")
_SEARCHED = 100


async def build_now(visit: Visit, device: views.DeviceDetail) -> None:
    """Live, for as long as the page is open."""
    with panel("Now", body=False) as end:
        place = Tag("div")
    with end:
        age = Tag("div", cls="small muted")

    async def refresh(ids: set[str] | None) -> None:
        if ids is not None and device.uid not in ids:
            return
        now = await visit.fleet.registry.device(visit.actor, device.uid)
        events: Sequence[views.EventView] = ()
        if now.gauges.get("governor_level"):
            events = (await visit.fleet.registry.events(visit.actor, device.uid, limit=_SEARCHED)).items
        redraw(
            place,
            lambda: _now(now, events),
            key=(now.state, sorted(now.gauges.items()), [event.id for event in events]),
        )
        redraw(age, lambda: _age(now))

    await refresh(None)
    visit.watch(("device", "telemetry", "event"), refresh)


def _age(device: views.DeviceDetail) -> None:
    if device.gauges and device.seen_at is not None:
        Tag("span", "as of " if device.state in ("online", "degraded", "draining") else "last values, from ")
        TimeAgo(device.seen_at)


def _now(device: views.DeviceDetail, events: Sequence[views.EventView]) -> None:
    gauges = device.gauges
    if not gauges:
        Tag(
            "p",
            "No value yet: the first comes some seconds after the device is online.",
            "muted",
            style="padding:12px 16px",
        )
        return
    word, why, at = governor_of(gauges, events)
    with Tag("div", cls="tiles flat"):
        if word is not None:
            _tile(
                "Governor", word.word, "holds nothing back" if word.tone == "ok" else "holds back", word.icon, word.tone
            )
        for name, note in _TILES:
            if name in gauges:
                _tile(
                    gauge_of(name).label,
                    gauge_of(name).text(gauges[name]),
                    note(gauges) if note else "",
                    "",
                    _tone(name, gauges),
                )
    if gauges.get("throttled"):
        _said("bad", "The hardware slows itself down, for heat or for want of current.", None)
    if word is not None and word.tone != "ok":
        _said(word.tone, f"{why} {_HOLDS.get(round(gauges['governor_level']), '')}", at)


def _said(tone: Tone, text: str, at: float | None) -> None:
    with Tag("div", style="padding:12px 16px;border-top:1px solid var(--line)"), notice(tone, text, "thermostat"):
        if at is not None:
            TimeAgo(at)


def governor_of(
    gauges: Mapping[str, float], events: Sequence[views.EventView]
) -> tuple[Word | None, str, float | None]:
    """The level that the device last said, why, and since when. The reason is that of its newest event with just this level;
    None for the level where it says none, as with its governor switched off.
    """
    if "governor_level" not in gauges:
        return None, "", None
    level = round(gauges["governor_level"])
    word = GOVERNOR_LEVELS.get(level) or Word(f"Level {level}", "help", "mute")
    for event in events:
        if event.kind in _GOVERNED:
            if event.facts.get("level") == word.word.lower():
                return word, f"Reason: {event.facts.get('reason') or event.message}.", event.at
            break  # what it said of another level is no reason for this one
    return word, "The device's event with the reason is not here (yet).", None


def _tile(name: str, figure: str, note: str, picture: str, tone: Tone | None) -> None:
    with Tag("div", cls="tile"):
        with Tag("div", cls="name"):
            Tag("span", name)
        with Tag("div", cls=f"figure small-figure {f'tone-{tone}' if tone else ''}"):
            if picture:
                icon(picture)
            Tag("span", figure)
        Tag("div", note or "\u00a0", "small muted")


def _tone(name: str, gauges: Mapping[str, float]) -> Tone | None:
    share = memory_share(gauges) if name == "memory_used" else None
    tone = None if share is None else memory_tone(share)
    return None if tone == "ok" else tone


def _memory_note(gauges: Mapping[str, float]) -> str:
    share = memory_share(gauges)
    return "" if share is None else f"{100 * share:.0f} % of {size(gauges['memory_total'])}"


def _energy_note(gauges: Mapping[str, float]) -> str:
    return (
        gauge_of("joules_per_token").text(gauges["joules_per_token"]) + " a token"
        if "joules_per_token" in gauges
        else ""
    )


def _queue_note(gauges: Mapping[str, float]) -> str:
    return f"{gauges['queue']:.0f} waiting" if "queue" in gauges else ""


def _up_note(gauges: Mapping[str, float]) -> str:
    return f"service up for {span(gauges['uptime_s'])}" if "uptime_s" in gauges else ""


_TILES: Sequence[tuple[str, Callable[[Mapping[str, Any]], str] | None]] = (
    ("tokens_per_s", _up_note),
    ("running", _queue_note),
    ("memory_used", _memory_note),
    ("temperature_c", None),
    ("power_w", _energy_note),
    ("disk_free", None),
)
