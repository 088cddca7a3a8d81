"""Puts the console onto the fleet service's application: login and logout, its files, and the pages of NiceGUI."""

from __future__ import annotations

import html
import importlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Form, Request
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from nicegui import app as gui
from nicegui import ui
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from edgewise.cloud.console import design, guard, sessions
from edgewise.cloud.console.sessions import FORM_COOKIE, Console
from edgewise.cloud.fleet.api.auth import (
    address_of,
    csrf_token,
    drop_session_cookie,
    is_https,
    session_of,
    set_session_cookie,
)
from edgewise.cloud.fleet.api.middleware import PREFIX
from edgewise.cloud.fleet.api.state import ApiState, state_of, store_state
from edgewise.cloud.fleet.services import Fleet
from edgewise.core.errors import EdgewiseError, NotAuthenticated, RateLimited
from edgewise.core.settings_fleet import FleetSettings

PAGES = ("overview", "devices", "device", "models", "rollouts", "alerts", "audit", "people", "settings", "missing")
_ASSETS = Path(__file__).parent / "assets"
_PROVIDER = f'<a class="button" href="{PREFIX}/openid/login">Log in at your organisation</a>'
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def mount_console(app: FastAPI, fleet: Fleet, settings: FleetSettings) -> Console:
    """The console at `/` of the fleet service, after all routes that `app` already has: `fleet.api.app.add_api` comes first,
    whose middleware and logins it shares. To be called before `app` starts.
    """
    console = sessions.mount(Console(fleet, settings))
    for page in PAGES:
        importlib.import_module(f"edgewise.cloud.console.pages.{page}")
    app.include_router(_router(console))
    store_state(gui, ApiState(fleet=fleet, settings=settings))
    gui.middleware_stack = (
        None  # NiceGUI's application outlives a service in this process: its middleware is made for each
    )
    ui.run_with(
        app,
        title="Edgewise",
        favicon=_ASSETS / "favicon.svg",
        dark=False,  # the console's own themes; see design.py
        language="en-US",
        tailwind=False,
        binding_refresh_interval=None,
        reconnect_timeout=10.0,
        show_welcome_message=False,
    )
    gui.config.quasar_config["loadingBar"] = {"skipHijack": True}  # a bar without a name for whoever cannot see it
    # NiceGUI's own is left out: it fails when a browser goes away in the middle of an answer, and the guard sets what it would.
    gui.user_middleware = [Middleware(GZipMiddleware), Middleware(guard.Guard, console=sessions.mounted)]
    return console


def _router(console: Console) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/console/assets/{name}")
    async def asset(name: str) -> Response:
        if name == "console.css":
            style = design.variables() + (_ASSETS / name).read_text("utf-8")
            return Response(style, media_type="text/css", headers={"Cache-Control": "no-cache"})
        path = _ASSETS / name
        if path.parent != _ASSETS or path.suffix not in _TYPES or not path.is_file():
            return PlainTextResponse("There is no such file.", status_code=404)
        return FileResponse(path, media_type=_TYPES[path.suffix], headers={"Cache-Control": "no-cache"})

    @router.get("/login")
    async def login_page(request: Request) -> Response:
        if await console.actor_of(session_of(request), fresh=True) is not None:
            return RedirectResponse("/", status_code=303)
        expired = "Your session has ended. Log in again." if "expired" in request.query_params else ""
        return _login_page(request, expired, own_path(request.query_params.get("next", "/")))

    @router.post("/login")
    async def login(
        request: Request,
        name: Annotated[str, Form(max_length=128)],
        password: Annotated[str, Form(max_length=1024)],
        form: Annotated[str, Form(max_length=128)] = "",
        next_path: Annotated[str, Form(alias="next", max_length=2000)] = "/",
    ) -> Response:
        target = own_path(next_path)
        ours = console.same_origin(request.headers, needed=False)
        if not ours or not sessions.equal(request.cookies.get(FORM_COOKIE, ""), form):
            return _login_page(request, "The form had grown old. Try once more.", target, 403)
        try:
            token = await console.fleet.people.login(name.strip(), password, address_of(request))
        except NotAuthenticated:
            return _login_page(request, "Name or password is wrong.", target, 401, name)
        except RateLimited as error:
            return _login_page(request, _wait_text(error), target, 429, name)
        response = RedirectResponse(target, status_code=303)
        set_session_cookie(request, response, token, console.settings)
        response.delete_cookie(FORM_COOKIE, path="/login")
        return response

    @router.post("/logout")
    async def logout(request: Request, form: Annotated[str, Form(max_length=128)] = "") -> Response:
        token = session_of(request)
        ours = console.same_origin(request.headers, needed=False)
        if token and ours and sessions.equal(csrf_token(token), form):
            await console.logout(token)
        response = RedirectResponse("/login", status_code=303)
        drop_session_cookie(request, response)
        return response

    @router.get("/console/audit.jsonl")
    async def audit_export(request: Request) -> Response:
        actor = await console.actor_of(session_of(request), fresh=True)
        if actor is None:
            return RedirectResponse("/login", status_code=303)
        try:
            first = await console.fleet.audit.entries(actor, limit=1000)
        except EdgewiseError as error:
            return PlainTextResponse(error.message, status_code=error.http_status)

        async def lines() -> AsyncIterator[str]:
            page = first
            while True:
                for entry in page.items:
                    yield json.dumps(entry.model_dump(mode="json"), separators=(",", ":")) + "\n"
                if page.after is None:
                    return
                page = await console.fleet.audit.entries(actor, limit=1000, after=page.after)

        headers = {"Content-Disposition": 'attachment; filename="edgewise-audit.jsonl"', "Cache-Control": "no-store"}
        return StreamingResponse(lines(), media_type="application/jsonl", headers=headers)

    return router


def own_path(path: str) -> str:
    """Where to go after the login: a path of this service, never another host."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return quote(path, safe="/?&=:%,+-._~") if plain and not path.startswith(("/login", "/logout")) else "/"


def _wait_text(error: EdgewiseError) -> str:
    if error.retry_after_s is None:
        return "Too many tries. Wait some minutes, then try again."
    minutes = max(1, round(error.retry_after_s / 60))
    return f"Too many tries. You can try again in about {minutes} minute{'s' if minutes > 1 else ''}."


def _login_page(request: Request, fault: str, target: str, status: int = 200, name: str = "") -> Response:
    """A plain page: password managers know it, and it needs no script but the theme's."""
    secret = request.cookies.get(FORM_COOKIE) or sessions.new_form_secret()
    text = (
        (_ASSETS / "login.html")
        .read_text("utf-8")
        .replace("{fault}", f'<p class="notice tone-bad" role="alert">{html.escape(fault)}</p>' if fault else "")
        .replace("{form}", html.escape(secret))
        .replace("{next}", html.escape(target))
        .replace("{name}", html.escape(name))
        .replace("{provider}", _PROVIDER if state_of(request).settings.oidc_issuer else "")
    )
    response = HTMLResponse(text, status_code=status, headers={"Cache-Control": "no-store"})
    guard.add_fixed(response.headers)
    response.headers["Content-Security-Policy"] = guard.LOGIN_POLICY
    response.set_cookie(
        FORM_COOKIE, secret, max_age=3600, httponly=True, samesite="strict", secure=is_https(request), path="/login"
    )
    return response
