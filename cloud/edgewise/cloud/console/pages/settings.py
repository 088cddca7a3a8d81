"""Settings: one's own password, and how this service is configured, with where that is said."""

from __future__ import annotations

from typing import Any

from edgewise.cloud.console.parts import Column, Field, Table, Tag, button, notice, page_head, panel
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import size, span, value_text
from edgewise.core.settings_fleet import FleetSettings

COLUMNS = (
    Column("key", "Setting", "mono"),
    Column("value", "Value", "mono", clip=True),
    Column("text", "What it is", wrap=True, narrow=False),
)


@page("/settings", "Settings")
async def settings(visit: Visit) -> None:
    with page_head("Settings"):
        pass
    with Tag("div", cls="stack"):
        with panel("Your password"):
            _password(visit)
        with panel("This service", body=False):
            if visit.may("admin"):
                table = Table("Settings of the fleet service", COLUMNS)
                table.show(_rows(visit.console.settings))
                with Tag("div", cls="table-foot"):
                    Tag(
                        "span",
                        "`edgewise config show` says where each value comes from.",
                    )
            else:
                notice("info", "Only an admin sees how the service is configured.", "lock")


def _password(visit: Visit) -> None:
    with Tag("div", cls="fields"):
        old = Field("Old password", kind="password")
        new = Field("New password", kind="password")
        again = Field("New password again", kind="password")

    async def change() -> None:
        again.fault("" if new.value == again.value else "The two are not the same.")
        if new.value != again.value or not new.value:
            return

        async def work(me: Any) -> bool:
            await visit.fleet.people.change_password(me, str(old.value), str(new.value))
            return True

        if await visit.act(work):
            visit.client.open("/login")

    with Tag("div", cls="line", style="margin-top:12px"):
        button("Change the password", change, tone="primary")
        Tag("span", "Every session of yours ends, this one too.", "muted small")


def _rows(settings_: FleetSettings) -> list[dict[str, Any]]:
    rows = []
    for name, field in FleetSettings.model_fields.items():
        value = getattr(settings_, name)
        rows.append(
            {
                "id": name,
                "name": name,
                "key": f"fleet.{name}",
                "value": setting_text(name, value),
                "text": field.description or "",
            }
        )
    return rows


def setting_text(name: str, value: Any) -> str:
    """A setting's value with its unit, which is at the end of its name."""
    if value is None or value in ((), [], ""):
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if name.endswith("_s"):
            return f"{value:g} s" + (f" ({span(value)})" if value >= 120 else "")
        for unit in ("days", "hours"):
            if name.endswith(f"_{unit}"):
                return f"{value:g} {unit}"
        return f"{value:g} ({size(value)})" if name.endswith("_bytes") else value_text(value)
    return (
        ", ".join(map(str, value))
        if isinstance(value, (tuple, list))
        else value_text(value if isinstance(value, (str, bool)) else str(value))
    )
