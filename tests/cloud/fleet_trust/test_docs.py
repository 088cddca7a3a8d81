"""docs/fleet-api.md names every route, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from edgewise.cloud.fleet.api.middleware import PREFIX
from tests.cloud.fleet_trust.doubles import make_fleet
from tests.cloud.fleet_trust.test_api import make_app

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "fleet-api.md").read_text()


def test_every_route_is_named_with_its_methods() -> None:
    table = PAGE.partition("## Routes")[2].partition("\n## ")[0]
    named = {
        (path, method.strip())
        for path, methods in re.findall(r"^\| `(/[^`]*)` \| ([a-z, ]+) \|", table, re.MULTILINE)
        for method in methods.split(",")
    }
    paths = make_app(make_fleet(None)).openapi()["paths"]  # type: ignore[arg-type]
    assert named == {(path.removeprefix(PREFIX), method) for path, methods in paths.items() for method in methods}
