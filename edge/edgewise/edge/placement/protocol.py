"""What placement asks of the rest of the device, and what it is told. `edge/offload` fulfils `Elsewhere` and feeds a `Meter`;
`edge/app.py` brings them together.

Nothing here waits or sends anything: a plan is made from what is known already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from edgewise.core.privacy import Clearance, SiteClearance
from edgewise.edge.placement.measure import LinkMeter
from edgewise.pipeline.plan import Demand
from edgewise.wire.messages import Capability, CloudInfo


@dataclass(frozen=True, slots=True)
class LinkState:
    """Whether a place can be reached at the moment; `why` is one sentence where it cannot."""

    up: bool
    why: str = ""


class Elsewhere(Protocol):
    """The cloud, or a peer, as a planner sees it."""

    @property
    def link(self) -> LinkState: ...

    @property
    def info(self) -> CloudInfo | None:
        """What it said of itself last; None before it was reached for the first time."""

    def engine(self, clearance: Clearance | SiteClearance, demand: Demand, capability: Capability) -> Any:
        """The engine that runs a stage there: `engine.api.Engine` or, for pictures, `engine.pictures.request.PictureEngine`.

        This is the only way to an engine elsewhere. The cloud asks for a `Clearance`, which can be made of the label "any" alone,
        a peer for a `SiteClearance`, which "site" gives too, so that no code path leads from a request with a stricter label to
        a link. `demand.local` continues what the other engine does not finish.

        Raises:
            ValueError: The clearance is none for this place.
        """

    def backed(self, clearance: Clearance | SiteClearance, demand: Demand, capability: Capability) -> Any:
        """`demand.local`, which may go on there: where it is lost for good, or slow. It needs the same clearance."""


@dataclass(frozen=True, slots=True)
class Far:
    """A place that a link leads to, and the meter of that link."""

    elsewhere: Elsewhere
    meter: LinkMeter


class Meter(Protocol):
    """Told of what crosses the link, by whoever sends it. Cheap; called in the event loop."""

    def round_trip(self, seconds: float, /) -> None:
        """A small message and its answer took so long."""

    def sent(self, count: int, seconds: float, /) -> None:
        """`count` bytes went up in one piece, which took so long; small pieces say little and are weighed accordingly."""

    def received(self, count: int, seconds: float, /) -> None:
        """`count` bytes came down in one piece in so long."""


class Power(Protocol):
    """The device's own state. None is unknown, and is said to be."""

    def read(self) -> PowerState: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerState:
    """`hottest_c`: degrees Celsius of the hottest sensor, `margin_c` what is left until the hardware slows itself down; `cost`
    is what computing here counts for, against elsewhere; `on_battery` and `charge` (0 to 1) of the power supply; `profile` as the
    platform names its power mode."""

    hottest_c: float | None = None
    margin_c: float | None = None
    cost: float = 1.0
    on_battery: bool | None = None
    charge: float | None = None
    profile: str | None = None
