"""docs/api.md says what the code does: its tables are compared with the schemas, the field tables, the routes and the errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgewise.api import errors as api_errors
from edgewise.api.auth import NO_KEYS, OPEN_PATHS
from edgewise.api.body import MAX_DEPTH
from edgewise.api.events import EventLog
from edgewise.api.fields import CHAT_IGNORED, CHAT_REFUSED, COMPLETION_IGNORED, COMPLETION_REFUSED, EXTENSIONS
from edgewise.api.schemas import MAX_CHOICES, MAX_STOP_CHARS, MAX_STOPS, ChatBody, CompletionBody, Generation
from edgewise.core import errors as core_errors
from edgewise.core.clock import FakeClock
from edgewise.core.errors import BadModelFile, ConfigError, EdgewiseError, SourceUnavailable, UnsupportedModel
from edgewise.pipeline.receipts import (
    DiffuseReceipt,
    GenerateReceipt,
    LookReceipt,
    PictureReceipt,
    Receipt,
    StageReceipt,
    TextReceipt,
)
from tests.api.harness import CHAT, hello, make_api
from tests.api.test_auth import Keys, Record
from tests.fakes.engine import FakeEngine
from tests.fakes.serving import says

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Cells of every table row between a heading and the next one."""
    section = re.split(r"\n#+ ", PAGE.split(f"# {heading}\n", 1)[1], maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(heading: str) -> set[str]:
    found = [row[0].strip("`") for row in rows(heading)]
    assert len(found) == len(set(found)), heading
    return set(found)


def test_every_field_is_in_the_right_table() -> None:
    common = set(Generation.model_fields) - {"user"}
    assert names("Extensions of both routes") == set(EXTENSIONS)
    assert names("Fields of both routes") == common - set(EXTENSIONS)
    for route, schema, ignored, refused in (
        ("/v1/chat/completions", ChatBody, CHAT_IGNORED, CHAT_REFUSED),
        ("/v1/completions", CompletionBody, COMPLETION_IGNORED, COMPLETION_REFUSED),
    ):
        assert names(f"{route}: ignored") == set(ignored)
        assert names(f"{route}: refused") == set(refused)
        assert names(f"{route}: honoured") == set(schema.model_fields) - common - set(ignored) - set(refused)


def test_values_that_are_let_through_are_those_of_the_code() -> None:
    for heading, table in (
        ("/v1/chat/completions: refused", CHAT_REFUSED),
        ("/v1/completions: refused", COMPLETION_REFUSED),
    ):
        for name, values in rows(heading):
            for text in re.findall(r"`([^`]*)`", values):
                if text != "n":
                    assert table[name.strip("`")].harmless(json.loads(text)), (name, text)


def answerable() -> Iterator[type[EdgewiseError]]:
    """Every error class that a route can answer: not those of model files and configuration, which the service meets at start."""
    for module in (core_errors, api_errors):
        for kind in vars(module).values():
            elsewhere = (BadModelFile, ConfigError, SourceUnavailable, UnsupportedModel)
            if isinstance(kind, type) and issubclass(kind, EdgewiseError) and not issubclass(kind, elsewhere):
                yield kind


def test_every_error_code_has_its_status() -> None:
    documented = {row[0].strip("`"): int(row[1]) for row in rows("Errors")}
    assert documented == {kind.code: kind.http_status for kind in answerable()}


async def test_every_route_is_there_with_its_method() -> None:
    documented = {(row[0].strip("`"), row[1].lower()) for row in rows("Routes")}
    paths = (await make_api().get("/openapi.json")).json()["paths"]
    existing = {(path, method) for path, methods in paths.items() for method in methods}
    assert documented == existing | {("/openapi.json", "get")}


@pytest.mark.parametrize("scope", ["inference", "metrics", "admin"])
async def test_scopes_are_as_documented(scope: str) -> None:
    keys = Keys({"k": Record("1", "k", frozenset({scope}))})
    api = make_api(keys=keys, base="http://192.0.2.7")
    for path, method, needed, _ in rows("Routes"):
        headers = {} if needed == "none" else {"authorization": "Bearer k"}
        url = path.strip("`").replace("{model_id}", "tiny")
        status = (await api.request(method, url, headers=headers)).status_code
        allowed = needed in ("none", "any", scope) or scope == "admin"
        assert (status != 403) == allowed, path
        assert status != 401
    assert {row[0].strip("`") for row in rows("Routes") if row[2] == "none"} == set(OPEN_PATHS)
    assert {"unused", "none", "empty"} == set(NO_KEYS) - {""}


def test_the_receipts_fields() -> None:
    section = PAGE.split("## The receipt\n", 1)[1].split("\n## ", 1)[0]
    tables = re.split(r"^(?:Each stage|A `\w+` stage also has)", section, flags=re.MULTILINE)
    whole, stage, generate, look, diffuse = [
        [name for row in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
        for table in tables
    ]
    common, every = list(Receipt.__dataclass_fields__), list(StageReceipt.__dataclass_fields__)
    assert whole == list(
        dict.fromkeys([*common, *TextReceipt.__dataclass_fields__, *PictureReceipt.__dataclass_fields__])
    )
    assert stage == every
    assert generate == list(GenerateReceipt.__dataclass_fields__)[len(every) :]
    assert look == list(LookReceipt.__dataclass_fields__)[len(every) :]
    assert diffuse == list(DiffuseReceipt.__dataclass_fields__)[len(every) :]


async def test_the_metrics() -> None:
    api = make_api(FakeEngine(script=says("ab")))
    await api.answer(CHAT, hello())
    text = (await api.get("/metrics")).text
    published = set(re.findall(r"^# TYPE (edgewise_\w+) (?:counter|gauge|histogram)$", text, re.MULTILINE))
    assert {row[0].strip("`") for row in rows("Metrics")} == {
        name for name in published if not name.endswith("_created")
    }
    for name, labels in rows("Metrics"):
        sample = re.search(rf"^{name.strip('`')}(?:_count)?(\{{[^}}]*\}})? ", text, re.MULTILINE)
        assert sample is not None, name
        assert set(re.findall(r'(\w+)="', sample[1] or "")) == set(re.findall(r"`(\w+)`", labels))


def test_the_numbers_in_the_text() -> None:
    api = make_api()
    limits = api.deps.limits
    assert f"within {limits.body_timeout_s:g} s" in PAGE
    assert f"at most {limits.max_sequences}" in PAGE
    assert f"up to {MAX_STOPS}, of 1 to {MAX_STOP_CHARS} characters" in PAGE
    assert f"more than {MAX_DEPTH} levels" in PAGE
    assert f"1 to {MAX_CHOICES} answers" in PAGE
    assert f"in the last {api.deps.ready_max_age_s:g} s" in PAGE
    assert f"the last {EventLog(clock=FakeClock())._events.maxlen} events" in PAGE
    assert f"the last {api.deps.requests._finished.maxlen} finished" in PAGE
