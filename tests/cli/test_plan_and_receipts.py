"""`edgewise plan` and `edgewise receipts` against the API in process, over a real socket."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgewise.cli.plan import measured, rows, told
from edgewise.cli.receipts import row, summary
from tests.api.harness import CHAT, Api, hello, listening, make_api


async def run(url: str, *args: str, stdin: str = "") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "edgewise.cli.main", *args, "--url", url, stdin=-1, stdout=-1, stderr=-1
    )
    out, err = await process.communicate(stdin.encode())
    return process.returncode or 0, out.decode(), err.decode()


@pytest.fixture
def api() -> Api:
    return make_api()


async def test_a_plan_is_shown_for_a_file_or_standard_input(api: Api, tmp_path: Path) -> None:
    task = tmp_path / "task.json"
    task.write_text(json.dumps(hello()))
    async with listening(api) as url:
        code, out, err = await run(url, "plan", "--task", str(task), "--explain", "--privacy", "private")
        assert code == 0, err
        assert out.splitlines()[0].split()[:2] == ["STAGE", "PLACE"]
        assert out.splitlines()[1].split()[:3] == ["generate", "local", "*"]
        assert "'tiny' (private): local. No other place is configured." in err
        code, out, _ = await run(url, "plan", "--task", "-", "--json", stdin=json.dumps(hello()))
        assert (code, json.loads(out)["stages"][0]["where"]) == (0, "local")
        for text in ("no json", "[]", json.dumps({"model": "tiny"})):
            code, _, err = await run(url, "plan", "--task", "-", stdin=text)
            assert code != 0
            assert err.startswith("edgewise: ")
    assert api.engine.requests == []


async def test_receipts_are_listed_and_shown(api: Api) -> None:
    async with listening(api) as url:
        ids = [(await api.answer(CHAT, hello()))["edgewise"]["request_id"] for _ in range(2)]
        code, out, err = await run(url, "receipts", "--model", "tiny", "--since", "1h")
        assert code == 0, err
        assert [line.split()[0] for line in out.splitlines()[1:]] == [*reversed(ids)]
        code, out, _ = await run(url, "receipts", ids[0])
        assert (code, json.loads(out)["receipt"]["request_id"]) == (0, ids[0])
        code, out, _ = await run(url, "receipts", "--where", "cloud", "--json")
        assert json.loads(out)["data"] == []
        assert (await run(url, "receipts", "req_none"))[0] != 0
        assert (await run(url, "receipts", "--since", "soon"))[0] != 0


PREDICTED = {
    "first_ms": 100.0,
    "total_ms": 1500.0,
    "up_bytes": 100,
    "down_bytes": 900,
    "joules": None,
    "price": 0.25,
}
STAGE: dict[str, Any] = {
    "stage": "generate",
    "where": "cloud",
    "why": "Because.",
    "predicted": PREDICTED,
    "candidates": [
        {"where": "local", "allowed": False, "why": "It is too hot.", "predicted": None, "score": None},
        {"where": "cloud", "allowed": True, "why": "It was chosen.", "predicted": PREDICTED, "score": 12.34567},
    ],
}


def test_what_is_unknown_is_said_to_be() -> None:
    assert measured({"round_trip_ms": 20.5, "hottest_c": None}) == "measured: round_trip_ms 20.5, hottest_c unknown"


def test_every_candidate_is_a_line_of_its_own() -> None:
    assert rows(STAGE) == [
        ("generate", "local", "x", "unknown", "unknown", "", "", "", "", "It is too hot."),
        ("generate", "cloud", "*", "1.50 s", "0.10 s", 1000, "", "0.25", "12.35", "It was chosen."),
    ]


def test_a_stage_of_a_pipeline_has_its_name_and_says_what_is_estimated() -> None:
    stage = {**STAGE, "name": "draft", "model": "tiny", "privacy": "site", "parts": 3, "estimates": ["Of 9 tokens."]}
    assert [row[0] for row in rows(stage)] == ["draft", "draft"]
    assert [*told({"pipeline": "p", "privacy": "any"}, stage)] == [
        "draft of 'tiny' (site, 3 pieces): cloud. Because.",
        "  estimated: Of 9 tokens.",
    ]
    nowhere = {**stage, "where": None, "candidates": [], "predicted": None}
    assert rows(nowhere) == [("draft", "nowhere", "x", "unknown", "unknown", "", "", "", "", "Because.")]


def test_a_receipt_names_the_parts_of_an_answer_and_the_error_of_the_prediction() -> None:
    parts = [{"reads": "cloud from 0"}, {"reads": "local from 37"}]
    one = {
        "id": "r",
        "at": 0.0,
        "model": "tiny",
        "where": "cloud, local",
        "state": "done",
        "predicted_ms": 1500.0,
        "real_ms": 2000.0,
        "error": 0.25,
        "bytes": 1000,
        "price": 0.5,
        "plan": {"stages": [STAGE]},
        "receipt": {"stages": [{"segments": parts}]},
    }
    line = row(one)
    assert line[3] == "cloud from 0; local from 37"
    assert line[5:10] == ("1.50 s", "2.00 s", "25%", 1000, "0.5")
    assert summary([one, {"error": None}, {"error": 0.5}]) == (
        "2 predictions: the median differs from the real time by 38%, 1 of them by at most 25%."
    )
    assert summary([{"error": None}]) is None
