"""Models: which ones the fleet's devices hold, on how many they are loaded, and where one failed."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from edgewise.cloud.console.parts import Column, Table, Tag, empty, link_button, page_head, panel, redraw
from edgewise.cloud.console.shell import page
from edgewise.cloud.console.visit import Visit
from edgewise.cloud.console.words import number, plural
from edgewise.cloud.fleet import views

COLUMNS = (
    Column("model", "Model", "link"),
    Column("devices", "Devices", "number"),
    Column("loaded", "Loaded", "number"),
    Column("failed", "Failed", "state"),
    Column("digest", "Digest", "mono", narrow=False, clip=True),
)


@page("/models", "Models")
async def models(visit: Visit) -> None:
    with page_head("Models") as (under, actions), actions:
        if visit.may("operator"):
            link_button(
                "Roll out a model", "/rollouts/new?shadow=models", icon_name="stacked_line_chart", tone="primary"
            )
    with panel("On the fleet's devices", body=False):
        table = Table("Models of the fleet", COLUMNS)
        nothing = Tag("div")

    async def refresh(_: set[str] | None) -> None:
        found = await visit.fleet.registry.models(visit.actor)
        table.show([_row(model) for model in found])
        table.visible = bool(found)
        under.text = plural(len(found), "model")
        redraw(nothing, lambda: None if found else empty(
            "layers", "No model yet", "Devices say what they hold once they are online. A rollout brings a model to them.",
            action=("Roll out a model", "/rollouts/new?shadow=models")))  # fmt: skip

    await refresh(None)
    visit.watch(("device",), refresh)


def _row(model: views.ModelUseView) -> dict[str, Any]:
    failed = (
        {"word": f"{number(model.failed)} failed", "icon": "error", "tone": "bad", "note": ""} if model.failed else None
    )
    return {
        "id": f"{model.name} {model.digest}",
        "name": model.name,
        "model": {"text": model.name, "href": f"/devices?query={quote(f'model:{model.name}')}"},
        "devices": number(model.devices),
        "loaded": number(model.loaded),
        "failed": failed,
        "digest": model.digest or "",
    }
