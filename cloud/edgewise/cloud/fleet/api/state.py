"""What the routes work with; `app.add_api` puts it into the application's state."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Annotated, cast

from fastapi import Depends, Request
from fastapi.applications import FastAPI

from edgewise.cloud.fleet.people.openid import OpenId
from edgewise.cloud.fleet.services import Fleet
from edgewise.core.settings_fleet import FleetSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiState:
    """Attributes:
    openid: Where people may log in too.
    closing: Set when the service stops: open streams end.
    """

    fleet: Fleet
    settings: FleetSettings
    openid: OpenId | None = None
    closing: asyncio.Event = field(default_factory=asyncio.Event)


def store_state(app: FastAPI, state: ApiState) -> None:
    app.state.fleet_api = state


def state_of(request: Request) -> ApiState:
    return cast(ApiState, request.app.state.fleet_api)


def _fleet(request: Request) -> Fleet:
    return state_of(request).fleet


Services = Annotated[Fleet, Depends(_fleet)]
