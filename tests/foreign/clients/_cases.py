"""Run by an interpreter of a client's own: times each case and prints the outcome as one JSON object."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping

ADD = {
    "name": "add",
    "description": "Adds two whole numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
QUESTION = "What is the capital of France? Answer in one short sentence."


def arguments() -> tuple[str, str]:
    """(base address with /v1, model)."""
    return sys.argv[1], sys.argv[2]


def report(cases: Mapping[str, Callable[[], object]]) -> None:
    """Run each case; "" for one that passed, else the end of its traceback."""
    outcome: dict[str, str] = {}
    for name, case in cases.items():
        try:
            case()
            outcome[name] = ""
        except Exception:  # noqa: BLE001 - any failure of a client is what this reports
            outcome[name] = traceback.format_exc()[-1500:]
    print(json.dumps(outcome))
