"""Who does something: every mutating call of the fleet's services names one, and the audit log keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from edgewise.core.errors import NotPermitted

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
"""From the least to the most: operators act on devices, admins on people, keys and settings too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Attributes:
    tenant: Whose fleet it may see and change; nothing of another is ever visible.
    name: For people, in the audit log.
    via: How: "console", "api", "cli", "rule", with an address where there is one.
    """

    tenant: str
    name: str
    role: Role = "viewer"
    via: str = ""

    def need(self, role: Role) -> None:
        """Raises `NotPermitted` unless the actor has `role` or more."""
        if ROLES.index(self.role) < ROLES.index(role):
            raise NotPermitted(f"{self.name} is {self.role}; this needs the role {role}. Ask an admin of this fleet.")


def service(tenant: str, what: str) -> Actor:
    """The service itself: a rule, a rollout, a schedule."""
    return Actor(tenant=tenant, name=what, role="admin", via="service")
