"""Put the fleet's REST API into an application."""

from __future__ import annotations

from fastapi import FastAPI

from edgewise.cloud.fleet.api import (
    routes_devices,
    routes_enrolment,
    routes_login,
    routes_openid,
    routes_people,
    routes_work,
)
from edgewise.cloud.fleet.api.auth import DESCRIBED
from edgewise.cloud.fleet.api.errors import RESPONSES, install_errors
from edgewise.cloud.fleet.api.middleware import PREFIX, FleetMiddleware
from edgewise.cloud.fleet.api.state import ApiState, store_state
from edgewise.cloud.fleet.people.openid import OpenId
from edgewise.cloud.fleet.services import Fleet
from edgewise.core.settings_fleet import FleetSettings


def add_api(app: FastAPI, fleet: Fleet, settings: FleetSettings) -> ApiState:
    """Routes, error bodies and the middleware around all of the application; call it before anything is mounted at "/".

    Raises:
        ConfigError: The OpenID provider is not configured whole.

    Returns:
        What the routes work with; set its `closing` when the service stops, so that open streams end.
    """
    openid = None if settings.oidc_issuer is None else OpenId(settings)
    state = ApiState(fleet=fleet, settings=settings, openid=openid)
    store_state(app, state)
    install_errors(app)
    for router in (routes_devices.router, routes_work.router, routes_people.router, routes_enrolment.router):
        app.include_router(router, prefix=PREFIX, dependencies=DESCRIBED, responses=RESPONSES)
    for router in (routes_login.router, routes_openid.router, routes_enrolment.device_router):
        app.include_router(router, prefix=PREFIX, responses=RESPONSES)
    app.add_middleware(FleetMiddleware)
    return state
