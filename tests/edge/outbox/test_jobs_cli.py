"""`edgewise jobs` against a real service."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from edgewise.cli.jobs import row, text_of
from edgewise.cli.main import build
from scripts.service import edgewise_command, edgewise_environment
from tests.e2e.service import import_tiny, new_home, running


def test_jobs_are_listed_shown_cancelled_and_deleted() -> None:
    with new_home(starter=False) as home, running(model=import_tiny(home), home=home) as service:
        at = ("--url", service.url)
        asked = {"model": "tiny", "prompt": "hi", "max_tokens": 4}
        one = httpx.post(f"{service.url}/edgewise/v1/jobs", json={"url": "/v1/completions", "body": asked}, timeout=60)
        id = one.json()["id"]
        far = {"url": "/v1/completions", "body": {**asked, "max_tokens": 4000, "ignore_eos": True}, "key": "far"}
        other = httpx.post(f"{service.url}/edgewise/v1/jobs", json=far, timeout=60).json()["id"]
        assert other in cli("jobs", "list", *at)
        assert json.loads(cli("jobs", "cancel", other, "--json", *at))["state"] in ("cancelled", "rejected")
        while (job := json.loads(cli("jobs", "show", id, "--json", *at)))["state"] != "succeeded":
            assert job["state"] in ("queued", "running")
            time.sleep(0.05)
        assert cli("jobs", "show", id, *at).rstrip("\n") == text_of(job)
        cli("jobs", "delete", id, *at)
        assert [one["id"] for one in json.loads(cli("jobs", "list", "--json", *at))["data"]] == [other]
        gone = refused(home, "jobs", "show", id, *at)
        assert "There is no job" in gone.stderr
        assert gone.returncode == 5
        second = refused(home, "serve", "--port", "0")
        assert second.returncode == 3
        assert "another device service uses" in second.stderr


def cli(*args: str) -> str:
    """What a command prints, run in this process."""
    done = CliRunner().invoke(build(), args)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = edgewise_command(*args)
    return subprocess.run(
        command, env=edgewise_environment(home), check=False, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (None, None),
        ({"body": {"choices": [{"text": "a"}]}}, "a"),
        ({"body": {"choices": [{"message": {"content": "b"}}]}}, "b"),
        ({"body": {"choices": [{"message": {"content": None}}]}}, None),
        ({"body": {"choices": [{"text": "a"}, {"text": "b"}]}}, None),
        ({"body": {"error": {}}}, None),
    ],
)
def test_the_text_of_an_answer(response: object, text: str | None) -> None:
    assert text_of({"response": response}) == text


def test_a_row_says_what_a_job_waits_for() -> None:
    job = {"id": "j", "state": "queued", "created_at": 1.8e9, "tries": 2, "waiting": "The link is down."}
    shown = row({**job, "delivery": {"state": "pending", "tries": 1, "error": None}})
    assert shown[1:] == ("queued", "2027-01-15 08:00 UTC", 2, "pending (1)", "The link is down.")
