"""The pages of the text APIs say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgewise.api.extensions import DRAWING
from edgewise.api.messages_api import schemas as messages
from edgewise.api.responses_api import schemas as responses
from edgewise.core.settings import settings_fields
from edgewise.pipeline.hooks.load import OURS
from edgewise.pipeline.hooks.protocol import Hook

DOCS = Path(__file__).parents[3] / "docs"


def rows(page: str, heading: str) -> dict[str, str]:
    section = re.split(r"\n#+ ", (DOCS / page).read_text().split(f"# {heading}\n", 1)[1], maxsplit=1)[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip().strip("`"): "|".join(row[1:]).strip() for row in cells}


@pytest.mark.parametrize(
    ("page", "module", "body"),
    [
        ("api-responses.md", responses, responses.ResponsesBody),
        ("api-messages.md", messages, messages.MessagesBody),
    ],
)
def test_every_field_is_in_the_right_table(page: str, module: Any, body: Any) -> None:
    extensions = set(DRAWING) - ({"top_k"} if page == "api-messages.md" else set())
    assert set(rows(page, "Ignored")) == module.IGNORED
    assert set(rows(page, "Extensions")) == extensions
    refused = rows(page, "Refused")
    assert set(refused) == set(module.REFUSED)
    for name, values in refused.items():
        for text in re.findall(r"`([^`]*)`", values):
            assert module.REFUSED[name].harmless(json.loads(text)), (name, text)
    others = set(module.IGNORED) | set(module.REFUSED) | extensions
    assert set(rows(page, "Honoured")) == set(body.model_fields) - others


def test_settings_that_the_pages_name_exist() -> None:
    for page in ("api-responses.md", "api-batches.md", "hooks.md"):
        named = set(re.findall(r"`((?:responses|files|batches|hooks|limits)\.\w+)`", (DOCS / page).read_text()))
        assert named
        assert named <= set(settings_fields()), page


def test_our_hooks_and_the_methods_of_a_hook_are_on_their_page() -> None:
    text = (DOCS / "hooks.md").read_text()
    assert all(f"\n## {name}\n" in text for name in OURS)
    methods = {re.split(r"\(", name)[0] for name in rows("hooks.md", "Your own")}
    assert methods == {name for name in vars(Hook) if callable(getattr(Hook, name)) and not name.startswith("__")} | {
        "__init__"
    }
