"""Every log call of the product names its event in snake case; what varies goes into fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVELS = {"debug", "info", "warning", "error", "exception"}


def events() -> list[tuple[str, str]]:
    """(place, event) of each call such as `log.info("event", ...)` with a literal event."""
    found = []
    for path in sorted(ROOT.glob("*/edgewise/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS):
                continue
            if ast.unparse(node.func.value) in ("log", "self._log") and isinstance(node.args[0], ast.Constant):
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", str(node.args[0].value)))
    return found


def test_events_are_named_in_snake_case() -> None:
    found = events()
    assert len(found) > 12
    assert [place for place, event in found if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)] == []
