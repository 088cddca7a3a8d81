"""`edgewise pipelines` against a real service with two models, and without one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from edgewise.cli.main import build
from edgewise.cli.pipelines import inputs_of, shown
from edgewise.core.errors import InvalidRequest
from scripts.service import edgewise_command, edgewise_environment
from tests.api.harness import parse_events
from tests.e2e.service import import_tiny, new_home, running

CHAIN = """
name = "two"
[inputs.topic]

[[stages]]
name = "draft"
kind = "generate"
model = "tiny"
input = { prompt = "${topic}" }
options = { max_tokens = 40, ignore_eos = true }

[[stages]]
name = "rewrite"
kind = "generate"
model = "other"
input = { prompt = "again: ${draft}" }
options = { max_tokens = 8, ignore_eos = true }
"""
MAP = """
name = "map"
[inputs.document]

[[stages]]
name = "read"
kind = "generate"
model = "tiny"
priority = "background"
where = ["local"]
over = "document"
each = "tokens"
input = { prompt = "Notes on ${part}:" }
options = { max_tokens = 12, ignore_eos = true }

[[stages]]
name = "answer"
kind = "generate"
model = "other"
over = "read"
each = "tokens"
fold = true
input = { prompt = "${part}" }
options = { max_tokens = 12, ignore_eos = true }
"""


def refused(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = edgewise_command(*args)
    return subprocess.run(
        command, env=edgewise_environment(home), check=False, capture_output=True, text=True, timeout=60
    )


def cli(*args: str) -> str:
    """What a command prints, run in this process."""
    done = CliRunner().invoke(build(), args)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_chains_of_two_models_on_real_engines() -> None:
    with new_home(starter=False) as home:
        import_tiny(home, "tiny", context=256)
        import_tiny(home, "other", context=256, seed=3)
        (home / "pipelines").mkdir()
        (home / "pipelines" / "two.toml").write_text(CHAIN)
        (home / "pipelines" / "map.toml").write_text(MAP)
        (home / "pipelines" / "wrong.toml").write_text(CHAIN.replace("generate", "speak"))
        with running(model="tiny", home=home) as service:
            at = ("--url", service.url)
            listed = json.loads(cli("pipelines", "list", "--json", *at))
            assert {"two", "map", "read-long"} <= {one["name"] for one in listed["data"]}
            assert len(listed["faults"]) == 1
            assert "'speak' has no back end" in listed["faults"][0]
            args = ("pipelines", "run", "two", "-i", "topic=cats", "--seed", "5")
            answer = json.loads(cli(*args, "--json", *at))
            assert cli(*args, *at) == answer["output"]["rewrite"]["text"] + "\n"
            assert [stage["model"] for stage in answer["edgewise"]["stages"]] == ["tiny", "other"]
            stream_says_the_same(service.url, answer)
            long_document_is_read(service.url)
            gone = refused(home, "pipelines", "run", "wrong", *at)
            assert gone.returncode != 0
            assert "'speak' has no back end" in gone.stderr


def stream_says_the_same(url: str, answer: dict[str, Any]) -> None:
    body = {"input": {"topic": "cats"}, "seed": 5, "stream": True}
    told = httpx.post(f"{url}/edgewise/v1/pipelines/two", json=body, timeout=60)
    events = [event for event in parse_events(told.text) if isinstance(event, dict)]
    chunks = [event for event in events if event["object"] == "edgewise.pipeline.chunk"]
    text = "".join(chunk.get("text", "") for chunk in chunks if chunk["stage"] == "rewrite")
    assert text == answer["output"]["rewrite"]["text"]
    assert [chunk["stage"] for chunk in chunks] == sorted(chunk["stage"] for chunk in chunks)
    assert events[-1]["usage"] | {"prompt_tokens_details": None} == answer["usage"] | {"prompt_tokens_details": None}


def long_document_is_read(url: str) -> None:
    """A document of several times the context."""
    document = " ".join(f"Sentence {number} says little." for number in range(60))
    told = httpx.post(f"{url}/edgewise/v1/pipelines/map", json={"input": {"document": document}}, timeout=120)
    assert told.status_code == 200, told.text
    answer = told.json()
    read, answered = answer["edgewise"]["stages"]
    assert len(read["parts"]) >= 4
    assert {part["priority"] for part in read["parts"]} == {"background"}
    assert len(answered["parts"]) >= 1
    assert answer["output"]["answer"]["text"]


def test_a_file_is_checked_without_a_service(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(CHAIN)
    (tmp_path / "wrong.toml").write_text(CHAIN.replace("${draft}", "${drft}"))
    checked = json.loads(cli("pipelines", "check", str(tmp_path / "two.toml"), "--json"))
    assert checked["output"] == ["rewrite"]
    wrong = refused(tmp_path, "pipelines", "check", str(tmp_path / "wrong.toml"))
    assert wrong.returncode != 0
    assert "stages.1.input.prompt: '${drft}' is no input and no stage" in wrong.stderr


def test_inputs_are_texts_or_files(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a = b")
    assert inputs_of(["a=", "b=x=y", f"c=@{tmp_path / 'text'}"]) == {"a": "", "b": "x=y", "c": "a = b"}
    for wrong in ("a", "=b", f"a=@{tmp_path}"):
        with pytest.raises(InvalidRequest):
            inputs_of([wrong])


def test_pictures_are_saved_and_their_paths_are_shown(tmp_path: Path) -> None:
    output = {"pictures": [{"b64_json": "YQ=="}, {"b64_json": "Yg=="}]}
    lines = shown("draw", output, "p-draw", tmp_path)
    assert lines == [f"{tmp_path}/p-draw-0.png (draw)", f"{tmp_path}/p-draw-1.png (draw)"]
    assert [(tmp_path / f"p-draw-{number}.png").read_bytes() for number in (0, 1)] == [b"a", b"b"]
