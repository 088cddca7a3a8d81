"""The frame around every page: navigation, search, theme, the person's menu, keys. `page` registers a page with it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request
from nicegui import ui
from nicegui.element import Element

from edgewise.cloud.console import sessions
from edgewise.cloud.console.parts import Tag, button, dialog, empty, icon, redraw
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import number
from edgewise.cloud.fleet.api.auth import csrf_token
from edgewise.core.errors import EdgewiseError

Build = Callable[..., Awaitable[None]]
NAVIGATION = (
    ("", (("/", "Overview", "space_dashboard", "o"), ("/devices", "Devices", "memory", "d"), ("/models", "Models", "layers", "m"),
          ("/rollouts", "Rollouts", "stacked_line_chart", "r"), ("/alerts", "Alerts", "notifications", "a"))),
    ("Administration", (("/audit", "Audit", "receipt_long", "l"), ("/people", "Users and keys", "group", "u"),
                        ("/settings", "Settings", "tune", "s"))),
)  # fmt: skip
_KEYS = (("/", "Search devices"), ("g then o, d, m, r, a, l, u, s", "Go to a page of the navigation"), ("t", "Light or dark"),
         ("Esc", "Close, or leave a field"), ("?", "This list"))  # fmt: skip


def page(path: str, title: str, *, section: str = "") -> Callable[[Build], Build]:
    """Registers `build(visit, **path_parameters)` as the page at `path`; `section` is its entry of the navigation."""

    def register(build: Build) -> Build:
        async def made(request: Request, **parameters: Any) -> None:
            console = sessions.mounted()
            assert console is not None, "pages are registered by mount_console"
            visit = Visit(console, request, ui.context.client)
            _head()
            content, links = _frame(visit, section or path)
            with content:
                try:
                    await _count_alerts(visit, links["/alerts"])
                    await build(visit, **parameters)
                except EdgewiseError as error:
                    visit.client.status_code = error.http_status
                    empty("search_off", title, error.message, action=("Overview", "/"), tag="h1")
            visit.start()

        own = [*inspect.signature(build, eval_str=True).parameters.values()][1:]
        asked = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
        made.__signature__ = inspect.Signature([asked, *own])  # type: ignore[attr-defined]
        ui.page(path, title=f"{title} - Edgewise", response_timeout=30.0)(made)
        return build

    return register


def _head() -> None:
    ui.add_head_html(
        f'<meta name="edgewise-now" content="{time.time():.3f}">'
        '<script src="/console/assets/theme.js"></script>'
        '<link rel="stylesheet" href="/console/assets/console.css">'
        '<script defer src="/console/assets/shell.js"></script>'
    )


def _frame(visit: Visit, section: str) -> tuple[Element, Mapping[str, Tag]]:
    """Builds what is around the page, beside Quasar's `main`; what is built inside the element that it returns is the page. The
    entries of the navigation come with it, by path."""
    client = visit.client
    with client.layout:
        with Tag("header", cls="top") as top:
            _top(visit)
        with Tag("nav", cls="side", aria_label="Main", id="side") as side:
            links = _side(section)
    top.move(target_index=0)
    side.move(target_index=1)
    ui.skip_link("Skip to the content", target=client.content)
    return client.content.classes("main"), links


async def _count_alerts(visit: Visit, link: Tag) -> None:
    """How many alerts are open, on every page and live: an operator may look at anything else when one is raised."""
    with link:
        count = Tag("span", cls="count")

    async def refresh(_: set[str] | None) -> None:
        total = (await visit.fleet.alerts.alerts(visit.actor, limit=1)).total
        redraw(count, lambda: _open_alerts(total) if total else None, key=total)

    await refresh(None)
    visit.watch(("alert",), refresh)


def _open_alerts(total: int) -> None:
    Tag("span", number(total))
    Tag("span", " open", "visually-hidden")


def _top(visit: Visit) -> None:
    with Tag("button", cls="button quiet icon-only nav-toggle", type="button", data_act="nav", aria_label="Navigation",
             aria_expanded="false", aria_controls="side"):  # fmt: skip
        icon("menu")
    with Tag("a", cls="brand", href="/", aria_label="Edgewise, overview"):
        with Tag("svg", viewBox="0 0 24 24", fill="none", stroke="currentColor", stroke_width="2.2", aria_hidden="true",
                 stroke_linecap="round", stroke_linejoin="round"):  # fmt: skip
            Tag("path", d="M12 3 20 7.5v9L12 21l-8-4.5v-9z")
            Tag("path", d="M8 14.5 11 11l2.5 2.5L16.5 9")
        Tag("span", "Edgewise")
    with Tag("form", cls="search", role="search", action="/devices", method="get"):
        icon("search")
        Tag("input", type="search", name="query", aria_label="Search devices", autocomplete="off",
            placeholder="Search devices: a name, state:offline, model:smollm2 AND site:lyon")  # fmt: skip
        Tag("kbd", "/", aria_hidden="true")
    with Tag("div", cls="top-end"):
        with Tag("button", cls="button quiet icon-only", type="button", data_act="theme", aria_label="Light or dark",
                 title="Light or dark (t)"):  # fmt: skip
            icon("contrast")
        button("Keyboard shortcuts", _show_keys, icon_name="keyboard", tone="quiet", icon_only=True, data_help="1")
        with Tag("details", cls="menu"):
            with Tag("summary", cls="button quiet"):
                icon("account_circle")
                Tag("span", visit.actor.name, "narrow-hide")
                Tag("span", "Your account", "visually-hidden")
            with Tag("div", cls="menu-body"):
                with Tag("div", cls="who"):
                    Tag("strong", visit.actor.name)
                    Tag("div", f"Role: {visit.actor.role}", "small muted")
                with Tag("form", method="post", action="/logout"):
                    Tag("input", type="hidden", name="form", value=csrf_token(visit.token))
                    with Tag("button", type="submit"):
                        icon("logout")
                        Tag("span", "Log out")


def _side(section: str) -> Mapping[str, Tag]:
    """The entries of the navigation by path."""
    links: dict[str, Tag] = {}
    for group, entries in NAVIGATION:
        if group:
            Tag("div", group, "nav-group")
        with Tag("ul"):
            for path, name, picture, key in entries:
                with (
                    Tag("li"),
                    Tag("a", href=path, aria_current="page" if path == section else None, data_go=key) as link,
                ):
                    icon(picture)
                    Tag("span", name)
                links[path] = link
    return links


async def _show_keys() -> None:
    with dialog("Keyboard shortcuts") as (box, foot):
        with Tag("dl", cls="shortcuts"):
            for key, meaning in _KEYS:
                with Tag("dt"):
                    Tag("kbd", key)
                Tag("dd", meaning)
        with foot:
            button("Close", box.close, tone="primary")
    await box
    box.delete()
