"""Which policy holds for a request, and what each one compares.

Costs are seconds: what a request takes, and what it costs in money and energy at a rate of exchange. Every policy grows with
latency and with price, so that making a place slower or dearer never makes it win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import get_args

from edgewise.core.errors import NotPermitted
from edgewise.pipeline.plan import Demand, Errand, Place, PolicyName

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds that one unit is worth: of latency, of money, of energy (joule) and of what crosses the link (byte)."""

    second: float
    money: float
    joule: float
    byte: float


_EVEN = Rates(second=1.0, money=500.0, joule=4e-5, byte=5e-7)
"""A second is worth 0.002 (7.20 an hour); electricity 0.30 a kWh; a gigabyte over the link 1.00."""

RATES: Mapping[PolicyName, Rates] = {
    "balanced": _EVEN,
    "prefer-local": _EVEN,
    "prefer-cloud": _EVEN,
    "prefer-peer": _EVEN,
    "local-only": _EVEN,
    "fastest": Rates(second=1.0, money=1e-6, joule=1e-9, byte=1e-12),
    "cheapest": Rates(second=1e-3, money=500.0, joule=4e-5, byte=5e-7),
}
PREFERRED: Mapping[PolicyName, Place] = {"prefer-local": "local", "prefer-cloud": "cloud", "prefer-peer": "peer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """As configured: for models and deadline classes by name, and for all others."""

    default: PolicyName = "balanced"
    named: Mapping[str, PolicyName] = field(default_factory=dict)

    def of(self, errand: Errand, demand: Demand) -> PolicyName:
        """A model's, by any of its names, goes before a class's; a request's own before both, unless "local-only" is configured.

        Raises:
            NotPermitted: The request asks for another policy where "local-only" is configured.
        """
        own = [self.named[name] for name in (demand.model, *demand.aliases) if name in self.named]
        configured = "local-only" if "local-only" in own else next(iter(own), None)
        configured = configured or self.named.get(errand.priority.label) or self.default
        asked = errand.policy
        if asked is None or asked == "local-only":
            return asked or configured
        if configured == "local-only":
            raise NotPermitted(
                f"The request asks for the policy '{asked}', but 'local-only' is configured for '{demand.model}': leave the "
                "header 'X-Edgewise-Policy' out, or change placement.policy or placement.policies."
            )
        return asked


def policies_by_name(default: PolicyName, entries: Iterable[str]) -> Policies:
    """Policies from settings such as "starter=local-only", which were checked when they were read."""
    named: dict[str, PolicyName] = {}
    for entry in entries:
        name, _, value = entry.partition("=")
        named |= {name.strip(): policy for policy in POLICIES if policy == value.strip()}
    return Policies(default=default, named=named)
