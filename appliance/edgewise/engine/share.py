"""How long pictures may use a device between two steps of running texts. Pure arithmetic on durations handed in.

The bound is that of `engine.pacing`: 95 of 100 steps of a text engine take, as its streams see it, at most `stretch` (1.5) times
as long as without pictures. A picture is drawn in slices, which cannot be cut further. There are two ways to keep the bound:

    smooth  after every step as many slices as fit in a part of the step's own time
    bursts  where not even one fits: one longer pause after `_CLEAR_STEPS` steps, so that fewer than 5 of 100 are slow; it takes
            at most half the time of those steps, so that the mean keeps the bound too
"""

from __future__ import annotations

from dataclasses import dataclass

_AIM = 0.7  # share of the allowed stretch that is used; the rest is for noise and for changing over
_CLEAR_STEPS = (
    96  # between two bursts: clients feel each in up to three gaps, since the service hands on tokens late too
)
_BURST_S = 0.1  # longest burst, unless one slice takes longer
_SMOOTHING = 0.2
_OUTLIER = 2.0  # a step that took longer than so many times the mean counts as this
_UP, _DOWN = 0.3, 0.03  # an estimate of slices follows long ones quickly and forgets them slowly


@dataclass(slots=True)
class Share:
    """One text engine's side.

    Attributes:
        step_s: Learned duration of its steps; 0 before the first.
        clear: Steps since the last pause.
    """

    stretch: float = 1.5
    step_s: float = 0.0
    clear: int = 0

    def stepped(self, seconds: float) -> None:
        """A step took so long."""
        if self.step_s == 0.0:
            self.step_s = seconds
        else:
            self.step_s += _SMOOTHING * (min(seconds, _OUTLIER * self.step_s) - self.step_s)
        self.clear += 1

    def pause(self, slice_s: float) -> float:
        """Seconds that pictures get now, whose slices take `slice_s`; 0 for none."""
        room = _AIM * (self.stretch - 1.0) * self.step_s
        if slice_s <= room:
            self.clear = 0
            return room
        if self.clear < _CLEAR_STEPS:
            return 0.0
        longest = (self.stretch - 1.0) * self.clear * self.step_s
        self.clear = 0
        return max(slice_s, min(_BURST_S, longest))


@dataclass(slots=True)
class SliceCost:
    """What a slice takes, rather too much than too little; seconds."""

    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        self.seconds += (_UP if seconds > self.seconds else _DOWN) * (seconds - self.seconds)
